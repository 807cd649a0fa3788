"""Transform streams of a backup into a new backup, as a restore with the same options would send them.

The changes of each stream are planned first (`transform_plan.py`), then carried out (`transform_streams.py`), and then
the driver commits the manifest. An unchanged stream keeps its segments and its incarnation; any other gets a new
incarnation.

The manifest has `source.transformed`: the original backup, the options, and the edges of the cut. Its time is that of
the transform, `captured` is that of the server; but not later than the end of a cut, so that it is not used as a backup
of a later state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from jsbackup.config import is_chosen
from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.jobs.transform_plan import TransformPlan, plan_transform
from jsbackup.pipeline.jobs.transform_streams import Made, transform_streams
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef, find_readable
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.reshape_task import MaskKey
from jsbackup.pipeline.tasks.runner import TaskRunner
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.planning.obfuscating import obfuscated_skipped, obfuscated_source
from jsbackup.planning.transforming import TransformOptions, refuse_results
from jsbackup.progress import Progress
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    Manifest,
    Result,
    Selection,
    Source,
)
from jsbackup.repository.write.new_backup import NewBackup

__all__ = ["Transformed", "transform", "transform_backup"]


@dataclass(frozen=True, slots=True)
class Transformed:
    """The new backup; for each stream the old name, its number of messages before, and notes."""

    manifest: Manifest
    old_names: tuple[str, ...]
    had: tuple[int, ...]
    notes: tuple[tuple[str, ...], ...]


def transform(
    session: SparkSession,
    place: RepositoryRef,
    backup: str,
    options: TransformOptions,
    *,
    mask_key: MaskKey | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Transformed:
    """Make a new backup from a backup (an id, the start of one, or `latest`). Raises the errors of the
    functions below.
    """
    attach(session)
    repository = place.open()
    repository.documents.ensure_writable()
    with held_lease(repository, "transform") as lease:
        plan = plan_transform(find_readable(repository, backup), options)
        run = JobRun(OnSpark(session), place, repository, lease, progress)
        return transform_backup(run, plan, mask_key=mask_key, tags=tags)


def transform_backup(
    run: JobRun[TaskRunner],
    plan: TransformPlan,
    *,
    mask_key: MaskKey | None = None,
    tags: Mapping[str, str] | None = None,
) -> Transformed:
    """Make the new backup in the same repository, and commit it.

    Nothing is committed if an error is raised.

    Raises:
        PlanRefused: a message cannot be masked, two counters would become one, a mask has masked nothing, or no message
            is left of a stream.
        UsageError: there is no key to hash with.
        IntegrityError: a segment is missing or damaged.
        RepositoryLocked: the lease was lost.
        KeyUnavailable, StoreError: something cannot be read or stored.
    """
    key, obfuscation = mask_key or MaskKey(), plan.options.reshape.obfuscation
    if plan.options.reshape.masks.needs_secret:
        plan.options.reshape.masks.check_secret(key.secret())
        key = key.marked(run.random(16))
    new = NewBackup(
        run.repository,
        source=_source(plan),
        begun_ns=time.time_ns(),
        clock_ns=time.time_ns,
        random=run.random,
        tags=tags or {},
        selection=Selection(() if obfuscation else tuple(glob.pattern for glob in plan.options.streams)),
    )
    made = transform_streams(run, plan, mask_key=key)
    results = [(one, result.kept) for one, result in zip(plan.streams, made, strict=True)]
    refuse_results(plan.manifest.id, plan.options, results, "transformed")
    run.lease.check()
    manifest = _manifest(plan, new, made)
    leases.commit(run.repository, manifest, run.lease)
    return Transformed(
        manifest,
        tuple(one.entry.name for one in plan.streams),
        tuple(one.entry.captured.messages for one in plan.streams),
        tuple(one.notes for one in made),
    )


def _manifest(plan: TransformPlan, new: NewBackup, made: Sequence[Made]) -> Manifest:
    before = plan.manifest
    skipped = tuple(one for one in before.skipped if is_chosen(one.name, plan.options.streams, ()))
    if (obfuscation := plan.options.reshape.obfuscation) is not None:
        skipped = tuple(obfuscated_skipped(skipped, obfuscation.names))
    manifest = new.manifest([one.stored for one in made])
    incomplete = skipped or any(one.entry.warnings for one in made)
    return replace(manifest, result=before.result if incomplete else Result.COMPLETE, skipped=skipped)


def _source(plan: TransformPlan) -> Source:
    before, options = plan.manifest, plan.options
    done = {"backup": before.id, "options": options.words, "cut": options.reshape.cut.to_json()}
    if options.reshape.obfuscation is not None:  # without the values of options, which name streams and subjects
        done["options"] = list(dict.fromkeys(word.partition(" ")[0] for word in options.words))
        return obfuscated_source(before.source, done)
    return replace(before.source, extra={**before.source.extra, "transformed": done})
