"""What a restore says of consumers: what the server holds when it has settled, not what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.restore import after_restore, remove_unfinished
from jsbackup.engine.restore.after_restore import settle
from jsbackup.engine.restore.run import RestoredConsumer
from jsbackup.model import ArchivedConsumer, ConsumerState, Fidelity, PendingAck, SequencePair, StreamState
from jsbackup.planning.model import PlannedConsumer
from jsbackup.protocol.info import ClusterInfo, ConsumerInfo, Replica, StreamInfo
from jsbackup.protocol.paging import Listing
from tests.engine.read.test_consumers import CLUSTER, info
from tests.planning.test_plan import existing

SECOND = 1_000_000_000
WANTED = ConsumerState(SequencePair(60, 60), SequencePair(40, 40), pending={50: PendingAck(50, 0)})


@dataclass
class Server:
    """Answers for a stream of 100 messages in a cluster."""

    stream: StreamInfo = field(default_factory=lambda: existing("S"))
    found: tuple[ConsumerInfo, ...] = ()
    cluster_name: str | None = "c1"
    done: list[str] = field(default_factory=list)
    asked: int = 0

    @property
    def link(self) -> Server:
        return self

    async def find_stream(self, name: str) -> StreamInfo:
        self.asked += 1
        return self.stream

    async def consumers(self, name: str) -> Listing[ConsumerInfo]:
        return Listing({one.name: one for one in self.found}, (), {})

    async def create_consumer(self, name: str, config: Any) -> None:
        self.done.append(f"create {config['name']}")

    async def delete_stream(self, name: str) -> None:
        self.done.append(f"delete {name}")


def test_only_a_replica_that_is_up_is_waited_for_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_restore, "_SECONDS", 1.0)
    monkeypatch.setattr(after_restore, "_PAUSE_SECONDS", 0.01)
    waited = {}
    for which, late in {"down": Replica("n3", False, True, 9), "up": Replica("n3", True, False, 7)}.items():
        there = replace(existing("S"), cluster=ClusterInfo("c1", "n1", (Replica("n2", True, False, 0), late)))
        for everywhere in (False, True):
            server = Server(there)
            js = cast(JetStream, server)
            settled = asyncio.run(settle(js, "S", (), last_message=100, clustered=True, everywhere=everywhere))
            assert settled.behind and not settled.incomplete
            waited[which, everywhere] = server.asked > 1
    assert waited == {("down", False): False, ("down", True): False, ("up", False): False, ("up", True): True}


def told(planned: Sequence[PlannedConsumer], *found: ConsumerInfo, clustered: bool = True) -> list[RestoredConsumer]:
    js = cast(JetStream, Server(found=found))
    settled = asyncio.run(settle(js, "S", planned, last_message=100, clustered=clustered))
    return list(settled.consumers)


def planned(fidelity: Fidelity = Fidelity.EXACT, state: ConsumerState = WANTED) -> PlannedConsumer:
    return PlannedConsumer(ArchivedConsumer("c", {"name": "c", "deliver_policy": "all"}, state, None), fidelity)


def now(delivered: int, floor: int, pending: int) -> ConsumerInfo:
    return info(
        delivered=SequencePair(delivered, delivered),
        ack_floor=SequencePair(floor, floor),
        num_ack_pending=pending,
        num_pending=100 - delivered,
        cluster=CLUSTER,
    )


def test_a_consumer_whose_state_is_there_is_exact() -> None:
    assert told([planned()], now(60, 40, 1)) == [RestoredConsumer("c", Fidelity.EXACT, "", 1)]


def test_a_consumer_that_stands_at_its_ack_floor_is_known_by_it() -> None:
    (one,) = told([planned()], now(40, 40, 0))
    assert (one.fidelity, one.may_come_again) == (Fidelity.FLOOR, 20)


@pytest.mark.parametrize("fidelity", [Fidelity.EXACT, Fidelity.FLOOR])
def test_a_consumer_without_its_state_starts_anew_whatever_was_planned(fidelity: Fidelity) -> None:
    (one,) = told([planned(fidelity)], now(0, 0, 0))
    assert (one.fidelity, one.may_come_again) == (Fidelity.CONFIG_ONLY, 100)
    assert one.note == "the server did not restore its state: it is at 0"


def test_a_consumer_that_was_made_anew_is_not_called_exact() -> None:
    (one,) = told([planned()], clustered=False)
    assert (one.fidelity, one.note) == (
        Fidelity.CONFIG_ONLY,
        "it was not there after the restore: it was created again, without its state",
    )


@pytest.mark.parametrize(("age_seconds", "consumers", "waits"), [(2, 1, 4.0), (2, 0, None), (60, 1, 0.0)])
def test_a_stream_that_was_restored_a_moment_ago_is_not_replaced_at_once(
    age_seconds: int, consumers: int, waits: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster may ask for its consumers still, and they would come to the stream that replaces it."""
    state = StreamState(consumers=consumers)
    there = replace(existing("S"), state=state, created_ns=SECOND, now_ns=(1 + age_seconds) * SECOND)
    server = Server(there)

    async def sleep(seconds: float) -> None:
        server.done.append(f"sleep {seconds:.1f}")

    monkeypatch.setattr(remove_unfinished.asyncio, "sleep", sleep)
    asyncio.run(remove_unfinished.make_way(cast(JetStream, server), there))
    assert server.done == [*([] if waits is None else [f"sleep {waits:.1f}"]), "delete S"]
