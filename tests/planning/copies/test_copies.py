"""What a plan decides for streams that copy from others, from what is known of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.model import StreamState
from jsbackup.planning.copies.copy_facts import CopyFacts, SourceFacts
from jsbackup.planning.model import Action, IfExists, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.planning.plan import Facts, plan_restore
from jsbackup.planning.rules import Rule
from jsbackup.protocol.info import SourceInfo, StreamInfo
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from jsbackup.times import parse_time
from jsbackup.transforms.copied_from import Mend
from jsbackup.transforms.copy_positions import CopyPosition, stream_identity
from jsbackup.transforms.cut import AtSequence
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.reshape import Reshape
from tests.planning.test_plan import NEW, NOW, OLD, existing, stream

KEY = ("O", ">", ">")
MASKING = Reshape(masks=Masks.parse(["nothing.>:$.name=redact"], "refuse"))
ORIGIN = stream("O", messages=10)
COPY = stream("C", subjects=[], messages=10, sources=[{"name": "O"}])
MIRROR = stream("M", subjects=[], messages=10, mirror={"name": "O"})


def facts(sequence: int, *, identity: str = stream_identity(NOW), **more: Any) -> SourceFacts:
    left = CopyPosition(sequence, identity, sequence) if sequence else None
    return SourceFacts(left, **{"reached": sequence, "exact": True, **more})


def plan(
    *streams: StreamBackup,
    known: SourceFacts | None = None,
    version: tuple[int, ...] = NEW,
    clustered: bool | None = False,
    there: tuple[StreamInfo, ...] = (),
    **options: Any,
) -> RestorePlan:
    source = Source("2.15.1")
    manifest = Manifest("20261121T014500Z-000001", NOW, "t", source, BackupResult.COMPLETE, (ORIGIN, COPY, MIRROR))
    manifest = replace(manifest, streams=streams)
    target = Target(version, clustered, {info.name: info for info in there})
    sources = {"C": {KEY: known}} if known else {}
    return plan_restore(manifest, target, RestoreOptions(**options), Facts(copies=CopyFacts(sources)))


def copy_of(made: RestorePlan, name: str = "C") -> Action:
    return next(action for action in made.actions if action.name == name)


def mend(action: Action) -> Mend:
    return action.reshape.marks[0].mend if action.reshape.marks else Mend()


def rules(action: Action) -> set[Rule]:
    return {warning.rule for warning in action.warnings} - {Rule.COPIES_ON, Rule.ORIGIN_ABSENT}


LATER = "2026-11-22T00:00:00Z"


def live(name: str, last: int, created: str = NOW, **config: Any) -> StreamInfo:
    found = existing(name)
    state = StreamState(messages=last, first_seq=1, last_seq=last, first_ns=last)
    created_ns = parse_time(created) if created != NOW else 0
    state = replace(state, first_ns=created_ns + 1)
    return replace(found, created=created, created_ns=created_ns, config={"name": name, **config}, state=state)


def test_marks_stay_as_they_are_where_the_origin_gets_its_time_of_creation_back() -> None:
    action = copy_of(plan(ORIGIN, COPY, known=facts(10)))
    assert not action.reshape and not rules(action)
    assert [start.sequence for start in action.starts] == [10]


@pytest.mark.parametrize(
    "made",
    [
        plan(ORIGIN, COPY, known=facts(10), wire=SendAs.V2),
        plan(ORIGIN, COPY, known=facts(10), clustered=True),
        plan(ORIGIN, COPY, known=facts(10, identity="another")),
        plan(replace(ORIGIN, created="0001-01-01T00:00:00Z"), COPY, known=facts(10)),
        plan(ORIGIN, COPY),
        plan(ORIGIN, COPY, known=facts(10), reshape=MASKING),
    ],
)
def test_identities_go_where_the_origin_will_have_another_or_nobody_knows(made: RestorePlan) -> None:
    assert mend(copy_of(made)).renewed and rules(copy_of(made)) == {Rule.ORIGIN_RENEWED}


def test_what_is_mended_in_a_copy_makes_it_another_origin_for_its_own_copies() -> None:
    second = stream("D", subjects=[], messages=10, sources=[{"name": "C"}])
    manifest = Manifest(
        "20261121T014500Z-000001", NOW, "t", Source("2.15.1"), BackupResult.COMPLETE, (ORIGIN, COPY, second)
    )
    known = CopyFacts({"C": {KEY: facts(10, identity="another")}, "D": {("C", ">", ">"): facts(10)}})
    made = plan_restore(manifest, Target(NEW, False, {}), RestoreOptions(), Facts(copies=known))
    for name in ("C", "D"):
        assert mend(copy_of(made, name)).renewed and copy_of(made, name).alters
    assert not copy_of(made, "O").alters


def test_a_copy_that_is_ahead_goes_on_where_its_origin_ends() -> None:
    action = copy_of(plan(ORIGIN, COPY, known=facts(17)))
    assert mend(action).most == 10 and rules(action) == {Rule.COPY_AHEAD}
    assert [start.sequence for start in action.starts] == [10]


def test_a_mirror_that_is_ahead_is_cut_and_so_is_its_mirror() -> None:
    short = stream("O", messages=4)
    second = stream("N", subjects=[], messages=10, mirror={"name": "M"})
    made = plan(short, MIRROR, second)
    for name in ("M", "N"):
        action = copy_of(made, name)
        assert action.reshape.cut.until == AtSequence(4) and rules(action) == {Rule.MIRROR_CUT}
        assert action.config["name"] == name
    assert not made.refusals


def test_a_mirror_of_another_stream_that_is_shorter_is_refused() -> None:
    made = plan(MIRROR, there=(live("O", 4, created=LATER),))
    assert [refusal.rule for refusal in made.refusals] == [Rule.MIRROR_AHEAD]
    assert not plan(MIRROR, there=(live("O", 4, created=LATER),), fields={"mirror": None}).refusals


def test_an_origin_at_the_target_is_the_same_one_if_it_was_made_then() -> None:
    made = plan_restore_of_copy(live("O", 6), facts(10))
    assert mend(copy_of(made)).most == 6 and rules(copy_of(made)) == {Rule.COPY_AHEAD}
    made = plan_restore_of_copy(live("O", 12), facts(10))
    assert not copy_of(made).reshape and not rules(copy_of(made))


def plan_restore_of_copy(there: StreamInfo, known: SourceFacts, **options: Any) -> RestorePlan:
    """Of the copy alone, from a backup that has both."""
    return plan(ORIGIN, COPY, known=known, there=(there,), streams=(parse_glob("C"),), **options)


def test_all_of_another_stream_of_that_name_is_copied() -> None:
    made = plan_restore_of_copy(live("O", 12, created=LATER), facts(10))
    assert mend(copy_of(made)) == Mend(renewed=True, most=0)
    assert Rule.ORIGIN_ANOTHER in rules(copy_of(made))


def test_an_origin_that_the_backup_does_not_have_is_the_same_one_if_it_was_there_or_was_restored() -> None:
    bare = facts(10, identity="")
    before, later = "2026-11-20T00:00:00Z", "2026-11-23T00:00:00Z"
    found = live("O", 12, created=later)
    restored = replace(found, state=replace(found.state, first_ns=1))
    for there, another in (
        (live("O", 12, created=before), False),
        (restored, False),
        (found, True),
    ):
        made = plan(COPY, known=bare, there=(there,))
        assert (Rule.ORIGIN_ANOTHER in rules(copy_of(made))) == another
        assert mend(copy_of(made)).most == (0 if another else None)
    known = facts(10, identity=stream_identity(later))
    made = plan(COPY, known=known, there=(found,))
    assert not copy_of(made).reshape and not rules(copy_of(made))


def test_an_origin_that_is_not_there_yet_is_taken_for_the_same_one() -> None:
    made = plan(COPY, known=facts(10))
    assert mend(copy_of(made)) == Mend(renewed=True)
    assert [start.sequence for start in copy_of(made).starts] == [10]
    (said,) = (warning.reason for warning in copy_of(made).warnings if warning.rule is Rule.ORIGIN_RENEWED)
    again = "otherwise everything would be copied again once it is restored"
    assert said == f"its headers lose the creation time of O; {again}"
    assert rules(copy_of(plan(COPY, known=facts(10, identity="")))) == set()  # nothing to change


GONE = facts(6, reached=9, again=(7, 8, 9))


def test_what_is_gone_is_copied_again_by_older_servers_and_by_archives_v2() -> None:
    for made in (
        plan(ORIGIN, COPY, known=GONE, version=OLD),
        plan(ORIGIN, COPY, known=GONE, wire=SendAs.V2),
    ):
        said = next(one.reason for one in copy_of(made).warnings if one.rule is Rule.COPIED_AGAIN)
        assert said == "messages of O that were deleted from it are copied again (3)"
        assert [start.sequence for start in copy_of(made).starts] == [6]


def test_a_newer_server_is_told_where_sources_had_got_to() -> None:
    action = copy_of(plan(ORIGIN, COPY, known=GONE))
    assert not rules(action) and not action.reshape
    assert [(start.sequence, start.told) for start in action.starts] == [(9, True)]


@pytest.mark.parametrize(("version", "wire"), [(OLD, SendAs.V1), (NEW, SendAs.V2)])
def test_sources_resume_by_a_start_sequence_where_that_is_asked_for(version: tuple[int, ...], wire: SendAs) -> None:
    action = copy_of(plan(ORIGIN, COPY, known=GONE, version=version, wire=wire, resume_sources=True))
    assert action.config["sources"] == [{"name": "O", "opt_start_seq": 10}]
    assert mend(action).raised == (6, 9) and Rule.RESUMED in rules(action)


def test_streams_that_copy_from_what_is_replaced_are_told_of_in_numbers() -> None:
    there = SourceInfo("O", 0, 0, None, None, seq=8)
    left = replace(live("LEFT", 8, sources=[{"name": "O"}]), sources=(there,))
    mirror = live("AHEAD", 14, mirror={"name": "O"})

    def said(**options: Any) -> str:
        made = plan(ORIGIN, there=(live("O", 3), left, mirror), if_exists=IfExists.REPLACE, **options)
        warnings = copy_of(made, "O").warnings
        return "; ".join(one.reason for one in warnings if one.rule is Rule.COPIED_BY)

    again = "LEFT copies from it, treats it as a different stream and copies all of it again: 10 messages at most"
    assert again in said(wire=SendAs.V2)
    assert "stream LEFT copies from it, keeps what it has and continues after sequence 8" in said()
    assert "AHEAD copies nothing new until sequence 14 is passed" in said()
    assert "AHEAD overwrites what it has with what comes" in said(version=OLD)
