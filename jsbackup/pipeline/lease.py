"""The lease of programs that write a repository; that of commands, in `cli/leases.py`, tells who they wait for."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from jsbackup.engine.backup import TOOL
from jsbackup.engine.lease_renewal import hold_lease
from jsbackup.errors import RepositoryLocked
from jsbackup.repository.leases import Lease, Mode, Terms
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time

__all__ = ["held_lease"]

_WAIT_SECONDS = 660.0


@contextmanager
def held_lease(repository: Repository, purpose: str) -> Iterator[Lease]:
    """A shared lease of the driver's. Raises RepositoryLocked and StoreError."""
    host = socket.gethostname().encode("ascii", "backslashreplace").decode()[:100]
    terms = Terms(Mode.SHARED, purpose, TOOL, host, format_time(time.time_ns()))
    with hold_lease(repository.store, terms, wait_seconds=_WAIT_SECONDS, waiting=_wait) as lease:
        yield lease


def _wait(_error: RepositoryLocked) -> None:
    """Nobody is told: this may be a notebook."""
