"""What a preview says is what the restore of the same backup decides: for random options, streams and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from jsbackup.config import parse_glob
from jsbackup.engine.restore.restore import Prepared, make_sure
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.errors import IntegrityError, JsBackupError, UsageError
from jsbackup.exit_codes import DAMAGE
from jsbackup.model import ConsumerState, Fidelity, SequencePair, StreamState
from jsbackup.planning.model import Action, Consumers, IfExists, RestoreOptions, RestorePlan, Target
from jsbackup.planning.preflight import locked_away, missing_objects
from jsbackup.planning.rules import Finding
from jsbackup.planning.stored_facts import counted, first_decision
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps
from tests.harness.backups import CREATED, FIRST, INCARNATION, SEGMENT_BYTES, make_repository
from tests.harness.batches import Message, batch_of
from tests.harness.servers import EXPLORE
from tests.planning.test_plan import existing

SECOND = 1_000_000_000
BEGIN = 1_763_689_500 * SECOND  # the time at which backups of tests are captured, 2025-11-21T01:45:00Z, and earlier
NAMES = ("A", "B", "KV_c")
BLOCKS = (None, b"NATS/1.0\r\nKind: x\r\n\r\n", b"NATS/1.0\r\nNats-TTL: 5s\r\n\r\n")
PAYLOADS = (b'{"name": "x"}', b"text", b"", bytes(1500))


def subject_of(stream: str) -> str:
    return "$KV.c" if stream == "KV_c" else stream.lower()


@st.composite
def streams(draw: st.DrawFn, objects: Objects, name: str) -> StreamBackup:
    sequence, messages = draw(st.integers(0, 3)), []
    for number in range(draw(st.integers(0, 9))):
        sequence += draw(st.integers(1, 2))
        subject = f"{subject_of(name)}.{draw(st.sampled_from('xyz'))}"
        content = draw(st.sampled_from(BLOCKS)), draw(st.sampled_from(PAYLOADS))
        messages.append(Message(sequence, BEGIN + number * SECOND, subject, *content))
    config: dict[str, Any] = {"name": name, "subjects": [f"{subject_of(name)}.>"], "storage": "file"}
    config |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "max_age": st.sampled_from([5 * SECOND, 60 * SECOND]),
                "max_msgs_per_subject": st.sampled_from([1, 5]),
                "allow_msg_ttl": st.just(True),
                "storage": st.just("memory"),
                "num_replicas": st.sampled_from([1, 1, 1, 3]),
            },
        )
    )
    if draw(st.integers(0, 3)) == 0:
        kind = draw(st.sampled_from(["mirror", "sources"]))
        origin = {"name": draw(st.sampled_from([one for one in NAMES if one != name]))}
        config |= {"subjects": [], kind: origin if kind == "mirror" else [origin]}
    writer = SegmentWriter(objects, objects.sealing.folder(name, INCARNATION), segment_bytes=SEGMENT_BYTES)
    writer.add(batch_of(messages))
    segments = writer.finish()
    total = total_of(segments)
    first_ns, last_ns = (messages[0].timestamp_ns, messages[-1].timestamp_ns) if messages else (0, 0)
    reached = SequencePair(total.last_seq, total.last_seq)
    consumer = ConsumerBackup(
        "small", {"durable_name": "small"}, CREATED, Fidelity.EXACT, ConsumerState(reached, reached)
    )
    return StreamBackup(
        name=name,
        incarnation=INCARNATION,
        config=config,
        created=CREATED,
        state=StreamState(total.messages, total.bytes, total.first_seq, first_ns, total.last_seq, last_ns),
        captured=Captured.of(total, CREATED, CREATED),
        archive_format=ArchiveFormat.V2,
        digest=total.digest,
        segments=tuple(segments),
        consumers=(consumer,) if draw(st.booleans()) else (),
    )


_MASKS = ("a.>:$.name=redact", "$KV.c.x:payload=zero", "b.>:$.mail=redact", ">:header(Kind)=redact")
SUBJECTS = ("a.x", "a.>", "b.*", "*.y", "$KV.c.x")


def lists(*choices: str) -> st.SearchStrategy[list[str]]:
    """Mostly none of them."""
    return st.one_of(st.just([]), st.just([]), st.lists(st.sampled_from(choices), min_size=1, max_size=2, unique=True))


RESHAPES = st.builds(
    lambda since, until, subject, header, masks, unmaskable, newest, renumber, maps: Reshape(
        cut=Cut.parse(since, until, BEGIN),
        filters=Filters.parse({"subject": subject, "header": header}),
        masks=Masks.parse(masks, unmaskable),
        maps=SubjectMaps.parse(maps),
        newest=NewestRule.of(newest, False),
        renumber=renumber,
    ),
    since=st.sampled_from([None, None, "2", "2025-11-21T01:45:02Z"]),
    until=st.sampled_from([None, None, "4", "2025-11-21T01:45:03Z"]),
    subject=lists(*SUBJECTS),
    header=lists("Kind", "Kind: x", "None"),
    masks=lists(*_MASKS),
    unmaskable=st.sampled_from(["refuse", "drop", "keep"]),
    newest=st.sampled_from([None, None, None, 1, 2]),
    renumber=st.sampled_from([False, False, True]),
    maps=lists("a.>=>d.>", "b.>=>e.>"),
)
OPTIONS = st.builds(
    RestoreOptions,
    streams=lists("A", "*", "KV_*").map(lambda texts: tuple(map(parse_glob, texts))),
    exclude=lists("B").map(lambda texts: tuple(map(parse_glob, texts))),
    if_exists=st.sampled_from([*IfExists, IfExists.REPLACE, IfExists.REPLACE]),
    consumers=st.sampled_from(Consumers),
    replicas=st.sampled_from([None, None, 1]),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "max_age": st.sampled_from([None, 3 * SECOND, 99 * SECOND]),
            "max_msgs_per_subject": st.sampled_from([1, 2]),
            "mirror": st.none(),
            "storage": st.just("file"),
        },
    ),
    renames=lists("A=D", "B=E").map(RenameOptions.parse),
    reshape=RESHAPES,
    replace_with_part=st.booleans(),
    adapt=st.booleans(),
    allow_nothing=st.booleans(),
    resume_sources=st.booleans(),
)


@st.composite
def targets(draw: st.DrawFn) -> Target:
    there = {}
    for name in draw(st.lists(st.sampled_from([*NAMES, "D", "E"]), max_size=2, unique=True)):
        held = draw(st.integers(0, 12))
        state = StreamState(messages=held, first_seq=1, last_seq=held, first_ns=BEGIN, last_ns=BEGIN + held * SECOND)
        info = existing(name, f"{subject_of(name)}.>")
        metadata = draw(st.sampled_from([{}, {}, {"jsbackup.restoring": "x"}]))
        there[name] = replace(info, state=state, config={**info.config, "metadata": metadata})
    leftovers = frozenset(name for name, info in there.items() if info.config["metadata"])
    now_ns = BEGIN + draw(st.integers(0, 100)) * SECOND
    version = draw(st.sampled_from([(2, 10, 26), (2, 12, 8), (2, 15, 3), (2, 15, 3), (2, 15, 3)]))
    return Target(version, draw(st.sampled_from([False, True])), there, leftovers, now_ns=now_ns)


def said_of(action: Action) -> Mapping[str, object]:
    """What a plan says of a stream; sizes after transformation are the restore's."""
    captured = action.entry.captured
    return {
        "stream": (action.entry.name, action.name, action.config, action.wire, action.replaces, action.leftover),
        "messages": (captured.messages, captured.first_seq, captured.last_seq, action.counted, action.first_dropped),
        "lost": (action.left_out, action.expiring, action.outlived),
        "consumers": action.consumers,
        "warnings": action.warnings,
        "starts": action.starts,
    }


def findings(plan: RestorePlan) -> tuple[tuple[Finding, ...], ...]:
    return plan.refusals, plan.skipped, plan.warnings


@pytest.mark.slow
@settings(
    max_examples=200 if EXPLORE else 40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_a_preview_says_what_the_restore_decides(data: st.DataObject) -> None:
    repository = make_repository(MemoryStore())
    objects = repository.objects
    entries = tuple(data.draw(streams(objects, name)) for name in NAMES)
    manifest = Manifest(FIRST, CREATED, "jsbackup tests", Source("2.15.1"), BackupResult.COMPLETE, entries)
    options, target = data.draw(OPTIONS), data.draw(targets())
    segments = [ref.key for entry in entries for ref in entry.segments]
    if segments and data.draw(st.integers(0, 9)) == 0:
        objects.store.delete(data.draw(st.sampled_from(segments)))
    try:
        first = first_decision(repository.objects, manifest, target, options)
    except UsageError:
        event("usage")
        return
    preview = counted(objects, first)
    preview = preview.finding([*missing_objects(objects, preview), *locked_away(objects, preview.plan)])
    if first.plan.refusals:  # a restore reads no messages then, which may be refused as well
        event("refused at once")
        said = {(found.stream, found.rule) for found in preview.plan.refusals}
        assert {(found.stream, found.rule) for found in first.plan.refusals} <= said
        return
    try:
        restored = make_sure(repository, Prepared(first, True), RestoreSettings())
    except JsBackupError as error:
        event(f"refused {error.exit_code}")
        if isinstance(error, IntegrityError):  # found before messages are read, which may be refused as well
            assert DAMAGE in {found.code for found in preview.plan.refusals}
        else:
            assert preview.plan.code == error.exit_code, (preview.plan.refusals, error)
        return
    event("restored")
    assert findings(preview.plan) == findings(restored.plan)
    assert [list(map(said_of, stage)) for stage in preview.plan.stages] == [
        list(map(said_of, stage)) for stage in restored.plan.stages
    ]
