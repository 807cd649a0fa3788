"""Leases of commands: messages, and the behaviour if the store is read-only.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from jsbackup.cli.parsing.context import Shared
from jsbackup.config import parse_duration

if TYPE_CHECKING:
    from jsbackup.errors import RepositoryLocked
    from jsbackup.repository.keep.leases import Lease, Mode
    from jsbackup.repository.repository import Repository

__all__ = ["holder", "reading", "writing"]


def holder(shared: Shared, repository: Repository, purpose: str) -> Callable[[Mode], AbstractContextManager[Lease]]:
    """Return a function that takes leases for a command; `purpose` is its name. Raises UsageError for an invalid
    --lock-timeout.

    Taking one raises RepositoryLocked and StoreError.
    """
    wait_seconds, waiting = parse_duration(shared.lock_timeout), _waiting(shared)

    def hold(mode: Mode) -> AbstractContextManager[Lease]:
        from jsbackup.engine.backup.lease_renewal import hold_lease, lease_terms

        terms = lease_terms(purpose, mode)
        return hold_lease(repository.store, terms, wait_seconds=wait_seconds, waiting=waiting)

    return hold


def writing(shared: Shared, repository: Repository, purpose: str) -> AbstractContextManager[Lease]:
    """Hold a shared lease for writing. Raises RepositoryLocked and StoreError."""
    from jsbackup.repository.keep.leases import Mode

    return holder(shared, repository, purpose)(Mode.SHARED)


def reading(shared: Shared, repository: Repository, purpose: str) -> AbstractContextManager[None]:
    """Hold a shared lease for reading, see `hold_to_read`. Raises RepositoryLocked."""
    from jsbackup.engine.backup.lease_renewal import hold_to_read

    return hold_to_read(
        repository,
        purpose,
        wait_seconds=parse_duration(shared.lock_timeout),
        waiting=_waiting(shared),
        note=shared.output.note,
    )


def _waiting(shared: Shared) -> Callable[[RepositoryLocked], None]:
    return lambda error: shared.output.note(f"{error.message}; waiting for up to {shared.lock_timeout}")
