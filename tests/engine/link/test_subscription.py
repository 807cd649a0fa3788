"""One reader, messages in order, and an error for ever once there is one."""

from __future__ import annotations

import asyncio

import pytest

from jsbackup.engine.link.subscription import Subscription
from jsbackup.errors import NatsError, NatsTimeout, TransferError
from jsbackup.protocol.dialogue import Message


class Sent:
    """Keeps what is published."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes, str | None, bytes | None]] = []

    async def publish(self, subject: str, payload: bytes, reply: str | None, headers: bytes | None) -> None:
        self.messages.append((subject, payload, reply, headers))


def subscription(limit_bytes: int = 1000, sent: Sent | None = None) -> Subscription:
    return Subscription("x", 7, (sent or Sent()).publish, limit_bytes)


def message(data: bytes = b"d", headers: bytes = b"") -> Message:
    return Message("x", None, headers, data)


def lost() -> NatsError:
    return TransferError("lost")


def test_messages_are_read_in_order_waiting_or_not() -> None:
    async def main() -> None:
        read = subscription()
        assert read.next_nowait() is None
        read.push(message(b"1"))
        read.push(message(b"2"))
        reading = asyncio.create_task(read.next(30))
        assert (await reading).data == b"1"
        assert (await anext(read)).data == b"2"
        reading = asyncio.create_task(read.next(30))
        await asyncio.sleep(0)
        read.push(message(b"3"))
        read.push(message(b"4"))
        assert (await reading).data == b"3"
        left = read.next_nowait()
        assert left is not None
        assert left.data == b"4"

    asyncio.run(main())


def test_what_came_before_a_failure_is_read_first_and_the_first_failure_stays() -> None:
    async def main() -> None:
        read = subscription()
        read.push(message())
        read.fail(lost)
        read.fail(lambda: NatsError("later"))
        read.push(message(b"too late"))
        assert (await read.next(1)).data == b"d"
        for _ in range(2):
            with pytest.raises(TransferError, match="lost"):
                await read.next(1)
            with pytest.raises(TransferError, match="lost"):
                read.next_nowait()
            with pytest.raises(TransferError, match="lost"):
                await read.publish("y")

    asyncio.run(main())


def test_a_failure_wakes_the_reader() -> None:
    async def main() -> None:
        read = subscription()
        reading = asyncio.create_task(read.next())
        await asyncio.sleep(0)
        read.fail(lost)
        with pytest.raises(TransferError, match="lost"):
            await reading

    asyncio.run(main())


def test_time_runs_out_for_the_reader_and_not_for_the_subscription() -> None:
    async def main() -> None:
        read = subscription()
        with pytest.raises(NatsTimeout, match=r"nothing arrived on x within 0.01 s"):
            await read.next(0.01)
        with pytest.raises(NatsTimeout):
            await read.next(0)
        read.push(message())
        assert (await read.next(0)).data == b"d"

    asyncio.run(main())


def test_a_reader_that_is_cancelled_takes_no_message_with_it() -> None:
    async def main() -> None:
        read = subscription()
        reading = asyncio.create_task(read.next(30))
        await asyncio.sleep(0)
        read.push(message())
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert (await read.next(1)).data == b"d"

    asyncio.run(main())


def test_two_readers_are_a_mistake() -> None:
    async def main() -> None:
        read = subscription()
        reading = asyncio.create_task(read.next(30))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="two readers"):
            await read.next(30)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(main())


def test_unread_bytes_are_bounded_headers_included_and_reading_makes_room() -> None:
    async def main() -> None:
        read = subscription(limit_bytes=100)
        for _ in range(20):
            read.push(message(bytes(40), headers=bytes(60)))
            assert len((await read.next(1)).data) == 40
        read.push(message(bytes(100)))
        read.push(message(b"1"))
        assert len((await read.next(1)).data) == 100
        with pytest.raises(TransferError, match="more than 100 bytes came on x and were not read"):
            await read.next(1)

    asyncio.run(main())


def test_it_remembers_what_it_published_lately() -> None:
    async def main() -> None:
        sent = Sent()
        read = subscription(sent=sent)
        for number in range(100):
            await read.publish(f"ack.{number}", b"", "re.ply", b"NATS/1.0\r\n\r\n")
        assert sent.messages[-1] == ("ack.99", b"", "re.ply", b"NATS/1.0\r\n\r\n")
        assert read.published(lambda subject: subject.casefold() == "ACK.99".casefold()) == "ack.99"
        assert read.published(lambda subject: subject == "ack.0") is None
        read.remember(200)
        for number in range(150):
            await read.publish(f"more.{number}")
        assert read.published(lambda subject: subject == "more.0") == "more.0"
        assert read.published(lambda subject: subject == "ack.99") == "ack.99"

    asyncio.run(main())
