"""`jsbackup subjects` and `jsbackup consumers`: what a stream in a backup consists of.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.look.opened import (
    backup_and_stream,
    check_readable,
    filter_options,
    find_opened,
    open_messages,
)
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.repository.manifest import ConsumerBackup

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@backup_and_stream
@filter_options
@click.option("--limit", type=WholeNumber(1), metavar="N", help="Only the N with the most bytes.")
def subjects(
    shared: Shared,
    backup: str,
    stream: str,
    *,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    wanted: MessageFilter,
    limit: int | None,
) -> None:
    """List the subjects of STREAM in BACKUP: messages, bytes, first and last time. Those with most bytes come first.

    All conditions must hold for a message to be counted. All segments that may have such messages are read.
    """
    from jsbackup.look.subject_counts import count_subjects

    repository, manifest, entry = open_messages(shared, backup, stream, origins=origins, tags=tags)
    found = count_subjects(repository.objects, entry, wanted)
    shown, output = found[:limit], shared.output
    document = {
        "backup": manifest.id,
        "stream": stream,
        "subject_count": len(found),
        "subjects": [
            {
                "subject": one.subject,
                "messages": one.messages,
                "bytes": one.bytes,
                "first": format_time(one.first_ns),
                "last": format_time(one.last_ns),
            }
            for one in shown
        ],
    }

    def show() -> None:
        if not found:
            output.line(f"no message of stream {stream} matches")
            return
        output.table(
            ["SUBJECT", ">MESSAGES", ">BYTES", "FIRST", "LAST"],
            [
                (
                    one.subject,
                    format_count(one.messages),
                    format_bytes(one.bytes),
                    format_time(one.first_ns),
                    format_time(one.last_ns),
                )
                for one in shown
            ],
        )
        if len(shown) < len(found):
            output.line(f"… and {format_count(len(found) - len(shown), 'more subject')}")

    output.result(document, show)


@click.command(cls=Command)
@backup_and_stream
def consumers(shared: Shared, backup: str, stream: str, *, origins: tuple[str, ...], tags: tuple[str, ...]) -> None:
    """List the consumers of STREAM in BACKUP: what each had delivered and acknowledged, and what was pending.

    Sequences are those of the stream. PENDING are messages that were delivered and not acknowledged.
    """
    from jsbackup.look.stream import find_stream
    from jsbackup.repository.write.pending_acks import load_consumer

    repository, manifest = find_opened(shared, backup, stream, origins=origins, tags=tags, needed=[stream])
    entry = find_stream(manifest, stream)
    if manifest.selection is not None and not manifest.selection.consumers:
        raise UsageError(f"backup {manifest.id} was made without consumers", hint="Take another backup.")
    if any(one.pending is not None for one in entry.consumers):
        check_readable(repository)
    found = [_json(load_consumer(repository.objects, one)) for one in entry.consumers]
    output = shared.output

    def show() -> None:
        if not found:
            output.line(f"stream {stream} has no consumers")
            return
        output.table(
            ["CONSUMER", ">DELIVERED", ">ACK FLOOR", ">PENDING", ">REDELIVERED", "FIDELITY"],
            [
                (
                    one["name"],
                    _number(one["delivered_seq"]),
                    _number(one["ack_floor_seq"]),
                    _number(one["pending"]),
                    _number(one["redelivered"]),
                    one["fidelity"],
                )
                for one in found
            ],
        )
        for one in found:
            if one["reason"]:
                output.line(f"{one['name']}: {one['reason']}")

    output.result({"backup": manifest.id, "stream": stream, "consumers": found}, show)


def _json(one: ConsumerBackup) -> JsonObject:
    state = one.state
    exact = state is not None and one.fidelity == "exact"
    return {
        "name": one.name,
        "fidelity": one.fidelity,
        "reason": one.reason,
        "delivered_seq": None if state is None else state.delivered.stream,
        "delivered": None if state is None else state.delivered.consumer,
        "ack_floor_seq": None if state is None else state.ack_floor.stream,
        "pending": len(state.pending) if exact and state is not None else None,
        "redelivered": len(state.redelivered) if exact and state is not None else None,
        "config": one.config,
    }


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


COMMANDS = {"subjects": subjects, "consumers": consumers}
