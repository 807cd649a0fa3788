"""Copy backups from one repository into another. They keep their ids; only missing objects are transferred.

Oldest first, each backup's objects before its manifest, as in any backup: a run that is stopped anywhere leaves a valid
target, and the next run continues. A backup with a damaged or missing object is reported and not copied; the others
are.

A backup is present at the target if there is one with its id and content, apart from the keys of objects and their
encryption. One with the same id and other content is a conflict; nothing is overwritten. A manifest that the target has
lost is only put back as it was there: another one would seem to have replaced it, and a `repair` would exchange it for
that one, whose objects may be lost.

Manifests are copied byte for byte if they are neither signed nor encrypted, and into a replica (`is_replica`).
Otherwise the target's writer signs them, and they become part of the target's chain. (A plain one is written again if
an object gets another key at the target.)

Copy the objects of a backup into another repository: verbatim, or sealed again.

Verbatim, if both repositories are plain, or one is a replica of the other: keys, sizes and SHA-256 stay, and objects
that are already there with their size are not transferred. Sealed again, if their encryption differs: this needs the
keys to read the source and to write to the target; digests stay, keys and SHA-256 change.

Either way every object is checked against size and SHA-256 of the source's manifest before it is put. An object that
exists at the target must have the size, and the SHA-256 in a manifest there or the same end; only `verify` reads all of
it. Pages are copied verbatim with manifests that are; the target makes its own for any other manifest.

Each thread holds one object in memory. Only the objects of the backup before are remembered as present at the target:
the next backup shares most of them, and checking or remembering all keys would not scale.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from jsbackup.errors import (
    DigestMismatch,
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    ObjectExists,
    ObjectNotFound,
    TargetConflict,
    UnsupportedError,
)
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.catalog import CatalogEntry, contradicted, entry_of, list_catalogs
from jsbackup.repository.checks.manifest_chain import how_to_repair
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Document
from jsbackup.repository.inventory import (
    damaged_catalogs,
    find_missing,
    newest_catalog,
    note_backup,
    tend_catalog,
    write_catalog,
)
from jsbackup.repository.keep.leases import Lease, confirm
from jsbackup.repository.manifest import (
    AnyRef,
    ConsumerBackup,
    Manifest,
    ObjectRef,
    OpaqueRef,
    PageRef,
    SegmentRef,
    StreamBackup,
    StreamPageRef,
)
from jsbackup.repository.manifest_json import decode_manifest, encode_manifest
from jsbackup.repository.objects import Objects, StoredObject, has_bytes, put_named, sha256_of
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.repository import Repository

__all__ = ["CopyReport", "UncopiedBackup", "copy_backups", "is_replica"]

_Ref = TypeVar("_Ref", SegmentRef, ObjectRef, OpaqueRef)

# How much of the end of an object is compared: it has the positions of about a hundred row groups.
_END_BYTES = 64 << 10

# Up to this number each object is requested by its key; beyond it the folder is listed, a thousand keys a request.
_MOST_HEADS = 16


@dataclass(slots=True)
class TransferTally:
    """How many objects were copied, and how many were not needed."""

    copied_objects: int = 0
    copied_bytes: int = 0
    skipped_objects: int = 0

    def count(self, stored: StoredObject) -> None:
        if stored.added:
            self.copied_objects += 1
            self.copied_bytes += stored.size
        else:
            self.skipped_objects += 1


@dataclass(frozen=True, slots=True)
class ObjectTransfer:
    """From where to where objects are copied, `jobs` at a time. `before` is a backup of the target that may share
    objects with the first one.
    """

    source: Objects
    target: Objects
    tally: TransferTally
    progress: Progress
    jobs: int
    before: Manifest | None


class Carrier(Protocol):
    """Copies the objects of backups to the target, one backup after the other."""

    def carry(self, manifest: Manifest) -> Manifest:
        """Copy all objects of the backup; return the manifest for the target, the same one if it can be used there.

        Raises:
            IntegrityError: an object of the source is missing or damaged, or the target has another one under its key.
            KeyUnavailable: a needed key was not given.
            StoreError: one of the stores does not answer.
        """


class Verbatim:
    """Copies objects verbatim, and `pages` if they are to be.

    A damaged object under the same key is left alone. Ours is stored beside it, unless the target is to be a `replica`.
    """

    def __init__(self, transfer: ObjectTransfer, *, replica: bool, pages: bool) -> None:
        self._transfer = transfer
        self._source, self._target = transfer.source, transfer.target
        self._replica = replica
        self._pages = pages
        self._vouched = {ref.key: ref.sha256 for ref in _readable(transfer.before)}
        self._known: Mapping[str, StoredObject] = {}

    def carry(self, manifest: Manifest) -> Manifest:
        stored = self._carry(manifest.id, {ref.key: ref for ref in _content_of(manifest)})
        if self._pages and not _moved(stored):
            pages: dict[str, AnyRef] = {ref.key: ref for stream in manifest.streams for ref in stream.pages}
            stored |= self._carry(manifest.id, pages | {ref.key: ref for ref in manifest.stream_pages})
        self._known = stored
        if not _moved(stored):
            return manifest
        streams = (replace_objects(stream, lambda ref: stored[ref.key]) for stream in manifest.streams)
        return replace(manifest, streams=tuple(streams))

    def _carry(self, backup: str, refs: Mapping[str, AnyRef]) -> dict[str, StoredObject]:
        """Copy objects; return the stored ones by the key at the source."""
        stored = {key: self._known[key] for key in refs if key in self._known}
        folders: dict[str, list[AnyRef]] = {}
        for key, ref in refs.items():
            if key not in stored:
                folders.setdefault(key.rpartition("/")[0], []).append(ref)
        looks = [partial(self._look, folder, wanted) for folder, wanted in folders.items()]
        present = {key for keys in in_order(looks, self._transfer.jobs) for key in keys}
        stored |= {key: StoredObject(key, refs[key].size, refs[key].sha256, added=False) for key in present}
        self._transfer.tally.skipped_objects += len(present)
        missing = [ref for key, ref in refs.items() if key not in stored]
        with _watched(self._transfer.progress, backup, missing) as advance:
            brought = in_order([partial(self._bring, ref) for ref in missing], self._transfer.jobs)
            for ref, copied in zip(missing, brought, strict=True):
                stored[ref.key] = copied
                self._transfer.tally.count(copied)
                advance(ref)
        return stored

    def _look(self, folder: str, wanted: Sequence[AnyRef]) -> list[str]:
        """Return the keys of the objects that the target has."""
        store = self._target.store
        if len(wanted) > _MOST_HEADS:
            sizes = {info.key: info.size for info in store.list(f"{folder}/")}
        else:
            sizes = {}
            for ref in wanted:
                with suppress(ObjectNotFound):
                    sizes[ref.key] = store.head(ref.key).size
        present = (ref for ref in wanted if sizes.get(ref.key) == ref.size and not self._target.is_damaged(ref))
        return [ref.key for ref in present if self._vouched.get(ref.key) == ref.sha256 or self._same_end(ref)]

    def _same_end(self, ref: AnyRef) -> bool:
        """Whether both objects end alike, where a Parquet file has the name of its writer, and places and sizes of its
        pages.
        """
        place = ref.key, max(0, ref.size - _END_BYTES), _END_BYTES
        try:
            return self._source.store.get_range(*place) == self._target.store.get_range(*place)
        except ObjectNotFound:
            return False

    def _bring(self, ref: AnyRef) -> StoredObject:
        data, store = self._source.fetch_sealed(ref), self._target.store
        with suppress(ObjectExists):
            store.put(ref.key, data)
            return StoredObject(ref.key, ref.size, ref.sha256, added=True)
        if has_bytes(store, ref.key, memoryview(data)):
            return StoredObject(ref.key, ref.size, ref.sha256, added=False)
        if self._replica:
            raise DigestMismatch(
                f"the object {ref.key} of {store.location} is damaged",
                hint="Nothing is overwritten. Repair it there with 'jsbackup repair', or remove it, and copy again.",
            )
        return put_named(store, ref.key, data)


class Resealing:
    """Seals objects again."""

    def __init__(self, transfer: ObjectTransfer) -> None:
        self._transfer = transfer
        self._source, self._target = transfer.source, transfer.target
        pages = PageRef | StreamPageRef
        refs = [ref for ref in _readable(transfer.before) if not isinstance(ref, pages)]
        refs = [ref for ref in refs if not self._target.is_damaged(ref)]
        self._known = {layout.content_key(ref.key): StoredObject(ref.key, ref.size, ref.sha256, False) for ref in refs}

    def carry(self, manifest: Manifest) -> Manifest:
        places = [(self._folder(s), ref) for s in manifest.streams for ref in s.refs if not isinstance(ref, PageRef)]
        refs = [ref for _, ref in places]
        brought: dict[str, StoredObject] = {}
        known: dict[str, StoredObject] = {}
        with _watched(self._transfer.progress, manifest.id, refs) as advance:
            tasks = [partial(self._bring, folder, ref) for folder, ref in places]
            for ref, (key, stored) in zip(refs, in_order(tasks, self._transfer.jobs), strict=True):
                if key not in self._known:
                    self._transfer.tally.count(stored)
                brought[ref.key] = known[key] = stored
                advance(ref)
        self._known = known
        streams = (replace_objects(stream, lambda ref: brought[ref.key]) for stream in manifest.streams)
        return replace(manifest, streams=tuple(streams))

    def _folder(self, stream: StreamBackup) -> str:
        return self._target.sealing.folder(stream.name, stream.incarnation)

    def _bring(self, folder: str, ref: AnyRef) -> tuple[str, StoredObject]:
        """Return the key of the content at the target, and the object itself."""
        sealing = self._target.sealing
        if isinstance(ref, SegmentRef):
            name = sealing.name(ref.digest)
            key = layout.segment_key(folder, ref.first_seq, ref.last_seq, name, suffix=sealing.suffix)
            if self._has(key):
                return key, self._known[key]
        content = self._source.fetch(ref)
        if not isinstance(ref, SegmentRef):
            make_key = layout.opaque_key if isinstance(ref, OpaqueRef) else layout.pending_key
            key = make_key(folder, sealing.name(sha256_of(content)), sealing.suffix)
            if self._has(key):
                return key, self._known[key]
        return key, self._target.put_once(key, content)

    def _has(self, key: str) -> bool:
        known = self._known.get(key)
        try:
            return known is not None and self._target.store.head(known.key).size == known.size
        except ObjectNotFound:
            return False


def _moved(stored: Mapping[str, StoredObject]) -> bool:
    """Return whether an object has another key at the target: then nothing that names it can be copied verbatim."""
    return any(target.key != key for key, target in stored.items())


def _content_of(manifest: Manifest) -> Iterator[SegmentRef | ObjectRef | OpaqueRef]:
    """Yield the objects of a backup except pages."""
    return (ref for ref in manifest.refs if not isinstance(ref, PageRef | StreamPageRef))


def _readable(before: Manifest | None) -> Iterator[AnyRef]:
    """Yield the objects of a backup of the target, as far as its pages can be read."""
    if before is not None:
        yield from before.stream_pages
        yield from (ref for stream in before.streams for ref in stream.walk() if not isinstance(ref, BrokenPage))


def replace_objects(stream: StreamBackup, stored: Callable[[AnyRef], StoredObject]) -> StreamBackup:
    """Return the stream with references to other objects, in no page yet."""

    def moved(ref: _Ref) -> _Ref:
        new = stored(ref)
        return replace(ref, key=new.key, size=new.size, sha256=new.sha256)

    def with_moved(consumer: ConsumerBackup) -> ConsumerBackup:
        return consumer if consumer.pending is None else replace(consumer, pending=moved(consumer.pending))

    return replace(
        stream,
        segments=tuple(map(moved, stream.segments)),
        opaque=tuple(map(moved, stream.opaque)),
        consumers=tuple(map(with_moved, stream.consumers)),
    )


@contextmanager
def _watched(progress: Progress, backup: str, refs: Sequence[AnyRef]) -> Iterator[Callable[[AnyRef], None]]:
    """Report the progress of one backup; yields the function to call after each object."""
    progress.start(backup, sum(ref.size for ref in refs), sum(map(_messages, refs)))
    try:
        yield lambda ref: progress.advance(backup, ref.size, _messages(ref))
    finally:
        progress.finish(backup)


def _messages(ref: AnyRef) -> int:
    return ref.messages if isinstance(ref, SegmentRef) else 0


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UncopiedBackup:
    id: str
    error: JsBackupError


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result: ids of backups in order, and numbers of objects (including manifests)."""

    copied: tuple[str, ...]
    present: tuple[str, ...]
    failed: tuple[UncopiedBackup, ...]
    copied_objects: int
    copied_bytes: int
    skipped_objects: int


def is_replica(repository: Repository, other: Repository) -> bool:
    """Return whether both have the same identity, so that objects sealed and signed in one are valid in the other."""
    a, b = repository.descriptor, other.descriptor
    return (a.id, a.authority, a.recipient) == (b.id, b.authority, b.recipient)


def copy_backups(
    source: Repository, target: Repository, backups: Collection[str], lease: Lease, *, progress: Progress, jobs: int
) -> CopyReport:
    """Copy `backups` (ids), `jobs` objects at a time. `lease` is a shared one of the target, renewed by the caller.

    Raises:
        KeyUnavailable: a needed key was not given.
        RepositoryLocked: the lease was lost; what was copied is complete.
        StoreError: one of the stores does not answer; what was copied is complete.
    """
    run = _Run(source, target, lease, progress, jobs=jobs)
    wanted = frozenset(backups)
    ours, theirs = source.inventory(wanted), target.inventory(wanted)
    known = {entry.id: entry for entry in theirs.entries}
    failed = {backup.id: backup.error for backup in ours.unreadable}
    failed |= {backup.id: _unreadable(target, backup.id, backup.error) for backup in theirs.unreadable}
    copied: list[str] = []
    present: list[str] = []
    for entry in ours.entries:
        if entry.id in failed:
            continue
        try:
            if entry.id in known:
                run.compare(entry, known[entry.id])
                present.append(entry.id)
            else:
                (copied if run.copy(entry.id) else present).append(entry.id)
        except (IntegrityError, UnsupportedError, TargetConflict) as error:
            failed[entry.id] = error
    if copied:
        run.tend()
    run.close_gaps([entry for entry in ours.entries if entry.id not in failed])
    return CopyReport(
        copied=tuple(copied),
        present=tuple(present),
        failed=tuple(UncopiedBackup(backup, failed[backup]) for backup in sorted(failed)),
        copied_objects=run.tally.copied_objects,
        copied_bytes=run.tally.copied_bytes,
        skipped_objects=run.tally.skipped_objects,
    )


class _Run:
    def __init__(self, source: Repository, target: Repository, lease: Lease, progress: Progress, *, jobs: int) -> None:
        self._source = source
        self._target = target
        self._lease = lease
        self._progress = progress
        self._jobs = jobs
        self._carrier: Carrier | None = None
        self._witnessed: frozenset[str] | None = None  # backups of the source, when the first one is copied
        self._lost: dict[str, str] | None = None  # the SHA-256 of manifests that the target has lost, likewise
        self._at_target = target.backups()
        self._stored: dict[str, str | None] = {}  # the SHA-256 of manifests at the target; None for a damaged one
        replica, ours, theirs = is_replica(source, target), source.descriptor, target.descriptor
        self._same_documents = replica or (ours.authority is None and theirs.authority is None)
        self._verbatim = self._same_documents
        self._same_objects = replica or (ours.recipient is None and theirs.recipient is None)
        self.tally = TransferTally()

    def copy(self, backup: str) -> bool:
        """Copy a backup that was missing at the target. Returns False if someone else has copied it meanwhile."""
        document, manifest = _read(self._source, backup)
        self._check_witness(document, manifest)
        stored = self._stored_manifest(backup, document) if self._verbatim else None
        self._carrier = self._carrier or self._choose_carrier(backup)
        carried = self._carrier.carry(manifest)
        self._lease.check()
        stored = stored if carried is manifest and self._has_previous(manifest) else None
        self._refuse_another(backup, "" if stored is None else document.sha256)
        try:
            self._put_manifest(document, carried, stored)
        except ObjectExists:
            stored_document, theirs = _read(self._target, backup)
            self.compare(entry_of(manifest, document), entry_of(theirs, stored_document))
            return False
        confirm(self._target, backup, self._lease)
        self.tally.copied_objects += 1
        return True

    def _check_witness(self, document: Document, manifest: Manifest) -> None:
        """Raise `IntegrityError` if the source has noted another manifest: at the target it would be proved by a new
        witness.
        """
        if self._witnessed is None:
            self._witnessed = list_catalogs(self._source.documents).witnessed
        if manifest.id in self._witnessed and contradicted(self._source.documents, {manifest.id: document.sha256}):
            raise IntegrityError(
                f"the manifest of {manifest.id} was replaced, or {layout.witness_key(manifest.id)} is damaged",
                hint=f"`jsbackup verify` says more. {how_to_repair(manifest.id)}",
            )

    def _refuse_another(self, backup: str, sha256: str) -> None:
        """Raise `TargetConflict` if the target has lost a manifest of this backup, and it is not known to be the one
        that is to be put: the source's with this SHA-256, a new one if that is "".
        """
        if self._lost is None:
            self._lost = {gap.backup: gap.sha256 for gap in find_missing(self._target.documents)}
        if backup in self._lost and (not sha256 or self._lost[backup] not in ("", sha256)):
            raise TargetConflict(
                f"{self._target.store.location} has lost the manifest of backup {backup}, which was another one",
                hint=how_to_repair(backup),
            )

    def compare(self, ours: CatalogEntry, theirs: CatalogEntry) -> None:
        """Raise `TargetConflict` unless both are the same backup."""
        if ours.sha256 == theirs.sha256:
            return
        if ours.summary == theirs.summary:
            # Re-signed documents always differ: for them, equal summaries are enough.
            if not self._same_documents:
                return
            if _content(_read(self._source, ours.id)[1]) == _content(_read(self._target, ours.id)[1]):
                return
        raise TargetConflict(
            f"{self._target.store.location} has another backup of the id {ours.id}",
            hint="Compare both with `jsbackup show`; nothing is overwritten.",
        )

    def tend(self) -> None:
        """Update the target's catalog, if that is due."""
        with _not_needed():
            tend_catalog(self._target.documents)

    def close_gaps(self, entries: Sequence[CatalogEntry]) -> None:
        """Record which backups were copied verbatim without their predecessor, and write a catalog in place of one that
        is damaged, or that a writer has signed who was replaced since.

        Their manifests name it, and `manifest_chain.py` would report it as missing.
        """
        if not self._same_documents:
            return
        documents = self._target.documents
        loose = {entry.id for entry in entries if entry.previous is not None and entry.previous not in self._at_target}
        with _not_needed():
            catalog, _ = newest_catalog(documents) if loose else (None, ())
            whole = {entry.id for entry in entries}.issuperset(self._source.backups())  # all that it named is there
            named = {entry.id for entry in (catalog.entries if catalog else ())}
            if loose - named or (whole and damaged_catalogs(documents)):
                write_catalog(documents, loose=loose)

    def _choose_carrier(self, backup: str) -> Carrier:
        transfer = ObjectTransfer(
            self._source.objects,
            self._target.objects,
            self.tally,
            self._progress,
            jobs=self._jobs,
            before=self._one_before(backup),
        )
        if self._same_objects:
            replica = self._same_documents and self._target.descriptor.authority is not None
            return Verbatim(transfer, replica=replica, pages=self._verbatim)
        return Resealing(transfer)

    def _one_before(self, backup: str) -> Manifest | None:
        earlier = self._at_target[: bisect_left(self._at_target, backup)]
        try:
            return self._target.manifest(earlier[-1]) if earlier else None
        except (IntegrityError, UnsupportedError):
            return None

    def _stored_manifest(self, backup: str, document: Document) -> bytes:
        """Return a manifest as it is stored. Raises TargetConflict if the target would not take it: in a replica the
        writer that has signed it may have been replaced.
        """
        data = self._source.objects.fetch_stored(document.key, document.size, document.sha256)
        try:
            self._target.documents.unwrapped(layout.manifest_key(backup), data)
        except IntegrityError as error:
            raise TargetConflict(
                f"in {self._target.store.location} it could not be read: {error.message}",
                hint="If the writer key was replaced there, run 'jsbackup key replace-writer' on the source, too.",
            ) from error
        except KeyUnavailable:  # what is copied as it is needs no key
            pass
        return data

    def _put_manifest(self, document: Document, manifest: Manifest, stored: bytes | None) -> None:
        """Store it, as it is `stored` in the source if that is given."""
        key = layout.manifest_key(manifest.id)
        if stored is not None:
            self._target.store.put(document.key, stored)
            sha256 = document.sha256
            self.tally.copied_bytes += document.size
        else:
            manifest = self._chained(self._target.paged(manifest))
            put = self._target.documents.put(key, encode_manifest(manifest))
            sha256 = put.sha256
            self.tally.copied_bytes += put.size
        self._stored[manifest.id] = sha256
        note_backup(self._target.documents, manifest.id, manifest.previous, self._target.witness_of(sha256))
        insort(self._at_target, manifest.id)

    def _chained(self, manifest: Manifest) -> Manifest:
        """Return the manifest with the backup before it at the target."""
        before = self._at_target[: bisect_left(self._at_target, manifest.id)]
        if self._target.descriptor.authority is None:
            last = before[-1] if before else None
            return replace(manifest, previous=last, previous_sha256=last and self._sha256_of(last))
        for previous in reversed(before):
            if (sha256 := self._sha256_of(previous)) is not None:
                return replace(manifest, previous=previous, previous_sha256=sha256)
        return replace(manifest, previous=None, previous_sha256=None)

    def _has_previous(self, manifest: Manifest) -> bool:
        """Return whether a plain manifest, as it is, fits the one before it at the target: that may have been written
        again. One that is not there does not matter (`close_gaps`).
        """
        if self._target.descriptor.authority is not None or manifest.previous_sha256 is None:
            return True
        previous = manifest.previous
        return previous not in self._at_target or self._sha256_of(previous) in (None, manifest.previous_sha256)

    def _sha256_of(self, backup: str) -> str | None:
        """Return the SHA-256 of a manifest at the target; None for a damaged one."""
        if backup not in self._stored:
            entries = self._target.inventory({backup}).entries
            self._stored[backup] = entries[0].sha256 if entries else None
        return self._stored[backup]


@contextmanager
def _not_needed() -> Iterator[None]:
    """Log errors of writing a catalog: the backups are valid without it."""
    try:
        yield
    except JsBackupError as error:
        _log.warning("the catalog of backups was not updated: %s", error.message)


def _read(repository: Repository, backup: str) -> tuple[Document, Manifest]:
    key = layout.manifest_key(backup)
    try:
        document = repository.documents.fetch(key, MAX_DOCUMENT_BYTES)
    except ObjectNotFound:
        raise IntegrityError(f"backup {backup} was removed from {repository.store.location} meanwhile") from None
    return document, decode_manifest(document.data, key, repository.stream_pages)


def _content(manifest: Manifest) -> Manifest:
    """Return a manifest for comparison: equal ones mean the same messages, configurations and states."""
    streams = tuple(_without_places(stream) for stream in manifest.streams)
    return replace(manifest, previous=None, previous_sha256=None, streams=streams, stream_pages=())


def _without_places(stream: StreamBackup) -> StreamBackup:
    return replace_objects(stream, lambda ref: StoredObject("", 0, "", added=False))


def _unreadable(target: Repository, backup: str, error: JsBackupError) -> IntegrityError:
    return IntegrityError(
        f"{target.store.location} has a backup {backup} that cannot be read: {error.message}", hint=error.hint
    )
