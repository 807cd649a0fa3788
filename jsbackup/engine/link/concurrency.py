"""The threads of a run, for blocking calls and computation, so that the event loop keeps answering the server.

A run has its own threads in any event loop: asyncio's default has only a few more than there are processors, and may be
busy with other work. The server gives up a transfer that waits for a thread.

Several things at a time: workers with a connection each, which share waiting items (`run_workers`), and concurrent
requests (`gather_some`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar

from jsbackup.errors import JsBackupError

__all__ = ["gather_some", "in_thread", "run_workers", "with_own_threads"]

P = ParamSpec("P")
T = TypeVar("T")

# Each running transfer keeps one, or two to forward what it reads (at most 64 at a time), and each may need another for
# something short. They are started on demand.
_MOST_THREADS: Final = 224

_threads: ContextVar[ThreadPoolExecutor | None] = ContextVar("jsbackup_threads", default=None)


def with_own_threads(run: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate coroutines that are called from outside the engine: their threads end with them. Nested ones share
    threads.

    If cancelled, it does not wait for threads that wait for a store, so that it ends soon.
    """

    @wraps(run)
    async def owning(*args: P.args, **kwargs: P.kwargs) -> T:
        if _threads.get() is not None:
            return await run(*args, **kwargs)
        threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="jsbackup")
        before = _threads.set(threads)
        wait = True
        try:
            return await run(*args, **kwargs)
        except asyncio.CancelledError:
            wait = False
            raise
        finally:
            _threads.reset(before)
            await _end(threads, wait=wait)

    return owning


async def _end(threads: ThreadPoolExecutor, *, wait: bool) -> None:
    if not wait:
        threads.shutdown(wait=False, cancel_futures=True)
        return
    beside = ThreadPoolExecutor(1)
    try:
        await asyncio.get_running_loop().run_in_executor(beside, threads.shutdown)
    finally:
        beside.shutdown(wait=False)


def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Run it in a thread of the run; outside a run, in a thread of the event loop."""
    call = partial(copy_context().run, work, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(_threads.get(), call)


C = TypeVar("C")
I = TypeVar("I")  # noqa: E741


async def run_workers(
    count: int,
    connect: Callable[[], AbstractAsyncContextManager[C]],
    is_waiting: Callable[[], bool],
    do_next: Callable[[C], Awaitable[bool]],
) -> JsBackupError | None:
    """Let `count` workers do waiting items. `do_next` does one, and returns whether to continue with the connection.

    A worker whose connection is lost opens another one as long as items wait. A worker that cannot connect ends, and
    the others do the rest. Returns the error of the last one that ended so, or None.
    """
    unreachable: list[JsBackupError] = []

    async def work() -> None:
        try:
            while is_waiting():
                async with connect() as connection:
                    while await do_next(connection):
                        pass
        except JsBackupError as error:
            unreachable.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work())
    return unreachable[-1] if unreachable else None


async def gather_some(at_once: int, ask: Callable[[I], Awaitable[T]], items: Iterable[I]) -> list[T]:
    """Return the results of `ask` for each item, in order, with at most `at_once` open requests, each in a task.

    A task for each item would cost a million items minutes and gigabytes.
    """
    waiting = enumerate(items)
    results: dict[int, T] = {}

    async def work() -> None:
        for number, item in waiting:
            results[number] = await ask(item)

    workers = [asyncio.create_task(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return [results[number] for number in range(len(results))]
