"""Who can read an encrypted repository: objects below `keys/`, each the repository's identity, encrypted for one.

    keys/age1…-<8 digits>-<8 digits>.age      for an age recipient, which the key names
    keys/ssh-ed25519-<16 digits>-….age        for an SSH key, by the beginning of SHA-256 over it (or ssh-rsa-…)
    keys/passphrase-<6 digits>-….age          for anyone who knows a passphrase

Each contains an age identity file, so the `age` tool opens everything, in two steps:

    age -d -i my.key keys/….age > repository.key
    age -d -i repository.key segments/…/….parquet.age > segment.parquet

All are in a signed list, `readers.py`.

Adding or removing a key takes one that already opens the repository. Removing one does not lock out anybody who has
read the object before: everything stays encrypted to the same identity.

What a thief can do who has access to the store, with

    an identity, a passphrase   reads every message, past and to come, and can make himself a writer
    the writer key              reads manifests and catalogs (names, configurations, counts, times; no message), and
                                signs backups of his own, until it is replaced (`signing.py`); reading cannot be undone
    neither                     sees sizes, times, numbers of objects and sequences; can delete and bring back what was
                                there before, which `verify` mostly notices (`checks/manifest_chain.py`); can give
                                a reader who pins nothing another repository altogether: hence --expect-signer
    the host that makes backups  has the writer key, and what passes through it from then on

If a thief may have had both the store and a key that was since replaced or removed, make a new repository and use
`jsbackup copy`.

age files that are encrypted with a passphrase, decrypted by the specification (C2SP's age.md).

pyrage measures at each run how fast the machine is just then, and refuses a file that would take it 16 times as long as
one that it would make: whoever restores on a small or a busy machine would be refused their own key. Here a file may
ask for as much as the `age` command allows.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from jsbackup.errors import (
    FormatError,
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    ObjectNotFound,
    UsageError,
)
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NEEDS_IDENTITY, GivenKeys
from jsbackup.repository.crypto.age import Identity, age_identity
from jsbackup.repository.crypto.readers import (
    NO_READER,
    Readers,
    change_readers,
    examine_readers,
    load_readers,
    read_key_file,
)
from jsbackup.repository.crypto.signing import (
    Signatory,
    decode_writer_key,
    derive,
)
from jsbackup.repository.descriptor import Descriptor
from jsbackup.stores.base import Store

__all__ = [
    "ARMOR",
    "DocumentsSecret",
    "RepositorySecret",
    "add_readers",
    "decrypt_passphrase_file",
    "is_passphrase_file",
    "needed",
    "open_secret",
    "read_identities",
    "read_keys",
    "reader_id",
    "remove_reader",
]

# --- secret ---
#
# The secrets of an encrypted repository, and how they are derived.
#
#     repository secret           an age identity, made by `init`; opens every object; everything below comes from it
#     ├── authority               Ed25519 seed; says who is a writer (`signing.py`), signs nothing else
#     └── documents               32 bytes, in the writer key too
#         ├── names               HMAC-SHA-256 key; what stands for digests and streams in keys
#         └── identity            an age identity; opens documents (manifests, catalogs), nothing else
#
# Each arrow is HKDF with SHA-256 (RFC 5869), no salt, 32 bytes; `info` is "jsbackup 1 " and the name above. The input
# at the top is the identity's text, AGE-SECRET-KEY-1 and so on in capitals.
#
# Names are HMACs in hex: over "digest\0" and the digest; over "stream\0" and the stream's name, the first 32 digits;
# over "incarnation\0", the name, "\0" and the incarnation, the first 8.


def _derive(secret: bytes, name: str) -> bytes:
    return derive(secret, f"jsbackup 1 {name}")


@dataclass(frozen=True, slots=True, repr=False)
class DocumentsSecret:
    """The secret that opens documents and names objects; 32 bytes."""

    value: bytes

    @property
    def identity(self) -> Identity:
        return age_identity(_derive(self.value, "identity"))

    @property
    def names(self) -> bytes:
        return _derive(self.value, "names")


@dataclass(frozen=True, slots=True, repr=False)
class RepositorySecret:
    """The secret that opens everything."""

    identity: Identity

    @property
    def authority(self) -> Signatory:
        return Signatory(_derive(self._input, "authority"))

    @property
    def documents(self) -> DocumentsSecret:
        return DocumentsSecret(_derive(self._input, "documents"))

    @property
    def _input(self) -> bytes:
        assert self.identity.text is not None, "a repository's identity is an age identity"
        return self.identity.text.encode()


ARMOR: Final = b"-----BEGIN AGE ENCRYPTED FILE-----"
_ARMOR_END: Final = b"-----END AGE ENCRYPTED FILE-----"
_BEGINNING: Final = b"age-encryption.org/v1\n-> scrypt "

# The only stanza: 16 bytes of salt, the work as a power of two, and the file's key of 16 bytes, encrypted.
_HEADER: Final = re.compile(
    rb"(age-encryption\.org/v1\n-> scrypt ([\w+/]{22}) ([1-9]\d?)\n([\w+/]{43})\n---) ([\w+/]{43})\n", re.ASCII
)
_SALT_LABEL: Final = b"age-encryption.org/v1/scrypt"
_NONCE_BYTES: Final = 16
_CHUNK_BYTES: Final = (64 << 10) + 16

# The bound of the `age` command: 4 GiB of memory, and some 15 s.
_MOST_WORK: Final = 22


def is_passphrase_file(data: bytes) -> bool:
    """Return whether this is an age file encrypted with a passphrase."""
    try:
        return _binary(data).startswith(_BEGINNING)
    except binascii.Error:
        return False


def decrypt_passphrase_file(data: bytes, passphrase: str, what: str) -> bytes:
    """Decrypt with a passphrase; `what` names the file in errors.

    Raises `KeyUnavailable` if the passphrase is wrong, or this machine lacks the memory that the file asks for;
    `FormatError` if the file is damaged or asks for too much work. A damaged stanza looks like a wrong passphrase.
    """
    try:
        data = _binary(data)
        match = _HEADER.match(data)
        if match is None:
            raise FormatError(f"{what} is damaged, or no age file for a passphrase")
        header, salt, work, wrapped, mac = match[1], _decode(match[2]), int(match[3]), _decode(match[4]), match[5]
        checked = _decode(mac)
    except binascii.Error:
        raise FormatError(f"{what} is damaged: its header is not base64") from None
    if work > _MOST_WORK:
        raise FormatError(f"{what} is damaged, or asks for too much work: 2^{work}, and at most 2^{_MOST_WORK} is done")
    file_key = _open(_stretched(passphrase, salt, work, what), bytes(12), wrapped)
    if file_key is None:
        raise KeyUnavailable(f"the passphrase does not open {what}")
    if not hmac.compare_digest(hmac.digest(_derived(file_key, b"", b"header"), header, hashlib.sha256), checked):
        raise FormatError(f"{what} is damaged: its header is not what was written")
    return _content(data[match.end() :], file_key, what)


def _content(sealed: bytes, file_key: bytes, what: str) -> bytes:
    nonce, sealed = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    key = _derived(file_key, nonce, b"payload")
    chunks = [sealed[at : at + _CHUNK_BYTES] for at in range(0, len(sealed), _CHUNK_BYTES)]
    content = []
    for number, chunk in enumerate(chunks):
        is_last = number == len(chunks) - 1
        opened = _open(key, number.to_bytes(11, "big") + bytes([is_last]), chunk)
        if opened is None or (not opened and number):
            break
        content.append(opened)
    if len(content) < max(len(chunks), 1):
        raise FormatError(f"{what} is damaged or cut off")
    return b"".join(content)


def _stretched(passphrase: str, salt: bytes, work: int, what: str) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    try:
        return Scrypt(salt=_SALT_LABEL + salt, length=32, n=1 << work, r=8, p=1).derive(passphrase.encode())
    except MemoryError:
        raise KeyUnavailable(f"to open {what} takes {1 << work >> 10} MiB of memory, which are not free") from None


def _derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=32, salt=salt, info=info).derive(secret)


def _open(key: bytes, nonce: bytes, sealed: bytes) -> bytes | None:
    """Return what was sealed; None if it was not sealed so."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, None)
    except InvalidTag:
        return None


def _binary(data: bytes) -> bytes:
    """Return a file without its armour, if it has one. Raises binascii.Error."""
    if not data.startswith(ARMOR):
        return data
    lines = data.split()
    begin = len(ARMOR.split())
    end = len(_ARMOR_END.split())
    if lines[-end:] != _ARMOR_END.split():
        raise binascii.Error("the armour has no end")
    return base64.b64decode(b"".join(lines[begin:-end]), validate=True)


def _decode(text: bytes) -> bytes:
    """Decode base64 without padding, whose unused bits must be zero. Raises binascii.Error."""
    data = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    if base64.b64encode(data).rstrip(b"=") != text:
        raise binascii.Error("not the only form of these bytes")
    return data


# Limits how much a hostile store can make us read.
_MOST_IDENTITIES = 5000

_MOST_NAMED = 5
_PUT_BACK = (
    "'jsbackup repair --from COPY' puts it back from a copy of the repository. Or copy it from where you keep the "
    "folder keys/."
)

# Each may cost seconds of work. Objects other than the oldest may come from someone who can only put objects.
_MOST_PASSPHRASES = 16

_PASSPHRASE = "passphrase-"


def read_identities(data: bytes, passphrase: str | None, what: str) -> tuple[age.Identity, ...]:
    """Return the identities of an identity file; `passphrase` opens one that is itself encrypted. Raises
    `UsageError`.
    """
    if is_passphrase_file(data):
        if passphrase is None:
            raise UsageError(f"the {what} takes a passphrase", hint="Give it with --passphrase-file.")
        try:
            data = decrypt_passphrase_file(data, passphrase, f"the {what}")
        except FormatError as error:
            raise UsageError(error.message) from None
    try:
        return tuple(age.parse_identities(data.decode(), what))
    except UnicodeDecodeError:
        raise UsageError(f"the {what} holds no identity") from None


def read_keys(
    writer_key: bytes | None, identity: bytes | None, passphrase: bytes | None, expect_signer: str | None
) -> GivenKeys:
    """Read keys from the content of their files. Raises `UsageError` for content that is not a key."""
    secret = None if passphrase is None else _as_text(passphrase, "passphrase").rstrip("\r\n")
    writer = None if writer_key is None else decode_writer_key(_as_text(writer_key, "writer key"), "writer key")
    identities = read_identities(identity, secret, "identity") if identity else ()
    return GivenKeys(writer, identities, secret, expect_signer)


def _as_text(secret: bytes, what: str) -> str:
    try:
        return secret.decode()
    except UnicodeDecodeError:  # not chained: it contains the secret
        raise UsageError(f"the {what} is not text") from None


def reader_id(key: str) -> str:
    """Return the key of a key file as people see it."""
    return layout.unsealed(key).removeprefix(layout.KEYS)


def add_readers(
    store: Store,
    descriptor: Descriptor,
    secret: RepositorySecret,
    recipients: Sequence[age.Recipient],
    *,
    passphrase: tuple[str, bytes] | None = None,
) -> list[str]:
    """Let `recipients` read, and everyone who knows the passphrase, which comes with three random bytes that name it.
    Return the keys of the key files. A passphrase takes a second or two.

    Raises:
        UsageError: one of them already can, or the passphrase is empty.
        StoreError: the store does not answer; none of them is in the list.
    """
    text = f"# the identity of the jsbackup repository {descriptor.id}\n{secret.identity.text}\n".encode()
    files = {recipient.label: age.encrypt(text, [recipient]) for recipient in recipients}
    if passphrase is not None:
        words, random = passphrase
        if not words:
            raise UsageError("the passphrase is empty")
        files[_PASSPHRASE + random[:3].hex()] = age.encrypt_with_passphrase(text, words)
    listed = {layout.reader_of(key, descriptor.id) for key in load_readers(store, descriptor).listed}
    for whom in files.keys() & listed:
        hint = "If its key file is damaged, remove it with 'key remove' first."
        raise UsageError(f"{whom} can read the repository already", hint=hint)
    added = {}
    for whom, data in files.items():
        sha256 = hashlib.sha256(data).hexdigest()
        key = layout.identity_key(whom, descriptor.id, sha256)
        store.put(key, data)
        added[key] = sha256
    change_readers(store, descriptor, secret.authority, add=added)
    return [*added]


def remove_reader(store: Store, descriptor: Descriptor, secret: RepositorySecret | None, text: str) -> str:
    """Remove the key file whose id begins with `text`, which may be lost; return its key.

    Raises:
        UsageError: it is not exactly one, or the last whose file is whole.
        KeyUnavailable: it is in the list of readers, and no key was given that reads the repository.
        StoreError: the store does not answer.
    """
    readers = examine_readers(store, descriptor)
    keys = [key for key in readers.stored.keys() | readers.listed.keys() if text and reader_id(key).startswith(text)]
    if len(keys) != 1:
        shown = "several keys begin" if keys else "no key begins"
        raise UsageError(f"{shown} with {text[:80]!r}", hint="See `jsbackup key list`.")
    key = keys[0]
    if not readers.whole - {key}:
        raise UsageError(
            "that is the last key whose file is not damaged: without it no one can read the repository",
            hint="Add another first, or put the others back with `jsbackup repair --from`.",
        )
    if key in readers.listed:
        change_readers(store, descriptor, needed(secret).authority, remove=[key])
    store.delete(key)
    return key


def needed(secret: RepositorySecret | None) -> RepositorySecret:
    """Return the secret of an encrypted repository, or raise `KeyUnavailable` if it is None."""
    if secret is None:
        raise KeyUnavailable("this needs a key that reads the repository", hint=NEEDS_IDENTITY)
    return secret


def open_secret(store: Store, descriptor: Descriptor, given: GivenKeys) -> RepositorySecret:
    """Open the secret of an encrypted repository.

    Raises:
        KeyUnavailable: none of the given keys opens it.
        IntegrityError: an object that they should open is damaged, or opens something else.
        StoreError: the store does not answer.
    """
    for identity in given.identities:  # the repository's own, as `age -d` extracts it from an object in `keys/`
        if identity.recipient is not None and identity.recipient.label == descriptor.recipient:
            return _proved(identity, descriptor, layout.DESCRIPTOR)
    damage: JsBackupError | None = None
    labels = labels_of(given.identities)
    readers = load_readers(store, descriptor, lenient=True)  # a key file opens it without the list
    for key in _worth_trying(readers, descriptor, given, labels):
        try:
            return _open_wrapped(read_key_file(store, key), key, descriptor, given)
        except (KeyUnavailable, ObjectNotFound):
            continue
        except IntegrityError as error:  # another one may work
            # Objects that someone puts there for other readers do not concern us.
            whom = layout.reader_of(key, descriptor.id) or ""
            if not whom.startswith("age1") or whom in labels:
                damage = damage or error
    raise _not_opened(readers, descriptor, labels) if damage is None else damage.with_hint(damage.hint or _PUT_BACK)


def _not_opened(readers: Readers, descriptor: Descriptor, labels: Collection[str]) -> JsBackupError:
    """Return why no given key opens the repository: it may be for a key file that was lost."""
    mine = [key for key in readers.missing if layout.reader_of(key, descriptor.id) in labels]
    if mine or not readers.stored:
        what = f"{mine[0]} is missing" if mine else NO_READER
        return IntegrityError(f"no given key opens the repository: {what}", hint=_PUT_BACK)
    hint = "`jsbackup key list` says for whom it is encrypted."
    if readers.missing:
        hint += f" {', '.join(readers.missing[:_MOST_NAMED])}: missing. {_PUT_BACK}"
    return KeyUnavailable("no identity or passphrase that was given opens the repository", hint=hint)


def labels_of(identities: Sequence[age.Identity]) -> frozenset[str]:
    """Return the names of the identities in keys of objects, as far as they are known."""
    return frozenset(identity.recipient.label for identity in identities if identity.recipient is not None)


def _worth_trying(readers: Readers, descriptor: Descriptor, given: GivenKeys, labels: Collection[str]) -> Iterator[str]:
    """Yield the key files to try: first those named after a given identity, then those of the list, then the oldest.
    Passphrases come last, because they cost most.
    """

    def rank(key: str) -> tuple[bool, bool, float, str]:
        is_mine = layout.reader_of(key, descriptor.id) in labels
        return not is_mine, key not in readers.listed, readers.stored[key], key

    keys = sorted(readers.stored, key=rank)
    if given.identities:
        yield from [key for key in keys if not reader_id(key).startswith(_PASSPHRASE)][:_MOST_IDENTITIES]
    if given.passphrase is not None:
        yield from [key for key in keys if reader_id(key).startswith(_PASSPHRASE)][:_MOST_PASSPHRASES]


def _open_wrapped(data: bytes, key: str, descriptor: Descriptor, given: GivenKeys) -> RepositorySecret:
    """Open the secret in `data`, a wrapped identity that is stored under `key`. Raises KeyUnavailable and
    IntegrityError as `open_secret`.
    """
    if reader_id(key).startswith(_PASSPHRASE):
        if given.passphrase is None:
            raise KeyUnavailable("no passphrase was given")
        text = decrypt_passphrase_file(data, given.passphrase, key)
    else:
        try:
            text = age.decrypt(data, given.identities, key)
        except KeyUnavailable:
            if layout.reader_of(key, descriptor.id) in labels_of(given.identities):
                raise IntegrityError(f"{key} is damaged, or was encrypted for someone else") from None
            raise
    try:
        identities = age.parse_identities(text.decode(), key)
    except (UsageError, UnicodeDecodeError):
        raise FormatError(f"{key} holds no identity") from None
    return _proved(identities[0], descriptor, key)


def _proved(identity: age.Identity, descriptor: Descriptor, key: str) -> RepositorySecret:
    """Return the secret, if the descriptor belongs to its repository: all that it says of keys comes from the
    secret.
    """
    if identity.recipient is None or identity.recipient.label != descriptor.recipient:
        raise IntegrityError(f"{key} and {layout.DESCRIPTOR} do not belong together: one of them has been exchanged")
    secret = RepositorySecret(identity)
    if secret.authority.public != descriptor.authority:
        raise IntegrityError(f"{layout.DESCRIPTOR} has been exchanged: it names another authority for signatures")
    return secret
