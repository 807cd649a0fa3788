"""`jsbackup repair`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_backup
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import lock_timeout_option, writing
from jsbackup.cli.options.opening import connection_of, open_repository, run_async, store_at
from jsbackup.cli.options.shared import GLOBAL_OPTIONS
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.errors import (
    IncompleteError,
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    NatsError,
    StoreError,
    UsageError,
)
from jsbackup.model import JsonObject
from jsbackup.progress import Progress
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.repository.checks.manifest_chain import Gap
    from jsbackup.repository.repository import Repository
    from jsbackup.repository.write.repair import Broken, Found, RepairOutcome
    from jsbackup.repository.write.repair_manifests import BrokenManifest
    from jsbackup.stores.base import Store

    ManifestRow = tuple[BrokenManifest, JsBackupError | None]
    """A manifest, and why it could not be repaired."""

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
@click.option("--dry-run", is_flag=True, help="Show what could be repaired; change nothing.")
@lock_timeout_option
def repair(
    shared: Shared,
    backups: tuple[str, ...],
    from_repo: str | None,
    check: bool,
    *,
    dry_run: bool,
    lock_timeout: str,
) -> int:
    """Restore stored objects and manifests that are missing or damaged, in all backups or in those that you name.

    Their bytes come from another repository (--from), or from the messages of a server (-s or --context). With both,
    the server is asked for what the repository lacks. Only the very same bytes are stored; SHA-256 decides. A server
    can supply only plain segments, if it still has the messages and this version of jsbackup writes them as they
    were. A manifest is put back only if the catalog, a later backup or its signature proves that it is the right one.

    What cannot be repaired is named, and the exit code is 3. A later backup stores messages that the server still
    has.
    """
    from jsbackup.repository.checks.evidence import find_missing
    from jsbackup.repository.write.repair import find_broken

    start_log(shared)
    live = bool(shared.server.get("server") or shared.server.get("context"))
    if from_repo is None and not live:
        raise UsageError(
            "nothing to repair from was given",
            hint="Name another repository with --from, or a server with -s or --context.",
        )
    repository = open_repository(shared)
    with (
        writing(shared, repository, "repair", lock_timeout),
        make_progress("repair", wanted=shared.progress) as progress,
    ):
        chosen = find_ids(shared, repository, backups) or repository.backups()
        found = find_broken(repository, chosen, progress, check=check)
        gaps = [] if backups else find_missing(repository.documents)
        manifests: list[ManifestRow] = []
        if from_repo is not None:
            found, manifests = _manifests_from(
                shared, repository, from_repo, found, gaps=gaps, check=check, dry_run=dry_run, progress=progress
            )
        else:
            removed = [(gap.key, f"{gap.backup}: {gap.problem}") for gap in gaps]
            found = replace(found, beyond=(*found.beyond, *removed))
        outcomes: list[RepairOutcome | JsBackupError] = [IntegrityError("nothing has it") for _ in found.objects]
        if from_repo is not None:
            outcomes = _from_repository(shared, repository, from_repo, found.objects, dry_run=dry_run)
        left = [number for number, one in enumerate(outcomes) if isinstance(one, JsBackupError)]
        if live and left:
            from jsbackup.engine.read.reread import repair_from_server

            broken = [found.objects[number] for number in left]
            work = repair_from_server(connection_of(shared), repository, broken, progress, dry_run=dry_run)
            try:
                repaired: Sequence[RepairOutcome | JsBackupError] = run_async(work)
            except NatsError as error:
                if len(left) == len(outcomes):
                    raise
                repaired = [error] * len(left)  # the others are repaired
            for number, outcome in zip(left, repaired, strict=True):
                outcomes[number] = outcome
        if not dry_run:
            _remember(shared, repository, found.objects, outcomes, progress=progress)
    return _print_result(shared, found, outcomes, manifests, dry_run=dry_run)


def _manifests_from(
    shared: Shared,
    repository: Repository,
    location: str,
    found: Found,
    *,
    gaps: Sequence[Gap],
    check: bool,
    dry_run: bool,
    progress: Progress,
) -> tuple[Found, list[ManifestRow]]:
    """Repair manifests first: only then it is known which objects they need. Returns what else is broken, and what
    became of the manifests.
    """
    from jsbackup.repository.write.repair import find_broken
    from jsbackup.repository.write.repair_manifests import ManifestRepair, broken_manifests

    broken = broken_manifests(repository, found.beyond, gaps)
    if not broken:
        return found, []
    work = ManifestRepair(repository, _other(shared, repository, location))
    rows: list[ManifestRow] = []
    for one in broken:
        try:
            work.mend(one, dry_run=dry_run)
            rows.append((one, None))
        except (IntegrityError, KeyUnavailable) as error:
            rows.append((one, error))
    keys = {one.key for one in broken}
    found = replace(found, beyond=tuple(problem for problem in found.beyond if problem[0] not in keys))
    if mended := [one.backup for one, error in rows if error is None and not dry_run]:
        more = find_broken(repository, mended, progress, check=check)
        known = {(one.ref.key, one.ref.sha256) for one in found.objects}
        added = [one for one in more.objects if (one.ref.key, one.ref.sha256) not in known]
        found = replace(found, objects=(*found.objects, *added), beyond=(*found.beyond, *more.beyond))
    return found, rows


def _other(shared: Shared, repository: Repository, location: str) -> Store:
    from jsbackup.repository.repository import Repository

    other = store_at(location, replace(shared, s3={}, variables="JSBACKUP_FROM_"))
    if other.location == repository.store.location:
        raise UsageError(f"{other.location} cannot be repaired from itself", hint="Name another one with --from.")
    Repository.open(other)  # checks that it is a repository; objects are copied without a key
    return other


def _from_repository(
    shared: Shared, repository: Repository, location: str, broken: Sequence[Broken], *, dry_run: bool
) -> list[RepairOutcome | JsBackupError]:
    from jsbackup.repository.write.repair import RepairOutcome, fetch_from, put_back

    other = _other(shared, repository, location)
    outcomes: list[RepairOutcome | JsBackupError] = []
    for one in broken:
        data = fetch_from(other, one.ref)
        if data is None:
            outcomes.append(IntegrityError(f"{other.location} has no object of these bytes"))
        else:
            outcomes.append(RepairOutcome.MENDED if dry_run else put_back(repository.store, one.ref, data))
    return outcomes


def _remember(
    shared: Shared,
    repository: Repository,
    broken: Sequence[Broken],
    outcomes: Sequence[RepairOutcome | JsBackupError],
    *,
    progress: Progress,
) -> None:
    """Read repaired objects again, and record the result: the next backup can build on them again."""
    from jsbackup.repository.checks.verified import remember
    from jsbackup.repository.checks.verify import Level, Verifier
    from jsbackup.repository.refs import id_of
    from jsbackup.repository.write.repair import RepairOutcome

    mended = [one for one, outcome in zip(broken, outcomes, strict=True) if outcome is RepairOutcome.MENDED]
    if not mended:
        return
    verifier = Verifier(repository.objects, Level.OBJECTS, progress=progress)
    verifier.limit_to({id_of(one.ref) for one in mended})
    for backup in {one.backups[-1] for one in mended}:
        for _ in verifier.check(repository.manifest(backup)):
            pass
    try:
        # After the second in which the damage was found.
        now = math.ceil(time.time()) + 1
        remember(repository.documents, verifier, everything=False, now_seconds=now, tool=TOOL, random=os.urandom)
    except (KeyUnavailable, StoreError) as error:
        shared.output.note(f"the repair is not recorded; run 'jsbackup verify': {error.message}")


def _print_result(
    shared: Shared,
    found: Found,
    outcomes: Sequence[RepairOutcome | JsBackupError],
    manifests: Sequence[ManifestRow],
    *,
    dry_run: bool,
) -> int:
    output = shared.output
    rows: list[JsonObject] = []
    for one, outcome in zip(found.objects, outcomes, strict=True):
        rows.append(
            {
                "key": one.ref.key,
                "stream": one.stream.name,
                "messages": one.messages,
                "problem": one.problem,
                "backups": list(one.backups),
                "outcome": "lost" if isinstance(outcome, JsBackupError) else outcome.value,
                "reason": outcome.message if isinstance(outcome, JsBackupError) else None,
            }
        )
    made_whole: list[JsonObject] = [
        {
            "backup": one.backup,
            "key": one.key,
            "problem": one.problem,
            "outcome": "mended" if error is None else "lost",
            "reason": None if error is None else error.message,
        }
        for one, error in manifests
    ]
    all_rows = [*rows, *made_whole]
    counts = {name: sum(row["outcome"] == name for row in all_rows) for name in ("mended", "beside", "lost")}
    beyond = [{"key": key, "problem": problem} for key, problem in found.beyond]
    incomplete = bool(counts["lost"] or counts["beside"] or beyond)

    def text() -> None:
        for row in made_whole:
            could = "could be put back" if dry_run else "put back"
            output.line(f"{row['problem']}: {could if row['reason'] is None else 'lost: ' + row['reason']}")
        for row in rows:
            said = {
                "mended": "could be mended" if dry_run else "mended",
                "beside": "stored beside for later backups; the store keeps what is damaged locked",
                "lost": f"lost: {row['reason']}",
            }[row["outcome"]]
            output.line(f"{row['stream']}: {row['problem']} ({format_count(row['messages'], 'message')}): {said}")
        for one in beyond:
            output.line(f"{one['problem']}: lost")
        if not all_rows and not beyond:
            output.line("nothing is known to be missing or damaged")
            return
        would = "would be mended" if dry_run else "mended"
        output.line(f"{format_count(counts['mended'], 'object')} {would}, {counts['lost'] + len(beyond)} lost")

    document = {"dry_run": dry_run, **counts, "manifests": made_whole, "objects": rows, "beyond": beyond}
    output.result(document, text)
    return IncompleteError.exit_code if incomplete else 0


COMMANDS = {"repair": repair}
