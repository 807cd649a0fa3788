"""Bytes go from the loop to a thread and back: all of them, in order, bounded, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from jsbackup.engine.link.bounded_queues import Intake, Outlet, Relay
from jsbackup.errors import JsBackupError, StoreError

FAR_SECONDS = 20.0


def in_thread(work: Callable[[], object]) -> asyncio.Future[object]:
    return asyncio.get_running_loop().run_in_executor(None, work)


async def soon(what: Awaitable[object]) -> object:
    """Fails where it would wait for ever."""
    return await asyncio.wait_for(what, FAR_SECONDS)


# ---------------------------------------------------------------------------------------------------------- intake


def test_what_is_offered_is_taken_in_order_and_then_the_end() -> None:
    async def main() -> object:
        intake = Intake()
        for number in range(100):
            intake.offer(bytes([number]))
        intake.close()
        return await soon(in_thread(lambda: [intake.take() for _ in range(102)]))

    assert asyncio.run(main()) == [*(bytes([number]) for number in range(100)), None, None]


def test_the_bytes_that_wait_are_counted() -> None:
    async def main() -> None:
        intake = Intake()
        intake.offer(b"abc")
        intake.offer(b"de")
        assert intake.queued_bytes == 5
        await soon(in_thread(intake.take))
        assert intake.queued_bytes == 2
        intake.abort(StoreError("enough"))
        assert intake.queued_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("end", ["offer", "close", "abort"])
def test_a_thread_that_waits_is_woken(end: str) -> None:
    async def main() -> object:
        intake = Intake()
        entered = threading.Event()

        def work() -> object:
            entered.set()
            try:
                return intake.take()
            except JsBackupError as error:
                return error.message

        waiting = in_thread(work)
        await asyncio.to_thread(entered.wait)
        {
            "offer": lambda: intake.offer(b"chunk"),
            "close": intake.close,
            "abort": lambda: intake.abort(StoreError("enough")),
        }[end]()
        return await soon(waiting)

    assert asyncio.run(main()) == {"offer": b"chunk", "close": None, "abort": "enough"}[end]


def test_after_an_abort_nothing_that_was_queued_is_taken() -> None:
    async def main() -> None:
        intake = Intake()
        intake.offer(b"chunk")
        intake.abort(StoreError("enough"))
        with pytest.raises(StoreError):
            await soon(in_thread(intake.take))

    asyncio.run(main())


def test_the_loop_hears_of_a_chunk_that_is_taken_and_of_none() -> None:
    async def main() -> None:
        intake = Intake()
        intake.offer(b"chunk")
        assert not await intake.wait_taken(0.01)
        waiting = asyncio.create_task(intake.wait_taken(FAR_SECONDS))
        await asyncio.sleep(0)
        await soon(in_thread(intake.take))
        assert await soon(waiting)

    asyncio.run(main())


def test_a_cancellation_that_comes_together_with_a_taken_chunk_is_not_lost() -> None:
    async def main() -> None:
        intake = Intake()
        waiting = asyncio.create_task(intake.wait_taken(FAR_SECONDS))
        await asyncio.sleep(0)
        intake.offer(b"chunk")
        intake.take()
        await asyncio.sleep(0)  # now both are due in the same turn of the loop
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


# ---------------------------------------------------------------------------------------------------------- outlet


def test_what_is_put_comes_out_in_order_and_then_the_end() -> None:
    async def main() -> list[bytes]:
        outlet = Outlet(8)

        def work() -> None:
            for number in range(100):
                outlet.put(bytes([number]))
            outlet.close()

        worker = in_thread(work)
        taken = []
        while (chunk := await soon(outlet.next())) is not None:
            taken.append(bytes(chunk))  # type: ignore[call-overload]
        await soon(worker)
        return taken

    assert asyncio.run(main()) == [bytes([number]) for number in range(100)]


def test_the_thread_is_hurried_until_the_loop_has_half_of_what_it_may_have() -> None:
    async def main() -> list[bool]:
        outlet = Outlet(4)
        seen = []
        for _ in range(3):
            seen.append(outlet.hurried())
            outlet.put(b"x")
        await outlet.next()
        await outlet.next()
        return [*seen, outlet.hurried()]

    assert asyncio.run(main()) == [True, True, False, True]


def test_the_thread_waits_while_the_loop_has_enough() -> None:
    async def main() -> None:
        outlet = Outlet(10)
        put = 0

        def work() -> None:
            nonlocal put
            for _ in range(6):
                outlet.put(bytes(4))
                put += 1

        worker = in_thread(work)
        await soon(outlet.wait_filled())
        for taken in range(6):
            # Two of four bytes fit into ten; the third waits until one is taken.
            assert put <= taken + 2
            assert await soon(outlet.next()) == bytes(4)
        await soon(worker)

    asyncio.run(main())


def test_a_chunk_larger_than_the_limit_passes_alone() -> None:
    async def main() -> None:
        outlet = Outlet(2)

        def work() -> None:
            outlet.put(bytes(50))
            outlet.put(bytes(60))
            outlet.close()

        worker = in_thread(work)
        assert [await soon(outlet.next()) for _ in range(3)] == [bytes(50), bytes(60), None]
        await soon(worker)

    asyncio.run(main())


def test_a_thread_that_waits_for_room_is_stopped_by_an_abort() -> None:
    async def main() -> None:
        outlet = Outlet(2)

        def work() -> None:
            while True:
                outlet.put(bytes(2))

        worker = in_thread(work)
        await soon(outlet.wait_filled())
        outlet.abort(StoreError("enough"))
        with pytest.raises(StoreError, match="enough"):
            await soon(worker)

    asyncio.run(main())


@pytest.mark.parametrize(("chunks", "limit"), [(1, 2), (0, 100), (3, 100)])
def test_being_ahead_means_half_the_limit_or_all_there_is(chunks: int, limit: int) -> None:
    async def main() -> None:
        outlet = Outlet(limit)

        def work() -> None:
            for _ in range(chunks):
                outlet.put(b"c")
            outlet.close()

        worker = in_thread(work)
        await soon(outlet.wait_filled())
        await soon(worker)

    asyncio.run(main())


# ----------------------------------------------------------------------------------------------------------- relay


def test_things_go_from_thread_to_thread_in_order_and_no_more_than_may_wait() -> None:
    async def main() -> tuple[object, int]:
        relay: Relay[int] = Relay(30)
        most = 0

        def give() -> None:
            for number in range(200):
                relay.put(number, 10)
            relay.close()

        def take() -> list[int]:
            nonlocal most
            taken = []
            for number in relay:
                most = max(most, relay.queued_bytes)
                taken.append(number)
            return taken

        giving = in_thread(give)
        await soon(in_thread(relay.wait_filled))
        taken = await soon(in_thread(take))
        await soon(giving)
        return taken, most

    taken, most = asyncio.run(main())
    assert taken == list(range(200))
    assert most <= 30


def test_a_thing_that_is_too_large_goes_alone() -> None:
    async def main() -> object:
        relay: Relay[str] = Relay(1)

        def give() -> None:
            for text in "ab":
                relay.put(text, 100)

        giving = in_thread(give)
        first = await soon(in_thread(lambda: next(iter(relay))))
        await soon(giving)
        return first

    assert asyncio.run(main()) == "a"


def test_either_side_of_a_relay_hears_why_it_ended() -> None:
    async def main() -> None:
        relay: Relay[int] = Relay(1)
        taking = in_thread(lambda: list(relay))
        relay.abort(StoreError("gone"))
        relay.abort(JsBackupError("a later one"))
        with pytest.raises(StoreError, match="gone"):
            await soon(taking)
        with pytest.raises(StoreError, match="gone"):
            relay.put(1, 1)
        relay.wait_filled()

        full: Relay[int] = Relay(1)
        full.put(1, 1)
        giving = in_thread(lambda: full.put(2, 1))
        await soon(in_thread(full.wait_filled))
        full.abort(StoreError("gone"))
        with pytest.raises(StoreError, match="gone"):
            await soon(giving)

    asyncio.run(main())
