"""The lease of programs that write a repository. (That of commands, in `cli/options/opening.py`, reports what it waits
for.)
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from jsbackup.engine.backup.lease_renewal import hold_lease, lease_terms
from jsbackup.errors import RepositoryLocked
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.repository import Repository

__all__ = ["held_lease"]

_WAIT_SECONDS = 660.0


def held_lease(repository: Repository, purpose: str) -> AbstractContextManager[Lease]:
    """Return a context manager with a shared lease of the driver. Raises RepositoryLocked and StoreError."""
    return hold_lease(repository.store, lease_terms(purpose), wait_seconds=_WAIT_SECONDS, waiting=_wait)


def _wait(_error: RepositoryLocked) -> None:
    """Wait silently: this may be a notebook."""
