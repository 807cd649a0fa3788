"""Check backups against their manifests. Three levels, each including those before it:

    manifest   the manifest agrees with itself and with its pages; every object it names is there, with its size (one
               listing per stream)
    objects    the SHA-256 of every object
    data       every message decoded: count, sequences, digests; every pending set and opaque piece opened

Fails closed: an object that cannot be checked is a problem. An exception is raised only if the store cannot be listed.
Problems are yielded one by one, each with the object and the sequences that are lost with it; the rest of the backup is
not affected.

Backups share objects: a `Verifier` checks each of them once, for all backups that name it.

Header blocks are compared by digest only and not parsed: servers accept any bytes, and a backup keeps them.

Check one object of a backup, and say what is wrong with it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple, Protocol

from jsbackup.errors import IntegrityError, JsBackupError, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import AnyRef, Objects, OpaqueRef, PageRef, SegmentRef, folder_of, id_of
from jsbackup.repository.pages.segment_list import BrokenPage, SegmentList, total_of
from jsbackup.stores.base import ObjectInfo, Store

__all__ = [
    "Checker",
    "FolderListing",
    "FolderListings",
    "Level",
    "ListedObject",
    "ObjectFlaw",
    "Problem",
    "ProblemKind",
    "Stocked",
    "Verifier",
    "check_manifest",
    "check_object",
    "find_absent",
    "flaw_of",
    "problem_with",
    "verify_backup",
    "weight_of",
]


# --- folder listing ---
#
# The objects of folders as the store lists them, held in little memory: folders may have a million.

# So many folders are listed one by one, and then all others at once.
_MOST_LISTED = 32


class ListedObject(NamedTuple):
    """Size in bytes, and the Unix time of the put by the store's clock."""

    size: int
    modified_seconds: float


class FolderListing:
    """Sizes and times by key, 24 bytes for each object. Hashes of keys are held: a key that is not there would only be
    found if its hash of 64 bits were that of another.
    """

    def __init__(self, infos: Iterable[ObjectInfo]) -> None:
        hashes, sizes, times = array("q"), array("q"), array("d")
        for info in infos:
            hashes.append(hash(info.key))
            sizes.append(info.size)
            times.append(info.modified_seconds)
        order = sorted(range(len(hashes)), key=hashes.__getitem__)
        self._hashes = array("q", map(hashes.__getitem__, order))
        self._sizes = array("q", map(sizes.__getitem__, order))
        self._times = array("d", map(times.__getitem__, order))

    def find(self, key: str) -> ListedObject | None:
        """Return the object with this key, None if it is not listed."""
        wanted = hash(key)
        at = bisect_left(self._hashes, wanted)
        if at == len(self._hashes) or self._hashes[at] != wanted:
            return None
        return ListedObject(self._sizes[at], self._times[at])


class FolderListings:
    """Listings of the folders of streams and of pages of streams, each from when it was first needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._folders: dict[str, FolderListing] = {}
        self._others: FolderListing | None = None  # all folders that are not among these

    def find(self, ref: AnyRef) -> ListedObject | None:
        """Return the object that a reference names. Raises StoreError."""
        return self._listed(folder_of(ref)).find(ref.key)

    def has(self, ref: AnyRef) -> bool:
        """Return whether that is there, with its size. Raises StoreError."""
        listed = self.find(ref)
        return listed is not None and listed.size == ref.size

    def _listed(self, folder: str) -> FolderListing:
        if folder in self._folders:
            return self._folders[folder]
        if len(self._folders) < _MOST_LISTED or layout.STREAMS.startswith(folder):
            self._folders[folder] = FolderListing(self._store.list(f"{folder}/"))
            return self._folders[folder]
        if self._others is None:
            self._others = self._list_others()
        return self._others

    def _list_others(self) -> FolderListing:
        """List all folders that were not listed before: a request lists a thousand objects, and most have few."""
        infos = self._store.list(layout.SEGMENTS)
        return FolderListing(info for info in infos if info.key.rpartition("/")[0] not in self._folders)


class Level(StrEnum):
    MANIFEST = "manifest"
    OBJECTS = "objects"
    DATA = "data"


class ProblemKind(StrEnum):
    MISSING = "missing"
    UNREADABLE = "unreadable"  # a fault of the store, perhaps a temporary one
    DAMAGED = "damaged"
    INCONSISTENT = "inconsistent"  # the manifest contradicts itself


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. Messages from `first_seq` to `last_seq` (0 if none) are lost, `messages` in number.

    `key` is that of the object, or of the manifest if it contradicts itself. `cause` is the exception, if there was
    one.
    """

    kind: ProblemKind
    stream: str
    key: str
    problem: str
    first_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    cause: JsBackupError | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ObjectFlaw:
    """What is wrong with an object, in all backups that name it. `level` is the least deep one that finds it."""

    kind: ProblemKind
    text: str
    cause: JsBackupError | None = None
    level: Level = Level.OBJECTS


def check_object(objects: Objects, ref: AnyRef, level: Level) -> ObjectFlaw | None:
    """Return what is wrong with an object, or None. Raises only `KeyUnavailable`."""
    # `list` asks for known damage only, and needs no Parquet for that.
    from jsbackup.repository.read.segments import SegmentReader
    from jsbackup.repository.write.stream_objects import decode_pending, read_piece

    try:
        if level is not Level.DATA or isinstance(ref, PageRef):
            objects.fetch_sealed(ref)
        elif isinstance(ref, SegmentRef):
            for _ in SegmentReader(objects).prove(ref):
                pass
        elif isinstance(ref, OpaqueRef):
            read_piece(objects, ref)
        else:
            decode_pending(objects.fetch(ref))
    except (IntegrityError, StoreError, UnsupportedError) as error:
        deep = level is Level.DATA and not isinstance(error, StoreError)
        as_stored = deep and check_object(objects, ref, Level.OBJECTS) is None
        return replace(flaw_of(error), level=Level.DATA if as_stored else Level.OBJECTS)
    return None


def flaw_of(error: IntegrityError | StoreError | UnsupportedError) -> ObjectFlaw:
    """Return the flaw of an object that cannot be read because of `error`."""
    if isinstance(error, IntegrityError):
        missing = isinstance(error.__cause__, ObjectNotFound)
        return ObjectFlaw(ProblemKind.MISSING if missing else ProblemKind.DAMAGED, error.message)
    _forget_frames(error)
    return ObjectFlaw(ProblemKind.UNREADABLE, error.message, error)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks: an error that is kept would keep the data that was read when it was raised."""
    while error is not None:
        error.with_traceback(None)
        error = error.__cause__ or error.__context__


def weight_of(ref: AnyRef) -> tuple[int, int]:
    """Return the bytes and messages that an object counts for in progress."""
    return (ref.bytes, ref.messages) if isinstance(ref, SegmentRef) else (ref.size, 0)


def problem_with(stream: str, ref: AnyRef, flaw: ObjectFlaw) -> Problem:
    """Return the problem that a stream has because an object of it has a flaw."""
    if isinstance(ref, SegmentRef | PageRef):
        lost = (ref.first_seq, ref.last_seq, ref.messages)
        return Problem(flaw.kind, stream, ref.key, flaw.text, *lost, cause=flaw.cause)
    return Problem(flaw.kind, stream, ref.key, flaw.text, cause=flaw.cause)


_THREADS = 2
# References of a long stream that are held: of 1 KB each, and three times that where a checker gets them.
_MOST_REFS = 4096
_MOST_REFS_ELSEWHERE = 16384


class Stocked(NamedTuple):
    """An object that a backup names. `modified_seconds` is Unix time by the store's clock, None if the object is
    missing or has another size.
    """

    size: int
    modified_seconds: float | None


class Checker(Protocol):
    """Checks objects elsewhere, many at a time; yields the flaw of each, or None, in their order."""

    def __call__(self, refs: Sequence[AnyRef], level: Level) -> Iterable[ObjectFlaw | None]: ...


class Verifier:
    """A run over any number of backups. A `checker` gets some thousands at a time of the objects of a backup that have
    to be read.

    `stock` are the objects that the backups name, by an id of `ID_BYTES` bytes that covers key, size, SHA-256 and the
    content that the manifest states; `sound` are those that were checked and are intact, `damaged` those that are not,
    with their folders. All three grow during the run. Takes about 250 bytes for each object, and memory for one object
    in each thread (up to about 100 MB).
    """

    def __init__(
        self,
        objects: Objects,
        level: Level,
        *,
        progress: Progress | None = None,
        threads: int = _THREADS,
        checker: Checker | None = None,
    ) -> None:
        self._objects = objects
        self._checker = checker
        self._level = level
        self._progress = progress or NullProgress()
        self._threads = threads
        self._only: Collection[bytes] | None = None
        self._listings = FolderListings(objects.store)  # its backups' objects were stored before
        self._flaws: dict[bytes, ObjectFlaw] = {}
        self._damaged: dict[bytes, str] = {}
        self.stock: dict[bytes, Stocked] = {}
        self.sound: set[bytes] = set()

    @property
    def level(self) -> Level:
        return self._level

    @property
    def damaged(self) -> Mapping[bytes, str]:
        return self._damaged

    def damaged_at(self, level: Level) -> Mapping[bytes, str]:
        """Return those of `damaged` that a run at this level finds, and none at a less deep one."""
        return {name: folder for name, folder in self._damaged.items() if self._flaws[name].level is level}

    def limit_to(self, chosen: Collection[bytes]) -> None:
        """Read only these objects. Missing objects and wrong sizes are still found in all of them."""
        self._only = chosen

    def take_stock(self, manifest: Manifest) -> frozenset[bytes]:
        """Look up the objects that a backup names, without reading them. Returns those that no earlier backup has
        named.

        Raises `StoreError` if the store cannot be listed.
        """
        pages: Iterable[Mapping[bytes, AnyRef]] = [{id_of(page): page for page in manifest.stream_pages}]
        parts = chain(pages, chain.from_iterable(map(self._parts_of, manifest.streams)))
        return frozenset(name for refs in parts for name in self._look_up(refs))

    def check(self, manifest: Manifest) -> Iterator[Problem]:
        """Check one backup and yield its problems, in the order of the manifest.

        Raises:
            KeyUnavailable: it is encrypted, and no key that opens it was given (level data).
            StoreError: the store cannot be listed.
        """
        yield from check_manifest(manifest)
        yield from self._look_at_stream_pages(manifest)
        if self._checker is not None:
            self._check_elsewhere(manifest, self._checker)
        # Then nothing is left to be read here.
        reads = self._level is not Level.MANIFEST and self._checker is None
        for stream in manifest.streams:
            yield from self._check_stream(stream) if reads else self._list_stream(stream)

    def _look_at_stream_pages(self, manifest: Manifest) -> Iterator[Problem]:
        """Yield what is wrong with the pages that list the streams. Reading the manifest has read the others."""
        unlisted = {id_of(group.page): group for group in manifest.unlisted}
        refs = {id_of(page): page for page in manifest.stream_pages}
        self._look_up(refs)
        for name, ref in refs.items():
            lost = unlisted.get(name)
            if lost is not None:
                self._take(ref, flaw_of(lost.error))
                flaw = self._flaws[name]
                text = f"{flaw.text}: {lost.words} cannot be listed"
                yield problem_with(lost.first, ref, replace(flaw, text=text))
            elif name in self._flaws:
                yield problem_with(ref.first, ref, self._flaws[name])
            elif self._only is None or name in self._only:  # in its turn, as if it had not been read anyway
                self.sound.add(name)

    def _check_elsewhere(self, manifest: Manifest, checker: Checker) -> None:
        due: dict[bytes, AnyRef] = {}

        def check() -> None:
            for ref, flaw in zip(due.values(), checker(list(due.values()), self._level), strict=True):
                self._take(ref, flaw)

        for stream in manifest.streams:
            for refs in self._parts_of(stream):
                self._look_up(refs)
                due |= self._due_of(refs)
                if len(due) >= _MOST_REFS_ELSEWHERE:
                    check()
                    due.clear()
        if due:
            check()

    def _list_stream(self, stream: StreamBackup) -> Iterator[Problem]:
        """Check whether the objects of a stream are there, and yield what is known to be wrong with them."""
        for refs in self._parts_of(stream):
            self._look_up(refs)
            for name, ref in refs.items():
                if name in self._flaws:
                    yield problem_with(stream.name, ref, self._flaws[name])

    def _check_stream(self, stream: StreamBackup) -> Iterator[Problem]:
        due = size = messages = 0
        short: dict[bytes, AnyRef] | None = None
        for number, refs in enumerate(self._parts_of(stream)):
            short = None if number else refs
            self._look_up(refs)
            weights = [weight_of(ref) for ref in self._due_of(refs).values()]
            due += len(weights)
            size += sum(size_weight for size_weight, _ in weights)
            messages += sum(message_weight for _, message_weight in weights)
        if due:
            self._progress.start(stream.name, size, messages)
        try:
            # A long one is walked through again instead of being held.
            for refs in self._parts_of(stream) if short is None else (short,):
                yield from self._check_objects(stream.name, refs)
        finally:
            if due:
                self._progress.finish(stream.name)

    def _check_objects(self, stream: str, refs: Mapping[bytes, AnyRef]) -> Iterator[Problem]:
        due = self._due_of(refs)
        checks = (partial(check_object, self._objects, ref, self._level) for ref in due.values())
        with closing(in_order(checks, self._threads)) as results:
            for name, ref in refs.items():
                if name in due:
                    flaw = next(results)
                    self._progress.advance(stream, *weight_of(ref))
                    self._take(ref, flaw)
                if name in self._flaws:
                    yield problem_with(stream, ref, self._flaws[name])

    def _due_of(self, refs: Mapping[bytes, AnyRef]) -> dict[bytes, AnyRef]:
        return {name: ref for name, ref in refs.items() if self._is_due(name)}

    def _parts_of(self, stream: StreamBackup) -> Iterator[dict[bytes, AnyRef]]:
        """Yield the objects of a stream by id, some thousands at a time, and note the pages that cannot be read. An
        object may come twice, in different ones.
        """
        refs: dict[bytes, AnyRef] = {}
        for ref in stream.walk():
            if isinstance(ref, BrokenPage):
                # Its page was the last one: it is not yielded before this is known.
                self._take(ref.page, flaw_of(ref.error))
                continue
            if len(refs) >= _MOST_REFS:
                yield refs
                refs = {}
            refs[id_of(ref)] = ref
        yield refs

    def _take(self, ref: AnyRef, flaw: ObjectFlaw | None) -> None:
        name = id_of(ref)
        if flaw is None:
            self.sound.add(name)
            return
        self._flaws[name] = flaw
        self._damaged[name] = folder_of(ref)
        if flaw.kind in (ProblemKind.DAMAGED, ProblemKind.MISSING):
            self._objects.note_damaged(ref)

    def _is_due(self, name: bytes) -> bool:
        if self._level is Level.MANIFEST or name in self.sound or name in self._flaws:
            return False
        return self._only is None or name in self._only

    def _look_up(self, refs: Mapping[bytes, AnyRef]) -> list[bytes]:
        """Add objects that are new to the stock, with a flaw if they are missing or have a wrong size."""
        new = [name for name in refs if name not in self.stock]
        for name in new:
            ref = refs[name]
            listed = self._listings.find(ref)
            flaw = _flaw_of_size(ref, None if listed is None else listed.size)
            self.stock[name] = Stocked(ref.size, listed.modified_seconds if listed is not None and not flaw else None)
            if flaw is not None:
                self._take(ref, flaw)
        return new


def _flaw_of_size(ref: AnyRef, size: int | None) -> ObjectFlaw | None:
    """Return what is wrong with an object of this size; None if it is not there."""
    if size is None:
        return ObjectFlaw(ProblemKind.MISSING, f"object {ref.key} is missing")
    text = f"object {ref.key} should have {ref.size} bytes and has {size}"
    return None if size == ref.size else ObjectFlaw(ProblemKind.DAMAGED, text)


def verify_backup(
    objects: Objects,
    manifest: Manifest,
    level: Level,
    *,
    progress: Progress | None = None,
    threads: int = _THREADS,
    checker: Checker | None = None,
) -> Iterator[Problem]:
    """Yield the problems of one backup. Arguments as in `Verifier`. Raises KeyUnavailable and StoreError."""
    yield from Verifier(objects, level, progress=progress, threads=threads, checker=checker).check(manifest)


def check_manifest(manifest: Manifest) -> list[Problem]:
    """Check that the numbers of a manifest agree with each other."""
    key = layout.manifest_key(manifest.id)
    return [
        Problem(ProblemKind.INCONSISTENT, stream.name, key, text)
        for stream in manifest.streams
        for text in _contradictions(stream)
    ]


def _contradictions(stream: StreamBackup) -> Iterator[str]:
    listed = [] if isinstance(stream.segments, SegmentList) else stream.segments  # pages are checked when they are read
    for before, after in pairwise(listed):
        if after.first_seq <= before.last_seq:
            yield f"segment {after.key} begins before the previous one ends"
    for ref in listed:
        if ref.messages > ref.last_seq - ref.first_seq + 1:
            yield f"segment {ref.key} has more messages than sequences"
    if not stream.opaque:
        total, captured = total_of(stream.segments), stream.captured
        said = (captured.messages, captured.bytes, captured.first_seq, captured.last_seq)
        if said != (total.messages, total.bytes, total.first_seq, total.last_seq):
            yield "the segments do not add up to what was captured"
        if total.digest != stream.digest:
            yield "the segments do not match the digest of the stream"


# --- presence ---
#
# Look whether objects are stored, without reading them: that each exists and has its size. What was found damaged
# before is read. The keys of some segments of a stream have a common prefix, so that hardly more is listed than these.

_LOOKING_THREADS = 8


def find_absent(objects: Objects, manifest: Manifest) -> Iterator[Problem]:
    """Yield what is wrong with a backup, as far as can be found without reading segments: it reads only pages, and
    what was found damaged before.

    Raises:
        KeyUnavailable: a page is encrypted, and no key that opens it was given.
        StoreError: the store does not answer.
    """
    yield from check_manifest(manifest)
    objects.look_for_damage()
    looks = (partial(_look_at, objects, stream) for stream in manifest.streams)
    for problems in in_order(looks, _LOOKING_THREADS):
        yield from problems


def _look_at(objects: Objects, stream: StreamBackup) -> list[Problem]:
    segments: list[AnyRef] = []
    others: list[AnyRef] = []
    problems = []
    for part in stream.walk():
        if isinstance(part, BrokenPage):
            objects.note_damaged(part.page)
            problems.append(problem_with(stream.name, part.page, flaw_of(part.error)))
        elif not isinstance(part, PageRef):  # the walk reads pages
            (segments if isinstance(part, SegmentRef) else others).append(part)
    for refs in filter(None, (segments, others)):
        keys = frozenset(ref.key for ref in refs)
        infos = objects.store.list(_common_prefix(min(keys), max(keys)))
        sizes = {info.key: info.size for info in infos if info.key in keys}
        for ref in refs:
            flaw = _flaw_of_size(ref, sizes.get(ref.key))
            if flaw is None and objects.is_damaged(ref):
                flaw = check_object(objects, ref, Level.DATA if objects.sealing.reads else Level.OBJECTS)
            if flaw is not None:
                objects.note_damaged(ref)
                problems.append(problem_with(stream.name, ref, flaw))
    return problems


def _common_prefix(text: str, other: str) -> str:
    length = next(
        (at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other))
    )
    return text[:length]
