"""The plan decides without a server: what is restored how, in which order, and what is refused with which code."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.errors import FormatError
from jsbackup.model import ConsumerState, Fidelity, SequencePair, StreamState
from jsbackup.planning.archive_choice import lifted, until_consumers
from jsbackup.planning.model import Consumers, IfExists, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    Source,
    StreamBackup,
)

NOW = "2026-11-21T01:45:00Z"
OLD, NEW = (2, 10, 26), (2, 15, 1)


def stream(name: str, *, consumers: tuple[ConsumerBackup, ...] = (), messages: int = 3, **config: Any) -> StreamBackup:
    whole = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1, "retention": "limits"}
    first = 1 if messages else 0
    return StreamBackup(
        name=name,
        incarnation="1a2b3c4d",
        config={**whole, **config},
        created=NOW,
        state=StreamState(messages=messages, first_seq=first, last_seq=messages),
        captured=Captured(messages, 100, first, messages, NOW, NOW),
        archive_format=ArchiveFormat.V2,
        consumers=consumers,
    )


def consumer(name: str, **config: Any) -> ConsumerBackup:
    state = ConsumerState(SequencePair(2, 2), SequencePair(1, 1))
    return ConsumerBackup(name, {"durable_name": name, **config}, NOW, Fidelity.EXACT, state)


def existing(name: str, *subjects: str) -> StreamInfo:
    config = {"name": name, "subjects": list(subjects)}
    return StreamInfo(name, config, NOW, 0, StreamState(), None, None, 0, None, None, (), 0)


def plan(
    *streams: StreamBackup,
    version: tuple[int, ...] = NEW,
    clustered: bool | None = False,
    there: tuple[StreamInfo, ...] = (),
    source: tuple[int, ...] = NEW,
    **options: Any,
) -> RestorePlan:
    manifest = Manifest(
        "20261121T014500Z-000001", NOW, "t", Source(".".join(map(str, source))), BackupResult.COMPLETE, streams
    )
    target = Target(version, clustered, {info.name: info for info in there})
    return plan_restore(manifest, target, RestoreOptions(**options))


def codes(made: RestorePlan) -> list[int]:
    return [refusal.code for refusal in made.refusals]


def wires(made: RestorePlan) -> dict[str, SendAs]:
    return {action.name: action.wire for action in made.actions}


def test_origins_come_before_what_copies_them() -> None:
    copy = stream("COPY", subjects=[], mirror={"name": "MIDDLE"})
    middle = stream("MIDDLE", subjects=[], sources=[{"name": "ORIGIN"}, {"name": "ELSEWHERE"}])
    made = plan(copy, middle, stream("ORIGIN"))
    assert [[action.name for action in stage] for stage in made.stages] == [["ORIGIN"], ["MIDDLE"], ["COPY"]]


def test_streams_that_copy_each_other_are_restored_all_the_same() -> None:
    one = stream("ONE", sources=[{"name": "TWO"}])
    two = stream("TWO", sources=[{"name": "ONE"}])
    assert {action.name for action in plan(one, two).actions} == {"ONE", "TWO"}


def test_a_consumer_kept_in_memory_brings_its_state_by_v2_or_starts_anew() -> None:
    held = stream("S", consumers=(consumer("c", mem_storage=True),))
    assert wires(plan(held)) == {"S": SendAs.V2}
    old = plan(held, version=(2, 14, 6)).actions[0]
    assert (old.wire, old.consumers[0].fidelity, old.consumers[0].consumer.state) == (
        SendAs.V1,
        Fidelity.CONFIG_ONLY,
        None,
    )
    assert "starts from its beginning" in old.consumers[0].note


@pytest.mark.parametrize(
    ("choice", "refused", "skipped", "replaces"),
    [(IfExists.FAIL, [16], [], False), (IfExists.SKIP, [], ["S"], None), (IfExists.REPLACE, [], [], True)],
)
def test_a_name_that_is_taken(choice: IfExists, refused: list[int], skipped: list[str], replaces: bool | None) -> None:
    made = plan(stream("S"), there=(existing("S", "S.>"),), if_exists=choice)
    assert codes(made) == refused
    assert [one.stream for one in made.skipped] == skipped
    assert [action.replaces for action in made.actions] == ([] if replaces is None else [replaces])


def test_subjects_of_another_stream_are_in_the_way_but_not_those_of_the_one_replaced() -> None:
    made = plan(stream("S"), there=(existing("OTHER", "S.a.*"),))
    assert codes(made) == [16]
    assert "OTHER" in made.refusals[0].reason
    assert codes(plan(stream("S"), there=(existing("S", "S.>"),), if_exists=IfExists.REPLACE)) == []


def test_replicas_need_a_cluster_or_an_option() -> None:
    three = stream("S", num_replicas=3, consumers=(consumer("c", num_replicas=3),))
    assert codes(plan(three)) == [15]
    assert codes(plan(three, clustered=True)) == []
    single = plan(three, replicas=1).actions[0]
    assert single.config["num_replicas"] == 1
    assert not single.consumers[0].consumer.config.get("num_replicas")  # as many as the stream
    assert [(change.field, change.before, change.after) for change in single.changes] == [("num_replicas", 3, 1)]


def test_first_seq_is_kept_from_servers_that_would_empty_the_stream() -> None:
    entry = stream("S", first_seq=1)
    for version, kept in {(2, 10, 27): False, (2, 10, 28): True, (2, 11, 1): False, (2, 11, 2): True}.items():
        assert ("first_seq" in plan(entry, version=version).actions[0].config) is kept


def test_consumers_can_start_anew_or_be_left_out() -> None:
    entry = stream("S", consumers=(consumer("c"),))
    assert plan(entry, consumers=Consumers.NONE).actions[0].consumers == ()
    anew = plan(entry, consumers=Consumers.CONFIG).actions[0].consumers[0]
    assert (anew.consumer.state, anew.fidelity) == (None, Fidelity.CONFIG_ONLY)
    assert plan(entry).actions[0].consumers[0].fidelity is Fidelity.EXACT


def rules(made: RestorePlan) -> list[str]:
    return [refusal.rule for refusal in made.refusals]


def test_subjects_of_two_streams_of_the_plan_are_in_each_others_way() -> None:
    made = plan(stream("A", subjects=["x.>"]), stream("B", subjects=["y", "x.*.z"]), stream("C"))
    assert [(found.stream, found.rule) for found in made.refusals] == [("B", Rule.SUBJECT_OVERLAP_IN_PLAN)]
    assert made.refusals[0].reason == "its subject x.*.z overlaps with x.> of stream A in the same backup"
    assert rules(plan(stream("A", subjects=["x.>"]), stream("B", subjects=["x.*.z"]), exclude=(parse_glob("B"),))) == []


def test_circles_of_sources_are_refused_as_far_as_the_server_would() -> None:
    two = stream("TWO", sources=[{"name": "ONE"}])
    assert rules(plan(stream("ONE", sources=[{"name": "TWO"}]), two)) == [Rule.CYCLE, Rule.CYCLE]
    # A filter that no subject of the stream can meet keeps them apart, another account is nobody's business.
    apart = stream("ONE", sources=[{"name": "TWO", "filter_subject": "other.>"}])
    assert rules(plan(apart, stream("TWO", sources=[{"name": "ONE", "filter_subject": "other.>"}]))) == []
    outside = stream("ONE", sources=[{"name": "TWO", "external": {"api": "$JS.x.API"}}])
    assert rules(plan(outside, two)) == []
    assert rules(plan(stream("SELF", subjects=[], mirror={"name": "SELF"}))) == [Rule.CYCLE]
    three = [stream(a, subjects=[], mirror={"name": b}) for a, b in (("A", "B"), ("B", "C"), ("C", "A"))]
    made = plan(*three)
    assert rules(made) == [Rule.CYCLE] * 3
    assert made.refusals[0].reason == "would copy in a circle: A from B from C from A"


def test_a_circle_through_streams_of_the_target_ends() -> None:
    there = replace(existing("X"), config={"name": "X", "sources": [{"name": "Y"}, {"name": 7}, "?"]})
    back = replace(existing("Y"), config={"name": "Y", "mirror": {"name": "X"}})
    assert rules(plan(stream("S", sources=[{"name": "X"}]), there=(there, back))) == []


def test_the_code_of_a_plan_is_that_of_the_restore() -> None:
    conflict = Finding("S", Rule.EXISTS, "")
    refused, denied = Finding("S", Rule.RENAME, ""), Finding("S", Rule.NOT_ALLOWED, "")
    lost = Finding("S", Rule.OBJECT_LOST, "")
    for found, code in (
        ((), 0),
        ((conflict,), 16),
        ((conflict, refused), 15),
        ((conflict, denied, lost), 16),
        ((denied, lost), 20),
        ((lost,), 14),
    ):
        assert RestorePlan("b", (), found).code == code


@pytest.mark.parametrize("version", [(2, 11, 11), (2, 12, 8)])
def test_a_maximum_of_consumers_that_no_update_can_set_is_refused(version: tuple[int, ...]) -> None:
    entry = stream("S", consumers=(consumer("a"), consumer("b")), max_consumers=1)
    made = plan(entry, version=version)
    assert rules(made) == ([Rule.SERVER_REFUSES] if version < (2, 12) else [])
    (action,) = made.actions
    assert "max_consumers" not in lifted(action) and until_consumers(action).get("max_consumers") is None
    assert not rules(plan(entry, version=version, consumers=Consumers.NONE))
    assert rules(plan(entry, version=version, fields={"max_consumers": 1})) == [Rule.SERVER_REFUSES]


# --- what a forged manifest may have as a configuration ---

STREAM: dict[str, Any] = {
    **dict.fromkeys(("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size"), -1),
    **dict.fromkeys(("max_age", "first_seq", "subject_delete_marker_ttl", "duplicate_window"), 1),
    **dict.fromkeys(
        ("allow_msg_ttl", "allow_msg_schedules", "allow_msg_counter", "sealed", "no_ack", "deny_purge"), True
    ),
    "description": "text",
    "discard": "new",
    "persist_mode": "async",
    "metadata": {"key": "value"},
    "placement": {"cluster": "C1", "tags": ["fast"]},
    "republish": {"src": ">", "dest": "again.>"},
    "subject_transform": {"src": "A.>", "dest": "B.>"},
    "consumer_limits": {"inactive_threshold": 5, "max_ack_pending": 5},
    "mirror": {"name": "O", "filter_subject": "a", "opt_start_seq": 1, "external": {"api": "x", "deliver": "y"}},
    "sources": [{"name": "P", "opt_start_time": NOW, "subject_transforms": [{"src": "a", "dest": "b"}]}],
}
CONSUMER: dict[str, Any] = {
    "ack_policy": "explicit",
    "deliver_policy": "all",
    "deliver_subject": "to",
    "filter_subject": "A.a",
    "filter_subjects": ["A.b"],
    "inactive_threshold": 9,
    "max_ack_pending": 9,
    "mem_storage": True,
    "num_replicas": 1,
    "pause_until": NOW,
    "priority_groups": ["g"],
}
WRONG: list[Any] = [None, "x", 17, -1, True, 1.5, [], {}, [17], [None], ["x"], [{}], {"a": 1}, {"name": 1}]


def _with_wrong(value: Any) -> Iterator[Any]:
    """Yield the value with each of its parts in turn replaced by something else, or left out."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        rest = [*value] if isinstance(value, list) else {**value}
        for other in (*WRONG, *_with_wrong(value[key])):
            rest[key] = other
            yield copy.deepcopy(rest)
        del rest[key]
        yield rest


@pytest.mark.parametrize(
    ("version", "fields"), [(OLD, {}), (NEW, {"max_msgs": 5, "retention": "workqueue"})], ids=["as it is", "set"]
)
def test_a_wrong_value_in_a_configuration_is_planned_or_a_format_error(
    version: tuple[int, ...], fields: dict[str, Any]
) -> None:
    whole = stream("A", consumers=(consumer("c", **CONSUMER),), **STREAM)
    (its,) = whole.consumers
    forged = [replace(whole, config=config) for config in _with_wrong(whole.config)]
    forged += [replace(whole, consumers=(replace(its, config=config),)) for config in _with_wrong(its.config)]
    refused = 0
    for one in forged:
        try:
            plan(one, version=version, there=(existing("A", "A.>"),), if_exists=IfExists.REPLACE, fields=fields)
        except FormatError as error:
            assert "in its stored configuration is damaged" in error.message
            refused += 1
    assert len(forged) > refused > 500
