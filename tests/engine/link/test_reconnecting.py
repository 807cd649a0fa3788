"""Which servers are tried, how often, and who learns of it. No network: connections are made as the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager

import pytest

from jsbackup.config.connection import Connection, Server
from jsbackup.engine.link import link
from jsbackup.engine.link.connection import Candidate
from jsbackup.engine.link.link import Link
from jsbackup.engine.link.subscription import PendingReplies, Subscription
from jsbackup.errors import NatsError, NatsTimeout, TransferError
from jsbackup.model import JsonObject
from jsbackup.protocol.dialogue import Message

A, B, C = Server("a"), Server("b"), Server("c", login=None)


class PlainWire:
    """A connection that answers every request with the name of its server."""

    def __init__(self, candidate: Candidate, generation: int, others: list[Candidate]) -> None:
        self.server = candidate.server
        self.generation = generation
        self.conversation = PendingReplies(str(candidate.server))
        self.info: JsonObject = {}
        self.account: str | None = None
        self.quickest_seconds: float | None = None
        self._others = others

    async def publish(
        self, subject: str, payload: bytes, reply: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.conversation.check()

    async def request(
        self, subject: str, payload: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        self.conversation.check()
        return Message(subject, None, b"", self.server.host.encode())

    def subscribe(self, subject: str, limit_bytes: int) -> AbstractAsyncContextManager[Subscription]:
        raise NotImplementedError

    async def flush(self, timeout: float) -> float:
        self.conversation.check()
        return 0.0

    def new_inbox(self) -> str:
        return "_INBOX.x"

    def discovered(self) -> list[Candidate]:
        return self._others

    async def close(self) -> None:
        self.conversation.end(lambda: NatsError("closed"))

    def lose(self) -> None:
        self.conversation.end(lambda: TransferError("lost"))


class PlainLink(Link):
    """Asks `up` whether a server can be reached; keeps what was tried."""

    def __init__(self, *servers: Server, up: Callable[[str], bool], others: tuple[Candidate, ...] = ()) -> None:
        super().__init__(Connection(servers=servers), "test")
        self.tried: list[str] = []
        self._up = up
        self._others = list(others)

    async def dial(self, candidate: Candidate, generation: int) -> PlainWire:  # type: ignore[override]
        self.tried.append(candidate.server.host)
        await asyncio.sleep(0)
        if not self._up(candidate.server.host):
            raise NatsTimeout(f"{candidate.server.host} is down", hint=f"Start {candidate.server.host}.")
        self.current = PlainWire(candidate, generation, self._others)
        return self.current


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "RECONNECT_PAUSES_SECONDS", (0.0, 0.0, 0.0))


def test_servers_are_tried_in_their_order_once_and_the_reasons_are_told_together() -> None:
    async def main() -> None:
        made = PlainLink(A, B, up=lambda host: False)
        with pytest.raises(NatsError, match="a is down; b is down") as caught:
            await made.open()
        assert (made.tried, caught.value.hint) == (["a", "b"], "Start a.")
        single = PlainLink(A, up=lambda host: False)
        with pytest.raises(NatsTimeout, match="a is down"):
            await single.open()

    asyncio.run(main())


def test_a_lost_connection_is_made_again_by_the_next_request_alone() -> None:
    async def main() -> None:
        made = PlainLink(A, B, up=lambda host: host == "b")
        await made.open()
        assert (made.server, made.generation) == (B, 1)
        made.current.lose()
        with pytest.raises(TransferError, match="lost"):
            await made.publish("x")
        with pytest.raises(TransferError, match="lost"):
            await made.flush()
        assert (made.tried, made.connected) == (["a", "b"], False)
        assert (await made.request("x")).data == b"b"
        assert (made.tried, made.generation, made.connected) == (["a", "b"] * 2, 2, True)

    asyncio.run(main())


def test_servers_that_the_last_one_told_of_come_after_the_given_ones() -> None:
    async def main() -> None:
        answers = iter([True, False, False, True])
        told = (Candidate(B, "a"), Candidate(A, "a"), Candidate(C, "a"))
        made = PlainLink(A, B, up=lambda host: next(answers), others=told)
        await made.open()
        made.current.lose()
        assert (await made.request("x")).data == b"c"
        assert made.tried == ["a", "a", "b", "c"]

    asyncio.run(main())


def test_all_who_wait_for_a_new_connection_share_it_or_its_failure() -> None:
    async def main() -> None:
        state = {"up": True}
        made = PlainLink(A, up=lambda host: state["up"])
        await made.open()
        made.current.lose()
        await asyncio.gather(*(made.request("x") for _ in range(5)))
        assert (made.tried, made.generation) == (["a"] * 2, 2)

        state["up"] = False
        made.tried.clear()
        made.current.lose()
        errors = await asyncio.gather(*(made.request("x") for _ in range(5)), return_exceptions=True)
        for error in errors:
            assert isinstance(error, TransferError)
            assert error.message == "the connection was lost and cannot be made again: a is down"
            assert (error.retry, error.hint) == (True, "Start a.")
        assert made.tried == ["a"] * len(link.RECONNECT_PAUSES_SECONDS)

        state["up"] = True
        assert (await made.request("x")).data == b"a"
        assert made.generation == 3

    asyncio.run(main())


def test_a_link_closed_while_it_reconnects_stays_closed() -> None:
    async def main() -> None:
        for comes_up in (True, False):
            answers: Iterator[bool] = iter([True, *[comes_up] * 9])
            made = PlainLink(A, up=lambda host, answers=answers: next(answers))  # type: ignore[misc]
            await made.open()
            made.current.lose()
            waiting = asyncio.create_task(made.request("x"))
            while len(made.tried) < 2:
                await asyncio.sleep(0)
            await made.close()
            with pytest.raises(NatsError):
                await waiting
            assert not made.connected
            with pytest.raises(NatsError, match=r"closed|lost"):
                await made.request("x")
            assert made.tried == ["a", "a"]

    asyncio.run(main())


def test_the_account_is_asked_for_where_the_greeting_did_not_name_it() -> None:
    async def main() -> None:
        made = PlainLink(A, up=lambda host: True)
        await made.open()
        assert await made.account() is None  # the answer is no JSON
        made.current.account = "ACC"
        assert await made.account() == "ACC"

    asyncio.run(main())
