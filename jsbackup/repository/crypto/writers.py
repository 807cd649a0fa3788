"""The writers, who may sign. Each is appointed by the repository's authority.

`keys/writer-<public key>.json` is a document that the authority has signed:

    repository, recipient    which repository, and who can read what is encrypted there (null where nothing is)
    signer                   the writer's public key
    created                  when, RFC 3339
    replaces                 for each writer that this one replaces: the documents that it had signed,
                             key → SHA-256 of the document. Its signature counts for these and for nothing else, so a
                             stolen key that was replaced signs nothing new, not under an old date either.

The authority of an encrypted repository comes from its secret (`secret.py`), so anybody who can read everything can
replace a lost writer key. In a plain one it is the first writer key itself.

The public key of the authority (`--expect-signer`; it is in a writer key, and derived from an identity) is therefore
enough to know all writers and, by `recipient`, that the descriptor does not make them encrypt for someone else.
Objects here that the authority has not signed are ignored. All objects are read, because a missed one may replace a
stolen key. If there are too many, nothing is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from jsbackup.errors import IntegrityError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.crypto.signing import (
    SIGNATURE_BYTES,
    Signatory,
    Signers,
    claimed_signer,
    read_signed,
    sign_document,
)
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.stores.base import ObjectInfo, Store

__all__ = ["MAX_WRITER_BYTES", "Writer", "decode_writer", "encode_writer", "load_signers", "load_writers", "put_writer"]

FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

# Half a million documents of a replaced key.
MAX_WRITER_BYTES = 64 << 20
# More than any repository has; limits what a hostile store can make us read: the number of objects, and the bytes of
# those that claim to be signed by the authority.
_MOST_WRITERS = 5000
_MOST_BYTES = 1 << 30
# Smaller objects are read at once. For a larger one, first the signature's signer is read.
_SMALL_BYTES = 64 << 10

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer, as above. `recipient` is None in a plain repository."""

    repository: str
    recipient: str | None
    signer: str
    created: str
    replaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def encode_writer(writer: Writer) -> bytes:
    return encode_document(
        {
            "format": FORMAT_VERSION,
            "required_features": [],
            "repository": writer.repository,
            "recipient": writer.recipient,
            "signer": writer.signer,
            "created": writer.created,
            "replaces": {signer: dict(documents) for signer, documents in writer.replaces.items()},
        },
        f"writer {writer.signer}",
    )


def decode_writer(data: bytes, key: str) -> Writer:
    """Decode a writer. Raises `FormatError` if it is damaged, `UnsupportedError` if it needs a later tool."""
    fields = decode_document(data, key)
    fields.version(FORMAT_VERSION, FEATURES)
    replaces = fields.fields("replaces")
    return Writer(
        repository=fields.text("repository"),
        recipient=fields.optional_text("recipient"),
        signer=fields.hex256("signer"),
        created=fields.text("created"),
        replaces={
            signer: {document: documents.hex256(document) for document in documents.value}
            for signer in replaces.value
            for documents in (replaces.fields(signer),)
        },
    )


def put_writer(store: Store, authority: Signatory, writer: Writer) -> None:
    """Store a new writer. Raises `ObjectExists` if it already is one."""
    key = layout.writer_key(writer.signer)
    store.put(key, sign_document(authority, writer.repository, key, encode_writer(writer)))


def load_writers(store: Store, descriptor: Descriptor) -> list[Writer]:
    """Return all writers that the authority appointed, including replaced ones.

    Raises:
        IntegrityError: the descriptor contradicts the authority, or there are too many objects.
        StoreError: the store does not answer.
    """
    found = []
    infos = [info for info in store.list(layout.WRITERS) if layout.kind_of(info.key) is layout.ObjectKind.WRITER]
    if len(infos) > _MOST_WRITERS:
        raise _too_many(f"{len(infos):,} objects")
    left_bytes = _MOST_BYTES
    reads = (partial(_read, store, info, descriptor) for info in infos)
    for info, data in zip(infos, in_order(reads, _THREADS), strict=True):
        key = info.key
        left_bytes -= len(data)
        if left_bytes < 0:
            raise _too_many("too much")
        try:
            document = read_signed(descriptor.id, key, data)
        except IntegrityError:
            continue
        if document.signer == descriptor.authority:
            writer = decode_writer(document.data, key)
            if (writer.repository, writer.recipient) != (descriptor.id, descriptor.recipient):
                raise IntegrityError(
                    f"{layout.DESCRIPTOR} has been exchanged: it is not what {key} says",
                    hint="Write nothing there; someone may want to read it.",
                )
            found.append(writer)
    return found


def _read(store: Store, info: ObjectInfo, descriptor: Descriptor) -> bytes:
    """Return the object's bytes; empty if it does not claim to be signed by the authority."""
    if not SIGNATURE_BYTES < info.size <= MAX_WRITER_BYTES:
        return b""
    if info.size > _SMALL_BYTES:
        tail = store.get_range(info.key, info.size - SIGNATURE_BYTES, SIGNATURE_BYTES)
        if claimed_signer(tail) != descriptor.authority:
            return b""
    return store.get_range(info.key, 0, info.size)


def _too_many(what: str) -> IntegrityError:
    return IntegrityError(
        f"there is {what} below {layout.WRITERS}, where each writer key has one small object",
        hint="Someone may want to hide one of them. Remove those that are not yours; "
        "each is named after a writer's public key.",
    )


def load_signers(store: Store, descriptor: Descriptor) -> Signers:
    """Return who may sign, according to `load_writers`."""
    writers = load_writers(store, descriptor)
    replaced: dict[str, Mapping[str, str]] = {}
    for writer in writers:
        for signer, documents in writer.replaces.items():
            replaced[signer] = {**replaced.get(signer, {}), **documents}
    current = frozenset(writer.signer for writer in writers) - replaced.keys()
    return Signers(descriptor.id, current, replaced)
