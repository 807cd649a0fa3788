"""Several restores, planned together and carried out in their order.

All restores are planned and checked, each against its target and the ones before, before anything is changed. A failed
restore stops the following ones. Restored streams stay, so a rerun that skips existing streams continues.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, replace

from jsbackup.config.connection import Connection
from jsbackup.engine.link.jetstream import JetStream, advisories, connect_jetstream
from jsbackup.engine.link.source import KnownAccount, check_account, jetstream_place
from jsbackup.engine.restore.restore import (
    Prepared,
    RestoreReport,
    carry_out_restore,
    prepare_restore,
    preview_restore,
    refuse_if_stale,
)
from jsbackup.engine.restore.run import Complete, RestoreRun, RestoreSettings
from jsbackup.errors import Interrupted, JsBackupError
from jsbackup.exit_codes import combined
from jsbackup.failure import naming
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.plan import Decision
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.runbook_conflicts import PlannedPart, against_each_other
from jsbackup.planning.same_jetstream import JetStreamPlace
from jsbackup.planning.selection.chosen_streams import with_elsewhere
from jsbackup.progress import Progress
from jsbackup.repository.read.latest import Choice
from jsbackup.repository.repository import Repository

__all__ = ["RunbookPart", "RunbookReport", "preview_together", "restore_together", "with_conflicts"]


@dataclass(frozen=True, slots=True)
class RunbookPart:
    """One restore, counted from 1: its target, its options, and the chosen backup with its repository. Where an
    `account` is known, the connection has to be one of it. The coroutines raise NatsError, and as their functions.
    """

    number: int
    connection: Connection
    options: RestoreOptions
    repository: Repository
    choice: Choice
    account: KnownAccount | None = None

    def named(self) -> AbstractContextManager[None]:
        """Add to errors raised inside that they are about this restore."""
        return naming(f"restore {self.number}")

    async def preview(self) -> tuple[Decision, JetStreamPlace]:
        """Return the plan and the place that it is for."""
        async with self._connected() as js:
            place = await jetstream_place(js)
        manifest = self.choice.manifest
        preview = await preview_restore(self.connection, self.repository, manifest, self.options, now_ns=time.time_ns)
        return replace(preview, plan=with_elsewhere(preview.plan, self.choice)), place

    async def prepare(self, settings: RestoreSettings) -> tuple[Prepared, JetStreamPlace]:
        """Return the restore, checked, and the place that it is for."""
        async with self._connected() as js:
            run = RestoreRun(self.connection, self.options, settings)
            ready = await prepare_restore(run, self.repository, js, self.choice.manifest)
            return ready, await jetstream_place(js)

    async def carry_out(self, settings: RestoreSettings, progress: Progress, ready: Prepared) -> RestoreReport:
        """Restore what was prepared, unless the target has changed since."""
        run = RestoreRun(self.connection, self.options, settings, progress)
        async with self._connected() as js, advisories(js.link):
            await refuse_if_stale(run, self.repository, js, ready)
            report = await carry_out_restore(run, self.repository, js, ready)
        return replace(report, plan=with_elsewhere(report.plan, self.choice))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[JetStream]:
        async with connect_jetstream(self.connection) as js:
            if self.account is not None:
                await check_account(js, self.account)
            yield js


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
        codes = [outcome.exit_code if isinstance(outcome, JsBackupError) else outcome.code for outcome in self.done]
        restored = any(isinstance(outcome, RestoreReport) and outcome.streams for outcome in self.done)
        return combined([0, *codes]) if restored else codes[-1]


def preview_together(parts: Sequence[RunbookPart], complete: Complete) -> list[Decision]:
    """Return the plan of each restore. Conflicts with those before it are among its refusals.

    `complete` runs what waits for servers. Raises UsageError, NatsError and StoreError.
    """
    looked = []
    for part in parts:
        with part.named():
            looked.append(complete(part.preview()))
    return with_conflicts([(preview, place, "") for preview, place in looked])


def with_conflicts(planned: Sequence[tuple[Decision, JetStreamPlace, str]]) -> list[Decision]:
    """Return the decisions with their conflicts with those before them among the refusals; each has a place, and how
    messages call it.
    """
    parts = [PlannedPart(decision.plan, decision.target, place, name) for decision, place, name in planned]
    findings_by_part = zip(planned, against_each_other(parts), strict=True)
    return [
        replace(decision, plan=replace(decision.plan, refusals=(*decision.plan.refusals, *more)))
        for (decision, _, _), more in findings_by_part
    ]


def restore_together(
    parts: Sequence[RunbookPart],
    settings: RestoreSettings,
    complete: Complete,
    show_progress: Callable[[], AbstractContextManager[Progress]],
) -> RunbookReport:
    """Carry all restores out, until one fails. Raises an error that blocks one of them; then nothing was changed.

    `complete` runs what waits for servers; `show_progress` is called for each restore.
    """
    prepared = []
    for part in parts:
        with part.named():
            prepared.append(complete(part.prepare(settings)))
    together = with_conflicts([(ready.decision, place, "") for ready, place in prepared])
    for part, decision in zip(parts, together, strict=True):
        with part.named():
            refuse_if_refused(decision.plan, preview="jsbackup plan --runbook")
    done: list[RestoreReport | JsBackupError] = []
    for part, (ready, _) in zip(parts, prepared, strict=True):
        with part.named():
            try:
                with show_progress() as progress:
                    report = complete(part.carry_out(settings, progress, ready))
            except Interrupted:
                raise
            except JsBackupError as error:
                done.append(error)
                break
        done.append(report)
        if report.failures:
            break
    return RunbookReport(tuple(done), tuple(parts[len(done) :]))
