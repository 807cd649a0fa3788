"""`jsbackup view` and `jsbackup get`: messages of a stream in a backup.

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
    from jsbackup.transforms.filters.newest import NewestRule

__all__ = ["COMMANDS", "json_of", "lines_of"]


@click.command(cls=Command)
@backup_and_stream
@filter_options
@newest_options
@click.option("--last", type=WholeNumber(1), metavar="N", help="Only the last N of these messages.")
@click.option("--raw", is_flag=True, help="Print payloads byte for byte, each followed by a line break.")
def view(
    shared: Shared,
    backup: str,
    stream: str,
    *,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    wanted: MessageFilter,
    newest: NewestRule | None,
    last: int | None,
    raw: bool,
) -> None:
    """Show messages of STREAM in BACKUP, oldest first: sequence, subject, time, headers and payload.

    All conditions must hold. On a terminal, a pager shows them. With --json there is one object in a line for each
    message, as 'export --format jsonl' writes it.
    """
    from jsbackup.look.newest_messages import check_newest, newest_messages
    from jsbackup.look.stream import first_of_last, messages_of
    from jsbackup.repository.pages.segment_list import touching

    if raw and shared.output.as_json:
        raise UsageError("--raw and --json contradict each other", hint="Leave one of them out.")
    repository, manifest, entry = open_messages(shared, backup, stream, origins=origins, tags=tags)
    objects, least = repository.objects, 0
    check_newest(manifest, entry, newest)
    wanted = newest_messages(objects, entry, wanted, newest)
    if last is not None:
        least = first_of_last(objects, entry, wanted, last)
        later = touching(entry.segments, least, entry.captured.last_seq) if least else ()
        entry = replace(entry, segments=tuple(later))
    found = (one for one in messages_of(objects, entry, wanted) if one.sequence >= least)
    first = next(found, None)
    if first is None:
        asked = wanted.by_content or wanted.cut or newest
        shared.output.note(f"no message of stream {stream} matches" if asked else f"stream {stream} has no messages")
    messages = chain(() if first is None else (first,), found)
    if raw:
        print_bytes(piece for one in messages for piece in (one.data, b"\n"))
    elif shared.output.as_json:
        print_json_lines({"stream": stream, **json_of(one)} for one in messages)
    else:
        print_lines(shared.output, (line for one in messages for line in lines_of(one)))


@click.command(cls=Command)
@backup_and_stream
@click.argument("sequence", metavar="SEQ", type=WholeNumber(1, (1 << 63) - 1))
@click.option("--headers", is_flag=True, help="Print the header block before the payload, byte for byte too.")
def get(
    shared: Shared,
    backup: str,
    stream: str,
    sequence: int,
    *,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    headers: bool,
) -> None:
    """Print the payload of the message SEQ of STREAM in BACKUP, byte for byte.

    With --json it is an object with subject, time, headers and payload.
    """
    from jsbackup.look.stream import message_at

    repository, manifest, entry = open_messages(shared, backup, stream, origins=origins, tags=tags)
    message = message_at(repository.objects, manifest, entry, sequence)
    if shared.output.as_json:
        shared.output.result({"backup": manifest.id, "stream": stream, **json_of(message)}, lambda: None)
        return
    print_bytes([*([message.headers or b""] if headers else []), message.data])


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


COMMANDS = {"view": view, "get": get}
