"""`jsbackup verify`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from jsbackup import __version__, times
from jsbackup.cli.options.command import Command
from jsbackup.cli.options.completion import complete_backup
from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.latest import find_ids
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.opening import open_with_keys
from jsbackup.cli.options.spark import Where, on_spark, place_given, settings_of
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes, format_count, format_time
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import problem_json
from jsbackup.config import parse_size
from jsbackup.errors import IntegrityError, KeyUnavailable, StoreError, UsageError
from jsbackup.model import JsonObject
from jsbackup.progress import Progress

if TYPE_CHECKING:
    from jsbackup.repository.checks.document_checks import Flaw
    from jsbackup.repository.checks.manifest_chain import Gap
    from jsbackup.repository.checks.outcomes import VerifyOutcome
    from jsbackup.repository.checks.verified import Coverage, Portion
    from jsbackup.repository.checks.verify import Checker, Problem, Verifier
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS", "LEVELS"]

LEVELS = ("manifest", "objects", "data")  # as `repository/checks/verify.py` has them

# For manifests, which are in memory: one of 16,000 segments takes some 30 MB.
_THREADS = 2


@click.command(cls=Command, unattended=True)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="objects",
    show_default=True,
    help="manifest: names and sizes; objects: SHA-256 of every object; data: every message decoded.",
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 100, min_open=True),
    metavar="PERCENT",
    help="Read this part of the stored bytes; see above.",
)
@click.option("--max-bytes", metavar="SIZE", help="Read at most this many stored bytes.")
@click.option("--expect", metavar="BACKUP", help="Fail if this backup is missing (a whole id).")
@on_spark
@lock_timeout_option
def verify(
    shared: Shared,
    backups: tuple[str, ...],
    level: str,
    sample: float | None,
    *,
    max_bytes: str | None,
    expect: str | None,
    where: Where,
    lock_timeout: str,
) -> int:
    """Check stored backups: all, or those that you name.

    This also notices when a backup was removed or exchanged, except when the newest one was removed together with its
    witness; --expect checks for that. Level data needs a key that reads messages.

    With --sample or --max-bytes, a run reads a part of the objects: first those never checked, then those checked
    longest ago. A nightly `--sample 4` covers everything in 25 nights.

    With --spark-master, Spark reads the objects, on as many cores and machines as it has.
    """
    from jsbackup.repository.checks.document_checks import check_own_documents
    from jsbackup.repository.checks.evidence import find_gaps
    from jsbackup.repository.crypto.keys import NO_KEYS

    start_log(shared)
    if expect is not None:
        _check_id(expect)
    portion, begun_ns = _portion(level, sample, max_bytes), time.time_ns()
    if where.given and level == "manifest":
        raise UsageError("level manifest reads no objects, so there is nothing for Spark", hint="Leave it out.")
    repository, keys = open_with_keys(shared)
    signed = repository.descriptor.authority is not None
    if signed and keys == NO_KEYS:
        shared.output.note("signatures are checked with a key that the repository itself names; see --expect-signer")
    with reading(shared, repository, "verify", lock_timeout):
        chosen = find_ids(shared, repository, backups) or repository.backups()
        gaps: list[Gap] = []
        if signed or expect or not backups:
            # Manifests are only linked by signatures: without them, those covered by the catalog need not be read for
            # that.
            wanted = (chosen if backups else None) if signed else ()
            gaps = find_gaps(repository.documents, wanted, expect)
        flaws = [] if backups else check_own_documents(repository)
        with (
            make_progress("verify", wanted=shared.progress) as progress,
            _checker(shared, where, progress) as checker,
        ):
            run = _Run(shared, repository, chosen, level, progress=progress, checker=checker, whole=not backups)
            found = run.check(portion)
    from jsbackup.repository.checks.outcomes import VerifyOutcome
    from jsbackup.repository.checks.verify import Level

    damaged = sorted({one.backup for one in found if one.problems} | {gap.backup for gap in gaps if gap.backup})
    problems = len(gaps) + len(flaws) + sum(len(one.problems) for one in found)
    outcome = VerifyOutcome(
        begun=times.format_time(begun_ns),
        ended=times.format_time(time.time_ns()),
        ok=not problems,
        level=Level(level),
        everything=not backups,
        part=portion is not None,
        backups=len(found),
        problems=problems,
        chosen=tuple(chosen) if backups else (),
        damaged=tuple(damaged),
    )
    _record(shared, repository, outcome)
    return _print_result(shared, level, found, gaps, flaws=flaws, coverage=run.coverage, alone=len(backups) == 1)


def _record(shared: Shared, repository: Repository, outcome: VerifyOutcome) -> None:
    """Record the result for `jsbackup status`."""
    from jsbackup.repository.checks.outcomes import put_verify

    try:
        put_verify(repository.documents, outcome, f"jsbackup {__version__}", os.urandom)
    except (KeyUnavailable, StoreError) as error:
        shared.output.note(f"status will not know of this run: {error.message}")


@contextmanager
def _checker(shared: Shared, where: Where, progress: Progress) -> Iterator[Checker | None]:
    """Return the checker on Spark, if requested."""
    if not where.given:
        yield None
        return
    settings = settings_of(where)
    from jsbackup.pipeline.jobs.verify import SparkChecker
    from jsbackup.pipeline.session.session import open_session

    with open_session(settings) as session:
        yield SparkChecker(session, place_given(shared), progress)


def _check_id(expect: str) -> None:
    from jsbackup.repository.layout import is_backup_id

    if not is_backup_id(expect):
        raise UsageError(f"not the whole id of a backup: {expect!r}", hint="`jsbackup list` prints them.")


def _portion(level: str, sample: float | None, max_bytes: str | None) -> Portion | None:
    from jsbackup.repository.checks.verified import AtMost, Percent

    if sample is None and max_bytes is None:
        return None
    if sample is not None and max_bytes is not None:
        raise UsageError("--sample and --max-bytes exclude each other", hint="Give one of them.")
    if level == "manifest":
        raise UsageError("level manifest reads no objects, so there is no part of them", hint="Leave the option out.")
    return Percent(sample) if sample is not None else AtMost(parse_size(max_bytes or ""))


@dataclass(frozen=True, slots=True)
class _Found:
    backup: str
    problems: list[Problem]


class _Run:
    """One run over the `chosen` backups. `whole`: these are all backups."""

    def __init__(
        self,
        shared: Shared,
        repository: Repository,
        chosen: Sequence[str],
        level: str,
        *,
        progress: Progress,
        checker: Checker | None,
        whole: bool,
    ) -> None:
        from jsbackup.repository.checks.verify import Level, Verifier

        self._shared = shared
        self._repository = repository
        self._chosen = chosen
        self._progress = progress
        self._whole = whole
        self._verifier: Verifier = Verifier(repository.objects, Level(level), progress=progress, checker=checker)
        self.coverage: Coverage | None = None

    def check(self, portion: Portion | None) -> list[_Found]:
        """Return what is wrong with each backup. Verified objects are recorded, also if this is interrupted."""
        from jsbackup.repository.checks.verify import Level

        if self._verifier.level is Level.MANIFEST:
            return list(self._each())
        try:
            found = list(self._each(expect=True)) if portion is None else self._part(portion)
        except (KeyboardInterrupt, StoreError):
            self._remember(everything=False)
            raise
        self._remember(everything=self._whole)
        return found

    def _part(self, portion: Portion) -> list[_Found]:
        """Read a manifest again only if it is the first with an object to be checked, or if something is damaged."""
        from jsbackup.repository.checks.verified import choose, read_findings
        from jsbackup.repository.checks.verify import check_manifest

        verifier, well = self._verifier, True
        first: dict[str, frozenset[bytes]] = {}
        for backup, manifest in self._manifests(self._chosen):
            if isinstance(manifest, _Found):
                well = False
            elif manifest is not None:
                first[backup] = verifier.take_stock(manifest)
                well = well and not check_manifest(manifest)
        findings = read_findings(self._repository.documents, _now())
        turn = choose(verifier.stock, findings, verifier.level, portion)
        verifier.limit_to(turn)
        for _, manifest in self._manifests([backup for backup, new in first.items() if new & turn]):
            if manifest is not None and not isinstance(manifest, _Found):
                for _ in verifier.check(manifest):
                    well = False
        # Damage is also reported for other backups with the object; no object is read again for that.
        well = well and not verifier.damaged
        return [_Found(backup, []) for backup in first] if well else list(self._each())

    def _each(self, *, expect: bool = False) -> Iterator[_Found]:
        for backup, manifest in self._manifests(self._chosen):
            if manifest is None:
                continue
            if isinstance(manifest, _Found):
                yield manifest
                continue
            if expect and len(self._chosen) == 1:  # the total of several is only known at the end
                self._progress.expect({stream.name: stream.captured.bytes for stream in manifest.streams})
            yield _Found(backup, list(self._verifier.check(manifest)))

    def _manifests(self, backups: Sequence[str]) -> Iterator[tuple[str, Manifest | _Found | None]]:
        """Yield the manifests, reading a little ahead."""
        from jsbackup.repository.background import in_order

        return zip(backups, in_order([partial(self._manifest, backup) for backup in backups], _THREADS), strict=True)

    def _manifest(self, backup: str) -> Manifest | _Found | None:
        """Return the manifest, or what is wrong with it; None if it was forgotten meanwhile."""
        from jsbackup.repository import layout
        from jsbackup.repository.checks.verify import Problem, ProblemKind

        key = self._repository.documents.stored_key(layout.manifest_key(backup))
        try:
            return self._repository.manifest(backup)
        except UsageError:
            if not self._whole:
                raise
            if backup not in self._repository.backups():
                return None
            return _Found(backup, [Problem(ProblemKind.MISSING, "", key, f"manifest {key} is listed, but not there")])
        except IntegrityError as error:  # this backup is lost, the others are not
            return _Found(backup, [Problem(ProblemKind.DAMAGED, "", key, error.message)])

    def _remember(self, *, everything: bool) -> None:
        from jsbackup.repository.checks.verified import add_run, cover, read_findings, remember

        documents, now = self._repository.documents, _now()
        try:
            findings = remember(
                documents,
                self._verifier,
                everything=everything,
                now_seconds=now,
                tool=f"jsbackup {__version__}",
                random=os.urandom,
            )
        except (KeyUnavailable, StoreError) as error:
            self._shared.output.note(f"this run is not recorded for later ones: {error.message}")
            findings = read_findings(documents, now)
            add_run(findings, self._verifier, now)
        self.coverage = cover(self._verifier, findings, now)


def _now() -> int:
    """Return Unix time, rounded up: no existing object is newer."""
    return math.ceil(time.time())


# --- what it prints ---


def _print_result(
    shared: Shared,
    level: str,
    found: Sequence[_Found],
    gaps: Sequence[Gap],
    *,
    flaws: Sequence[Flaw],
    coverage: Coverage | None,
    alone: bool,
) -> int:
    output = shared.output
    wrong = {gap.backup for gap in gaps}
    documents: list[JsonObject] = [
        {
            "backup": one.backup,
            "level": level,
            "ok": not one.problems and one.backup not in wrong,
            "problems": [{"stream": problem.stream, **problem_json(problem)} for problem in one.problems],
        }
        for one in found
    ]
    more = {
        "chain": [{"backup": gap.backup, "key": gap.key, "problem": gap.problem} for gap in gaps],
        "repository": [{"key": flaw.key, "problem": flaw.problem} for flaw in flaws],
        "coverage": None if coverage is None else _coverage_json(coverage),
    }

    def text() -> None:
        if not documents:
            output.line("there are no backups")
        for document, one in zip(documents, found, strict=True):
            output.line(f"{document['backup']}  {level}  ", State("ok" if document["ok"] else "DAMAGED"))
            tell_each(output, (Said("  ", p.stream, p.problem, lost=p) for p in one.problems))
        for gap in gaps:
            output.line(f"backup {gap.backup}: {gap.problem}" if gap.backup else f"catalog of backups: {gap.problem}")
        for flaw in flaws:
            output.line(f"repository: {flaw.problem}")
        if coverage is not None and coverage.objects:
            output.line(_coverage_text(coverage))

    output.result({**documents[0], **more} if alone else {"backups": documents, **more}, text)
    return IntegrityError.exit_code if gaps or flaws or any(one.problems for one in found) else 0


def _coverage_json(coverage: Coverage) -> JsonObject:
    from jsbackup.repository.checks.verified import RECENT_DAYS

    oldest = coverage.oldest_seconds
    return {
        "objects": coverage.objects,
        "bytes": coverage.bytes,
        "checked_objects": coverage.checked_objects,
        "checked_bytes": coverage.checked_bytes,
        "recent_days": RECENT_DAYS,
        "recent_bytes": coverage.recent_bytes,
        "never_bytes": coverage.never_bytes,
        "oldest": None if oldest is None else format_time(oldest * 10**9),
    }


def _coverage_text(coverage: Coverage) -> str:
    from jsbackup.repository.checks.verified import RECENT_DAYS

    checked = f"{format_count(coverage.checked_objects)} of {format_count(coverage.objects, 'object')} checked"
    sizes = f"{format_bytes(coverage.checked_bytes)} of {format_bytes(coverage.bytes)}"
    # Rounded down: 100 % means everything.
    percent = math.floor(1000 * coverage.recent_bytes / coverage.bytes) / 10 if coverage.bytes else 100.0
    text = f"{checked} ({sizes}); {percent:g} % of all bytes verified in the last {RECENT_DAYS} days"
    if coverage.never_bytes:
        text += f", {format_bytes(coverage.never_bytes)} not verified yet or damaged"
    if coverage.oldest_seconds is not None:
        text += f", oldest check {format_time(coverage.oldest_seconds * 10**9)}"
    return text


COMMANDS = {"verify": verify}
