from __future__ import annotations

import pytest

from jsbackup.errors import PlanRefused, TargetConflict
from jsbackup.planning.model import RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding, Rule


def _said(*refusals: tuple[str, str]) -> str:
    return _all_said(*(Finding(stream, Rule.EXISTS, reason) for stream, reason in refusals))


def _all_said(*refusals: Finding) -> str:
    plan = RestorePlan("b", (), refusals)
    with pytest.raises(TargetConflict) as caught:
        refuse_if_refused(plan)
    return caught.value.message.removeprefix("nothing was restored: ")


def test_equal_reasons_are_one_sentence_with_the_streams() -> None:
    assert _said(("A", "is there")) == "stream A: is there"
    assert _said(("", "all is lost")) == "all is lost"
    assert _said(("A", "is there"), ("B", "is there")) == "each of the streams A, B: is there"
    assert (
        _said(("A", "is there"), ("B", "is old"), ("C", "is there"))
        == "each of the streams A, C: is there; stream B: is old"
    )
    four, five = ([(name, "is there") for name in names] for names in ("ABCD", "ABCDE"))
    assert _said(*four) == "each of the streams A, B, C, D: is there"
    assert _said(*five) == "each of 5 streams (A, B, C, D and 1 more): is there"


def test_many_reasons_of_one_rule_are_one_sentence_with_an_example() -> None:
    reason = "its subject s{0}.> overlaps with s{0}.> of stream O{0} at the target"
    overlaps = [(f"S{number:02}", reason.format(number)) for number in range(60)]
    said = _said(*overlaps)
    assert said == (
        "60 streams (S00, S01, S02, S03 and 56 more): for example stream S00: its subject s0.> overlaps with s0.> of "
        "stream O0 at the target"
    )
    assert _said(*overlaps[:4]).count("overlaps") == 4
    wide = _said(*(("WIDE", reason) for _, reason in overlaps))
    assert wide == "; ".join(f"stream WIDE: {reason}" for _, reason in overlaps[:4]) + "; and 56 more reasons"


def test_different_hints_are_lines_that_name_their_streams() -> None:
    found = [Finding(name, Rule.SINGLE_SERVER, "has 3 replicas", "Use --replicas 1.") for name in ("A", "B")]
    found.append(Finding("C", Rule.MEMORY_STREAM, "is kept in memory", "Use\n--adapt."))
    with pytest.raises(PlanRefused) as caught:
        refuse_if_refused(RestorePlan("b", (), tuple(found)))
    assert (caught.value.hint or "").split("\n") == [
        "each of the streams A, B: Use --replicas 1.",
        "stream C: Use --adapt.",
        "See 'jsbackup plan' for all of it.",
    ]
