"""`jsbackup doctor`: check every precondition of a backup or a restore, with a line for each.

What asks servers, or is for Spark, is imported where it is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import click

from jsbackup.cli.options.opening import connection_of, keys_of, run_async
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import format_count
from jsbackup.cli.output.result import Block, Result, Table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import CommandContext, Shared, merge_shared
from jsbackup.config import default_config_path, environment, examine_config, expand_path, hide_logins, s3_settings
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.exit_codes import combined
from jsbackup.model import Check, JsonObject, Verdict
from jsbackup.repository.checks.doctor import Purpose, examine_repository
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.stores.url import open_store

__all__ = ["COMMANDS"]


class _DoctorCommand(Command):
    """Lists all that is wrong with profiles, instead of ending with the first of it."""

    def take_profile(self, ctx: CommandContext, args: list[str]) -> None:
        try:
            super().take_profile(ctx, args)
        except UsageError as error:
            ctx.meta[__name__] = error

    def invoke(self, ctx: click.Context) -> Any:
        assert isinstance(ctx, CommandContext)
        values, _ = merge_shared(ctx)
        checks = self._check_profiles(ctx, values["config"], values["profile"])
        unusable = ctx.meta.get(__name__)
        # That the file was given without a profile is as it should be here.
        if unusable is not None and values["profile"] and not any(one.verdict is Verdict.PROBLEM for one in checks):
            raise unusable
        ctx.params |= {"profiles": checks, "usable": unusable is None or not values["profile"]}
        return super().invoke(ctx)

    def _check_profiles(self, ctx: CommandContext, file_name: str | None, names: tuple[str, ...]) -> list[Check]:
        """Check the profiles with these names, or all of the file if there is one. Raises UsageError if it is not
        readable.
        """
        environ = environment()
        path = expand_path(file_name, environ) if file_name else default_config_path(environ)
        if not (file_name or names or path.exists()):
            return []
        file = examine_config(path)
        profiles, problems = [], list(file.problems)
        for name in file.matching(names)[0] or sorted(file.profiles):
            try:
                profiles.append(self.read_profile(ctx, file, name, every_command=True))
            except UsageError as error:
                problems.append(error)
        problems += [problem for profile in profiles for problem in profile.problems]
        if not (file.profiles or problems):
            problems.append(UsageError(f"{path} has no profiles", hint="Write [profiles.NAME]."))
        # Mistakes of the defaults are in each profile.
        told = {hide_logins(problem.message): problem for problem in problems}
        checks = [Check.failed("config", problem.with_message(said), "Correct it.") for said, problem in told.items()]
        exposed = sorted({key for profile in profiles for key in profile.exposed})
        if exposed:
            found = f"{path} can be read by others and holds secrets ({', '.join(exposed)})"
            checks.append(Check.warning("config", found, f"chmod 600 {path}"))
        return checks or [Check.fine("config", f"{path}: {', '.join(one.name for one in profiles)}")]


@click.command(cls=_DoctorCommand, needs_server=True)
@click.option(
    "--for",
    "purpose",
    type=click.Choice([each.value for each in Purpose]),
    default="all",
    show_default=True,
    help="What to check server, user, repository and keys for (default: everything except follow).",
)
def doctor(shared: Shared, purpose: str, *, profiles: list[Check], usable: bool) -> Result:
    """Check everything that a backup or a restore needs, and say how to fix what is wrong.

    All profiles of the file, or those named with --profile; server, JetStream, limits, each permission, replies,
    streams without a leader, clocks; the repository, its keys, whether it can be written to and refuses to replace
    objects, running commands, free space; Java for Spark. Below a line that is not ok is its fix. If one check fails,
    the others still run.

    Nothing is changed: permissions are tried with requests that no server accepts, and objects that are put into the
    repository for a test are removed. A permission for certain streams only counts as denied.
    """
    what = Purpose(purpose)
    there = [*_server(shared, what), *_repository(shared, what)] if usable else []
    checks = [*profiles, *there, _kernel(), _java()]
    problems = [check for check in checks if check.verdict is Verdict.PROBLEM]
    document: JsonObject = {"for": purpose, "ok": not problems, "checks": [_check_json(check) for check in checks]}
    return Result(document, _text(checks), combined(check.code for check in problems))


def _server(shared: Shared, purpose: Purpose) -> list[Check]:
    from jsbackup.engine.check.doctor import examine_server, unreachable

    try:
        connection = connection_of(shared)
    except JsBackupError as error:
        return unreachable(error)
    return run_async(examine_server(connection, purpose, time.time_ns))


def _repository(shared: Shared, purpose: Purpose) -> list[Check]:
    if not shared.repo:
        return [Check.not_tried("repository", "none was given", "Name it with --repo or JSBACKUP_REPO.")]
    try:
        # Without retries and long waits: the present state is of interest.
        settings = replace(s3_settings(shared.s3, environment()), connect_seconds=5.0, read_seconds=15.0)
        store = open_store(shared.repo, settings)
    except JsBackupError as error:
        return [Check.failed("repository", error, "Check --repo.")]
    try:
        keys: GivenKeys | JsBackupError = keys_of(shared)
    except JsBackupError as error:
        keys = error
    return examine_repository(store, keys, purpose, clock=time.time, random=os.urandom)


def _kernel() -> Check:
    from jsbackup.formats import kernels

    if kernels.active() == "compiled":
        return Check.fine("kernel", "compiled")
    fix = "Install a C compiler and reinstall jsbackup."
    return Check.warning("kernel", "the slow Python kernel is used", fix)


def _java() -> Check:
    from jsbackup.pipeline.session.java import LEAST_JAVA, find_java, java_version

    if find_spec("pyspark") is None:
        fix = "Run `pip install 'jsbackup[spark]'` for --spark, and DataFrames."
        return Check.not_tried("java", "Spark is not installed", fix)
    try:
        java = find_java(environment())
        return Check.fine("java", f"Java {java_version(java)}, for Spark, at {java}")
    except JsBackupError as error:
        return Check.warning("java", error.message, error.hint or f"Install Java {LEAST_JAVA} or newer.")


def _check_json(check: Check) -> JsonObject:
    return {
        "check": check.name,
        "about": check.about,
        "result": str(check.verdict),
        "found": check.found,
        "fix": check.fix,
        "code": check.code if check.verdict is Verdict.PROBLEM else None,
    }


def _text(checks: Sequence[Check]) -> Iterator[Block]:
    yield Table(
        ["CHECK", "RESULT", "FOUND"],
        [(c.name, State(c.verdict), f"{c.about}: {c.found}" if c.about else c.found) for c in checks],
    )
    printed: set[str] = set()
    for check in checks:
        line = f"fix: {f'{check.name}: {check.about}' if check.about else check.name}: {check.fix}"
        # Checks that could not run for the same reason need the fix only once.
        if check.fix and not (check.verdict is Verdict.NOT_TRIED and check.fix in printed):
            yield line
            printed.add(check.fix)
    ok, warnings, problems, untried = (sum(check.verdict is verdict for check in checks) for verdict in Verdict)
    warned, failing = format_count(warnings, "warning"), format_count(problems, "problem")
    yield f"{ok} ok, {warned}, {failing}, {untried} not tried"


COMMANDS = {"doctor": doctor}
