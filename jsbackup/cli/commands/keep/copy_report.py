"""What `copy` finds beside its work, and how its result is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, failure_json, format_bytes, format_count
from jsbackup.errors import IncompleteError
from jsbackup.exit_codes import damage
from jsbackup.readable import in_short
from jsbackup.shell import quoted_command

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository
    from jsbackup.repository.write.copying import CopyReport

__all__ = ["CopyFindings", "lacking_holds", "tell_copy"]


@dataclass(frozen=True, slots=True)
class CopyFindings:
    """What is to be said beside the report: ids of backups that are damaged in the target; sentences on other damage;
    other sentences.
    """

    damaged: Sequence[str]
    lost: Sequence[str]
    notes: Sequence[str]


def lacking_holds(source: Repository, target: Repository, backups: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence if backups are held in the source and not in the target. Raises StoreError."""
    from jsbackup.repository.keep.holds import held_backups

    held = held_backups(source).intersection(backups)
    lacking = sorted(held - held_backups(target)) if held else []
    if not lacking:
        return ()
    here, there = source.store.location, target.store.location
    return (
        f"held in {here}, not in {there}: {in_short(lacking)}; a hold is of one repository, so 'forget' may remove "
        "them there: hold them there, too, with 'jsbackup hold'",
    )


def tell_copy(
    output: Output, source: Repository, target: Repository, report: CopyReport, *, found: CopyFindings
) -> int:
    """Print the result and return the exit code. Raises the error of a single backup that was not copied."""
    if len(report.failed) == 1 and not report.copied and not report.present:
        raise report.failed[0].error

    def text() -> None:
        for one in report.failed:
            output.line(State("not copied"), f": {one.id}: {one.error.message}")
        if found.damaged:
            output.line(State("problem"), f": {_about_damaged(source, target, found.damaged)}")
        for sentence in found.lost:
            output.line(State("warning"), f": {sentence}")
        for sentence in found.notes:
            output.line(State("note"), f": {sentence}")
        present = f", {format_count(len(report.present))} there already" if report.present else ""
        output.line(
            f"copied {format_count(len(report.copied), 'backup')} to {target.store.location}: "
            f"{format_count(report.copied_objects, 'object')}, {format_bytes(report.copied_bytes)}{present}"
        )

    document = {
        "copied_objects": report.copied_objects,
        "copied_bytes": report.copied_bytes,
        "skipped_objects": report.skipped_objects,
        "backups": list(report.copied),
        "present": list(report.present),
        "failed": [failure_json(one.id, one.error, "backup") for one in report.failed],
        "damaged": list(found.damaged),
        "notes": [*found.lost, *found.notes],
    }
    output.result(document, text)
    return damage([*found.damaged, *found.lost]) or (IncompleteError.exit_code if report.failed else 0)


def _about_damaged(source: Repository, target: Repository, backups: Sequence[str]) -> str:
    here, there = source.store.location, target.store.location
    how = quoted_command("repair", options=[("--from", here), ("-r", there)])
    are = "is" if len(backups) == 1 else "are"
    return (
        f"in {there}, {format_count(len(backups), 'backup')} {are} known to be damaged: {in_short(backups)}; {how} "
        "brings back what is lost"
    )
