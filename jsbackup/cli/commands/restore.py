"""`jsbackup restore`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.accounts.options import AskedAccounts, account_options
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import connection_of, open_repository, run_async
from jsbackup.cli.options.reshaping import mask_key_option, refuse_obfuscation
from jsbackup.cli.options.restore_options import (
    Asked,
    planning_options,
    refuse_given,
    refuse_options_beside,
    runbook_option,
)
from jsbackup.cli.options.spark import Where
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared, jobs_option
from jsbackup.errors import Interrupted

if TYPE_CHECKING:
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.planning.saved_plan import SavedPlan

__all__ = ["COMMANDS"]


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
    start_log(shared)
    saved = None
    if accounts.all_accounts:
        refuse_given(click.get_current_context(), "--all-accounts", "plan_file", "runbook", "spark", "spark_conf")
    from jsbackup.engine.restore.partial_proof import ProofLevel
    from jsbackup.engine.restore.restore import run_restore
    from jsbackup.engine.restore.run import RestoreRun, RestoreSettings

    settings = RestoreSettings(
        jobs=jobs,
        proof=ProofLevel(verify),
        partial=partial,
        mask_secret=mask_secret,
    )
    if accounts.all_accounts:
        from jsbackup.cli.accounts.restore import restore_all

        return restore_all(shared, asked, accounts, settings=settings)
    if runbook is not None:
        from jsbackup.cli.commands.runbook import restore_runbook

        refuse_options_beside(click.get_current_context(), "--runbook", "plan_file", "spark", "spark_conf")
        return restore_runbook(shared, runbook, settings)
    if plan_file is not None:
        refuse_options_beside(click.get_current_context(), "--plan", "partial")
        from jsbackup.planning.saved_plan import read_plan

        saved = read_plan(plan_file)
    options = asked.options() if saved is None else saved.options
    options.reshape.masks.check_secret(mask_secret)
    if where is not None:
        refuse_obfuscation(options.reshape, "executors of Spark: its secret stays on this machine")
        from jsbackup.cli.commands.spark.fan_out import spread_restore

        with _telling_how_to_go_on(options, saved):
            return spread_restore(shared, asked, saved, options, settings=settings, where=where)
    from jsbackup.cli.output.restore_report import restored_result
    from jsbackup.planning.typed_options import keeping_obfuscated

    connection = connection_of(shared)
    repository = open_repository(shared)
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
        with _telling_how_to_go_on(options, saved):
            report = run_async(run_restore(run, repository, backup, saved))
    return restored_result(report, "restored", finder)


@contextmanager
def _telling_how_to_go_on(options: RestoreOptions, saved: SavedPlan | None) -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        raise error.with_hint(_how_to_go_on(options, saved)) from None


def _how_to_go_on(options: RestoreOptions, saved: SavedPlan | None) -> str:
    """Return the hint after an interrupted restore: a stream that was complete by then exists, and a saved plan is not
    that of the target any more.
    """
    if saved is not None:
        return "To go on, make a new plan, with --if-exists skip if the old one had fail."
    if options.if_exists == "fail":
        return "To go on, run the same command with --if-exists skip: streams that were complete stay as they are."
    return "To go on, run the same command again."


COMMANDS = {"restore": restore}
