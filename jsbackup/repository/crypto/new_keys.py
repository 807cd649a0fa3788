"""The secrets of a new repository that is signed or encrypted, and the first objects below `keys/`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from jsbackup.errors import (
    IntegrityError,
    KeyUnavailable,
    ObjectExists,
    ObjectNotFound,
    TargetConflict,
    UsageError,
)
from jsbackup.readable import in_short
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NEEDS_WRITER, GivenKeys
from jsbackup.repository.crypto.keys import RepositorySecret, add_readers, needed
from jsbackup.repository.crypto.opening import open_access
from jsbackup.repository.crypto.readers import load_readers, remove_lists
from jsbackup.repository.crypto.signing import (
    MAX_WRITER_BYTES,
    Signatory,
    Writer,
    WriterKey,
    load_signers,
    load_writers,
    put_writer,
)
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Documents
from jsbackup.repository.objects import sha256_of
from jsbackup.stores.base import Store
from jsbackup.stores.overlay import OverlayStore

__all__ = [
    "CopiedKeys",
    "NewKeys",
    "bring_first_keys",
    "copy_keys",
    "follow_keys",
    "make_new_keys",
    "put_keys",
    "replace_writer",
    "signed_documents",
]


Random = Callable[[int], bytes]

# Where writers sign documents. Leases and lists of unused objects are not signed; the authority signs `keys/`.
_SIGNED = (layout.BACKUPS, layout.CATALOGS, layout.HOLDS, layout.VERIFIED, *layout.CHECKS)


@dataclass(frozen=True, slots=True, repr=False)
class NewKeys:
    """The keys of a new repository. `secret` is None if it is signed only; `writer_key` is for the user who makes it.

    `passphrase` comes with the three random bytes that name its object.
    """

    authority: Signatory
    writer_key: WriterKey
    secret: RepositorySecret | None
    recipients: tuple[age.Recipient, ...] = ()
    passphrase: tuple[str, bytes] | None = None

    @property
    def recipient(self) -> str | None:
        if self.secret is None:
            return None
        assert self.secret.identity.recipient is not None, "a repository's identity is an age identity"
        return self.secret.identity.recipient.label


def make_new_keys(
    repository_id: str, recipients: Sequence[age.Recipient], passphrase: str | None, random: Random
) -> NewKeys:
    """Make new secrets. Without recipients and passphrase nothing will be encrypted."""
    signing = random(32)
    if not recipients and passphrase is None:
        signatory = Signatory(signing)
        return NewKeys(signatory, WriterKey(repository_id, signatory.public, None, signing), None)
    if len({recipient.label for recipient in recipients}) < len(recipients):
        raise UsageError("a recipient is given twice")
    secret = RepositorySecret(age.age_identity(random(32)))
    writer_key = WriterKey(repository_id, secret.authority.public, secret.documents.value, signing)
    named = None if passphrase is None else (passphrase, random(3))
    return NewKeys(secret.authority, writer_key, secret, tuple(recipients), named)


def put_keys(store: Store, descriptor: Descriptor, new_keys: NewKeys) -> None:
    """Store everything that belongs below `keys/`. The descriptor comes after it: until then there is no repository."""
    if new_keys.secret is not None:
        add_readers(store, descriptor, new_keys.secret, new_keys.recipients, passphrase=new_keys.passphrase)
    signer = new_keys.writer_key.signatory.public
    writer = Writer(descriptor.id, descriptor.recipient, signer, descriptor.created)
    put_writer(store, new_keys.authority, writer)


def replace_writer(
    store: Store,
    descriptor: Descriptor,
    documents: Documents,
    secret: RepositorySecret | None,
    *,
    writer_key: WriterKey | None,
    created: str,
    random: Random,
) -> tuple[WriterKey, Callable[[], None]]:
    """Make a new writer key that replaces all existing ones. Also returns the function that makes it valid.

    Call that function once the key is kept safe. Needs the secret of an encrypted repository, or the first writer key
    of a plain one. Everything that was signed before and can still be read stays valid.

    Raises:
        KeyUnavailable: the needed key was not given.
        UsageError: nothing is signed in this repository.
        IntegrityError, StoreError: the repository cannot be read.
    """
    if descriptor.authority is None:
        raise UsageError("the repository is neither encrypted nor signed, so it has no writer key")
    signing = random(32)
    if descriptor.recipient is not None:
        secret = needed(secret)
        authority, value = secret.authority, secret.documents.value
    else:
        authority, value = _first_writer(writer_key), None
    key = WriterKey(descriptor.id, descriptor.authority, value, signing)
    signed = dict(signed_documents(documents))
    replaces = dict.fromkeys(sorted(load_signers(store, descriptor).current), signed)
    writer = Writer(descriptor.id, descriptor.recipient, key.signatory.public, created, replaces)
    return key, lambda: put_writer(store, authority, writer)


def _first_writer(key: WriterKey | None) -> Signatory:
    if key is None:
        raise KeyUnavailable("only the first writer key of a plain repository can make another", hint=NEEDS_WRITER)
    if key.signatory.public != key.authority:
        raise KeyUnavailable("the writer key is not the first one of this repository", hint="Give that one.")
    return key.signatory


def signed_documents(documents: Documents, folders: Sequence[str] = _SIGNED) -> Iterator[tuple[str, str]]:
    """Yield the key and SHA-256 of every document that can be read. Raises KeyUnavailable, and StoreError."""
    for info in chain.from_iterable(map(documents.list, folders)):
        with suppress(IntegrityError, ObjectNotFound):
            data = documents.get(info.key, MAX_DOCUMENT_BYTES)
            yield info.key, sha256_of(data)


# --- copied keys ---
#
# Bring what is below `keys/` to a replica: when it is made, and before each later copy.
#
# Without the record of a writer, nothing that it signed can be read in the replica; without its key file, a reader
# cannot open it. Of the lists of readers the newer one counts, in both (`readers.py`): the replica gets the key files
# of that list which it lacks, then the list. So a reader who was added comes, and one who was removed there does not
# come back. No key file is deleted or overwritten there: whoever gets hold of a key that signs lists in the source must
# not lock others out of the replica. Key files that no list names any more are named.
#
# Writers come first, the newest first: then none that was replaced can sign in between. What the replaced one has
# signed counts only as far as the new one names it, and it names what the source had at that time. A replica may have
# more, such as backups that the source has forgotten. So nothing is brought if a manifest, a hold or a record of damage
# of the replica could not be read any more.

_log = logging.getLogger(__name__)

# The rest is made again: catalogs by the next backup, records of what is sound by the next check.
_NEEDED = (layout.BACKUPS, layout.HOLDS, layout.VERIFIED)


@dataclass(frozen=True, slots=True)
class CopiedKeys:
    """Keys of objects: of the readers' key files and the records of writers that were brought; of the readers' key
    files of the source that the list of the replica does not name, which is newer; and of those in the replica that no
    list names.
    """

    readers: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    only_there: tuple[str, ...] = ()


def copy_keys(source: Store, target: Store, descriptor: Descriptor) -> CopiedKeys:
    """Bring what the store of a replica lacks of `keys/`, but for key files of readers that are damaged.

    Raises StoreError, and IntegrityError as `load_writers`.
    """
    writers = tuple(key for key in _lacking_writers(source, target, descriptor) if _bring(source, target, key))
    ours, theirs = (load_readers(store, descriptor) for store in (source, target))
    newer = ours if ours.generation > theirs.generation else theirs
    brought = []
    for key in sorted(newer.listed.keys() - theirs.stored.keys()):
        data = _read(source, key)
        if data is not None and sha256_of(data) == newer.listed[key] and _put(target, key, data):
            brought.append(key)
    if newer is ours and newer.list_key and _put(target, newer.list_key, newer.data):
        remove_lists(target, theirs.lists)
    return CopiedKeys(
        tuple(brought),
        writers,
        left=tuple(sorted(ours.listed.keys() - newer.listed.keys())),
        only_there=tuple(sorted(theirs.stored.keys() - newer.listed.keys())) if newer.list_key else (),
    )


def bring_first_keys(source: Store, target: Store, descriptor: Descriptor) -> None:
    """Do the same for a replica that is being made, and warn of what an interrupted run may have left there."""
    if left := copy_keys(source, target, descriptor).only_there:
        _log.warning(
            "%s has readers' key files that %s does not have, as an interrupted copy may have left them: %s; if their "
            "readers were removed, take them away with 'jsbackup key remove' there",
            target.location,
            source.location,
            ", ".join(left),
        )


def follow_keys(source: Store, target: Store, descriptor: Descriptor, given: GivenKeys) -> CopiedKeys:
    """Do the same for a replica that has backups. `given` are the keys for it.

    Raises:
        TargetConflict: a writer was replaced in the source, and what it has signed in the replica would be lost.
        KeyUnavailable: whether it would be is not known, as documents are encrypted, and no key that opens them was
            given.
        IntegrityError, StoreError: as `copy_keys`.
    """
    lacking = _lacking_writers(source, target, descriptor)
    if lacking and (lost := _lost_with(lacking, source, target, descriptor, given=given)):
        raise TargetConflict(
            f"the writer key was replaced in {source.location}, which does not know all that the old one has signed in "
            f"{target.location}: {in_short(lost, most=1)} could not be read any more",
            hint="Run 'jsbackup key replace-writer' on that repository, too, which keeps them valid. Then copy again.",
        )
    return copy_keys(source, target, descriptor)


def _lacking_writers(source: Store, target: Store, descriptor: Descriptor) -> list[str]:
    """Return the keys of the records of writers that the target lacks, the newest first."""
    known = {writer.signer for writer in load_writers(target, descriptor)}
    lacking = [writer for writer in load_writers(source, descriptor) if writer.signer not in known]
    newest_first = sorted(lacking, key=lambda writer: writer.created, reverse=True)
    return [layout.writer_key(writer.signer) for writer in newest_first]


def _lost_with(
    writers: Sequence[str], source: Store, target: Store, descriptor: Descriptor, *, given: GivenKeys
) -> list[str]:
    """Return the manifests, holds and records of damage that can be read in the target, and could not with these
    writers. Reads them all.
    """
    then = OverlayStore(target, time.time)
    for key in writers:
        _bring(source, then, key)
    left, after = (
        dict(signed_documents(Documents(store, open_access(store, descriptor, given).envelope), _NEEDED))
        for store in (target, then)
    )
    lost = left.keys() - after.keys()
    return sorted(key for key in lost if not key.startswith(layout.VERIFIED) or layout.is_damage_record(key))


def _bring(source: Store, target: Store, key: str) -> bool:
    data = _read(source, key)
    return data is not None and _put(target, key, data)


def _read(store: Store, key: str) -> bytes | None:
    with suppress(ObjectNotFound):  # removed meanwhile
        return store.get_range(key, 0, MAX_WRITER_BYTES)
    return None


def _put(target: Store, key: str, data: bytes) -> bool:
    """Return False if something is there: from an interrupted or another run, or damaged, which `repair` mends."""
    try:
        target.put(key, data)
    except ObjectExists:
        return False
    return True
