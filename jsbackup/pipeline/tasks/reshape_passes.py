"""Passes over the messages of streams before tasks change them: which ones are the newest of each subject, and how many
come before each run, if they get new sequences. Both run as the tasks do: on Spark, or in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import pack_tasks
from jsbackup.pipeline.tasks.reshape_task import CountPieces, MaskKey, SegmentRun
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.planning.selection.newest_pass import with_newest
from jsbackup.planning.selection.subset import segments_within
from jsbackup.planning.transforming import PlannedStream
from jsbackup.progress import Progress
from jsbackup.transforms.filters.rising import RisingSequences

__all__ = ["numbered_runs", "with_newest_of"]


def with_newest_of(
    runner: TaskRunner, place: RepositoryRef, streams: Sequence[PlannedStream], progress: Progress | None
) -> list[PlannedStream]:
    """Return the streams with what is to be kept of them, if these are the newest messages of each subject.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    found = _newest(runner, place, [one for one in streams if one.reshaped.messages.newest is not None], progress)

    def chosen(one: PlannedStream) -> PlannedStream:
        sequences = found.get(one.entry.name)
        if sequences is None:
            return one
        messages = replace(one.reshaped.messages, chosen=sequences)
        return replace(one, reshaped=replace(one.reshaped, messages=messages))

    return list(map(chosen, streams))


def _newest(
    runner: TaskRunner, place: RepositoryRef, streams: Sequence[PlannedStream], progress: Progress | None
) -> dict[str, RisingSequences]:
    if not streams:
        return {}
    keeping = streams[0].reshaped.messages.keeping
    assert keeping.newest is not None, "only such streams are looked at"
    session = getattr(runner, "session", None)
    if session is not None:
        from jsbackup.pipeline.messages.newest import newest_sequences

        refs = {one.entry.name: segments_within(one.entry, keeping.cut) for one in streams}
        looking = replace(keeping, newest=None)
        return newest_sequences(session, place, refs, looking, rule=keeping.newest, progress=progress)
    objects = opened(place).objects
    found = {one.entry.name: with_newest(objects, one.entry, one.reshaped.messages).chosen for one in streams}
    return {name: sequences for name, sequences in found.items() if sequences is not None}


def numbered_runs(
    runner: TaskRunner,
    place: RepositoryRef,
    key: MaskKey,
    runs: Sequence[SegmentRun],
    *,
    before: Counter[str],
    progress: Progress | None,
) -> list[SegmentRun]:
    """Return the runs, which are in order, with what comes before each in its stream, if messages get new sequences.

    `before` has the messages of earlier runs by stream; those of these runs are added.

    Raises PlanRefused, IntegrityError, KeyUnavailable and StoreError.
    """
    if not any(run.reshape.renumber for run in runs):
        return list(runs)
    counted = [run.known_count for run in runs]
    unknown = [number for number, count in enumerate(counted) if count is None]
    tasks, weights = [], []
    for piece in pack_tasks([runs[number].cost for number in unknown], runner.cores):
        part = tuple(runs[number] for number in unknown[piece])
        tasks.append(CountPieces(place, key, part))
        weights.append(sum(run.bytes for run in part))
    results = runner.run("counting what is kept", tasks, weights=weights, progress=progress)
    for number, count in zip(unknown, (count for part in results for count in part), strict=True):
        counted[number] = count
    numbered = []
    for run, found in zip(runs, counted, strict=True):
        numbered.append(replace(run, numbered=before[run.stream]))
        before[run.stream] += found or 0
    return numbered
