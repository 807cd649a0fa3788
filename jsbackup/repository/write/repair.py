"""Repair: put back the right bytes of missing or damaged objects, so that the backups are complete again.

A manifest names the SHA-256 of each object, so only exactly the same bytes will do: from the same object in another
repository, or from encoding the same messages again. They are checked before anything is changed. Then the damaged
object is deleted (no other command deletes an object that a backup names), and the right bytes are put under its key.
If the command is killed in between, the object is missing, and running it again puts it there.

If the store keeps the damaged object locked, and there is no right version of it either, the right bytes are put beside
it (`layout.stored_keys`): later backups use them, but this backup stays damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jsbackup.errors import (
    IntegrityError,
    KeyUnavailable,
    ObjectExists,
    ObjectLocked,
    UnsupportedError,
    UsageError,
)
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.checks.damaged import read_damaged
from jsbackup.repository.checks.verify import Level, ProblemKind, Verifier, check_object
from jsbackup.repository.manifest import AnyRef, Manifest, SegmentRef, StreamBackup, UnlistedStreams
from jsbackup.repository.objects import Objects, put_named, sha256_of
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.refs import PageRef, StreamPageRef, id_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store

__all__ = [
    "Broken",
    "Found",
    "ObjectName",
    "RepairOutcome",
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
    are the ids (`refs.py`) of objects that are recorded as damaged and are not, each with a backup that names it.
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
        if [*repository.stream_pages.read(manifest.stream_pages, broken)] or not broken:
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
