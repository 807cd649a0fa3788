"""A repair from beginning to end: key files of readers first, then the records of writers, then manifests, then pages,
then what they list.

Without its key file an identity opens nothing, and without the record of a writer no manifest can be read that it has
signed. Only when a manifest or a page is back is it known which objects it needs. So each is put back before what it
lists is looked for: an object is then repaired, and counted, once for all backups that name it. A server is asked for
what the other repository lacks. What was repaired is read again and recorded, so that the next backup can build on it.

A dry run does the same in an overlay, which keeps manifests and pages in memory.

Put key files of readers back that were removed or damaged, from another repository that has copies.

Without its key file a reader cannot open the repository (`crypto/keys.py`), so this comes before anything that needs an
identity. A copy is taken if one of these proves that it is the right one:

- the record here names its SHA-256 (`crypto/readers.py`), or
- a given identity opens it, and what it finds is the secret of this repository, or
- there is no record, as in repositories of older tools, and the copy comes from a replica of this repository, is an age
  file for the reader whom its name says, and no record there contradicts it. This lets nobody read who could not
  before: who opens it proves what is inside.

Only what is known to be missing or damaged is put back: a key file that only the copy has may have been removed here.
If there is none at all here, those of the copy are. A key file here that a given identity opens is right, whatever its
record says, which is made anew. Where both have one without a record here, and they differ, only its reader can tell
which is damaged.

Put the records of writers back that were removed or damaged, from another repository that has copies.

Without its record nothing that a writer has signed can be read (`crypto/signing.py`). A copy is taken only if the
authority of this repository has signed it, as every record that counts: who can change the copy cannot make one. Which
authority that is says the descriptor, which was compared with the user's keys when the repository was opened.

Only those are put back that are damaged, or that something here needs. If the writer key of the copy was replaced, its
record of that would make the writer key of this repository invalid.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    NatsError,
    ObjectNotFound,
    StoreError,
    UnsupportedError,
)
from jsbackup.progress import Progress
from jsbackup.readable import in_short
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.ledger import VerifyOutcome, read_damaged, read_findings, read_runs, remember
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.verify import Level, Verifier
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.crypto.keys import RepositorySecret, labels_of, list_identities, open_wrapped
from jsbackup.repository.crypto.readers import (
    MAX_READER_BYTES,
    BrokenReader,
    examine_readers,
    is_key_file,
    put_record,
    read_record,
    whom_of,
)
from jsbackup.repository.crypto.signing import (
    MAX_WRITER_BYTES,
    Signers,
    Writer,
    decode_writer,
    load_signers,
    read_signed,
)
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.inventory import damaged_catalogs, find_missing, write_catalog
from jsbackup.repository.objects import id_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import is_replica
from jsbackup.repository.write.repair import (
    Broken,
    BrokenManifest,
    Found,
    ManifestRepair,
    ObjectName,
    RepairOutcome,
    broken_manifests,
    fetch_from,
    find_broken,
    put_document,
    put_in_place,
    read_sound_part,
)
from jsbackup.stores.base import Store
from jsbackup.stores.overlay import OverlayStore
from jsbackup.tool import TOOL

__all__ = ["AskServer", "RepairReport", "RepairRun"]

_THREADS = 8


@dataclass(frozen=True, slots=True)
class BrokenWriter:
    """The record `key` of a writer, which is missing or damaged. `certain`: it was there. Otherwise someone may only
    have put a manifest here that is signed with a key of another repository.
    """

    key: str
    problem: str
    certain: bool = True


class WriterRepair:
    """Repairs records that manifests need, and what else is damaged of them. Reads all manifests if they are signed.

    Raises IntegrityError if there are too many records, and StoreError if they cannot be listed.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        signed = repository.descriptor.authority is not None
        self._signers = load_signers(repository.store, repository.descriptor) if signed else Signers("")
        self._claimed = _claimed_signers(repository, repository.backups()) if signed else {}

    def find(self) -> list[BrokenWriter]:
        """Return the records that are missing or damaged, in the order of their keys. Raises StoreError."""
        store, descriptor = self._repository.store, self._repository.descriptor
        if descriptor.authority is None:
            return []
        found = {}
        for info in list(store.list(layout.WRITERS)):
            if layout.kind_of(info.key) is layout.ObjectKind.WRITER:
                try:
                    _read_record(self._repository, store, info.key)
                except ObjectNotFound:
                    continue
                except (IntegrityError, UnsupportedError) as error:
                    problem = f"{error.message}; nothing that this writer has signed can be read"
                    found[info.key] = BrokenWriter(info.key, problem)
        needed = set(self._claimed.values())
        if descriptor.recipient is None:
            needed.add(descriptor.authority)  # which is the first writer
        for signer in needed - self._signers.current - self._signers.replaced.keys():
            key = layout.writer_key(signer)
            problem = f"{key} is missing; nothing that this writer has signed can be read"
            found.setdefault(key, BrokenWriter(key, problem, signer == descriptor.authority))
        return [found[key] for key in sorted(found)]

    def mend(self, broken: BrokenWriter, other: Store) -> None:
        """Put a record back.

        Raises:
            IntegrityError: the other repository does not have it, or the authority has not signed what it has, or it
                would make a manifest invalid.
            StoreError: a store does not answer, or does not allow it.
        """
        key = broken.key
        try:
            data, writer = _read_record(self._repository, other, key)
        except ObjectNotFound:
            raise IntegrityError(f"{other.location} has no copy of it; {_record_by_hand(key)}") from None
        except (IntegrityError, UnsupportedError) as error:
            raise IntegrityError(
                f"{other.location} has no sound copy ({error.message}); {_record_by_hand(key)}"
            ) from error
        self._refuse_new_rule(writer, other)
        put_document(self._repository.store, key, data)

    def _refuse_new_rule(self, writer: Writer, other: Store) -> None:
        """Raise IntegrityError if the writer replaces one that has signed other backups here: then its record is not
        that of a replacement which was made here.
        """
        for backup, signer in self._claimed.items():
            replaced = writer.replaces.get(signer) if signer in self._signers.current else None
            if replaced is not None and layout.manifest_key(backup) not in replaced:
                raise IntegrityError(
                    f"the writer key was replaced in {other.location}, and by that record backup {backup} could not be "
                    "read any more"
                )


def _record_by_hand(key: str) -> str:
    return (
        f"copy {key} from where you keep the folder keys/, or from another copy: it counts only if the root signing "
        "key of this repository has signed it"
    )


def _read_record(repository: Repository, store: Store, key: str) -> tuple[bytes, Writer]:
    """Return a record as it is stored there, and what it says. Raises ObjectNotFound, StoreError,
    UnsupportedError, and IntegrityError if it is not one of this repository that its authority has signed.
    """
    descriptor = repository.descriptor
    data = store.get_range(key, 0, MAX_WRITER_BYTES + 1)
    document = read_signed(descriptor.id, key, data)
    if document.signer != descriptor.authority:
        raise IntegrityError(f"{key} was stored by someone who may not add writers")
    writer = decode_writer(document.data, key)
    # One that names another recipient keeps everybody from opening the repository (`load_writers`).
    if (layout.writer_key(writer.signer), writer.repository, writer.recipient) != (
        key,
        descriptor.id,
        descriptor.recipient,
    ):
        raise IntegrityError(f"{key} is not a record of this repository")
    return data, writer


def _claimed_signers(repository: Repository, backups: Sequence[str]) -> dict[str, str]:
    """Return who claims to have signed the manifests, by backup."""

    def signer_of(backup: str) -> str | None:
        key = layout.manifest_key(backup)
        with suppress(JsBackupError):  # missing or unreadable, which others report
            wrapped = repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES)
            return repository.documents.claimed_signer(key, wrapped)
        return None

    found = in_order([partial(signer_of, backup) for backup in backups], _THREADS)
    return {backup: signer for backup, signer in zip(backups, found, strict=True) if signer is not None}


class ReaderRepair:
    """Repairs key files of readers and their records. `keys` are those of the user: an identity proves most."""

    def __init__(self, repository: Repository, keys: GivenKeys, other: Store | None) -> None:
        self._repository = repository
        self._keys = keys
        self._other = other
        self._labels = labels_of(keys.identities)
        self._undecided: set[str] = set()

    def find(self) -> list[BrokenReader]:
        """Return what is missing or damaged, in the order of keys. Raises StoreError."""
        store, descriptor = self._repository.store, self._repository.descriptor
        readers = examine_readers(store, descriptor, self._repository.signers)
        found = {one.key: one for one in readers.broken}
        if layout.KEYS in found and self._other is not None:  # then all that the copy has
            copied = list_identities(self._other, descriptor)
            found = {one.key: BrokenReader(one.key, f"{one.key} is missing") for one in copied} or found
        for key in readers.whole:
            if whom_of(key) in self._labels and not self._opens(key):
                problem = f"{key} is damaged, or was exchanged: the identity that was given does not open it"
                found.setdefault(key, BrokenReader(key, problem))
        if self._other is not None:
            for key, sha256 in readers.unrecorded:
                if whom_of(key) not in self._labels and _sha256_in(self._other, key) not in (None, sha256):
                    problem = f"{key} is another one in {self._other.location}, and no record says which is right"
                    found.setdefault(key, BrokenReader(key, problem))
                    self._undecided.add(key)
        return [found[key] for key in sorted(found)]

    def _opens(self, key: str) -> bool:
        try:
            return self._opened_here(key) is not None
        except ObjectNotFound:  # removed meanwhile
            return True

    def _opened_here(self, key: str) -> tuple[RepositorySecret, bytes] | None:
        """Return what a given identity finds in a key file of this repository, and the file. Raises ObjectNotFound."""
        data = self._repository.store.get_range(key, 0, MAX_READER_BYTES)
        try:
            return open_wrapped(data, key, self._repository.descriptor, self._keys), data
        except (IntegrityError, KeyUnavailable):
            return None

    def mend(self, broken: BrokenReader) -> None:
        """Put a key file, or the record of one, back.

        Raises:
            IntegrityError: the other repository does not have it, or nothing proves what it has.
            StoreError: a store does not answer, or does not allow it.
        """
        if broken.sha256 is not None and whom_of(broken.key) in self._labels and self._record_anew(broken.key):
            return
        if self._other is None:
            raise IntegrityError(f"only another repository can supply it; {_by_hand(broken.key)}")
        if broken.key == layout.KEYS:
            raise IntegrityError(f"{self._other.location} has none either; {_by_hand('them')}")
        if broken.key in self._undecided:
            raise IntegrityError("with --identity FILE, its reader can find out")
        if broken.key.endswith(".json"):
            self._mend_record(broken, self._other)
        else:
            self._mend_file(broken, self._other)

    def _record_anew(self, key: str) -> bool:
        """Record a key file that a given identity opens, and whose record says something else: it was damaged when it
        was recorded, and put back by hand. Return whether it is so.
        """
        try:
            opened = self._opened_here(key)
        except ObjectNotFound:
            return False
        if opened is not None:
            repository, (secret, data) = self._repository, opened
            sha256, id = hashlib.sha256(data).hexdigest(), repository.descriptor.id
            put_record(repository.store, id, secret.authority, key=key, sha256=sha256, anew=True)
        return opened is not None

    def _mend_file(self, broken: BrokenReader, other: Store) -> None:
        key = broken.key
        data = _read(other, key)
        sha256 = hashlib.sha256(data).hexdigest()
        theirs, record = self._record_of(key, other)
        secret = self._opened(key, data, other)
        if secret is None:
            self._prove(broken, data, sha256, theirs, other=other)
        put_document(self._repository.store, key, data)
        if broken.sha256 == sha256:
            return
        signatory = self._repository.signatory if secret is None else secret.authority
        if broken.sha256 is None and theirs == sha256:
            put_document(self._repository.store, layout.reader_key(key), record)
        elif signatory is not None:  # otherwise the next backup does it
            repository = self._repository
            put_record(repository.store, repository.descriptor.id, signatory, key=key, sha256=sha256, anew=True)

    def _opened(self, key: str, data: bytes, other: Store) -> RepositorySecret | None:
        """Return what a given identity finds in a copy; None without an identity for it."""
        if whom_of(key) not in self._labels:
            return None
        try:
            return open_wrapped(data, key, self._repository.descriptor, self._keys)
        except (IntegrityError, KeyUnavailable) as error:
            raise IntegrityError(f"{other.location} has no sound copy ({error.message}); {_by_hand(key)}") from error

    def _prove(self, broken: BrokenReader, data: bytes, sha256: str, theirs: str | None, *, other: Store) -> None:
        key = broken.key
        if broken.sha256 is not None:
            if sha256 != broken.sha256:
                raise IntegrityError(f"{other.location} has another file (SHA-256 differs); {_by_hand(key)}")
        elif not is_replica(self._repository, Repository.open(other)):
            raise IntegrityError(f"{other.location} is not a copy of this repository; {_by_hand(key)}")
        elif not is_key_file(whom_of(key), data) or theirs not in (None, sha256):
            raise IntegrityError(f"{other.location} has no sound copy; {_by_hand(key)}")

    def _record_of(self, key: str, store: Store) -> tuple[str | None, bytes]:
        """Return the SHA-256 that the record there says, and the record; None if there is none that counts here."""
        try:
            data = store.get_range(layout.reader_key(key), 0, MAX_READER_BYTES)
            return read_record(self._repository.descriptor, self._repository.signers, key, data), data
        except (ObjectNotFound, IntegrityError, UnsupportedError):
            return None, b""

    def _mend_record(self, broken: BrokenReader, other: Store) -> None:
        store, key = self._repository.store, layout.recorded_identity(broken.key)
        sha256, record = self._record_of(key, other)
        again = "'jsbackup key remove' and 'jsbackup key add' make a new one"
        if sha256 is None:
            raise IntegrityError(f"{other.location} has no sound copy of it; {again}")
        try:
            here = hashlib.sha256(store.get_range(key, 0, MAX_READER_BYTES)).hexdigest()
        except ObjectNotFound:
            here = sha256
        if here != sha256:
            raise IntegrityError(f"what {other.location} has is the record of another {key}; {again}")
        put_document(store, broken.key, record)


def _sha256_in(other: Store, key: str) -> str | None:
    try:
        return hashlib.sha256(other.get_range(key, 0, MAX_READER_BYTES)).hexdigest()
    except ObjectNotFound:
        return None


def _read(other: Store, key: str) -> bytes:
    try:
        return other.get_range(key, 0, MAX_READER_BYTES)
    except ObjectNotFound:
        raise IntegrityError(f"{other.location} has no copy of it; {_by_hand(key)}") from None


def _by_hand(key: str) -> str:
    return f"copy {key} from where you keep the folder keys/, or from another copy of the repository"


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
        found = self._mend_catalog(found) if self.whole else found
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
            last_verify=None if self.check else next(iter(read_runs(VerifyOutcome, documents, 1)), None),
        )

    def _mend_catalog(self, found: Found) -> Found:
        """Write a catalog in place of a damaged one, which may have named newer backups that only `other` still shows;
        return also why that is not possible.
        """
        documents = self.repository.documents
        problems = damaged_catalogs(documents)
        if not problems:
            return found
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
            return replace(found, beyond=(*found.beyond, *((layout.CATALOGS, f"{one}; {why}") for one in problems)))
        self._manifests.extend((BrokenManifest("", layout.CATALOGS, one), None) for one in problems)
        return found

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
            undecodable=frozenset(name for name, damage in findings.damaged.items() if damage.level is Level.DATA),
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
