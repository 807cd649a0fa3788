"""`jsbackup repair`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import connection_of, open_to_repair, run_async, store_at
from jsbackup.cli.options.shared import GLOBAL_OPTIONS
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import Output, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import IncompleteError, JsBackupError, KeyUnavailable, RepositoryNotFound, UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.repository.repository import Repository
    from jsbackup.repository.write.repair import Broken, RepairOutcome
    from jsbackup.repository.write.repair_manifests import BrokenManifest
    from jsbackup.repository.write.repair_run import RepairReport
    from jsbackup.stores.base import Store

__all__ = ["COMMANDS", "tell_repair"]


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
        "backup": one.backup or None,
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


@click.command(cls=Command, needs_server=True)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@click.option(
    "--from",
    "from_repo",
    metavar="LOCATION",
    type=GLOBAL_OPTIONS[0].type,
    help="A repository that has copies of these backups; its S3 settings are JSBACKUP_FROM_S3_ENDPOINT and so on.",
)
@click.option("--check", is_flag=True, help="Read all objects first, not only what verify found damaged.")
@click.option(
    "--trust-copy",
    is_flag=True,
    help="Put back manifests that nothing here proves, too, as --from has them; not in a signed repository.",
)
@click.option("--dry-run", is_flag=True, help="Show what could be repaired; change nothing.")
def repair(
    shared: Shared,
    backups: tuple[str, ...],
    from_repo: str | None,
    check: bool,
    *,
    trust_copy: bool,
    dry_run: bool,
) -> int:
    """Restore stored objects and manifests that are missing or damaged, in all backups or in those that you name.

    Their bytes come from another repository (--from), or from the messages of a server (-s or --context). With both,
    the server is asked for what the repository lacks. Only the very same bytes are stored; SHA-256 decides. A server
    can supply only plain segments, if it still has the messages and this version of jsbackup writes them as they
    were. A manifest is put back only if the catalog, the next backup, its witness or its signature proves that it is
    the right one, or with --trust-copy; the public key of a writer (keys/writer-….json) only if the root signing key
    has signed it; a reader's key file (keys/….age) as its signed record says, or if --identity opens it.

    Without --check, damage is only known where verify has recorded it. A verify without the writer key records nothing.

    What cannot be repaired is named, and the exit code is 3. A later backup stores messages that the server still
    has.
    """
    from jsbackup.repository.write.repair_run import RepairRun

    start_log(shared)
    live = bool(shared.server.get("server") or shared.server.get("context"))
    if from_repo is None and not live:
        raise UsageError(
            "no source for the repair was given",
            hint="Name another repository with --from, or a server with -s or --context.",
        )
    if trust_copy and from_repo is None:
        raise UsageError("--trust-copy needs --from", hint="Name the copy that you trust with --from.")
    repository, keys, unopened = open_to_repair(shared)
    with (
        writing(shared, repository, "repair"),
        make_progress("repair", wanted=shared.progress) as progress,
    ):

        def ask(broken: Sequence[Broken]) -> Sequence[RepairOutcome | JsBackupError]:
            from jsbackup.engine.read.reread import repair_from_server

            return run_async(repair_from_server(connection_of(shared), repository, broken, progress, dry_run=dry_run))

        run = RepairRun(
            repository,
            find_ids(shared, repository, backups) or repository.backups(),
            progress,
            time.time,
            os.urandom,
            keys=keys,
            unopened=unopened,
            other=None if from_repo is None else _other(shared, repository, from_repo),
            ask_server=ask if live else None,
            whole=not backups,
            check=check,
            trust_copy=trust_copy,
            dry_run=dry_run,
        )
        report = run.carry_out()
    return tell_repair(shared.output, report)


def _other(shared: Shared, repository: Repository, location: str) -> Store:
    from jsbackup.repository.repository import Repository

    other = store_at(location, replace(shared, s3={}, variables="JSBACKUP_FROM_"))
    if other.location == repository.store.location:
        raise UsageError(f"{other.location} cannot be repaired from itself", hint="Name another one with --from.")
    try:
        Repository.open(other)  # checks that it is a repository; objects are copied without a key
    except RepositoryNotFound as error:
        near = error.hint or ""
        hint = near if near.startswith("Did you mean") else "Name a repository that has copies of these backups."
        raise error.with_message(f"--from: {error.message}").with_hint(hint) from None
    return other


COMMANDS = {"repair": repair}
