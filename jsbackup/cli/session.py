"""What commands have in common before and after they act: connection, repository, the event loop, interruption.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from jsbackup import __version__
from jsbackup.cli.command import INTERRUPTED, Shared
from jsbackup.config import Connection, ConnectionOptions, environment, source_connection
from jsbackup.errors import Interrupted, JsBackupError, RepositoryNotFound, UsageError
from jsbackup.stores.base import Store
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.url import open_store
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository

__all__ = ["connection_of", "make_repository", "open_or_make_repository", "open_repository", "run_async"]

T = TypeVar("T")

_OPTION_FIELDS = {"tlscert": "tls_cert", "tlskey": "tls_key", "tlsca": "tls_ca", "tlsfirst": "tls_first"}


def connection_of(shared: Shared) -> Connection:
    """The connection that options, environment and nats context come to."""
    given = {_OPTION_FIELDS.get(name, name): value for name, value in shared.server.items()}
    return source_connection(ConnectionOptions(**given), environment())


def _store(shared: Shared) -> Store:
    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    return RetryingStore(open_store(shared.repo), sleep=time.sleep)


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
    import asyncio

    async def guarded() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            return await task
        except asyncio.CancelledError:
            if stopped:
                raise Interrupted(INTERRUPTED) from None
            raise
        except (JsBackupError, BaseExceptionGroup) as error:
            if stopped:  # it failed while it cleaned up
                raise Interrupted(INTERRUPTED) from error
            if isinstance(error, BaseExceptionGroup):
                _raise_the_first(error)
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return asyncio.run(guarded())


def _raise_the_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """The first error of tasks that failed together, if all of them are ours; else the group, which is a bug."""
    known, bugs = group.split(JsBackupError)
    if known is None or bugs is not None:
        raise group
    first: BaseException = known
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    raise first from group
