"""A repair from beginning to end: key files of readers first, then the records of writers, then manifests, then pages,
then what they list.

Without its key file an identity opens nothing, and without the record of a writer no manifest can be read that it has
signed. Only when a manifest or a page is back is it known which objects it needs. So each is put back before what it
lists is looked for: an object is then repaired, and counted, once for all backups that name it. A server is asked for
what the other repository lacks. What was repaired is read again and recorded, so that the next backup can build on it.

A dry run does the same in an overlay, which keeps manifests and pages in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from jsbackup.errors import IntegrityError, JsBackupError, KeyUnavailable, NatsError, StoreError
from jsbackup.progress import Progress
from jsbackup.repository.checks.damaged import read_damaged
from jsbackup.repository.checks.evidence import find_missing
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.outcomes import VerifyOutcome, read_verifies
from jsbackup.repository.checks.verified import read_findings, remember
from jsbackup.repository.checks.verify import Level, Verifier
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.crypto.readers import BrokenReader
from jsbackup.repository.refs import id_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import (
    Broken,
    Found,
    ObjectName,
    RepairOutcome,
    fetch_from,
    find_broken,
    put_in_place,
    read_sound_part,
)
from jsbackup.repository.write.repair_manifests import BrokenManifest, ManifestRepair, broken_manifests
from jsbackup.repository.write.repair_readers import ReaderRepair
from jsbackup.repository.write.repair_writers import BrokenWriter, WriterRepair
from jsbackup.stores.base import Store
from jsbackup.stores.overlay import OverlayStore
from jsbackup.tool import TOOL

__all__ = ["AskServer", "RepairReport", "RepairRun"]

AskServer = Callable[[Sequence[Broken]], Sequence[RepairOutcome | JsBackupError]]
"""Repairs objects from the messages of a server; returns what became of each. Raises NatsError."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What became of what was broken: objects, manifests, records of writers, key files of readers (with None for those
    that were repaired), and what is beyond repair (key and problem). Each object and manifest is there once, however
    many backups need it. `sound` counts objects that were recorded as damaged and are not. `whole`: all backups were
    looked at.

    `checked`: all objects were read. Without that, damage is only known from records: `last_verify` is the newest
    outcome of `verify` that was recorded.
    """

    objects: tuple[tuple[Broken, RepairOutcome | JsBackupError], ...]
    manifests: tuple[tuple[BrokenManifest, JsBackupError | None], ...]
    beyond: tuple[tuple[str, str], ...]
    dry_run: bool = False
    not_recorded: JsBackupError | None = None  # why the repair could not be recorded
    sound: int = 0
    whole: bool = True
    writers: tuple[tuple[BrokenWriter, JsBackupError | None], ...] = ()
    checked: bool = False
    last_verify: VerifyOutcome | None = None
    readers: tuple[tuple[BrokenReader, JsBackupError | None], ...] = ()

    @property
    def mended(self) -> int:
        """The objects, manifests and records that were repaired, or could be."""
        whole = sum(error is None for _, error in (*self.manifests, *self.writers, *self.readers))
        return whole + sum(outcome is RepairOutcome.MENDED for _, outcome in self.objects)

    @property
    def beside(self) -> int:
        """The objects that were stored under another name."""
        return sum(outcome is RepairOutcome.BESIDE for _, outcome in self.objects)

    @property
    def lost(self) -> int:
        """The objects, manifests and records that no source has."""
        found = len(self.objects) + len(self.manifests) + len(self.writers) + len(self.readers)
        return found - self.mended - self.beside

    @property
    def lost_keys(self) -> int:
        """The same with what is beyond repair: one object may have several such problems."""
        return self.lost + len({key for key, _ in self.beyond})

    @property
    def incomplete(self) -> bool:
        return bool(self.lost or self.beside or self.beyond)


@dataclass(frozen=True, slots=True)
class RepairRun:
    """One run over the `chosen` backups. `whole`: these are all, so that missing manifests count too.

    `keys` are those of the user. `unopened` is the error if the repository was opened without those that read messages,
    because with them it could not be: they are tried again when key files of readers are back. Bytes come from the
    repository in `other`, and from a server by `ask_server`. With `check` all objects are read first. With
    `trust_copy`, manifests that nothing proves are taken from it, too, if this repository is not signed. `dry_run`
    changes nothing; then `ask_server` must not either.
    `clock` returns Unix time, `random` that many random bytes.
    """

    repository: Repository
    chosen: Sequence[str]
    progress: Progress
    clock: Callable[[], float]
    random: Callable[[int], bytes]
    keys: GivenKeys = NO_KEYS
    unopened: JsBackupError | None = None
    other: Store | None = None
    ask_server: AskServer | None = None
    whole: bool = True
    check: bool = False
    trust_copy: bool = False
    dry_run: bool = False
    _manifests: list[tuple[BrokenManifest, JsBackupError | None]] = field(default_factory=list, init=False)
    _outcomes: dict[ObjectName, RepairOutcome | JsBackupError] = field(default_factory=dict, init=False)

    def carry_out(self) -> RepairReport:
        """Repair what can be repaired.

        Raises:
            NatsError: the server does not answer, and nothing else was repaired.
            StoreError: one of the stores does not answer.
            KeyUnavailable: manifests are encrypted, and no key that opens them was given.
            JsBackupError: the `unopened` error, if the keys still do not open the repository.
        """
        run = self
        if self.dry_run:
            run = replace(run, repository=run.repository.over(OverlayStore(run.repository.store, run.clock)))
        readers = run._mend_readers()
        if self.unopened is not None or any(error is None for _, error in readers):
            run = run._reopened(readers)
        writers = run._mend_writers()
        if any(error is None for _, error in writers):  # what they have signed can be read now
            run = run._reopened(readers)
            known = {one.key for one, _ in readers}
            readers += [(one, error) for one, error in run._mend_readers() if one.key not in known]
        return replace(run._carry_out(), writers=tuple(writers), readers=tuple(readers))

    def _reopened(self, readers: Sequence[tuple[BrokenReader, JsBackupError | None]]) -> RepairRun:
        try:
            return replace(self, repository=Repository.open(self.repository.store, self.keys))
        except (KeyUnavailable, IntegrityError) as error:
            lost = [f"{one.problem}: {reason.message}" for one, reason in readers if reason is not None]
            raise error.with_message("; ".join((error.message, *lost))) from None

    def _mend_readers(self) -> list[tuple[BrokenReader, JsBackupError | None]]:
        outcomes: list[tuple[BrokenReader, JsBackupError | None]] = []
        work = ReaderRepair(self.repository, self.keys, self.other)
        for one in work.find():
            try:
                work.mend(one)
            except IntegrityError as reason:
                outcomes.append((one, reason))
            else:
                outcomes.append((one, None))
        return outcomes

    def _mend_writers(self) -> list[tuple[BrokenWriter, JsBackupError | None]]:
        outcomes: list[tuple[BrokenWriter, JsBackupError | None]] = []
        work = WriterRepair(self.repository)
        for one in work.find():
            error: JsBackupError | None = None
            try:
                if self.other is None:
                    raise IntegrityError("only another repository can supply it")
                work.mend(one, self.other)
            except IntegrityError as reason:
                error = reason
            if error is None or one.certain:  # else the manifests that need it say so, or come back themselves
                outcomes.append((one, error))
        return outcomes

    def _carry_out(self) -> RepairReport:
        gaps = find_missing(self.repository.documents) if self.whole else []
        found = self._find(self.chosen)
        if self.other is None:
            documents = self.repository.documents
            removed = [(documents.stored_key(gap.key), f"{gap.backup}: {gap.problem}") for gap in gaps]
            found = replace(found, beyond=(*found.beyond, *removed))
        else:
            found = self._mend_manifests(found, gaps, self.other)
        found = self._mend_pages(found, {one.backup for one, error in self._manifests if error is None})
        self._mend([one for one in found.objects if one.name not in self._outcomes])
        not_recorded = None if self.dry_run else self._remember(found)
        documents = self.repository.documents
        return RepairReport(
            tuple((one, self._outcomes[one.name]) for one in found.objects),
            tuple(self._manifests),
            found.beyond,
            self.dry_run,
            not_recorded,
            len(found.sound),
            self.whole,
            checked=self.check,
            last_verify=None if self.check else next(iter(read_verifies(documents, 1)), None),
        )

    def _find(self, backups: Iterable[str], *, unseen: bool = False, also: Collection[bytes] = ()) -> Found:
        """Find what is broken of these backups; with `unseen` also what no `verify` could see, and what is damaged of
        `also` (ids).
        """
        ids = sorted(backups)
        if not ids:
            return Found((), ())
        findings = read_findings(self.repository.documents, math.ceil(self.clock()))
        return find_broken(
            self.repository,
            ids,
            self.progress,
            check=self.check,
            also=also,
            sound=frozenset(chain.from_iterable(findings.sound.values())) if unseen else None,
            undecodable=findings.damaged[Level.DATA].keys(),
        )

    def _mend_manifests(self, found: Found, gaps: Sequence[Gap], other: Store) -> Found:
        """Repair manifests; return what else is broken."""
        broken = broken_manifests(self.repository, found.beyond, gaps)
        keys = set[str]()
        while broken:
            work = ManifestRepair(self.repository, other, trust_copy=self.trust_copy)
            for one in broken:
                try:
                    note = work.mend(one)
                    said = replace(one, problem=f"{one.problem}; {note}") if note else one
                    self._manifests.append((said, None))
                except (IntegrityError, KeyUnavailable) as error:
                    self._manifests.append((one, error))
            keys |= {one.key for one in broken}
            # A manifest that is back may show that the one before it is missing, too.
            more = find_missing(self.repository.documents) if self.whole else []
            broken = [one for one in broken_manifests(self.repository, (), more) if one.key not in keys]
        found = replace(found, beyond=tuple(problem for problem in found.beyond if problem[0] not in keys))
        return found.plus(self._find(one.backup for one, error in self._manifests if error is None))

    def _mend_pages(self, found: Found, backups: set[str]) -> Found:
        """Repair pages, each before those that it lists; return what is broken with what only they list, or the
        manifests of `backups`.
        """
        shown = set(backups)
        while pages := [one for one in found.objects if any(one.rank) and one.name not in self._outcomes]:
            highest = max(one.rank for one in pages)
            back = set[str]()
            for one in pages:
                if one.rank == highest:
                    outcome = self._outcomes[one.name] = self._from_other(one)
                    back |= set(one.backups) if outcome is RepairOutcome.MENDED else set()
            found = found.plus(self._find(back))
            shown |= back
        late = self._find(shown, unseen=True)
        new = {id_of(one.ref) for one in late.objects} - {id_of(one.ref) for one in found.objects}
        others = {*self.chosen, *backups} - shown if new else ()  # they may name it, too
        return found.plus(late).plus(self._find(others, also=new))

    def _mend(self, broken: Sequence[Broken]) -> None:
        """Repair objects that list nothing. Raises NatsError if the server does not answer, and nothing was repaired
        before.
        """
        errors: dict[ObjectName, JsBackupError] = {}
        for one in broken:
            outcome = self._outcomes[one.name] = self._from_other(one)
            if isinstance(outcome, JsBackupError):
                errors[one.name] = outcome
        left = [one for one in broken if one.name in errors]
        if self.ask_server is None or not left:
            return
        try:
            answers = self.ask_server(left)
        except NatsError as error:
            if not self._has_repaired():
                raise
            answers = [error] * len(left)  # the others are repaired
        for one, answer in zip(left, answers, strict=True):
            if isinstance(answer, JsBackupError) and self.other is not None:
                answer = IntegrityError(f"{errors[one.name].message}; {answer.message}")
            self._outcomes[one.name] = answer

    def _has_repaired(self) -> bool:
        objects = any(isinstance(outcome, RepairOutcome) for outcome in self._outcomes.values())
        return objects or any(error is None for _, error in self._manifests)

    def _from_other(self, broken: Broken) -> RepairOutcome | JsBackupError:
        if self.other is None:
            return IntegrityError("only another repository can supply it" if any(broken.rank) else "no source has it")
        data = fetch_from(self.other, broken.ref)
        if data is None:
            return IntegrityError(f"{self.other.location} has no copy of this object")
        if self.dry_run and not any(broken.rank):  # which may be large, and shows nothing else
            return RepairOutcome.MENDED
        try:
            return put_in_place(self.repository.store, broken.ref, data)
        except IntegrityError as error:
            return error

    def _remember(self, found: Found) -> JsBackupError | None:
        """Read again what was repaired, what is sound after all, and what stays damaged without being recorded as such;
        record the result. Return why that was not possible.
        """
        known = read_damaged(self.repository.documents)
        named_by = dict(found.sound)
        for one in found.objects:
            if self._outcomes[one.name] is RepairOutcome.MENDED or id_of(one.ref) not in known:
                named_by[id_of(one.ref)] = one.backups[-1]
        # What `verify --level data` has found is only forgotten if it is read at that level.
        can_decode = not self.repository.objects.sealing.suffix or self.repository.secret is not None
        level = Level.DATA if can_decode else Level.OBJECTS
        verifier = Verifier(self.repository.objects, level, progress=self.progress)
        verifier.limit_to(named_by)
        for backup in set(named_by.values()):
            for _ in verifier.check(read_sound_part(self.repository, backup)):
                pass
        if not any(verifier.stock[name].modified_seconds is not None for name in named_by.keys() & verifier.stock):
            return None  # nothing, or what is missing, which needs no record
        try:
            remember(
                self.repository.documents,
                verifier,
                everything=False,
                now_seconds=math.ceil(self.clock()),
                tool=TOOL,
                random=self.random,
            )
        except (KeyUnavailable, StoreError) as error:
            return error
        return None
