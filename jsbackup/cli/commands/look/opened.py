"""Arguments and options of the commands that look into backups, and what they name.

They take no lease, and write nothing but a record of objects that they find damaged: a key that may only read is
enough. If the backup is forgotten and its objects pruned meanwhile, an object is missing, which is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.options.latest import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.reshaping import CONDITIONS, NEWEST
from jsbackup.cli.output.log import start_log
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_times import understand_time
from jsbackup.config import Glob

if TYPE_CHECKING:
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.filters.filters import Filters

__all__ = [
    "backup_and_stream",
    "check_readable",
    "complete_bucket",
    "condition_options",
    "filter_options",
    "find_opened",
    "literally",
    "newest_options",
    "open_messages",
    "open_to_look",
    "time_option",
]

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")


def backup_and_stream(command: F) -> F:
    """Add the arguments BACKUP and STREAM."""
    backup = click.argument("backup", shell_complete=complete_backup)
    stream = click.argument("stream", shell_complete=complete_stream)
    return backup(stream(command))


def time_option(name: str, help_text: str) -> Callable[[F], F]:
    """Add an option that takes a time, a duration before now, or a sequence."""
    return click.option(name, metavar="TIME_OR_SEQ", callback=understand_time, help=help_text)


_CONDITIONS = ("subject", "exclude_subject", "header", "payload_match")


def condition_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of `Filters`, passed as `filters`."""

    @wraps(command)
    def parsed(**values: Any) -> R:
        from jsbackup.transforms.filters.filters import Filters

        filters = Filters.parse({name: values.pop(name) for name in _CONDITIONS})
        return command(filters=filters, **values)

    subject = click.option(
        "--subject", multiple=True, metavar="FILTER", help="Only messages whose subject matches; repeatable."
    )
    for option in reversed((subject, *CONDITIONS)):
        option(parsed)
    return parsed


def filter_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of a `MessageFilter`, passed as `wanted`."""

    @wraps(command)
    def filtered(filters: Filters, since: str | None, until: str | None, text: str | None, **values: Any) -> R:
        import time

        from jsbackup.look.message_filter import MessageFilter
        from jsbackup.transforms.cut import Cut

        wanted = MessageFilter.of(Cut.parse(since, until, time.time_ns()), filters, text or "")
        return command(wanted=wanted, **values)

    options: list[Callable[[Callable[..., R]], Callable[..., R]]] = [
        condition_options,
        time_option("--since", "Only messages from this time, duration before now, or sequence on."),
        time_option("--until", "Only messages up to this time, duration before now, or sequence."),
        click.option("--grep", "text", metavar="TEXT", help="Only messages with this text in the payload."),
    ]
    whole: Callable[..., R] = filtered
    for option in reversed(options):
        whole = option(whole)
    return whole


def newest_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of a `NewestRule`, passed as `newest`, None without any."""

    @wraps(command)
    def choosing(last_per_subject: int | None, kv_compact: bool, **values: Any) -> R:
        from jsbackup.transforms.filters.newest import NewestRule

        return command(newest=NewestRule.of(last_per_subject, kv_compact), **values)

    for option in reversed(NEWEST):
        option(choosing)
    return choosing


def complete_bucket(prefix: str, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the names of buckets, whose streams begin with `prefix`."""
    found = complete_stream(ctx, param, prefix + incomplete)
    return [CompletionItem(str(one.value).removeprefix(prefix)) for one in found]


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
    start_log(shared)
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


def open_messages(shared: Shared, backup: str, stream: str) -> tuple[Repository, Manifest, StreamBackup]:
    """Return the repository, the named backup, and its stream, which has messages that can be read."""
    from jsbackup.look.stream import find_stream, with_messages

    repository, manifest = find_opened(shared, backup, stream, reads=True, needed=[stream])
    return repository, manifest, with_messages(manifest, find_stream(manifest, stream))
