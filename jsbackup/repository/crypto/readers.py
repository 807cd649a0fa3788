"""Who reads an encrypted repository: the signed list of the readers' key files below `keys/` (`keys.py`).

Without their key files nobody can read what is stored, and a writer, who cannot open them, would go on without
noticing. So there is a list of all of them, `keys/readers-<10 digits>.json`, by its generation, a signed document:

    readers    for each key file its key → SHA-256 of the file, in hex

Only the authority signs it, which comes from the secret that the key files contain: so nobody else lets a reader in, or
takes one away. Everybody can read and check it, without a key. The sound list with the highest generation counts. Each
change stores the next one, create-only, and then removes those before.

Order: a key file is put before the list that names it, and removed after the first list that does not. So what the list
names and is not there was lost. What is there and not in the list was left by an interrupted `key add` or `key remove`,
or was put there by someone else: it opens the repository if it contains its secret, and `verify` names it.

Each key file is named after its bytes. So a reader who is added again has another one, `copy` and `repair` overwrite
none, and from two lists the newer one says whose key file was removed: `copy` does not bring it back.

A store that brings back an older list together with the key files of that time is not noticed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from jsbackup.errors import FormatError, IntegrityError, ObjectExists, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.crypto.signing import Signatory, read_signed, sign_document
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.stores.base import Store

__all__ = [
    "AGAIN_FROM_COPY",
    "NOT_LISTED",
    "NO_READER",
    "Flaw",
    "Readers",
    "change_readers",
    "examine_readers",
    "load_readers",
    "read_key_file",
    "remove_lists",
]

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

# An identity for an RSA key takes about 700 bytes, a reader 150 in the list.
_MAX_FILE_BYTES = 64 << 10
_MAX_LIST_BYTES = 4 << 20
_THREADS = 8
# How often a change is tried again because someone else has changed the list meanwhile.
_TRIES = 5
# How far above the list that counts a broken one is taken for a later list of ours.
_AHEAD = 1000

AGAIN_FROM_COPY = "'jsbackup repair --from COPY' puts it back"
"""What to do about a broken one, after a semicolon."""

NOT_LISTED = "is not in the list of readers: take it away with 'jsbackup key remove'"
"""What is wrong with a key file that no list names."""

NO_READER = "there is no readers' key file (keys/….age) any more: nobody can read the messages"


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with the object `key`, which may be missing; `layout.READERS` if there is no list of readers."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of a repository. `stored` are the key files that are there (key → Unix time by the store's clock),
    `listed` those of the list that counts, `list_key` (key → SHA-256), `data` the list as it is stored; "" and empty if
    there is none. `lists` are the keys of all lists.

    What is broken: lists, and, if the key files were read (`examine_readers`), these too. `whole` are the others then.
    """

    stored: Mapping[str, float] = field(default_factory=dict)
    listed: Mapping[str, str] = field(default_factory=dict)
    list_key: str = ""
    data: bytes = b""
    lists: tuple[str, ...] = ()
    broken: tuple[Flaw, ...] = ()
    whole: frozenset[str] = frozenset()

    @property
    def generation(self) -> int:
        return layout.readers_generation_of(self.list_key) or 0

    @property
    def missing(self) -> list[str]:
        return sorted(self.listed.keys() - self.stored.keys())

    @property
    def unlisted(self) -> list[str]:
        """The key files that the list does not name; without one, nobody knows which these are."""
        return sorted(self.stored.keys() - self.listed.keys()) if self.list_key else []


def load_readers(store: Store, descriptor: Descriptor, *, lenient: bool = False) -> Readers:
    """Return the readers as the store lists them. No key file is read. Raises StoreError; if `lenient`, a list that the
    store does not return is broken instead, for commands that change nothing.
    """
    if descriptor.recipient is None:
        return Readers()
    stored: dict[str, float] = {}
    lists: list[str] = []
    for info in store.list(layout.KEYS):
        if layout.reader_of(info.key, descriptor.id) is not None:
            stored[info.key] = info.modified_seconds
        elif layout.readers_generation_of(info.key) is not None:
            lists.append(info.key)
    lists.sort(reverse=True)
    readers = Readers(stored, lists=tuple(lists))
    broken: list[Flaw] = []
    for key in lists:
        try:
            data = store.get_range(key, 0, _MAX_LIST_BYTES + 1)
            readers = replace(readers, listed=_decode_list(descriptor, key, data), list_key=key, data=data)
            break
        except ObjectNotFound:  # there is a newer one by now
            continue
        except (IntegrityError, UnsupportedError, StoreError) as error:
            if isinstance(error, StoreError) and not lenient:
                raise
            broken.append(Flaw(key, error.message))
    if not readers.list_key and not broken:
        problem = f"there is no list of readers ({layout.READERS}….json) any more"
        broken.append(Flaw(layout.READERS, problem if stored else f"{problem}, and {NO_READER}"))
    return replace(readers, broken=tuple(broken))


def _decode_list(descriptor: Descriptor, key: str, data: bytes) -> dict[str, str]:
    document = read_signed(descriptor.id, key, data)
    if document.signer != descriptor.authority:
        raise IntegrityError(f"{key} was stored by someone who may not add readers")
    fields = decode_document(document.data, key)
    fields.version(FORMAT_VERSION, FEATURES)
    readers = fields.fields("readers")
    listed = {file: readers.hex256(file) for file in readers.value}
    if not all(layout.reader_of(file, descriptor.id) for file in listed):
        raise FormatError(f"{key} names what is no key file of this repository")
    return listed


def examine_readers(store: Store, descriptor: Descriptor, *, lenient: bool = False) -> Readers:
    """Load the readers, and read the key files of the list; nothing is opened. What is added or removed meanwhile does
    not count. Raises StoreError as `load_readers`.
    """
    while True:
        readers = load_readers(store, descriptor, lenient=lenient)
        tasks = [partial(_flaw_of, store, key, sha256) for key, sha256 in sorted(readers.listed.items())]
        flaws = [flaw for flaw in in_order(tasks, _THREADS) if flaw is not None]
        unread = readers.listed if readers.list_key else readers.stored
        whole = frozenset(unread) - {flaw.key for flaw in flaws}
        is_sound = not (readers.broken or flaws)
        if is_sound or load_readers(store, descriptor, lenient=lenient).list_key == readers.list_key:
            return replace(readers, broken=(*readers.broken, *flaws), whole=whole)


def _flaw_of(store: Store, key: str, sha256: str) -> Flaw | None:
    try:
        if hashlib.sha256(read_key_file(store, key)).hexdigest() == sha256:
            return None
    except ObjectNotFound:
        problem = f"{key} is missing: whoever has the key for it cannot read the repository any more"
    except StoreError as error:
        problem = error.message
    else:
        problem = f"{key} is damaged, or was exchanged (SHA-256 differs): the key for it opens nothing any more"
    return Flaw(key, problem)


def read_key_file(store: Store, key: str) -> bytes:
    """Return a key file, or its beginning if it is larger than any. Raises ObjectNotFound and StoreError."""
    return store.get_range(key, 0, _MAX_FILE_BYTES)


def change_readers(
    store: Store,
    descriptor: Descriptor,
    authority: Signatory,
    *,
    add: Mapping[str, str] | None = None,
    remove: Collection[str] = (),
) -> None:
    """Store the next list: with the key files `add` (key → SHA-256), without those of `remove`. Raises StoreError."""
    for _ in range(_TRIES):
        readers = load_readers(store, descriptor)
        listed = {key: sha256 for key, sha256 in {**readers.listed, **(add or {})}.items() if key not in remove}
        key = layout.readers_key(_next_generation(readers))
        document = encode_document({"format": FORMAT_VERSION, "required_features": [], "readers": listed}, key)
        try:
            store.put(key, sign_document(authority, descriptor.id, key, document))
        except ObjectExists:  # someone else changes it, too
            continue
        remove_lists(store, readers.lists)
        return
    raise StoreError(f"{store.location}: the list of readers is changed by others all the time; try again")


def _next_generation(readers: Readers) -> int:
    """Return that of the next list: above the broken ones, but for forged ones that would use the numbers up."""
    taken = [layout.readers_generation_of(key) or 0 for key in readers.lists]
    most = readers.generation + _AHEAD if readers.list_key else max(taken, default=0)
    newest = max((generation for generation in taken if generation <= most), default=0)
    return next(generation for generation in count(newest + 1) if generation not in taken)


def remove_lists(store: Store, keys: Collection[str]) -> None:
    """Remove lists that a newer one follows."""
    try:
        for key in keys:
            store.delete(key)
    except StoreError as error:  # not allowed, or locked with a backup: they do no harm
        _log.info("an older list of readers was not removed: %s", error.message)
