"""`jsbackup history` and `jsbackup find`: messages and keys in all backups of a repository.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.commands.look.kv import bytes_json, value_preview, whole_text
from jsbackup.cli.commands.look.object_history import OBJECT_STREAM, print_versions
from jsbackup.cli.commands.look.opened import check_readable, filter_options, open_to_look
from jsbackup.cli.options.tag_options import only_origin, only_tagged
from jsbackup.cli.options.tagging import parse_origin, parse_tag_rule
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_stored_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import nearest, parse_glob
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.exit_codes import unreadable
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.all_backups import FoundMessage, Series, UnreadBackup
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.look.stream_history import StreamChange
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]

_MOST = 1000


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return complete_stored_stream(ctx, param, incomplete)


_LIMIT = click.option(
    "--limit",
    type=WholeNumber(1),
    default=_MOST,
    show_default=True,
    metavar="N",
    help="Show at most this many messages, the newest ones.",
)
_TAGS = only_tagged("Only backups with this tag; if repeated, with all of them.")
_ORIGINS = only_origin("Only backups of")


_SEE = "See 'jsbackup list' and 'jsbackup show'."


@click.command(cls=Command)
@click.argument("stream", shell_complete=_complete)
@click.argument("key", required=False)
@click.option("--subject", metavar="FILTER", help="Only messages whose subject matches.")
@click.option("--object", "object_name", metavar="NAME", help="The versions of a file; STREAM is an object store.")
@_LIMIT
@_ORIGINS
@_TAGS
def history(
    shared: Shared,
    stream: str,
    key: str | None,
    *,
    subject: str | None,
    object_name: str | None,
    limit: int,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
) -> int:
    """Show what all backups have of a stream, a subject, a key or a file: when it appeared, changed and disappeared.

    With KEY, STREAM is a bucket, and each revision is shown once, with the first and the last backup that have it.
    With --subject these are messages, with --object the versions of a file of an object store. Without any, the backups
    in which the stream changed are shown.
    """
    from jsbackup.look.buckets.bucket import key_subjects
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.look.stream_history import changes_of
    from jsbackup.transforms.subjects import check_pattern

    given = {"KEY": key, "--subject": subject, "--object": object_name}
    said = [what for what, value in given.items() if value is not None]
    if len(said) > 1:
        raise UsageError(f"{said[0]} and {said[1]} contradict each other", hint="Leave one of them out.")
    prefix = BUCKET_STREAM if key is not None else OBJECT_STREAM if object_name is not None else ""
    name = stream if stream.startswith(prefix) else prefix + stream
    repository = _open(shared)
    series, unread = _series(repository, lambda one: one == name, [name], origins=origins, tags=tags)
    if not series:
        _warn(shared, unread)
        raise UsageError(f"no backup has a stream {name}", hint=_meant(name, stream, repository.newest_names()))
    if object_name is not None:
        print_versions(shared, repository, series, object_name, unread=unread, limit=limit)
        return _warn(shared, unread)
    if key is None and subject is None:
        changes = [change for one in series for change in changes_of(one)]
        _print_changes(shared, name, changes, unread)
        return _warn(shared, unread)
    if key is not None:
        from jsbackup.look.buckets.bucket import check_bucket_key

        newest = next(one.entry for one in reversed(series[-1].sightings) if one.entry is not None)
        wanted = MessageFilter(subjects=key_subjects(newest, check_bucket_key(key)))
    else:
        wanted = MessageFilter(subjects=(check_pattern("--subject", subject or ">"),))
    return _search(shared, repository, series, unread=unread, wanted=wanted, limit=limit, what="history")


@click.command(cls=Command)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=_complete)
@filter_options
@_LIMIT
@_ORIGINS
@_TAGS
def find(
    shared: Shared,
    streams: tuple[str, ...],
    *,
    wanted: MessageFilter,
    limit: int,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
) -> int:
    """Find messages in all backups, and show which backups have them.

    All conditions must hold, and at least one is needed. Each message is shown once, with the first and the last
    backup that have it; --json names all of them.
    """
    if not (wanted.by_content or wanted.cut):
        hint = "Give --subject, --since, --until, --header, --payload-match or --grep."
        raise UsageError("no search condition was given", hint=hint)
    globs = [parse_glob(one) for one in streams]
    repository = _open(shared)
    names = [glob.pattern for glob in globs] if globs and all(glob.is_literal for glob in globs) else None
    series, unread = _series(
        repository, lambda one: not globs or any(glob.matches(one) for glob in globs), names, origins=origins, tags=tags
    )
    for glob in globs:
        if not any(glob.matches(one.stream) for one in series):
            hint = nearest(glob.pattern, repository.newest_names()) or _SEE
            raise UsageError(f"no backup has a stream {glob.pattern}", hint=hint)
    return _search(shared, repository, series, unread=unread, wanted=wanted, limit=limit, what="find")


def _meant(name: str, typed: str, known: Collection[str]) -> str:
    """Return the hint for a stream that is in no backup."""
    if OBJECT_STREAM + typed in known:
        return f"{typed} is an object store: name a file of it with --object."
    return nearest(name, known) or _SEE


def _open(shared: Shared) -> Repository:
    start_log(shared)
    return open_to_look(shared)


def _series(
    repository: Repository,
    chooses: Callable[[str], bool],
    names: Collection[str] | None,
    *,
    origins: Iterable[str],
    tags: Iterable[str],
) -> tuple[list[Series], list[UnreadBackup]]:
    from jsbackup.look.all_backups import read_series
    from jsbackup.repository.read.sources import counts
    from jsbackup.repository.summary import summary_of

    rules, globs = [parse_tag_rule(one) for one in tags], [parse_origin(one) for one in origins]
    if not rules and not globs:
        return read_series(repository, lambda _: True, chooses, names)
    return read_series(repository, lambda manifest: counts(summary_of(manifest), rules, globs), chooses, names)


def _warn(shared: Shared, unread: Sequence[UnreadBackup]) -> int:
    for one in unread:
        shared.output.warning(f"backup {one.backup} cannot be read: {one.error.message}")
    return unreadable(one.error for one in unread)


def _search(
    shared: Shared,
    repository: Repository,
    series: Sequence[Series],
    *,
    unread: Sequence[UnreadBackup],
    wanted: MessageFilter,
    limit: int,
    what: str,
) -> int:
    from jsbackup.look.all_backups import search_series

    check_readable(repository)
    damaged: list[UnreadBackup] = []
    found, more = search_series(repository, series, wanted, most=limit, damaged=damaged)
    unread = [*unread, *damaged]
    output = shared.output
    of_keys = bool(found) and all(one.stream.startswith(BUCKET_STREAM) for one in found)
    document = {
        "messages": [_json(one) for one in found],
        "more": more,
        "unread": [{"backup": one.backup, "reason": one.error.message} for one in unread],
    }

    def text() -> None:
        if not found:
            output.line(f"no backup {'that can be read ' if unread else ''}has a matching message")
            return
        output.table(_HEADER, _rows(found, of_keys=of_keys))
        if more:
            output.line(f"these are the newest {format_count(len(found), 'message')}; for more, see --limit")

    if not found and what == "history" and not unread:
        raise JsBackupError(f"no backup has a matching message of stream {series[0].stream}")
    output.result(document, text)
    return _warn(shared, unread)


_HEADER = ["STREAM", ">SEQ", "TIME", "SUBJECT", ">BYTES", "VALUE", "FIRST BACKUP", "LAST BACKUP", "GONE IN"]


def _rows(found: Sequence[FoundMessage], *, of_keys: bool) -> Iterable[Sequence[str]]:
    """Yield the rows of a table. A value that was shown before is named by its sequence."""
    seen: dict[tuple[str, str, str], int] = {}
    for one in found:
        shown = _words(one) if of_keys else "put"
        value = value_preview(one.start) if shown == "put" else shown
        first = seen.setdefault((one.origin, one.stream, one.digest), one.sequence) if shown == "put" else one.sequence
        yield (
            one.stream,
            str(one.sequence),
            format_time(one.timestamp_ns),
            one.subject,
            format_bytes(one.size),
            value if first == one.sequence else f"(as {first})",
            one.backups[0],
            one.backups[-1],
            one.gone or "-",
        )


def _operation(one: FoundMessage) -> str:
    from jsbackup.transforms.filters.key_marker import operation_of

    return operation_of(one.headers)


def _words(one: FoundMessage) -> str:
    from jsbackup.transforms.filters.key_marker import has_expired

    return "expired" if has_expired(one.headers) else _operation(one)


def _json(one: FoundMessage) -> JsonObject:
    whole = len(one.start) == one.size
    return {
        "origin": one.origin,
        "stream": one.stream,
        "incarnation": one.incarnation,
        "sequence": one.sequence,
        "time": format_time(one.timestamp_ns),
        **bytes_json("subject", one.subject.encode("utf-8", "surrogateescape")),
        "operation": _operation(one) if one.stream.startswith(BUCKET_STREAM) else None,
        "bytes": one.size,
        "sha256": one.digest,
        **(bytes_json("data", one.start) if whole else {"data": None, **bytes_json("start", whole_text(one.start))}),
        "backups": list(one.backups),
        "gone": one.gone or None,
    }


# In text; JSON has the values themselves.
_CHANGES = {"came": "appeared", "gone": "disappeared"}


def _print_changes(
    shared: Shared, stream: str, changes: Sequence[StreamChange], unread: Sequence[UnreadBackup]
) -> None:
    output = shared.output
    document = {
        "stream": stream,
        "changes": [
            {
                "origin": one.origin,
                "backup": one.backup,
                "created": one.created,
                "change": one.change,
                "messages": one.messages,
                "bytes": one.bytes,
                "first_seq": one.first_seq,
                "last_seq": one.last_seq,
            }
            for one in changes
        ],
        "unread": [{"backup": one.backup, "reason": one.error.message} for one in unread],
    }

    def text() -> None:
        output.table(
            ["BACKUP", "CHANGE", ">MESSAGES", ">BYTES", ">FIRST", ">LAST", "ORIGIN"],
            [
                (
                    one.backup,
                    _CHANGES.get(one.change, one.change),
                    format_count(one.messages),
                    format_bytes(one.bytes),
                    str(one.first_seq),
                    str(one.last_seq),
                    one.origin,
                )
                for one in changes
            ],
        )

    output.result(document, text)


COMMANDS = {"history": history, "find": find}
