"""`jsbackup history` and `jsbackup find`: messages and keys in all backups of a repository.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.commands.look.kv import bytes_json, preview
from jsbackup.cli.commands.look.opened import filter_of, filter_options
from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_stored_stream
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.tag_options import only_origin, only_tagged
from jsbackup.cli.options.tagging import parse_origin, parse_tag_rule
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.config import parse_glob
from jsbackup.errors import IntegrityError, JsBackupError, UsageError
from jsbackup.exit_codes import first_of
from jsbackup.model import JsonObject
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.all_backups import FoundMessage, Series, UnreadBackup
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.look.stream_history import StreamChange
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]

_KV = "KV_"
_MOST = 1000


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return complete_stored_stream(ctx, param, incomplete)


_LIMIT = click.option(
    "--limit",
    type=click.IntRange(1),
    default=_MOST,
    show_default=True,
    metavar="N",
    help="At most so many messages, the newest of them.",
)
_TAGS = only_tagged("Only backups with this tag; if repeated, with all of them.")
_ORIGINS = only_origin("Only backups of")


@click.command(cls=Command)
@click.argument("stream", shell_complete=_complete)
@click.argument("key", required=False)
@click.option("--subject", metavar="FILTER", help="The messages with such a subject.")
@_LIMIT
@_ORIGINS
@_TAGS
def history(
    shared: Shared,
    stream: str,
    key: str | None,
    *,
    subject: str | None,
    limit: int,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
) -> int:
    """Show what all backups have of a stream, a subject or a key: when something came, changed, and went.

    With KEY, STREAM is a bucket, and each revision is shown once, with the first and the last backup that have it.
    With --subject these are messages. Without either, the backups in which the stream changed are shown.
    """
    from jsbackup.look.bucket import key_subjects
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.look.stream_history import changes_of
    from jsbackup.transforms.cut import Cut

    if key is not None and subject is not None:
        raise UsageError("KEY and --subject contradict each other", hint="Leave one of them out.")
    name = stream if key is None or stream.startswith(_KV) else _KV + stream
    repository = _open(shared)
    series, unread = _series(repository, lambda one: one == name, origins=origins, tags=tags)
    if not series:
        _warn(shared, unread)
        raise UsageError(f"no backup has a stream {name}", hint="See 'jsbackup list' and 'jsbackup show'.")
    if key is None and subject is None:
        changes = [change for one in series for change in changes_of(one)]
        _print_changes(shared, name, changes, unread)
        return _warn(shared, unread)
    if key is not None:
        from jsbackup.look.bucket import check_key

        newest = next(one.entry for one in reversed(series[-1].sightings) if one.entry is not None)
        wanted = MessageFilter(subjects=key_subjects(newest, check_key(key)))
    else:
        wanted = MessageFilter.of(Cut(), [subject or ">"])
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
    subjects: tuple[str, ...],
    since: str | None,
    until: str | None,
    headers: tuple[str, ...],
    text: str | None,
    limit: int,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
) -> int:
    """Find messages in all backups, and show which backups have them.

    All conditions must hold, and at least one is needed. Each message is shown once, with the first and the last
    backup that have it; --json names all of them.
    """
    wanted = filter_of(subjects, headers, text, since=since, until=until)
    if not (wanted.by_content or wanted.cut):
        raise UsageError("nothing to find was named", hint="Give --subject, --since, --until, --header or --grep.")
    globs = [parse_glob(one) for one in streams]
    repository = _open(shared)
    series, unread = _series(
        repository, lambda one: not globs or any(glob.matches(one) for glob in globs), origins=origins, tags=tags
    )
    for glob in globs:
        if not any(glob.matches(one.stream) for one in series):
            raise UsageError(f"no backup has a stream {glob.pattern}", hint="See 'jsbackup list' and 'jsbackup show'.")
    return _search(shared, repository, series, unread=unread, wanted=wanted, limit=limit, what="find")


def _open(shared: Shared) -> Repository:
    start_log(shared)
    return open_repository(shared)


def _series(
    repository: Repository, chooses: Callable[[str], bool], *, origins: Iterable[str], tags: Iterable[str]
) -> tuple[list[Series], list[UnreadBackup]]:
    from jsbackup.look.all_backups import read_series
    from jsbackup.repository.read.sources import counts
    from jsbackup.repository.summary import summary_of

    rules, globs = [parse_tag_rule(one) for one in tags], [parse_origin(one) for one in origins]
    if not rules and not globs:
        return read_series(repository, lambda _: True, chooses)
    return read_series(repository, lambda manifest: counts(summary_of(manifest), rules, globs), chooses)


def _warn(shared: Shared, unread: Sequence[UnreadBackup]) -> int:
    for one in unread:
        shared.output.warning(f"backup {one.backup} cannot be read: {one.error.message}")
    return first_of((one.error.exit_code for one in unread), IntegrityError.exit_code)


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

    found, more = search_series(repository, series, wanted, most=limit)
    output = shared.output
    of_keys = bool(found) and all(one.stream.startswith(_KV) for one in found)
    document = {
        "messages": [_json(one) for one in found],
        "more": more,
        "unread": [{"backup": one.backup, "reason": one.error.message} for one in unread],
    }

    def text() -> None:
        if not found:
            output.line("no backup has such a message")
            return
        output.table(_HEADER, _rows(found, of_keys=of_keys))
        if more:
            output.line(f"these are the newest {format_count(len(found), 'message')}; for more, see --limit")

    if not found and what == "history":
        _warn(shared, unread)
        raise JsBackupError(f"no backup has such a message of stream {series[0].stream}")
    output.result(document, text)
    return _warn(shared, unread)


_HEADER = ["STREAM", ">SEQ", "TIME", "SUBJECT", ">BYTES", "VALUE", "FIRST BACKUP", "LAST BACKUP", "GONE IN"]


def _rows(found: Sequence[FoundMessage], *, of_keys: bool) -> Iterable[Sequence[str]]:
    """Yield the rows of a table. A value that was shown before is named by its sequence."""
    seen: dict[tuple[str, str, str], int] = {}
    for one in found:
        shown = _operation(one) if of_keys else "put"
        value = preview(one.start) if shown == "put" else shown
        first = seen.setdefault((one.origin, one.stream, one.digest), one.sequence) if shown == "put" else one.sequence
        yield (
            one.stream,
            str(one.sequence),
            format_time(one.timestamp_ns),
            one.subject,
            format_bytes(one.size),
            value if first == one.sequence else f"as {first}",
            one.backups[0],
            one.backups[-1],
            one.gone or "-",
        )


def _operation(one: FoundMessage) -> str:
    from jsbackup.look.bucket import operation_of

    return operation_of(one.headers)


def _json(one: FoundMessage) -> JsonObject:
    whole = len(one.start) == one.size
    return {
        "origin": one.origin,
        "stream": one.stream,
        "incarnation": one.incarnation,
        "sequence": one.sequence,
        "time": format_time(one.timestamp_ns),
        **bytes_json("subject", one.subject.encode("utf-8", "surrogateescape")),
        "operation": _operation(one) if one.stream.startswith(_KV) else None,
        "bytes": one.size,
        "sha256": one.digest,
        **(bytes_json("data", one.start) if whole else {"data": None}),
        "backups": list(one.backups),
        "gone": one.gone or None,
    }


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
                    one.change,
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
