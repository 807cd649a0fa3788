"""`jsbackup view`, `kv`, `object` and `history`: messages, keys and files out of one backup, or over all of them.

They take no lease, and write nothing but a record of objects that they find damaged: a key that may only read is
enough. If the backup is forgotten and its objects pruned meanwhile, an object is missing, which is an error. A closed
pipe ends the result early, and is not an error; a full disk is one (`Output`).

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.restore_options import CONDITIONS, NEWEST
from jsbackup.cli.output.new_file import check_new_file, check_no_link, write_pieces
from jsbackup.cli.output.output import silence
from jsbackup.cli.output.result import Block, Column, Result, TextTable, format_bytes, format_count, table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber, understand_time
from jsbackup.config import Glob, nearest, parse_glob
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.exit_codes import unreadable
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.readable import clip, printable
from jsbackup.shell import command_line, quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.all_backups import FoundMessage, Series, UnreadBackup
    from jsbackup.look.buckets.bucket import KeyRevision, KeyValueBucket
    from jsbackup.look.buckets.object_bucket import ObjectBucket
    from jsbackup.look.message import LookedUp, MessageFilter
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.cut import Cut, Edge
    from jsbackup.transforms.filters.filters import Filters

__all__ = [
    "COMMANDS",
    "bytes_json",
    "check_readable",
    "condition_options",
    "find_opened",
    "literally",
    "open_to_look",
    "print_bytes",
    "time_option",
]

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


# --- kv and object ---

_NAMED = 20  # keys in a line


def _bucket_argument(prefix: str) -> Callable[[F], F]:
    """Add the argument BUCKET, of buckets whose streams begin with `prefix`."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        streams = complete_stream(ctx, param, prefix + incomplete)
        return [CompletionItem(str(stream.value).removeprefix(prefix)) for stream in streams]

    return click.argument("bucket", required=False, shell_complete=complete)


@click.command(cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@_bucket_argument(BUCKET_STREAM)
@click.argument("key", required=False)
@time_option("--at", "As of this time, duration before now, or revision; without it, as of the backup.")
def kv(
    shared: Shared,
    backup: str,
    bucket: str | None,
    key: str | None,
    *,
    at: str | None,
) -> Result:
    """Print the value that KEY of BUCKET had, byte for byte; without KEY, list the keys that had a value.

    A pattern for KEY lists those that match: * stands for one token, > at the end for all that follow. Without BUCKET,
    the buckets of the backup are listed. 'jsbackup history BUCKET --key KEY' shows the revisions of a key.

    A key that did not exist, or was deleted, is an error (exit code 1). Keys of which older revisions may be gone, so
    that the backup cannot say, are an error, or listed as unknown (3). If BACKUP is `latest`, the backups around the
    moment are asked before that: they have more.
    """
    from jsbackup.look.buckets.bucket import KeyValueBucket
    from jsbackup.transforms.cut import parse_edge

    if bucket is None:
        if at is not None:
            raise UsageError("--at needs a bucket", hint="Name the bucket.")
        return _list_buckets(find_opened(shared, backup, None)[1], BUCKET_STREAM)
    stream = bucket if bucket.startswith(BUCKET_STREAM) else BUCKET_STREAM + bucket
    needed = [bucket, BUCKET_STREAM + bucket]
    repository, manifest = find_opened(shared, backup, stream, reads=True, needed=needed)
    stored = KeyValueBucket.find(repository.objects, manifest, bucket)
    edge = None if at is None else parse_edge("--at", at, time.time_ns())
    others = repository if backup == LATEST else None
    if key is None or not {"*", ">"}.isdisjoint(key.split(".")):
        return _list_keys(shared, stored, key or ">", at=edge, others=others)
    stored, revision = _value(shared, stored, key, at=edge, others=others)
    if not shared.output.as_json:
        print_bytes([revision.value])
    document: JsonObject = {
        **_about(stored, edge),
        "key": key,
        "revision": revision.revision,
        "time": format_time(revision.timestamp_ns),
        "operation": revision.operation,
        **bytes_json("value", revision.value),
    }
    return Result(document)


def _list_keys(
    shared: Shared, bucket: KeyValueBucket, pattern: str, *, at: Edge | None, others: Repository | None
) -> Result:
    """Return the keys that match. If the backup is not certain, the backups of `others` around the moment are asked.

    Raises IntegrityError, KeyUnavailable, StoreError.
    """
    from jsbackup.look.buckets.bucket_series import find_series

    listed, asked = bucket.keys(at, pattern), [bucket.manifest.id]
    if not listed.certain and at is not None and others is not None:
        known = find_series(others, bucket, at).keys(pattern)
        shared.output.note(f"note: as known from {' and '.join(f'backup {backup}' for backup in known.backups)}")
        listed, asked = known.keys, list(known.backups)
    document: JsonObject = {
        **_about(bucket, at),
        "backups": asked,
        "keys": [{"key": s.key, "revision": s.revision, "time": format_time(s.timestamp_ns)} for s in listed.keys],
        "unknown": list(listed.unknown),
        "whole": listed.whole,
    }
    text: list[Block] = []
    if listed.keys:
        text.append(table(document["keys"], {"KEY": "key", ">REVISION": "revision", "TIME": "time"}))
    elif listed.certain:
        text.append(f"bucket {bucket.name} has no {'keys' if pattern == '>' else 'key that matches'}")
    if names := listed.unknown:
        more = f", and {format_count(len(names) - _NAMED, 'more key')}" if len(names) > _NAMED else ""
        text.append(f"not known, because revisions are gone: {', '.join(names[:_NAMED])}{more}")
    if not listed.whole:
        text.append("keys of which nothing is left may have been there too")
    return Result(document, text, 0 if listed.certain else IncompleteError.exit_code)


def _value(
    shared: Shared, bucket: KeyValueBucket, key: str, *, at: Edge | None, others: Repository | None
) -> tuple[KeyValueBucket, KeyRevision]:
    """Return a key's value, and the bucket that has it: that of another backup of `others`, if this one cannot say.

    Raises JsBackupError, IncompleteError, IntegrityError, KeyUnavailable, StoreError.
    """
    try:
        return bucket, bucket.value(key, at)
    except IncompleteError as error:
        assert at is not None, "what a backup has is known"
        if others is None:
            raise error.with_hint("With `latest` in place of the backup, those around this moment are asked.") from None
    from jsbackup.look.buckets.bucket_series import find_series

    known = find_series(others, bucket, at).value(key)
    proof = f"; as backup {known.witness} shows, it was not written until {at}" if known.witness else ""
    shared.output.note(f"note: revision {known.revision.revision} is in backup {known.bucket.manifest.id}{proof}")
    return known.bucket, known.revision


def _about(bucket: KeyValueBucket, at: Edge | None) -> JsonObject:
    return {"backup": bucket.manifest.id, "bucket": bucket.name, "at": None if at is None else str(at)}


def bytes_json(name: str, data: bytes, *, cut: bool = False) -> JsonObject:
    """Return a member of a document: text, or base64 for bytes that are not UTF-8. If they were `cut` within a
    character, the text is without it.
    """
    try:
        return {name: getincrementaldecoder("utf-8")().decode(data, not cut)}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


@click.command("object", cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@_bucket_argument(OBJECT_STREAM)
@click.argument("name", required=False)
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it to this file, not stdout."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def objects(
    shared: Shared,
    backup: str,
    bucket: str | None,
    name: str | None,
    *,
    file: Path | None,
    force: bool,
) -> Result | int:
    """Get the file NAME of BUCKET, byte for byte, to stdout or into FILE; without NAME, list the files.

    Size and digest are compared with those that were stored. FILE appears when that is done, or not at all. On stdout a
    mismatch is only known at the end, so check the exit code. A link is followed within the backup.

    Deleted files are not listed. Without BUCKET, the object stores of the backup are listed.
    """
    from jsbackup.look.buckets.object_bucket import ObjectBucket

    if name is None and (force or file is not None):
        raise UsageError(f"{'--force' if force else '-o FILE'} needs a NAME", hint="Name the file to get.")
    if name is not None and file is None and (force or shared.output.as_json):
        raise UsageError(f"{'--force' if force else '--json'} needs -o FILE", hint="Name the file to write.")
    if bucket is None:
        return _list_buckets(find_opened(shared, backup, None)[1], OBJECT_STREAM)
    if file is not None:
        check_no_link(file)
        check_new_file(file, replace=force)
    stream = bucket if bucket.startswith(OBJECT_STREAM) else OBJECT_STREAM + bucket
    repository, manifest = find_opened(shared, backup, stream, reads=True)
    stored = ObjectBucket.find(repository.objects, manifest, bucket)
    if name is None:
        return _list_files(shared, stored)
    entry = stored.entry(name)
    if (link := entry.link) is not None:
        if not link.name:
            raise JsBackupError(
                f"object {entry.name} is a link to bucket {link.bucket}, not a file",
                hint=f"See {quoted_command('object', manifest.id, link.bucket)}.",
            )
        shared.output.note(f"{entry.name} is a link to {link}")
        stored = ObjectBucket.find(repository.objects, manifest, link.bucket)
        target = stored.entry(link.name)
        if target.link is not None:
            raise JsBackupError(f"object {entry.name} is a link to {link}, which is a link too")
        entry = target
    if file is None:
        print_bytes(stored.content(entry))
        return 0
    write_pieces(file, stored.content(entry), replace=force)
    document: JsonObject = {
        "backup": manifest.id,
        "bucket": stored.name,
        "name": entry.name,
        "size": entry.size,
        "digest": entry.digest,
        "file": str(file),
    }
    proof = "its digest is the one that was stored" if entry.digest else "no digest was stored with it"
    return Result(document, [f"wrote {file}: {format_bytes(entry.size)}, {proof}"])


def _list_files(shared: Shared, bucket: ObjectBucket) -> Result:
    entries, unreadable = bucket.entries()
    if unreadable:
        shared.output.warning(f"the descriptions of {format_count(unreadable, 'file')} cannot be read")
    rows: list[JsonObject] = [
        {
            "name": entry.name,
            "size": entry.size,
            "chunks": entry.chunks,
            "digest": entry.digest,
            "modified": format_time(entry.modified_ns),
            "description": entry.description,
            "link": None if entry.link is None else {"bucket": entry.link.bucket, "name": entry.link.name or None},
        }
        for entry in entries
    ]
    document: JsonObject = {
        "backup": bucket.manifest.id,
        "bucket": bucket.name,
        "unreadable": unreadable,
        "objects": rows,
    }
    if not entries:
        return Result(document, [f"object store {bucket.name} has no files"])
    cells = [
        (
            entry.name,
            "-" if entry.link else format_bytes(entry.size),
            format_time(entry.modified_ns),
            str(entry.link or ""),
        )
        for entry in entries
    ]
    return Result(document, [TextTable(["NAME", ">SIZE", "MODIFIED", "LINK TO"], cells)])


def _list_buckets(manifest: Manifest, prefix: str) -> Result:
    """Return the buckets of a backup, or its object stores: streams whose names begin with `prefix`."""
    of_keys = prefix == BUCKET_STREAM
    streams = [stream for stream in manifest.streams if stream.name.startswith(prefix)]
    rows = [
        {
            "bucket": stream.name.removeprefix(prefix),
            **({"revisions": stream.captured.messages} if of_keys else {}),
            "bytes": stream.captured.bytes,
        }
        for stream in streams
    ]
    document: JsonObject = {"backup": manifest.id, "buckets": rows}
    if not rows:
        return Result(document, [f"backup {manifest.id} has no {'key-value buckets' if of_keys else 'object stores'}"])
    columns = {">REVISIONS": ("revisions", format_count)} if of_keys else {}
    return Result(document, [table(rows, {"BUCKET": "bucket", **columns, ">BYTES": ("bytes", format_bytes)})])


# --- history ---

_LIST = "See 'jsbackup list' and 'jsbackup show'."
_MOST = 1000
_DIGEST_SHOWN = 12
_SHOWN = 60  # columns of a value in a table
# In text; JSON has the values themselves.
_CHANGES = {"came": "appeared", "gone": "disappeared"}


@click.command(cls=Command, chooses=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option("--key", metavar="KEY", help="The values of a key; STREAM is a bucket.")
@click.option("--object", "object_name", metavar="NAME", help="The versions of a file; STREAM is an object store.")
@condition_options
@click.option("--grep", "text", default="", metavar="TEXT", help="Only messages with this text in the payload.")
@click.option(
    "--limit",
    type=WholeNumber(1),
    default=_MOST,
    show_default=True,
    metavar="N",
    help="Show at most this many, the newest.",
)
def history(
    shared: Shared,
    streams: tuple[str, ...],
    *,
    key: str | None,
    object_name: str | None,
    filters: Filters,
    cut: Cut,
    text: str,
    limit: int,
) -> Result:
    """Show what all backups have of streams, messages, a key or a file: when it appeared, changed and disappeared.

    With conditions, matching messages of all streams, or of those named, are shown, each once, with the first and the
    last backup that have it; --json names all of them. All conditions must hold. With names only, the backups in which
    these streams changed are shown.
    """
    from jsbackup.look.all_backups import read_series
    from jsbackup.look.message import MessageFilter
    from jsbackup.repository.manifest import summary_of
    from jsbackup.repository.read.sources import counts

    wanted = MessageFilter.of(cut, filters, text)
    named = {"--key": key, "--object": object_name, "--subject": wanted.subjects or None}
    given = [option for option, value in named.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} contradict each other", hint="Leave one of them out.")
    searched = bool(given or wanted.by_content or wanted.cut)
    if not (streams or searched):
        raise UsageError("nothing to look for", hint="Name streams, or give --subject, --since, --until or --grep.")
    prefix = BUCKET_STREAM if key is not None else OBJECT_STREAM if object_name is not None else ""
    if prefix and len(streams) != 1:
        raise UsageError(f"{given[0]} is of one {'bucket' if key is not None else 'object store'}", hint="Name it.")
    globs = [parse_glob(name if name.startswith(prefix) else prefix + name) for name in streams]
    repository = open_to_look(shared)
    rules, patterns = shared.choosing.tags, shared.choosing.origins
    series, unread = read_series(
        repository,
        lambda manifest: not (rules or patterns) or counts(summary_of(manifest), rules, patterns),
        lambda name: not globs or any(glob.matches(name) for glob in globs),
        [glob.pattern for glob in globs] if globs and all(glob.is_literal for glob in globs) else None,
    )
    for typed, glob in zip(streams, globs, strict=True):
        if not any(glob.matches(each.stream) for each in series):
            _warn(shared, unread)
            if rules or patterns:
                raise UsageError(f"no backup that --origin and --tag choose has a stream {glob.pattern}", hint=_LIST)
            names = repository.newest_names()
            hint = nearest(glob.pattern, names) or _LIST
            if OBJECT_STREAM + typed in names:
                hint = f"{typed} is an object store: name a file of it with --object."
            raise UsageError(f"no backup has a stream {glob.pattern}", hint=hint)
    if not searched:
        document, blocks = _changes(series, limit)
    elif object_name is not None:
        document, blocks = _versions(repository, series, object_name, wanted=wanted, limit=limit)
    else:
        document, blocks = _messages(repository, series, key=key, wanted=wanted, unread=unread, limit=limit)
    document["unread"] = [{"backup": each.backup, "reason": each.error.message} for each in unread]
    return Result(document, blocks, _warn(shared, unread))


def _newest(series: Sequence[Series]) -> StreamBackup:
    """Return the newest that a backup has of the last series."""
    return next(each.entry for each in reversed(series[-1].sightings) if each.entry is not None)


def _warn(shared: Shared, unread: Sequence[UnreadBackup]) -> int:
    for each in unread:
        shared.output.warning(f"backup {each.backup} cannot be read: {each.error.message}")
    return unreadable(each.error for each in unread)


def _more(noun: str, shown: int, *, more: bool) -> list[str]:
    return [f"these are the newest {format_count(shown, noun)}; for more, see --limit"] if more else []


def _messages(
    repository: Repository,
    series: Sequence[Series],
    *,
    key: str | None,
    wanted: MessageFilter,
    unread: list[UnreadBackup],
    limit: int,
) -> tuple[JsonObject, list[Block]]:
    """Return the messages that are wanted, or those of a key. Backups with a damaged segment are added to `unread`.

    Raises JsBackupError if no backup has any of the key, and the errors of `search_series`.
    """
    from jsbackup.look.all_backups import search_series
    from jsbackup.look.buckets.bucket import check_bucket_key, key_subjects

    if key is not None:
        wanted = replace(wanted, subjects=key_subjects(_newest(series), check_bucket_key(key)))
    check_readable(repository)
    messages, more = search_series(repository, series, wanted, most=limit, damaged=unread)
    document: JsonObject = {"messages": list(map(_message_json, messages)), "more": more}
    if not messages:
        if key is not None and not unread:
            raise JsBackupError(f"no backup has a matching message of key {key} in stream {series[0].stream}")
        return document, [f"no backup {'that can be read ' if unread else ''}has a matching message"]
    header = ["STREAM", ">SEQ", "TIME", "SUBJECT", ">BYTES", "VALUE", "FIRST BACKUP", "LAST BACKUP", "GONE IN"]
    return document, [TextTable(header, list(_rows(messages))), *_more("message", len(messages), more=more)]


def _rows(messages: Sequence[FoundMessage]) -> Iterator[Sequence[str]]:
    """Yield the rows of a table. A value that was shown before is named by its sequence."""
    from jsbackup.transforms.filters.key_marker import KeyOperation, has_expired, operation_of

    of_keys = all(each.stream.startswith(BUCKET_STREAM) for each in messages)
    seen: dict[tuple[str, str, str], int] = {}
    for each in messages:
        operation = operation_of(each.headers) if of_keys else KeyOperation.PUT
        if operation is KeyOperation.PUT:
            first = seen.setdefault((each.origin, each.stream, each.digest), each.sequence)
            start = each.start[: 4 * _SHOWN].decode("utf-8", "backslashreplace")
            value = clip(start, _SHOWN) if first == each.sequence else f"(as {first})"
        else:
            value = "expired" if has_expired(each.headers) else operation.value
        at = format_time(each.timestamp_ns)
        size = format_bytes(each.size)
        yield each.stream, str(each.sequence), at, each.subject, size, value, *_backups(each)


def _backups(message: FoundMessage) -> tuple[str, str, str]:
    return message.backups[0], message.backups[-1], message.gone or "-"


def _message_json(message: FoundMessage) -> JsonObject:
    from jsbackup.transforms.filters.key_marker import has_expired, operation_of

    start, of_key = message.start, message.stream.startswith(BUCKET_STREAM)
    whole = len(start) == message.size
    return {
        "origin": message.origin,
        "stream": message.stream,
        "incarnation": message.incarnation,
        "sequence": message.sequence,
        "time": format_time(message.timestamp_ns),
        **bytes_json("subject", message.subject.encode("utf-8", "surrogateescape")),
        "operation": operation_of(message.headers) if of_key else None,
        **({"expired": True} if of_key and has_expired(message.headers) else {}),
        "bytes": message.size,
        "sha256": message.digest,
        **(bytes_json("data", start) if whole else {"data": None, **bytes_json("start", start, cut=True)}),
        "backups": list(message.backups),
        "gone": message.gone or None,
    }


def _changes(series: Sequence[Series], limit: int) -> tuple[JsonObject, list[Block]]:
    from jsbackup.look.all_backups import changes_of

    every = [change for each in series for change in changes_of(each)]
    every.sort(key=lambda change: (change.created, change.backup, change.stream))
    changes, more = list(map(asdict, every[-limit:])), len(every) > limit
    columns: dict[str, Column] = {
        "STREAM": "stream",
        "BACKUP": "backup",
        "CHANGE": ("change", lambda change: _CHANGES.get(change, str(change))),
        ">MESSAGES": ("messages", format_count),
        ">BYTES": ("bytes", format_bytes),
        ">FIRST": "first_seq",
        ">LAST": "last_seq",
        "ORIGIN": "origin",
    }
    return {"changes": changes, "more": more}, [table(changes, columns), *_more("change", len(changes), more=more)]


def _versions(
    repository: Repository, series: Sequence[Series], name: str, *, wanted: MessageFilter, limit: int
) -> tuple[JsonObject, list[Block]]:
    """Return the versions of a file. Raises JsBackupError if no backup has any, and the errors of `search_series`."""
    from jsbackup.look.all_backups import search_series
    from jsbackup.look.buckets.object_bucket import DESCRIPTION_BYTES, description_subjects, version_of

    check_readable(repository)
    newest = _newest(series)
    wanted = replace(wanted, subjects=description_subjects(newest, name))
    messages, more = search_series(repository, series, wanted, most=limit, start_bytes=DESCRIPTION_BYTES)
    bucket = newest.name.removeprefix(OBJECT_STREAM)
    if not messages:
        raise JsBackupError(
            f"no backup has an object {name} of object store {bucket}",
            hint=f"See {quoted_command('object', 'latest', bucket)} for what there is.",
        )
    versions: list[JsonObject] = []
    rows: list[Sequence[str]] = []
    last = ""
    for each in messages:
        entry, at = version_of(each), format_time(each.timestamp_ns)
        size, digest, what = "-", "-", "cannot be read"
        about: JsonObject = {"readable": entry is not None}
        if entry is not None:
            digest, link = entry.digest[:_DIGEST_SHOWN], entry.link
            what = "deleted" if entry.deleted else f"link to {link}" if link is not None else "file"
            if not entry.deleted and link is None:
                size, last = format_bytes(entry.size), each.backups[-1]
            about |= {
                "deleted": entry.deleted,
                "size": entry.size,
                "digest": entry.digest,
                "link": None if link is None else {"bucket": link.bucket, "name": link.name or None},
            }
        first_backup, last_backup, lost = _backups(each)
        rows.append((at, what, size, digest, first_backup, last_backup, lost))
        held = {"backups": list(each.backups), "gone": each.gone or None}
        versions.append({"origin": each.origin, "sequence": each.sequence, "time": at, **about, **held})
    header = ["TIME", "WHAT", ">SIZE", "DIGEST", "FIRST BACKUP", "LAST BACKUP", "GONE IN"]
    text: list[Block] = [TextTable(header, rows), *_more("version", len(messages), more=more)]
    if last:
        text.append(f"to get the last one: {command_line('object', last, bucket, name, options=[('-o', 'FILE')])}")
    return {"bucket": bucket, "object": name, "versions": versions, "more": more}, text


COMMANDS = {"view": view, "kv": kv, "object": objects, "history": history}
