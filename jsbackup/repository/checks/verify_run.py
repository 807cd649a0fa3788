"""One run of `verify` over some or all backups: find what is wrong with each, and record it for later runs and
`status`.

Its arguments are a repository, the backups and a level; its result is a report. Which objects were read, and with which
result, is recorded in the repository, also if the run is interrupted, so that the next one can continue with others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from jsbackup.errors import IntegrityError, KeyUnavailable, ObjectNotFound, StoreError, UnsupportedError, UsageError
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.ledger import (
    Coverage,
    Portion,
    VerifyOutcome,
    add_run,
    choose_portion,
    cover,
    read_findings,
    record_run,
    remember,
)
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.verify import Checker, Level, Problem, ProblemKind, Verifier, check_manifest
from jsbackup.repository.crypto.readers import AGAIN_FROM_COPY, NOT_LISTED, Flaw, examine_readers
from jsbackup.repository.crypto.signing import decode_writer, read_signed
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.inventory import find_gaps
from jsbackup.repository.keep.holds import find_hold
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import Losses, Manifest
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = [
    "VerifiedBackup",
    "VerifyReport",
    "VerifyRun",
    "check_own_documents",
    "check_readers",
    "check_writers",
    "lost_readers",
]


# --- document checks ---
#
# Checks of what a repository needs besides backups and their objects.
#
#     keys/       records of writers and the list of readers (signed by the authority), and identities for readers, as
#                 the list says (`readers.py`)
#     holds/      every hold can be read
#     backups/    no manifest is stored in a form that this repository does not read
#
# The descriptor was checked when the repository was opened; `inventory.py` checks catalogs. Leases are left to
# `jsbackup unlock`. Lists of unused objects, receipts and records of what was verified are not checked: damage to them
# only costs time, because something is stored or checked again.

_log = logging.getLogger(__name__)


def check_own_documents(repository: Repository) -> list[Flaw]:
    """List everything that is wrong. Objects that are removed meanwhile do not count.

    Raises `StoreError` if the store cannot be listed.
    """
    return [*check_writers(repository), *check_readers(repository), *_holds(repository), *_manifests(repository)]


def check_readers(repository: Repository) -> list[Flaw]:
    """List the key files of readers that are missing or damaged, or in no list. Raises `StoreError` if the store cannot
    be listed.
    """
    readers = examine_readers(repository.store, repository.descriptor, lenient=True)
    flaws = [Flaw(reader.key, f"{reader.problem}; {AGAIN_FROM_COPY}") for reader in readers.broken]
    return [*flaws, *(Flaw(key, f"{key} {NOT_LISTED}") for key in readers.unlisted)]


def lost_readers(repository: Repository) -> tuple[str, ...]:
    """Return a sentence for each key file of a reader that is missing or damaged, for commands that store backups.

    Raises no StoreError: the backup matters more.
    """
    try:
        readers = examine_readers(repository.store, repository.descriptor)
    except StoreError as error:
        _log.warning("whether someone can read the repository is not known: %s", error.message)
        return ()
    return tuple(f"{reader.problem}; {AGAIN_FROM_COPY}" for reader in readers.broken)


def check_writers(repository: Repository) -> Iterator[Flaw]:
    """Yield the records of writers that are missing or damaged. Raises `StoreError` if the store cannot be listed."""
    store, descriptor = repository.store, repository.descriptor
    if descriptor.authority is not None:
        if flaw := _without_writer(repository):
            yield flaw
        for info in list(store.list(layout.WRITERS)):
            if layout.kind_of(info.key) is ObjectKind.WRITER:
                try:
                    document = read_signed(descriptor.id, info.key, store.get_range(info.key, 0, MAX_DOCUMENT_BYTES))
                    decode_writer(document.data, info.key)
                except ObjectNotFound:
                    continue
                except StoreError as error:
                    yield Flaw(info.key, error.message)
                except (IntegrityError, UnsupportedError) as error:
                    yield Flaw(info.key, f"{error.message}; nothing that this writer has signed can be read")
                else:
                    if document.signer != descriptor.authority:
                        yield Flaw(info.key, f"{info.key} was stored by someone who may not add writers")


def _without_writer(repository: Repository) -> Flaw | None:
    """Return what is wrong if a record of a writer that there was from the beginning is missing. (Of others it is known
    from what they have signed, and each such manifest is reported.)
    """
    store, descriptor = repository.store, repository.descriptor
    stored = {i.key for i in store.list(layout.WRITERS) if layout.kind_of(i.key) is ObjectKind.WRITER}
    if descriptor.recipient is not None:  # the first one may have any name
        missing = None if stored else Flaw(layout.WRITERS, f"no {layout.WRITERS}….json is there any more")
    else:
        first = layout.writer_key(descriptor.authority or "")
        missing = None if first in stored else Flaw(first, f"{first} is missing")
    more = "; nothing that this writer has signed can be read"
    return missing and Flaw(missing.key, missing.problem + more)


def _holds(repository: Repository) -> Iterator[Flaw]:
    for info in list(repository.store.list(layout.HOLDS)):
        backup = layout.held_backup_of(info.key)
        try:
            hold = None if backup is None else find_hold(repository, backup)
        except StoreError as error:
            yield Flaw(info.key, error.message)
            continue
        if hold is not None and hold.created is None:
            yield Flaw(info.key, f"{hold.reason}; backup {backup} stays held")


def _manifests(repository: Repository) -> Iterator[Flaw]:
    stored = [info.key for info in repository.store.list(layout.BACKUPS)]
    ending = repository.documents.stored_key("")
    for key in stored:
        if layout.kind_of(key) is ObjectKind.MANIFEST and key.endswith(layout.SEALED_SUFFIX) != bool(ending):
            yield Flaw(key, f"{key} is a manifest of a kind that this repository does not have, and is not read")


# For manifests, which are in memory: one of 16,000 segments takes some 30 MB.
_THREADS = 2


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """A backup, and what is wrong with it. `salvaged` has what streams lacked from the beginning, by name."""

    backup: str
    problems: list[Problem]
    salvaged: Mapping[str, Losses] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The findings of a run: in backups, in the chain of manifests, in the repository's own documents."""

    backups: list[VerifiedBackup]
    gaps: list[Gap]
    flaws: list[Flaw]
    coverage: Coverage | None

    @property
    def problems(self) -> int:
        return len(self.gaps) + len(self.flaws) + sum(len(backup.problems) for backup in self.backups)

    @property
    def damaged(self) -> list[str]:
        """The backups with a problem."""
        broken = {backup.backup for backup in self.backups if backup.problems}
        return sorted(broken | {gap.backup for gap in self.gaps if gap.backup})


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """One run over the `chosen` backups. `whole`: these are all backups. `note` is called with notes for the user."""

    repository: Repository
    chosen: Sequence[str]
    level: Level
    whole: bool
    begun_ns: int
    clock_ns: Callable[[], int]
    random: Callable[[int], bytes]
    note: Callable[[str], None]

    def find_gaps(self, expect: str | None) -> list[Gap]:
        """Return missing manifests. `expect` is the id of the newest backup, if the user knows it."""
        signed = self.repository.descriptor.authority is not None
        if not (signed or expect or self.whole):
            return []
        # Manifests are only linked by signatures: without them, those covered by the catalog need not be read for
        # that.
        wanted = (None if self.whole else self.chosen) if signed else ()
        return find_gaps(self.repository.documents, wanted, expect)

    def find_flaws(self) -> list[Flaw]:
        """Return what is wrong with the repository's own documents: of all, if everything is verified, else of what
        opens the backups.
        """
        return check_own_documents(self.repository) if self.whole else check_readers(self.repository)

    def check(
        self,
        gaps: list[Gap],
        flaws: list[Flaw],
        *,
        progress: Progress,
        checker: Checker | None = None,
        portion: Portion | None = None,
    ) -> VerifyReport:
        """Verify the backups, and record what was read. Raises StoreError, and UsageError for an unknown backup."""
        verifier = Verifier(self.repository.objects, self.level, progress=progress, checker=checker)
        try:
            if portion is None:
                expects = progress if len(self.chosen) == 1 else None  # the total of several is only known at the end
                backups = list(self._each(verifier, expects))
            else:
                backups = self._part(verifier, portion)
        except (KeyboardInterrupt, StoreError):
            self._remember(verifier, everything=False)
            raise
        return VerifyReport(backups, gaps, flaws, self._remember(verifier, everything=self.whole))

    def _remember(self, verifier: Verifier, *, everything: bool) -> Coverage | None:
        if self.level is Level.MANIFEST:
            return None
        documents, now = self.repository.documents, self._now()
        try:
            findings = remember(
                documents, verifier, everything=everything, now_seconds=now, tool=TOOL, random=self.random
            )
        except (KeyUnavailable, StoreError) as error:
            self.note(f"this run is not recorded for later ones: {error.message}")
            findings = read_findings(documents, now)
            add_run(findings, verifier, now)
        return cover(verifier, findings, now)

    def record(self, report: VerifyReport, *, part: bool) -> None:
        """Record the result for `jsbackup status`. `part`: not all objects were to be read."""
        outcome = VerifyOutcome(
            begun=format_time(self.begun_ns),
            ended=format_time(self.clock_ns()),
            ok=not report.problems,
            level=self.level,
            everything=self.whole,
            part=part,
            backups=len(report.backups),
            problems=report.problems,
            chosen=() if self.whole else tuple(self.chosen),
            damaged=tuple(report.damaged),
        )
        try:
            record_run(self.repository.documents, outcome, TOOL, self.random)
        except (KeyUnavailable, StoreError) as error:
            self.note(f"status will not know of this run: {error.message}")

    def _now(self) -> int:
        """Return Unix time, rounded up: no existing object is newer."""
        return -(-self.clock_ns() // 10**9)

    def _part(self, verifier: Verifier, portion: Portion) -> list[VerifiedBackup]:
        """Read a manifest again only if it is the first with an object to be checked, or if something is damaged."""
        well = True
        first: dict[str, frozenset[bytes]] = {}
        salvaged: dict[str, Mapping[str, Losses]] = {}
        for backup, manifest in self._manifests(self.chosen):
            if isinstance(manifest, VerifiedBackup):
                well = False
            elif manifest is not None:
                first[backup] = verifier.take_stock(manifest)
                salvaged[backup] = _salvaged(manifest)
                well = well and not check_manifest(manifest) and not manifest.unlisted
        findings = read_findings(self.repository.documents, self._now())
        turn = choose_portion(verifier.stock, findings, verifier.level, portion)
        verifier.limit_to(turn)
        for _, manifest in self._manifests([backup for backup, new in first.items() if new & turn]):
            if isinstance(manifest, Manifest) and [*verifier.check(manifest)]:
                well = False
        # Damage is also reported for other backups with the object; no object is read again for that.
        if well and not verifier.damaged:
            return [VerifiedBackup(backup, [], salvaged[backup]) for backup in first]
        return list(self._each(verifier, None))

    def _each(self, verifier: Verifier, expects: Progress | None) -> Iterator[VerifiedBackup]:
        for backup, manifest in self._manifests(self.chosen):
            if isinstance(manifest, VerifiedBackup):
                yield manifest
            elif manifest is not None:
                if expects is not None and self.level is not Level.MANIFEST:
                    expects.expect({stream.name: stream.captured.bytes for stream in manifest.streams})
                yield VerifiedBackup(backup, list(verifier.check(manifest)), _salvaged(manifest))

    def _manifests(self, backups: Sequence[str]) -> Iterator[tuple[str, Manifest | VerifiedBackup | None]]:
        """Yield the manifests, reading a little ahead."""
        return zip(backups, in_order([partial(self._manifest, backup) for backup in backups], _THREADS), strict=True)

    def _manifest(self, backup: str) -> Manifest | VerifiedBackup | None:
        """Return the manifest, or what is wrong with it; None if it was forgotten meanwhile."""
        key = self.repository.documents.stored_key(layout.manifest_key(backup))
        try:
            return self.repository.manifest(backup, in_part=True)
        except UsageError:
            if not self.whole:
                raise
            if backup not in self.repository.backups():
                return None
            return VerifiedBackup(
                backup, [Problem(ProblemKind.MISSING, "", key, f"manifest {key} is listed, but not there")]
            )
        except IntegrityError as error:  # this backup is lost, the others are not
            return VerifiedBackup(backup, [Problem(ProblemKind.DAMAGED, "", key, error.message)])


def _salvaged(manifest: Manifest) -> Mapping[str, Losses]:
    return {stream.name: stream.lost for stream in manifest.streams if stream.lost}
