"""Print the result of a repair as JSON and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.cli.output.output import Output, format_count
from jsbackup.errors import IncompleteError, JsBackupError, KeyUnavailable
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.repository.write.repair import Broken, RepairOutcome
    from jsbackup.repository.write.repair_manifests import BrokenManifest
    from jsbackup.repository.write.repair_run import RepairReport

__all__ = ["tell_repair"]


def tell_repair(output: Output, report: RepairReport) -> int:
    """Print the result; return the exit code."""
    last = report.last_verify
    document = {
        "dry_run": report.dry_run,
        "mended": report.mended,
        "beside": report.beside,
        "lost": report.lost,
        "sound": report.sound,
        "checked": report.checked,
        "last_verify": None if last is None else {"ended": last.ended, "problems": last.problems},
        "readers": [{"key": one.key, "problem": one.problem, **_became(error)} for one, error in report.readers],
        "writers": [{"key": one.key, "problem": one.problem, **_became(error)} for one, error in report.writers],
        "manifests": [_manifest_json(one, error) for one, error in report.manifests],
        "objects": [_object_json(one, outcome) for one, outcome in report.objects],
        "beyond": [{"key": key, "problem": problem} for key, problem in report.beyond],
    }
    if report.not_recorded is not None:
        with_key = " --writer-key FILE" if isinstance(report.not_recorded, KeyUnavailable) else ""
        output.note(f"the repair is not recorded; run 'jsbackup verify{with_key}': {report.not_recorded.message}")
    output.result(document, lambda: _print(output, report))
    return IncompleteError.exit_code if report.incomplete else 0


def _object_json(one: Broken, outcome: RepairOutcome | JsBackupError) -> JsonObject:
    return {
        "key": one.ref.key,
        "stream": one.first,
        "messages": one.messages,
        "problem": one.problem,
        "backups": list(one.backups),
        "outcome": "lost" if isinstance(outcome, JsBackupError) else outcome.value,
        "reason": outcome.message if isinstance(outcome, JsBackupError) else None,
    }


def _manifest_json(one: BrokenManifest, error: JsBackupError | None) -> JsonObject:
    return {
        "backup": one.backup,
        "key": one.key,
        "problem": one.problem,
        **_became(error),
    }


def _became(error: JsBackupError | None) -> JsonObject:
    return {"outcome": "mended" if error is None else "lost", "reason": None if error is None else error.message}


def _print(output: Output, report: RepairReport) -> None:
    if report.sound:
        which = (
            "object that is recorded as damaged is sound"
            if report.sound == 1
            else "objects that are recorded as damaged are sound"
        )
        output.line(f"{report.sound:,} {which}" + ("" if report.dry_run or report.not_recorded else "; recorded"))
    if not (report.objects or report.manifests or report.writers or report.readers or report.beyond):
        _print_nothing(output, report)
        return
    documents = [(one.problem, error) for one, error in report.readers]
    documents += [(one.problem, error) for one, error in report.writers]
    for problem, error in [*documents, *((one.problem, error) for one, error in report.manifests)]:
        could = "could be put back" if report.dry_run else "put back"
        output.line(f"{problem}: {could if error is None else 'lost: ' + error.message}")
    for one, outcome in report.objects:
        said = f"lost: {outcome.message}" if isinstance(outcome, JsBackupError) else _said(outcome, report)
        holds = f" ({format_count(one.messages, 'message')})" if one.messages else ""
        output.line(f"{one.first}: {one.problem}{holds}: {said}")
    for _, problem in report.beyond:
        output.line(f"{problem}: lost")
    would = "would be repaired" if report.dry_run else "repaired"
    beside = f", {report.beside:,} stored under another name" if report.beside else ""
    output.line(f"{format_count(report.mended, 'object')} {would}{beside}, {report.lost_keys:,} lost")


def _print_nothing(output: Output, report: RepairReport) -> None:
    """Say that nothing is broken, as far as was looked."""
    where = "" if report.whole else " in these backups"
    last = report.last_verify
    if report.checked:
        output.line(f"nothing {'else ' if report.sound else ''}is missing or damaged{where}")
        return
    found = (
        f"no {'other ' if report.sound else ''}object is missing, has a wrong size, or is recorded as damaged{where}"
    )
    output.line(f"{found}; objects were not read: --check reads them all")
    if last is not None and not last.ok and not report.sound:
        problems = format_count(last.problems, "problem")
        # What an earlier repair has done about it is not recorded as such.
        output.line(
            f"the last recorded verify, of {last.ended}, found {problems}, which may have been repaired since; "
            "'jsbackup verify' checks again"
        )


def _said(outcome: RepairOutcome, report: RepairReport) -> str:
    if outcome == "mended":
        return "could be repaired" if report.dry_run else "repaired"
    return "stored under another name for later backups, because the damaged object is locked"
