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
from jsbackup.planning.changed_streams import PlannedStream
from jsbackup.planning.selection.kept_messages import with_newest
from jsbackup.progress import Progress

__all__ = ["numbered_runs", "with_newest_of"]


def with_newest_of(place: RepositoryRef, streams: Sequence[PlannedStream]) -> list[PlannedStream]:
    """Return the streams with what is to be kept of them, if these are the newest messages of each subject.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    objects = opened(place).objects

    def chosen(planned: PlannedStream) -> PlannedStream:
        messages = planned.reshaped.messages
        if messages.newest is None:
            return planned
        reshaped = replace(planned.reshaped, messages=with_newest(objects, planned.entry, messages))
        return replace(planned, reshaped=reshaped)

    return list(map(chosen, streams))


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
