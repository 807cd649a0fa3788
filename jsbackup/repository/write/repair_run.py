"""A repair from beginning to end: what is broken is found, the right bytes are looked for, proved and put; until
nothing more that is broken shows.

Each is put back before what it lists or opens is looked for: the list of readers and their key files (without its key
file an identity opens nothing), the records of writers (without it no manifest can be read that the writer has signed),
manifests, pages, and what they list. An object is repaired, and counted, once for all backups that name it. A server is
asked for what the other repository lacks. What was repaired is read again and recorded, so that the next backup can
build on it.

A dry run does the same in an overlay, which keeps documents and pages in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    NatsError,
    ObjectLocked,
    StoreError,
    UnsupportedError,
    UsageError,
)
from jsbackup.progress import Progress
from jsbackup.readable import in_short
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import (
    Findings,
    VerifyOutcome,
    read_damaged,
    read_findings,
    read_runs,
    remember,
)
from jsbackup.repository.checks.verify import Level, ProblemKind, Verifier, check_object
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.inventory import damaged_catalogs, find_missing, write_catalog
from jsbackup.repository.manifest import AnyRef, StreamBackup
from jsbackup.repository.objects import PageRef, StreamPageRef, id_of
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.repair import (
    Broken,
    BrokenDocument,
    ManifestRepair,
    ObjectName,
    RepairOutcome,
    WriterRepair,
    fetch_from,
    find_broken_readers,
    mend_reader,
    put_in_place,
    read_sound_part,
)
from jsbackup.stores.base import Store
from jsbackup.stores.overlay import OverlayStore
from jsbackup.tool import TOOL

__all__ = ["AskServer", "RepairReport", "RepairRun"]

DocumentOutcomes = list[tuple[BrokenDocument, JsBackupError | None]]

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
    manifests: tuple[tuple[BrokenDocument, JsBackupError | None], ...]
    beyond: tuple[tuple[str, str], ...]
    dry_run: bool = False
    not_recorded: JsBackupError | None = None  # why the repair could not be recorded
    sound: int = 0
    whole: bool = True
    writers: tuple[tuple[BrokenDocument, JsBackupError | None], ...] = ()
    checked: bool = False
    last_verify: VerifyOutcome | None = None
    readers: tuple[tuple[BrokenDocument, JsBackupError | None], ...] = ()

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
        broken = len(self.objects) + len(self.manifests) + len(self.writers) + len(self.readers)
        return broken - self.mended - self.beside

    @property
    def lost_keys(self) -> int:
        """The same with what is beyond repair: one object may have several such problems."""
        return self.lost + len({key for key, _ in self.beyond})

    @property
    def incomplete(self) -> bool:
        return bool(self.lost or self.beside or self.beyond)


@dataclass(slots=True)
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
    _readers: DocumentOutcomes = field(default_factory=list, init=False)
    _writers: DocumentOutcomes = field(default_factory=list, init=False)
    _manifests: DocumentOutcomes = field(default_factory=list, init=False)
    _objects: dict[ObjectName, Broken] = field(default_factory=dict, init=False)
    _outcomes: dict[ObjectName, RepairOutcome | JsBackupError] = field(default_factory=dict, init=False)
    _beyond: dict[tuple[str, str], None] = field(default_factory=dict, init=False)
    _sound: dict[bytes, str] = field(default_factory=dict, init=False)  # recorded as damaged, and a backup
    _judged: set[bytes] = field(default_factory=set, init=False)  # those that were looked at again
    _proofs: ManifestRepair = field(init=False)
    _verifier: Verifier = field(init=False)
    _findings: Findings = field(init=False)
    _recorded: Mapping[bytes, str] = field(init=False)

    def carry_out(self) -> RepairReport:
        """Repair what can be repaired.

        Raises:
            NatsError: the server does not answer, and nothing else was repaired.
            StoreError: one of the stores does not answer.
            KeyUnavailable: manifests are encrypted, and no key that opens them was given.
            JsBackupError: the `unopened` error, if the keys still do not open the repository.
        """
        if self.dry_run:
            self.repository = self.repository.over(OverlayStore(self.repository.store, self.clock))
        find_readers = partial(find_broken_readers, self.repository)
        if self._mend_all(self._readers, find_readers, partial(mend_reader, self.repository)) or self.unopened:
            self._reopen()
        writers = WriterRepair(self.repository)
        if self._mend_all(self._writers, writers.find, writers.mend):  # what they have signed can be read now
            self._reopen()
        # For others, the manifests that need them say so, or come back themselves.
        self._writers = [(record, error) for record, error in self._writers if record.certain or error is None]
        self._mend_backups()
        not_recorded = None if self.dry_run else self._remember()
        if self.whole:
            self._mend_catalog()
        runs = [] if self.check else read_runs(VerifyOutcome, self.repository.documents, 1)
        return RepairReport(
            tuple((broken, self._outcomes[name]) for name, broken in self._objects.items()),
            tuple(self._manifests),
            tuple(self._beyond),
            self.dry_run,
            not_recorded,
            len(self._sound),
            self.whole,
            writers=tuple(self._writers),
            checked=self.check,
            last_verify=next(iter(runs), None),
            readers=tuple(self._readers),
        )

    def _mend_all(
        self,
        outcomes: DocumentOutcomes,
        find: Callable[[], Iterable[BrokenDocument]],
        mend: Callable[[BrokenDocument, Store], BrokenDocument],
    ) -> bool:
        """Repair documents until no more that are broken show: one that is back may show others. Return whether any is
        back.
        """
        tried = set[str]()
        while broken := [document for document in find() if document.key not in tried]:
            for document in broken:
                tried.add(document.key)
                try:
                    if self.other is None:
                        raise IntegrityError("only another repository can supply it")
                    outcomes.append((mend(document, self.other), None))
                except (IntegrityError, KeyUnavailable, UnsupportedError, ObjectLocked) as error:
                    outcomes.append((document, error))
        return any(error is None for _, error in outcomes)

    def _reopen(self) -> None:
        try:
            self.repository = Repository.open(self.repository.store, self.keys)
        except (KeyUnavailable, IntegrityError) as error:
            lost = [f"{key_file.problem}: {reason.message}" for key_file, reason in self._readers if reason is not None]
            raise error.with_message("; ".join((error.message, *lost))) from None

    def _mend_backups(self) -> None:
        """Repair manifests, then pages, each before those that it lists, then all other objects."""
        documents = self.repository.documents
        missing = self._broken_manifests()  # before anything else is read
        self._verifier = Verifier(self.repository.objects, Level.OBJECTS, progress=self.progress)
        self._findings = read_findings(documents, math.ceil(self.clock()))
        self._recorded = read_damaged(documents)
        self._look_at(self.chosen)
        if self.other is None:
            self._beyond |= {(document.key, document.problem): None for document in missing}
        else:
            self._mend_all(self._manifests, self._broken_manifests, lambda document, _: self._proofs.mend(document))
            tried = {document.key for document, _ in self._manifests}
            self._beyond = {problem: None for problem in self._beyond if problem[0] not in tried}
        shown = back = {document.backup for document, error in self._manifests if error is None}
        while True:
            if self._look_at(shown, unseen=True):  # others may name it, too
                self._look_at({*self.chosen, *back} - shown)
            pages = [broken for broken in self._undecided() if any(broken.rank)]
            if not pages:
                break
            highest, shown = max(page.rank for page in pages), set()
            for page in pages:
                if page.rank == highest:
                    outcome = self._outcomes[page.name] = self._from_other(page)
                    shown |= set(page.backups) if outcome is RepairOutcome.MENDED else set()
        self._mend_objects(self._undecided())

    def _undecided(self) -> list[Broken]:
        return [broken for name, broken in self._objects.items() if name not in self._outcomes]

    def _broken_manifests(self) -> list[BrokenDocument]:
        """Return the manifests among what is beyond repair, and those that the chain misses."""
        documents = self.repository.documents
        suffix, broken = documents.stored_key(""), {}
        for key, problem in self._beyond:
            if (backup := layout.backup_id_of(key.removesuffix(suffix))) is not None:
                broken[backup] = BrokenDocument(key, problem, backup)
        for gap in find_missing(documents) if self.whole else ():
            document = BrokenDocument(documents.stored_key(gap.key), f"{gap.backup}: {gap.problem}", gap.backup)
            broken.setdefault(gap.backup, document)
        if broken and self.other is not None:
            self._proofs = ManifestRepair(self.repository, self.other, trust_copy=self.trust_copy)
        return [broken[backup] for backup in sorted(broken)]

    def _look_at(self, backups: Iterable[str], *, unseen: bool = False) -> bool:
        """Find what is broken of these backups: objects that are missing, have a wrong size, or were found damaged by
        the last `verify` and still are. With `check` all objects are read; with `unseen` all but those that were found
        sound: of what a manifest or a page lists that was lost, no `verify` knew. Return whether more than before is
        known to be broken.
        """
        known = len(self._objects)
        sound = frozenset(chain.from_iterable(self._findings.sound.values())) if unseen else frozenset()
        for backup in sorted(backups):
            key = self.repository.documents.stored_key(layout.manifest_key(backup))
            try:
                manifest = read_sound_part(self.repository, backup)
            except UsageError:  # forgotten meanwhile
                continue
            except (IntegrityError, UnsupportedError) as error:
                self._beyond[key, error.message] = None
                continue
            refs: dict[str, tuple[StreamBackup | None, AnyRef]] = {
                page.key: (None, page) for page in manifest.stream_pages
            }
            for stream in manifest.streams:
                refs |= {ref.key: (stream, ref) for ref in stream.walk() if not isinstance(ref, BrokenPage)}
            if not self.check:
                ids = {id_of(ref) for _, ref in refs.values()} if unseen else set()
                self._verifier.limit_to(self._recorded.keys() | (ids - sound))
            for problem in self._verifier.check(manifest):
                if problem.kind is ProblemKind.INCONSISTENT or problem.key not in refs:
                    self._beyond[key, problem.problem] = None
                    continue
                needed_by, ref = refs[problem.key]
                broken = Broken(ref, needed_by, problem.stream, problem.problem, (backup,))
                earlier = self._objects.get(broken.name)
                self._objects[broken.name] = earlier.also(broken) if earlier else broken
            self._judge_recorded(backup, [ref for _, ref in refs.values()])
        return len(self._objects) > known

    def _judge_recorded(self, backup: str, refs: Iterable[AnyRef]) -> None:
        """Say of objects that are recorded as damaged, and have the right SHA-256, whether they are sound. Those that a
        `verify` could not decode are decoded again; nothing can repair them.
        """
        due = (self._recorded.keys() & self._verifier.sound) - self._judged
        for ref in refs if due else ():
            if (name := id_of(ref)) not in due:
                continue
            self._judged.add(name)
            damage = self._findings.damaged.get(name)
            if damage is not None and damage.level is Level.DATA and (flaw := self._flaw_within(ref)):
                self._beyond[ref.key, flaw] = None
            else:
                self._sound[name] = backup

    def _flaw_within(self, ref: AnyRef) -> str:
        """Return why an object with the right SHA-256 cannot be decoded; "" if it can. Those that list others were."""
        if isinstance(ref, PageRef | StreamPageRef):
            return ""
        try:
            flaw = check_object(self.repository.objects, ref, Level.DATA)
        except KeyUnavailable:
            return (
                f"object {ref.key} could not be decoded, and only a key that reads messages shows whether it can be now"
            )
        return "" if flaw is None else flaw.text

    def _mend_objects(self, broken: Sequence[Broken]) -> None:
        """Repair objects that list nothing. Raises NatsError if the server does not answer, and nothing was repaired
        before.
        """
        errors: dict[ObjectName, JsBackupError] = {}
        for damaged in broken:
            outcome = self._outcomes[damaged.name] = self._from_other(damaged)
            if isinstance(outcome, JsBackupError):
                errors[damaged.name] = outcome
        left = [damaged for damaged in broken if damaged.name in errors]
        if self.ask_server is None or not left:
            return
        try:
            answers = self.ask_server(left)
        except NatsError as error:
            objects = any(isinstance(outcome, RepairOutcome) for outcome in self._outcomes.values())
            if not objects and all(reason is not None for _, reason in self._manifests):
                raise
            answers = [error] * len(left)  # the others are repaired
        for damaged, answer in zip(left, answers, strict=True):
            if isinstance(answer, JsBackupError) and self.other is not None:
                answer = IntegrityError(f"{errors[damaged.name].message}; {answer.message}")
            self._outcomes[damaged.name] = answer

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

    def _mend_catalog(self) -> None:
        """Write a catalog in place of a damaged one, unless that may have named newer backups that `other` has."""
        documents = self.repository.documents
        problems = damaged_catalogs(documents)
        if not problems:
            return
        newest, suffix = max(self.repository.backups(), default=""), documents.stored_key("")
        listed = () if self.other is None else self.other.list(layout.BACKUPS)
        ids = filter(None, (layout.backup_id_of(info.key.removesuffix(suffix)) for info in listed))
        try:
            if later := sorted(backup for backup in ids if backup > newest):
                hint = f"Run 'jsbackup copy' for {in_short(later)} before."
                raise IntegrityError("it may have named newer backups", hint=hint)
            write_catalog(documents)
        except (IntegrityError, KeyUnavailable) as error:
            why = f"{error.message}; {error.hint}" if error.hint else error.message
            self._beyond |= {(layout.CATALOGS, f"{problem}; {why}"): None for problem in problems}
            return
        self._manifests += [(BrokenDocument(layout.CATALOGS, problem), None) for problem in problems]

    def _remember(self) -> JsBackupError | None:
        """Read again what was repaired, what is sound after all, and what stays damaged without being recorded as such;
        record the result. Return why that was not possible.
        """
        known = read_damaged(self.repository.documents)
        named_by = dict(self._sound)
        for broken in self._objects.values():
            if self._outcomes[broken.name] is RepairOutcome.MENDED or id_of(broken.ref) not in known:
                named_by[id_of(broken.ref)] = broken.backups[-1]
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
