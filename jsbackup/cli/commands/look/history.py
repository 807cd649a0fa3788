"""`jsbackup history`: messages, keys, files and streams over all backups of a repository.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.look.kv import bytes_json, value_preview, whole_text
from jsbackup.cli.commands.look.opened import check_readable, filter_options, open_to_look
from jsbackup.cli.options.tagging import Choosing
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import Output, format_bytes, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import Glob, nearest, parse_glob
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.exit_codes import unreadable
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM
from jsbackup.shell import command_line, quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.all_backups import FoundMessage, Series, StreamChange, UnreadBackup
    from jsbackup.look.buckets.object_bucket import ObjectEntry
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.repository.manifest import StreamBackup
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]

_MOST = 1000
_OBJECT_STREAM = "OBJ_"
_DIGEST_SHOWN = 12


@click.command(cls=Command, chooses=True)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option("--key", metavar="KEY", help="The values of a key; STREAM is a bucket.")
@click.option("--object", "object_name", metavar="NAME", help="The versions of a file; STREAM is an object store.")
@filter_options
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
    wanted: MessageFilter,
    limit: int,
) -> int:
    """Show what all backups have of streams, messages, a key or a file: when it appeared, changed and disappeared.

    With conditions, matching messages of all streams, or of those named, are shown, each once, with the first and the
    last backup that have it; --json names all of them. All conditions must hold. With names only, the backups in which
    these streams changed are shown.
    """
    named = {"--key": key, "--object": object_name, "--subject": wanted.subjects or None}
    given = [option for option, value in named.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} contradict each other", hint="Leave one of them out.")
    searched = bool(given or wanted.by_content or wanted.cut)
    if not (streams or searched):
        raise UsageError("nothing to look for", hint="Name streams, or give --subject, --since, --until or --grep.")
    prefix = BUCKET_STREAM if key is not None else _OBJECT_STREAM if object_name is not None else ""
    if prefix and len(streams) != 1:
        raise UsageError(f"{given[0]} is of one {'bucket' if key is not None else 'object store'}", hint="Name it.")
    globs = [parse_glob(name if name.startswith(prefix) else prefix + name) for name in streams]
    start_log(shared)
    repository = open_to_look(shared)
    series, unread = _read(repository, globs, shared.choosing)
    for typed, glob in zip(streams, globs, strict=True):
        if not any(glob.matches(each.stream) for each in series):
            _warn(shared, unread)
            names = repository.newest_names()
            raise UsageError(f"no backup has a stream {glob.pattern}", hint=_meant(glob.pattern, typed, names))
    if not searched:
        _print_changes(shared.output, series, unread, limit)
    elif object_name is not None:
        _print_versions(shared.output, repository, series, object_name, wanted=wanted, unread=unread, limit=limit)
    else:
        if key is not None:
            from jsbackup.look.buckets.bucket import check_bucket_key, key_subjects

            wanted = replace(wanted, subjects=key_subjects(_newest(series), check_bucket_key(key)))
        unread = _search(shared.output, repository, series, key=key, wanted=wanted, unread=unread, limit=limit)
    return _warn(shared, unread)


def _meant(name: str, typed: str, known: Sequence[str]) -> str:
    """Return the hint for a stream that is in no backup."""
    if _OBJECT_STREAM + typed in known:
        return f"{typed} is an object store: name a file of it with --object."
    return nearest(name, known) or "See 'jsbackup list' and 'jsbackup show'."


def _read(repository: Repository, globs: Sequence[Glob], choosing: Choosing) -> tuple[list[Series], list[UnreadBackup]]:
    from jsbackup.look.all_backups import read_series
    from jsbackup.repository.read.sources import counts
    from jsbackup.repository.summary import summary_of

    rules, patterns = choosing.tags, choosing.origins
    names = [glob.pattern for glob in globs] if globs and all(glob.is_literal for glob in globs) else None
    return read_series(
        repository,
        lambda manifest: not (rules or patterns) or counts(summary_of(manifest), rules, patterns),
        lambda name: not globs or any(glob.matches(name) for glob in globs),
        names,
    )


def _newest(series: Sequence[Series]) -> StreamBackup:
    """Return the newest that a backup has of the last series."""
    return next(each.entry for each in reversed(series[-1].sightings) if each.entry is not None)


def _warn(shared: Shared, unread: Sequence[UnreadBackup]) -> int:
    for each in unread:
        shared.output.warning(f"backup {each.backup} cannot be read: {each.error.message}")
    return unreadable(each.error for each in unread)


def _unread_json(unread: Sequence[UnreadBackup]) -> list[JsonObject]:
    return [{"backup": each.backup, "reason": each.error.message} for each in unread]


def _search(
    output: Output,
    repository: Repository,
    series: Sequence[Series],
    *,
    key: str | None,
    wanted: MessageFilter,
    unread: Sequence[UnreadBackup],
    limit: int,
) -> list[UnreadBackup]:
    """Print the messages. Return the backups that could not be read, also those with a damaged segment."""
    from jsbackup.look.all_backups import search_series

    check_readable(repository)
    damaged: list[UnreadBackup] = []
    messages, more = search_series(repository, series, wanted, most=limit, damaged=damaged)
    unread = [*unread, *damaged]
    of_keys = bool(messages) and all(each.stream.startswith(BUCKET_STREAM) for each in messages)

    def text() -> None:
        if not messages:
            output.line(f"no backup {'that can be read ' if unread else ''}has a matching message")
            return
        output.table(
            ["STREAM", ">SEQ", "TIME", "SUBJECT", ">BYTES", "VALUE", "FIRST BACKUP", "LAST BACKUP", "GONE IN"],
            _rows(messages, of_keys=of_keys),
        )
        _say_more(output, "message", len(messages), more=more)

    if key is not None and not (messages or unread):
        raise JsBackupError(f"no backup has a matching message of key {key} in stream {series[0].stream}")
    document = {"messages": list(map(_message_json, messages)), "more": more, "unread": _unread_json(unread)}
    output.result(document, text)
    return unread


def _say_more(output: Output, noun: str, shown: int, *, more: bool) -> None:
    if more:
        output.line(f"these are the newest {format_count(shown, noun)}; for more, see --limit")


def _rows(messages: Sequence[FoundMessage], *, of_keys: bool) -> Iterable[Sequence[str]]:
    """Yield the rows of a table. A value that was shown before is named by its sequence."""
    seen: dict[tuple[str, str, str], int] = {}
    for each in messages:
        words = _words(each) if of_keys else "put"
        value = value_preview(each.start) if words == "put" else words
        place = each.origin, each.stream, each.digest
        first = seen.setdefault(place, each.sequence) if words == "put" else each.sequence
        yield (
            each.stream,
            str(each.sequence),
            format_time(each.timestamp_ns),
            each.subject,
            format_bytes(each.size),
            value if first == each.sequence else f"(as {first})",
            *_backups(each),
        )


def _backups(message: FoundMessage) -> tuple[str, str, str]:
    return message.backups[0], message.backups[-1], message.gone or "-"


def _operation(message: FoundMessage) -> str:
    from jsbackup.transforms.filters.key_marker import operation_of

    return operation_of(message.headers)


def _words(message: FoundMessage) -> str:
    from jsbackup.transforms.filters.key_marker import has_expired

    return "expired" if has_expired(message.headers) else _operation(message)


def _message_json(message: FoundMessage) -> JsonObject:
    start, whole = message.start, len(message.start) == message.size
    return {
        "origin": message.origin,
        "stream": message.stream,
        "incarnation": message.incarnation,
        "sequence": message.sequence,
        "time": format_time(message.timestamp_ns),
        **bytes_json("subject", message.subject.encode("utf-8", "surrogateescape")),
        "operation": _operation(message) if message.stream.startswith(BUCKET_STREAM) else None,
        "bytes": message.size,
        "sha256": message.digest,
        **(bytes_json("data", start) if whole else {"data": None, **bytes_json("start", whole_text(start))}),
        "backups": list(message.backups),
        "gone": message.gone or None,
    }


# In text; JSON has the values themselves.
_CHANGES = {"came": "appeared", "gone": "disappeared"}


def _print_changes(output: Output, series: Sequence[Series], unread: Sequence[UnreadBackup], limit: int) -> None:
    from jsbackup.look.all_backups import changes_of

    every: list[StreamChange] = [change for each in series for change in changes_of(each)]
    every.sort(key=lambda change: (change.created, change.backup, change.stream))
    changes, more = every[-limit:], len(every) > limit
    document = {
        "changes": [
            {
                "stream": change.stream,
                "origin": change.origin,
                "backup": change.backup,
                "created": change.created,
                "change": change.change,
                "messages": change.messages,
                "bytes": change.bytes,
                "first_seq": change.first_seq,
                "last_seq": change.last_seq,
            }
            for change in changes
        ],
        "more": more,
        "unread": _unread_json(unread),
    }

    def text() -> None:
        output.table(
            ["STREAM", "BACKUP", "CHANGE", ">MESSAGES", ">BYTES", ">FIRST", ">LAST", "ORIGIN"],
            [
                (
                    change.stream,
                    change.backup,
                    _CHANGES.get(change.change, change.change),
                    format_count(change.messages),
                    format_bytes(change.bytes),
                    str(change.first_seq),
                    str(change.last_seq),
                    change.origin,
                )
                for change in changes
            ],
        )
        _say_more(output, "change", len(changes), more=more)

    output.result(document, text)


def _print_versions(
    output: Output,
    repository: Repository,
    series: Sequence[Series],
    name: str,
    *,
    wanted: MessageFilter,
    unread: Sequence[UnreadBackup],
    limit: int,
) -> None:
    """Print the versions of a file. Raises JsBackupError if no backup has any, and the errors of `search_series`."""
    from jsbackup.look.all_backups import search_series
    from jsbackup.look.buckets.object_bucket import description_subjects
    from jsbackup.look.buckets.object_versions import DESCRIPTION_BYTES, version_of

    check_readable(repository)
    newest = _newest(series)
    wanted = replace(wanted, subjects=description_subjects(newest, name))
    messages, more = search_series(repository, series, wanted, most=limit, start_bytes=DESCRIPTION_BYTES)
    bucket = newest.name.removeprefix(_OBJECT_STREAM)
    if not messages:
        raise JsBackupError(
            f"no backup has an object {name} of object store {bucket}",
            hint=f"See {quoted_command('object ls', 'latest', bucket)} for what there is.",
        )
    versions = [(each, version_of(each)) for each in messages]
    document = {
        "bucket": bucket,
        "object": name,
        "versions": [_version_json(each, entry) for each, entry in versions],
        "more": more,
        "unread": _unread_json(unread),
    }

    def text() -> None:
        output.table(
            ["TIME", "WHAT", ">SIZE", "DIGEST", "FIRST BACKUP", "LAST BACKUP", "GONE IN"],
            [
                (
                    format_time(each.timestamp_ns),
                    _what(entry),
                    format_bytes(entry.size) if _is_file(entry) and entry else "-",
                    entry.digest[:_DIGEST_SHOWN] if entry else "-",
                    *_backups(each),
                )
                for each, entry in versions
            ],
        )
        _say_more(output, "version", len(messages), more=more)
        last = next((each for each, entry in reversed(versions) if _is_file(entry)), None)
        if last is not None:
            command = command_line("object get", last.backups[-1], bucket, name, options=[("-o", "FILE")])
            output.line(f"to get the last one: {command}")

    output.result(document, text)


def _is_file(entry: ObjectEntry | None) -> bool:
    return entry is not None and not entry.deleted and entry.link is None


def _what(entry: ObjectEntry | None) -> str:
    if entry is None:
        return "cannot be read"
    if entry.deleted:
        return "deleted"
    return f"link to {entry.link}" if entry.link is not None else "file"


def _version_json(message: FoundMessage, entry: ObjectEntry | None) -> JsonObject:
    about: JsonObject = {"readable": entry is not None}
    if entry is not None:
        link = entry.link
        about |= {
            "deleted": entry.deleted,
            "size": entry.size,
            "digest": entry.digest,
            "link": None if link is None else {"bucket": link.bucket, "name": link.name or None},
        }
    return {
        "origin": message.origin,
        "sequence": message.sequence,
        "time": format_time(message.timestamp_ns),
        **about,
        "backups": list(message.backups),
        "gone": message.gone or None,
    }


COMMANDS = {"history": history}
