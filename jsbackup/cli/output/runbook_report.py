"""Print the plans or the results of a runbook as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, error_json
from jsbackup.cli.output.plan_report import plan_code, plan_json, tell_plan
from jsbackup.cli.output.restore_report import restored_json, tell_report
from jsbackup.errors import JsBackupError
from jsbackup.planning.model import RestorePlan

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Finder
    from jsbackup.cli.profiles.runbook_file import RunbookEntry
    from jsbackup.engine.restore.preview import Preview
    from jsbackup.engine.restore.restore import RestoreReport
    from jsbackup.engine.restore.runbook import RunbookReport

__all__ = ["tell_runbook", "tell_runbook_plan"]

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
