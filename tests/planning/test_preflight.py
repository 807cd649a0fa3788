from __future__ import annotations

import pytest

from jsbackup.errors import PlanRefused, TargetConflict
from jsbackup.planning.model import RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding, Rule


def _said(*refusals: tuple[str, str]) -> str:
    plan = RestorePlan("b", (), tuple(Finding(stream, Rule.EXISTS, reason) for stream, reason in refusals))
    with pytest.raises(TargetConflict) as caught:
        refuse_if_refused(plan)
    return caught.value.message.removeprefix("nothing was restored: ")


def test_equal_reasons_are_told_once_with_the_streams() -> None:
    assert _said(("A", "is there")) == "stream A is there"
    assert _said(("", "all is lost")) == "all is lost"
    assert _said(("A", "is there"), ("B", "is there")) == "each of A and B is there"
    assert _said(("A", "is there"), ("B", "is old"), ("C", "is there")) == "each of A and C is there; stream B is old"
    five, six = ([(name, "is there") for name in names] for names in ("ABCDE", "ABCDEF"))
    assert _said(*five) == "each of A, B, C, D and E is there"
    assert _said(*six) == "each of A, B, C, D, E and 1 more is there"


def test_a_few_reasons_are_told_and_the_others_counted() -> None:
    reasons = [(f"S{number}", f"has {number} replicas") for number in range(1, 8)]
    assert _said(*reasons[:5]).endswith("; stream S4 has 4 replicas; and 1 more reason")
    assert _said(*reasons).endswith("; stream S4 has 4 replicas; and 3 more reasons")


def test_the_hints_of_what_is_told_are_given_once() -> None:
    found = [Finding(name, Rule.SINGLE_SERVER, "has 3 replicas", "Use --replicas 1.") for name in ("A", "B")]
    with pytest.raises(PlanRefused) as caught:
        refuse_if_refused(RestorePlan("b", (), tuple(found)))
    assert caught.value.hint == "Use --replicas 1. See 'jsbackup plan' for all of it."
