"""Which key files of readers there must be below `keys/`, and whether they are whole.

Without them nobody can read what is stored, and a writer, who cannot open them, would go on without noticing. So each
`keys/<whom>-<8 digits>.age` (`keys.py`) has a record beside it, `keys/<whom>-<8 digits>.json`, a signed document:

    file_sha256    SHA-256 of the key file, in hex

The authority signs it where the key file is made (`init`, `key add`). If that was interrupted, the next backup has its
writer sign one. Everybody can read and check a record, without a key. A writer who was replaced counts
too: with a record one can raise a false alarm, which whoever can put objects there can do anyway, and nothing else.

Order: the key file is put before its record, and removed after it. So a record without a key file means that the file
was lost. Who removes both is only noticed if no key file is
left. A repository without records is checked for that, and each key file for its form.

That a key file was removed is recorded, too, so that `copy` does not bring it back from a replica that still has it:
`keys/<whom>-<8 digits>-<SHA-256 of the key file>.removed`, empty, put before the others are removed. A reader who is
added again has another key file. It is not signed: it takes no key to remove a reader, and whoever can put objects
there can at most keep a reader from coming by `copy`, which says so.
"""

from __future__ import annotations

import hashlib
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from jsbackup.errors import IntegrityError, ObjectExists, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.crypto.signing import Signatory, Signers, read_signed, sign_document
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.stores.base import Store

__all__ = [
    "AGAIN_FROM_COPY",
    "MAX_READER_BYTES",
    "NO_READER",
    "BrokenReader",
    "Readers",
    "examine_readers",
    "is_key_file",
    "list_removed",
    "put_record",
    "put_removal",
    "read_record",
    "record_readers",
    "remove_record",
    "sha256s_of",
    "whom_of",
]

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

# An identity for an RSA key takes about 700 bytes, a record 400.
MAX_READER_BYTES = 64 << 10
_THREADS = 8

AGAIN_FROM_COPY = "'jsbackup repair --from COPY' puts it back"
"""What to do about a broken one, after a semicolon."""

NO_READER = "there is no readers' key file (keys/….age) any more: nobody can read the messages"

# C2SP's age.md: version, stanzas, MAC; then a nonce of 16 bytes, and at least the 16 of one block's tag.
_AGE = re.compile(
    rb"age-encryption\.org/v1\n((?:-> [\x20-\x7e]+\n(?:[A-Za-z0-9+/]*\n)+)+)--- [A-Za-z0-9+/]{43}\n.{32,}", re.DOTALL
)
# The first bytes of the stanza for a reader, by the first characters of the object's name.
_STANZAS = {
    "age1": b"-> X25519 ",
    "passphrase-": b"-> scrypt ",
    "ssh-ed25519-": b"-> ssh-ed25519 ",
    "ssh-rsa-": b"-> ssh-rsa ",
}


@dataclass(frozen=True, slots=True)
class BrokenReader:
    """A key file that is missing or damaged, or its record, which is `key`; `layout.KEYS` if there is no key file at
    all. `sha256` is that of the right key file, None if no record says it.
    """

    key: str
    problem: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Readers:
    """What was found. `whole` are the key files that are as they were stored, or seem so, where no record says how that
    was: these are `unrecorded` too, with the SHA-256 that they have.
    """

    broken: tuple[BrokenReader, ...] = ()
    whole: frozenset[str] = frozenset()
    unrecorded: tuple[tuple[str, str], ...] = ()


def examine_readers(store: Store, descriptor: Descriptor, signers: Signers | None) -> Readers:
    """Look at all key files of readers and their records; nothing is opened. What is removed meanwhile does not count.

    Raises StoreError if the store cannot be listed.
    """
    if descriptor.recipient is None:
        return Readers()
    keys = set()
    for info in store.list(layout.KEYS):
        if layout.kind_of(info.key) in (layout.ObjectKind.IDENTITY, layout.ObjectKind.READER):
            key = layout.recorded_identity(info.key) if info.key.endswith(".json") else info.key
            if key == layout.identity_key(whom_of(key), descriptor.id):
                keys.add(key)
    if not keys:
        return Readers((BrokenReader(layout.KEYS, NO_READER),))
    found = list(in_order([partial(_examine, store, descriptor, signers, key) for key in sorted(keys)], _THREADS))
    return Readers(
        tuple(broken for one in found for broken in one.broken),
        frozenset[str]().union(*(one.whole for one in found)),
        tuple(row for one in found for row in one.unrecorded),
    )


def _examine(store: Store, descriptor: Descriptor, signers: Signers | None, key: str) -> Readers:
    """Look at one key file and its record."""
    record, at = layout.reader_key(key), ""
    named: str | None = None
    broken: list[BrokenReader] = []
    try:
        at = record
        try:
            named = read_record(descriptor, signers, key, store.get_range(record, 0, MAX_READER_BYTES))
        except ObjectNotFound:
            record = ""
        except (IntegrityError, UnsupportedError) as error:
            broken.append(BrokenReader(record, f"{error.message}; it says what {key} has to be"))
        at = key
        try:
            data = store.get_range(key, 0, MAX_READER_BYTES)
        except ObjectNotFound:
            if named is not None and not _is_gone(store, record):
                problem = f"{key} is missing: whoever has the key for it cannot read the repository any more"
                broken.append(BrokenReader(key, problem, named))
            return Readers(tuple(broken))
    except StoreError as error:
        return Readers((*broken, BrokenReader(at, error.message)))
    sha256 = hashlib.sha256(data).hexdigest()
    if named is not None and sha256 != named:
        problem = f"{key} is damaged, or was exchanged (SHA-256 differs): the key for it opens nothing any more"
        broken.append(BrokenReader(key, problem, named))
    elif not is_key_file(whom_of(key), data):
        broken.append(BrokenReader(key, f"{key} is damaged and can no longer open anything", named))
    else:
        return Readers(tuple(broken), frozenset({key}), () if record else ((key, sha256),))
    return Readers(tuple(broken))


def _is_gone(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return True
    return False


def whom_of(key: str) -> str:
    """Return whom the wrapped identity under this key is for, as the key says."""
    return key.removeprefix(layout.KEYS)[: -len("-00000000.age")]


def is_key_file(whom: str, data: bytes) -> bool:
    """Return whether this can be the identity that was encrypted for `whom`."""
    match = _AGE.fullmatch(data)
    wanted = next((stanza for start, stanza in _STANZAS.items() if whom.startswith(start)), b"-> ")
    return match is not None and match[1].startswith(wanted)


# --- records ---


def read_record(descriptor: Descriptor, signers: Signers | None, key: str, data: bytes) -> str:
    """Return the SHA-256 of the key file `key` that its record `data` says.

    Raises IntegrityError if it is damaged, or nobody of this repository has signed it, and UnsupportedError.
    """
    record = layout.reader_key(key)
    document = read_signed(descriptor.id, record, data)
    writers = () if signers is None else (*signers.current, *signers.replaced)
    if document.signer not in {descriptor.authority, *writers}:
        raise IntegrityError(f"{record} was stored by someone who may not add readers")
    fields = decode_document(document.data, record)
    fields.version(FORMAT_VERSION, FEATURES)
    return fields.hex256("file_sha256")


def put_record(
    store: Store, repository_id: str, signatory: Signatory, *, key: str, sha256: str, anew: bool = False
) -> None:
    """Record that there is the key file `key`. A record that exists stays, unless it is stored `anew`.

    Raises StoreError.
    """
    record = layout.reader_key(key)
    document = encode_document({"format": FORMAT_VERSION, "required_features": [], "file_sha256": sha256}, record)
    data = sign_document(signatory, repository_id, record, document)
    try:
        store.put(record, data)
    except ObjectExists:
        if anew:
            store.delete(record)
            with suppress(ObjectExists):  # someone else does the same
                store.put(record, data)


def remove_record(store: Store, key: str) -> None:
    """Remove the record of the key file `key`, which is removed next. Succeeds if there is none. Raises StoreError."""
    store.delete(layout.reader_key(key))


def sha256s_of(store: Store, descriptor: Descriptor, signers: Signers | None, key: str) -> frozenset[str]:
    """Return the SHA-256 of the key file `key`, and the one that its record says, as far as there are any. They differ
    if one of the two is damaged. Raises StoreError.
    """
    found = set()
    with suppress(ObjectNotFound):
        found.add(hashlib.sha256(store.get_range(key, 0, MAX_READER_BYTES)).hexdigest())
    with suppress(ObjectNotFound, IntegrityError, UnsupportedError):
        data = store.get_range(layout.reader_key(key), 0, MAX_READER_BYTES)
        found.add(read_record(descriptor, signers, key, data))
    return frozenset(found)


def put_removal(store: Store, key: str, sha256: str) -> None:
    """Record that the key file `key` with this SHA-256 is removed. Succeeds if that is recorded. Raises StoreError."""
    with suppress(ObjectExists):
        store.put(layout.removed_reader_key(key, sha256), b"")


def list_removed(store: Store) -> frozenset[tuple[str, str]]:
    """Return key and SHA-256 of each key file that was removed, as far as that is recorded. Raises StoreError."""
    found = (layout.parse_removed_reader_key(info.key) for info in store.list(layout.KEYS))
    return frozenset(one for one in found if one is not None)


def record_readers(store: Store, repository_id: str, signatory: Signatory | None, readers: Readers) -> None:
    """Record the key files of an interrupted `key add`. What cannot be recorded now is left to the next run."""
    if signatory is None:
        return
    for key, sha256 in readers.unrecorded:
        try:
            put_record(store, repository_id, signatory, key=key, sha256=sha256)
            if _is_gone(store, key):  # removed just now
                remove_record(store, key)
        except StoreError as error:
            _log.info("%s is not recorded: %s", key, error.message)
