"""Arguments and options of the commands that look into backups, and what they name.

They take no lease: nothing is written, so a key that may only read is enough. If the backup is forgotten and its
objects pruned meanwhile, an object is missing, which is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.options.completion import complete_backup, complete_stream
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.latest import LATEST, choosing_options, find_backup, parse_choosing
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.typed_times import understand_time
from jsbackup.cli.output.log import start_log
from jsbackup.config import Glob

if TYPE_CHECKING:
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.repository import Repository

__all__ = [
    "backup_and_stream",
    "complete_bucket",
    "filter_of",
    "filter_options",
    "open_backup",
    "open_messages",
    "time_option",
]

F = TypeVar("F", bound=Callable[..., Any])


def backup_and_stream(command: F) -> F:
    """Add the arguments BACKUP and STREAM, and the options that choose what `latest` means."""
    backup = click.argument("backup", shell_complete=complete_backup)
    stream = click.argument("stream", shell_complete=complete_stream)
    return backup(stream(choosing_options(command)))


def time_option(name: str, help_text: str) -> Callable[[F], F]:
    """Add an option that takes a time, a duration before now, or a sequence."""
    return click.option(name, metavar="TIME_OR_SEQ", callback=understand_time, help=help_text)


def filter_options(command: F) -> F:
    """Add the options of a `MessageFilter`."""
    options = [
        click.option(
            "--subject",
            "subjects",
            multiple=True,
            metavar="FILTER",
            help="Only messages with such a subject; repeatable.",
        ),
        time_option("--since", "Only messages from this time, duration before now, or sequence on."),
        time_option("--until", "Only messages up to this time, duration before now, or sequence."),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Only messages with this header; if repeated, with all of them.",
        ),
        click.option("--grep", "text", metavar="TEXT", help="Only messages with this text in the payload."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def filter_of(
    subjects: Sequence[str], headers: Sequence[str], text: str | None, *, since: str | None, until: str | None
) -> MessageFilter:
    """Parse the values of `filter_options`. Raises UsageError."""
    import time

    from jsbackup.look.message_filter import MessageFilter, parse_header_rule
    from jsbackup.transforms.cut import Cut

    cut = Cut.parse(since, until, time.time_ns())
    return MessageFilter.of(cut, subjects, [parse_header_rule(one) for one in headers], text or "")


def complete_bucket(prefix: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of buckets, whose streams begin with `prefix`."""
    found = complete_stream(ctx, param, prefix + incomplete)
    return [CompletionItem(str(one.value).removeprefix(prefix)) for one in found]


def open_backup(
    shared: Shared, backup: str, stream: str | None, *, origins: Sequence[str], tags: Sequence[str]
) -> tuple[Repository, Manifest]:
    """Return the repository and the named backup; `latest` is the newest with the stream."""
    start_log(shared)
    choosing = parse_choosing(backup, origins, tags)
    repository = open_repository(shared)
    streams = [Glob(_literally(stream))] if backup == LATEST and stream is not None else []
    return repository, find_backup(shared, repository, backup, choosing, streams=streams)


def _literally(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def open_messages(
    shared: Shared, backup: str, stream: str, *, origins: Sequence[str], tags: Sequence[str]
) -> tuple[Repository, Manifest, StreamBackup]:
    """Return the repository, the named backup, and its stream, which has messages that can be read."""
    from jsbackup.look.stream import find_stream, with_messages

    repository, manifest = open_backup(shared, backup, stream, origins=origins, tags=tags)
    return repository, manifest, with_messages(manifest, find_stream(manifest, stream))
