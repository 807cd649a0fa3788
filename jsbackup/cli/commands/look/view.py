"""`jsbackup view`: messages of a stream in a backup.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.look.opened import backup_and_stream, filter_options, newest_options, open_messages
from jsbackup.cli.commands.look.printing import print_bytes, print_json_lines, print_lines
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.message import LookedUp
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.filters.newest import NewestRule

__all__ = ["COMMANDS", "json_of", "lines_of"]


@click.command(cls=Command, chooses=True)
@backup_and_stream
@filter_options
@newest_options
@click.option("--last", type=WholeNumber(1), metavar="N", help="Only the last N of these messages.")
@click.option(
    "--sequence",
    type=WholeNumber(1, (1 << 63) - 1),
    metavar="N",
    help="The message with this sequence, which must exist.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="Print payloads byte for byte, each followed by a line break; that of --sequence as it is.",
)
def view(
    shared: Shared,
    backup: str,
    stream: str,
    *,
    wanted: MessageFilter,
    newest: NewestRule | None,
    last: int | None,
    sequence: int | None,
    raw: bool,
) -> None:
    """Show messages of STREAM in BACKUP, oldest first: sequence, subject, time, headers and payload.

    All conditions must hold. On a terminal, a pager shows them. With --json there is one object in a line for each
    message, as 'export --format jsonl' writes it.
    """
    from jsbackup.look.stream import message_at

    conditions = wanted.by_content or wanted.cut or newest
    if raw and shared.output.as_json:
        raise UsageError("--raw and --json contradict each other", hint="Leave one of them out.")
    if sequence is not None and (conditions or last is not None):
        raise UsageError("--sequence names one message, without conditions", hint="Leave --sequence or the others out.")
    repository, manifest, entry = open_messages(shared, backup, stream)
    if sequence is not None:
        messages = iter([message_at(repository.objects, manifest, entry, sequence)])
    else:
        messages = _matching(repository, manifest, entry, wanted, newest=newest, last=last)
        first = next(messages, None)
        if first is None:
            shared.output.note(
                f"no message of stream {stream} matches" if conditions else f"stream {stream} has no messages"
            )
        else:
            messages = chain((first,), messages)
    if raw:
        end = b"\n" if sequence is None else b""
        print_bytes(piece for each in messages for piece in (each.data, end))
    elif shared.output.as_json:
        print_json_lines({"stream": stream, **json_of(each)} for each in messages)
    else:
        print_lines(shared.output, (line for each in messages for line in lines_of(each)))


def _matching(
    repository: Repository,
    manifest: Manifest,
    entry: StreamBackup,
    wanted: MessageFilter,
    *,
    newest: NewestRule | None,
    last: int | None,
) -> Iterator[LookedUp]:
    """Yield the messages, oldest first. Raises as `check_newest`, at once."""
    from jsbackup.look.newest_messages import check_newest, newest_messages
    from jsbackup.look.stream import first_of_last, messages_of
    from jsbackup.repository.pages.segment_list import touching

    check_newest(manifest, entry, newest)
    wanted, least = newest_messages(repository.objects, entry, wanted, newest), 0
    if last is not None:
        least = first_of_last(repository.objects, entry, wanted, last)
        later = touching(entry.segments, least, entry.captured.last_seq) if least else ()
        entry = replace(entry, segments=tuple(later))
    return (each for each in messages_of(repository.objects, entry, wanted) if each.sequence >= least)


def json_of(message: LookedUp) -> JsonObject:
    """Return a message as JSON: the form of 'export --format jsonl'."""
    from jsbackup.formats.json_lines import message_json

    subject = message.subject.encode("utf-8", "surrogateescape")
    return message_json(message.sequence, message.timestamp_ns, subject, message.headers, data=message.data)


def lines_of(message: LookedUp) -> Iterator[str]:
    """Yield the lines that show a message, not yet safe to print."""
    from jsbackup.look.message import headers_of

    yield f"[{message.sequence}] Subject: {message.subject} Received: {format_time(message.timestamp_ns)}"
    yield ""
    headers = headers_of(message.headers)
    if headers:
        yield from (f"  {header.name}: {header.value}" for header in headers)
        yield ""
    yield from payload_lines(message.data)
    yield ""


def payload_lines(data: bytes) -> Iterable[str]:
    """Return the lines of a payload. Bytes that are not UTF-8 are escaped."""
    return data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")


COMMANDS = {"view": view}
