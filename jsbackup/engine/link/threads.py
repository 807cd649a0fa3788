"""The threads of a run: what blocks or computes runs in them, so that the event loop goes on answering the server.

A run has threads of its own, whatever event loop it runs in: the default of asyncio has a few more than the machine has
processors, and may be busy with other work. A transfer that waits for a thread is given up by the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar

__all__ = ["in_thread", "with_own_threads"]

P = ParamSpec("P")
T = TypeVar("T")

# Each running transfer keeps one, or two to send on what it reads (at most 64 at a time), and each may want another for
# something short. They are started when they are needed.
_MOST_THREADS: Final = 224

_threads: ContextVar[ThreadPoolExecutor | None] = ContextVar("jsbackup_threads", default=None)


def with_own_threads(run: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """For coroutines that others than the engine call: they end with their threads. One in another shares its threads.

    If it is cancelled, threads that wait for a store are left to their own, so that it ends soon.
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
    """Run it in a thread of the run; outside of a run, in one of the event loop."""
    call = partial(copy_context().run, work, *args, **kwargs)
    return asyncio.get_running_loop().run_in_executor(_threads.get(), call)
