"""One run of `verify` over some or all backups: what is wrong with each, and what later runs and `status` know of it.

In: a repository, the backups, a level. Out: a report. What objects were read, and with which result, is recorded in the
repository, also if the run is interrupted, so that the next one can go on with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from jsbackup.errors import IntegrityError, KeyUnavailable, StoreError, UsageError
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.document_checks import Flaw, check_own_documents
from jsbackup.repository.checks.evidence import find_gaps
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.outcomes import VerifyOutcome, put_verify
from jsbackup.repository.checks.verified import (
    Coverage,
    Portion,
    add_run,
    choose,
    cover,
    read_findings,
    remember,
)
from jsbackup.repository.checks.verify import Checker, Level, Problem, ProblemKind, Verifier, check_manifest
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import TOOL
from jsbackup.times import format_time

__all__ = ["VerifiedBackup", "VerifyReport", "VerifyRun"]

# Of manifests, which are in memory: one of 16,000 segments takes some 30 MB.
_THREADS = 2


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """A backup, and what is wrong with it."""

    backup: str
    problems: list[Problem]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a run found: in backups, in the chain of manifests, in the repository's own documents."""

    backups: list[VerifiedBackup]
    gaps: list[Gap]
    flaws: list[Flaw]
    coverage: Coverage | None

    @property
    def problems(self) -> int:
        return len(self.gaps) + len(self.flaws) + sum(len(one.problems) for one in self.backups)

    @property
    def damaged(self) -> list[str]:
        """Backups with a problem."""
        broken = {one.backup for one in self.backups if one.problems}
        return sorted(broken | {gap.backup for gap in self.gaps if gap.backup})


class VerifyRun:
    """One run over `chosen` backups. `whole`: they are all that there are. `note` takes what the user should know."""

    def __init__(
        self,
        repository: Repository,
        chosen: Sequence[str],
        level: Level,
        *,
        whole: bool,
        begun_ns: int,
        clock_ns: Callable[[], int],
        random: Callable[[int], bytes],
        note: Callable[[str], None],
    ) -> None:
        self._repository = repository
        self._chosen = chosen
        self._level = level
        self._whole = whole
        self._begun_ns = begun_ns
        self._clock_ns = clock_ns
        self._random = random
        self._note = note

    def find_gaps(self, expect: str | None) -> list[Gap]:
        """Manifests that are missing. `expect` is the id of the newest backup, where the user knows it."""
        signed = self._repository.descriptor.authority is not None
        if not (signed or expect or self._whole):
            return []
        # Only signatures link manifests: elsewhere those that the catalog covers need not be read for it.
        wanted = (None if self._whole else self._chosen) if signed else ()
        return find_gaps(self._repository.documents, wanted, expect)

    def find_flaws(self) -> list[Flaw]:
        """What is wrong with the repository's own documents, if all of it is verified."""
        return check_own_documents(self._repository) if self._whole else []

    def check(
        self,
        gaps: list[Gap],
        flaws: list[Flaw],
        *,
        progress: Progress,
        checker: Checker | None = None,
        portion: Portion | None = None,
    ) -> VerifyReport:
        """Verify the backups, and remember what was read. Raises StoreError, and UsageError for an unknown backup."""
        verifier = Verifier(self._repository.objects, self._level, progress=progress, checker=checker)
        verifying = _Verifying(self._repository, self._chosen, verifier, progress, self._whole)
        coverage = None
        if self._level is Level.MANIFEST:
            found = list(verifying.each())
        else:
            try:
                found = list(verifying.each(expect=True)) if portion is None else verifying.part(portion, self._now)
            except (KeyboardInterrupt, StoreError):
                self._remember(verifier, everything=False)
                raise
            coverage = self._remember(verifier, everything=self._whole)
        return VerifyReport(found, gaps, flaws, coverage)

    def _remember(self, verifier: Verifier, *, everything: bool) -> Coverage:
        documents, now = self._repository.documents, self._now()
        try:
            findings = remember(
                documents, verifier, everything=everything, now_seconds=now, tool=TOOL, random=self._random
            )
        except (KeyUnavailable, StoreError) as error:
            self._note(f"this run is not recorded for later ones: {error.message}")
            findings = read_findings(documents, now)
            add_run(findings, verifier, now)
        return cover(verifier, findings, now)

    def record(self, report: VerifyReport, *, part: bool) -> None:
        """For `jsbackup status`. `part`: not all objects were to be read."""
        outcome = VerifyOutcome(
            begun=format_time(self._begun_ns),
            ended=format_time(self._clock_ns()),
            ok=not report.problems,
            level=self._level,
            everything=self._whole,
            part=part,
            backups=len(report.backups),
            problems=report.problems,
            chosen=() if self._whole else tuple(self._chosen),
            damaged=tuple(report.damaged),
        )
        try:
            put_verify(self._repository.documents, outcome, TOOL, self._random)
        except (KeyUnavailable, StoreError) as error:
            self._note(f"status will not know of this run: {error.message}")

    def _now(self) -> int:
        """Unix time, rounded up: nothing that is there now is newer."""
        return -(-self._clock_ns() // 10**9)


@dataclass(frozen=True, slots=True)
class _Verifying:
    """The backups of one run, one after the other."""

    repository: Repository
    chosen: Sequence[str]
    verifier: Verifier
    progress: Progress
    whole: bool

    def part(self, portion: Portion, now: Callable[[], int]) -> list[VerifiedBackup]:
        """Read a manifest again only if it is the first to name an object whose turn it is, or if all is not well."""
        verifier, well = self.verifier, True
        first: dict[str, frozenset[bytes]] = {}
        for backup, manifest in self._manifests(self.chosen):
            if isinstance(manifest, VerifiedBackup):
                well = False
            elif manifest is not None:
                first[backup] = verifier.take_stock(manifest)
                well = well and not check_manifest(manifest)
        findings = read_findings(self.repository.documents, now())
        turn = choose(verifier.stock, findings, verifier.level, portion)
        verifier.limit_to(turn)
        for _, manifest in self._manifests([backup for backup, new in first.items() if new & turn]):
            if manifest is not None and not isinstance(manifest, VerifiedBackup):
                for _ in verifier.check(manifest):
                    well = False
        # Whoever else names what is damaged is told of it too; no object is read again for that.
        well = well and not verifier.damaged
        return [VerifiedBackup(backup, []) for backup in first] if well else list(self.each())

    def each(self, *, expect: bool = False) -> Iterator[VerifiedBackup]:
        for backup, manifest in self._manifests(self.chosen):
            if manifest is None:
                continue
            if isinstance(manifest, VerifiedBackup):
                yield manifest
                continue
            if expect and len(self.chosen) == 1:  # what several will come to is known at the end only
                self.progress.expect({stream.name: stream.captured.bytes for stream in manifest.streams})
            yield VerifiedBackup(backup, list(self.verifier.check(manifest)))

    def _manifests(self, backups: Sequence[str]) -> Iterator[tuple[str, Manifest | VerifiedBackup | None]]:
        """The manifests, read a little ahead."""
        return zip(backups, in_order([partial(self._manifest, backup) for backup in backups], _THREADS), strict=True)

    def _manifest(self, backup: str) -> Manifest | VerifiedBackup | None:
        """The manifest, or what is wrong with it; None if it was forgotten while we were at work."""
        key = self.repository.documents.stored_key(layout.manifest_key(backup))
        try:
            return self.repository.manifest(backup)
        except UsageError:
            if not self.whole:
                raise
            if backup not in self.repository.backups():
                return None
            return VerifiedBackup(
                backup, [Problem(ProblemKind.MISSING, "", key, f"manifest {key} is listed, but not there")]
            )
        except IntegrityError as error:  # all of this backup is lost, the others are not
            return VerifiedBackup(backup, [Problem(ProblemKind.DAMAGED, "", key, error.message)])
