"""Arguments and options of the commands that look into backups, and what they name.

They take no lease, and write nothing but a record of objects that they find damaged: a key that may only read is
enough. If the backup is forgotten and its objects pruned meanwhile, an object is missing, which is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, find_backup
from jsbackup.cli.options.opening import open_repository
from jsbackup.cli.options.restore_options import CONDITIONS
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_values import understand_time
from jsbackup.config import Glob

if TYPE_CHECKING:
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = [
    "check_readable",
    "condition_options",
    "find_opened",
    "literally",
    "open_to_look",
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
