"""What comes of a restore, as far as a manifest tells: what expires, what comes again, what is destroyed, how long."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ArchivedConsumer, ConsumerState, Fidelity, PendingAck, SequencePair, StreamState
from jsbackup.planning.forecast import may_come_again, time_bounds
from jsbackup.planning.model import IfExists, PlannedConsumer, RestoreOptions, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.rules import Rule
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import (
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    ObjectRef,
    SegmentRef,
    Source,
    StreamBackup,
)
from tests.planning.test_plan import NEW, NOW, consumer, existing, stream

SECOND = 1_000_000_000


def segment(first: int, last: int, min_ns: int, max_ns: int, size: int = 100) -> SegmentRef:
    messages = last - first + 1
    return SegmentRef(f"s/{first}", first, last, messages, size, min_ns, max_ns, 1, "0" * 64, "0" * 64, StreamDigest())


def segmented(**config: object) -> StreamBackup:
    """Messages 1 to 10 of the seconds 1 to 10, and 11 to 20 of the seconds 11 to 20."""
    made = stream("S", messages=20, **config)
    segments = (segment(1, 10, SECOND, 10 * SECOND), segment(11, 20, 11 * SECOND, 20 * SECOND))
    state = StreamState(messages=20, first_seq=1, last_seq=20, first_ns=SECOND, last_ns=20 * SECOND)
    return replace(made, segments=segments, state=state)


def warned(
    entry: StreamBackup, *, now_ns: int = 0, there: tuple[StreamInfo, ...] = (), payload: int = 0
) -> dict[str, str]:
    """Rules and reasons."""
    manifest = Manifest("20261121T014500Z-000001", NOW, "t", Source("2.15.1"), BackupResult.COMPLETE, (entry,))
    streams = {info.name: info for info in there}
    target = Target(NEW, False, streams, now_ns=now_ns, max_payload_bytes=payload)
    plan = plan_restore(manifest, target, RestoreOptions(if_exists=IfExists.REPLACE))
    return {found.rule: found.reason for found in plan.actions[0].warnings}


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (5, None),
        (15, "expire at once: 0 to 10 of 20 messages"),
        (21, "expire at once: 10 of 20 messages"),
        (25, "expire at once: 10 to 20 of 20 messages"),
        (31, "expire at once: 20 of 20 messages"),
    ],
)
def test_what_expires_is_counted_by_segments(now: int, told: str | None) -> None:
    found = warned(segmented(max_age=10 * SECOND), now_ns=now * SECOND)
    if told is None:
        assert found[Rule.MAX_AGE].startswith("has max_age") and Rule.EXPIRES not in found
    else:
        assert found[Rule.EXPIRES] == f"older than its max_age, and {told}"


def test_what_a_replacement_destroys_is_told() -> None:
    newer = replace(existing("S", "S.>"), state=StreamState(messages=9, first_seq=20, last_seq=28, consumers=2))
    found = warned(segmented(), there=(newer,))
    assert found[Rule.DESTROYS_CONSUMERS] == "brings back at most 0 consumers; the replaced stream has 2"
    another = warned(segmented(), there=(replace(newer, created="2026-11-22T00:00:00Z"),))
    assert Rule.DESTROYS_ANOTHER in another
    same = replace(existing("S", "S.>"), state=StreamState(messages=20, first_seq=1, last_seq=20))
    assert warned(segmented(), there=(same,)) == {}


def _planned(entry: ConsumerBackup) -> PlannedConsumer:
    archived = ArchivedConsumer(entry.name, entry.config, entry.state, entry.created)
    return PlannedConsumer(archived, entry.fidelity, pending=entry.pending)


def test_messages_that_come_again_are_counted_at_the_most() -> None:
    entry = segmented()
    pending = {3: PendingAck(3, 0), 5: PendingAck(5, 0)}
    state = ConsumerState(SequencePair(6, 6), SequencePair(2, 2), pending=pending)
    exact = replace(consumer("c"), state=state)
    assert may_come_again(entry, _planned(exact)) == 2
    aside = replace(exact, pending=ObjectRef("k", 1, "0" * 64))
    assert may_come_again(entry, _planned(aside)) is None
    floor = replace(exact, fidelity=Fidelity.FLOOR, state=ConsumerState(SequencePair(15, 15), SequencePair(13, 13)))
    assert may_come_again(entry, _planned(floor)) == 7
    for policy, count in (("all", 20), ("new", 0), ("by_start_time", None)):
        anew = replace(consumer("c", deliver_policy=policy), fidelity=Fidelity.CONFIG_ONLY, state=None)
        assert may_come_again(entry, _planned(anew)) == count


def test_times_are_exact_where_the_server_told_them_and_bounds_elsewhere() -> None:
    entry = segmented()
    assert time_bounds(entry) == (SECOND, 20 * SECOND, True)
    grown = replace(entry, state=replace(entry.state, last_seq=19, last_ns=19 * SECOND))
    assert time_bounds(grown) == (SECOND, 20 * SECOND, False)
    assert time_bounds(replace(entry, captured=Captured(0, 0, 0, 0, NOW, NOW))) == (0, 0, True)
