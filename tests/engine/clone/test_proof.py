"""What a run that differs comes to: of what was sent, the target holds some, the source still has some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.engine.clone.run_digests import CopyVerdict, Ledger, Rows, Run, judge
from jsbackup.engine.read.consume import Row, rows_as_batch, rows_of
from jsbackup.engine.restore.compare import Taken
from jsbackup.model import ArchivedConsumer, ConsumerState, SequencePair
from jsbackup.transforms.removal import Cause
from tests.harness.batches import Message, batch_of


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
