"""What is known of consumers: from the archive, from the API, and how faithful it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.read.consumers import KnownConsumer, merge_consumers
from jsbackup.model import ArchivedConsumer, ConsumerState, Fidelity, PendingAck, SequencePair
from jsbackup.protocol.info import ClusterInfo, ConsumerInfo
from jsbackup.protocol.paging import Listing

CREATED = "2026-11-21T01:45:00Z"
CLUSTER = ClusterInfo("c1", "n1", ())
SINGLE = ClusterInfo("", "single", ())


def info(name: str = "c", cluster: ClusterInfo | None = SINGLE, **values: Any) -> ConsumerInfo:
    blank = ConsumerInfo(
        stream="S",
        name=name,
        config={"name": name, "ack_policy": "explicit"},
        created=CREATED,
        created_ns=0,
        delivered=SequencePair(),
        ack_floor=SequencePair(),
        num_ack_pending=0,
        num_redelivered=0,
        num_pending=0,
        cluster=cluster,
        push_bound=False,
        now_ns=0,
    )
    return replace(blank, **values)


def listing(
    *infos: ConsumerInfo, missing: tuple[str, ...] = (), offline: dict[str, str] | None = None
) -> Listing[ConsumerInfo]:
    return Listing({one.name: one for one in infos}, missing, offline or {})


def archived(name: str = "c", state: ConsumerState | None = None, created: str | None = CREATED) -> ArchivedConsumer:
    return ArchivedConsumer(name, {"name": name, "from": "archive"}, state, created)


def merge_one(
    consumer: ArchivedConsumer | None, inventory: Listing[ConsumerInfo], last_seq: int = 100
) -> KnownConsumer:
    (known,) = merge_consumers([consumer] if consumer else [], inventory, last_seq)
    return known


def state_of(known: KnownConsumer) -> ConsumerState:
    assert known.consumer.state is not None
    return known.consumer.state


PENDING = {4: PendingAck(4, 10), 6: PendingAck(6, 20)}
STATE = ConsumerState(SequencePair(6, 6), SequencePair(3, 3), PENDING, {4: 1})


def test_the_archives_state_is_exact_and_kept_as_it_is() -> None:
    known = merge_one(archived(state=STATE), listing(info(delivered=SequencePair(6, 6), num_ack_pending=2)))
    assert (known.fidelity, known.reason) == (Fidelity.EXACT, "")
    assert known.consumer == archived(state=STATE)


def test_what_a_killed_run_left_behind_is_none_of_the_streams_consumers() -> None:
    reader = {"description": "jsbackup reads this stream", "ack_policy": "none"}
    mine = {**reader, "durable_name": "mine"}  # whoever describes a consumer like that keeps it
    listed = listing(info("r", config=reader), info("mine", config=mine))
    known = merge_consumers([ArchivedConsumer("s", reader, STATE, CREATED)], listed, 100)
    assert [one.consumer.name for one in known] == ["mine"]


def test_what_answers_add_to_a_configuration_is_not_kept() -> None:
    added = {"_nats.ver": "2.12.8", "_nats.level": "3"}
    config = {"name": "c", "metadata": {"_nats.req.level": "0", "team": "x", **added}}
    kept = {"name": "c", "metadata": {"_nats.req.level": "0", "team": "x"}}
    assert merge_one(None, listing(info(config=config))).consumer.config == kept
    assert merge_one(None, listing(info(config={"name": "c", "metadata": added}))).consumer.config == {"name": "c"}


def test_consumers_come_in_order_of_their_names() -> None:
    known = merge_consumers([archived("b", STATE), archived("d", STATE)], listing(info("c"), info("a"), info("b")), 100)
    assert [one.consumer.name for one in known] == ["a", "b", "c", "d"]


def test_an_archive_without_a_time_of_creation_gets_that_of_the_api() -> None:
    assert merge_one(archived(state=STATE, created=None), listing(info())).consumer.created == CREATED


def test_a_consumer_left_out_of_the_snapshot_is_exact_if_nothing_waits_for_an_acknowledgement() -> None:
    known = merge_one(None, listing(info(delivered=SequencePair(7, 9), ack_floor=SequencePair(7, 9))))
    assert known.fidelity is Fidelity.EXACT
    assert state_of(known) == ConsumerState(SequencePair(7, 9), SequencePair(7, 9))
    assert known.consumer.config == info().config


def test_a_consumer_left_out_of_the_snapshot_with_pending_messages_starts_at_its_ack_floor() -> None:
    there = info(delivered=SequencePair(7, 9), ack_floor=SequencePair(3, 4), num_ack_pending=2)
    known = merge_one(None, listing(there))
    assert known.fidelity is Fidelity.FLOOR
    assert "ack floor" in known.reason
    assert state_of(known) == ConsumerState(SequencePair(3, 4), SequencePair(3, 4))


def test_an_archived_consumer_without_state_takes_what_the_api_tells() -> None:
    there = info(delivered=SequencePair(7, 9), ack_floor=SequencePair(7, 9))
    assert state_of(merge_one(archived(), listing(there))).delivered == SequencePair(7, 9)


def test_an_archived_consumer_without_state_that_is_gone_since_is_known_by_its_config_only() -> None:
    known = merge_one(archived(), listing())
    assert (known.fidelity, known.consumer.state) == (Fidelity.CONFIG_ONLY, None)
    assert known.reason


def test_a_consumer_whose_server_is_silent_is_known_by_its_config_only() -> None:
    for silent in (listing(info(), missing=("c",)), listing(info(), offline={"c": "too old"})):
        known = merge_one(None, silent)
        assert (known.fidelity, known.consumer.state) == (Fidelity.CONFIG_ONLY, None)
        assert known.consumer.config == info().config


def test_what_the_api_makes_up_for_a_silent_consumer_does_not_touch_the_archives_state() -> None:
    known = merge_one(archived(state=STATE), listing(info(), missing=("c",)))
    assert (known.fidelity, state_of(known)) == (Fidelity.EXACT, STATE)


def test_a_silent_consumer_that_nobody_knows_is_not_made_up() -> None:
    assert merge_consumers([], listing(missing=("c",)), 100) == []


ROLLED_BACK = ConsumerState(SequencePair(3, 3), SequencePair(3, 3))
AHEAD: dict[str, Any] = {"delivered": SequencePair(6, 6), "ack_floor": SequencePair(3, 3), "num_ack_pending": 2}


def test_a_state_that_a_cluster_rolled_back_is_told_from_an_exact_one() -> None:
    rolled = merge_one(archived(state=ROLLED_BACK, created=None), listing(info(cluster=CLUSTER, **AHEAD)))
    assert rolled.fidelity is Fidelity.FLOOR
    assert state_of(rolled) == ROLLED_BACK


def test_a_consumer_that_went_on_since_a_snapshot_of_a_single_server_was_not_rolled_back() -> None:
    for cluster in (SINGLE, None):
        known = merge_one(archived(state=ROLLED_BACK, created=None), listing(info(cluster=cluster, **AHEAD)))
        assert known.fidelity is Fidelity.EXACT


def test_a_consumer_without_pending_messages_was_not_rolled_back() -> None:
    done = info(cluster=CLUSTER, delivered=SequencePair(3, 3), ack_floor=SequencePair(3, 3))
    assert merge_one(archived(state=ROLLED_BACK, created=None), listing(done)).fidelity is Fidelity.EXACT


def test_where_a_consumer_starts_is_taken_from_the_api_while_it_has_delivered_nothing() -> None:
    starts_late = info(delivered=SequencePair(0, 50), ack_floor=SequencePair(0, 50))
    known = merge_one(archived(state=ConsumerState()), listing(starts_late))
    assert state_of(known) == ConsumerState(SequencePair(0, 50), SequencePair(0, 50))
    # But a delivery since then is not in the archive's messages' terms.
    went_on = info(delivered=SequencePair(2, 52), ack_floor=SequencePair(0, 50), num_ack_pending=2)
    assert state_of(merge_one(archived(state=ConsumerState()), listing(went_on))) == ConsumerState()


pairs = st.builds(SequencePair, st.integers(0, 50), st.integers(0, 50))
states = st.builds(
    ConsumerState,
    pairs,
    pairs,
    st.dictionaries(st.integers(1, 50), st.builds(PendingAck, st.integers(0, 50), st.integers(0, 50)), max_size=5),
    st.dictionaries(st.integers(1, 50), st.integers(1, 9), max_size=5),
)
infos = st.builds(
    lambda cluster, delivered, floor, pending, again: info(
        cluster=cluster, delivered=delivered, ack_floor=floor, num_ack_pending=pending, num_redelivered=again
    ),
    st.sampled_from([CLUSTER, SINGLE, None]),
    pairs,
    pairs,
    st.integers(0, 9),
    st.integers(0, 9),
)


@given(st.none() | states, st.none() | infos, st.integers(0, 50))
def test_no_consumer_is_ahead_of_what_was_captured(
    state: ConsumerState | None, there: ConsumerInfo | None, last_seq: int
) -> None:
    for known in merge_consumers([archived(state=state)], listing(*([there] if there else [])), last_seq):
        if known.consumer.state is None:
            assert known.fidelity is Fidelity.CONFIG_ONLY
            continue
        found = known.consumer.state
        assert max(found.delivered.stream, found.ack_floor.stream) <= last_seq
        assert all(sequence <= last_seq for sequence in (*found.pending, *found.redelivered))


@given(st.none() | states, st.none() | infos, st.integers(0, 50))
def test_whatever_is_not_exact_says_why(state: ConsumerState | None, there: ConsumerInfo | None, last_seq: int) -> None:
    for known in merge_consumers([archived(state=state)], listing(*([there] if there else [])), last_seq):
        assert (known.fidelity is Fidelity.EXACT) == (known.reason == "")
