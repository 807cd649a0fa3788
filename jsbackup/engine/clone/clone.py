"""Clone streams of one server into another, planned and executed like a restore, without storing them.

The source is described as if it were a backup made just now; so the plan is the same pure function, and refuses for the
same reasons. Messages are read while they are sent (`live.py`).

For a lower `max_msgs_per_subject` the source is asked how many messages its subjects have.

A clone restores origins first, so that copies find them; but a copy read after its origin would be ahead of it. So the
ends of copies are noted before any origin is read, downstream first, and copies are cloned up to there. Later messages
they copy again from the cloned origin. A copy that is still empty then is cloned empty. Copies that are also published
to are cloned completely: cut at their end before the origins were read, they would lack messages overwritten meanwhile.
Their marks are limited to the ends of their origins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from jsbackup.config.connection import Connection
from jsbackup.engine.backup.backup import choose_streams
from jsbackup.engine.clone.stream_clone import Ends, LiveSupply
from jsbackup.engine.link.concurrency import gather_some, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, advisories, connect_jetstream
from jsbackup.engine.link.source import describe_source, jetstream_place
from jsbackup.engine.read.consume import Row, rows_as_batch
from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.engine.read.mirrors import order_of, reach_of
from jsbackup.engine.read.snapshot_transfer import CaptureLimits
from jsbackup.engine.restore.after_restore import look_at_copying, wait_for_replicas
from jsbackup.engine.restore.execution import Execution, bytes_to_move
from jsbackup.engine.restore.replacing import count_left_out
from jsbackup.engine.restore.restore import RestoreReport
from jsbackup.engine.restore.run import RestoredStream, RestoreRun
from jsbackup.engine.restore.send_archive import Supply
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.engine.restore.target import look_at, may_update, not_allowed, refused_configs
from jsbackup.errors import FormatError, NatsError, NatsPermissionDenied, PlanRefused
from jsbackup.failure import Failure
from jsbackup.formats.digest import StreamDigest
from jsbackup.planning.configs.features import V2_SINCE
from jsbackup.planning.configs.overrides import trims
from jsbackup.planning.copies.copy_facts import NOTHING_KNOWN, CopyFacts, SourceFacts, sources_of
from jsbackup.planning.copies.creation_order import origin_names
from jsbackup.planning.interrupted import replaced_by
from jsbackup.planning.model import IfExists, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.planning.plan import Decision, Facts, judge, plan_restore, shape
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import against_missed
from jsbackup.planning.selection.masking import about_nothing_kept, about_sample, about_unseen
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.planning.stored_facts import NO_SECRET, SUBJECT_LIMIT, lowered_subject_limit
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, stored_config
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    Manifest,
    SegmentRef,
    SkippedStream,
    Source,
    StreamBackup,
)
from jsbackup.times import format_time
from jsbackup.transforms.batches import SEQUENCE
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, last_positions, source_key
from jsbackup.transforms.reshape import ReshapeTally

__all__ = ["note_ends", "preview_clone", "run_clone"]


_AT_ONCE = 64
_MOST = 8192  # how many sequences at the end of a stream are searched


async def note_ends(js: JetStream, streams: Sequence[StreamInfo]) -> tuple[list[StreamInfo], CopyFacts]:
    """Return the streams, with the present state of those that copy from each other, and what is known about copies.

    Raises NatsError if one of them does not answer.
    """
    names = {info.name for info in streams}
    copies = {info.name for info in streams if origin_names(info.config) & names - {info.name}}
    origins = {name for info in streams if info.name in copies for name in origin_names(info.config) & names}
    now = {info.name: info for info in streams}
    sources: dict[str, Mapping[SourceKey, SourceFacts]] = {}
    ends: dict[str, int] = {}
    growing = set()
    for name in (name for stage in order_of(streams).stages for name in stage if name in copies | origins):
        live = await js.find_stream(name)
        if live is None:
            continue
        now[name] = live
        if name not in copies:
            continue
        facts = await _facts_of(js, live, now) if sources_of(live.config) else None
        if live.config.get("subjects"):
            growing.add(name)
            facts = facts and {key: _at_least(sequence) for key, sequence in facts.items()}
        else:
            # A stream that was never used may begin at a sequence of its own.
            ends[name] = max(live.state.last_seq, live.state.first_seq - 1)
        if facts is not None:
            sources[name] = facts
    latest = [now[info.name] for info in streams]
    if any(origin_names(info.config) != origin_names(now[info.name].config) for info in streams):
        return await note_ends(js, latest)  # one has become a copy since it was listed: the order is another
    return latest, CopyFacts(sources, ends, frozenset(growing))


def _at_least(facts: SourceFacts) -> SourceFacts:
    """Return what is known for certain about a source that continues meanwhile."""
    return replace(facts, reached=facts.left.sequence if facts.left else 0, exact=False)


async def _facts_of(
    js: JetStream, info: StreamInfo, origins: dict[str, StreamInfo]
) -> dict[SourceKey, SourceFacts] | None:
    """Return the facts about the sources; None if they cannot be read."""
    keys = [source_key(source) for source in sources_of(info.config)]
    try:
        left = await _last_marks(js, info, keys)
    except (NatsError, FormatError):
        return None
    if left is None:
        return None
    said = {copied.key: copied.sequence for copied in reach_of(info, origins)}
    state = info.state
    facts = {}
    for key in keys:
        position = left.get(key)
        at = position.sequence if position else 0
        reached = max(at, said.get(key, 0))
        removed = state.last_seq - (position.at + position.later if position else state.messages)
        most = reached - at if key in said else removed
        facts[key] = SourceFacts(position, reached, key in said or not removed, (), most)
    return facts


async def _last_marks(
    js: JetStream, info: StreamInfo, keys: Sequence[SourceKey]
) -> dict[SourceKey, CopyPosition] | None:
    """Return the last marks of sources; None if the last messages do not have them, and earlier ones might."""
    first, last = max(info.state.first_seq, 1), info.state.last_seq
    least = max(first, last - _MOST + 1)
    positions: dict[SourceKey, CopyPosition] = {}
    seen = 0
    while last >= least and len(positions) < len(keys) and info.state.messages:
        sequences = range(max(least, last - _AT_ONCE + 1), last + 1)
        got = await asyncio.gather(*(js.message(info.name, sequence) for sequence in sequences))
        rows = [Row(m.sequence, m.timestamp_ns, m.subject.encode(), m.headers, m.data) for m in got if m is not None]
        if rows:
            batch = rows_as_batch(rows)
            for key, position in last_positions(batch, keys).items():
                positions.setdefault(
                    key, CopyPosition(position.sequence, position.identity, position.at, position.later + seen)
                )
            seen += len(batch.column(SEQUENCE))
        last = sequences[0] - 1
    return positions if len(positions) == len(keys) or last < first else None


# --- what a source tells about masks, filters and limits ---

_MOST_SUBJECTS = 100_000  # are asked for; of more, only their number counts
_LIVE_MESSAGES = 20  # requested one by one, for each mask
_REQUESTS_AT_ONCE = 32


async def _subject_limits(js: JetStream, decision: Decision) -> list[Finding]:
    """Return refusals where subjects of the source have more messages than a limit that was asked for would leave.
    What filters leave out is not known. Raises NatsError.
    """
    refusals = []
    for action in decision.plan.actions:
        most = lowered_subject_limit(action, decision.shapes.options)
        if not most or action.reshape.drops:
            continue
        info = await js.stream(action.entry.name)
        held, left = info.state.messages, info.subject_count * most
        if 0 < info.subject_count <= _MOST_SUBJECTS:
            counts = (await js.subjects(action.entry.name, ">")).values()
            held, left = sum(counts), sum(min(count, most) for count in counts)
        if 0 < left < held:
            refusals.append(trims(action.entry.name, SUBJECT_LIMIT, left, held))
    return refusals


async def _absent(js: JetStream, decision: Decision) -> list[Finding]:
    """Return refusals where the source has no message of the named subjects. Raises NatsError."""
    options, refusals = decision.shapes.options, list[Finding]()
    filled = [entry for entry in decision.entries.values() if entry.captured.messages]
    if options.allow_nothing or not filled:
        return refusals
    if subjects := options.reshape.filters.subject:
        for entry, held in zip(filled, await _hold(js, filled, subjects), strict=True):
            if not held:
                refusals.append(about_nothing_kept(entry.name, entry.captured.messages, may_be_empty=False))
    if not any(finding.rule is Rule.MASK_AIMLESS for finding in decision.plan.refusals):
        masks = options.reshape.masks.masks
        absent = [mask for mask in masks if not any(await _hold(js, filled, [mask.subjects]))]
        refusals += about_unseen(absent, may_miss=False)
    return refusals


async def _hold(js: JetStream, entries: Sequence[StreamBackup], patterns: Sequence[str]) -> list[bool]:
    """Return for each stream whether it has a message of a matching subject."""

    async def holds(entry: StreamBackup) -> bool:
        for pattern in patterns:
            if await js.holds(entry.name, pattern):
                return True
        return False

    return await gather_some(_REQUESTS_AT_ONCE, holds, entries)


async def _sampled(js: JetStream, decision: Decision) -> list[Finding]:
    """Return what masks would do to a few messages of the source; nothing if none may be read. Raises NatsError."""
    findings: list[Finding] = []
    for action in decision.plan.actions:
        rows: dict[int, Row] = {}
        name, tally = action.entry.name, ReshapeTally()
        try:
            for mask in action.reshape.masks.masks:
                rows |= await _first_messages(js, name, mask.subjects)
        except NatsPermissionDenied:
            return []
        batch = rows_as_batch([rows[sequence] for sequence in sorted(rows)])
        masking = replace(action.reshape, newest=None)
        try:
            for _ in masking.apply([batch] if rows else [], stream=name, secret=NO_SECRET, tally=tally):
                pass
        except PlanRefused as error:
            findings.append(Finding(name, Rule.MASK_UNREADABLE, error.message, error.hint or ""))
        else:
            findings += about_sample(action, tally, f"in the first {_LIVE_MESSAGES} messages of each mask")
    return findings


async def _first_messages(js: JetStream, stream: str, subjects: str) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    sequence = 1
    while len(rows) < _LIVE_MESSAGES:
        message = await js.next_message(stream, sequence, subjects)
        if message is None:
            break
        sequence = message.sequence + 1
        rows[message.sequence] = Row(
            message.sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data
        )
    return rows


_log = logging.getLogger(__name__)

_CONSUMER_LISTS_AT_ONCE = 16
_CLONED = ("cloned", "jsbackup clone --dry-run")
_ITSELF = "is the stream itself: source and target are the same"
_ELSEWHERE = "Name another target, or clone it under another name."


@dataclass(frozen=True, slots=True)
class Survey:
    """The source as a manifest without objects, streams that did not answer, and what is known about copies."""

    manifest: Manifest
    failures: tuple[Failure, ...]
    copies: CopyFacts = NOTHING_KNOWN


@with_own_threads
async def run_clone(run: RestoreRun, source: Connection) -> RestoreReport:
    """Plan and execute a clone. If the plan is refused, raises PlanRefused or TargetConflict, and nothing was
    changed.
    """
    options = run.options
    async with connect_jetstream(source) as origin, connect_jetstream(run.connection) as js, advisories(js.link):
        survey = await _survey(origin, source, options, run.now_ns())
        decision = await _decide(origin, js, survey, options, target=await look_at(js, run.now_ns()))
        refuse_if_refused(decision.plan, *_CLONED)
        decision = await not_allowed(js, decision, proofs=False)
        refuse_if_refused(decision.plan, *_CLONED)
        marking = await may_update(js)
        decision = await refused_configs(js, decision, marking)
        refuse_if_refused(decision.plan, *_CLONED)
    plan, target = decision.plan, decision.target
    settings = run.settings
    at_once = max(1, min(settings.jobs, len(plan.actions)))
    limits = CaptureLimits().beside(at_once - 1)
    # Each stream holds batches at both ends: together they use as much memory as one restore.
    ahead = settings.limits.ahead_bytes // at_once
    settings = replace(settings, limits=replace(settings.limits, ahead_bytes=ahead))

    def replan(entry: StreamBackup, wire: SendAs) -> RestorePlan:
        # As planned, except for what is known by now. All streams, because renaming one depends on others.
        streams = (entry if stream.name == entry.name else stream for stream in survey.manifest.streams)
        asked = replace(decision.shapes.options, if_exists=IfExists.REPLACE, wire=wire)
        manifest = replace(survey.manifest, streams=tuple(streams), skipped=())
        facts = Facts({entry.name: KeptStream(entry)}, survey.copies, live=True)
        again = plan_restore(manifest, target, asked, facts)
        stages = tuple(tuple(action for action in stage if action.entry.name == entry.name) for stage in again.stages)
        refusals = tuple(finding for finding in again.refusals if finding.stream == entry.name)
        return replace(again, stages=stages, refusals=refusals)

    ends = Ends(survey.copies.growing)

    @asynccontextmanager
    async def live() -> AsyncIterator[Supply]:
        async with connect_jetstream(source) as js:
            yield LiveSupply(js, replan, limits, settings.mask_secret, ends=ends)

    run.progress.expect({action.name: bytes_to_move(action, settings) for action in plan.actions})
    run = replace(run, settings=settings)
    start = StartingPoint(survey.manifest.id, target, marking)
    results, failures = await Execution(run, live, start).all(plan)
    results = await wait_for_replicas(run.connection, results)
    results = _with_missed(results, options, ends)
    if settings.verify:
        results, failures = await look_at_copying(run.connection, plan, target, results, failures=failures)
    failures = sorted([*failures, *survey.failures], key=lambda failure: failure.name)
    return RestoreReport(plan, tuple(results), tuple(failures))


def _with_missed(results: Sequence[RestoredStream], options: RestoreOptions, ends: Ends) -> list[RestoredStream]:
    """Return the results; incomplete, with a note, if a filter met no message of all the streams."""
    missed = [] if options.allow_nothing else list(against_missed(options.reshape.filters, ends.matched))
    if not missed or not any(result.messages for result in results):
        return list(results)
    notes = tuple(finding.reason for finding in missed)
    return [replace(result, notes=(*result.notes, *notes), incomplete=True) for result in results]


@with_own_threads
async def preview_clone(
    source: Connection, connection: Connection, options: RestoreOptions, *, now_ns: Callable[[], int]
) -> tuple[Decision, Source]:
    """Return what a clone would do, with everything that blocks it among the refusals; and the source."""
    async with connect_jetstream(source) as origin, connect_jetstream(connection) as js:
        survey = await _survey(origin, source, options, now_ns())
        target = replace(await look_at(js, now_ns()), round_trip_seconds=await js.link.rtt())
        decision = await _decide(origin, js, survey, options, target=target)
        decision = await not_allowed(js, decision, proofs=True)
        decision = await refused_configs(js, decision, await may_update(js))
        decision = decision.finding(await _sampled(origin, decision))
    return decision, survey.manifest.source


async def _decide(
    origin: JetStream, js: JetStream, survey: Survey, options: RestoreOptions, *, target: Target
) -> Decision:
    """Decide, as far as the source can tell before its messages are read."""
    options = replace(options, exclude=())  # they are already left out
    same_place = (await jetstream_place(origin)).same(await jetstream_place(js))
    shapes = shape(survey.manifest, target, options, survey.copies.ends)
    selves = [stream.entry.name for stream in shapes.streams if same_place and stream.name == stream.entry.name]
    findings = tuple(Finding(name, Rule.ITSELF, _ITSELF, _ELSEWHERE) for name in selves)
    facts = Facts(copies=survey.copies, findings=findings, live=True)
    decision = await count_left_out(js, Decision(shapes, facts, judge(shapes, facts)), origin)
    decision = decision.finding(await _absent(origin, decision))
    return decision.finding(await _subject_limits(origin, decision))


async def _survey(js: JetStream, connection: Connection, options: RestoreOptions, now_ns: int) -> Survey:
    """Return the chosen streams and their consumers. Raises UsageError if a named stream does not exist, and
    NatsError.
    """
    source = await describe_source(js, connection)
    infos, failures, notes = await choose_streams(
        js, options.streams, options.exclude, pattern_may_miss=options.allow_nothing
    )
    for note in notes:
        _log.warning("%s", note)
    copied = any(replaced_by(info.name, info.config) for info in infos)  # the originals are incomplete
    infos, copies = await note_ends(js, infos)

    async def described(info: StreamInfo) -> StreamBackup:
        inventory: Listing[ConsumerInfo] = Listing({}, (), {})
        if info.state.consumers:
            inventory = await js.consumers(info.name)
        return _entry(info, inventory, source, version, now=created)

    version, _ = await js.serving()
    created = format_time(now_ns)
    entries = await gather_some(_CONSUMER_LISTS_AT_ONCE, described, infos)
    manifest = Manifest(
        id=f"clone-{created}",
        created=created,
        tool="",
        source=source,
        result=BackupResult.PARTIAL if failures or copied else BackupResult.COMPLETE,
        streams=tuple(sorted(entries, key=lambda entry: entry.name)),
        skipped=tuple(SkippedStream(failure.name, failure.error.message) for failure in failures),
    )
    return Survey(manifest, tuple(failures), copies)


def _entry(
    info: StreamInfo, inventory: Listing[ConsumerInfo], source: Source, version: tuple[int, ...], *, now: str
) -> StreamBackup:
    """Describe a stream as a backup would if it were made now, with the numbers that the server reports."""
    state = info.state
    archive_format = ArchiveFormat.V2
    if version[:2] < V2_SINCE:
        archive_format = ArchiveFormat.MESSAGES if info.config.get("storage") == "memory" else ArchiveFormat.V1
    whole = SegmentRef(
        key="",
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        messages=state.messages,
        bytes=state.bytes,
        min_ns=state.first_ns,
        max_ns=state.last_ns,
        size=0,
        sha256="",
        digest="",
        fingerprint=StreamDigest(),
    )
    known = merge_consumers((), inventory, state.last_seq)
    first_seq, last_seq = (state.first_seq, state.last_seq) if state.messages else (0, 0)
    return StreamBackup(
        name=info.name,
        incarnation=source.incarnation(info.name, info.created),
        config=stored_config(info.config),
        created=info.created,
        state=state,
        captured=Captured(state.messages, state.bytes, first_seq, last_seq, now, now),
        archive_format=archive_format,
        segments=(whole,) if state.messages else (),
        consumers=tuple(map(as_backed_up, known)),
    )
