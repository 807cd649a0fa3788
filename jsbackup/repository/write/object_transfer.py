"""Copy the objects of a backup into another repository: verbatim, or sealed again.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from jsbackup.errors import DigestMismatch, ObjectExists, ObjectNotFound
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
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
from jsbackup.repository.objects import Objects, StoredObject, has_bytes, put_named, sha256_of
from jsbackup.repository.pages.segment_list import BrokenPage

__all__ = ["Carrier", "ObjectTransfer", "Resealing", "TransferTally", "Verbatim", "replace_objects"]

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
        there = {key for found in in_order(looks, self._transfer.jobs) for key in found}
        stored |= {key: StoredObject(key, refs[key].size, refs[key].sha256, added=False) for key in there}
        self._transfer.tally.skipped_objects += len(there)
        missing = [ref for key, ref in refs.items() if key not in stored]
        with _watched(self._transfer.progress, backup, missing) as advance:
            brought = in_order([partial(self._bring, ref) for ref in missing], self._transfer.jobs)
            for ref, one in zip(missing, brought, strict=True):
                stored[ref.key] = one
                self._transfer.tally.count(one)
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
        there = (ref for ref in wanted if sizes.get(ref.key) == ref.size and not self._target.is_damaged(ref))
        return [ref.key for ref in there if self._vouched.get(ref.key) == ref.sha256 or self._same_end(ref)]

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
    return any(one.key != key for key, one in stored.items())


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
