"""Put key files of readers back that were removed or damaged, from another repository that has copies.

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
"""

from __future__ import annotations

import hashlib

from jsbackup.errors import IntegrityError, KeyUnavailable, ObjectNotFound, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.keys import labels_of, list_identities, open_wrapped
from jsbackup.repository.crypto.readers import (
    MAX_READER_BYTES,
    BrokenReader,
    examine_readers,
    is_key_file,
    put_record,
    read_record,
    whom_of,
)
from jsbackup.repository.crypto.secret import RepositorySecret
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import is_replica
from jsbackup.repository.write.repair import put_document
from jsbackup.stores.base import Store

__all__ = ["ReaderRepair"]


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
        """Record a key file that a given identity opens, and whose record says something else: an older version's,
        which was damaged when it was recorded, and put back by hand. Return whether it is so.
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
