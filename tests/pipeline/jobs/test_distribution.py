"""Messages counted over time and sizes: as plain Python counts them, however they are cut into batches."""

from __future__ import annotations

import pickle
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.formats.digest import encode_rows
from jsbackup.pipeline.jobs.distribution import WIDTHS_NS, Distribution, MessageTally, TimeScale, scale_of
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, some_messages

_TIMES = st.integers(-(1 << 63), (1 << 63) - 1)
_DAY = 86_400 * 10**9


@given(_TIMES, _TIMES, st.integers(60, 200))
def test_any_time_is_cut_into_few_buckets_as_narrow_as_can_be(one: int, other: int, most: int) -> None:
    oldest, newest = min(one, other), max(one, other)
    scale = scale_of(oldest, newest, most)
    assert scale.first * scale.width_ns <= oldest and newest < (scale.last + 1) * scale.width_ns
    assert scale.last - scale.first < most
    narrower = WIDTHS_NS[: WIDTHS_NS.index(scale.width_ns)]
    assert all(newest // width - oldest // width >= most for width in narrower)


def test_widths_are_those_that_people_use() -> None:
    widths = [
        scale_of(0, span * 10**9).width_ns / 10**9 for span in (0, 99, 100, 3600, 86_400, 7 * 86_400, 90 * 86_400)
    ]
    assert widths == [1, 1, 2, 60, 900, 7200, 86_400]
    assert scale_of(-(1 << 63), (1 << 63) - 1, 10).width_ns == 3650 * _DAY


@given(message_lists(binary=True), st.randoms(use_true_random=False))
def test_a_tally_counts_as_python_does(messages: list[Message], chance: random.Random) -> None:
    times = [message.timestamp_ns for message in messages] or [0]
    scale = scale_of(min(times), max(times))
    tallies = [MessageTally(scale) for _ in range(3)]
    for batch in cut_anywhere(batch_of(messages), chance):
        chance.choice(tallies).add(batch)
    whole = MessageTally(scale)
    for tally in tallies:
        whole.merge(pickle.loads(pickle.dumps(tally)))
    found = whole.distribution()
    if not messages:
        assert found == Distribution()
        return
    sizes = {message.sequence: encode_rows(batch_of([message])).size for message in messages}
    starts = {message.sequence: message.timestamp_ns // scale.width_ns * scale.width_ns for message in messages}
    assert [(b.start_ns, b.messages) for b in found.buckets] == sorted(Counter(starts.values()).items())
    for bucket in found.buckets:
        assert bucket.bytes == sum(sizes[sequence] for sequence, start in starts.items() if start == bucket.start_ns)
    least = {sequence: 1 << (size.bit_length() - 1) for sequence, size in sizes.items()}
    assert [(c.least, c.messages) for c in found.classes] == sorted(Counter(least.values()).items())
    assert sum(c.bytes for c in found.classes) == sum(sizes.values())
    largest = sorted(messages, key=lambda message: (-sizes[message.sequence], message.sequence))[:5]
    assert [(one.bytes, one.sequence, one.timestamp_ns) for one in found.largest] == [
        (sizes[message.sequence], message.sequence, message.timestamp_ns) for message in largest
    ]
    subjects = [m.subject if isinstance(m.subject, str) else m.subject.decode(errors="replace") for m in largest]
    assert [one.subject for one in found.largest] == subjects


def test_a_message_outside_the_bounds_counts_at_their_end() -> None:
    """A manifest that lies makes no more buckets."""
    tally = MessageTally(TimeScale(10**9, 5, 7))
    tally.add(batch_of([Message(n, time) for n, time in enumerate((-(1 << 63), 6 * 10**9, (1 << 63) - 1), 1)]))
    assert [(b.start_ns // 10**9, b.messages) for b in tally.distribution().buckets] == [(5, 1), (6, 1), (7, 1)]


def test_sizes_at_powers_of_two_are_in_their_class() -> None:
    """Where a logarithm of doubles could be off by one."""
    tally = MessageTally(TimeScale(10**9, 0, 0))
    wanted = Counter[int]()
    for power in range(6, 22):
        for size in (2**power - 1, 2**power):
            # What is around the payload takes more where its length does.
            payload = next(
                n
                for n in range(size - 20, size)
                if encode_rows(batch_of([Message(1, 0, "s", None, bytes(n))])).size == size
            )
            tally.add(batch_of([Message(1, 0, "s", None, bytes(payload))]))
            wanted[1 << (size.bit_length() - 1)] += 1
    assert {c.least: c.messages for c in tally.distribution().classes} == wanted


def test_batches_without_messages_count_nothing() -> None:
    tally = MessageTally(TimeScale(10**9, 0, 0))
    tally.add(batch_of(some_messages(3, 10)).slice(0, 0))
    assert tally.distribution() == Distribution()
