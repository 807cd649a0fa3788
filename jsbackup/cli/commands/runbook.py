"""`plan --runbook` and `restore --runbook`: several restores, as `engine/restore/runbook.py` carries them out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from jsbackup.cli.options.latest import Finder, WantedBackup, make_finder
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.options.reshaping import refuse_obfuscation
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.runbook_report import tell_runbook, tell_runbook_plan
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.profiles.runbook_file import RunbookEntry, naming_restore, read_runbook
from jsbackup.engine.link.source import read_source
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.engine.restore.runbook import RunbookPart, preview_together, restore_together
from jsbackup.repository.repository import Repository

__all__ = ["plan_runbook", "restore_runbook"]


def plan_runbook(shared: Shared, path: Path, mask_secret: bytes, lock_timeout: str) -> int:
    """Print all plans; return the exit code: 0 if all can be carried out, else that of the refusals."""
    entries = read_runbook(path, shared)
    if mask_secret:  # otherwise the key is only needed when the plan is carried out
        _check_masks(entries, mask_secret)
    _refuse_obfuscation(entries)
    with _opened(entries, "plan", lock_timeout) as (finders, parts):
        previews = preview_together(parts, run_async)
    return tell_runbook_plan(shared.output, path, list(zip(entries, finders, strict=True)), previews)


def restore_runbook(shared: Shared, path: Path, settings: RestoreSettings, lock_timeout: str) -> int:
    """Carry all restores out and print the results; return the exit code. Raises an error that blocks one of them."""
    entries = read_runbook(path, shared)
    _check_masks(entries, settings.mask_secret)
    _refuse_obfuscation(entries)
    show_progress = partial(make_progress, "restore", wanted=shared.progress)
    with _opened(entries, "restore", lock_timeout) as (finders, parts):
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
def _opened(
    entries: Sequence[RunbookEntry], purpose: str, lock_timeout: str
) -> Iterator[tuple[list[Finder], list[RunbookPart]]]:
    """Find the backups; each repository is opened once and locked against a prune."""
    opened: list[tuple[Shared, Repository]] = []
    finders, parts = [], []
    with ExitStack() as leases:
        for entry in entries:
            with naming_restore(entry.number):
                repository = next((one for shared, one in opened if _same_repository(shared, entry.shared)), None)
                if repository is None:
                    repository = open_repository(entry.shared)
                    leases.enter_context(reading(entry.shared, repository, purpose, lock_timeout))
                    opened.append((entry.shared, repository))
                finder = _found(entry, repository)
            finders.append(finder)
            parts.append(RunbookPart(entry.number, entry.connection, entry.options, repository, finder.choice))
        yield finders, parts


def _found(entry: RunbookEntry, repository: Repository) -> Finder:
    options = entry.options
    backup = WantedBackup(entry.backup, entry.choosing, options.streams, options.exclude, silent=True, in_part=True)
    finder = make_finder(entry.shared, repository, backup)
    finder.early()(run_async(read_source(entry.connection)))
    return finder


def _same_repository(one: Shared, other: Shared) -> bool:
    return (one.repo, one.s3, one.keys) == (other.repo, other.s3, other.keys)
