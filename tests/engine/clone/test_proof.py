"""What a run that differs comes to: of what was sent, the target holds some, the source still has some."""

from __future__ import annotations

import pytest

from jsbackup.engine.clone.proof import CopyVerdict, Rows, judge
from jsbackup.engine.clone.run_digests import Ledger, Run
from jsbackup.engine.read.compare import Missing
from jsbackup.engine.read.consume import Row, rows_as_batch


def rows(*sequences: int, data: bytes = b"data") -> Rows:
    return {sequence: Row(sequence, sequence * 10, b"s", None, data) for sequence in sequences}


def run_of(sent: Rows) -> Run:
    ledger = Ledger()
    ledger.add(rows_as_batch(list(sent.values())))
    return ledger.runs[0]


def expired(missing: Missing) -> bool:
    return missing.sequence <= 2


SENT = rows(1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("target", "source", "wrong", "gone", "unsure"),
    [
        (SENT, {}, [], 0, 0),  # the digest alone says so
        (rows(3, 4, 5), SENT, [], 2, 0),
        (rows(3, 4, 5), rows(1, 2), [], 2, 0),  # what only one of them has is right by the digest of both
        (rows(2, 3, 4), SENT, ["5 missing"], 1, 0),
        (rows(3, 4, 5), rows(2, 3, 4, 5), [], 2, 0),  # 1 is gone from both
        (rows(3, 4, 5), rows(4, 5), [], 2, 1),  # nobody can tell what 3 was
        (rows(3, 4) | rows(5, data=b"other"), SENT, ["5 changed"], 2, 0),
        (rows(1, 2, 3, 4, 5, 6), SENT, ["6 added"], 0, 0),
        ({}, {}, [], 5, 0),
    ],
)
def test_what_was_sent_is_held_by_the_target_or_excused(
    target: Rows, source: Rows, wrong: list[str], gone: int, unsure: int
) -> None:
    verdict = CopyVerdict()
    judge(run_of(SENT), target, source, expired, verdict=verdict)
    assert (verdict.wrong, verdict.gone, verdict.unsure) == (wrong, gone, unsure)


def test_no_headers_and_an_empty_block_are_the_same() -> None:
    block = {1: Row(1, 10, b"s", b"", b"data")}
    verdict = CopyVerdict()
    judge(run_of(rows(1)), block, {}, expired, verdict=verdict)
    judge(run_of(SENT), block | rows(2, 3, 4), rows(1, 2, 3, 4), expired, verdict=verdict)
    assert (verdict.wrong, verdict.gone, verdict.unsure) == ([], 1, 0)
