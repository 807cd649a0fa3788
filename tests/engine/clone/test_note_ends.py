"""Where copies end before their origins are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jsbackup.engine.clone.clone import note_ends
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.planning.copies.copy_facts import CopyFacts
from jsbackup.protocol.info import stream_info
from tests.engine.restores import connection_to
from tests.engine.scripted_streams import ScriptedStream
from tests.harness.batches import Message, some_messages
from tests.harness.peer import ScriptedPeer

FIVE = some_messages(5, 10)
END = FIVE[-1].sequence  # sequences have gaps

Made = Callable[[ScriptedPeer], Sequence[ScriptedStream]]


def noted(made: Made, since: Callable[[Sequence[ScriptedStream]], None] = lambda streams: None) -> CopyFacts:
    """What is noted of the streams, which have changed `since` they were listed."""

    async def main() -> CopyFacts:
        async with ScriptedPeer() as peer, connect_jetstream(connection_to(peer.url)) as js:
            streams = made(peer)
            listed = [stream_info(stream.info) for stream in streams]
            since(streams)
            _, facts = await note_ends(js, listed)
            return facts

    return asyncio.run(main())


def origin(peer: ScriptedPeer) -> ScriptedStream:
    return ScriptedStream(peer, some_messages(20, 10), name="O")


def mirror(peer: ScriptedPeer, of: str = "O", messages: Sequence[Message] = ()) -> ScriptedStream:
    return ScriptedStream(peer, messages, name="M", subjects=[], mirror={"name": of})


def test_an_empty_copy_ends_before_its_first_message() -> None:
    assert noted(lambda peer: [origin(peer), mirror(peer)]).ends == {"M": 0}


def test_a_copy_that_was_never_used_ends_before_the_sequence_that_it_will_begin_at() -> None:
    class Later(ScriptedStream):
        @property
        def state(self) -> dict[str, object]:
            return {**super().state, "first_seq": 100}

    def made(peer: ScriptedPeer) -> Sequence[ScriptedStream]:
        return [origin(peer), Later(peer, name="M", subjects=[], sources=[{"name": "O"}], first_seq=100)]

    assert noted(made).ends == {"M": 99}


def test_a_copy_ends_where_it_does_when_it_is_looked_at_again() -> None:
    def write(streams: Sequence[ScriptedStream]) -> None:
        streams[1].write(FIVE)

    assert noted(lambda peer: [origin(peer), mirror(peer)], write).ends == {"M": END}


def test_an_origin_that_has_become_a_copy_since_it_was_listed_ends_as_copies_do() -> None:
    def become(streams: Sequence[ScriptedStream]) -> None:
        streams[1].config = {**streams[1].config, "subjects": [], "sources": [{"name": "O"}]}

    def made(peer: ScriptedPeer) -> Sequence[ScriptedStream]:
        between = ScriptedStream(peer, FIVE, name="C")
        return [origin(peer), between, mirror(peer, "C", messages=FIVE)]

    assert noted(made).ends == {"M": END}
    assert noted(made, become).ends == {"M": END, "C": END}


def test_one_that_is_published_to_as_well_has_no_end() -> None:
    def made(peer: ScriptedPeer) -> Sequence[ScriptedStream]:
        return [origin(peer), ScriptedStream(peer, name="M", sources=[{"name": "O"}])]

    facts = noted(made)
    assert (facts.ends, facts.growing) == ({}, {"M"})
