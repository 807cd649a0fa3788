"""Messages that expire as soon as they are restored count as lost where a stream that has more would be replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.model import StreamState
from jsbackup.planning.model import IfExists, Outlived, RestoreOptions, RestorePlan, Target
from jsbackup.planning.plan import Facts, plan_restore
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.reshape import Reshape
from tests.planning.test_forecast import SECOND, segmented
from tests.planning.test_plan import NEW, NOW, existing

HOUR = 3600 * SECOND


def planned(
    entry: StreamBackup,
    now: int,
    *,
    held: int | None = None,
    facts: Facts | None = None,
    live: bool = False,
    **options: Any,
) -> RestorePlan:
    """The plan at a second; `held` messages are in the stream that is replaced."""
    manifest = Manifest("20261121T014500Z-000001", NOW, "t", Source("2.15.1"), BackupResult.COMPLETE, (entry,))
    there: dict[str, StreamInfo] = {}
    if held is not None:
        there["S"] = replace(existing("S", "S.>"), state=StreamState(messages=held, first_seq=1, last_seq=held))
        options["if_exists"] = IfExists.REPLACE
    target = Target(NEW, False, there, now_ns=now * SECOND)
    return plan_restore(manifest, target, RestoreOptions(**options), replace(facts or Facts(), live=live))


def refused(made: RestorePlan) -> list[Rule]:
    assert {one.code for one in made.refusals} <= {15}
    return [one.rule for one in made.refusals]


def only(made: RestorePlan) -> Finding:
    (finding,) = made.refusals
    return finding


ENTRY = segmented(max_age=10 * SECOND)


def test_what_expires_by_the_streams_own_max_age_is_a_note() -> None:
    for now in (15, 21, 25, 31):
        made = planned(ENTRY, now)
        assert refused(made) == [] and Rule.EXPIRES in {one.rule for one in made.actions[0].warnings}


@pytest.mark.parametrize(("held", "code"), [(0, []), (10, []), (11, [Rule.PART_REPLACES])])
def test_a_stream_that_has_more_than_is_left_is_not_replaced(held: int, code: list[Rule]) -> None:
    made = planned(ENTRY, 21, held=held)
    assert refused(made) == code
    assert refused(planned(ENTRY, 21, held=held, replace_with_part=True)) == []
    if code:
        assert only(made).reason == (
            "would replace a stream with 11 messages by one with 10: what is older than its max_age of 10.0 s expires "
            "at once, 10 of its 20 messages"
        )
        assert "--replace-with-part replaces the stream anyway" in only(made).hint


def test_exact_numbers_decide() -> None:
    assert refused(planned(ENTRY, 15, held=17)) == []  # up to ten expire, as far as is known
    made = planned(ENTRY, 15, held=17, facts=Facts(expired={"S": 4}))
    assert refused(made) == [Rule.PART_REPLACES] and made.actions[0].expiring.count == "4"
    assert refused(planned(ENTRY, 15, held=16, facts=Facts(expired={"S": 4}))) == []


def outlived(held: int, of_ttl: int, expired: int, looked: int, **config: int | bool) -> RestorePlan:
    entry = segmented(allow_msg_ttl=True, **config)
    known = Facts(outlived={"S": Outlived(of_ttl, expired, looked)})
    return planned(entry, 15, held=held, facts=known)


def test_messages_that_have_outlived_their_own_time_count_in_the_same_way() -> None:
    assert refused(outlived(17, 3, 3, 20)) == [] and refused(outlived(99, 0, 0, 20)) == []
    made = outlived(18, 3, 3, 20)
    assert only(made).rule is Rule.PART_REPLACES and only(made).reason == (
        "would replace a stream with 18 messages by one with 17: messages that have outlived their Nats-TTL expire at "
        "once, 3 of its 20 messages"
    )
    assert "--set allow_msg_ttl=null, which keeps all" in only(made).hint
    both = only(outlived(18, 3, 5, 20, max_age=10 * SECOND))
    assert both.reason.endswith(
        "by one with 15: what is older than its max_age of 10.0 s, or has outlived its Nats-TTL, expires at once, 5 of "
        "its 20 messages"
    )
    assert "--set max_age=null --set allow_msg_ttl=null, which keeps all" in both.hint


def test_times_of_kept_messages_decide_where_segments_have_others() -> None:
    some = replace(ENTRY, captured=replace(ENTRY.captured, messages=3))
    for times, rules in (((2, 9), [Rule.PART_REPLACES]), ((2, 19), []), ((16, 19), [])):
        ends = (times[0] * SECOND, times[1] * SECOND)
        made = planned(ENTRY, 25, held=1, facts=Facts({"S": KeptStream(some, had=20, times=ends)}))
        assert refused(made) == rules
        assert bool(made.actions[0].expiring.most) == (times[0] < 15)


def test_a_shorter_max_age_is_refused_like_other_limits() -> None:
    hours = segmented(max_age=HOUR)
    for entry in (segmented(), hours):
        for meant in (False, True):
            for held in (None, 300):
                fields: dict[str, Any] = {"max_age": 604_800_000}
                typed = frozenset(fields)
                consent: dict[str, Any] = {"allow_nothing": meant, "replace_with_part": meant}
                finding = only(planned(entry, 40, held=held, fields=fields, unitless=typed, **consent))
                assert finding.rule is Rule.LIMIT_TRIMS
                assert finding.reason.startswith("would keep 0 of its 20 messages: the others are older than a max_age")
                assert "in nanoseconds" in finding.hint and "--set max_age=7d" in finding.hint
    finding = only(planned(hours, 25, fields={"max_age": 10 * SECOND}))
    assert "would keep up to 10 of its 20 messages" in finding.reason
    finding = only(planned(hours, 15, fields={"max_age": 10 * SECOND}))
    assert "would keep fewer than 20 of its 20 messages" in finding.reason
    assert refused(planned(hours, 15, fields={"max_age": 20 * SECOND})) == []
    # A longer one saves messages, even if not all.
    assert refused(planned(ENTRY, 25, fields={"max_age": 12 * SECOND})) == []


def test_what_a_server_has_now_is_not_gone_by_its_own_max_age() -> None:
    for now in (15, 21, 31):
        assert refused(planned(ENTRY, now, held=100, live=True)) == []
    for reshape in (Reshape(), Reshape(filters=Filters.parse({"subject": ["S.a"]}))):  # what it keeps is older, too
        made = planned(ENTRY, 31, live=True, fields={"max_age": SECOND}, reshape=reshape, allow_nothing=True)
        assert refused(made) == [Rule.LIMIT_TRIMS]
