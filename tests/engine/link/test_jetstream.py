"""Long lists are asked for a few pages ahead, and are whole whatever the pages hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import ApiError, FormatError, NatsTimeout
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import ANSWER, API, ScriptedStream
from tests.harness.peer import JSON, Heard, ScriptedPeer

LIMIT = 10


class Names:
    """Answers requests for the names of streams, a page of `limit` in each; notes which offsets were asked for."""

    def __init__(self, peer: ScriptedPeer, names: Sequence[str], *, offline: Sequence[str] = ()) -> None:
        self.names = names
        self.offline = offline  # beside the `limit` names of their page
        self.asked: list[int] = []
        self.before: Callable[[int], None] = lambda number: None
        peer.always(f"{API}.STREAM.NAMES", self._answer)

    def _answer(self, heard: Heard) -> JSON:
        offset = json.loads(heard.data or b"{}").get("offset", 0)
        self.before(len(self.asked))
        self.asked.append(offset)
        page: list[str] = []
        gone: list[str] = []
        for name in self.names[offset:]:
            if len(page) == LIMIT:
                break
            (gone if name in self.offline else page).append(name)
        answer: dict[str, Any] = {"total": len(self.names), "offset": offset, "limit": LIMIT, "streams": page}
        return {"type": f"{ANSWER}stream_names_response", **answer, **({"missing": gone} if gone else {})}


def play(script: Callable[[ScriptedPeer, JetStream], Awaitable[None]]) -> None:
    async def main() -> None:
        async with ScriptedPeer() as peer, connect_jetstream(connection_to(peer.url)) as js:
            await asyncio.wait_for(script(peer, js), 30)

    asyncio.run(main())


@pytest.mark.parametrize("total", [0, 1, LIMIT, LIMIT + 1, 2 * LIMIT, 7 * LIMIT + 3])
def test_each_page_is_asked_for_once(total: int) -> None:
    async def script(peer: ScriptedPeer, js: JetStream) -> None:
        names = Names(peer, [f"S{number:03}" for number in range(total)])
        found = await js.stream_names()
        assert list(found.entries) == list(names.names)
        assert len(set(names.asked)) == len(names.asked) <= 1 + total // (LIMIT // 2)

    play(script)


def test_pages_that_hold_more_than_their_limit_are_followed_by_what_comes_after_them() -> None:
    async def script(peer: ScriptedPeer, js: JetStream) -> None:
        every = [f"S{number:03}" for number in range(5 * LIMIT)]
        offline = every[3:6] + every[25:27]
        Names(peer, every, offline=offline)
        found = await js.stream_names()
        assert found.missing == tuple(offline)
        assert [*found.entries] == [name for name in every if name not in offline]

    play(script)


def test_a_list_that_changes_while_pages_are_asked_for_ahead_has_all_that_stayed() -> None:
    async def script(peer: ScriptedPeer, js: JetStream) -> None:
        names = Names(peer, [f"S{number:03}" for number in range(5 * LIMIT)])

        def change(number: int) -> None:
            if number in (2, 4):  # the total stays
                names.names = [
                    *names.names[LIMIT // 2 + number :],
                    *(f"T{number}{count}" for count in range(LIMIT // 2 + number)),
                ]

        names.before = change
        found = await js.stream_names()
        assert {f"S{number:03}" for number in range(16, 5 * LIMIT)} <= {*found.entries}

    play(script)


def test_a_page_that_is_refused_ends_the_list_and_leaves_no_request_behind() -> None:
    async def script(peer: ScriptedPeer, js: JetStream) -> None:
        names = Names(peer, [f"S{number:03}" for number in range(5 * LIMIT)])

        def refuse(heard: Heard) -> JSON:
            if json.loads(heard.data or b"{}").get("offset", 0) == 2 * LIMIT:
                error = {"code": 500, "err_code": 10100, "description": "no"}
                return {"type": f"{ANSWER}stream_names_response", "error": error}
            return names._answer(heard)

        peer.always(f"{API}.STREAM.NAMES", refuse)
        tasks = asyncio.all_tasks()
        with pytest.raises(ApiError, match="no"):
            await js.stream_names()
        assert asyncio.all_tasks() == tasks

    play(script)


@pytest.mark.parametrize(("cluster", "answered"), [("c1", True), (None, False)])
def test_a_cluster_that_elects_its_leader_is_asked_again(cluster: str | None, answered: bool) -> None:
    async def main() -> None:
        async with ScriptedPeer(cluster=cluster) as peer:
            asked: list[Heard] = []

            def answer(heard: Heard) -> JSON | None:
                asked.append(heard)
                return {"type": f"{ANSWER}stream_names_response", "total": 0} if len(asked) > 2 else None

            peer.always(f"{API}.STREAM.NAMES", answer)
            peer.always(f"{API}.INFO", answer)
            peer.always(f"{API}.STREAM.CREATE.S", answer)
            async with connect_jetstream(replace(connection_to(peer.url), timeout_seconds=0.2)) as js:
                with pytest.raises(NatsTimeout):
                    await js.create_stream({"name": "S"})  # may have been done
                assert len(asked) == 1
                with pytest.raises(FormatError if answered else NatsTimeout):
                    await js.account()
                assert len(asked) == (3 if answered else 2)

    asyncio.run(main())


def test_streams_that_do_not_answer_are_asked_again_if_they_are_wanted() -> None:
    async def script(peer: ScriptedPeer, js: JetStream) -> None:
        asked: list[Heard] = []

        def answer(heard: Heard) -> JSON:
            asked.append(heard)
            missing = ["A", "B"] if len(asked) == 1 else ["B"]
            found = [] if len(asked) == 1 else [ScriptedStream(peer, name="A").describe(heard)]
            page = {"total": 2, "offset": 0, "limit": LIMIT, "streams": found, "missing": missing}
            return {"type": f"{ANSWER}stream_list_response", **page}

        peer.always(f"{API}.STREAM.LIST", answer)
        listing = await js.answering_streams(lambda name: name == "A")
        assert (listing.entries.keys(), listing.missing, len(asked)) == ({"A"}, ("B",), 2)

    play(script)
