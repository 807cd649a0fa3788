"""Streams are described every few seconds: one that does not answer is named, and delays nobody."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.engine.backup.run import BackupOptions
from jsbackup.engine.follow import poll
from jsbackup.engine.follow.poll import Lookout
from jsbackup.engine.link import jetstream
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.errors import NatsTimeout, TransferError, UsageError
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import ANSWER, API, ScriptedStream, consumer_info, list_streams
from tests.engine.snapshots import MESSAGES
from tests.harness.peer import JSON, Heard, ScriptedPeer

ANSWER_SECONDS = 0.3


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "_ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr(jetstream, "_LIST_SECONDS", 0.0)  # the connection's timeout is that of lists too


@dataclass
class Polls:
    """A server with the streams A and B, and who looks at them."""

    peer: ScriptedPeer
    a: ScriptedStream
    b: ScriptedStream
    lookout: Lookout

    async def look(self) -> tuple[dict[str, int], dict[str, str]]:
        """The last sequence of each stream that is described, and why others are not."""
        looks, failures = await self.lookout.look()
        ends = {name: look.info.state.last_seq for name, look in looks.items()}
        return ends, {failure.name: failure.error.message for failure in failures}

    def hold_back(self, stream: ScriptedStream) -> list[Heard]:
        """Leave requests for its description without an answer, until `go_on`; returns them."""
        held: list[Heard] = []
        self.peer.always(f"{API}.STREAM.INFO.{stream.name}", held.append)  # type: ignore[arg-type,func-returns-value]
        return held

    def go_on(self, stream: ScriptedStream) -> None:
        self.peer.always(f"{API}.STREAM.INFO.{stream.name}", stream.describe)


Script = Callable[[Polls], Awaitable[None]]
BOTH = {"A": MESSAGES[4].sequence, "B": MESSAGES[9].sequence}
NO_ANSWER = f"no answer within {ANSWER_SECONDS:g} s"


def play(script: Script, *, timeout_seconds: float = 60.0, **options: Any) -> None:
    async def main() -> None:
        async with ScriptedPeer() as peer:
            connection = replace(connection_to(peer.url), timeout_seconds=timeout_seconds)
            async with connect_jetstream(connection) as js:
                a, b = ScriptedStream(peer, MESSAGES[:5], "A"), ScriptedStream(peer, MESSAGES[:10], "B")
                list_streams(peer, a, b)
                lookout = Lookout(js, BackupOptions(**{"consumers": False, **options}), lambda: 0)
                try:
                    await asyncio.wait_for(script(Polls(peer, a, b, lookout)), 60)
                finally:
                    await lookout.close()

    asyncio.run(main())


def test_a_poll_that_is_not_answered_is_named_and_the_other_streams_are_described() -> None:
    async def script(polls: Polls) -> None:
        assert await polls.look() == (BOTH, {})
        polls.a.write(MESSAGES[5:7])
        held = polls.hold_back(polls.b)
        for _ in range(3):
            assert await polls.look() == ({"A": MESSAGES[6].sequence}, {"B": NO_ANSWER})
        assert len(held) == 1  # it is not asked again while its answer may come

    play(script)


def test_the_first_poll_waits_for_every_stream() -> None:
    async def script(polls: Polls) -> None:
        held = polls.hold_back(polls.b)
        looking = asyncio.create_task(polls.look())
        await asyncio.sleep(2 * ANSWER_SECONDS)
        assert not looking.done()
        await polls.peer.answer(held[0], polls.b.describe(held[0]) or {})
        assert await looking == (BOTH, {})

    play(script)


def test_an_answer_to_an_earlier_poll_is_not_taken_for_one_to_this() -> None:
    """It may lack what was published between them, which the backup of this poll claims to have."""

    async def script(polls: Polls) -> None:
        await polls.look()
        held = polls.hold_back(polls.b)
        assert (await polls.look())[1] == {"B": NO_ANSWER}
        late = polls.b.describe(held[0]) or {}
        polls.b.write(MESSAGES[10:12])
        polls.go_on(polls.b)
        looking = asyncio.create_task(polls.look())
        await asyncio.sleep(0)  # this poll has begun
        await polls.peer.answer(held[0], late)
        assert (await looking)[1] == {"B": NO_ANSWER}
        while (found := await polls.look())[1]:
            await asyncio.sleep(0)
        assert found[0] == {**BOTH, "B": MESSAGES[11].sequence}

    play(script)


def test_a_request_that_timed_out_is_made_again() -> None:
    async def script(polls: Polls) -> None:
        await polls.look()
        polls.b.silent = True
        assert (await polls.look())[1] == {"B": NO_ANSWER}
        polls.b.silent = False
        while (found := await polls.look())[1]:
            await asyncio.sleep(0.01)
        assert found[0] == BOTH

    play(script, timeout_seconds=0.6)


def test_a_server_of_which_no_stream_answers_is_an_error() -> None:
    async def script(polls: Polls) -> None:
        await polls.look()
        polls.a.silent = polls.b.silent = True
        with pytest.raises(NatsTimeout, match="no answer"):
            await polls.look()
        polls.a.silent = polls.b.silent = False
        assert await polls.look() == (BOTH, {})

    play(script, timeout_seconds=0.6)


def test_a_stream_that_was_deleted_is_neither_described_nor_a_failure() -> None:
    async def script(polls: Polls) -> None:
        await polls.look()
        polls.b.gone = True
        assert await polls.look() == ({"A": BOTH["A"]}, {})

    play(script)


def test_an_invalid_description_is_a_failure_that_passes() -> None:
    async def script(polls: Polls) -> None:
        await polls.look()
        polls.peer.always(
            f"{API}.STREAM.INFO.B", lambda heard: {"type": f"{ANSWER}stream_info_response", "config": {"name": "B"}}
        )
        looks, (failure,) = await polls.lookout.look()
        assert (list(looks), failure.name, type(failure.error)) == (["A"], "B", TransferError)
        polls.go_on(polls.b)
        assert await polls.look() == (BOTH, {})

    play(script)


def test_streams_are_looked_for_in_the_background_and_a_failed_list_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll, "_LIST_SECONDS", 0.0)

    async def script(polls: Polls) -> None:
        await polls.look()
        polls.peer.always(f"{API}.STREAM.LIST", lambda heard: {"type": f"{ANSWER}stream_list_response"})
        for _ in range(5):
            assert await polls.look() == (BOTH, {})
        c = ScriptedStream(polls.peer, MESSAGES[:1], "C")
        list_streams(polls.peer, polls.a, polls.b, c)
        while "C" not in (found := await polls.look())[0]:
            await asyncio.sleep(0.01)
        assert found == ({**BOTH, "C": MESSAGES[0].sequence}, {})

    play(script)


def test_a_named_stream_has_to_be_there_in_the_beginning_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "_LIST_SECONDS", 0.0)

    async def missing(polls: Polls) -> None:
        polls.b.gone = True
        with pytest.raises(UsageError, match="no stream matches B"):
            await polls.look()

    async def deleted(polls: Polls) -> None:
        await polls.look()
        polls.b.gone = True
        for _ in range(5):
            assert await polls.look() == ({"A": BOTH["A"]}, {})
        polls.b.gone = False
        while (found := await polls.look()) != (BOTH, {}):
            assert found == ({"A": BOTH["A"]}, {})
            await asyncio.sleep(0.01)

    named = {"streams": (parse_glob("A"), parse_glob("B"))}
    play(missing, **named)
    play(deleted, **named)


def test_consumers_that_do_not_answer_do_not_delay_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "_ANSWER_SECONDS", 1.0)  # half of it is for the consumers

    async def script(polls: Polls) -> None:
        looks, _ = await polls.lookout.look()
        assert looks["B"].consumers is not None and not looks["B"].silent
        silent: Callable[[Heard], JSON | None] = lambda heard: None  # noqa: E731
        polls.peer.always(f"{API}.CONSUMER.LIST.B", silent)
        looks, failures = await polls.lookout.look()
        assert (looks["B"].consumers, looks["B"].silent, failures) == (None, True, [])

    play(script, consumers=True)


def play_many(
    script: Callable[[ScriptedPeer, dict[str, ScriptedStream], Lookout], Awaitable[None]],
    clock_ns: Callable[[], int] = lambda: 0,
) -> None:
    """An account of more streams than are asked for one by one, of which the script says who has consumers."""

    async def main() -> None:
        async with ScriptedPeer() as peer, connect_jetstream(connection_to(peer.url)) as js:
            streams = {name: ScriptedStream(peer, MESSAGES[11:15], name) for name in (f"S{at:03}" for at in range(70))}
            list_streams(peer, *streams.values())
            lookout = Lookout(js, BackupOptions(), clock_ns)
            try:
                await asyncio.wait_for(script(peer, streams, lookout), 60)
            finally:
                await lookout.close()

    asyncio.run(main())


def with_consumers(stream: ScriptedStream, count: int) -> None:
    names = [f"c{number}" for number in range(count)]
    stream.consumers = [consumer_info(stream.name, {"name": name, "ack_policy": "none"}) for name in names]


def test_of_many_streams_those_without_consumers_are_not_asked_for() -> None:
    async def script(peer: ScriptedPeer, streams: dict[str, ScriptedStream], lookout: Lookout) -> None:
        asked: set[str] = set()

        def ask(stream: ScriptedStream) -> Callable[[Heard], JSON]:
            return lambda heard: asked.add(stream.name) or stream.list_consumers(heard)  # type: ignore[func-returns-value]

        for stream in streams.values():
            peer.always(f"{API}.CONSUMER.LIST.{stream.name}", ask(stream))
        with_consumers(streams["S001"], 1)
        with_consumers(streams["S002"], 2)
        looks, failures = await lookout.look()
        assert (looks.keys(), failures) == (streams.keys(), [])
        assert asked == {"S001", "S002"}
        assert not any(stream.descriptions for stream in streams.values())  # the list has said it

    play_many(script)


def test_what_a_list_says_is_of_the_moment_when_it_was_asked_for() -> None:
    """Not of a later one, at which consumers were: what is published in between, it does not have."""
    moments = itertools.count()

    async def script(peer: ScriptedPeer, streams: dict[str, ScriptedStream], lookout: Lookout) -> None:
        for stream in [*streams.values()][:3]:
            with_consumers(stream, 1)
        looks, _ = await lookout.look()
        assert looks.keys() == streams.keys()
        assert len({look.at_ns for look in looks.values()}) == 1

    play_many(script, lambda: next(moments))


def test_many_streams_that_answer_slowly_are_all_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: ScriptedPeer, streams: dict[str, ScriptedStream], lookout: Lookout) -> None:
        for stream in streams.values():
            with_consumers(stream, 1)
        await lookout.look()
        held: asyncio.Queue[Heard] = asyncio.Queue()
        for name in streams:
            peer.always(f"{API}.CONSUMER.LIST.{name}", held.put_nowait)  # type: ignore[arg-type,func-returns-value]
        looking = asyncio.create_task(lookout.look())
        for _ in streams:  # twice as long as all may leave requests without an answer
            heard = await held.get()
            await asyncio.sleep(2 * ANSWER_SECONDS / len(streams))
            await peer.answer(heard, streams[heard.subject.rpartition(".")[2]].list_consumers(heard))
        looks, failures = await looking
        assert (looks.keys(), failures) == (streams.keys(), [])

    monkeypatch.setattr(poll, "_LOOKS_AT_ONCE", 1)
    play_many(script)


def test_streams_that_hang_do_not_hold_up_those_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: ScriptedPeer, streams: dict[str, ScriptedStream], lookout: Lookout) -> None:
        for stream in streams.values():
            stream.delete(MESSAGES[12].sequence)  # so they are described one by one
            with_consumers(stream, 1)
        await lookout.look()
        hang = [*streams][:3]
        for name in hang:
            streams[name].silent = True
        looks, failures = await lookout.look()
        assert looks.keys() == streams.keys() - hang
        assert [(one.name, one.error.message) for one in failures] == [(name, NO_ANSWER) for name in hang]

    monkeypatch.setattr(poll, "_LOOKS_AT_ONCE", 1)
    monkeypatch.setattr(poll, "_TURN_SECONDS", 0.02)
    play_many(script)
