"""Distributed restores: the driver plans, executors read what is stored, send it, and verify it.

Everything is as in a restore on one machine: the same plan, the same look at all objects before anything is changed (or
check, which executors do), the same order of origins and mirrors, the same report. A task has one stream, or several
small ones; one that replaces another stream has its own task. A stream that fails does not affect others. For a task
that is run again, because its worker was lost, see `engine/backup/worker_share.py`.

With a single server tasks run one at a time: restores take turns there (`engine/link/jetstream.py`), and executors
do not know of each other.

A worker that is killed cannot clean up: the streams that it was sending remain incomplete, marked as such, and the next
restore removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jsbackup.config import environment, mask_secret
from jsbackup.config.connection import ConnectionReference
from jsbackup.config.secrets import expand_path
from jsbackup.engine.backup.worker_share import RestoredPart, RestorePart, complete, restore_part
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.restore.after_restore import look_at_copying, wait_for_replicas
from jsbackup.engine.restore.execution import bytes_to_move
from jsbackup.engine.restore.restore import Prepared, RestoreReport, make_sure, refuse_part
from jsbackup.engine.restore.run import RestoredStream, RestoreRun, RestoreSettings
from jsbackup.engine.restore.stream_restore import StartingPoint
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.failure import Failure
from jsbackup.pipeline.jobs.verify import SparkChecker
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened_same
from jsbackup.pipeline.tasks.fan_out import Executors, packed
from jsbackup.pipeline.tasks.separate_jobs import is_repeated, run_apart
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.planning.model import Action, RestoreOptions
from jsbackup.progress import NullProgress
from jsbackup.repository.repository import Repository

__all__ = ["MaskKey", "mask_key_of", "restore_streams"]

_log = logging.getLogger(__name__)

MaskKey = tuple[tuple[str, str], ...]
"""The option that names the key of masks, `mask_key_file`; executors read it themselves."""


def mask_key_of(given: Mapping[str, object]) -> MaskKey:
    """Return the key from the given options. Relative paths are resolved here."""
    named = {name: str(value) for name, value in given.items() if value}
    if "mask_key_file" in named:
        named["mask_key_file"] = str(expand_path(named["mask_key_file"], environment()).absolute())
    return tuple(sorted(named.items()))


def restore_streams(
    executors: Executors, run: RestoreRun, repository: Repository, prepared: Prepared, *, mask_key: MaskKey
) -> RestoreReport:
    """Check the objects that the plan needs, and carry it out. Raises the same errors as `run_restore`."""
    settings, progress = run.settings, run.progress
    if executors.session.conf.get("spark.speculation", "false") == "true":
        raise UsageError(
            "a restore cannot be spread by a session with spark.speculation, which runs tasks twice at the same time",
            hint="Set it to false.",
        )
    checker = SparkChecker(executors.session, executors.place, NullProgress())
    prepared = complete(_refuse_part(run, repository, make_sure(repository, prepared, settings, checker)))
    plan, lost = prepared.plan, prepared.lost
    progress.expect({action.name: bytes_to_move(action, settings) for action in plan.actions})
    start = StartingPoint(
        plan.backup,
        # Tasks do not need these, which may be thousands of streams.
        replace(prepared.target, streams={}, leftovers=frozenset(), silent=frozenset(), unborn=frozenset()),
        prepared.marking,
        backup=plan.backup,
    )
    bare = replace(settings, mask_secret=b"")
    results: list[RestoredStream] = []
    failures: list[Failure] = list(prepared.failures)

    def take(part: Sequence[Action], restored: RestoredPart | JsBackupError) -> None:
        if isinstance(restored, JsBackupError):
            restored = RestoredPart((), tuple(Failure(action.name, restored) for action in part))
        for failure in restored.failures:
            _log.warning("stream %s failed: %s", failure.name, failure.error.message)
        results.extend(restored.results)
        failures.extend(restored.failures)
        repository.objects.found_damaged.update(restored.damaged)
        for action in part:
            size, messages = bytes_to_move(action, settings), action.entry.captured.messages
            progress.start(action.name, size, messages)
            progress.advance(action.name, size, messages)
            progress.finish(action.name)

    def make(part: Sequence[Action], again: bool) -> _RestoreStreams:
        names = {action.entry.name for action in part}
        here = replace(start, lost={name: problems for name, problems in lost.items() if name in names})
        needed = RestorePart(here, tuple(part))
        return _RestoreStreams(
            executors.place, executors.repository_id, executors.server, needed, bare, mask_key, again
        )

    at_once = executors.at_once if prepared.target.clustered else 1
    for stage in plan.stages:
        parts = _parts(stage, settings, OnSpark(executors.session).cores)
        run_apart(executors.session, "the restore", parts, make, take=take, at_once=at_once)
    results = complete(wait_for_replicas(run.connection, results))
    if settings.verify:
        results, failures = complete(look_at_copying(run.connection, plan, prepared.target, results, failures=failures))
    results.sort(key=lambda result: result.name)
    failures.sort(key=lambda failure: failure.name)
    return RestoreReport(plan, tuple(results), tuple(failures))


async def _refuse_part(run: RestoreRun, repository: Repository, prepared: Prepared) -> Prepared:
    async with connect_jetstream(run.connection) as js:
        return await refuse_part(js, repository, prepared)


def _parts(stage: Sequence[Action], settings: RestoreSettings, cores: int) -> list[list[Action]]:
    actions = {action.name: action for action in stage}
    alone = [[action] for action in stage if action.replaces]
    sizes = {action.name: bytes_to_move(action, settings) for action in stage if not action.replaces}
    return [*alone, *([actions[name] for name in part] for part in packed(sizes, cores))]


@dataclass(frozen=True, slots=True)
class _RestoreStreams:
    """A task. `again`: it was given up once, together with others."""

    place: RepositoryRef
    repository_id: str
    server: ConnectionReference
    part: RestorePart
    settings: RestoreSettings
    mask_key: MaskKey
    again: bool

    def __call__(self) -> RestoredPart:
        secret = b""
        for masks in (action.reshape.masks for action in self.part.actions):
            if masks.needs_secret:
                secret = secret or mask_secret(dict(self.mask_key), environment())
                masks.check_secret(secret)
        return restore_part(
            RestoreRun(
                self.server.resolve(environment()), RestoreOptions(), replace(self.settings, mask_secret=secret)
            ),
            opened_same(self.place, self.repository_id),
            self.part,
            again=self.again or is_repeated(),
        )
