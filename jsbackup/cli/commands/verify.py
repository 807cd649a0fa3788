"""`jsbackup verify`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import open_with_keys
from jsbackup.cli.options.spark import Where, place_given, settings_of
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, said_lines
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count, format_time
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import problem_json
from jsbackup.cli.output.result import Block, Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import Percentage
from jsbackup.config import parse_size
from jsbackup.errors import UsageError
from jsbackup.exit_codes import damage
from jsbackup.model import JsonObject
from jsbackup.progress import Progress

if TYPE_CHECKING:
    from jsbackup.repository.checks.verified import Coverage, Portion
    from jsbackup.repository.checks.verify import Checker
    from jsbackup.repository.checks.verify_run import VerifyReport

__all__ = ["COMMANDS", "LEVELS"]

LEVELS = ("manifest", "objects", "data")  # as `repository/checks/verify.py` has them


@click.command(cls=Command, unattended=True, on_spark=True)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="objects",
    show_default=True,
    help="manifest: names and sizes; objects: SHA-256 of every object; data: every message decoded.",
)
@click.option(
    "--sample",
    type=Percentage(),
    metavar="PERCENT",
    help="Check this percentage of the stored bytes; see above.",
)
@click.option("--max-bytes", metavar="SIZE", help="Read at most this many stored bytes.")
@click.option("--expect", metavar="BACKUP", help="Fail if this backup is missing (a whole id).")
def verify(
    shared: Shared,
    backups: tuple[str, ...],
    level: str,
    sample: float | None,
    *,
    max_bytes: str | None,
    expect: str | None,
    where: Where | None,
) -> Result:
    """Check stored backups: all, or those that you name.

    This also notices when a backup was removed or exchanged, except when the newest one was removed together with the
    object that records it; --expect checks for that. Level data needs a key that reads messages.

    With --sample or --max-bytes, a run reads a part of the objects: first those never checked, then those checked
    longest ago. A nightly `--sample 4` covers everything in 25 nights.

    With --spark, Spark reads the objects, on as many cores and machines as it has.
    """
    from jsbackup.repository.checks.verify import Level
    from jsbackup.repository.checks.verify_run import VerifyRun
    from jsbackup.repository.crypto.access import NO_KEYS

    start_log(shared)
    if expect is not None:
        _check_id(expect)
    portion, begun_ns = _portion(level, sample, max_bytes), time.time_ns()
    if where is not None and level == "manifest":
        raise UsageError("level manifest reads no objects, so there is nothing for Spark", hint="Leave it out.")
    repository, keys = open_with_keys(shared)
    if repository.descriptor.authority is not None and keys == NO_KEYS:
        shared.output.note("signatures are checked with a key that the repository itself names; see --expect-signer")
    with reading(shared, repository, "verify"):
        chosen = find_ids(shared, repository, backups) or repository.backups()
        run = VerifyRun(
            repository,
            chosen,
            Level(level),
            whole=not backups,
            begun_ns=begun_ns,
            clock_ns=time.time_ns,
            random=os.urandom,
            note=shared.output.note,
        )
        gaps, flaws = run.find_gaps(expect), run.find_flaws()
        with (
            make_progress("verify", wanted=shared.progress) as progress,
            _checker(shared, where, progress) as checker,
        ):
            report = run.check(gaps, flaws, progress=progress, checker=checker, portion=portion)
    run.record(report, part=portion is not None)
    return _result(level, report, alone=len(backups) == 1)


@contextmanager
def _checker(shared: Shared, where: Where | None, progress: Progress) -> Iterator[Checker | None]:
    """Return the checker on Spark, if requested."""
    if where is None:
        yield None
        return
    settings = settings_of(where)
    from jsbackup.pipeline.jobs.verify import SparkChecker
    from jsbackup.pipeline.session.session import open_session

    with open_session(settings) as session:
        yield SparkChecker(session, place_given(shared), progress)


def _check_id(expect: str) -> None:
    from jsbackup.repository.layout import is_backup_id

    if not is_backup_id(expect):
        raise UsageError(f"not the whole id of a backup: {expect!r}", hint="`jsbackup list` prints them.")


def _portion(level: str, sample: float | None, max_bytes: str | None) -> Portion | None:
    from jsbackup.repository.checks.verified import AtMost, Percent

    if sample is None and max_bytes is None:
        return None
    if sample is not None and max_bytes is not None:
        raise UsageError("--sample and --max-bytes exclude each other", hint="Give one of them.")
    if level == "manifest":
        raise UsageError("level manifest reads no objects, so there is no part of them", hint="Leave the option out.")
    return Percent(sample) if sample is not None else AtMost(parse_size(max_bytes or ""))


# --- what it says ---


def _result(level: str, report: VerifyReport, *, alone: bool) -> Result:
    from jsbackup.repository.pages.stream_json import losses_to_json

    wrong = {gap.backup for gap in report.gaps}
    documents: list[JsonObject] = [
        {
            "backup": checked.backup,
            "level": level,
            "ok": not checked.problems and checked.backup not in wrong,
            "problems": [{"stream": problem.stream, **problem_json(problem)} for problem in checked.problems],
            "lost": {name: losses_to_json(lost) for name, lost in checked.salvaged.items()},
        }
        for checked in report.backups
    ]
    more = {
        "chain": [{"backup": gap.backup, "key": gap.key, "problem": gap.problem} for gap in report.gaps],
        "repository": [{"key": flaw.key, "problem": flaw.problem} for flaw in report.flaws],
        "coverage": None if report.coverage is None else _coverage_json(report.coverage),
    }
    document = {**documents[0], **more} if alone else {"backups": documents, **more}
    return Result(document, _text(documents, report), damage(report.problems))


def _text(documents: Sequence[JsonObject], report: VerifyReport) -> Iterator[Block]:
    from jsbackup.repository.read.losses import about_losses

    if not documents:
        yield "there are no backups"
    for document, checked in zip(documents, report.backups, strict=True):
        yield f"{document['backup']}  {document['level']}  ", State("ok" if document["ok"] else "DAMAGED")
        yield from said_lines(Said("  ", problem.stream, problem.problem, lost=problem) for problem in checked.problems)
        lacking = "it was read from a damaged store, and lacks "
        yield from said_lines(
            Said("salvaged", name, lacking + about_losses(lost)) for name, lost in checked.salvaged.items()
        )
    for gap in report.gaps:
        yield f"backup {gap.backup}: {gap.problem}" if gap.backup else f"catalog of backups: {gap.problem}"
    for flaw in report.flaws:
        yield f"repository: {flaw.problem}"
    if report.coverage is not None and report.coverage.objects:
        yield _coverage_text(report.coverage)


def _coverage_json(coverage: Coverage) -> JsonObject:
    from jsbackup.repository.checks.verified import RECENT_DAYS

    oldest = coverage.oldest_seconds
    return {
        "objects": coverage.objects,
        "bytes": coverage.bytes,
        "checked_objects": coverage.checked_objects,
        "checked_bytes": coverage.checked_bytes,
        "recent_days": RECENT_DAYS,
        "recent_bytes": coverage.recent_bytes,
        "never_bytes": coverage.never_bytes,
        "oldest": None if oldest is None else format_time(oldest * 10**9),
    }


def _coverage_text(coverage: Coverage) -> str:
    from jsbackup.repository.checks.verified import RECENT_DAYS

    checked = f"{format_count(coverage.checked_objects)} of {format_count(coverage.objects, 'object')} checked"
    sizes = f"{format_bytes(coverage.checked_bytes)} of {format_bytes(coverage.bytes)}"
    # Rounded down: 100 % means everything.
    percent = math.floor(1000 * coverage.recent_bytes / coverage.bytes) / 10 if coverage.bytes else 100.0
    text = f"{checked} ({sizes}); {percent:g} % of all bytes verified in the last {RECENT_DAYS} days"
    if coverage.never_bytes:
        text += f", {format_bytes(coverage.never_bytes)} not verified yet or damaged"
    if coverage.oldest_seconds is not None:
        text += f", oldest check {format_time(coverage.oldest_seconds * 10**9)}"
    return text


COMMANDS = {"verify": verify}
