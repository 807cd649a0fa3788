"""`jsbackup doctor` and `jsbackup drill`: would a backup or a restore succeed, and does one.

What asks servers, or is for Spark, is imported where it is used.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.commands.look.contents import check_readable
from jsbackup.cli.loop import closing_undisturbed, run_loop
from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.opening import connection_of, keys_of, open_repository, reading
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import consumer_result_text, restored_stream_json
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    TextTable,
    failure_json,
    format_bytes,
    format_count,
    format_seconds,
    said_lines,
    table,
)
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import CommandContext, Shared, jobs_option, merge_shared
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.config import (
    default_config_path,
    environment,
    examine_config,
    expand_path,
    hide_logins,
    parse_glob,
    s3_settings,
)
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.exit_codes import combined
from jsbackup.model import Check, JsonObject, Verdict
from jsbackup.readable import span
from jsbackup.repository.checks.doctor import Purpose, examine_repository
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.stores.url import open_store

if TYPE_CHECKING:
    from jsbackup.engine.check.drill import DrillReport
    from jsbackup.engine.check.drill_server import KeptServer

__all__ = ["COMMANDS"]


# --- doctor ---


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
        if unusable is not None and values["profile"] and not any(check.verdict is Verdict.PROBLEM for check in checks):
            raise unusable
        ctx.params |= {"profiles": checks, "usable": unusable is None or not values["profile"]}
        return super().invoke(ctx)

    def _check_profiles(self, ctx: CommandContext, file_name: str | None, names: tuple[str, ...]) -> list[Check]:
        """Check the profiles with these names, or all of the file if there is one. Raises UsageError if it is not
        readable.
        """
        environ = environment()
        path = expand_path(file_name, environ) if file_name else default_config_path(environ)
        # Path.exists() raises for a folder that may not be looked into, such as a home for a service.
        if not (file_name or names or os.path.exists(path)):  # noqa: PTH110
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
            sentence = f"{path} can be read by others and holds secrets ({', '.join(exposed)})"
            checks.append(Check.warning("config", sentence, f"chmod 600 {path}"))
        return checks or [Check.fine("config", f"{path}: {', '.join(profile.name for profile in profiles)}")]


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
    results = [*_server(shared, what), *_repository(shared, what)] if usable else []
    checks = [*profiles, *results, _kernel(), _java()]
    problems = [check for check in checks if check.verdict is Verdict.PROBLEM]
    rows = [
        {
            "check": check.name,
            "about": check.about,
            "result": str(check.verdict),
            "found": check.found,
            "fix": check.fix,
            "code": check.code if check.verdict is Verdict.PROBLEM else None,
        }
        for check in checks
    ]
    document = {"for": purpose, "ok": not problems, "checks": rows}
    return Result(document, _checks_text(checks), combined(check.code for check in problems))


def _server(shared: Shared, purpose: Purpose) -> list[Check]:
    from jsbackup.engine.check.doctor import examine_server, unreachable

    try:
        connection = connection_of(shared)
    except JsBackupError as error:
        return unreachable(error)
    return run_loop(examine_server(connection, purpose, time.time_ns))


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


def _checks_text(checks: Sequence[Check]) -> Iterator[Block]:
    yield TextTable(
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
    yield f"{ok} ok, {format_count(warnings, 'warning')}, {format_count(problems, 'problem')}, {untried} not tried"


# --- drill ---


def _result(report: DrillReport) -> Result:
    """Return the result; its servers may still run."""
    outcome, restored, kept = report.outcome, report.restored, report.kept
    newest_age = report.newest_message_age_seconds
    notes = {each.name: [*report.adapted.get(each.name, ()), *each.notes] for each in restored.streams}
    document = {
        "backup": outcome.backup,
        "created": outcome.backup_created,
        "ok": outcome.ok,
        "seconds": round(report.seconds, 3),
        "server": {"version": outcome.server, "nodes": outcome.nodes},
        "everything": outcome.everything,
        "uncounted": report.uncounted or None,
        "recovery_point": {
            "backup_age_seconds": round(report.backup_age_seconds, 3),
            "newest_message": outcome.newest_message,
            "newest_message_age_seconds": None if newest_age is None else round(newest_age, 3),
        },
        "streams": [restored_stream_json(each, notes[each.name]) for each in restored.streams],
        "failed": [failure_json(each.name, each.error) for each in restored.failures],
        "warnings": list(report.warnings),
    }
    if kept is None:
        return Result(document, _text(report, document), outcome.code)
    reach = {
        "url": kept.url,
        "user": kept.user,
        "password": kept.password,
        "context": str(kept.context),
        "folder": str(kept.folder),
    }
    look = f"nats --context {shlex.quote(reach['context'])} stream ls -a"
    lines = {**{name: reach[name] for name in ("url", "user", "password", "folder")}, "look": look}
    text = [
        *_text(report, document),
        "",
        *(f"{name:<10}{value}" for name, value in lines.items()),
        "Ctrl-C ends the server and removes the folder.",
    ]
    return Result({**document, "kept": reach}, text, outcome.code, at_once=True)


def _text(report: DrillReport, document: JsonObject) -> Iterator[Block]:
    outcome, newest_age = report.outcome, report.newest_message_age_seconds
    yield table(
        document["streams"],
        {
            "STREAM": "as",
            ">MESSAGES": ("messages", format_count),
            ">BYTES": ("bytes", format_bytes),
            ">CONSUMERS": ("consumers", lambda consumers: str(len(consumers))),
            ">TIME": ("seconds", format_seconds),
            "PROOF": ("verified", lambda verified: State("verified" if verified else "not verified")),
        },
    )
    yield from said_lines(_remarks(report, document))
    last = "" if newest_age is None else f", its newest message {span(newest_age)}"
    yield f"recovery point: the backup is {span(report.backup_age_seconds)} old{last}"
    if report.uncounted:
        yield f"note: it does not count as a drill of everything: {report.uncounted}"
    came = "all restored and proved" if outcome.ok else "NOT all restored and proved"
    if not document["streams"] and not document["failed"]:
        came = "nothing restored, nothing proved: the backup has no stream"
    where = f"nats-server {outcome.server}" + (f", {outcome.nodes} of them" if outcome.nodes > 1 else "")
    yield f"drilled backup {outcome.backup} in {format_seconds(report.seconds)} ({where}): ", State(came)


def _remarks(report: DrillReport, document: JsonObject) -> Iterator[Said]:
    for stream, row in zip(report.restored.streams, document["streams"], strict=True):
        yield from (Said("note", stream.as_name, note) for note in row["notes"])
        yield from (Said("note", stream.as_name, consumer_result_text(each)) for each in stream.consumers if each.note)
    yield from (Said("failed", row["name"], row["reason"]) for row in document["failed"])


@click.command(cls=Command, unattended=True, chooses=True)
@click.argument("backup", required=False, shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@click.option(
    "--nats-server",
    "program",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The server to start (default: nats-server on the PATH, else that of jsbackup[drill]).",
)
@click.option(
    "--nodes",
    type=WholeNumber(1, 5),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of servers; more than one form a cluster.",
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="FOLDER",
    help="Where the servers store their data, in a folder that is removed afterwards (default: the temporary folder).",
)
@click.option("--keep", is_flag=True, help="Let the servers stay until Ctrl-C, and print how to reach them.")
@jobs_option
def drill(
    shared: Shared,
    backup: str | None,
    streams: tuple[str, ...],
    exclude: tuple[str, ...],
    *,
    program: Path | None,
    nodes: int,
    work_dir: Path | None,
    keep: bool,
    jobs: int,
) -> Result | int:
    """Restore BACKUP into a throwaway server, prove all of it, and say how long it took.

    BACKUP is an id, its start, or `latest` (the default).

    The server is started for this, on 127.0.0.1 with a password of its own. Everything is restored, read back and
    compared; then the server is stopped and its data removed. The result is recorded in the repository, for 'jsbackup
    status --max-drill-age'. A drill of only some streams does not count there, nor one of a backup that leaves out
    streams of the same server and account that others have.

    With --keep the servers stay until Ctrl-C or SIGTERM, to look at what came back with any NATS client. URL, user,
    password and a file for 'nats --context' are printed; with --json in one line. Nothing goes away by looking:
    retention by interest or as a work queue and inactive_threshold of consumers are lifted, too, and notes say where.
    """
    from jsbackup.engine.check.drill import DrillRun
    from jsbackup.engine.check.drill_server import find_program
    from jsbackup.planning.model import RestoreOptions

    output = shared.output
    options = RestoreOptions(tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude)), allow_nothing=True)
    wanted = WantedBackup(backup or LATEST, options.streams, options.exclude, silent=output.as_json)
    server = find_program(program, environment().get("PATH"), Path(sys.executable).parent / "nats-server")
    repository = open_repository(shared)
    check_readable(repository)
    with closing_undisturbed() as kept:
        with reading(shared, repository, "drill"):
            manifest = find_backup(shared, repository, wanted)
            run = DrillRun(
                repository, manifest, options, server, note=output.note, nodes=nodes, jobs=jobs, work_dir=work_dir
            )
            for warning in run.warnings:
                output.note(State("warning"), f": {warning}")
            with make_progress("drill", wanted=shared.progress) as progress:
                report = run.carry_out(run_loop, progress, kept if keep else None)
        if report.kept is None:
            return _result(report)
        _wait_for_end(report.kept, lambda: output.show(_result(report)))
    return report.outcome.code


def _wait_for_end(kept: KeptServer, tell: Callable[[], object]) -> None:
    """Wait for Ctrl-C or SIGTERM. Raises JsBackupError if the server ends before.

    `tell` says that it is ready. Anyone who reads that may end the command at once.
    """
    import asyncio

    from jsbackup.engine.check.drill_server import stay

    stopping = asyncio.Event()

    async def work() -> None:
        tell()
        await stay(kept, stopping)

    run_loop(work(), stopping.set)


COMMANDS = {"doctor": doctor, "drill": drill}
