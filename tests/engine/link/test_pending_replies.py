"""Answers, denials and the end reach whom they belong to, and nobody else."""

from __future__ import annotations

import asyncio

import pytest

from jsbackup.engine.link.subscription import PUBLISH, REPLY, SUBSCRIBE, PendingReplies, Subscription
from jsbackup.errors import NatsError, NatsPermissionDenied, TransferError
from jsbackup.protocol.dialogue import Message
from tests.engine.link.test_subscription import Sent


def conversation() -> PendingReplies:
    made = PendingReplies("nats://h:4222")
    made.use_inbox("_INBOX.Me", 1)
    return made


def subscribed(made: PendingReplies, sid: int, subject: str) -> Subscription:
    subscription = Subscription(subject, 1, Sent().publish, 1000)
    made.add(sid, subscription)
    return subscription


def test_each_answer_reaches_its_request_once() -> None:
    async def main() -> None:
        made = conversation()
        with made.expecting("a") as (reply_a, answer_a), made.expecting("b") as (reply_b, answer_b):
            assert reply_a != reply_b
            assert reply_a.startswith("_INBOX.Me.")
            made.deliver(1, Message(reply_b, None, b"", b"for b"))
            made.deliver(1, Message(reply_b, None, b"", b"again"))
            made.deliver(1, Message("_INBOX.Me.unknown", None, b"", b""))
            made.deliver(99, Message(reply_a, None, b"", b"on another subscription"))
            assert (await answer_b).data == b"for b"
            assert not answer_a.done()
        made.deliver(1, Message(reply_a, None, b"", b"late"))

    asyncio.run(main())


def test_messages_go_to_their_subscription_until_it_is_removed() -> None:
    async def main() -> None:
        made = conversation()
        one, two = subscribed(made, 2, "one"), subscribed(made, 3, "two")
        made.deliver(2, Message("one", None, b"", b"1"))
        made.remove(2)
        made.deliver(2, Message("one", None, b"", b"2"))
        first = one.next_nowait()
        assert first is not None
        assert first.data == b"1"
        assert one.next_nowait() is None
        assert two.next_nowait() is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("subject", "quoted"),
    [
        ("Orders.New", '"orders.new"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("ΑΣ", '"ας"'),
        ("GRÖSSE", '"grösse"'),
        ("A\u00a0b\u2028\u3000", r'"a\u00a0b\u2028\u3000"'),
        ("a\x0b\x1cB\x7f\x07", r'"a\v\x1cb\x7f\a"'),
        ("a\U000e0001B\U0010ffff", r'"a\u000e0001b\u0010ffff"'),
        ("a\u00adΣ\u00adB\\u00a0", r'"a\u00adσ\u00adb\\u00a0"'),
    ],
)
def test_a_denied_subject_is_known_again_in_quotes_and_lower_case(subject: str, quoted: str) -> None:
    async def main() -> None:
        made = conversation()
        with made.expecting(subject) as (_, denied), made.expecting("other") as (_, other):
            made.refuse(PUBLISH, quoted)
            with pytest.raises(NatsPermissionDenied) as caught:
                await denied
            assert caught.value.message == f"nats://h:4222 does not allow publishing to {subject}"
            assert not other.done()
        made.take_denial()

    asyncio.run(main())


def test_a_denied_reply_subject_fails_the_request_that_named_it() -> None:
    async def main() -> None:
        made = conversation()
        with made.expecting("a") as (reply, answer):
            made.refuse(REPLY, f'"{reply.lower()}"')
            with pytest.raises(NatsPermissionDenied, match="does not allow replies to"):
                await answer
        subscription = subscribed(made, 2, "_INBOX.Transfer")
        made.refuse(REPLY, '"_inbox.transfer"')
        with pytest.raises(NatsPermissionDenied):
            await subscription.next(1)

    asyncio.run(main())


def test_a_denied_publish_fails_the_subscription_it_was_sent_through() -> None:
    async def main() -> None:
        made = conversation()
        one, two = subscribed(made, 2, "one"), subscribed(made, 3, "two")
        await one.publish("Ack.1")
        made.refuse(PUBLISH, '"ack.1"')
        with pytest.raises(NatsPermissionDenied):
            await one.next(1)
        assert two.next_nowait() is None
        made.take_denial()

    asyncio.run(main())


def test_a_denial_of_what_nobody_waits_for_is_kept_once() -> None:
    async def main() -> None:
        made = conversation()
        made.refuse(PUBLISH, '"fire.and.forget"')
        with pytest.raises(NatsPermissionDenied, match=r"publishing to fire\.and\.forget"):
            made.take_denial()
        made.take_denial()

    asyncio.run(main())


def test_a_denied_inbox_is_the_end_of_everything() -> None:
    async def main() -> None:
        made = conversation()
        with made.expecting("a") as (_, answer):
            made.refuse(SUBSCRIBE, '"_inbox.me.*"')
            with pytest.raises(NatsPermissionDenied, match=r"subscribing to _INBOX\.Me\.\*"):
                await answer
        assert made.ended
        assert made.gone.done()

    asyncio.run(main())


def test_only_the_first_end_counts_and_nothing_waits_after_it() -> None:
    async def main() -> None:
        made = conversation()
        subscription = subscribed(made, 2, "x")
        made.check()
        with made.expecting("a") as (_, answer):
            made.end(lambda: TransferError("lost"))
            made.end(lambda: NatsError("closed"))
            with pytest.raises(TransferError, match="lost"):
                await answer
        with pytest.raises(TransferError, match="lost"):
            await subscription.next(1)
        for _ in range(2):
            with pytest.raises(TransferError, match="lost"):
                made.check()
        await made.gone

    asyncio.run(main())
