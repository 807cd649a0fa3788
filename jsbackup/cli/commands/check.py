"""`jsbackup verify`, `status` and `diff`: what is stored, checked and compared.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_ids, make_finder, policy_in_use
from jsbackup.cli.options.opening import (
    AskedAccounts,
    Where,
    account_options,
    connection_of,
    open_repository,
    open_with_keys,
    place_given,
    reading,
    settings_of,
)
from jsbackup.cli.output.new_file import check_new_file, write_new_file
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import problem_json
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    TextTable,
    failure_json,
    format_bytes,
    format_count,
    said_lines,
    time_to_second,
)
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import Percentage, WholeNumber
from jsbackup.config import hide_logins, parse_duration, parse_glob, parse_size
from jsbackup.errors import IncompleteError, JsBackupError, NatsError, PolicyBreach, UsageError
from jsbackup.exit_codes import combined, damage, first_of
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.cli.output.status_report import Report
    from jsbackup.repository.checks.verify_run import VerifyReport
    from jsbackup.repository.read.diff import DiffReport, FieldChange, StreamDiff
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS", "LEVELS"]

LEVELS = ("manifest", "objects", "data")  # as `repository/checks/verify.py` has them
LIVE = "live"
_SHOWN_RANGES = 5
_SIGNS = {"added": "+", "removed": "-", "changed": "!"}


# --- verify ---


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
    from jsbackup.repository.checks.ledger import AtMost, Percent
    from jsbackup.repository.checks.verify import Level
    from jsbackup.repository.checks.verify_run import VerifyRun
    from jsbackup.repository.crypto.access import NO_KEYS
    from jsbackup.repository.layout import is_backup_id

    if expect is not None and not is_backup_id(expect):
        raise UsageError(f"not the whole id of a backup: {expect!r}", hint="`jsbackup list` prints them.")
    begun_ns = time.time_ns()
    portion: AtMost | Percent | None = None if sample is None else Percent(sample)
    if max_bytes is not None:
        if portion is not None:
            raise UsageError("--sample and --max-bytes exclude each other", hint="Give one of them.")
        portion = AtMost(parse_size(max_bytes))
    if level == "manifest" and (portion is not None or where is not None):
        raise UsageError(
            "level manifest reads no objects, so there is nothing for Spark, and no part of them",
            hint="Leave the option out.",
        )
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
        with make_progress("verify", wanted=shared.progress) as progress, ExitStack() as stack:
            checker = None
            if where is not None:
                settings = settings_of(where)
                from jsbackup.pipeline.jobs.verify import SparkChecker
                from jsbackup.pipeline.session.session import open_session

                session = stack.enter_context(open_session(settings))
                checker = SparkChecker(session, place_given(shared), progress)
            report = run.check(gaps, flaws, progress=progress, checker=checker, portion=portion)
    run.record(report, part=portion is not None)
    return _verify_result(level, report, alone=len(backups) == 1)


def _verify_result(level: str, report: VerifyReport, *, alone: bool) -> Result:
    """Return what a verify found; the document of `alone` backup has no list."""
    from jsbackup.repository.checks.ledger import RECENT_DAYS
    from jsbackup.repository.pages.stream_json import losses_to_json

    wrong, coverage = {gap.backup for gap in report.gaps}, report.coverage
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
    covered: JsonObject | None = (
        None
        if coverage is None
        else {
            "objects": coverage.objects,
            "bytes": coverage.bytes,
            "checked_objects": coverage.checked_objects,
            "checked_bytes": coverage.checked_bytes,
            "recent_days": RECENT_DAYS,
            "recent_bytes": coverage.recent_bytes,
            "never_bytes": coverage.never_bytes,
            "oldest": None if coverage.oldest_seconds is None else time_to_second(coverage.oldest_seconds * 10**9),
        }
    )
    more = {
        "chain": [{"backup": gap.backup, "key": gap.key, "problem": gap.problem} for gap in report.gaps],
        "repository": [{"key": flaw.key, "problem": flaw.problem} for flaw in report.flaws],
        "coverage": covered,
    }
    document = {**documents[0], **more} if alone else {"backups": documents, **more}
    return Result(document, _verified_text(documents, report, covered), damage(report.problems))


def _verified_text(
    documents: Sequence[JsonObject], report: VerifyReport, covered: JsonObject | None
) -> Iterator[Block]:
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
    if covered and covered["objects"]:
        size = covered["bytes"]
        checked_bytes = f"{format_bytes(covered['checked_bytes'])} of {format_bytes(size)}"
        # Rounded down: 100 % means everything.
        percent = math.floor(1000 * covered["recent_bytes"] / size) / 10 if size else 100.0
        never = (
            f", {format_bytes(covered['never_bytes'])} not verified yet or damaged" if covered["never_bytes"] else ""
        )
        oldest = f", oldest check {covered['oldest']}" if covered["oldest"] else ""
        yield (
            f"{format_count(covered['checked_objects'])} of {format_count(covered['objects'], 'object')} checked "
            f"({checked_bytes}); {percent:g} % of all bytes verified in the last {covered['recent_days']} days"
            f"{never}{oldest}"
        )


# --- status ---


@click.command(cls=Command, needs_server=True, unattended=True, chooses=True)
@click.option(
    "--max-age", metavar="DURATION", help="Fail if the newest complete backup is older than this, such as 25h."
)
@click.option(
    "--max-verify-age", metavar="DURATION", help="Fail if the last verify that found nothing wrong is older than this."
)
@click.option(
    "--verify-level",
    type=click.Choice(LEVELS),
    default="manifest",
    show_default=True,
    help="The lowest level of a verify that counts for --max-verify-age.",
)
@click.option(
    "--max-drill-age", metavar="DURATION", help="Fail if the last successful drill is older than this, such as 31d."
)
@click.option(
    "--min-backups", type=WholeNumber(1), metavar="N", help="Fail if there are fewer complete backups than this."
)
@click.option("--min-history", metavar="DURATION", help="Fail if the oldest complete backup is younger than this.")
@click.option(
    "--max-unused", metavar="SIZE", help="Fail if unused objects take more than this (as the last prune found)."
)
@click.option(
    "--all-objects",
    is_flag=True,
    help="List all stored objects, however many: beyond 20,000 they are not counted, nor missing ones noticed.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Ask the server for its streams; fail if one of them is missing from the newest backups.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    shell_complete=complete_stream,
    help="With --live: streams that need no backup.",
)
@account_options("With --live: ask a user of the system account for the streams of all accounts.", logins=False)
@click.option(
    "--metrics", type=click.Path(path_type=Path), metavar="FILE", help="Write metrics for Prometheus to this file."
)
@click.option(
    "--push",
    metavar="URL",
    envvar="JSBACKUP_PUSH_URL",
    help="Push them to a Pushgateway [env: JSBACKUP_PUSH_URL, for a URL with a login].",
)
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Also make an HTML page.")
def status(
    shared: Shared,
    max_age: str | None,
    max_verify_age: str | None,
    verify_level: str,
    *,
    max_drill_age: str | None,
    min_backups: int | None,
    min_history: str | None,
    max_unused: str | None,
    all_objects: bool,
    live: bool,
    exclude: tuple[str, ...],
    accounts: AskedAccounts,
    metrics: Path | None,
    push: str | None,
    page: Path | None,
) -> Result:
    """Check the health of backups. If anything is wrong, the exit code is 17, and every broken rule is listed.

    It always checks that there is a complete backup; that the newest one is complete, and has streams if earlier ones
    have; that all can be read; that no object of the newest backups is missing or known to be damaged; that
    everything the last verify found is repaired; and that the last drill succeeded. Options ask for more.

    Backups of other streams or servers are checked separately: each series has to be new enough, unless another one
    has all of its streams. A drill counts for the server and account of its backup.

    --metrics and --html replace their files as a whole, also when something is wrong. --metrics and --push also
    report a repository that cannot be reached.
    """
    from jsbackup.cli.output.status_report import Report, status_json, status_text
    from jsbackup.engine.check.health_rules import Limits
    from jsbackup.engine.check.live_streams import list_live_accounts, list_live_streams
    from jsbackup.engine.check.status import take_status
    from jsbackup.repository.checks.verify import Level

    if not live:
        # One from a profile is also for other commands.
        if not shared.server_named and shared.server.keys() & {"server", "context"}:
            raise UsageError("a server makes no sense without --live", hint="Add it, or leave the server out.")
        for option, given in (("--exclude", exclude), ("--all-accounts", accounts.all_accounts)):
            if given:
                raise UsageError(f"{option} makes sense with --live only", hint="Leave it out.")
    limits = Limits(
        max_age_seconds=_seconds(max_age),
        max_verify_age_seconds=_seconds(max_verify_age),
        verify_level=Level(verify_level),
        max_drill_age_seconds=_seconds(max_drill_age),
        min_backups=min_backups,
        min_history_seconds=_seconds(min_history),
        max_unused_bytes=None if max_unused is None else parse_size(max_unused),
    )
    choosing = shared.choosing
    left_out = [parse_glob(text) for text in exclude]
    for file in (metrics, page):
        if file is not None:
            check_new_file(file, replace=True)
    now_ns, output = time.time_ns(), shared.output
    try:
        repository = open_repository(shared)
        health = take_status(
            repository, now_ns=now_ns, tags=choosing.tags, origins=choosing.origins, all_objects=all_objects
        )
    except JsBackupError as error:
        for failed in _publish(now_ns, None, error.exit_code, file=metrics, url=push):
            output.note(State("error"), f": {failed.message}")
        raise
    # The state of the backups is reported also if the server does not answer.
    streams = system = unanswered = None
    try:
        if live and accounts.all_accounts:
            connection = accounts.connection(shared)
            system = run_loop(list_live_accounts(connection, accounts.choice(connection), left_out))
        elif live:
            streams = run_loop(list_live_streams(connection_of(shared), left_out))
    except NatsError as error:
        unanswered = error
    report = Report(health, limits, streams, system)
    code = PolicyBreach.exit_code if report.breaches else unanswered.exit_code if unanswered else 0
    errors: list[JsBackupError] = [unanswered] if unanswered else []
    if page is not None:
        errors += _attempt(lambda: _write_page(shared, repository, report, page))
    errors += _publish(now_ns, report, code, file=metrics, url=push)
    for warning in health.warnings:
        output.note(warning)
    for failed in errors:
        output.note(State("error"), f": {failed.message}")
    location = hide_logins(repository.store.location)
    text = status_text(report, location, unanswered.message if unanswered else "")
    return Result(status_json(report, location), text, first_of([code, *(failed.exit_code for failed in errors)]))


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_duration(text)


def _write_page(shared: Shared, repository: Repository, report: Report, page: Path) -> None:
    from jsbackup.browse.overview import next_removal
    from jsbackup.cli.output.html_pages import status_page
    from jsbackup.repository.keep.holds import held_backups

    inventory, held = repository.inventory(), held_backups(repository)
    policy = policy_in_use(click.get_current_context(), shared)
    now_ns, damaged = report.status.now_ns, report.status.damaged
    expiry = next_removal(inventory, held, policy, now_ns=now_ns, profile=shared.profile, damaged=damaged)
    data = status_page(report, hide_logins(repository.store.location), expiry=expiry, held=held)
    write_new_file(page, data, replace=True, for_all=True)


def _publish(
    now_ns: int, report: Report | None, code: int, *, file: Path | None, url: str | None
) -> list[JsBackupError]:
    """Write metrics to a file and push them, if so asked; return errors. Without a report, they only say that the
    repository could not be examined.
    """
    if file is None and url is None:
        return []
    from jsbackup.cli.notify.metrics import failure_metrics, push_metrics, status_metrics

    if report is None:
        data = failure_metrics(now_ns, code)
    else:
        accounts = () if report.accounts is None else report.accounts.accounts
        data = status_metrics(report.status, report.breaches, report.live, code, accounts=accounts)
    errors: list[JsBackupError] = []
    if file is not None:
        errors += _attempt(lambda: write_new_file(file, data, replace=True, for_all=True))
    if url is not None:
        errors += _attempt(lambda: push_metrics(url, data))
    return errors


def _attempt(work: Callable[[], None]) -> list[JsBackupError]:
    """Run the work and return its errors: one output that cannot be written does not prevent the others."""
    try:
        work()
    except JsBackupError as error:
        return [error]
    return []


# --- diff ---


def _complete_side(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    live = [CompletionItem(LIVE)] if LIVE.startswith(incomplete) else []
    return live + complete_backup(ctx, param, incomplete)


@click.command(cls=Command, needs_server=True, answers=True, chooses=True)
@click.argument("a", shell_complete=_complete_side)
@click.argument("b", shell_complete=_complete_side)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@click.option(
    "--messages",
    "named",
    type=WholeNumber(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Show up to this many added, removed and changed messages of each stream.",
)
def diff(
    shared: Shared,
    a: str,
    b: str,
    streams: tuple[str, ...],
    *,
    exclude: tuple[str, ...],
    named: int,
) -> Result:
    """Compare two backups, or a backup and the streams of a server: what was added, removed and changed from A to B.

    A and B are ids of backups, their starts, or `latest`. One of them may be `live`; then `latest` is the newest
    backup of the connected source, if there is one. Streams with equal digests are equal; of others, only the
    segments that differ are read. A live stream is read whole, up to its last message at that time.
    """
    from jsbackup.repository.read.diff import ComparedStreams, DiffRun, Side, diff_backups

    globs, excluded = tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude))
    if a == b == LIVE:
        raise UsageError("both sides are live", hint="Name a backup on one side.")
    if LIVE not in (a, b) and shared.server:
        raise UsageError("server options make no sense between two backups", hint="Leave them out, or name `live`.")
    connection = connection_of(shared) if LIVE in (a, b) else None
    repository = open_repository(shared)
    with (
        reading(shared, repository, "diff"),
        make_progress("diff", wanted=shared.progress) as progress,
    ):
        source = None
        if connection is not None and LATEST in (a, b):
            from jsbackup.engine.link.source import read_source

            source = run_loop(read_source(connection))
        by_text = {
            text: make_finder(shared, repository, WantedBackup(text, globs, excluded, silent=True, all_needed=False))(
                source
            )
            for text in (a, b)
            if text != LIVE
        }
        manifests = [by_text[text] for text in (a, b) if text != LIVE]
        choice = ComparedStreams(globs, excluded, manifests)
        consumers = all(m.selection is None or m.selection.consumers for m in manifests)
        run = DiffRun(repository.objects, choice.choose, consumers, named, progress)
        if connection is None:
            report = diff_backups(run, *manifests)
        else:
            from jsbackup.engine.check.diff_live import diff_live

            report = run_loop(diff_live(run, connection, manifests[0], Side.B if a == LIVE else Side.A))
    return _diff_result([LIVE if text == LIVE else by_text[text].id for text in (a, b)], report, choice.skipped)


def _diff_result(sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> Result:
    """Return the differences between two `sides` (ids, or `live`) and the streams that were skipped, with the
    reasons.
    """
    equal = not report.failures and all(stream.equal for stream in report.streams)
    document = {
        "a": sides[0],
        "b": sides[1],
        "equal": equal,
        "streams": [_diff_json(stream) for stream in report.streams],
        "failed": [failure_json(name, error) for name, error in report.failures.items()],
        "skipped": [{"name": name, "reason": reason} for name, reason in sorted(skipped.items())],
    }
    code = 0 if equal else JsBackupError.exit_code
    if report.failures:
        code = combined((error.exit_code for error in report.failures.values()), mixed=IncompleteError.exit_code)
    return Result(document, _differences(sides, report, skipped), code)


def _differences(sides: Sequence[str], report: DiffReport, skipped: Mapping[str, str]) -> Iterator[Block]:
    different = [stream for stream in report.streams if not stream.equal]
    if different:
        yield TextTable(
            ["STREAM", ">ADDED", ">REMOVED", ">CHANGED", ">CONFIG", ">CONSUMERS"],
            [
                (
                    s.name,
                    format_count(s.messages.added),
                    format_count(s.messages.removed),
                    format_count(s.messages.changed),
                    str(len(s.config)) if s.only_in is None else f"only in {s.only_in.upper()}",
                    str(len(s.consumers)),
                )
                for s in different
            ],
        )
    for stream in report.streams:
        for line in _details(stream):
            yield f"{stream.name}: {line}"
    yield from said_lines(
        Said("failed", name, error.message, error.hint or "") for name, error in report.failures.items()
    )
    yield from said_lines(Said("skipped", name, reason) for name, reason in sorted(skipped.items()))
    same = format_count(len(report.streams) - len(different), "stream")
    lacking = f", {len(report.failures)} not compared" if report.failures else ""
    yield f"from {sides[0]} to {sides[1]}: {same} equal, {len(different)} different{lacking}"


def _details(stream: StreamDiff) -> Iterator[str]:
    messages = stream.messages
    if stream.recreated:
        a, b = stream.created
        yield f"another stream of that name: created {a}, then {b}" if a != b else "compared across servers"
    for span in messages.ranges[:_SHOWN_RANGES]:
        sequences = str(span.first_seq) if span.messages == 1 else f"{span.first_seq} to {span.last_seq}"
        yield f"{span.change} {sequences} ({format_count(span.messages, 'message')})"
    if more := max(len(messages.ranges) - _SHOWN_RANGES, 0) + messages.ranges_left_out:
        yield f"… and {format_count(more, 'more range')}"
    for e in messages.examples:
        what = f"  ({', '.join(e.what)})" if e.what else ""
        yield f"{_SIGNS[e.change]} {e.sequence}  {format_time(e.timestamp_ns)}  {e.subject}{what}"
    for change in stream.config:
        yield f"config {_change_text(change)}"
    for consumer in stream.consumers:
        if not consumer.config and not consumer.state:
            yield f"consumer {consumer.name}: {consumer.change}"
        for kind, changes in (("config", consumer.config), ("state", consumer.state)):
            for change in changes:
                yield f"consumer {consumer.name}: {kind} {_change_text(change)}"
    for note in stream.notes:
        yield f"note: {note}"


def _change_text(change: FieldChange) -> str:
    old, new = ("-" if value is None else json.dumps(value, ensure_ascii=False) for value in (change.old, change.new))
    return f"{change.field}: {old} -> {new}"


def _diff_json(stream: StreamDiff) -> JsonObject:
    messages = stream.messages
    return {
        "stream": stream.name,
        "equal": stream.equal,
        "only_in": stream.only_in,
        "added": messages.added,
        "removed": messages.removed,
        "changed": messages.changed,
        "ranges": [
            {"change": r.change, "first_seq": r.first_seq, "last_seq": r.last_seq, "messages": r.messages}
            for r in messages.ranges
        ],
        "ranges_left_out": messages.ranges_left_out,
        "messages": [
            {
                "change": e.change,
                "sequence": e.sequence,
                "time": format_time(e.timestamp_ns),
                "subject": e.subject,
                "what": list(e.what),
            }
            for e in messages.examples
        ],
        "config_changes": _changes_json(stream.config),
        "consumer_changes": [
            {
                "consumer": c.name,
                "change": c.change,
                "config_changes": _changes_json(c.config),
                "state_changes": _changes_json(c.state),
            }
            for c in stream.consumers
        ],
        "recreated": stream.recreated,
        "created": {"a": stream.created[0], "b": stream.created[1]},
        "notes": list(stream.notes),
    }


def _changes_json(changes: Sequence[FieldChange]) -> list[JsonObject]:
    return [{"field": change.field, "from": change.old, "to": change.new} for change in changes]


COMMANDS = {"verify": verify, "status": status, "diff": diff}
