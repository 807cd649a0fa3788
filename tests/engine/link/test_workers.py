"""Workers share what waits, and go on without the ones that cannot connect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jsbackup.engine.link.concurrency import gather_some, run_workers
from jsbackup.errors import JsBackupError, NatsError


class Shop:
    """Numbers to be done; `refused` connections fail, and a connection is lost after each number of `breaks`."""

    def __init__(self, count: int, *, refused: int = 0, breaks: frozenset[int] = frozenset()) -> None:
        self.waiting = list(range(count))
        self.done: list[int] = []
        self.connections = 0
        self.open = self.most_open = 0
        self._refused = refused
        self._breaks = breaks

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[int]:
        self.connections += 1
        if self.connections <= self._refused:
            raise NatsError(f"no connection {self.connections}")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            yield self.connections
        finally:
            self.open -= 1

    async def do_next(self, _connection: int) -> bool:
        if not self.waiting:
            return False
        one = self.waiting.pop()
        await asyncio.sleep(0)
        self.done.append(one)
        return one not in self._breaks

    def run(self, count: int) -> JsBackupError | None:
        return asyncio.run(run_workers(count, self.connect, lambda: bool(self.waiting), self.do_next))


def test_what_waits_is_done_once_by_as_many_as_may() -> None:
    shop = Shop(10)
    assert shop.run(3) is None
    assert sorted(shop.done) == list(range(10)) and (shop.most_open, shop.connections) == (3, 3)


def test_a_lost_connection_is_replaced_while_something_waits() -> None:
    shop = Shop(5, breaks=frozenset({3, 0}))
    assert shop.run(1) is None
    assert shop.done == [4, 3, 2, 1, 0] and shop.connections == 2


def test_others_do_what_a_worker_without_a_connection_leaves() -> None:
    shop = Shop(5, refused=1)
    error = shop.run(2)
    assert isinstance(error, NatsError) and not shop.waiting and len(shop.done) == 5


def test_what_nobody_can_do_stays_with_the_last_reason() -> None:
    shop = Shop(5, refused=2)
    error = shop.run(2)
    assert error is not None and error.message == "no connection 2" and len(shop.waiting) == 5


def test_answers_come_in_order_and_few_questions_are_open_at_a_time() -> None:
    now, most = 0, 0

    async def ask(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001 * (number % 3))
        now -= 1
        return number * 2

    assert asyncio.run(gather_some(4, ask, range(20))) == [number * 2 for number in range(20)]
    assert most == 4


def test_few_tasks_ask_for_many_items_in_order() -> None:
    most = 0

    async def ask(item: int) -> int:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        return item

    assert asyncio.run(gather_some(8, ask, range(1000))) == list(range(1000))
    assert most == 9
