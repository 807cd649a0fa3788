"""Repair: put back the right bytes of missing or damaged objects, so that the backups are complete again.

A manifest names the SHA-256 of each object, so only exactly the same bytes will do: from the same object in another
repository, or from encoding the same messages again. They are checked before anything is changed. Then the damaged
object is deleted (no other command deletes an object that a backup names), and the right bytes are put under its key.
If the command is killed in between, the object is missing, and running it again puts it there.

If the store keeps the damaged object locked, and there is no right version of it either, the right bytes are put beside
it (`layout.stored_keys`): later backups use them, but this backup stays damaged.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    ObjectExists,
    ObjectLocked,
    ObjectNotFound,
    UnsupportedError,
)
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.catalog import read_witnesses, replace_witness
from jsbackup.repository.checks.verify_run import check_writers
from jsbackup.repository.crypto.readers import examine_readers, load_readers, read_key_file
from jsbackup.repository.crypto.signing import MAX_WRITER_BYTES, Writer, decode_writer, load_signers, read_signed
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Documents, seal_in
from jsbackup.repository.inventory import newest_catalog
from jsbackup.repository.manifest import AnyRef, Manifest, SegmentRef, StreamBackup, UnlistedStreams
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.repository.objects import Objects, PageRef, StreamPageRef, has_bytes, put_named, sha256_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store

__all__ = [
    "Broken",
    "BrokenDocument",
    "ManifestRepair",
    "ObjectName",
    "RepairOutcome",
    "WriterRepair",
    "fetch_from",
    "find_broken_readers",
    "mend_reader",
    "put_document",
    "put_in_place",
    "read_sound_part",
]

_THREADS = 8

ObjectName = tuple[str, str]
"""Key and SHA-256 of an object: it is repaired, and counted, once for all backups that name it."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A missing or damaged object. `stream` needs it, as the newest of the `backups` (ids, in order) has it; None for a
    page that lists streams. `first` is the name of the stream, or of the first one in the page.
    """

    ref: AnyRef
    stream: StreamBackup | None
    first: str
    problem: str
    backups: tuple[str, ...]

    @property
    def name(self) -> ObjectName:
        return self.ref.key, self.ref.sha256

    @property
    def messages(self) -> int:
        return self.ref.messages if isinstance(self.ref, SegmentRef) else 0

    @property
    def rank(self) -> tuple[int, int]:
        """Higher for a page than for what it lists; (0, 0) for what lists nothing."""
        if isinstance(self.ref, StreamPageRef):
            return 2, 0
        return (1, self.ref.level) if isinstance(self.ref, PageRef) else (0, 0)

    def also(self, other: Broken) -> Broken:
        """Return the same object as it was found in more backups."""
        newer = max(self, other, key=lambda broken: broken.backups[-1])
        return replace(newer, backups=tuple(sorted({*self.backups, *other.backups})))


@dataclass(frozen=True, slots=True)
class BrokenDocument:
    """A document that is missing or damaged, or not the one that was stored: the manifest of `backup`, the record of a
    writer, a key file of a reader, their list, or a catalog. `key` is that of the stored object.

    `certain`: it was there. Otherwise someone may only have put a manifest here that another repository has signed.
    """

    key: str
    problem: str
    backup: str = ""
    certain: bool = True


class RepairOutcome(StrEnum):
    MENDED = "mended"
    BESIDE = "beside"  # the store keeps the damaged object locked


def read_sound_part(repository: Repository, backup: str) -> Manifest:
    """Return a manifest with the streams of those pages that can be read, perhaps none. Raises as
    `Repository.manifest`, but not for pages.
    """
    try:
        return repository.manifest(backup, in_part=True)
    except IntegrityError:
        manifest = repository.manifest(backup, streams=False)
        broken: dict[StreamPageRef, IntegrityError] = {}
        if [*repository.stream_pages.read_all(manifest.stream_pages, broken)] or not broken:
            raise
        return replace(manifest, unlisted=tuple(UnlistedStreams(page, error) for page, error in broken.items()))


def fetch_from(store: Store, ref: AnyRef) -> bytes | None:
    """Return the bytes of the object from another repository; None if it does not have them. Raises StoreError."""
    for key in dict.fromkeys((ref.key, *layout.stored_keys(ref.key, ref.sha256))):
        try:
            return Objects(store).fetch_stored(key, ref.size, ref.sha256)
        except IntegrityError:  # missing, or different
            continue
    return None


def put_in_place(store: Store, ref: AnyRef, data: bytes) -> RepairOutcome:
    """Put the right bytes of an object under its key, or beside it, if the store keeps the existing one locked.

    Raises:
        IntegrityError: these are not the right bytes (nothing was deleted), the store does not return them, or the
            other keys are taken.
        StoreError: the store does not answer, or does not allow it.
    """
    if len(data) != ref.size or sha256_of(data) != ref.sha256:
        raise IntegrityError(f"these are not the bytes of object {ref.key}")
    try:
        put_document(store, ref.key, data)
    except ObjectLocked:
        put_named(store, ref.key, data)
        return RepairOutcome.BESIDE
    return RepairOutcome.MENDED


def put_document(store: Store, key: str, data: bytes) -> None:
    """Put the right bytes of a document under its key.

    Raises:
        ObjectLocked: the store keeps the damaged one.
        IntegrityError: the store does not return these bytes.
        StoreError: the store does not answer, or does not allow it.
    """
    view = memoryview(data)
    try:
        store.delete(key)
    except ObjectLocked:
        with suppress(ObjectNotFound):
            if has_bytes(store, key, view):  # the locked version is the right one: only what hid it was deleted
                return
        raise
    with suppress(ObjectExists):  # someone else repairs it, too
        store.put(key, data)
    if not has_bytes(store, key, view):
        raise IntegrityError(f"{store.location} does not return {key} as it was put")


# --- repair manifests ---
#
# Put manifests back that were removed, replaced or damaged, from another repository that has copies.
#
# Nothing names the digest of a manifest, as manifests name those of objects. So the bytes of the copy are taken only if
# something here proves that they are the ones that were stored:
#
# - the newest catalog, a backup that follows this one, or the witness of the newest one names their SHA-256
#   (`checks/manifest_chain.py`).
# - they are signed by a writer of this repository. A signed manifest belongs to one id, and is made once.
# - the damaged manifest still has the checksum of its content (`document.py`), and the copy has that content. This is
#   against accidents, as all of a repository without signatures is.
# - the user says that the copy is right (`trust_copy`), in a repository without signatures. This is no stronger than
#   putting the file there by hand, except that a damaged one, or one of another backup, is refused. If the witness says
#   something else, that is said, and the witness names the copy from then on.
#
# If a manifest and its copy are the same, and only the witness differs, it is the witness that is damaged, if that of
# the copy, or the user, says so. Then it is replaced.
#
# A copy that was signed again, or whose objects have other keys, has other bytes, and is refused.

_SEALS = re.compile(rb'"sha256":"([0-9a-f]{64})"')


class ManifestRepair:
    """Repairs manifests of `repository` from the store `other`, of another repository.

    Raises KeyUnavailable and StoreError if the backups of `repository` cannot be listed.
    """

    def __init__(self, repository: Repository, other: Store, *, trust_copy: bool = False) -> None:
        self._repository = repository
        self._other = other
        self._trust_copy = trust_copy
        self._named: dict[str, dict[str, str]] = {}  # who names which SHA-256, by backup
        catalog, _ = newest_catalog(repository.documents)
        for entry in catalog.entries if catalog else ():
            self._named.setdefault(entry.id, {})[entry.sha256] = "the catalog of backups"
        for entry in repository.inventory().entries:
            if entry.previous is not None and entry.previous_sha256 is not None:
                self._named.setdefault(entry.previous, {})[entry.previous_sha256] = f"backup {entry.id}"

    def mend(self, broken: BrokenDocument) -> BrokenDocument:
        """Put the right bytes of a manifest back. Return it with what else there is to say.

        Raises:
            IntegrityError: the other repository does not have them, or nothing proves that these are the right ones.
            KeyUnavailable: no key that opens them was given, and nothing else proves them.
            StoreError: a store does not answer, or does not allow it.
        """
        documents, key = self._repository.documents, layout.manifest_key(broken.backup)
        try:
            data = documents.stored_bytes(key, MAX_DOCUMENT_BYTES, self._other)
        except ObjectNotFound:
            raise IntegrityError(f"{self._other.location} has no manifest of backup {broken.backup}") from None
        damaged: bytes | None = None
        with suppress(ObjectNotFound):
            damaged = documents.stored_bytes(key, MAX_DOCUMENT_BYTES)
        if data == damaged:
            self._refuse_unless_only_witness_differs(broken.backup, data)
        else:
            self._prove(broken.backup, data, damaged or b"")
            put_document(self._repository.store, broken.key, data)
        note = self._align_witness(broken.backup, sha256_of(data))
        return replace(broken, problem=f"{broken.problem}; {note}") if note else broken

    def _refuse_unless_only_witness_differs(self, backup: str, data: bytes) -> None:
        """Raise IntegrityError unless only the witness of a manifest is wrong, which is the same as its copy."""
        sha256, named, where = sha256_of(data), self._named.get(backup, {}), self._other.location
        agrees = self._repository.documents.signs or self._witnessed(backup) in (None, sha256)
        if agrees or named.keys() - {sha256}:
            raise IntegrityError(f"{where} has the same bytes")
        self._seal_of(backup, data)
        if not (named or self._trust_copy or self._witnessed(backup, self._other) == sha256):
            raise IntegrityError(
                f"{where} has the same manifest, and {layout.witness_key(backup)} names another one; if you trust this "
                "copy, give --trust-copy: then the witness names it"
            )

    def _align_witness(self, backup: str, sha256: str) -> str:
        """Let a witness that names another manifest name the one that is here now; return that it did not."""
        if self._witnessed(backup) in (None, sha256) or self._repository.documents.signs:
            return ""
        replace_witness(self._repository.documents, backup, sha256.encode())
        return f"its witness {layout.witness_key(backup)} named another manifest, and names this one from now on"

    def _prove(self, backup: str, data: bytes, damaged: bytes) -> None:
        named, sha256 = self._named.get(backup, {}), sha256_of(data)
        if len(named) > 1:
            raise IntegrityError(f"{' and '.join(named.values())} name different manifests of backup {backup}")
        if named and sha256 not in named:
            (who,) = named.values()
            raise IntegrityError(
                f"{self._other.location} has a manifest of backup {backup} that differs from the one that {who} names"
            )
        try:
            seal = self._seal_of(backup, data)
        except KeyUnavailable:
            if not named:
                raise
            return
        except (IntegrityError, UnsupportedError) as error:
            raise IntegrityError(
                f"{self._other.location} has a manifest of backup {backup} that does not belong to this repository: "
                f"{error.message}"
            ) from error
        if named or self._repository.descriptor.authority is not None:
            return
        # A witness has no checksum: one that says something else may be damaged itself.
        witnessed = self._witnessed(backup)
        if self._trust_copy or sha256 == witnessed or seal in _SEALS.findall(damaged):
            return
        witness = "its witness names another one" if witnessed else "no witness names its SHA-256"
        raise IntegrityError(
            f"nothing proves that the manifest of backup {backup} in {self._other.location} is the right one: no "
            f"catalog and no later backup names its SHA-256, {witness}, and it is not signed; if you trust this copy, "
            "give --trust-copy"
        )

    def _witnessed(self, backup: str, store: Store | None = None) -> str | None:
        """Return what the witness of a plain backup says, here or in another repository: the SHA-256 of the manifest,
        or something else, if it is damaged; None if it says nothing.
        """
        documents = self._repository.documents if store is None else Documents(store)
        return read_witnesses(documents, [backup]).get(backup)

    def _seal_of(self, backup: str, data: bytes) -> bytes:
        """Check a manifest; return the checksum of its content."""
        key = layout.manifest_key(backup)
        plain = self._repository.documents.unwrapped(key, data)
        decode_manifest(plain, key)
        return seal_in(plain, f"manifest {key}").encode()


# --- repair records of writers ---
#
# Without its record nothing that a writer has signed can be read (`crypto/signing.py`). A copy is taken only if the
# authority of this repository has signed it, as every record that counts: who can change the copy cannot make one.
# Which authority that is says the descriptor, which was compared with the user's keys when the repository was opened.
#
# Only those are put back that are damaged, or that something here needs. If the writer key of the copy was replaced,
# its record of that would make the writer key of this repository invalid.


class WriterRepair:
    """Repairs records that manifests need, and what else is damaged of them. Reads all manifests if they are signed.

    Raises IntegrityError if there are too many records, and StoreError if they cannot be listed.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        if repository.descriptor.authority is not None:
            self._signers = load_signers(repository.store, repository.descriptor)
            self._claimed = _claimed_signers(repository)

    def find(self) -> list[BrokenDocument]:
        """Return the records that are missing or damaged, in the order of their keys. Raises StoreError."""
        if self._repository.descriptor.authority is None:
            return []
        flaws = [flaw for flaw in check_writers(self._repository) if flaw.key != layout.WRITERS]
        broken = {flaw.key: BrokenDocument(flaw.key, flaw.problem) for flaw in flaws}
        for signer in {*self._claimed.values()} - self._signers.current - self._signers.replaced.keys():
            key = layout.writer_key(signer)
            problem = f"{key} is missing; nothing that this writer has signed can be read"
            broken.setdefault(key, BrokenDocument(key, problem, certain=False))
        return [broken[key] for key in sorted(broken)]

    def mend(self, broken: BrokenDocument, other: Store) -> BrokenDocument:
        """Put a record back.

        Raises:
            IntegrityError: the other repository does not have it, or the authority has not signed what it has, or it
                would make a manifest invalid.
            StoreError: a store does not answer, or does not allow it.
        """
        key = broken.key
        try:
            data = other.get_range(key, 0, MAX_WRITER_BYTES + 1)
            writer = self._decode(key, data)
        except ObjectNotFound:
            raise IntegrityError(f"{other.location} has no copy of it; {_by_hand(key)}") from None
        except (IntegrityError, UnsupportedError) as error:
            raise IntegrityError(f"{other.location} has no sound copy ({error.message}); {_by_hand(key)}") from error
        for backup, signer in self._claimed.items():
            replaced = writer.replaces.get(signer) if signer in self._signers.current else None
            if replaced is not None and layout.manifest_key(backup) not in replaced:
                raise IntegrityError(
                    f"the writer key was replaced in {other.location}, and by that record backup {backup} could not be "
                    "read any more"
                )
        put_document(self._repository.store, key, data)
        return broken

    def _decode(self, key: str, data: bytes) -> Writer:
        descriptor = self._repository.descriptor
        document = read_signed(descriptor.id, key, data)
        writer = decode_writer(document.data, key)
        # One that names another recipient keeps everybody from opening the repository (`load_writers`).
        if (document.signer, writer.recipient) != (descriptor.authority, descriptor.recipient):
            raise IntegrityError(f"{key} is not a record of this repository")
        return writer


def _claimed_signers(repository: Repository) -> dict[str, str]:
    """Return who claims to have signed the manifests, by backup."""

    def signer_of(backup: str) -> str | None:
        key = layout.manifest_key(backup)
        with suppress(JsBackupError):  # missing or unreadable, which others report
            wrapped = repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES)
            return repository.documents.claimed_signer(key, wrapped)
        return None

    backups = repository.backups()
    signers = in_order([partial(signer_of, backup) for backup in backups], _THREADS)
    return {backup: signer for backup, signer in zip(backups, signers, strict=True) if signer is not None}


# --- repair keys of readers ---


def find_broken_readers(repository: Repository) -> list[BrokenDocument]:
    """Return the key files of readers, or their list, that are missing or damaged. Raises StoreError."""
    readers = examine_readers(repository.store, repository.descriptor)
    return [BrokenDocument(reader.key, reader.problem) for reader in readers.broken]


def mend_reader(repository: Repository, broken: BrokenDocument, other: Store) -> BrokenDocument:
    """Put a key file of a reader back, as the signed list says, or the list, as it is signed and not older.

    Raises:
        IntegrityError: the other repository does not have it.
        StoreError: a store does not answer, or does not allow it.
    """
    key = broken.key
    if key.startswith(layout.READERS):
        theirs = load_readers(other, repository.descriptor)
        if not theirs.list_key or theirs.generation < (layout.readers_generation_of(key) or 0):
            raise IntegrityError(f"{other.location} has no sound copy of it; {_by_hand(key)}")
        put_document(repository.store, theirs.list_key, theirs.data)
        return replace(broken, key=theirs.list_key)
    try:
        data = read_key_file(other, key)
    except ObjectNotFound:
        raise IntegrityError(f"{other.location} has no copy of it; {_by_hand(key)}") from None
    if sha256_of(data) != load_readers(repository.store, repository.descriptor).listed.get(key):
        raise IntegrityError(f"{other.location} has another file (SHA-256 differs); {_by_hand(key)}")
    put_document(repository.store, key, data)
    return broken


def _by_hand(key: str) -> str:
    return f"copy {key} from where you keep the folder keys/, or from another copy of the repository"
