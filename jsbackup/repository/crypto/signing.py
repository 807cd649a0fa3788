"""Signatures of documents (Ed25519) and derived secrets (HKDF), with `cryptography`.

It is imported where it is used: plain repositories have no signatures, and every command imports this module.

A signed document is its bytes, which end with a newline, and one more line:

    {"signature":"<128 hex digits>","signer":"<64 hex digits: the public key>"}

What is signed is not the document itself but these four lines, each with a newline at its end:

    jsbackup document 1
    <id of the repository>
    <key of the document, without the suffix of encryption>
    <SHA-256 of the document in hex>

So a signature is bound to its document: for the same bytes under another key, or in another repository, it is invalid.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from jsbackup.errors import IntegrityError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.stores.base import Data, ObjectInfo, Store

__all__ = [
    "MAX_WRITER_BYTES",
    "SIGNATURE_BYTES",
    "Signatory",
    "SignedDocument",
    "Signers",
    "Writer",
    "WriterKey",
    "claimed_signer",
    "decode_writer",
    "decode_writer_key",
    "derive",
    "encode_writer",
    "encode_writer_key",
    "load_signers",
    "load_writers",
    "put_writer",
    "read_signed",
    "sign_document",
]


# Every signed document ends with this many bytes.
_TAIL = re.compile(rb'\{"signature":"([0-9a-f]{128})","signer":"([0-9a-f]{64})"\}\n')
SIGNATURE_BYTES = 221


class Signatory:
    """A signer, who has the 32 secret bytes `seed`. `public` is the public key, 64 hex digits."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


@dataclass(frozen=True, slots=True)
class SignedDocument:
    """A document whose signature is valid. Whether `signer` may sign it is not checked yet."""

    data: bytes
    signer: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Signers:
    """Who may sign in the repository `repository`.

    `replaced` has the writers that were replaced. Their signatures are valid for the documents that existed then:
    document key → SHA-256 of the document.
    """

    repository: str
    current: frozenset[str] = frozenset()
    replaced: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def read(self, key: str, data: bytes) -> bytes:
        """Return the document in `data`. Raises `IntegrityError` unless someone who may sign has signed it as
        `key`.
        """
        document = read_signed(self.repository, key, data)
        if document.signer in self.current:
            return document.data
        if document.signer not in self.replaced:
            raise IntegrityError(
                f"{key} is signed by a key that does not belong to this repository, or whose "
                f"{layout.writer_key(document.signer)} is missing or damaged",
                hint="'jsbackup repair --from COPY' puts that object back from a copy of the repository.",
            )
        if self.replaced[document.signer].get(key) != document.sha256:
            raise IntegrityError(f"{key} is signed by a key that had been replaced before: {document.signer}")
        return document.data


def sign_document(signatory: Signatory, repository: str, key: str, data: Data) -> bytes:
    """Return `data` with its signature. It must end with a newline, as JSON documents do here."""
    whole = bytes(data)
    assert whole.endswith(b"\n"), "a signature is a line of its own"
    signature = signatory.sign(_statement(repository, key, whole)).hex()
    return whole + f'{{"signature":"{signature}","signer":"{signatory.public}"}}\n'.encode()


def read_signed(repository: str, key: str, data: bytes) -> SignedDocument:
    """Return the document in `data`, if anybody at all has signed it as `key`. Raises `IntegrityError`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    match = _TAIL.fullmatch(data, max(0, len(data) - SIGNATURE_BYTES))
    if match is None:
        raise IntegrityError(f"{key} is not signed, or damaged")
    document = data[: match.start()]
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(match[2].decode()))
        public.verify(bytes.fromhex(match[1].decode()), _statement(repository, key, document))
    except (InvalidSignature, ValueError):
        raise IntegrityError(
            f"{key} is not what was signed: it was changed, or put under this name by someone else"
        ) from None
    return SignedDocument(document, match[2].decode())


def claimed_signer(tail: bytes) -> str | None:
    """Return who claims to have signed a document that ends with these `SIGNATURE_BYTES`; nothing is checked."""
    match = _TAIL.fullmatch(tail)
    return match[2].decode() if match else None


def _statement(repository: str, key: str, data: bytes) -> bytes:
    return f"jsbackup document 1\n{repository}\n{key}\n{hashlib.sha256(data).hexdigest()}\n".encode()


def derive(secret: bytes, info: str) -> bytes:
    """Derive 32 bytes from a secret: HKDF with SHA-256 (RFC 5869), no salt."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=None, info=info.encode()).derive(secret)


# --- writer key ---
#
# The writer key: what a backup host needs to sign documents, to name objects, and to read documents.
#
# It is one line of text, in a file of its own; lines that begin with `#` are comments:
#
#     jsbackup-writer-1:<repository>:<authority>:<documents>:<signing>:<checksum>
#
#     repository   the id of the repository; the key is of no use for another
#     authority    64 hex digits, the public key that says who signs there: trust in the repository rests on it, and
#                  with it the line carries what a store could otherwise lie about
#     documents    64 hex digits, secret: names of objects and the identity that opens documents come from it
#                  (`keys.py`); empty where the repository is not encrypted
#     signing      64 hex digits, secret: the seed of the Ed25519 key that signs
#     checksum     the first 8 hex digits of SHA-256 over all before its colon, against slips of the hand

_PREFIX = "jsbackup-writer-"
_LINE = re.compile(
    r"jsbackup-writer-1:([0-9A-Za-z-]{1,64}):([0-9a-f]{64}):((?:[0-9a-f]{64})?):([0-9a-f]{64}):([0-9a-f]{8})"
)
_COMMENT = "# jsbackup's key for making backups. It cannot read messages, but it signs backups: keep it secret."


@dataclass(frozen=True, slots=True, repr=False)
class WriterKey:
    """`authority` is public; `documents` (None in a plain repository) and `signing` are 32 secret bytes each."""

    repository: str
    authority: str
    documents: bytes | None
    signing: bytes

    @property
    def signatory(self) -> Signatory:
        return Signatory(self.signing)


def encode_writer_key(key: WriterKey) -> str:
    """Return the text of a writer key file."""
    documents = key.documents.hex() if key.documents else ""
    line = f"{_PREFIX}1:{key.repository}:{key.authority}:{documents}:{key.signing.hex()}"
    return f"{_COMMENT}\n{line}:{_checksum(line)}\n"


def decode_writer_key(text: str, what: str) -> WriterKey:
    """Parse a writer key file. Raises `UsageError`, which does not repeat the text; `what` names the source in
    errors.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) != 1 or not lines[0].startswith(_PREFIX):
        raise UsageError(
            f"the {what} is not a writer key",
            hint="JSBACKUP_WRITER_KEY_FILE names its file, JSBACKUP_WRITER_KEY is the text in it. "
            "`jsbackup init --writer-key FILE` makes one.",
        )
    match = _LINE.fullmatch(lines[0])
    if match is None or _checksum(lines[0].rpartition(":")[0]) != match[5]:
        raise UsageError(f"the {what} is damaged, or that of a newer jsbackup", hint="Bring it back from a copy.")
    documents = bytes.fromhex(match[3]) if match[3] else None
    return WriterKey(match[1], match[2], documents, bytes.fromhex(match[4]))


def _checksum(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:8]


# --- writers ---
#
# The writers, who may sign. Each is appointed by the repository's authority.
#
# `keys/writer-<public key>.json` is a document that the authority has signed:
#
#     repository, recipient    which repository, and who can read what is encrypted there (null where nothing is)
#     signer                   the writer's public key
#     created                  when, RFC 3339
#     replaces                 for each writer that this one replaces: the documents that it had signed,
#                              key → SHA-256 of the document. Its signature counts for these and for nothing else, so a
#                              stolen key that was replaced signs nothing new, not under an old date either.
#
# The authority of an encrypted repository comes from its secret (`keys.py`), so anybody who can read everything can
# replace a lost writer key. In a plain one it is the first writer key itself.
#
# The public key of the authority (`--expect-signer`; it is in a writer key, and derived from an identity) is therefore
# enough to know all writers and, by `recipient`, that the descriptor does not make them encrypt for someone else.
# Objects here that the authority has not signed are ignored. All objects are read, because a missed one may replace a
# stolen key. If there are too many, nothing is read.

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
    writers = []
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
            writers.append(writer)
    return writers


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
