"""What a limit is said to have discarded is what a stream that had lost nothing would not hold either, and no consumer
is said to have taken more than was delivered to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.read.consume import Row
from jsbackup.engine.restore.compare import Comparison, Discards, Taken
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject, PendingAck, SequencePair
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, stream_info
from jsbackup.transforms.removal import discards_oldest
from tests.engine.scripted_streams import CREATED
from tests.harness.batches import Message, batch_of, cut_anywhere


@dataclass
class Stream:
    """A stream as a server keeps it: after each message it enforces its limits."""

    config: JsonObject
    held: dict[int, Message] = field(default_factory=dict)
    last: int = 0

    def publish(self, message: Message) -> None:
        self.held[message.sequence] = message
        self.last = message.sequence
        self._enforce(message.subject)

    def lose(self, *sequences: int) -> None:
        for sequence in sequences:
            self.held.pop(sequence, None)

    def _enforce(self, subject: str | bytes) -> None:
        if most := self.config.get("max_msgs_per_subject"):
            same = [sequence for sequence, one in self.held.items() if one.subject == subject]
            self.lose(*same[: max(0, len(same) - most)])
        most, most_bytes = self.config.get("max_msgs") or 0, self.config.get("max_bytes") or 0
        while self.config.get("discard") != "new" and (0 < most < len(self.held) or 0 < most_bytes < self.size):
            self.lose(min(self.held))

    @property
    def size(self) -> int:
        return sum(self.size_of(message) for message in self.held.values())

    def size_of(self, message: Message) -> int:
        """As nats-server counts."""
        size = len(message.subject) + len(message.headers or b"") + len(message.data)
        if self.config.get("storage") == "memory":
            return size + 16
        return size + 22 + 8 + (4 if message.headers else 0)

    @property
    def info(self) -> StreamInfo:
        state = {
            "messages": len(self.held),
            "bytes": self.size,
            "first_seq": min(self.held, default=self.last + 1),
            "first_ts": CREATED,
            "last_seq": self.last,
            "last_ts": CREATED,
            "consumer_count": 0,
        }
        return stream_info({"config": {"name": "S", **self.config}, "created": CREATED, "state": state, "ts": CREATED})


def messages(first: int, count: int, *, subjects: int = 1, size: int = 10) -> list[Message]:
    return [Message(s, s, f"s{s % subjects}", None, bytes(size)) for s in range(first, first + count)]


def compared(config: JsonObject, restored: list[Message], stream: Stream, seed: int = 0) -> Comparison:
    comparison = Comparison(
        [batch_of(restored)], restored[-1].sequence, discards=Discards(config, restored[-1].sequence)
    )
    for piece in cut_anywhere(batch_of(stream.held.values()), random.Random(seed)):
        comparison.add(piece)
    comparison.finish()
    if comparison.undecided:
        comparison.decide(stream.info, {})
    return comparison


def used(config: JsonObject, restored: list[Message], published: list[Message], *lost: int) -> Stream:
    """The stream after messages were restored, some of them lost, and others published."""
    stream = Stream(config)
    for message in restored:
        stream.publish(message)
    stream.lose(*lost)
    for message in published:
        stream.publish(message)
    return stream


LIMITS = st.one_of(
    st.fixed_dictionaries({"max_msgs": st.integers(10, 25)}),
    st.fixed_dictionaries({"max_bytes": st.integers(600, 1500), "storage": st.sampled_from(["file", "memory"])}),
    st.fixed_dictionaries({"max_msgs": st.integers(10, 25), "max_bytes": st.integers(600, 1500)}),
    st.fixed_dictionaries({"max_msgs_per_subject": st.integers(1, 4)}),
    st.fixed_dictionaries({"max_msgs_per_subject": st.integers(1, 4), "max_msgs": st.integers(10, 25)}),
    st.fixed_dictionaries({"max_msgs": st.just(10), "discard": st.just("new")}),
)


@given(st.data(), LIMITS, st.integers(1, 10), st.integers(0, 30), st.sets(st.integers(1, 10), max_size=4))
def test_what_is_missing_and_what_is_discarded_are_told_apart(
    data: st.DataObject, config: JsonObject, count: int, since: int, lost: set[int]
) -> None:
    def drawn(sequence: int) -> Message:
        subject = f"s{data.draw(st.integers(0, 3))}"
        headers = data.draw(st.sampled_from([None, b"NATS/1.0\r\nA: 1\r\n\r\n"]))
        return Message(sequence, sequence, subject, headers, bytes(data.draw(st.integers(0, 60))))

    first = Stream(config)
    for sequence in range(1, count + 1):
        first.publish(drawn(sequence))
    restored = list(first.held.values())
    published = [] if config.get("discard") == "new" else [drawn(count + 1 + number) for number in range(since)]
    whole = used(config, restored, published)
    stream = used(config, restored, published, *lost)
    comparison = compared(config, restored, stream, data.draw(st.integers()))

    had = {message.sequence for message in restored}
    gone = had - stream.held.keys()
    assert comparison.missing_count + comparison.gone.total() == len(gone)
    assert (comparison.missing_count == 0) == (gone == had - whole.held.keys())
    assert set(comparison.missing) <= gone and len(comparison.missing) == comparison.missing_count
    if comparison.gone.total():
        assert comparison.discarded.messages == comparison.gone.total() and comparison.discarded.limits
        assert comparison.discarded.published == len(published)


@pytest.mark.parametrize(
    ("config", "limits"),
    [
        ({"max_msgs": 20}, ("max_msgs 20",)),
        ({"max_bytes": 20 * 42}, ("max_bytes 840",)),
        ({"max_bytes": 20 * 28, "storage": "memory"}, ("max_bytes 560",)),
        ({"max_msgs": 20, "max_bytes": 20 * 42}, ("max_msgs 20", "max_bytes 840")),
        ({"max_msgs": 20, "max_bytes": 10**6}, ("max_msgs 20",)),
        ({"max_msgs_per_subject": 20}, ("max_msgs_per_subject 20",)),
    ],
)
def test_the_limits_that_discard_are_named(config: JsonObject, limits: tuple[str, ...]) -> None:
    restored = messages(1, 15)
    comparison = compared(config, restored, used(config, restored, messages(16, 9)))
    assert (comparison.count, comparison.gone.total()) == (0, 4)
    assert (comparison.discarded.limits, comparison.discarded.published) == (limits, 9)


@pytest.mark.parametrize("config", [{"max_msgs": 20}, {"max_bytes": 20 * 42}, {"max_msgs_per_subject": 20}])
@pytest.mark.parametrize(
    ("published", "lost", "missing"),
    [
        (0, (1, 2, 3), [1, 2, 3]),  # nothing was published
        (5, (1, 2, 3), [1, 2, 3]),  # it is not full
        (7, (1, 2, 3), [1, 2, 3]),  # it would be, with them, but does not discard all three
        (9, (8,), [8]),  # older ones are left: they have to go first
        (7, (2, 15), [2, 15]),
    ],
)
def test_what_is_lost_is_missing(config: JsonObject, published: int, lost: tuple[int, ...], missing: list[int]) -> None:
    restored = messages(1, 15)
    stream = used(config, restored, messages(16, published), *lost)
    assert compared(config, restored, stream).missing == missing


@pytest.mark.parametrize("changed", [{"max_msgs": 25}, {"max_msgs": 10}, {"max_msgs": -1}])
def test_a_limit_that_was_changed_since_explains_nothing(changed: JsonObject) -> None:
    restored = messages(1, 15)
    stream = used({"max_msgs": 20}, restored, messages(16, 9))
    stream.config = changed
    assert compared({"max_msgs": 20}, restored, stream).missing == [1, 2, 3, 4]


def test_a_limit_below_what_was_restored_explains_nothing() -> None:
    restored, config = messages(1, 15), {"max_msgs": 10}
    assert compared(config, restored, used(config, restored, messages(16, 1))).missing == [1, 2, 3, 4, 5, 6]


def test_where_new_messages_of_a_full_subject_are_refused_none_is_discarded() -> None:
    restored = messages(1, 3)
    config = {"max_msgs_per_subject": 3, "discard": "new", "discard_new_per_subject": True}
    stream = used({}, restored, messages(4, 3), 1)
    assert compared(config, restored, stream).missing == [1]
    assert compared({**config, "discard_new_per_subject": False}, restored, stream).count == 0


def test_a_stream_that_has_discarded_more_since_it_was_read_explains_what_was_missing() -> None:
    """The last one that went may be larger than those that were missing."""
    config = {"max_bytes": 2_000}
    restored = [*messages(1, 5), *messages(6, 1, size=1_000)]
    stream = used(config, restored, messages(7, 20))
    comparison = Comparison([batch_of(restored)], 6, discards=Discards(config, 6))
    comparison.add(batch_of(stream.held.values()))
    comparison.finish()
    assert min(stream.held) == 3
    for message in messages(27, 20):
        stream.publish(message)
    assert min(stream.held) == 7 and stream.size + 42 <= 2_000
    comparison.decide(stream.info, {})
    assert (comparison.count, comparison.discarded.limits) == (0, ("max_bytes 2000",))


@pytest.mark.parametrize(
    ("config", "discards"),
    [
        ({}, False),
        ({"max_msgs": -1, "max_bytes": -1, "max_age": 0}, False),
        ({"max_msgs": 5}, True),
        ({"max_bytes": 5, "discard": "old"}, True),
        ({"max_msgs": 5, "max_bytes": 5, "discard": "new"}, False),
        ({"max_age": 5, "discard": "new"}, True),
        ({"max_msgs_per_subject": 5}, False),
    ],
)
def test_streams_that_remove_their_oldest_messages(config: JsonObject, discards: bool) -> None:
    assert discards_oldest(config) is discards


# ------------------------------------------------------------------------------------------------------ taken by queues


def consumer(name: str, subject: str = "", state: ConsumerState | None = None, **config: Any) -> ArchivedConsumer:
    return ArchivedConsumer(name, {"durable_name": name, "filter_subject": subject, **config}, state or ConsumerState())


def listed(one: ArchivedConsumer, delivered: int, pending: int = 0) -> ConsumerInfo:
    """The consumer once the server has delivered so many messages, of which so many are not acknowledged."""
    there = SequencePair(delivered, 100)
    return ConsumerInfo("Q", one.name, one.config, "", 0, there, SequencePair(), pending, 0, 0, None, False, 0)


def decided(
    retention: str, before: list[ArchivedConsumer], after: list[ConsumerInfo], missing: list[tuple[int, str]]
) -> tuple[int, int, list[int], list[int]]:
    """What `decide` says, and the sequences of which nothing has to be decided, because no consumer can have them."""
    there = {info.name: info for info in after}
    taken = Taken({"retention": retention}, before, there)
    rows = [Row(sequence, 0, subject.encode(), None, b"") for sequence, subject in missing]
    none = [row.sequence for row in rows if not taken.may_have(row)]
    return (*taken.decide(there), none)


A, B = consumer("A", "a.>"), consumer("B", "b.>")


def test_a_consumer_has_taken_at_most_what_was_delivered_to_it() -> None:
    missing = [(1, "a.1"), (2, "b.1"), (3, "a.2"), (4, "a.3")]
    for retention in ("workqueue", "interest"):
        assert decided(retention, [A, B], [listed(A, 3), listed(B, 1)], missing) == (4, 0, [], [])
        assert decided(retention, [A, B], [listed(A, 5, pending=2), listed(B, 1)], missing) == (4, 0, [], [])
        assert decided(retention, [A, B], [listed(A, 3), listed(B, 0)], missing) == (3, 1, [2], [])
        assert decided(retention, [A, B], [listed(A, 5, pending=4), listed(B, 1)], missing) == (2, 2, [1, 3, 4], [])


def test_what_was_pending_may_have_been_acknowledged_since() -> None:
    state = ConsumerState(SequencePair(2, 2), pending={1: PendingAck(1, 0), 2: PendingAck(2, 0)})
    one = consumer("A", "a.>", state)
    missing = [(1, "a.1"), (2, "a.1"), (3, "a.1")]
    assert decided("workqueue", [one], [listed(one, 3)], missing) == (3, 0, [], [])
    assert decided("workqueue", [one], [listed(one, 2)], missing) == (2, 1, [1, 2, 3], [])
    # What it had acknowledged before is not its to take.
    done = consumer("A", "a.>", ConsumerState(SequencePair(3, 3), SequencePair(3, 3)))
    assert decided("workqueue", [done], [listed(done, 9)], missing) == (0, 0, [], [1, 2, 3])


def test_a_message_that_is_for_all_is_kept_by_one_that_lacks_it() -> None:
    first, second = consumer("F"), consumer("S")
    after = [listed(first, 2), listed(second, 1)]
    assert decided("interest", [first, second], after, [(1, "x"), (2, "x")]) == (1, 1, [1, 2], [])
    # One that was created since has not been waited for; a consumer that is gone is not waited for any more.
    assert decided("interest", [first], after, [(1, "x"), (2, "x")]) == (2, 0, [], [])
    assert decided("interest", [first, second], after[:1], [(1, "x"), (2, "x")]) == (2, 0, [], [])


def test_a_consumer_that_is_gone_explains_nothing() -> None:
    missing = [(1, "a.1"), (2, "a.2")]
    for retention in ("workqueue", "interest"):
        assert decided(retention, [A], [], missing) == (0, 2, [1, 2], [])
        assert decided(retention, [consumer("A", "a.>", inactive_threshold=5)], [], missing) == (0, 2, [1, 2], [])
    # One that was created again has taken what it was sent since.
    old = consumer("A", "a.>", ConsumerState(SequencePair(50, 0)))
    assert decided("workqueue", [old], [listed(old, 2)], missing) == (2, 0, [], [])
    assert decided("workqueue", [], [listed(A, 2)], missing) == (2, 0, [], [])


def test_where_consumers_may_not_be_listed_nothing_is_taken() -> None:
    taken = Taken({"retention": "workqueue"}, [A], None)
    assert not taken.may_have(Row(1, 0, b"a.1", None, b""))
    acknowledged = consumer("A", "a.>", ConsumerState(SequencePair(3, 3), SequencePair(3, 3)))
    assert Taken({"retention": "workqueue"}, [acknowledged], None).is_unwanted(Row(3, 0, b"a.1", None, b""))
    assert not Taken({"retention": "workqueue"}, [acknowledged], None).is_unwanted(Row(4, 0, b"a.1", None, b""))


def test_a_stream_of_interest_removes_what_is_for_nobody_when_all_its_consumers_are_beyond_it() -> None:
    orphan = Row(2, 0, b"c", None, b"")
    beyond = [consumer(name, f"{name}.>", ConsumerState(SequencePair(2, 2), SequencePair(2, 2))) for name in "ab"]
    here = {one.name: listed(one, 0) for one in beyond}
    for retention, restored, present, unwanted in (
        ("interest", beyond, here, True),
        ("interest", beyond, None, True),
        ("workqueue", beyond, here, False),
        ("interest", [*beyond[:1], B], {"a": here["a"], "B": listed(B, 0)}, False),
        ("interest", beyond, {}, False),  # none of them is there any more
        ("interest", [], {}, False),  # and none ever was: a server keeps everything
    ):
        assert Taken({"retention": retention}, restored, present).is_unwanted(orphan) is unwanted


def test_what_a_limit_and_consumers_explain_together_is_gone() -> None:
    config = {"max_msgs": 20, "retention": "workqueue"}
    restored = messages(1, 15)
    stream = used(config, restored, messages(16, 9))  # four are discarded
    for sequence in (6, 7):
        del stream.held[sequence]
    one = consumer("A")
    for delivered, wrong in ((2, 0), (1, 1), (0, 2)):
        there = {"A": listed(one, delivered)}
        comparison = Comparison(
            [batch_of(restored)], 15, discards=Discards(config, 15), taken=Taken(config, [one], there)
        )
        comparison.add(batch_of(stream.held.values()))
        comparison.finish()
        info = replace(stream.info, state=replace(stream.info.state, messages=20))
        comparison.decide(info, there)
        assert (comparison.gone.total(), comparison.missing_count) == (6 - wrong, wrong), delivered
