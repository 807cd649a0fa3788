"""`jsbackup plan`, `restore` and `clone`. The engine is imported when they are called: `--help` and completion load
this.

The second server of a clone has the options of the first, with the prefix `--to-`. The environment and the selected
context are ignored for them: a target must be named.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.opening import (
    AskedAccounts,
    Where,
    account_options,
    connection_of,
    connection_reference_of,
    open_repository,
    place_given,
    reading,
    settings_of,
    target_connection_of,
)
from jsbackup.cli.options.restore_options import (
    Asked,
    live_planning_options,
    mask_key_option,
    planning_options,
    refuse_given,
    refuse_obfuscation,
    refuse_options_beside,
    runbook_option,
)
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command, for_second
from jsbackup.cli.parsing.context import GIVEN, SERVER_OPTIONS, Shared, jobs_option
from jsbackup.errors import Interrupted
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["COMMANDS"]


@click.command(cls=Command, needs_server=True, chooses=True)
@planning_options
@click.option(
    "-o",
    "--output",
    "output_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the plan for 'restore --plan', unless something blocks it.",
)
@runbook_option("Plan all restores in this file. Replaces BACKUP and the options of the restore.")
@account_options("Plan the restore of the latest backup of each account.", mapped=True)
@mask_key_option
def plan(
    shared: Shared,
    asked: Asked,
    output_file: Path | None,
    runbook: Path | None,
    *,
    accounts: AskedAccounts,
    mask_secret: bytes,
) -> Result | int:
    """Show what 'jsbackup restore' would do with the same arguments, why, and what blocks it.

    It also says which backup `latest` is, and which other backups have what that one lacks, as a restore does.

    Nothing is changed at the target. The exit code is 0 if the plan can be carried out, 3 if the backup lacks
    something that you asked for, else that of the refusals.
    """
    if accounts.all_accounts:
        from jsbackup.cli.commands.all_accounts import plan_all

        refuse_given(click.get_current_context(), "--all-accounts", "output_file", "runbook")
        return plan_all(shared, asked, accounts, mask_secret=mask_secret)
    if runbook is not None:
        from jsbackup.cli.commands.runbook import plan_runbook

        refuse_options_beside(click.get_current_context(), "--runbook", "output_file")
        return plan_runbook(shared, runbook, mask_secret)
    from jsbackup.cli.output.restore_report import plan_code, plan_json, plan_text
    from jsbackup.engine.restore.restore import preview_restore
    from jsbackup.planning.selection.chosen_streams import with_elsewhere

    options = asked.options()
    if output_file is not None:
        refuse_obfuscation(options.reshape, "a saved plan, which has no secret")
    if mask_secret:  # otherwise the key is only needed when the plan is carried out
        options.reshape.masks.check_secret(mask_secret)
    connection, repository = connection_of(shared), open_repository(shared)
    with reading(shared, repository, "plan"):
        finder = asked.finder(shared, repository, options, None, silent=True)
        preview = run_loop(preview_restore(connection, repository, finder.early(), options, now_ns=time.time_ns))
    preview = replace(preview, plan=with_elsewhere(preview.plan, finder.choice))
    saved = None
    if output_file is not None and preview.plan.refusals:
        shared.output.note("the plan was not saved, since it is refused")
    elif output_file is not None:
        from jsbackup.planning.saved_plan import encode_plan, write_plan

        manifest, created = finder.choice.manifest, format_time(time.time_ns())
        cut = options.reshape.cut
        data = encode_plan(preview.plan, preview.target, manifest, asked, cut=cut, tool=TOOL, created=created)
        write_plan(output_file, data)
        saved = str(output_file)
    document = plan_json(finder, preview, saved)
    return Result(document, plan_text(document), plan_code(preview.plan))


@click.command(cls=Command, needs_server=True, chooses=True, on_spark=True)
@planning_options
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Carry out this saved plan.",
)
@runbook_option("Carry out the restores in this file.")
@account_options("Restore all accounts, as a system user.", mapped=True)
@click.option("--partial", is_flag=True, help="Restore what is left of damaged streams.")
@click.option(
    "--verify",
    type=click.Choice(["full", "sample", "quick", "none"]),
    default="full",
    show_default=True,
    help="How much to compare.",
)
@jobs_option
@mask_key_option
def restore(
    shared: Shared,
    asked: Asked,
    mask_secret: bytes,
    plan_file: Path | None,
    *,
    runbook: Path | None,
    accounts: AskedAccounts,
    partial: bool,
    verify: str,
    jobs: int,
    where: Where | None,
) -> Result | int:
    """Restore streams and consumers of BACKUP (an id, its start, or `latest`), then read them back and compare.

    `latest` is the newest complete backup of the connected account that has the named streams; --origin or --tag
    chooses among several sources. Nothing is changed unless everything you ask for can be restored, in all accounts;
    'jsbackup plan' shows that before. Of a stream with a damaged object nothing stays, unless with --partial.
    """
    from jsbackup.cli.output.restore_report import restored_result
    from jsbackup.engine.link.source import read_source
    from jsbackup.engine.restore.proof import ProofLevel
    from jsbackup.engine.restore.restore import begin_restore, run_restore
    from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
    from jsbackup.planning.typed_options import keeping_obfuscated

    ctx, saved = click.get_current_context(), None
    settings = RestoreSettings(jobs=jobs, proof=ProofLevel(verify), partial=partial, mask_secret=mask_secret)
    if accounts.all_accounts:
        from jsbackup.cli.commands.all_accounts import restore_all

        refuse_given(ctx, "--all-accounts", "plan_file", "runbook", "spark", "spark_conf")
        return restore_all(shared, asked, accounts, settings=settings)
    if runbook is not None:
        from jsbackup.cli.commands.runbook import restore_runbook

        refuse_options_beside(ctx, "--runbook", "plan_file", "spark", "spark_conf")
        return restore_runbook(shared, runbook, settings)
    if plan_file is not None:
        from jsbackup.planning.saved_plan import read_plan

        refuse_options_beside(ctx, "--plan", "partial")
        saved = read_plan(plan_file)
    options = asked.options() if saved is None else saved.options
    options.reshape.masks.check_secret(mask_secret)
    # A stream that was complete by then exists, and a saved plan is not that of the target any more.
    hint = "To go on, run the same command again."
    if saved is not None:
        hint = "To go on, make a new plan, with --if-exists skip if the old one had fail."
    elif options.if_exists == "fail":
        hint = "To go on, run the same command with --if-exists skip: streams that were complete stay as they are."
    try:
        if where is not None:  # errors in the command are reported before Spark starts
            refuse_obfuscation(options.reshape, "executors of Spark: its secret stays on this machine")
            spark, place, reference = settings_of(where), place_given(shared), connection_reference_of(shared)
        connection, repository = connection_of(shared), open_repository(shared)
        with (
            reading(shared, repository, "restore"),
            keeping_obfuscated(asked.obfuscation_key, options.reshape),
            make_progress("restore", wanted=shared.progress) as progress,
        ):
            finder = asked.finder(shared, repository, options, saved, silent=shared.output.as_json)
            backup = finder.early()
            if saved is not None:
                saved.refuse_other(finder.choice.manifest)
            run = RestoreRun(connection, options, settings, progress)
            if where is None:
                report = run_loop(run_restore(run, repository, backup, saved))
            else:
                from jsbackup.pipeline.session.session import open_session
                from jsbackup.pipeline.tasks.fan_out import Executors
                from jsbackup.pipeline.tasks.fan_out_restore import mask_key_of, restore_streams

                manifest = backup(run_loop(read_source(connection)))
                prepared = run_loop(begin_restore(run, repository, manifest, saved))
                mask_key = mask_key_of({"mask_key_file": ctx.params.get("mask_key_file")})
                at_once = jobs if ctx.get_parameter_source("jobs") in GIVEN else 0  # 0: as many as Spark can
                with open_session(spark) as session:
                    executors = Executors(session, place, repository.descriptor.id, reference, at_once)
                    report = restore_streams(executors, run, repository, prepared, mask_key=mask_key)
    except Interrupted as error:
        raise error.with_hint(hint) from None
    return restored_result(report, "restored", finder)


_VARIABLE = re.compile(r" \[env: \w+\]")
_BETTER = re.compile(r"prefer NATS_\w+")


# The environment is that of the first server.
TO_OPTIONS = [
    for_second(option, _BETTER.sub("prefer env://VARIABLE", _VARIABLE.sub("", option.help or "")))
    for option in SERVER_OPTIONS
]


@click.command(cls=Command, needs_server=True, second=TO_OPTIONS)
@live_planning_options
@click.option("--dry-run", is_flag=True, help="Show what would be done and what blocks it; change nothing.")
@click.option(
    "--verify",
    type=click.Choice(["full", "none"]),
    default="full",
    show_default=True,
    help="What to compare with the source afterwards. full: every message.",
)
@jobs_option
@mask_key_option
def clone(
    shared: Shared,
    to: Mapping[str, Any],
    asked: Asked,
    dry_run: bool,
    *,
    verify: str,
    jobs: int,
    mask_secret: bytes,
) -> Result:
    """Copy streams and consumers from one server straight to another, then read them back and compare: all of the
    account, or those that you name (globs are allowed).

    Nothing is stored in between. Nothing is changed unless everything you ask for can be cloned; --dry-run shows that
    before. With --if-exists replace you can repeat it: existing streams stay until their copies are proved.
    """
    from jsbackup.cli.output.restore_report import preview_json, preview_text, restored_result
    from jsbackup.engine.clone.clone import preview_clone, run_clone
    from jsbackup.engine.restore.proof import ProofLevel
    from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
    from jsbackup.planning.typed_options import keeping_obfuscated

    options = asked.options()
    options.reshape.masks.check_secret(mask_secret)
    source, target = connection_of(shared), target_connection_of(to)
    if dry_run:
        preview, described = run_loop(preview_clone(source, target, options, now_ns=time.time_ns))
        version, cluster, account = described.server_version, described.cluster, described.account
        origin = {"version": version, "cluster": cluster or None, "account": account or None}
        document = {"source": origin} | preview_json(preview)
        source_text = f"from nats-server {version}, {cluster}, account {account}"
        return Result(document, preview_text(document, "cloned", source_text), preview.plan.code)
    settings = RestoreSettings(jobs=jobs, proof=ProofLevel(verify), mask_secret=mask_secret)
    with (
        keeping_obfuscated(asked.obfuscation_key, options.reshape),
        make_progress("clone", wanted=shared.progress) as progress,
    ):
        report = run_loop(run_clone(RestoreRun(target, options, settings, progress), source))
    return restored_result(report, "cloned")


COMMANDS = {"plan": plan, "restore": restore, "clone": clone}
