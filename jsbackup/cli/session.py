"""What commands have in common before and after they act: connection, repository, log, the event loop, interruption."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from tqdm import tqdm

from jsbackup import __version__
from jsbackup.cli.command import Shared
from jsbackup.config import Connection, ConnectionOptions, environment, source_connection
from jsbackup.errors import Interrupted, RepositoryNotFound, UsageError
from jsbackup.protocol.times import format_time
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.url import open_store

__all__ = ["connection_of", "make_repository", "open_or_make_repository", "open_repository", "run_async", "start_log"]

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
    return Repository.open(_store(shared))


def make_repository(shared: Shared) -> Repository:
    """A new repository in an empty location."""
    return Repository.create(
        _store(shared),
        repository_id=os.urandom(16).hex(),
        created=format_time(time.time_ns()),
        tool=f"jsbackup {__version__}",
    )


def open_or_make_repository(shared: Shared) -> Repository:
    """The repository, made where the location is empty."""
    store = _store(shared)
    try:
        return Repository.open(store)
    except RepositoryNotFound as missing:
        if next(iter(store.list()), None) is not None:
            raise
        shared.output.note(f"{missing.message}: making one")
    return make_repository(shared)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = format_time(int(record.created * 1e9) // 1_000_000 * 1_000_000)
        line = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        return json.dumps(line, ensure_ascii=False)


class _BesideBars(logging.Handler):
    """Log lines on stderr that do not tear the progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stderr)


def start_log(shared: Shared) -> None:
    """Log lines on stderr as the options say: warnings, with -v what is done, with -vv everything."""
    level = {0: logging.WARNING, 1: logging.INFO}.get(shared.verbose, logging.DEBUG)
    handler = _BesideBars()
    handler.setFormatter(_JsonLines() if shared.log_format == "json" else _TextLines())
    log = logging.getLogger("jsbackup")
    log.handlers = [handler]
    log.setLevel(logging.ERROR if shared.output.quiet else level)
    log.propagate = False


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work. Ctrl-C and SIGTERM stop it cleanly and raise Interrupted."""

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
                raise Interrupted("interrupted; what was committed before is untouched") from None
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return asyncio.run(guarded())
