"""What a restore says in its last line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.cli.output.output import Output
from jsbackup.cli.output.restore_report import restored_result
from jsbackup.engine.restore.proof import ProofLevel
from jsbackup.engine.restore.restore import RestoreReport
from jsbackup.engine.restore.run import RestoredStream
from jsbackup.planning.model import SendAs
from tests.planning.copies.test_copies import ORIGIN, plan

WHOLE = RestoredStream("A", "A", 1, 10, "", ProofLevel.FULL, SendAs.V1)


@pytest.mark.parametrize(
    ("incomplete", "code", "said"),
    [
        (False, 0, "restored 2 streams, 0 failed, 0 skipped"),
        (True, 3, "restored 2 streams, 1 of them incomplete, 0 failed"),
    ],
)
def test_streams_that_are_incomplete_are_counted(
    incomplete: bool, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = RestoreReport(plan(ORIGIN), (WHOLE, replace(WHOLE, as_name="B", incomplete=incomplete)), ())
    assert Output().show(restored_result(report, "restored")) == code and said in capsys.readouterr().out
