"""Clone streams of one server into another, planned and executed like a restore, without storing them.

The source is described as if it were a backup made just now; so the plan is the same pure function, and refuses for the
same reasons. Messages are read while they are sent (`live.py`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from jsbackup.config import Connection
from jsbackup.engine.backup.backup import choose_streams
from jsbackup.engine.clone.copy_positions import note_ends
from jsbackup.engine.clone.growing_copies import Ends, OrderedSupply
from jsbackup.engine.clone.subject_limits import refuse_subject_limits
from jsbackup.engine.link.advisories import advisories
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.engine.link.source import describe_source, jetstream_place
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.engine.link.workers import gather_some
from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.restore.after_restore import wait_for_replicas
from jsbackup.engine.restore.execution import Execution, bytes_to_move
from jsbackup.engine.restore.preview import Preview, preview_plan
from jsbackup.engine.restore.replacing import count_dropped, count_left_out
from jsbackup.engine.restore.restore import RestoreReport
from jsbackup.engine.restore.restored_stream import RestoredStream
from jsbackup.engine.restore.run import RestoreRun
from jsbackup.engine.restore.sampling import refuse_absent, sample_live
from jsbackup.engine.restore.settled_copies import look_at_copying
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.engine.restore.stream_sources import Supply
from jsbackup.engine.restore.target import check_allowed, check_snapshot_allowed, look_at, may_update, try_configs
from jsbackup.failure import Failure
from jsbackup.formats.digest import StreamDigest
from jsbackup.planning.configs.features import V2_SINCE
from jsbackup.planning.copies.copy_facts import NOTHING_KNOWN, CopyFacts
from jsbackup.planning.interrupted.staged import replaced_by
from jsbackup.planning.model import IfExists, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.missed import against_missed
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, stored_config
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Manifest,
    Result,
    SegmentRef,
    SkippedStream,
    Source,
    StreamBackup,
)
from jsbackup.times import format_time

__all__ = ["Survey", "preview_clone", "run_clone"]

_log = logging.getLogger(__name__)

_CONSUMER_LISTS_AT_ONCE = 16


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
        options = replace(options, exclude=())  # they are already left out
        target = await look_at(js, run.now_ns())
        same_place = (await jetstream_place(origin)).same(await jetstream_place(js))
        plan = _plan(survey, target, options, same_place=same_place)
        plan = await count_left_out(js, survey.manifest, plan, target, options=options)
        plan = count_dropped(plan, target, options)
        plan = await refuse_absent(origin, survey.manifest, plan, options)
        plan = await refuse_subject_limits(origin, plan, options)
        refuse_if_refused(plan, "cloned", "jsbackup clone --dry-run")
        await check_allowed(js, plan)
        await check_snapshot_allowed(js, plan)
        await try_configs(js, plan, target, run.random)
        marking = await may_update(js)
    settings = run.settings
    at_once = max(1, min(settings.jobs, len(plan.actions)))
    limits = CaptureLimits().beside(at_once - 1)
    # Each stream holds batches at both ends: together they use as much memory as one restore.
    ahead = settings.limits.ahead_bytes // at_once
    settings = replace(settings, limits=replace(settings.limits, ahead_bytes=ahead))

    def replan(entry: StreamBackup, wire: SendAs) -> RestorePlan:
        # As planned, except for what is known by now. All streams, because renaming one depends on others.
        streams = (entry if one.name == entry.name else one for one in survey.manifest.streams)
        asked = replace(options, if_exists=IfExists.REPLACE, wire=wire)
        manifest = replace(survey.manifest, streams=tuple(streams), skipped=())
        again = plan_restore(manifest, target, asked, {entry.name: KeptStream(entry)}, copies=survey.copies, live=True)
        stages = tuple(tuple(action for action in stage if action.entry.name == entry.name) for stage in again.stages)
        refusals = tuple(found for found in again.refusals if found.stream == entry.name)
        return replace(again, stages=stages, refusals=refusals)

    ends = Ends(survey.copies.growing)

    @asynccontextmanager
    async def live() -> AsyncIterator[Supply]:
        async with connect_jetstream(source) as js:
            yield OrderedSupply(ends, js, replan, limits, secret=settings.mask_secret)

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
    if not missed or not any(one.messages for one in results):
        return list(results)
    notes = tuple(finding.reason for finding in missed)
    return [replace(one, notes=(*one.notes, *notes), incomplete=True) for one in results]


@with_own_threads
async def preview_clone(
    source: Connection, connection: Connection, options: RestoreOptions, *, now_ns: Callable[[], int]
) -> tuple[Preview, Source]:
    """Return what a clone would do, with everything that blocks it among the refusals; and the source."""
    async with connect_jetstream(source) as origin, connect_jetstream(connection) as js:
        survey = await _survey(origin, source, options, now_ns())
        options = replace(options, exclude=())  # they are already left out
        same_place = (await jetstream_place(origin)).same(await jetstream_place(js))
        preview = await preview_plan(js, lambda target: _plan(survey, target, options, same_place=same_place), now_ns)
        counted = await count_left_out(js, survey.manifest, preview.plan, preview.target, options=options)
        counted = count_dropped(counted, preview.target, options)
        counted = await refuse_absent(origin, survey.manifest, counted, options)
        counted = await refuse_subject_limits(origin, counted, options)
        preview = replace(preview, plan=await sample_live(origin, counted))
    return preview, survey.manifest.source


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
        result=Result.PARTIAL if failures or copied else Result.COMPLETE,
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


def _plan(survey: Survey, target: Target, options: RestoreOptions, *, same_place: bool) -> RestorePlan:
    plan = plan_restore(survey.manifest, target, options, copies=survey.copies, live=True)
    if not same_place:
        return plan
    hint = "Name another target, or clone it under another name."
    selves = {
        action.name: Finding(action.name, Rule.ITSELF, "is the stream itself: source and target are the same", hint)
        for action in plan.actions
        if action.name == action.entry.name
    }
    others = (found for found in plan.refusals if found.stream not in selves)
    return replace(plan, refusals=(*selves.values(), *others))
