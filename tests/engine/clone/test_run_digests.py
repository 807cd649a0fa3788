"""Runs of digests add up to the stream's, and say where two streams differ, and what became of what was sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.engine.clone.run_digests import CopyVerdict, Ledger, Rows, Run, RunDigests, judge
from jsbackup.engine.read.consume import Row, rows_as_batch, rows_of
from jsbackup.engine.restore.compare import Taken
from jsbackup.formats.digest import Digester
from jsbackup.model import ArchivedConsumer, ConsumerState, SequencePair
from jsbackup.transforms.removal import Cause
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


# --- what a run that differs comes to: of what was sent, the target holds some, the source still has some


def rows(*sequences: int, data: bytes = b"data") -> Rows:
    return {sequence: Row(sequence, sequence * 10, b"s", None, data) for sequence in sequences}


def run_of(sent: Rows) -> Run:
    ledger = Ledger()
    ledger.add(rows_as_batch(list(sent.values())))
    return ledger.runs[0]


def expired(missing: Row) -> Cause | None:
    return Cause.EXPIRED if missing.sequence <= 2 else None


SENT = rows(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("target", "source", "wrong", "gone", "unsure"),
    [
        (SENT, {}, [], 0, 0),  # the digest alone says so
        (rows(3, 4, 5), SENT, [], 2, 0),
        (rows(3, 4, 5), rows(1, 2), [], 2, 0),  # what only one of them has is right by the digest of both
        (rows(2, 3, 4), SENT, ["5 missing"], 1, 0),
        (rows(3, 4, 5), rows(2, 3, 4, 5), [], 1, 1),  # nobody can tell why 1 is gone from both
        (rows(3, 4, 5), rows(4, 5), [], 0, 3),  # nor what 3 was
        (rows(3, 4) | rows(5, data=b"other"), SENT, ["5 changed"], 2, 0),
        (rows(1, 2, 3, 4, 5, 6), SENT, ["6 added"], 0, 0),
        ({}, {}, [], 0, 5),
    ],
)
def test_what_was_sent_is_held_by_the_target_or_excused(
    target: Rows, source: Rows, wrong: list[str], gone: int, unsure: int
) -> None:
    verdict = CopyVerdict()
    judge(run_of(SENT), target, source, expired, now_ns=0, verdict=verdict)
    assert (verdict.wrong, verdict.gone.total(), verdict.unsure) == (wrong, gone, unsure)


def test_what_is_gone_from_both_may_have_expired_or_been_acknowledged() -> None:
    run = replace(run_of(SENT), removal_ns=30)
    for now_ns, gone, unsure in ((29, {}, 2), (30, {Cause.EXPIRED: 2}, 0)):
        verdict = CopyVerdict()
        judge(run, rows(3, 4, 5), rows(3, 4, 5), expired, now_ns=now_ns, verdict=verdict)
        assert (verdict.wrong, +verdict.gone, verdict.unsure) == ([], gone, unsure)
    for floor, gone, unsure in ((1, {}, 2), (2, {Cause.TAKEN: 2}, 0)):
        position = SequencePair(floor, floor)
        consumer = ArchivedConsumer("C", {"durable_name": "C"}, ConsumerState(position, position))
        taken, verdict = Taken({"retention": "workqueue"}, [consumer], {}), CopyVerdict()
        judge(
            run_of(SENT),
            rows(3, 4, 5),
            rows(3, 4, 5),
            expired,
            now_ns=0,
            verdict=verdict,
            taken=taken,
            sent=SENT.keys(),
        )
        assert (verdict.wrong, +verdict.gone, verdict.unsure) == ([], gone, unsure)


def test_no_headers_and_an_empty_block_are_the_same() -> None:
    block = {row.sequence: row for row in rows_of(batch_of([Message(1, 10, "s", b"", b"data")]))}
    verdict = CopyVerdict()
    judge(run_of(rows(1)), block, {}, expired, now_ns=0, verdict=verdict)
    judge(run_of(SENT), block | rows(2, 3, 4, 5), rows(1, 2, 3, 4), expired, now_ns=0, verdict=verdict)
    assert (verdict.wrong, verdict.gone.total(), verdict.unsure) == ([], 0, 0)
