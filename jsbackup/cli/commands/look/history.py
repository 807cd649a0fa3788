"""`jsbackup history`: messages, keys, files and streams over all backups of a repository.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.look.buckets import bytes_json
from jsbackup.cli.commands.look.view import check_readable, condition_options, open_to_look
from jsbackup.cli.output.result import Block, Column, Result, TextTable, format_bytes, format_count, table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.config import nearest, parse_glob
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.exit_codes import unreadable
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.readable import clip
from jsbackup.shell import command_line, quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.all_backups import FoundMessage, Series, UnreadBackup
    from jsbackup.look.message import MessageFilter
    from jsbackup.repository.manifest import StreamBackup
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.cut import Cut
    from jsbackup.transforms.filters.filters import Filters

__all__ = ["COMMANDS"]

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
        first_backup, last_backup, gone = _backups(each)
        rows.append((at, what, size, digest, first_backup, last_backup, gone))
        held = {"backups": list(each.backups), "gone": each.gone or None}
        versions.append({"origin": each.origin, "sequence": each.sequence, "time": at, **about, **held})
    header = ["TIME", "WHAT", ">SIZE", "DIGEST", "FIRST BACKUP", "LAST BACKUP", "GONE IN"]
    text: list[Block] = [TextTable(header, rows), *_more("version", len(messages), more=more)]
    if last:
        text.append(f"to get the last one: {command_line('object', last, bucket, name, options=[('-o', 'FILE')])}")
    return {"bucket": bucket, "object": name, "versions": versions, "more": more}, text


COMMANDS = {"history": history}
