"""What commands have in common before and after they act: connection, repository, the event loop, interruption.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from jsbackup import __version__
from jsbackup.cli.command import Shared
from jsbackup.config import Connection, ConnectionOptions, environment, s3_settings, source_connection
from jsbackup.errors import RepositoryNotFound, UsageError
from jsbackup.stores.base import Store
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.url import open_store
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository

__all__ = ["connection_of", "make_repository", "open_or_make_repository", "open_repository", "run_async", "store_at"]

T = TypeVar("T")

_OPTION_FIELDS = {"tlscert": "tls_cert", "tlskey": "tls_key", "tlsca": "tls_ca", "tlsfirst": "tls_first"}


def connection_of(shared: Shared) -> Connection:
    """The connection that options, environment and nats context come to."""
    given = {_OPTION_FIELDS.get(name, name): value for name, value in shared.server.items()}
    return source_connection(ConnectionOptions(**given), environment())


def _store(shared: Shared) -> Store:
    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    return store_at(shared.repo, shared)


def store_at(location: str, shared: Shared) -> Store:
    """The store at a location, which tries again what may work a little later."""
    store = open_store(location, s3_settings(shared.s3, environment()))
    return RetryingStore(store, sleep=time.sleep, random=random.random, clock=time.monotonic)


def open_repository(shared: Shared) -> Repository:
    from jsbackup.repository.repository import Repository

    return Repository.open(_store(shared))


def make_repository(shared: Shared) -> Repository:
    """A new repository in an empty location."""
    from jsbackup.repository.repository import Repository

    return Repository.create(
        _store(shared),
        repository_id=os.urandom(16).hex(),
        created=format_time(time.time_ns()),
        tool=f"jsbackup {__version__}",
    )


def open_or_make_repository(shared: Shared) -> Repository:
    """The repository, made where the location is empty."""
    from jsbackup.repository.repository import Repository

    store = _store(shared)
    try:
        return Repository.open(store)
    except RepositoryNotFound as missing:
        if next(iter(store.list()), None) is not None:
            raise
        shared.output.note(f"{missing.message}: making one")
    return make_repository(shared)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work. Ctrl-C and SIGTERM stop it cleanly and raise Interrupted."""
    try:
        from jsbackup.cli.loop import run

        return run(work)
    finally:
        work.close()  # interrupted before it began, it would complain that nobody awaited it
