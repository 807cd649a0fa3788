"""The descriptor `jsbackup.json`: what makes a location a repository, and what it takes to read it.

`required_features` names the features that a tool must know: a tool that does not know one of them stops.

    signatures    documents are signed; `"signatures": {"scheme": "ed25519", "authority": <64 hex digits>}` says by
                  whose leave (`signing.py`)
    encryption    all but this, `keys/` and leases is encrypted; `"encryption": {"scheme": "age", "recipient": "age1…"}`
                  says for whom. Goes with signatures.

`segment_bytes` is the raw size of new segments, and `compression` says how they are compressed.

The descriptor is in the same store as everything else, so with a key it is checked first: see `access.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from jsbackup.config import similar
from jsbackup.errors import (
    FormatError,
    IntegrityError,
    NoFolder,
    ObjectExists,
    ObjectNotFound,
    RepositoryNotFound,
    UnsupportedError,
    UsageError,
)
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.model import JsonObject
from jsbackup.readable import in_short
from jsbackup.repository import layout
from jsbackup.repository.document import DocumentFields, decode_document, encode_document
from jsbackup.repository.objects import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SEGMENT_BYTES
from jsbackup.stores.base import Data, Store

__all__ = [
    "FORMAT_VERSION",
    "KNOWN_FEATURES",
    "Descriptor",
    "decode_descriptor",
    "encode_descriptor",
    "fetch_descriptor",
    "holds_anything",
    "in_a_folder",
    "is_vacant",
    "no_repository",
    "nothing_at",
    "put_descriptor",
    "read_descriptor",
    "refuse_inside",
    "refuse_occupied",
]


# --- location ---
#
# A location without a descriptor: empty, something else, a repository that lost it, or the folder above repositories.
#
# It may be any folder or bucket, so only a part of it is listed (`Store.glance`), and anything unreadable is skipped.

# Left by an interrupted `init`.
_TRACES = {
    layout.ObjectKind.PROBE,
    layout.ObjectKind.IDENTITY,
    layout.ObjectKind.READERS,
    layout.ObjectKind.WRITER,
}

# How many names beside a location are compared with it.
_MOST_BESIDE = 1000

# How many repositories are listed.
_NAMED = 5


@contextmanager
def in_a_folder() -> Iterator[None]:
    """Raise RepositoryNotFound if something else is in the place of the repository's folder."""
    try:
        yield
    except NoFolder as error:
        raise RepositoryNotFound(f"no repository at {error.location}: {error.reason}", hint=error.hint) from None


def holds_anything(store: Store) -> bool:
    """Return whether the location holds anything, or may. Raises StoreError if it cannot be read."""
    seen = store.glance()
    return bool(seen.keys) or not seen.complete


def is_vacant(store: Store) -> bool:
    """Return whether it is empty, except for probes: someone may be making a repository at this moment."""
    seen = store.glance()
    return seen.complete and all(layout.kind_of(key) is layout.ObjectKind.PROBE for key in seen.keys)


def no_repository(store: Store) -> RepositoryNotFound | IntegrityError | None:
    """Return what is wrong with a location without a descriptor.

    None if it is empty, apart from leftovers of an interrupted `init`. Raises StoreError if it cannot be read.
    """
    kinds = {layout.kind_of(key) for prefix in (layout.BACKUPS, layout.SEGMENTS) for key in store.glance(prefix).keys}
    if kinds & {layout.ObjectKind.MANIFEST, layout.ObjectKind.SEGMENT}:
        return IntegrityError(
            f"the repository at {store.location} has lost its descriptor {layout.DESCRIPTOR}",
            hint="Restore the file from a copy; the backups themselves may be intact.",
        )
    seen = store.glance()
    if below := [
        key.removesuffix("/" + layout.DESCRIPTOR) for key in seen.keys if key.endswith("/" + layout.DESCRIPTOR)
    ]:
        named = in_short([f"{store.location.rstrip('/')}/{folder}" for folder in below], most=_NAMED)
        return RepositoryNotFound(
            f"no repository at {store.location}; there are repositories below: {named}",
            hint="Name one of them with --repo.",
        )
    if not seen.complete or {layout.kind_of(key) for key in seen.keys} - _TRACES:
        return RepositoryNotFound(
            f"no repository at {store.location}, which holds other files", hint="Check the location."
        )
    return None


def nothing_at(store: Store) -> RepositoryNotFound:
    """Return the error for an empty location. A repository beside it with a similar name is suggested."""
    beside = _similar_beside(Path(store.location)) if store.location.startswith("/") else None
    hint = f"Did you mean {beside}?" if beside else "Check the location. 'jsbackup init' makes a repository there."
    return RepositoryNotFound(f"no repository at {store.location}", hint=hint)


def _similar_beside(folder: Path) -> Path | None:
    try:
        names = [entry.name for entry in islice(folder.parent.iterdir(), _MOST_BESIDE)]
        folders = [folder.parent / name for name in similar(folder.name, names)]
        return next((entry for entry in folders if (entry / layout.DESCRIPTOR).is_file()), None)
    except OSError:
        return None


FORMAT_VERSION = 1
SIGNATURES = "signatures"
ENCRYPTION = "encryption"
KNOWN_FEATURES = frozenset({SIGNATURES, ENCRYPTION})

# Another document, put in place of the descriptor by mistake, has an id of another form, or none.
_ID = re.compile(r"(?:[0-9a-f]{2}){1,32}")
_RECIPIENT = re.compile(r"age1[0-9a-z]{58}")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """`id` is a random name of the repository, in hex; `created` is RFC 3339; `tool` is the name and version of the
    maker.

    `authority` is the public key behind all signatures, None if nothing is signed. `recipient` is the public key that
    content is encrypted for, None if nothing is. `segment_bytes` is the size of new segments, raw, and `compression` is
    theirs.
    """

    id: str
    created: str
    tool: str
    authority: str | None = None
    recipient: str | None = None
    segment_bytes: int = SEGMENT_BYTES
    compression: Compression = ZSTD
    extra: Mapping[str, Any] = field(default_factory=dict)


def encode_descriptor(descriptor: Descriptor) -> bytes:
    features: JsonObject = {}
    if descriptor.recipient is not None:
        features[ENCRYPTION] = {"scheme": "age", "recipient": descriptor.recipient}
    if descriptor.authority is not None:
        features[SIGNATURES] = {"scheme": "ed25519", "authority": descriptor.authority}
    document: JsonObject = {
        **descriptor.extra,
        **features,
        "format": FORMAT_VERSION,
        "required_features": sorted(features),
        "id": descriptor.id,
        "created": descriptor.created,
        "tool": descriptor.tool,
        "segment_bytes": descriptor.segment_bytes,
        "compression": str(descriptor.compression),
    }
    return encode_document(document, "repository descriptor")


def decode_descriptor(data: Data, key: str = layout.DESCRIPTOR) -> Descriptor:
    """Decode the descriptor stored under `key`.

    Raises `FormatError` if it is damaged, `UnsupportedError` if a later tool is needed.
    """
    fields = decode_document(data, f"repository descriptor {key}")
    fields.version(FORMAT_VERSION, KNOWN_FEATURES)
    features = set(fields.texts("required_features"))
    signatures = _feature(fields, SIGNATURES, "ed25519", features)
    encryption = _feature(fields, ENCRYPTION, "age", features)
    recipient = None if encryption is None else encryption.text("recipient")
    if recipient is not None and (signatures is None or not _RECIPIENT.fullmatch(recipient)):
        fields.wrong(ENCRYPTION, "that of a signed repository, with an age recipient")
    repository_id = fields.text("id")
    if not _ID.fullmatch(repository_id):
        fields.wrong("id", "that of a repository")
    fields.time_ns("created")
    try:
        compression = Compression.parse(fields.text("compression"))
    except ValueError:
        fields.wrong("compression", "none, zstd, or zstd with a level")
    return Descriptor(
        id=repository_id,
        created=fields.text("created"),
        tool=fields.text("tool"),
        authority=None if signatures is None else signatures.hex256("authority"),
        recipient=recipient,
        segment_bytes=fields.number("segment_bytes", MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES),
        compression=compression,
        extra=fields.rest(),
    )


def _feature(fields: DocumentFields, name: str, scheme: str, required: Collection[str]) -> DocumentFields | None:
    """Return the descriptor's fields for a feature, None if it does not have it."""
    feature = fields.optional(name)
    if (feature is not None) != (name in required):
        fields.wrong(name, "what required_features says")
    if feature is not None and (other := feature.text("scheme")) != scheme:
        raise UnsupportedError(f"{feature.where}: unknown scheme {other[:80]!r}", hint="Use a newer jsbackup.")
    return feature


# --- stored descriptor ---
#
# The descriptor in its store: reading it, putting it into an empty location.

_MAX_DESCRIPTOR_BYTES = 1 << 20


def read_descriptor(store: Store) -> Descriptor:
    """Return the descriptor.

    Raises RepositoryNotFound, IntegrityError, KeyUnavailable, UnsupportedError, StoreError.
    """
    data = fetch_descriptor(store)
    try:
        return decode_descriptor(data)
    except FormatError as error:
        hint = f"Restore {layout.DESCRIPTOR} from a copy of this repository; the backups themselves may be intact."
        raise error.with_hint(hint) from error


def put_descriptor(store: Store, descriptor: Descriptor) -> None:
    """Store the descriptor of a new repository. Raises UsageError if there is one by now."""
    try:
        store.put(layout.DESCRIPTOR, encode_descriptor(descriptor))
    except ObjectExists:  # someone else was faster
        raise _exists(store) from None


def fetch_descriptor(store: Store) -> bytes:
    """Return the descriptor as it is stored. Raises RepositoryNotFound, IntegrityError and StoreError."""
    with suppress(ObjectNotFound):
        return store.get_range(layout.DESCRIPTOR, 0, _MAX_DESCRIPTOR_BYTES)
    error = no_repository(store) or nothing_at(store)
    # The descriptor is stored before any backup: objects that were seen may belong to a new repository.
    try:
        return store.get_range(layout.DESCRIPTOR, 0, _MAX_DESCRIPTOR_BYTES)
    except ObjectNotFound:
        raise error from None


def refuse_occupied(store: Store) -> None:
    """Raise UsageError if there is a repository, or something else, or if the location is inside of a repository."""
    if _has_descriptor(store):
        raise _exists(store)
    refuse_inside(store)
    problem = no_repository(store)
    if problem is None:
        return
    if _has_descriptor(store):  # it was made just now
        raise _exists(store)
    if isinstance(problem, RepositoryNotFound):
        raise UsageError(f"{store.location} is not empty, and is not a repository", hint="Choose an empty location.")
    raise problem


def refuse_inside(store: Store) -> None:
    """Raise UsageError if the location is inside of another repository, which would hold objects that it lacks."""
    if (other := store.enclosing(layout.DESCRIPTOR)) is not None:
        raise UsageError(
            f"{store.location} is inside of the repository {other}",
            hint="Choose an empty location outside of it. That repository itself is named without its subfolders.",
        )


def _has_descriptor(store: Store) -> bool:
    try:
        store.head(layout.DESCRIPTOR)
    except ObjectNotFound:
        return False
    return True


def _exists(store: Store) -> UsageError:
    return UsageError(f"there is a repository at {store.location} already")
