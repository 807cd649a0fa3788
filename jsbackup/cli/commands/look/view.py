"""`jsbackup view`: messages of a stream in a backup, printed as they come, as lines of text, lines of JSON, or bytes.

A closed pipe ends the result early, and is not an error; a full disk is one (`Output`). What takes long to import is
imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.restore_options import CONDITIONS, NEWEST
from jsbackup.cli.output.output import silence
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber, understand_time
from jsbackup.config import Glob
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.model import JsonObject
from jsbackup.readable import printable
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.message import LookedUp
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.cut import Cut
    from jsbackup.transforms.filters.filters import Filters

__all__ = [
    "COMMANDS",
    "check_readable",
    "condition_options",
    "find_opened",
    "literally",
    "open_to_look",
    "print_bytes",
    "time_option",
]

# --- what the commands that look into backups share ---
#
# They take no lease, and write nothing but a record of objects that they find damaged: a key that may only read is
# enough. If the backup is forgotten and its objects pruned meanwhile, an object is missing, which is an error.

F = TypeVar("F", bound=Callable[..., Any])

_CONDITIONS = ("subject", "exclude_subject", "header", "payload_match")


def time_option(name: str, help_text: str) -> Callable[[F], F]:
    """Add an option that takes a time, a duration before now, or a sequence."""
    return click.option(name, metavar="TIME_OR_SEQ", callback=understand_time, help=help_text)


def condition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add conditions of messages, passed as `filters` and `cut`."""

    @wraps(command)
    def parsed(since: str | None, until: str | None, **values: Any) -> Any:
        from jsbackup.transforms.cut import Cut
        from jsbackup.transforms.filters.filters import Filters

        filters = Filters.parse({name: values.pop(name) for name in _CONDITIONS})
        return command(filters=filters, cut=Cut.parse(since, until, time.time_ns()), **values)

    for option in (
        time_option("--until", "Only messages up to this time, duration before now, or sequence."),
        time_option("--since", "Only messages from this time, duration before now, or sequence on."),
        *reversed(CONDITIONS),
        click.option(
            "--subject", multiple=True, metavar="FILTER", help="Only messages whose subject matches; repeatable."
        ),
    ):
        option(parsed)
    return parsed


def open_to_look(shared: Shared) -> Repository:
    """Open the repository. What the command finds damaged is recorded at its end; if it cannot be, that is noted."""
    repository = open_repository(shared)
    click.get_current_context().call_on_close(partial(_record_damage, shared, repository))
    return repository


def _record_damage(shared: Shared, repository: Repository) -> None:
    if repository.objects.found_damaged:
        from jsbackup.engine.backup.lease_renewal import record_damage

        record_damage(repository, shared.output.note)


def find_opened(
    shared: Shared,
    backup: str,
    stream: str | None,
    *,
    reads: bool = False,
    needed: Sequence[str] = (),
) -> tuple[Repository, Manifest]:
    """Return the repository and the named backup; `latest` is the newest with the stream. `reads`: messages will be
    read, which a writer key cannot. If names are `needed`, the manifest is read for a stream that has one of them.
    """
    repository = open_to_look(shared)
    if reads:
        check_readable(repository)
    streams = (Glob(literally(stream)),) if backup == LATEST and stream is not None else ()
    wanted = WantedBackup(backup, streams, in_part=True, needed=(tuple(needed),) if needed else ())
    return repository, find_backup(shared, repository, wanted)


def check_readable(repository: Repository) -> None:
    """Raise KeyUnavailable if messages are encrypted, and no key that reads them was given."""
    from jsbackup.repository.crypto.keys import needed

    if repository.descriptor.recipient is not None:
        needed(repository.secret)


def literally(name: str) -> str:
    """Return a name as a glob that matches nothing else."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


# --- view ---

_LAST_PER_SUBJECT, _KV_COMPACT = NEWEST


@click.command(cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("stream", shell_complete=complete_stream)
@condition_options
@click.option("--grep", "text", default="", metavar="TEXT", help="Only messages with this text in the payload.")
@_LAST_PER_SUBJECT
@_KV_COMPACT
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
    filters: Filters,
    cut: Cut,
    text: str,
    last_per_subject: int | None,
    kv_compact: bool,
    last: int | None,
    sequence: int | None,
    raw: bool,
) -> None:
    """Show messages of STREAM in BACKUP, oldest first: sequence, subject, time, headers and payload.

    All conditions must hold. On a terminal, a pager shows them. With --json there is one object in a line for each
    message, as 'export --format jsonl' writes it.
    """
    from jsbackup.formats.json_lines import message_json
    from jsbackup.look.message import MessageFilter
    from jsbackup.look.stream import (
        check_newest,
        find_stream,
        first_of_last,
        message_at,
        messages_of,
        newest_messages,
        with_messages,
    )
    from jsbackup.repository.pages.segment_list import touching
    from jsbackup.transforms.filters.newest import NewestRule

    wanted, newest = MessageFilter.of(cut, filters, text), NewestRule.of(last_per_subject, kv_compact)
    conditions = wanted.by_content or cut or newest
    output = shared.output
    if raw and output.as_json:
        raise UsageError("--raw and --json contradict each other", hint="Leave one of them out.")
    if sequence is not None and (conditions or last is not None):
        raise UsageError("--sequence names one message, without conditions", hint="Leave --sequence or the others out.")
    repository, manifest = find_opened(shared, backup, stream, reads=True, needed=[stream])
    objects, entry = repository.objects, with_messages(manifest, find_stream(manifest, stream))
    messages: Iterator[LookedUp]
    if sequence is not None:
        messages = iter([message_at(objects, manifest, entry, sequence)])
    else:
        check_newest(manifest, entry, newest)
        wanted, least = newest_messages(objects, entry, wanted, newest), 0
        if last is not None:
            least = first_of_last(objects, entry, wanted, last)
            later = touching(entry.segments, least, entry.captured.last_seq) if least else ()
            entry = replace(entry, segments=tuple(later))
        messages = (each for each in messages_of(objects, entry, wanted) if each.sequence >= least)
        first = next(messages, None)
        if first is None:
            output.note(f"no message of stream {stream} matches" if conditions else f"stream {stream} has no messages")
        else:
            messages = chain((first,), messages)
    if raw:
        end = b"\n" if sequence is None else b""
        print_bytes(piece for each in messages for piece in (each.data, end))
    elif output.as_json:
        documents = (
            message_json(
                each.sequence,
                each.timestamp_ns,
                each.subject.encode("utf-8", "surrogateescape"),
                each.headers,
                data=each.data,
            )
            for each in messages
        )
        _write(sys.stdout, (_json_line({"stream": stream, **document}) for document in documents))
    elif not output.quiet:
        encoding = sys.stdout.encoding or "utf-8"
        lines = (f"{printable(line, encoding)}\n" for each in messages for line in _lines(each))
        if sys.stdout.isatty():
            click.echo_via_pager(lines)
        else:
            _write(sys.stdout, lines)


def _lines(message: LookedUp) -> Iterator[str]:
    """Yield the lines that show a message, not yet safe to print. Bytes of payloads that are not UTF-8 are escaped."""
    from jsbackup.look.message import headers_of

    yield f"[{message.sequence}] Subject: {message.subject} Received: {format_time(message.timestamp_ns)}"
    yield ""
    headers = headers_of(message.headers)
    if headers:
        yield from (f"  {header.name}: {header.value}" for header in headers)
        yield ""
    yield from message.data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    yield ""


def _json_line(document: JsonObject) -> str:
    """Return a document in one line, with every character escaped that is not printable."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return f"{text}\n"


def print_bytes(pieces: Iterable[bytes]) -> None:
    """Print bytes exactly as they are."""
    sys.stdout.flush()
    _write(sys.stdout.buffer, pieces)


def _write(stream: IO[Any], pieces: Iterable[Any]) -> None:
    iterator = iter(pieces)
    while True:
        piece = next(iterator, None)  # its errors are not those of the output
        try:
            if piece is None:
                stream.flush()
                return
            stream.write(piece)
        except OSError as error:
            silence(sys.stdout)
            if isinstance(error, BrokenPipeError):
                return
            raise JsBackupError(f"cannot write the output: {(error.strerror or str(error)).lower()}") from error


COMMANDS = {"view": view}
