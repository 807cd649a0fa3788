"""Two sequences of messages are merged batch by batch: what one side alone has, and what differs in which part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jsbackup.errors import FormatError
from jsbackup.repository.read import message_diff
from jsbackup.repository.read.message_diff import Change, DifferenceTally, Example, Merger, MessageDiff, Range, cut_at
from tests.harness.batches import Message, batch_of, messages_of, some_messages

MESSAGES = some_messages(30, 20)


def merged(ours: Sequence[Message], theirs: Sequence[Message], *, named: int = 5, size: int = 7) -> MessageDiff:
    """Ours is A."""
    tally = DifferenceTally(named)
    merger = Merger((batch_of(ours[at : at + size]) for at in range(0, len(ours), size)), tally, Change.REMOVED)
    for at in range(0, len(theirs), 4):
        merger.add(batch_of(theirs[at : at + 4]))
    merger.finish()
    return tally.result()


def test_equal_messages_are_equal_however_they_are_cut() -> None:
    assert merged(MESSAGES, MESSAGES) == message_diff.EQUAL
    assert merged([], []).equal


def test_what_one_side_alone_has_is_a_range() -> None:
    found = merged(MESSAGES[:10] + MESSAGES[13:], MESSAGES[:25])
    assert (found.added, found.removed, found.changed) == (3, 5, 0)
    assert found.ranges == (
        Range(Change.ADDED, MESSAGES[10].sequence, MESSAGES[12].sequence, 3),
        Range(Change.REMOVED, MESSAGES[25].sequence, MESSAGES[29].sequence, 5),
    )


def test_a_changed_message_is_named_with_the_parts_that_differ() -> None:
    old = MESSAGES[5]
    new = old._replace(data=b"another", timestamp_ns=old.timestamp_ns + 1)
    found = merged(MESSAGES, [*MESSAGES[:5], new, *MESSAGES[6:]])
    subject = old.subject if isinstance(old.subject, str) else old.subject.decode()
    assert found.examples == (Example(Change.CHANGED, old.sequence, old.timestamp_ns, subject, ("time", "payload")),)
    assert (found.changed, found.equal) == (1, False)


def test_no_headers_are_the_same_as_empty_ones() -> None:
    without, empty = ([one._replace(headers=block) for one in MESSAGES] for block in (None, b""))
    assert merged(without, empty).equal


def test_examples_are_limited_for_each_kind_and_counts_are_not() -> None:
    found = merged(MESSAGES[:20], [one._replace(data=b"x" * 50) for one in MESSAGES[10:]], named=3)
    assert (found.removed, found.changed, found.added) == (10, 10, 10)
    kinds = [one.change for one in found.examples]
    assert {kind: kinds.count(kind) for kind in Change} == dict.fromkeys(Change, 3)


def test_ranges_are_limited_and_those_left_out_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_diff, "MOST_RANGES", 4)
    found = merged(MESSAGES, MESSAGES[::2])
    assert (len(found.ranges), found.ranges_left_out, found.removed) == (4, 11, 15)


def test_sequences_that_do_not_rise_are_refused() -> None:
    merger = Merger(iter([]), DifferenceTally(1), Change.REMOVED)
    merger.add(batch_of(MESSAGES[:3]))
    with pytest.raises(FormatError, match="after"):
        merger.add(batch_of(MESSAGES[2:4]))


def test_a_batch_is_cut_behind_a_sequence() -> None:
    before, behind = cut_at(batch_of(MESSAGES), MESSAGES[9].sequence)
    assert (len(messages_of([before])), len(messages_of([behind]))) == (10, 20)
