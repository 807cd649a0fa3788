"""`plan --runbook` and `restore --runbook`: several restores, as `engine/restore/runbook.py` carries them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.options.latest import Finder, WantedBackup, make_finder
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.options.reshaping import refuse_obfuscation
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, error_json
from jsbackup.cli.output.plan_report import plan_code, plan_json, tell_plan
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.restore_report import restored_json, tell_report
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.profiles.runbook_file import RunbookEntry, naming_restore, read_runbook
from jsbackup.engine.link.source import read_source
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.engine.restore.runbook import RunbookPart, preview_together, restore_together
from jsbackup.errors import JsBackupError
from jsbackup.planning.model import RestorePlan
from jsbackup.repository.repository import Repository

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Finder
    from jsbackup.cli.profiles.runbook_file import RunbookEntry
    from jsbackup.engine.restore.preview import Preview
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.engine.restore.runbook import RunbookReport

__all__ = ["plan_runbook", "restore_runbook", "tell_runbook", "tell_runbook_plan"]

Entries = Sequence[tuple["RunbookEntry", "Finder"]]
"""The restores, each with the finder of its backup."""


def tell_runbook_plan(output: Output, path: Path, entries: Entries, previews: Sequence[Preview]) -> int:
    """Print all plans; return the exit code: 0 if all can be carried out, else that of the refusals."""
    documents = [plan_json(finder, preview, None) for (_, finder), preview in zip(entries, previews, strict=True)]

    def text() -> None:
        for (entry, _), document in zip(entries, documents, strict=True):
            _tell_which(output, entry)
            tell_plan(output, document)
        refused = [str(number) for number, document in enumerate(documents, start=1) if document["refusals"]]
        if refused:
            why = f": nothing of the runbook can be carried out, for restore {', '.join(refused)}"
            output.line(State("refused"), why)
        else:
            output.line(f"all restores of the runbook can be carried out: {len(documents)}")

    output.result({"runbook": str(path), "restores": documents}, text)
    plans = [preview.plan for preview in previews]
    refusals = tuple(refusal for plan in plans for refusal in plan.refusals)
    return plan_code(RestorePlan("", (), refusals, warnings=tuple(one for plan in plans for one in plan.warnings)))


def tell_runbook(output: Output, path: Path, entries: Entries, report: RunbookReport) -> int:
    """Print all results; return the exit code."""
    left = [{"restore": part.number, "backup": part.choice.manifest.id} for part in report.left]

    def text() -> None:
        for (entry, _), outcome in zip(entries, report.done, strict=False):
            _tell_which(output, entry)
            _tell_outcome(output, outcome)
        for one in left:
            output.line(f"not begun: restore {one['restore']}: backup {one['backup']}")

    outcomes = [
        error_json(outcome) if isinstance(outcome, JsBackupError) else restored_json(outcome, finder)
        for (_, finder), outcome in zip(entries, report.done, strict=False)
    ]
    output.result({"runbook": str(path), "restores": outcomes, "not_begun": left}, text)
    return report.code


def _tell_which(output: Output, entry: RunbookEntry) -> None:
    output.line(f"restore {entry.number}: {entry.backup} of {entry.shared.repo} into {entry.connection.url}")


def _tell_outcome(output: Output, outcome: RestoreReport | JsBackupError) -> None:
    if not isinstance(outcome, JsBackupError):
        tell_report(output, outcome, "restored")
        return
    error = error_json(outcome)["error"]
    output.line(State("failed"), f": {error['message']}")
    for hint in (error["hint"] or "").splitlines():
        output.line(f"hint: {hint}")


def plan_runbook(shared: Shared, path: Path, mask_secret: bytes) -> int:
    """Print all plans; return the exit code: 0 if all can be carried out, else that of the refusals."""
    entries = read_runbook(path, shared)
    if mask_secret:  # otherwise the key is only needed when the plan is carried out
        _check_masks(entries, mask_secret)
    _refuse_obfuscation(entries)
    with _opened(entries, "plan") as (finders, parts):
        previews = preview_together(parts, run_async)
    return tell_runbook_plan(shared.output, path, list(zip(entries, finders, strict=True)), previews)


def restore_runbook(shared: Shared, path: Path, settings: RestoreSettings) -> int:
    """Carry all restores out and print the results; return the exit code. Raises an error that blocks one of them."""
    entries = read_runbook(path, shared)
    _check_masks(entries, settings.mask_secret)
    _refuse_obfuscation(entries)
    show_progress = partial(make_progress, "restore", wanted=shared.progress)
    with _opened(entries, "restore") as (finders, parts):
        report = restore_together(parts, settings, run_async, show_progress)
    return tell_runbook(shared.output, path, list(zip(entries, finders, strict=True)), report)


def _check_masks(entries: Sequence[RunbookEntry], mask_secret: bytes) -> None:
    for entry in entries:
        with naming_restore(entry.number):
            entry.options.reshape.masks.check_secret(mask_secret)


def _refuse_obfuscation(entries: Sequence[RunbookEntry]) -> None:
    for entry in entries:
        with naming_restore(entry.number):
            refuse_obfuscation(entry.options.reshape, "a runbook")


@contextmanager
def _opened(entries: Sequence[RunbookEntry], purpose: str) -> Iterator[tuple[list[Finder], list[RunbookPart]]]:
    """Find the backups; each repository is opened once and locked against a prune."""
    opened: list[tuple[Shared, Repository]] = []
    finders, parts = [], []
    with ExitStack() as leases:
        for entry in entries:
            with naming_restore(entry.number):
                repository = next((one for shared, one in opened if _same_repository(shared, entry.shared)), None)
                if repository is None:
                    repository = open_repository(entry.shared)
                    leases.enter_context(reading(entry.shared, repository, purpose))
                    opened.append((entry.shared, repository))
                finder = _found(entry, repository)
            finders.append(finder)
            parts.append(RunbookPart(entry.number, entry.connection, entry.options, repository, finder.choice))
        yield finders, parts


def _found(entry: RunbookEntry, repository: Repository) -> Finder:
    options = entry.options
    backup = WantedBackup(entry.backup, options.streams, options.exclude, silent=True, in_part=True)
    finder = make_finder(entry.shared, repository, backup)
    finder.early()(run_async(read_source(entry.connection)))
    return finder


def _same_repository(one: Shared, other: Shared) -> bool:
    return (one.repo, one.s3, one.keys) == (other.repo, other.s3, other.keys)
