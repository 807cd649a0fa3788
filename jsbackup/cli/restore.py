"""`jsbackup restore`. The engine is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.command import Command, Shared, jobs_option
from jsbackup.cli.latest import make_finder, notes_json, with_elsewhere
from jsbackup.cli.leases import lock_timeout_option, reading
from jsbackup.cli.log import start_log
from jsbackup.cli.output import Output, format_bytes, format_count, format_seconds
from jsbackup.cli.planning import Asked, planning_options, refuse_beside, runbook_option, window_option
from jsbackup.cli.progress import make_progress
from jsbackup.cli.reports import consumer_result_json, consumer_result_text, lost_text, problem_json
from jsbackup.cli.reshaping import mask_key_options
from jsbackup.cli.session import connection_of, open_repository, run_async
from jsbackup.cli.spark import Where, spread_by_spark
from jsbackup.config import parse_size
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.latest import Finder
    from jsbackup.engine.restore import RestoredStream, RestoreReport

__all__ = ["COMMANDS", "restored_code", "restored_json", "tell_report", "tell_restored"]


@click.command(cls=Command, needs_server=True)
@planning_options
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Carry this plan out, if the target is as it was then; in place of BACKUP and what says how to restore it.",
)
@runbook_option("Carry out all restores that this file lists, if all of them can be; in place of BACKUP, like --plan.")
@window_option
@click.option("--partial", is_flag=True, help="Where stored objects are lost or damaged, restore what is left.")
@click.option("--no-verify", is_flag=True, help="Do not read back what was restored.")
@jobs_option
@mask_key_options
@spread_by_spark
@lock_timeout_option
def restore(
    shared: Shared,
    asked: Asked,
    mask_secret: bytes,
    plan_file: Path | None,
    runbook: Path | None,
    window: str | None,
    partial: bool,
    no_verify: bool,
    jobs: int,
    where: Where,
    lock_timeout: str,
) -> int:
    """Restore streams and consumers of BACKUP (an id, its start, or `latest`), then read them back and compare.

    `latest` is the newest complete backup of the cluster and account that is connected to that has the streams which
    are named, or all. If there is none of that source, it is of the only other one there is; of several --origin or
    --tag chooses one. What the backup lacks is named, with the one that has it, and the exit code is 3.

    Nothing is changed unless everything asked for can be restored; 'jsbackup plan' tells before. With --partial
    messages that are lost are missing from a stream as if they had been deleted; the output says which, and the exit
    code is 3. With --spark-master executors of Spark send and compare the streams, as many at the same time as Spark
    can, or as --jobs says.
    """
    from jsbackup.engine.plan_file import read_plan
    from jsbackup.engine.restore import RestoreSettings, run_restore

    start_log(shared)
    saved = None
    settings = RestoreSettings(
        jobs=jobs,
        window_bytes=None if window is None else parse_size(window),
        verify=not no_verify,
        partial=partial,
        mask_secret=mask_secret,
    )
    if runbook is not None:
        from jsbackup.cli.runbook import restore_runbook

        spark = ("spark_master", "spark_remote", "spark_conf")
        refuse_beside(click.get_current_context(), "--runbook", "plan_file", *spark)
        return restore_runbook(shared, runbook, settings, lock_timeout)
    if plan_file is not None:
        refuse_beside(click.get_current_context(), "--plan", "partial")
        saved = read_plan(plan_file)
    options = asked.options() if saved is None else saved.options
    options.reshape.masks.check_secret(mask_secret)
    if where.given:
        from jsbackup.cli.fan_out import spread_restore

        return spread_restore(shared, asked, saved, options, settings, where, lock_timeout)
    connection = connection_of(shared)
    repository = open_repository(shared)
    with (
        reading(shared, repository, "restore", lock_timeout),
        make_progress("restore", wanted=shared.progress) as progress,
    ):
        finder = make_finder(
            shared,
            repository,
            asked.backup if saved is None else saved.backup,
            asked.choosing(),
            streams=options.streams,
            exclude=options.exclude,
            silent=shared.output.as_json,
        )
        backup = finder.early()
        if saved is not None:
            saved.refuse_other(finder.found)
        report = run_async(
            run_restore(connection, repository, backup, options, settings, progress, random=os.urandom, saved=saved)
        )
    return tell_restored(shared, report, "restored", finder)


def _stream_json(stream: RestoredStream) -> JsonObject:
    return {
        "name": stream.name,
        "as": stream.as_name,
        "messages": stream.messages,
        "bytes": stream.bytes,
        "digest": stream.digest,
        "verified": stream.verified,
        "seconds": round(stream.seconds, 3),
        "wire": stream.wire,
        "consumers": [consumer_result_json(consumer) for consumer in stream.consumers],
        "notes": list(stream.notes),
        "copying": None
        if stream.copying is None
        else {
            "settled": stream.copying.settled,
            "new_messages": stream.copying.new_messages,
            "waiting_for": list(stream.copying.waiting),
        },
        "lost": [problem_json(problem) for problem in stream.lost],
    }


def restored_json(report: RestoreReport, finder: Finder | None = None) -> JsonObject:
    """The document of `restore --json` and, without a `finder`, of `clone --json`."""
    return {
        "streams": [_stream_json(stream) for stream in report.streams],
        "failed": [{"name": f.name, "code": f.error.exit_code, "reason": f.error.message} for f in report.failures],
        "skipped": [{"name": refusal.stream, "reason": refusal.reason} for refusal in report.plan.skipped],
        "missing": [{"name": one.stream, "reason": one.reason} for one in report.plan.missing],
        **({} if finder is None else {"backup": report.plan.backup, **notes_json(finder)}),
    }


def restored_code(report: RestoreReport) -> int:
    """The exit code."""
    if report.failures and not report.streams:
        codes = {failure.error.exit_code for failure in report.failures}
        return codes.pop() if len(codes) == 1 else JsBackupError.exit_code
    half = any(one.rule in ("leftover-kept", "silent") for one in report.plan.skipped)
    if report.failures or report.plan.missing or half or any(stream.incomplete for stream in report.streams):
        return IncompleteError.exit_code
    return 0


def tell_restored(shared: Shared, report: RestoreReport, done: str, finder: Finder | None = None) -> int:
    """Print what came of it, which `done` names; the exit code. `finder` has found the backup."""
    if finder is not None:
        report = replace(report, plan=with_elsewhere(report.plan, finder.choice))
    shared.output.result(restored_json(report, finder), lambda: tell_report(shared.output, report, done))
    return restored_code(report)


def tell_report(output: Output, report: RestoreReport, done: str) -> None:
    """What `restored_json` tells, for people."""
    output.table(
        ["STREAM", ">MESSAGES", ">BYTES", ">CONSUMERS", ">TIME", "SENT AS", "PROOF"],
        [
            (
                s.as_name,
                format_count(s.messages),
                format_bytes(s.bytes),
                str(len(s.consumers)),
                format_seconds(s.seconds),
                s.wire,
                "verified" if s.verified else "not verified",
            )
            for s in report.streams
        ],
    )
    for s in report.streams:
        for note in s.notes:
            output.line(f"note: {s.as_name}: {note}")
        for c in s.consumers:
            if c.note:
                output.line(f"note: {s.as_name}: {consumer_result_text(c)}")
        for problem in s.lost:
            output.line(f"lost: {s.as_name}: {problem.problem}{lost_text(problem)}")
    for missing in report.plan.missing:
        output.line(f"missing: {missing.stream}: {missing.reason}")
        output.line(f"hint: {missing.hint}")
    for refusal in report.plan.skipped:
        output.line(f"skipped: {refusal.stream}: {refusal.reason}")
    for failure in report.failures:
        output.line(f"failed: {failure.name}: {failure.error.message}")
        if failure.error.hint:
            output.line(f"hint: {failure.error.hint}")
    restored = format_count(len(report.streams), "stream")
    lost = sum(problem.messages for stream in report.streams for problem in stream.lost)
    lacking = f"; {format_count(lost, 'message')} lost" if lost else ""
    output.line(f"{done} {restored}, {len(report.failures)} failed, {len(report.plan.skipped)} skipped{lacking}")


COMMANDS = {"restore": restore}
