"""`jsbackup repair`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import click

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import find_ids
from jsbackup.cli.options.opening import connection_of, open_to_repair, store_at, writing
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Block, Result, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, Shared
from jsbackup.errors import IncompleteError, JsBackupError, KeyUnavailable, RepositoryNotFound, UsageError
from jsbackup.model import JsonObject
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import Broken, RepairOutcome
from jsbackup.repository.write.repair_run import RepairReport, RepairRun
from jsbackup.stores.base import Store

__all__ = ["COMMANDS"]


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
) -> Result:
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

            return run_loop(repair_from_server(connection_of(shared), repository, broken, progress, dry_run=dry_run))

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
    if (reason := report.not_recorded) is not None:
        with_key = " --writer-key FILE" if isinstance(reason, KeyUnavailable) else ""
        shared.output.note(f"the repair is not recorded; run 'jsbackup verify{with_key}': {reason.message}")
    document = _repair_json(report)
    return Result(document, _repair_text(report, document), IncompleteError.exit_code if report.incomplete else 0)


def _other(shared: Shared, repository: Repository, location: str) -> Store:
    other = store_at(location, replace(shared, s3={}, variables="JSBACKUP_FROM_"))
    if other.location == repository.store.location:
        raise UsageError(f"{other.location} cannot be repaired from itself", hint="Name another one with --from.")
    try:
        Repository.open(other)  # checks that it is a repository; objects are copied without a key
    except RepositoryNotFound as error:
        hint = "Name a repository that has copies of these backups."
        raise error.with_message(f"--from: {error.message}").with_hint(hint) from None
    return other


def _repair_json(report: RepairReport) -> JsonObject:
    last = report.last_verify
    return {
        "dry_run": report.dry_run,
        "mended": report.mended,
        "beside": report.beside,
        "lost": report.lost,
        "sound": report.sound,
        "checked": report.checked,
        "last_verify": None if last is None else {"ended": last.ended, "problems": last.problems},
        "readers": [{"key": each.key, "problem": each.problem, **_outcome(error)} for each, error in report.readers],
        "writers": [{"key": each.key, "problem": each.problem, **_outcome(error)} for each, error in report.writers],
        "manifests": [
            {"backup": each.backup or None, "key": each.key, "problem": each.problem, **_outcome(error)}
            for each, error in report.manifests
        ],
        "objects": [
            {
                "key": broken.ref.key,
                "stream": broken.first,
                "messages": broken.messages,
                "problem": broken.problem,
                "backups": list(broken.backups),
                **_outcome(outcome),
            }
            for broken, outcome in report.objects
        ],
        "beyond": [{"key": key, "problem": problem} for key, problem in report.beyond],
    }


def _outcome(outcome: RepairOutcome | JsBackupError | None) -> JsonObject:
    if isinstance(outcome, JsBackupError):
        return {"outcome": "lost", "reason": outcome.message}
    return {"outcome": outcome or RepairOutcome.MENDED, "reason": None}


def _repair_text(report: RepairReport, document: JsonObject) -> Iterator[Block]:
    dry_run, sound = report.dry_run, report.sound
    if sound:
        are = "object that is recorded as damaged is" if sound == 1 else "objects that are recorded as damaged are"
        yield f"{sound:,} {are} sound" + ("" if dry_run or report.not_recorded else "; recorded")
    documents = [*document["readers"], *document["writers"], *document["manifests"]]
    if not (documents or report.objects or report.beyond):
        yield from _nothing_text(report)
        return
    for row in documents:
        mended = "could be put back" if dry_run else "put back"
        yield f"{row['problem']}: {'lost: ' + row['reason'] if row['reason'] else mended}"
    outcomes = {
        RepairOutcome.MENDED: "could be repaired" if dry_run else "repaired",
        RepairOutcome.BESIDE: "stored under another name for later backups, because the damaged object is locked",
    }
    for row in document["objects"]:
        holds = f" ({format_count(row['messages'], 'message')})" if row["messages"] else ""
        outcome = outcomes.get(row["outcome"], f"lost: {row['reason']}")
        yield f"{row['stream']}: {row['problem']}{holds}: {outcome}"
    yield from (f"{problem}: lost" for _, problem in report.beyond)
    would = "would be repaired" if dry_run else "repaired"
    beside = f", {report.beside:,} stored under another name" if report.beside else ""
    yield f"{format_count(report.mended, 'object')} {would}{beside}, {report.lost_keys:,} lost"


def _nothing_text(report: RepairReport) -> Iterator[Block]:
    """Say that nothing is broken, as far as was looked."""
    where, last = "" if report.whole else " in these backups", report.last_verify
    if report.checked:
        yield f"nothing {'else ' if report.sound else ''}is missing or damaged{where}"
        return
    which = f"no {'other ' if report.sound else ''}object is missing, has a wrong size, or is recorded as damaged"
    yield f"{which}{where}; objects were not read: --check reads them all"
    if last is not None and not last.ok and not report.sound:
        # What an earlier repair has done about it is not recorded as such.
        yield (
            f"the last recorded verify, of {last.ended}, found {format_count(last.problems, 'problem')}, which may "
            "have been repaired since; 'jsbackup verify' checks again"
        )


COMMANDS = {"repair": repair}
