"""`jsbackup put-back`: chosen messages, keys or a file out of a backup into a stream that is in use.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.look.contents import condition_options, literally, time_option
from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, make_finder
from jsbackup.cli.options.opening import connection_of, open_repository, reading
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import (
    Block,
    Column,
    Result,
    error_json,
    format_bytes,
    format_count,
    table,
)
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.config import Glob
from jsbackup.errors import Interrupted, TargetConflict, UsageError
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM
from jsbackup.readable import count_were
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.putting_back.model import PutBackReport
    from jsbackup.transforms.cut import Cut
    from jsbackup.transforms.filters.filters import Filters

__all__ = ["COMMANDS", "parse_range"]

_SHOWN = 20
_ORDER = ("refused", "conflict", "duplicate", "write", "written", "there", "left out")


def _result(report: PutBackReport, *, dry_run: bool) -> Result:
    plan = report.plan
    refusal = plan.refusal()
    rows: list[JsonObject] = [
        {
            "sequence": message.sequence,
            "time": format_time(message.timestamp_ns),
            "subject": message.subject.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"),
            "name": message.name or None,
            "bytes": message.size,
            "action": message.action.value,
            "reason": message.reason or None,
            "overwrites": message.overwrites,
            "expected_last": message.expected,
            "as_sequence": message.as_sequence,
        }
        for message in report.messages
    ]
    counts = {action: sum(row["action"] == action for row in rows) for action in _ORDER}
    document: JsonObject = {
        "backup": plan.manifest.id,
        "stream": plan.entry.name,
        "to": plan.target.name,
        "dry_run": dry_run,
        "result": _outcome(report, refused=refusal is not None, dry_run=dry_run),
        "chosen": len(plan.messages),
        **{action.replace(" ", "_"): count for action, count in counts.items()},
        "replaced": report.replaced,
        "twice": [list(sequences) for sequences in report.twice],
        "messages": rows,
        "blocked": [error.message for error in plan.blocked],
        "notes": [*plan.notes, *report.notes],
        **(error_json(refusal) if refusal is not None else {}),
    }
    text: list[Block] = []
    if rows:
        shown = sorted(rows, key=lambda row: (_ORDER.index(row["action"]), row["sequence"]))[:_SHOWN]
        columns: dict[str, Column] = {
            ">SEQ": "sequence",
            "TIME": "time",
            "SUBJECT": "shown",
            ">BYTES": ("bytes", format_bytes),
            "WHAT": "action",
            ">AS": ("as_sequence", lambda sequence: "-" if sequence is None else str(sequence)),
            "WHY": ("reason", lambda reason: reason or ""),
        }
        text.append(table([row | {"shown": row["name"] or row["subject"]} for row in shown], columns))
        if len(shown) < len(rows):
            text.append(f"… and {format_count(len(rows) - len(shown), 'more message')}; --json has all")
    text += [f"note: {note}" for note in document["notes"]]
    if refusal is not None:
        return Result(document, text, refusal.exit_code)
    text.append(_summary(report, counts, dry_run=dry_run))
    if counts["duplicate"]:
        text.append(
            "note: the server remembers message ids for a while (duplicate_window), even of removed messages: run the "
            "same command again after that"
        )
    return Result(document, text, report.code)


def _outcome(report: PutBackReport, *, refused: bool, dry_run: bool) -> str:
    if refused:
        return "refused"
    if dry_run:
        return "planned"
    if report.code:
        return "refused" if report.code == TargetConflict.exit_code else "partial"
    return "complete" if report.written else "nothing to write"


def _summary(report: PutBackReport, counts: Mapping[str, int], *, dry_run: bool) -> str:
    plan = report.plan
    what = "file" if plan.file is not None else "key" if plan.entry.name.startswith(BUCKET_STREAM) else "message"
    others = {
        "there": "there already",
        "left out": "left out",
        "refused": "refused",
        "duplicate": "known by their message ids",
        "conflict": "changed by other clients",
    }
    rest = "".join(f", {format_count(counts[action])} {words}" for action, words in others.items() if counts[action])
    if dry_run:
        return f"would write {format_count(counts['write'], what)} into {plan.target.name}{rest}"
    if not report.written:
        return f"nothing was written into {plan.target.name}{rest}"
    proof = "read back and compared"
    if report.replaced:
        proof += f", {format_count(report.replaced)} of them replaced or removed since"
    return f"wrote {format_count(len(report.written), what)} into {plan.target.name}{rest}; {proof}"


_MOST = (1 << 63) - 1
_RANGE = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?", re.ASCII)


def parse_range(text: str) -> tuple[int, int]:
    """Parse `17` or `17-20`. Raises UsageError."""
    match = _RANGE.fullmatch(text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2]) if match and match[2] else first
    if not 0 < first <= last <= _MOST:
        raise UsageError(f"--sequence: not a sequence: {text[:60]!r}", hint="Write --sequence 17 or --sequence 17-20.")
    return first, last


@click.command("put-back", cls=Command, needs_server=True, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("stream", shell_complete=complete_stream)
@condition_options
@click.option(
    "--last-per-subject", type=WholeNumber(1), metavar="N", help="Only the newest N of these of each subject."
)
@click.option(
    "--sequence", "sequences", multiple=True, metavar="N[-M]", help="Messages with these sequences; repeatable."
)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="A key of a bucket, or a pattern; repeatable.")
@time_option("--at", "The value of a key as of this time, duration before now, or revision; without it, of the backup.")
@click.option("--object", "object_name", metavar="NAME", help="A file of an object store.")
@click.option("--to", metavar="STREAM", help="The stream or bucket to write to; without it, the one of the same name.")
@click.option(
    "--overwrite", is_flag=True, help="Replace newer values too, and let the stream's limits drop other messages."
)
@click.option("--partial", is_flag=True, help="If some of it is refused, write the rest; the exit code is 3.")
@click.option("--dry-run", is_flag=True, help="Show what would be written and what is refused; change nothing.")
def put_back(
    shared: Shared,
    backup: str,
    stream: str,
    *,
    filters: Filters,
    cut: Cut,
    last_per_subject: int | None,
    sequences: tuple[str, ...],
    keys: tuple[str, ...],
    at: str | None,
    object_name: str | None,
    to: str | None,
    overwrite: bool,
    partial: bool,
    dry_run: bool,
) -> int:
    """Put messages, keys or a file of BACKUP back into STREAM, which is in use, as new messages.

    STREAM may be the name of a bucket or an object store. `latest` is found as by 'jsbackup restore'; with --at, the
    backups around the moment are asked if it does not know the value any more.

    Messages and values that STREAM still has are not written again, nor those that were put back before. Nothing is
    written if anything newer would be replaced. A key or file is only written if no other client has written it since
    the plan was made. Messages have the payloads, headers and message ids that they had, and a header Jsbackup-Origin.
    They are read back and compared.
    """
    from jsbackup.putting_back.chosen import first_found, possible_streams
    from jsbackup.putting_back.model import PutBackOptions, PutBackRun
    from jsbackup.putting_back.run import run_put_back
    from jsbackup.transforms.cut import parse_edge
    from jsbackup.transforms.filters.newest import NewestRule

    options = PutBackOptions(
        stream=stream,
        to=to,
        filters=filters,
        newest=NewestRule.of(last_per_subject, False),
        sequences=tuple(map(parse_range, sequences)),
        cut=cut,
        keys=keys,
        at=None if at is None else parse_edge("--at", at, time.time_ns()),
        object_name=object_name,
        overwrite=overwrite,
        partial=partial,
    )
    connection = connection_of(shared)
    repository = open_repository(shared)
    with (
        reading(shared, repository, "put-back"),
        make_progress("put-back", wanted=shared.progress) as progress,
    ):
        silent = shared.output.as_json
        if backup == LATEST:
            globs = [Glob(literally(name)) for name in possible_streams(options)]
            wanted = [WantedBackup(backup, (glob,), silent=silent) for glob in globs]
        else:
            wanted = [WantedBackup(backup, silent=silent)]
        finder = first_found([make_finder(shared, repository, choice).early() for choice in wanted])
        run = PutBackRun(connection, options, dry_run, backup == LATEST, progress)
        try:
            report = run_loop(run_put_back(run, repository, finder))
        except Interrupted as error:
            if not run.written:
                raise error.with_message("interrupted; probably nothing was written") from None
            raise error.with_message(f"interrupted; {count_were(run.written, 'message')} written").with_hint(
                "Run the same command again: it goes on with what is missing."
            ) from None
    code, refusal = shared.output.show(_result(report, dry_run=dry_run)), report.plan.refusal()
    if refusal is not None and not shared.output.as_json:
        shared.output.error(refusal)
    return code


COMMANDS = {"put-back": put_back}
