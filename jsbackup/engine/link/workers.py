"""Do several things at a time: workers with a connection each, which share waiting items, and concurrent requests."""

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
