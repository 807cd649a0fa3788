"""A repair from beginning to end: manifests first, then objects from another repository, then from a server.

Only when a manifest is back is it known which objects it needs, and so with a page that lists others. A server is asked
for what the other repository lacks. What was repaired is read again and recorded, so that the next backup can build on
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from jsbackup.errors import IntegrityError, JsBackupError, KeyUnavailable, NatsError, StoreError
from jsbackup.progress import Progress
from jsbackup.repository.checks.evidence import find_missing
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.verified import read_findings, remember
from jsbackup.repository.checks.verify import Level, Verifier
from jsbackup.repository.refs import PageRef, id_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import Broken, Found, RepairOutcome, fetch_from, find_broken, put_in_place
from jsbackup.repository.write.repair_manifests import BrokenManifest, ManifestRepair, broken_manifests
from jsbackup.stores.base import Store
from jsbackup.tool import TOOL

__all__ = ["AskServer", "RepairReport", "RepairRun"]

AskServer = Callable[[Sequence[Broken]], Sequence[RepairOutcome | JsBackupError]]
"""Repairs objects from the messages of a server; returns what became of each. Raises NatsError."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What became of what was broken: objects, manifests (with None for those that were repaired), and what is beyond
    repair (key and problem). `sound` counts objects that were recorded as damaged and are not.
    """

    objects: tuple[tuple[Broken, RepairOutcome | JsBackupError], ...]
    manifests: tuple[tuple[BrokenManifest, JsBackupError | None], ...]
    beyond: tuple[tuple[str, str], ...]
    dry_run: bool = False
    not_recorded: JsBackupError | None = None  # why the repair could not be recorded
    sound: int = 0

    @property
    def mended(self) -> int:
        """The objects and manifests that were repaired, or could be."""
        whole = sum(error is None for _, error in self.manifests)
        return whole + sum(outcome is RepairOutcome.MENDED for _, outcome in self.objects)

    @property
    def beside(self) -> int:
        """The objects that were stored under another name."""
        return sum(outcome is RepairOutcome.BESIDE for _, outcome in self.objects)

    @property
    def lost(self) -> int:
        """The objects and manifests that no source has."""
        return len(self.objects) + len(self.manifests) - self.mended - self.beside

    @property
    def incomplete(self) -> bool:
        return bool(self.lost or self.beside or self.beyond)


@dataclass(frozen=True, slots=True)
class RepairRun:
    """One run over the `chosen` backups. `whole`: these are all, so that missing manifests count too.

    Bytes come from the repository in `other`, and from a server by `ask_server`. With `check` all objects are read
    first. `dry_run` changes nothing. `clock` returns Unix time, `random` that many random bytes.
    """

    repository: Repository
    chosen: Sequence[str]
    progress: Progress
    clock: Callable[[], float]
    random: Callable[[int], bytes]
    other: Store | None = None
    ask_server: AskServer | None = None
    whole: bool = True
    check: bool = False
    dry_run: bool = False
    _manifests: list[tuple[BrokenManifest, JsBackupError | None]] = field(default_factory=list, init=False)

    def carry_out(self) -> RepairReport:
        """Repair what can be repaired.

        Raises:
            NatsError: the server does not answer, and nothing else was repaired.
            StoreError: one of the stores does not answer.
            KeyUnavailable: manifests are encrypted, and no key that opens them was given.
        """
        found = self._find(self.chosen)
        gaps = find_missing(self.repository.documents) if self.whole else []
        if self.other is None:
            removed = [(gap.key, f"{gap.backup}: {gap.problem}") for gap in gaps]
            found = replace(found, beyond=(*found.beyond, *removed))
        else:
            found = self._mend_manifests(found, gaps, self.other)
        outcomes = self._mend(found.objects)
        below = self._below(found.objects, outcomes, known=found)
        while below.objects or below.beyond:
            found = _with(found, below)
            more = self._mend(below.objects)
            outcomes += more
            below = self._below(below.objects, more, known=found)
        not_recorded = None if self.dry_run else self._remember(found, outcomes)
        return RepairReport(
            tuple(zip(found.objects, outcomes, strict=True)),
            tuple(self._manifests),
            found.beyond,
            self.dry_run,
            not_recorded,
            len(found.sound),
        )

    def _find(self, backups: Sequence[str], *, unseen: bool = False) -> Found:
        """Find what is broken of these backups; with `unseen` also what no `verify` could see."""
        sound = None
        if unseen:
            findings = read_findings(self.repository.documents, math.ceil(self.clock()))
            sound = frozenset(chain.from_iterable(findings.sound.values()))
        return find_broken(self.repository, backups, self.progress, check=self.check, sound=sound)

    def _mend_manifests(self, found: Found, gaps: Sequence[Gap], other: Store) -> Found:
        """Repair manifests; return what else is broken."""
        broken = broken_manifests(self.repository, found.beyond, gaps)
        keys = set[str]()
        while broken:
            work = ManifestRepair(self.repository, other)
            for one in broken:
                try:
                    work.mend(one, dry_run=self.dry_run)
                    self._manifests.append((one, None))
                except (IntegrityError, KeyUnavailable) as error:
                    self._manifests.append((one, error))
            keys |= {one.key for one in broken}
            # A manifest that is back may show that the one before it is missing, too.
            more = find_missing(self.repository.documents) if self.whole and not self.dry_run else []
            broken = [one for one in broken_manifests(self.repository, (), more) if one.key not in keys]
        if self._manifests and not self.dry_run:
            # Also those of which only a part came back.
            found = _with(found, _without(self._find([one.backup for one, _ in self._manifests], unseen=True), found))
        return replace(found, beyond=tuple(problem for problem in found.beyond if problem[0] not in keys))

    def _below(
        self, mended: Sequence[Broken], outcomes: Sequence[RepairOutcome | JsBackupError], *, known: Found
    ) -> Found:
        """Find what is broken of that which the pages list that are there again, beside what is `known`."""
        backups = {
            backup
            for one, outcome in zip(mended, outcomes, strict=True)
            if isinstance(one.ref, PageRef) and outcome is RepairOutcome.MENDED
            for backup in one.backups
        }
        if self.dry_run or not backups:
            return Found((), ())
        return _without(self._find(sorted(backups), unseen=True), known)

    def _mend(self, broken: Sequence[Broken]) -> list[RepairOutcome | JsBackupError]:
        outcomes = [self._from_other(one) for one in broken]
        left = [number for number, one in enumerate(outcomes) if isinstance(one, JsBackupError)]
        if self.ask_server is None or not left:
            return outcomes
        try:
            repaired = self.ask_server([broken[number] for number in left])
        except NatsError as error:
            if len(left) == len(outcomes):
                raise
            repaired = [error] * len(left)  # the others are repaired
        for number, outcome in zip(left, repaired, strict=True):
            outcomes[number] = outcome
        return outcomes

    def _from_other(self, broken: Broken) -> RepairOutcome | JsBackupError:
        if self.other is None:
            return IntegrityError("no source has this object")
        data = fetch_from(self.other, broken.ref)
        if data is None:
            return IntegrityError(f"{self.other.location} has no copy of this object")
        return RepairOutcome.MENDED if self.dry_run else put_in_place(self.repository.store, broken.ref, data)

    def _remember(self, found: Found, outcomes: Sequence[RepairOutcome | JsBackupError]) -> JsBackupError | None:
        """Read repaired objects again, and those that are sound after all, and record the result; return why that was
        not possible.
        """
        mended = {
            id_of(one.ref): one.backups[-1]
            for one, outcome in zip(found.objects, outcomes, strict=True)
            if outcome is RepairOutcome.MENDED
        }
        named_by = {**found.sound, **mended}
        if not named_by:
            return None
        verifier = Verifier(self.repository.objects, Level.OBJECTS, progress=self.progress)
        verifier.limit_to(named_by)
        for backup in set(named_by.values()):
            for _ in verifier.check(self.repository.manifest(backup, in_part=True)):
                pass
        try:
            # After the second in which the damage was found.
            now = math.ceil(self.clock()) + 1
            documents = self.repository.documents
            remember(documents, verifier, everything=False, now_seconds=now, tool=TOOL, random=self.random)
        except (KeyUnavailable, StoreError) as error:
            return error
        return None


def _without(found: Found, known: Found) -> Found:
    """Return what is found beside that which is known."""
    objects = {(one.ref.key, one.ref.sha256) for one in known.objects}
    return Found(
        tuple(one for one in found.objects if (one.ref.key, one.ref.sha256) not in objects),
        tuple(problem for problem in found.beyond if problem not in known.beyond),
    )


def _with(found: Found, more: Found) -> Found:
    return replace(found, objects=(*found.objects, *more.objects), beyond=(*found.beyond, *more.beyond))
