"""`plan --runbook` and `restore --runbook`: several restores, planned together and carried out in their order.

All of them are planned and checked, each against its target and against those before it, before any of them changes
anything. One that fails stops those behind it. A stream that was restored stays, so a rerun with `if-exists = "skip"`
goes on from there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.command import Shared
from jsbackup.cli.leases import reading
from jsbackup.cli.output import Output
from jsbackup.cli.plan import plan_json, tell_plan
from jsbackup.cli.progress import make_progress
from jsbackup.cli.restore import restored_code, restored_json, tell_report
from jsbackup.cli.runbook_file import Entry, naming, read_runbook
from jsbackup.cli.session import open_repository, run_async
from jsbackup.cli.terminal import hide_logins
from jsbackup.engine.jetstream import connect_jetstream
from jsbackup.engine.place import Place, place_of
from jsbackup.engine.planned import RestorePlan
from jsbackup.engine.preview import Preview, preview_restore
from jsbackup.engine.restore import (
    Prepared,
    RestoreReport,
    RestoreSettings,
    carry_out,
    prepare_restore,
    refuse_if_stale,
)
from jsbackup.engine.soundness import refuse_if_refused
from jsbackup.engine.together import Part, against_each_other
from jsbackup.engine.watch import advisories
from jsbackup.errors import IncompleteError, Interrupted, JsBackupError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.progress import Progress
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = ["plan_runbook", "restore_runbook"]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A restore with the backup that it is from."""

    entry: Entry
    repository: Repository
    manifest: Manifest


def plan_runbook(shared: Shared, path: Path, mask_secret: bytes, lock_timeout: str) -> int:
    """Print all plans; the exit code is 0 if all can be carried out, else that of the refusals."""
    entries = read_runbook(path, shared)
    if mask_secret:  # else whoever carries the plan out has it
        _check_masks(entries, mask_secret)
    with _opened(entries, "plan", lock_timeout) as chosen:
        previews = [_previewed(one) for one in chosen]
    found = against_each_other([Part(preview.plan, preview.target, place) for preview, place in previews])
    together = [
        replace(preview, plan=replace(preview.plan, refusals=(*preview.plan.refusals, *more)))
        for (preview, _), more in zip(previews, found, strict=True)
    ]
    documents = [
        plan_json(one.entry.backup, one.manifest, preview, None) for one, preview in zip(chosen, together, strict=True)
    ]

    def text() -> None:
        for one, document in zip(chosen, documents, strict=True):
            _tell_which(shared.output, one.entry)
            tell_plan(shared.output, document)
        refused = [str(number) for number, document in enumerate(documents, start=1) if document["refusals"]]
        shared.output.line(
            f"refused: nothing of the runbook can be carried out, for restore {', '.join(refused)}"
            if refused
            else f"all restores of the runbook can be carried out: {len(documents)}"
        )

    shared.output.result({"runbook": str(path), "restores": documents}, text)
    return RestorePlan("", (), tuple(refusal for preview in together for refusal in preview.plan.refusals)).code


def restore_runbook(shared: Shared, path: Path, settings: RestoreSettings, lock_timeout: str) -> int:
    """Carry all restores out and print what came of them; the exit code.

    That is of the failure if nothing was restored, else IncompleteError's. Raises what stands against one of them.
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

    document = {"runbook": str(path), "restores": [_outcome_json(one) for one in done], "not_begun": left}
    shared.output.result(document, text)
    return _code(done)


def _check_masks(entries: Sequence[Entry], mask_secret: bytes) -> None:
    for entry in entries:
        with naming(entry.number):
            entry.options.reshape.masks.check_secret(mask_secret)


@contextmanager
def _opened(entries: Sequence[Entry], purpose: str, lock_timeout: str) -> Iterator[list[_Chosen]]:
    """The backups, each repository opened once and kept from a prune inside."""
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
                chosen.append(_Chosen(entry, repository, repository.find(entry.backup)))
        yield chosen


def _same_repository(one: Shared, other: Shared) -> bool:
    return (one.repo, one.s3, one.keys) == (other.repo, other.s3, other.keys)


def _previewed(one: _Chosen) -> tuple[Preview, Place]:
    entry = one.entry

    async def look() -> tuple[Preview, Place]:
        async with connect_jetstream(entry.connection) as js:
            place = await place_of(js)
        return (
            await preview_restore(entry.connection, one.repository, one.manifest, entry.options, now_ns=time.time_ns),
            place,
        )

    with naming(entry.number):
        return run_async(look())


def _prepared(one: _Chosen, settings: RestoreSettings) -> tuple[Prepared, Place]:
    entry = one.entry

    async def prepare() -> tuple[Prepared, Place]:
        async with connect_jetstream(entry.connection) as js:
            ready = await prepare_restore(js, one.repository, one.manifest, entry.options, settings, time.time_ns)
            return ready, await place_of(js)

    with naming(entry.number):
        return run_async(prepare())


def _carried_out(one: _Chosen, ready: Prepared, settings: RestoreSettings) -> RestoreReport | JsBackupError:
    """What came of it, or why it could not even begin."""
    entry = one.entry

    async def restore(progress: Progress) -> RestoreReport:
        async with connect_jetstream(entry.connection) as js, advisories(js.link):
            await refuse_if_stale(js, one.repository, entry.options, ready, time.time_ns)
            return await carry_out(
                js, entry.connection, one.repository, ready, settings, progress, os.urandom, time.time_ns
            )

    with naming(entry.number):
        try:
            with make_progress("restore", wanted=entry.shared.progress) as progress:
                return run_async(restore(progress))
        except Interrupted:
            raise
        except JsBackupError as error:
            return error


def _has_failed(outcome: RestoreReport | JsBackupError) -> bool:
    return isinstance(outcome, JsBackupError) or bool(outcome.failures)


def _code(done: Sequence[RestoreReport | JsBackupError]) -> int:
    codes = [one.exit_code if isinstance(one, JsBackupError) else restored_code(one) for one in done]
    if any(isinstance(one, RestoreReport) and one.streams for one in done):
        return IncompleteError.exit_code if any(codes) else 0
    return codes[-1]


def _tell_which(output: Output, entry: Entry) -> None:
    output.line(f"restore {entry.number}: {entry.backup} of {entry.shared.repo} into {entry.connection.url}")


def _tell_outcome(output: Output, outcome: RestoreReport | JsBackupError) -> None:
    if isinstance(outcome, RestoreReport):
        tell_report(output, outcome, "restored")
        return
    error = _outcome_json(outcome)["error"]
    output.line(f"failed: {error['message']}")
    if error["hint"]:
        output.line(f"hint: {error['hint']}")


def _outcome_json(outcome: RestoreReport | JsBackupError) -> JsonObject:
    if isinstance(outcome, RestoreReport):
        return restored_json(outcome)
    hint = hide_logins(outcome.hint) if outcome.hint else None
    return {"error": {"code": outcome.exit_code, "message": hide_logins(outcome.message), "hint": hint}}
