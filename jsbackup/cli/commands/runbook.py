"""`plan --runbook` and `restore --runbook`: several restores, planned together and carried out in their order.

All restores are planned and checked, each against its target and the ones before, before anything is changed. A failed
restore stops the following ones. Restored streams stay, so a rerun with `if-exists = "skip"` continues.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.latest import Finder, make_finder
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, error_json
from jsbackup.cli.output.plan_report import plan_code, plan_json, tell_plan
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.restore_report import restored_json, tell_report
from jsbackup.cli.profiles.runbook_file import RunbookEntry, naming, read_runbook
from jsbackup.engine.link.advisories import advisories
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.source import place_of, read_source
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.engine.restore.restore import (
    Prepared,
    RestoreReport,
    carry_out,
    prepare_restore,
    refuse_if_stale,
)
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.errors import Interrupted, JsBackupError
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.planning.elsewhere import with_elsewhere
from jsbackup.planning.model import RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.rules import Finding
from jsbackup.planning.runbook_conflicts import Part, against_each_other
from jsbackup.planning.same_jetstream import JetStreamPlace

if TYPE_CHECKING:
    from jsbackup.progress import Progress
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = ["plan_runbook", "restore_runbook"]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A restore and its backup."""

    entry: RunbookEntry
    repository: Repository
    finder: Finder

    @property
    def manifest(self) -> Manifest:
        return self.finder.found


def plan_runbook(shared: Shared, path: Path, mask_secret: bytes, lock_timeout: str) -> int:
    """Print all plans; return the exit code: 0 if all can be carried out, else that of the refusals."""
    entries = read_runbook(path, shared)
    if mask_secret:  # otherwise the key is only needed when the plan is carried out
        _check_masks(entries, mask_secret)
    with _opened(entries, "plan", lock_timeout) as chosen:
        previews = [_previewed(one) for one in chosen]
    found = against_each_other([Part(preview.plan, preview.target, place) for preview, place in previews])
    together = [
        replace(preview, plan=with_elsewhere(_refused(preview.plan, more), one.finder.choice))
        for one, (preview, _), more in zip(chosen, previews, found, strict=True)
    ]
    documents = [plan_json(one.finder, preview, None) for one, preview in zip(chosen, together, strict=True)]

    def text() -> None:
        for one, document in zip(chosen, documents, strict=True):
            _tell_which(shared.output, one.entry)
            tell_plan(shared.output, document)
        refused = [str(number) for number, document in enumerate(documents, start=1) if document["refusals"]]
        if refused:
            why = f": nothing of the runbook can be carried out, for restore {', '.join(refused)}"
            shared.output.line(State("refused"), why)
        else:
            shared.output.line(f"all restores of the runbook can be carried out: {len(documents)}")

    shared.output.result({"runbook": str(path), "restores": documents}, text)
    plans = [preview.plan for preview in together]
    all_of_them = RestorePlan(
        "",
        (),
        tuple(refusal for plan in plans for refusal in plan.refusals),
        warnings=tuple(warning for plan in plans for warning in plan.warnings),
    )
    return plan_code(all_of_them)


def _refused(plan: RestorePlan, more: Sequence[Finding]) -> RestorePlan:
    return replace(plan, refusals=(*plan.refusals, *more))


def restore_runbook(shared: Shared, path: Path, settings: RestoreSettings, lock_timeout: str) -> int:
    """Carry all restores out and print the results; return the exit code.

    If nothing was restored it is that of the failure, if only a part was, that of IncompleteError. Raises an error that
    blocks one of them.
    """
    entries = read_runbook(path, shared)
    _check_masks(entries, settings.mask_secret)
    done: list[RestoreReport | JsBackupError] = []
    with _opened(entries, "restore", lock_timeout) as chosen:
        prepared = [_prepared(one, settings) for one in chosen]
        found = against_each_other([Part(one.plan, one.target, place) for one, place in prepared])
        for entry, refusals in zip(entries, found, strict=True):
            with naming(entry.number):
                refuse_if_refused(RestorePlan("", (), refusals), preview="jsbackup plan --runbook")
        for one, (ready, _) in zip(chosen, prepared, strict=True):
            done.append(_carried_out(one, ready, settings))
            if _has_failed(done[-1]):
                break
    left = [{"restore": one.entry.number, "backup": one.manifest.id} for one in chosen[len(done) :]]

    def text() -> None:
        for entry, outcome in zip(entries, done, strict=False):
            _tell_which(shared.output, entry)
            _tell_outcome(shared.output, outcome)
        for one in left:
            shared.output.line(f"not begun: restore {one['restore']}: backup {one['backup']}")

    outcomes = [_outcome_json(outcome, one.finder) for one, outcome in zip(chosen, done, strict=False)]
    document = {"runbook": str(path), "restores": outcomes, "not_begun": left}
    shared.output.result(document, text)
    return _code(done)


def _check_masks(entries: Sequence[RunbookEntry], mask_secret: bytes) -> None:
    for entry in entries:
        with naming(entry.number):
            entry.options.reshape.masks.check_secret(mask_secret)


@contextmanager
def _opened(entries: Sequence[RunbookEntry], purpose: str, lock_timeout: str) -> Iterator[list[_Chosen]]:
    """Yield the backups; each repository is opened once and locked against a prune."""
    opened: list[tuple[Shared, Repository]] = []
    with ExitStack() as leases:
        chosen = []
        for entry in entries:
            with naming(entry.number):
                repository = next((one for shared, one in opened if _same_repository(shared, entry.shared)), None)
                if repository is None:
                    repository = open_repository(entry.shared)
                    leases.enter_context(reading(entry.shared, repository, purpose, lock_timeout))
                    opened.append((entry.shared, repository))
                chosen.append(_Chosen(entry, repository, _found(entry, repository)))
        yield chosen


def _found(entry: RunbookEntry, repository: Repository) -> Finder:
    options = entry.options
    finder = make_finder(
        entry.shared,
        repository,
        entry.backup,
        entry.choosing,
        streams=options.streams,
        exclude=options.exclude,
        silent=True,
    )
    finder.early()(run_async(read_source(entry.connection)))
    return finder


def _same_repository(one: Shared, other: Shared) -> bool:
    return (one.repo, one.s3, one.keys) == (other.repo, other.s3, other.keys)


def _previewed(one: _Chosen) -> tuple[Preview, JetStreamPlace]:
    entry = one.entry

    async def look() -> tuple[Preview, JetStreamPlace]:
        async with connect_jetstream(entry.connection) as js:
            place = await place_of(js)
        return (
            await preview_restore(entry.connection, one.repository, one.manifest, entry.options, now_ns=time.time_ns),
            place,
        )

    with naming(entry.number):
        return run_async(look())


def _prepared(one: _Chosen, settings: RestoreSettings) -> tuple[Prepared, JetStreamPlace]:
    entry = one.entry

    async def prepare() -> tuple[Prepared, JetStreamPlace]:
        async with connect_jetstream(entry.connection) as js:
            run = RestoreRun(entry.connection, entry.options, settings)
            ready = await prepare_restore(run, one.repository, js, one.manifest)
            return ready, await place_of(js)

    with naming(entry.number):
        return run_async(prepare())


def _carried_out(one: _Chosen, ready: Prepared, settings: RestoreSettings) -> RestoreReport | JsBackupError:
    """Return the result, or the error with which it could not begin."""
    entry = one.entry

    async def restore(progress: Progress) -> RestoreReport:
        async with connect_jetstream(entry.connection) as js, advisories(js.link):
            run = RestoreRun(entry.connection, entry.options, settings, progress)
            await refuse_if_stale(run, one.repository, js, ready)
            return await carry_out(run, one.repository, js, ready)

    with naming(entry.number):
        try:
            with make_progress("restore", wanted=entry.shared.progress) as progress:
                report = run_async(restore(progress))
            return replace(report, plan=with_elsewhere(report.plan, one.finder.choice))
        except Interrupted:
            raise
        except JsBackupError as error:
            return error


def _has_failed(outcome: RestoreReport | JsBackupError) -> bool:
    return isinstance(outcome, JsBackupError) or bool(outcome.failures)


def _code(done: Sequence[RestoreReport | JsBackupError]) -> int:
    codes = [one.exit_code if isinstance(one, JsBackupError) else one.code for one in done]
    restored = any(isinstance(one, RestoreReport) and one.streams for one in done)
    return combined([0, *codes]) if restored else codes[-1]


def _tell_which(output: Output, entry: RunbookEntry) -> None:
    output.line(f"restore {entry.number}: {entry.backup} of {entry.shared.repo} into {entry.connection.url}")


def _tell_outcome(output: Output, outcome: RestoreReport | JsBackupError) -> None:
    if isinstance(outcome, RestoreReport):
        tell_report(output, outcome, "restored")
        return
    error = error_json(outcome)["error"]
    output.line(State("failed"), f": {error['message']}")
    if error["hint"]:
        output.line(f"hint: {error['hint']}")


def _outcome_json(outcome: RestoreReport | JsBackupError, finder: Finder) -> JsonObject:
    return restored_json(outcome, finder) if isinstance(outcome, RestoreReport) else error_json(outcome)
