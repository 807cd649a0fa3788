"""`jsbackup plan`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import time
from dataclasses import replace
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
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Finder
    from jsbackup.engine.restore.preview import Preview
    from jsbackup.planning.model import RestoreOptions

__all__ = ["COMMANDS", "plan_restore"]


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
    something that you asked for, else that of the refusals. A server may still refuse what only it knows, such as
    limits in its configuration file.
    """
    start_log(shared)
    if accounts.all_accounts:
        from jsbackup.cli.accounts.restore import plan_all

        refuse_given(click.get_current_context(), "--all-accounts", "output_file", "runbook")
        return plan_all(shared, asked, accounts, mask_secret=mask_secret)
    if runbook is not None:
        from jsbackup.cli.commands.runbook import plan_runbook

        refuse_options_beside(click.get_current_context(), "--runbook", "output_file")
        return plan_runbook(shared, runbook, mask_secret)
    return plan_restore(shared, asked, mask_secret, output_file=output_file)


def plan_restore(shared: Shared, asked: Asked, mask_secret: bytes, *, output_file: Path | None = None) -> Result:
    """Plan the requested restore, and save the plan."""
    from jsbackup.cli.output.restore_report import plan_code, plan_json, plan_text

    if output_file is not None:
        refuse_obfuscation(asked.options().reshape, "a saved plan, which has no secret")
    finder, preview, options = _preview(shared, asked, mask_secret)
    manifest, saved = finder.choice.manifest, None
    if output_file is not None and not preview.plan.refusals:
        from jsbackup.planning.saved_plan import encode_plan, write_plan

        created = format_time(time.time_ns())
        data = encode_plan(preview.plan, preview.target, manifest, options, tool=TOOL, created=created)
        write_plan(output_file, data)
        saved = str(output_file)
    if output_file is not None and saved is None:
        old = f"; {output_file} is an earlier one" if output_file.exists() else ""
        shared.output.note(f"the plan was not saved, since it is refused{old}")
    document = plan_json(finder, preview, saved)
    return Result(document, plan_text(document), plan_code(preview.plan))


def _preview(shared: Shared, asked: Asked, mask_secret: bytes) -> tuple[Finder, Preview, RestoreOptions]:
    """Plan the requested restore; also return what found the backup, and the parsed options."""
    from jsbackup.engine.restore.preview import preview_restore
    from jsbackup.planning.elsewhere import with_elsewhere

    options = asked.options()
    if mask_secret:  # otherwise the key is only needed when the plan is carried out
        options.reshape.masks.check_secret(mask_secret)
    connection = connection_of(shared)
    repository = open_repository(shared)
    with reading(shared, repository, "plan"):
        finder = asked.finder(shared, repository, options, None, silent=True)
        preview = run_async(preview_restore(connection, repository, finder.early(), options, now_ns=time.time_ns))
    return finder, replace(preview, plan=with_elsewhere(preview.plan, finder.choice)), options


COMMANDS = {"plan": plan}
