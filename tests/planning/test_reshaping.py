"""The plan of streams that are renamed, mapped, cut, filtered and masked: what follows, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.errors import UsageError
from jsbackup.formats.digest import StreamDigest
from jsbackup.planning.model import Consumers, RestorePlan
from jsbackup.planning.rules import Rule
from jsbackup.repository.manifest import (
    Captured,
    SegmentRef,
    StreamBackup,
)
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps
from tests.planning.test_plan import NOW, consumer, existing, plan, rules, stream

NOW_NS = parse_time(NOW)
HOUR = 3_600_000_000_000


def reshaped(
    *streams: StreamBackup,
    rename: tuple[str, ...] = (),
    maps: tuple[str, ...] = (),
    subjects: tuple[str, ...] = (),
    masks: tuple[str, ...] = (),
    cut: Cut | None = None,
    **more: Any,
) -> RestorePlan:
    reshape = Reshape(
        cut or Cut(),
        Filters.parse({"subject": subjects}),
        SubjectMaps.parse(maps),
        masks=Masks.parse(masks),
    )
    return plan(*streams, renames=RenameOptions.parse(rename), reshape=reshape, **more)


def segment(first: int, last: int, begin_ns: int, end_ns: int) -> SegmentRef:
    count = last - first + 1
    return SegmentRef(f"s{first}", first, last, count, 10 * count, begin_ns, end_ns, 5, "", "", StreamDigest())


def stored(name: str, *segments: SegmentRef, begun: int = NOW_NS, **config: Any) -> StreamBackup:
    """A stream with segments, read at `begun`."""
    messages, size = sum(one.messages for one in segments), sum(one.bytes for one in segments)
    first, last = segments[0].first_seq, segments[-1].last_seq
    entry = stream(name, messages=messages, **config)
    moment = format_time(begun)
    return replace(
        entry,
        state=replace(entry.state, first_seq=first, last_seq=last, bytes=size),
        captured=Captured(messages, size, first, last, moment, moment),
        segments=segments,
    )


# --- names ---


def test_streams_get_other_names_and_what_copies_from_them_follows() -> None:
    copy = stream("COPY", subjects=[], mirror={"name": "ORIGIN"})
    other = stream("OTHER", subjects=["o"], sources=[{"name": "ORIGIN"}, {"name": "ELSEWHERE"}])
    made = reshaped(stream("ORIGIN"), copy, other, rename=("*=N_*",))
    configs = {action.entry.name: action.config for action in made.actions}
    assert {old: config["name"] for old, config in configs.items()} == {
        n: f"N_{n}" for n in ("ORIGIN", "COPY", "OTHER")
    }
    assert configs["COPY"]["mirror"] == {"name": "N_ORIGIN"}
    assert configs["OTHER"]["sources"] == [{"name": "N_ORIGIN"}, {"name": "ELSEWHERE"}]
    assert [[action.name for action in stage] for stage in made.stages] == [["N_ORIGIN"], ["N_COPY", "N_OTHER"]]
    assert not any(action.reshape for action in made.actions if action.name != "N_OTHER")  # nothing to be read for it


def test_what_is_there_counts_by_the_new_name() -> None:
    there = (existing("OLD", "elsewhere"), existing("S", "s.other"))
    assert rules(reshaped(stream("S"), rename=("S=OLD",), there=there)) == [Rule.EXISTS]
    assert rules(reshaped(stream("S"), rename=("S=NEW",), there=there)) == []
    assert rules(reshaped(stream("S"), rename=("S=NEW",), there=(existing("S", "S.>"),))) == [Rule.SUBJECT_OVERLAP]


def test_two_streams_cannot_get_one_name() -> None:
    made = reshaped(stream("A"), stream("B"), rename=("A=B",))
    assert [(found.stream, found.rule) for found in made.refusals] == [
        ("A", Rule.RENAME_COLLISION),
        ("B", Rule.RENAME_COLLISION),
    ]
    assert rules(reshaped(stream("A"), stream("B"), rename=("A=B", "B=A"))) == []


def test_a_name_that_cannot_be_is_refused_for_its_stream() -> None:
    long = stream("L" * 254)
    made = reshaped(long, stream("S"), rename=("*=N_*",))
    assert [(found.stream, found.rule) for found in made.refusals] == [(long.name, Rule.RENAME)]
    assert [action.name for action in made.actions] == ["N_S"]
    with pytest.raises(UsageError, match="NOPE"):
        reshaped(stream("S"), rename=("NOPE=N",))


@pytest.mark.parametrize(
    ("kind", "name", "subjects"),
    [
        ("KV_", "KV_near", ["$KV.near.>"]),
        ("KV_", "KV_new", ["$KV.new.>"]),
        ("KV_", "KV_cfg", ["$KV.cfg.>"]),
        ("OBJ_", "OBJ_near", ["$O.near.C.>", "$O.near.M.>"]),
        ("OBJ_", "OBJ_cfg", ["$O.cfg.C.>", "$O.cfg.M.>"]),
    ],
)
def test_a_mirror_of_a_bucket_that_is_one_no_more_is_a_bucket(kind: str, name: str, subjects: list[str]) -> None:
    reader = consumer("w", filter_subject="$KV.cfg.a")
    mirror = stream(f"{kind}near", subjects=[], mirror={"name": f"{kind}cfg"}, consumers=(reader,))
    rename = () if name == mirror.name else (f"{mirror.name}={name}",)
    origin = () if name.endswith("cfg") else (stream(f"{kind}cfg", subjects=[f"$X.{kind}cfg.>"]),)
    made = reshaped(mirror, *origin, rename=rename, fields={"mirror": None})
    assert rules(made) == []
    (action,) = (one for one in made.actions if one.entry.name == mirror.name)
    assert (action.name, action.config["subjects"], action.config.get("mirror")) == (name, subjects, None)
    (warning,) = (one for one in action.warnings if one.rule is Rule.PROMOTED)
    assert subjects[0] in warning.reason
    if kind == "KV_":
        assert action.reshape.move("$KV.cfg.a") == subjects[0].replace(">", "a")
        assert action.consumers[0].consumer.config["filter_subject"] == subjects[0].replace(">", "a")
    (by_hand,) = reshaped(mirror, fields={"mirror": None, "subjects": ["other.>"]}).actions
    assert by_hand.config["subjects"] == ["other.>"]
    for one in made.actions:
        if one.entry.name != mirror.name:
            assert not one.reshape and one.config["subjects"] == [f"$X.{kind}cfg.>"]


def test_maps_of_everything_leave_buckets_to_their_names() -> None:
    bucket = stream(
        "KV_cfg",
        subjects=["$KV.cfg.>"],
        republish={"src": ">", "dest": "told.>"},
        consumers=(consumer("w", filter_subject="$KV.cfg.a"), consumer("all", filter_subject=">")),
    )
    mirror = stream("KV_m", subjects=[], mirror={"name": "KV_cfg"})
    wide_mirror = replace(mirror, consumers=(consumer("w", filter_subject="*.*.a"),))
    transforms = [{"src": "$KV.cfg.>", "dest": "$KV.sum.>"}]
    summed = stream("KV_sum", subjects=["$KV.sum.>"], sources=[{"name": "KV_cfg", "subject_transforms": transforms}])
    audit = stream(
        "AUDIT",
        subjects=[],
        sources=[{"name": "KV_cfg"}, {"name": "S", "filter_subject": "s.x"}, {"name": "OBJ_elsewhere"}],
        consumers=(consumer("w", filter_subject="$KV.cfg.>"), consumer("o", filter_subject="s.x")),
    )
    mqtt = stream("$MQTT_msgs", subjects=["$MQTT.msgs.>"])
    every = (bucket, mirror, summed, audit, stream("S", subjects=["s.*"]))

    def becomes(made: RestorePlan) -> dict[str, tuple[Any, list[Any]]]:
        assert rules(made) == []
        return {
            action.entry.name: (action.config, [one.consumer.config.get("filter_subject") for one in action.consumers])
            for action in made.actions
        }

    for wide in (">=>t.>", "*.>=>t.$1.>"):
        found = becomes(reshaped(*every, maps=(wide, "*=>t.$1"), rename=("*=p-*",)))
        assert found["S"][0]["subjects"] == ["t.s.*"]
        assert found["KV_cfg"][0]["subjects"] == ["$KV.p-cfg.>"] and found["KV_cfg"][1] == ["$KV.p-cfg.a", ">"]
        assert found["KV_cfg"][0]["republish"] == {"src": ">", "dest": "t.told.>"}
        assert found["KV_m"][0]["mirror"] == {"name": "KV_p-cfg"}
        (source,) = found["KV_sum"][0]["sources"]
        assert source["subject_transforms"] == [{"src": "$KV.p-cfg.>", "dest": "$KV.p-sum.>"}]
        assert found["AUDIT"][0]["sources"][:2] == [{"name": "KV_p-cfg"}, {"name": "p-S", "filter_subject": "t.s.x"}]
        assert found["AUDIT"][1] == ["$KV.p-cfg.>", "t.s.x"]
        assert becomes(reshaped(wide_mirror, maps=(wide,)))["KV_m"][1] == ["*.*.a"]
        assert becomes(reshaped(mqtt, maps=(wide,)))["$MQTT_msgs"][0]["subjects"] == ["$MQTT.msgs.>"]


def test_maps_written_for_a_bucket_are_its_new_name_or_refused() -> None:
    bucket, other = stream("KV_a", subjects=["$KV.a.>"]), stream("KV_b", subjects=["$KV.b.>"])
    mirror, plain = stream("KV_m", subjects=[], mirror={"name": "KV_a"}), stream("S", subjects=["s.>"])
    mqtt = stream("$MQTT_msgs", subjects=["$MQTT.msgs.>"])
    for named in ("$KV.a.>=>$KV.z.>", "$KV.*.x=>x.$1", "$KV.>=>kv.>"):
        for one in (bucket, mirror):
            assert rules(reshaped(one, plain, maps=(named,))) == [Rule.MAP_BUCKET]
        assert rules(reshaped(plain, maps=(named,))) == [Rule.MAP_AIMLESS]
    assert rules(reshaped(mqtt, maps=("$MQTT.msgs.>=>m.>",))) == [Rule.MAP_BUCKET]
    turned = reshaped(bucket, other, rename=("KV_a=KV_b", "KV_b=KV_a"), maps=("$KV.a.>=>$KV.b.>",))
    assert rules(turned) == []
    assert {action.name: action.config["subjects"] for action in turned.actions} == {
        "KV_b": ["$KV.b.>"],
        "KV_a": ["$KV.a.>"],
    }
    assert [action.reshape.move("$KV.a.k") for action in turned.actions] == ["$KV.b.k", "$KV.b.k"]


# --- subjects ---


def test_what_cannot_follow_the_subjects_is_refused() -> None:
    republishing = stream("S", subjects=["a.*.*"], republish={"src": "a.>", "dest": "r.>"})
    assert rules(reshaped(republishing, maps=("a.*.x=>b.$1.y",))) == [Rule.MAP_STREAM]
    filtered = stream("S", subjects=["a.*.*"], consumers=(consumer("c", filter_subject="a.x.>"),))
    assert rules(reshaped(filtered, maps=("a.*.*=>b.$2.c",))) == [Rule.MAP_CONSUMER]
    assert rules(reshaped(filtered, maps=("a.*.*=>b.$2.c",), consumers=Consumers.NONE)) == []


def test_subjects_that_become_one_are_refused_where_that_loses_messages() -> None:
    merging = ("a.*=>a.one",)
    (action,) = reshaped(stream("S", subjects=["a.*"]), maps=merging).actions
    assert [found.rule for found in action.warnings] == [Rule.SUBJECTS_MERGE]
    for keeps in ({"max_msgs_per_subject": 1}, {"allow_msg_counter": True}):
        assert rules(reshaped(stream("S", subjects=["a.*"], **keeps), maps=merging)) == [Rule.MAP_MERGES]


def test_masks_that_can_meet_no_message_are_refused() -> None:
    made = reshaped(stream("S", subjects=["a.>"]), masks=("a.*:$.m=redact", "typo.>:$.m=redact"))
    assert rules(made) == [Rule.MASK_AIMLESS]
    assert "typo.>" in made.refusals[0].reason


# --- cuts ---

DAY = [segment(1, 10, NOW_NS - 10 * HOUR, NOW_NS - 8 * HOUR), segment(11, 20, NOW_NS - 7 * HOUR, NOW_NS - 5 * HOUR)]


def test_segments_outside_a_cut_are_not_needed_and_bounds_say_what_is_kept() -> None:
    entry = stored("S", *DAY, consumers=(consumer("c"),))
    (action,) = reshaped(entry, cut=Cut(until=AtTime(NOW_NS - 8 * HOUR))).actions
    assert [one.key for one in action.entry.segments] == ["s1"]
    assert (action.entry.captured.messages, action.entry.captured.last_seq, action.counted) == (10, 10, False)
    (action,) = reshaped(entry, cut=Cut(since=AtSequence(15))).actions
    assert [one.key for one in action.entry.segments] == ["s11"]
    assert (action.entry.captured.first_seq, action.entry.captured.messages, action.counted) == (15, 10, False)
    (action,) = reshaped(entry, cut=Cut(until=AtSequence(20))).actions
    assert (action.entry, action.counted) == (entry, True)


@pytest.mark.parametrize(
    ("until", "found"),
    [
        (AtTime(NOW_NS), None),
        (AtTime(NOW_NS + 1), Rule.UNTIL_AFTER_BACKUP),
        (AtSequence(20), None),
        (AtSequence(21), Rule.UNTIL_AFTER_BACKUP),
        (AtTime(NOW_NS - 11 * HOUR), Rule.KEEPS_NOTHING),  # it was empty then
    ],
)
def test_an_end_that_the_backup_does_not_reach_is_refused(until: AtTime | AtSequence, found: Rule | None) -> None:
    made = reshaped(stored("S", *DAY), cut=Cut(until=until))
    assert rules(made) == ([] if found is None else [found])


def test_an_end_before_the_first_message_is_refused_where_earlier_ones_are_gone() -> None:
    trimmed = stored("S", DAY[1])
    assert rules(reshaped(trimmed, cut=Cut(until=AtTime(NOW_NS - 8 * HOUR)))) == [Rule.UNTIL_BEFORE_FIRST]
    begun_so = stored("S", DAY[1], first_seq=11)
    (action,) = reshaped(begun_so, allow_nothing=True, cut=Cut(until=AtTime(NOW_NS - 8 * HOUR))).actions
    assert [found.rule for found in action.warnings] == [Rule.NOTHING_KEPT]
    assert action.entry.captured.messages == 0
