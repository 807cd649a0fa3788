"""`plan --runbook` and `restore --runbook`: several restores, as `engine/restore/runbook.py` carries them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import Finder, WantedBackup, make_finder
from jsbackup.cli.options.opening import open_repository, reading
from jsbackup.cli.options.restore_options import refuse_obfuscation
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.restore_report import plan_code, plan_json, plan_text, restored_json, restored_text
from jsbackup.cli.output.result import Block, Result, State, error_json
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.profiles.runbook_file import RunbookEntry, naming_restore, read_runbook
from jsbackup.engine.link.source import read_source
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.engine.restore.runbook import RunbookPart, RunbookReport, preview_together, restore_together
from jsbackup.errors import JsBackupError, PlanRefused, TargetConflict
from jsbackup.exit_codes import first_of
from jsbackup.model import JsonObject
from jsbackup.repository.repository import Repository

__all__ = ["plan_runbook", "restore_runbook"]


def plan_runbook(shared: Shared, path: Path, mask_secret: bytes) -> Result:
    """Return all plans. The exit code is 0 if all can be carried out, else that of the refusals."""
    # The key is only needed when the plan is carried out.
    entries = _entries(shared, path, mask_secret, check_key=bool(mask_secret))
    with _opened(entries, "plan") as (finders, parts):
        previews = preview_together(parts, run_loop)
    documents = [plan_json(finder, preview, None) for finder, preview in zip(finders, previews, strict=True)]
    plans = [preview.plan for preview in previews]
    refused = [plan.code for plan in plans]
    code = first_of([*refused, *map(plan_code, plans)], PlanRefused.exit_code, TargetConflict.exit_code)
    return Result({"runbook": str(path), "restores": documents}, _plans_text(entries, documents), code)


def _plans_text(entries: Sequence[RunbookEntry], documents: Sequence[JsonObject]) -> Iterator[Block]:
    for entry, document in zip(entries, documents, strict=True):
        yield _heading(entry)
        yield from plan_text(document)
    refused = [str(number) for number, document in enumerate(documents, start=1) if document["refusals"]]
    if refused:
        why = f": nothing of the runbook can be carried out, for restore {', '.join(refused)}"
        yield State("refused"), why
    else:
        yield f"all restores of the runbook can be carried out: {len(documents)}"


def restore_runbook(shared: Shared, path: Path, settings: RestoreSettings) -> Result:
    """Carry all restores out. Raises an error that blocks one of them."""
    entries = _entries(shared, path, settings.mask_secret, check_key=True)
    show_progress = partial(make_progress, "restore", wanted=shared.progress)
    with _opened(entries, "restore") as (finders, parts):
        report = restore_together(parts, settings, run_loop, show_progress)
    outcomes = [
        error_json(outcome) if isinstance(outcome, JsBackupError) else restored_json(outcome, finder)
        for finder, outcome in zip(finders, report.done, strict=False)
    ]
    left = [{"restore": part.number, "backup": part.choice.manifest.id} for part in report.left]
    document = {"runbook": str(path), "restores": outcomes, "not_begun": left}
    return Result(document, _restores_text(entries, report), report.code)


def _restores_text(entries: Sequence[RunbookEntry], report: RunbookReport) -> Iterator[Block]:
    for entry, outcome in zip(entries, report.done, strict=False):
        yield _heading(entry)
        if not isinstance(outcome, JsBackupError):
            yield from restored_text(outcome, "restored")
            continue
        error = error_json(outcome)["error"]
        yield State("failed"), f": {error['message']}"
        for hint in (error["hint"] or "").splitlines():
            yield f"hint: {hint}"
    for part in report.left:
        yield f"not begun: restore {part.number}: backup {part.choice.manifest.id}"


def _heading(entry: RunbookEntry) -> str:
    return f"restore {entry.number}: {entry.backup} of {entry.shared.repo} into {entry.connection.url}"


def _entries(shared: Shared, path: Path, mask_secret: bytes, *, check_key: bool) -> list[RunbookEntry]:
    """Read the restores. Raises UsageError, which names the restore."""
    entries = read_runbook(path, shared)
    for entry in entries:
        with naming_restore(entry.number):
            if check_key:
                entry.options.reshape.masks.check_secret(mask_secret)
            refuse_obfuscation(entry.options.reshape, "a runbook")
    return entries


@contextmanager
def _opened(entries: Sequence[RunbookEntry], purpose: str) -> Iterator[tuple[list[Finder], list[RunbookPart]]]:
    """Find the backups; each repository is opened once and locked against a prune."""
    opened: list[tuple[Shared, Repository]] = []
    finders, parts = [], []
    with ExitStack() as leases:
        for entry in entries:
            shared, options = entry.shared, entry.options
            with naming_restore(entry.number):
                where = (shared.repo, shared.s3, shared.keys)
                repository = next(
                    (known for other, known in opened if (other.repo, other.s3, other.keys) == where), None
                )
                if repository is None:
                    repository = open_repository(shared)
                    leases.enter_context(reading(shared, repository, purpose))
                    opened.append((shared, repository))
                wanted = WantedBackup(entry.backup, options.streams, options.exclude, silent=True, in_part=True)
                finder = make_finder(shared, repository, wanted)
                finder.early()(run_loop(read_source(entry.connection)))
            finders.append(finder)
            parts.append(RunbookPart(entry.number, entry.connection, options, repository, finder.choice))
        yield finders, parts
