"""A plan names the backup that has a stream which the chosen one lacks."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.planning.model import RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import with_elsewhere
from jsbackup.repository.read.latest import Choice, Elsewhere
from tests.planning.selection.test_chosen_streams import manifest

LACKING = Finding("C", Rule.INCOMPLETE_BACKUP, "is not in this backup: it did not answer")
OTHER = replace(LACKING, stream="D")
PLAN = RestorePlan("B1", (), warnings=(LACKING, OTHER))


def test_without_another_backup_the_plan_stays() -> None:
    assert with_elsewhere(PLAN, Choice(manifest("A"))) is PLAN


def test_a_stream_of_another_backup_is_named_with_it_instead_of_as_missing() -> None:
    elsewhere = (Elsewhere("C", "B0", "2026-11-21T01:45:00.5Z"), Elsewhere("it's", "B0", "2026-11-21T01:45:00Z"))
    made = with_elsewhere(PLAN, Choice(manifest("A"), elsewhere=elsewhere))
    assert made.warnings[0] == OTHER
    found = made.warnings[1:]
    assert [(one.stream, one.rule) for one in found] == [(s, Rule.IN_ANOTHER_BACKUP) for s in ("C", "it's")]
    assert "B0" in found[0].reason and "restore B0 C" in found[0].hint
    assert """: jsbackup restore B0 'it'"'"'s'.""" in found[1].hint  # as a shell takes it
