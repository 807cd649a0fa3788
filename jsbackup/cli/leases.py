"""How commands take leases: the option, the words, and what is done where nothing can be put.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jsbackup import __version__
from jsbackup.cli.command import Shared
from jsbackup.config import parse_duration
from jsbackup.errors import RepositoryLocked, StoreError
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.leases import Lease, Mode
    from jsbackup.repository.repository import Repository

__all__ = ["holder", "lock_timeout_option", "reading", "writing"]

F = TypeVar("F", bound=Callable[..., Any])


def lock_timeout_option(command: F) -> F:
    """`--lock-timeout`, given to the command as the text `lock_timeout`."""
    # The default outlasts the lease of a command that was killed.
    return click.option(
        "--lock-timeout",
        metavar="DURATION",
        default="11m",
        show_default=True,
        help="How long to wait for another command that has the repository for itself.",
    )(command)


def holder(
    shared: Shared, repository: Repository, purpose: str, lock_timeout: str
) -> Callable[[Mode], AbstractContextManager[Lease]]:
    """What takes leases for a command; `purpose` is its name. UsageError if `lock_timeout` is no duration.

    Taking one raises RepositoryLocked and StoreError.
    """
    wait_seconds = parse_duration(lock_timeout)

    def waiting(error: RepositoryLocked) -> None:
        shared.output.note(f"{error.message}; waiting for up to {lock_timeout}")

    def hold(mode: Mode) -> AbstractContextManager[Lease]:
        from jsbackup.engine.lease_renewal import hold_lease
        from jsbackup.repository.leases import Terms

        terms = Terms(mode, purpose, f"jsbackup {__version__}", _host(), format_time(time.time_ns()))
        return hold_lease(repository.store, terms, wait_seconds=wait_seconds, waiting=waiting)

    return hold


def writing(shared: Shared, repository: Repository, purpose: str, lock_timeout: str) -> AbstractContextManager[Lease]:
    """A shared lease for what stores things. Raises RepositoryLocked and StoreError."""
    from jsbackup.repository.leases import Mode

    return holder(shared, repository, purpose, lock_timeout)(Mode.SHARED)


@contextmanager
def reading(shared: Shared, repository: Repository, purpose: str, lock_timeout: str) -> Iterator[None]:
    """A shared lease for what only reads; none, with a remark, where nothing can be put. Raises RepositoryLocked."""
    with ExitStack() as stack:
        try:
            stack.enter_context(writing(shared, repository, purpose, lock_timeout))
        except StoreError as error:
            shared.output.note(f"no lease can be put, so nothing keeps a prune from what is read here: {error.message}")
        yield


def _host() -> str:
    return socket.gethostname().encode("ascii", "backslashreplace").decode()[:100]
