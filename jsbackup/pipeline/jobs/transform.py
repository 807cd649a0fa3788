"""Transform streams of a backup into a new backup, as a restore with the same options would send them.

The changes of each stream are planned first (`transform_plan.py`), then carried out (`transform_streams.py`), and then
the driver commits the manifest. An unchanged stream keeps its segments and its incarnation; any other gets a new
incarnation.

The manifest has `source.transformed`: the original backup, the options, and the edges of the cut. Its time is that of
the transform, `captured` is that of the server; but not later than the end of a cut, so that it is not used as a backup
of a later state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from jsbackup.config import is_chosen
from jsbackup.errors import PlanRefused
from jsbackup.pipeline.jobs.transform_plan import TransformOptions, TransformPlan, plan_transform
from jsbackup.pipeline.jobs.transform_streams import Made, transform_streams
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef, find_readable
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.reshape_task import MaskKey
from jsbackup.planning.model import RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.selection.masking import about_unseen, unseen
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.manifest import (
    Manifest,
    Result,
    Selection,
    StreamBackup,
)
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

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
        return transform_backup(
            session,
            place,
            repository,
            plan,
            lease=lease,
            random=os.urandom,
            mask_key=mask_key,
            tags=tags,
            progress=progress,
        )


def transform_backup(
    session: SparkSession,
    place: RepositoryRef,
    repository: Repository,
    plan: TransformPlan,
    *,
    lease: Lease,
    random: Callable[[int], bytes],
    mask_key: MaskKey | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Transformed:
    """Make the new backup in the same repository, and commit it; `lease` is a shared one, renewed by the caller.

    Nothing is committed if an error is raised.

    Raises:
        PlanRefused: a message cannot be masked, two counters would become one, a mask has masked nothing, or no message
            is left of a stream.
        UsageError: there is no key to hash with.
        IntegrityError: a segment is missing or damaged.
        RepositoryLocked: the lease was lost.
        KeyUnavailable, StoreError: something cannot be read or stored.
    """
    key = mask_key or MaskKey()
    if plan.options.reshape.masks.needs_secret:
        plan.options.reshape.masks.check_secret(key.secret())
        key = key.marked(random(16))
    begun_ns = time.time_ns()
    made = transform_streams(session, place, repository.objects, plan, mask_key=key, progress=progress)
    had = sum(one.entry.captured.messages for one in plan.streams)
    if had and not any(one.entry.captured.messages for one in made) and not plan.options.allow_empty:
        raise PlanRefused(
            f"nothing was transformed: none of the {had:,} messages would be left", hint="Look at what is to be kept."
        )
    _refuse_what_missed(plan, made)
    lease.check()
    manifest = _manifest(repository, plan, [one.entry for one in made], tags or {}, begun_ns=begun_ns, random=random)
    leases.commit(repository, manifest, lease)
    return Transformed(
        manifest,
        tuple(one.entry.name for one in plan.streams),
        tuple(one.entry.captured.messages for one in plan.streams),
        tuple(one.notes for one in made),
    )


def _refuse_what_missed(plan: TransformPlan, made: Sequence[Made]) -> None:
    """Raise PlanRefused if a mask masked nothing, or no messages are left of a stream, unless an option allows it."""
    refusals = [refusal for one in made for refusal in one.refusals]
    kept = any(one.entry.captured.messages for one in made)
    if kept and not plan.options.mask_may_miss:
        masks = plan.options.reshape.masks.masks
        refusals += about_unseen(unseen(masks, [one.masked for one in made]), may_miss=False)
    refuse_if_refused(RestorePlan(plan.manifest.id, (), tuple(refusals)), "transformed", "jsbackup plan")


def _manifest(
    repository: Repository,
    plan: TransformPlan,
    streams: Sequence[StreamBackup],
    tags: Mapping[str, str],
    *,
    begun_ns: int,
    random: Callable[[int], bytes],
) -> Manifest:
    before, options = plan.manifest, plan.options
    skipped = tuple(one for one in before.skipped if is_chosen(one.name, options.streams, ()))
    previous = next(reversed(repository.backups()), None)
    done = {"backup": before.id, "options": options.words, "cut": options.reshape.cut.to_json()}
    return Manifest(
        id=layout.backup_id(begun_ns, random(3), previous),
        created=format_time(begun_ns),
        tool=TOOL,
        source=replace(before.source, extra={**before.source.extra, "transformed": done}),
        result=before.result if skipped or any(stream.warnings for stream in streams) else Result.COMPLETE,
        streams=tuple(streams),
        skipped=skipped,
        tags=tags,
        previous=previous,
        selection=Selection(tuple(glob.pattern for glob in options.streams)),
    )
