"""What was deleted is known from counts, unless anything else was deleted since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.follow.followed_stream import KnownDeleted
from jsbackup.model import StreamState


def state(present: set[int], last_seq: int) -> StreamState:
    first = min(present, default=last_seq + 1)
    deleted = last_seq - first + 1 - len(present) if present else 0
    return StreamState(len(present), 0, first, 0, last_seq, 0, 0, deleted)


def missing(present: set[int], last_seq: int) -> tuple[int, ...]:
    return tuple(sorted({*range(min(present, default=last_seq + 1), last_seq + 1)} - present))


@given(st.sets(st.integers(2, 29)), st.integers(0, 10), st.sets(st.integers(1, 40)), st.integers(0, 35))
def test_what_is_said_is_what_is_deleted(gone: set[int], new: int, later: set[int], purged: int) -> None:
    """Sequences 1 to 30, some of them `gone`; then new ones, others deleted later, and a purge of the front."""
    before = {*range(1, 31)} - gone
    known = KnownDeleted()
    known.note(state(before, 30), missing(before, 30))
    assert known.at(state(before, 30)) is None  # it is not committed
    known.committed()
    assert known.at(state(before, 30)) == missing(before, 30)
    last = 30 + new
    now = {seq for seq in before | {*range(31, last + 1)} if seq > purged and seq not in later}
    said = known.at(state(now, last))
    assert said is None or said == missing(now, last)
    if not later & (before | {*range(31, last + 1)}) and now and min(now) <= 30:
        assert said == missing(now, last)


def test_what_is_not_committed_is_forgotten() -> None:
    known = KnownDeleted()
    known.note(state({1, 3}, 3), (2,))
    known.forget()
    known.committed()
    assert known.at(state({1, 3}, 3)) is None
