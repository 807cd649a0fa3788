"""Several things at a time: workers with a connection each, which share what waits, and answers that are gathered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from jsbackup.errors import JsBackupError

__all__ = ["gather_some", "run_workers"]

C = TypeVar("C")
I = TypeVar("I")  # noqa: E741
T = TypeVar("T")


async def run_workers(
    count: int,
    connect: Callable[[], AbstractAsyncContextManager[C]],
    is_waiting: Callable[[], bool],
    do_next: Callable[[C], Awaitable[bool]],
) -> JsBackupError | None:
    """Let `count` workers do what waits. `do_next` takes one thing, and returns whether to go on with the connection.

    A worker whose connection is lost makes another one as long as something waits. One that cannot get a connection
    ends, and the others do what is left. The error of the last one that ended so is returned, None if none did.
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
    """What `ask` answers for each item, in their order, with at most `at_once` questions open."""
    gate = asyncio.Semaphore(at_once)

    async def gated(item: I) -> T:
        async with gate:
            return await ask(item)

    return await asyncio.gather(*map(gated, items))
