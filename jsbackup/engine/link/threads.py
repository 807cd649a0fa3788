"""The threads of a run, for blocking calls and computation, so that the event loop keeps answering the server.

A run has its own threads in any event loop: asyncio's default has only a few more than there are processors, and may be
busy with other work. The server gives up a transfer that waits for a thread.
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
