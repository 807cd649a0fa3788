"""Runs of digests add up to the stream's, however many there are, and say where two streams differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.clone.run_digests import Ledger, RunDigests
from jsbackup.formats.digest import Digester
from tests.harness.batches import Message, batch_of, some_messages

MESSAGES = some_messages(60, 20)
CUTS = st.lists(st.integers(1, 9), min_size=1)


def written(messages: list[Message], sizes: list[int], most_runs: int) -> Ledger:
    ledger = Ledger(most_runs=most_runs)
    at, turn = 0, 0
    while at < len(messages):
        size = sizes[turn % len(sizes)]
        ledger.add(batch_of(messages[at : at + size]))
        at, turn = at + size, turn + 1
    return ledger


@given(CUTS, CUTS, st.integers(2, 9))
def test_equal_streams_have_equal_runs_however_they_come(sizes: list[int], others: list[int], most_runs: int) -> None:
    ledger = written(MESSAGES, sizes, most_runs)
    whole = Digester()
    whole.update(batch_of(MESSAGES))
    assert (ledger.messages, ledger.raw_bytes, ledger.digest) == (60, whole.raw_bytes, whole.stream_digest)
    assert (ledger.first_seq, ledger.last_seq) == (MESSAGES[0].sequence, MESSAGES[-1].sequence)
    assert len(ledger.runs) <= most_runs
    found = RunDigests(ledger.until(ledger.last_seq + 5))
    at, turn = 0, 0
    while at < len(MESSAGES):
        size = others[turn % len(others)]
        found.add(batch_of(MESSAGES[at : at + size]))
        at, turn = at + size, turn + 1
    assert list(found.differing()) == []
    assert (found.messages, found.digest) == (60, whole.stream_digest)


@given(st.integers(0, 59), CUTS)
def test_a_message_that_is_missing_or_other_is_found_in_its_run(number: int, sizes: list[int]) -> None:
    runs = written(MESSAGES, sizes, 1000).until(MESSAGES[-1].sequence)
    lost = MESSAGES[number]
    for held in ([], [Message(lost.sequence, lost.timestamp_ns, lost.subject, lost.headers, lost.data + b"!")]):
        found = RunDigests(runs)
        found.add(batch_of(MESSAGES[:number] + held + MESSAGES[number + 1 :]))
        (run,) = found.differing()
        assert run.first_seq <= lost.sequence <= run.last_seq


@given(st.integers(0, 59), CUTS)
def test_a_message_that_was_taken_out_again_is_not_expected(number: int, sizes: list[int]) -> None:
    ledger = written(MESSAGES, sizes, 1000)
    ledger.remove(batch_of([MESSAGES[number]]))
    found = RunDigests(ledger.until(MESSAGES[-1].sequence))
    found.add(batch_of(MESSAGES[:number] + MESSAGES[number + 1 :]))
    assert list(found.differing()) == []
    assert ledger.messages == 59


def test_what_lies_between_runs_and_behind_the_last_one_is_told_apart() -> None:
    ledger = Ledger()
    for sequence in (5, 9):
        ledger.add(batch_of([Message(sequence)]))
    runs = ledger.until(12)
    for extra, differs in ((3, True), (7, True), (11, True), (13, False)):
        found = RunDigests(runs)
        found.add(batch_of([Message(one) for one in sorted([5, 9, extra])]))
        assert bool(list(found.differing())) is differs
    empty = RunDigests(Ledger().until(4))
    empty.add(batch_of([Message(5)]))
    assert list(empty.differing()) == []
