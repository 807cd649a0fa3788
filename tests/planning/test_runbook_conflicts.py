"""Restores that follow each other are held against those before them, if they go into the same JetStream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jsbackup.planning.model import Target
from jsbackup.planning.rules import Rule
from jsbackup.planning.runbook_conflicts import PlannedPart, against_each_other
from jsbackup.planning.same_jetstream import JetStreamPlace
from tests.planning.test_plan import NEW, plan, stream

PLACE = JetStreamPlace("SHOP", "$JS.API", "NA", None, None, frozenset())
ELSEWHERE = replace(PLACE, account="STAGING")


def part(*names: str, place: JetStreamPlace = PLACE, **config: Any) -> PlannedPart:
    return PlannedPart(plan(*(stream(name, **config) for name in names)), Target(NEW, False, {}), place)


def rules(*parts: PlannedPart) -> list[list[tuple[str, Rule]]]:
    return [[(one.stream, one.rule) for one in found] for found in against_each_other(parts)]


def test_the_first_restore_meets_nothing() -> None:
    assert rules(part("A"), part("B"), part("C")) == [[], [], []]


def test_the_same_stream_twice_is_a_conflict_of_the_later_one() -> None:
    assert rules(part("A"), part("B", "A")) == [[], [("A", Rule.SAME_STREAM)]]


def test_subjects_that_overlap_are_a_conflict() -> None:
    assert rules(part("A", subjects=["x.>"]), part("B", subjects=["x.y"])) == [
        [],
        [("B", Rule.SUBJECT_OVERLAP_IN_PLAN)],
    ]


def test_another_account_is_no_conflict_and_an_unknown_one_is_said() -> None:
    assert rules(part("A"), part("A", place=ELSEWHERE)) == [[], []]
    unknown = replace(PLACE, account=None)
    (_, (known,)), (_, (doubtful,)) = (
        against_each_other([part("A", place=place), part("A", place=place)]) for place in (PLACE, unknown)
    )
    assert "$SYS.REQ.USER.INFO" in doubtful.hint and "$SYS" not in known.hint
