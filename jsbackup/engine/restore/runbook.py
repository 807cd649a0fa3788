"""Several restores, planned together and carried out in their order.

All restores are planned and checked, each against its target and the ones before, before anything is changed. A failed
restore stops the following ones. Restored streams stay, so a rerun that skips existing streams continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from jsbackup.config import Connection
from jsbackup.engine.link.advisories import advisories
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.source import jetstream_place
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.engine.restore.restore import Prepared, RestoreReport, carry_out_restore, prepare_restore, refuse_if_stale
from jsbackup.engine.restore.run import Complete, RestoreRun, RestoreSettings
from jsbackup.errors import Interrupted, JsBackupError
from jsbackup.exit_codes import combined
from jsbackup.failure import naming
from jsbackup.planning.model import RestoreOptions, RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.runbook_conflicts import PlannedPart, against_each_other
from jsbackup.planning.same_jetstream import JetStreamPlace
from jsbackup.planning.selection.chosen_streams import with_elsewhere
from jsbackup.progress import Progress
from jsbackup.repository.read.latest import Choice
from jsbackup.repository.repository import Repository

__all__ = ["RunbookPart", "RunbookReport", "preview_together", "restore_together"]


@dataclass(frozen=True, slots=True)
class RunbookPart:
    """One restore, counted from 1: its target, its options, and the chosen backup with its repository."""

    number: int
    connection: Connection
    options: RestoreOptions
    repository: Repository
    choice: Choice

    def named(self) -> AbstractContextManager[None]:
        """Add to errors raised inside that they are about this restore."""
        return naming(f"restore {self.number}")


@dataclass(frozen=True, slots=True)
class RunbookReport:
    """The results of the restores that were begun, in their order. An error is one with which a restore could not
    begin; those that are `left` were not begun.
    """

    done: tuple[RestoreReport | JsBackupError, ...]
    left: tuple[RunbookPart, ...]

    @property
    def code(self) -> int:
        """The exit code. If nothing was restored it is that of the failure, if only a part was, that of
        IncompleteError.
        """
        codes = [one.exit_code if isinstance(one, JsBackupError) else one.code for one in self.done]
        restored = any(isinstance(one, RestoreReport) and one.streams for one in self.done)
        return combined([0, *codes]) if restored else codes[-1]


def preview_together(parts: Sequence[RunbookPart], complete: Complete) -> list[Preview]:
    """Return the plan of each restore. Conflicts with those before it are among its refusals.

    `complete` runs what waits for servers. Raises as `preview_restore`.
    """
    looked = [_previewed(part, complete) for part in parts]
    found = against_each_other([PlannedPart(preview.plan, preview.target, place) for preview, place in looked])
    previews = []
    for part, (preview, _), more in zip(parts, looked, found, strict=True):
        plan = replace(preview.plan, refusals=(*preview.plan.refusals, *more))
        previews.append(replace(preview, plan=with_elsewhere(plan, part.choice)))
    return previews


def _previewed(part: RunbookPart, complete: Complete) -> tuple[Preview, JetStreamPlace]:
    async def look() -> tuple[Preview, JetStreamPlace]:
        async with connect_jetstream(part.connection) as js:
            place = await jetstream_place(js)
        preview = await preview_restore(
            part.connection, part.repository, part.choice.manifest, part.options, now_ns=time.time_ns
        )
        return preview, place

    with part.named():
        return complete(look())


def restore_together(
    parts: Sequence[RunbookPart],
    settings: RestoreSettings,
    complete: Complete,
    show_progress: Callable[[], AbstractContextManager[Progress]],
) -> RunbookReport:
    """Carry all restores out, until one fails. Raises an error that blocks one of them; then nothing was changed.

    `complete` runs what waits for servers; `show_progress` is called for each restore.
    """
    prepared = [_prepared(part, settings, complete) for part in parts]
    found = against_each_other([PlannedPart(one.plan, one.target, place) for one, place in prepared])
    for part, refusals in zip(parts, found, strict=True):
        with part.named():
            refuse_if_refused(RestorePlan("", (), refusals), preview="jsbackup plan --runbook")
    done: list[RestoreReport | JsBackupError] = []
    for part, (ready, _) in zip(parts, prepared, strict=True):
        with part.named():
            try:
                with show_progress() as progress:
                    run = RestoreRun(part.connection, part.options, settings, progress)
                    report = complete(_carried_out(run, part, ready))
            except Interrupted:
                raise
            except JsBackupError as error:
                done.append(error)
                break
        done.append(report)
        if report.failures:
            break
    return RunbookReport(tuple(done), tuple(parts[len(done) :]))


def _prepared(part: RunbookPart, settings: RestoreSettings, complete: Complete) -> tuple[Prepared, JetStreamPlace]:
    async def prepare() -> tuple[Prepared, JetStreamPlace]:
        async with connect_jetstream(part.connection) as js:
            run = RestoreRun(part.connection, part.options, settings)
            ready = await prepare_restore(run, part.repository, js, part.choice.manifest)
            return ready, await jetstream_place(js)

    with part.named():
        return complete(prepare())


async def _carried_out(run: RestoreRun, part: RunbookPart, ready: Prepared) -> RestoreReport:
    async with connect_jetstream(run.connection) as js, advisories(js.link):
        await refuse_if_stale(run, part.repository, js, ready)
        report = await carry_out_restore(run, part.repository, js, ready)
    return replace(report, plan=with_elsewhere(report.plan, part.choice))
