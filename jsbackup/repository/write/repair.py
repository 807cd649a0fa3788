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
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jsbackup.errors import (
    IntegrityError,
    KeyUnavailable,
    ObjectExists,
    ObjectLocked,
    ObjectNotFound,
    UnsupportedError,
    UsageError,
)
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.catalog import read_witnesses, replace_witness
from jsbackup.repository.checks.ledger import read_damaged
from jsbackup.repository.checks.manifest_chain import Gap
from jsbackup.repository.checks.verify import Level, ProblemKind, Verifier, check_object
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Documents, seal_in
from jsbackup.repository.inventory import newest_catalog
from jsbackup.repository.manifest import AnyRef, Manifest, SegmentRef, StreamBackup, UnlistedStreams
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.repository.objects import Objects, PageRef, StreamPageRef, id_of, put_named, sha256_of
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store

__all__ = [
    "Broken",
    "BrokenManifest",
    "Found",
    "ManifestRepair",
    "ObjectName",
    "RepairOutcome",
    "broken_manifests",
    "fetch_from",
    "find_broken",
    "put_document",
    "put_in_place",
    "read_sound_part",
]


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
        newer = max(self, other, key=lambda one: one.backups[-1])
        return replace(newer, backups=tuple(sorted({*self.backups, *other.backups})))


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong with backups: different objects, and problems that no object can repair (key and problem). `sound`
    are the ids (`objects.py`) of objects that are recorded as damaged and are not, each with a backup that names it.
    """

    objects: tuple[Broken, ...]
    beyond: tuple[tuple[str, str], ...]
    sound: Mapping[bytes, str] = field(default_factory=dict)

    def plus(self, more: Found) -> Found:
        """Return this with what was found later. What was broken, and is sound by then, is still among `objects`."""
        objects = {one.name: one for one in self.objects}
        for one in more.objects:
            objects[one.name] = objects[one.name].also(one) if one.name in objects else one
        broken = {id_of(one.ref) for one in objects.values()}
        sound = {name: backup for name, backup in {**more.sound, **self.sound}.items() if name not in broken}
        return Found(tuple(objects.values()), tuple(dict.fromkeys((*self.beyond, *more.beyond))), sound)


class RepairOutcome(StrEnum):
    MENDED = "mended"
    BESIDE = "beside"  # the store keeps the damaged object locked


def find_broken(
    repository: Repository,
    backups: Iterable[str],
    progress: Progress,
    *,
    check: bool,
    also: Collection[bytes] = (),
    sound: frozenset[bytes] | None = None,
    undecodable: Collection[bytes] = (),
) -> Found:
    """Find objects that are missing, have a wrong size, or were found damaged by the last `verify` and still are; and
    those of `also` (ids) that are damaged.

    With `check` all objects are read; otherwise, if the ids of those are given that were found `sound`, all but these:
    of what a manifest or a page lists that was lost, no `verify` knew. `undecodable` are the ids of those that a
    `verify` could not decode: they are decoded again if their SHA-256 is right, and then nothing can repair them.

    Raises:
        KeyUnavailable: manifests are encrypted, and no key that opens them was given.
        StoreError: the store cannot be listed.
    """
    verifier = Verifier(repository.objects, Level.OBJECTS, progress=progress)
    recorded = read_damaged(repository.documents)
    if not check:
        verifier.limit_to(recorded.keys() | set(also))
    sound_again: dict[bytes, str] = {}
    found: dict[ObjectName, Broken] = {}
    beyond: dict[tuple[str, str], None] = {}
    for backup in backups:
        key = repository.documents.stored_key(layout.manifest_key(backup))
        try:
            manifest = read_sound_part(repository, backup)
        except UsageError:  # forgotten meanwhile
            continue
        except (IntegrityError, UnsupportedError) as error:
            beyond[key, error.message] = None
            continue
        refs: dict[str, tuple[StreamBackup | None, AnyRef]] = {page.key: (None, page) for page in manifest.stream_pages}
        for stream in manifest.streams:
            refs |= {ref.key: (stream, ref) for ref in stream.walk() if not isinstance(ref, BrokenPage)}
        if sound is not None and not check:
            ids = {id_of(ref) for _, ref in refs.values()}
            verifier.limit_to(recorded.keys() | (ids - sound))
        for problem in verifier.check(manifest):
            if problem.kind is ProblemKind.INCONSISTENT or problem.key not in refs:
                beyond[key, problem.problem] = None
                continue
            of, ref = refs[problem.key]
            one = Broken(ref, of, problem.stream, problem.problem, (backup,))
            found[one.name] = found[one.name].also(one) if one.name in found else one
        again = (recorded.keys() & verifier.sound) - sound_again.keys()
        for ref in _named(refs.values(), again & set(undecodable)):
            if flaw := _flaw_within(repository.objects, ref):
                beyond[ref.key, flaw] = None
                again.remove(id_of(ref))
        sound_again |= dict.fromkeys(again, backup)
    return Found(tuple(found.values()), tuple(beyond), sound_again)


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


def _named(refs: Iterable[tuple[StreamBackup | None, AnyRef]], names: Collection[bytes]) -> list[AnyRef]:
    return [ref for _, ref in refs if id_of(ref) in names] if names else []


def _flaw_within(objects: Objects, ref: AnyRef) -> str:
    """Return why an object with the right SHA-256 cannot be decoded; "" if it can. Those that list others were."""
    if isinstance(ref, PageRef | StreamPageRef):
        return ""
    try:
        flaw = check_object(objects, ref, Level.DATA)
    except KeyUnavailable:
        return f"object {ref.key} could not be decoded, and only a key that reads messages shows whether it can be now"
    return "" if flaw is None else flaw.text


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
        store.delete(ref.key)
    except ObjectLocked:
        with suppress(IntegrityError):  # the locked version may be the right one: then only what hid it was deleted
            Objects(store).fetch_stored(ref.key, ref.size, ref.sha256)
            return RepairOutcome.MENDED
        put_named(store, ref.key, data)
        return RepairOutcome.BESIDE
    with suppress(ObjectExists):  # someone else repairs it, too
        store.put(ref.key, data)
    Objects(store).fetch_stored(ref.key, ref.size, ref.sha256)
    return RepairOutcome.MENDED


def put_document(store: Store, key: str, data: bytes) -> None:
    """Put the right bytes of a document under its key. Raises StoreError, and IntegrityError if the store keeps the
    damaged one locked, or does not return these bytes.
    """
    try:
        store.delete(key)
    except ObjectLocked as error:
        if store.get_range(key, 0, len(data) + 1) == data:  # as in `put_in_place`
            return
        raise IntegrityError(f"the store keeps the damaged {key} locked") from error
    with suppress(ObjectExists):  # someone else repairs it, too
        store.put(key, data)
    if store.get_range(key, 0, len(data) + 1) != data:
        raise IntegrityError(f"{store.location} does not return {key} as it was put")


# --- repair manifests ---
#
# Put manifests back that were removed, replaced or damaged, from another repository that has copies.
#
# Nothing names the digest of a manifest, as manifests name those of objects. So the bytes of the copy are taken only if
# something here proves that they are the ones that were stored:
#
# - the newest catalog, a backup that follows this one, or the witness of the newest one names their SHA-256
#   (`checks/manifest_chain.py`). Older tools recorded it in signed repositories and in catalogs only.
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


@dataclass(frozen=True, slots=True)
class BrokenManifest:
    """A manifest that is missing or damaged, or not the one that was stored; or a damaged catalog, with "" as `backup`.
    `key` is that of the stored object.
    """

    backup: str
    key: str
    problem: str


def broken_manifests(
    repository: Repository, beyond: Iterable[tuple[str, str]], gaps: Sequence[Gap]
) -> list[BrokenManifest]:
    """Return the manifests among what is `beyond` repair (key and problem), and those that the chain misses."""
    suffix = repository.documents.stored_key("")
    found = {}
    for key, problem in beyond:
        backup = layout.backup_id_of(key.removesuffix(suffix))
        if backup is not None and key == repository.documents.stored_key(layout.manifest_key(backup)):
            found[backup] = BrokenManifest(backup, key, problem)
    for gap in gaps:
        text = f"{gap.backup}: {gap.problem}"
        found.setdefault(gap.backup, BrokenManifest(gap.backup, repository.documents.stored_key(gap.key), text))
    return [found[backup] for backup in sorted(found)]


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

    def mend(self, broken: BrokenManifest) -> str:
        """Put the right bytes of a manifest back. Return what else there is to say, "" for nothing.

        Raises:
            IntegrityError: the other repository does not have them, or nothing proves that these are the right ones.
            KeyUnavailable: no key that opens them was given, and nothing else proves them.
            StoreError: a store does not answer, or does not allow it.
        """
        key = layout.manifest_key(broken.backup)
        try:
            data = self._repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES, self._other)
        except ObjectNotFound:
            raise IntegrityError(f"{self._other.location} has no manifest of backup {broken.backup}") from None
        damaged = self._damaged(key)
        if data == damaged and (note := self._mend_witness(broken.backup, data)):
            return note
        if data == damaged:
            signer = self._repository.documents.claimed_signer(key, data)
            lacks = f", and no sound {layout.writer_key(signer)}" if signer and "keys/writer-" in broken.problem else ""
            raise IntegrityError(f"{self._other.location} has the same bytes{lacks}")
        self._prove(broken.backup, data, damaged)
        put_document(self._repository.store, broken.key, data)
        return self._align_witness(broken.backup, sha256_of(data))

    def _mend_witness(self, backup: str, data: bytes) -> str:
        """Replace a witness that contradicts a manifest and its copy, which are the same. Return what was wrong with
        it; "" if that is not the case, or not known to be.
        """
        sha256, named = sha256_of(data), self._named.get(backup, {})
        if self._witnessed(backup) in (None, sha256) or self._repository.documents.signs:
            return ""
        try:
            self._seal_of(backup, data)
        except (IntegrityError, UnsupportedError):
            return ""
        if named and set(named) != {sha256}:
            return ""
        if not (named or self._trust_copy or self._witnessed(backup, self._other) == sha256):
            raise IntegrityError(
                f"{self._other.location} has the same manifest, and {layout.witness_key(backup)} names another one; if "
                "you trust this copy, give --trust-copy: then the witness names it"
            )
        return self._align_witness(backup, sha256)

    def _align_witness(self, backup: str, sha256: str) -> str:
        """Let a witness that names another manifest name the one that is here now; return that it did not."""
        if self._witnessed(backup) in (None, sha256) or self._repository.documents.signs:
            return ""
        replace_witness(self._repository.documents, backup, sha256.encode())
        return f"its witness {layout.witness_key(backup)} named another manifest, and names this one from now on"

    def _damaged(self, key: str) -> bytes:
        try:
            return self._repository.documents.stored_bytes(key, MAX_DOCUMENT_BYTES)
        except ObjectNotFound:
            return b""

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
