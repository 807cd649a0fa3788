"""Repair: put back the right bytes of missing or damaged objects, so that the backups are complete again.

A manifest names the SHA-256 of each object, so only exactly the same bytes will do: from the same object in another
repository, or from encoding the same messages again. They are checked before anything is changed. Then the damaged
object is deleted (no other command deletes an object that a backup names), and the right bytes are put under its key.
If the command is killed in between, the object is missing, and running it again puts it there.

If the store keeps the damaged object locked, the right bytes are put beside it (`layout.replacement_keys`): later
backups use them, but this backup stays damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from jsbackup.errors import IntegrityError, ObjectExists, ObjectLocked, ObjectNotFound, UnsupportedError, UsageError
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.checks.damaged import read_damaged
from jsbackup.repository.checks.verify import Level, ProblemKind, Verifier
from jsbackup.repository.manifest import AnyRef, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects, sha256_of
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.refs import id_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store

__all__ = ["Broken", "Found", "RepairOutcome", "fetch_from", "find_broken", "put_in_place"]


@dataclass(frozen=True, slots=True)
class Broken:
    """A missing or damaged object. `stream` is from the newest of the `backups` (ids) that name it."""

    ref: AnyRef
    stream: StreamBackup
    problem: str
    backups: tuple[str, ...]

    @property
    def messages(self) -> int:
        return self.ref.messages if isinstance(self.ref, SegmentRef) else 0


@dataclass(frozen=True, slots=True)
class Found:
    """What is wrong with backups: objects, and problems that no object can repair (key and problem). `sound` are the
    ids (`refs.py`) of objects that are recorded as damaged and are not, each with a backup that names it.
    """

    objects: tuple[Broken, ...]
    beyond: tuple[tuple[str, str], ...]
    sound: Mapping[bytes, str] = field(default_factory=dict)


class RepairOutcome(StrEnum):
    MENDED = "mended"
    BESIDE = "beside"  # the store keeps the damaged object locked


def find_broken(
    repository: Repository,
    backups: Iterable[str],
    progress: Progress,
    *,
    check: bool,
    sound: frozenset[bytes] | None = None,
) -> Found:
    """Find objects that are missing, have a wrong size, or were found damaged by the last `verify` and still are.

    With `check` all objects are read; otherwise, if the ids of those are given that were found `sound`, all but these:
    of what a manifest or a page lists that was lost, no `verify` knew.

    Raises:
        KeyUnavailable: manifests are encrypted, and no key that opens them was given.
        StoreError: the store cannot be listed.
    """
    verifier = Verifier(repository.objects, Level.OBJECTS, progress=progress)
    recorded = read_damaged(repository.documents)
    if not check:
        verifier.limit_to(recorded)
    sound_again: dict[bytes, str] = {}
    found: dict[tuple[str, str], Broken] = {}
    beyond: dict[tuple[str, str], None] = {}
    for backup in backups:
        key = repository.documents.stored_key(layout.manifest_key(backup))
        try:
            manifest = repository.manifest(backup, in_part=True)
        except UsageError:  # forgotten meanwhile
            continue
        except (IntegrityError, UnsupportedError) as error:
            beyond[key, error.message] = None
            continue
        refs = {
            ref.key: (stream, ref)
            for stream in manifest.streams
            for ref in stream.walk()
            if not isinstance(ref, BrokenPage)
        }
        for lost in manifest.unlisted:  # repaired with the manifest
            beyond[key, lost.reason] = None
        if sound is not None and not check:
            ids = {id_of(ref) for _, ref in refs.values()}
            verifier.limit_to(recorded.keys() | (ids - sound))
        pages = {page.key for page in manifest.stream_pages}
        for problem in verifier.check(manifest):
            if problem.key in pages:
                continue
            if problem.kind is ProblemKind.INCONSISTENT or problem.key not in refs:
                beyond[problem.key, problem.problem] = None
                continue
            stream, ref = refs[problem.key]
            before = found.get((ref.key, ref.sha256))
            named_by = (*(before.backups if before else ()), backup)
            found[ref.key, ref.sha256] = Broken(ref, stream, problem.problem, named_by)
        for name in recorded.keys() & verifier.sound:
            sound_again.setdefault(name, backup)
    return Found(tuple(found.values()), tuple(beyond), sound_again)


def fetch_from(store: Store, ref: AnyRef) -> bytes | None:
    """Return the bytes of the object from another repository; None if it does not have them. Raises StoreError."""
    first = layout.replaced_key(ref.key)
    for key in dict.fromkeys((ref.key, first, *layout.replacement_keys(first, ref.sha256))):
        try:
            return Objects(store).fetch_stored(key, ref.size, ref.sha256)
        except IntegrityError:  # missing, or different
            continue
    return None


def put_in_place(store: Store, ref: AnyRef, data: bytes) -> RepairOutcome:
    """Put the right bytes of an object under its key, or beside it, if the store keeps the existing one locked.

    Raises:
        IntegrityError: these are not the right bytes (nothing was deleted), or the store does not return them.
        StoreError: the store does not answer, or does not allow it.
    """
    if len(data) != ref.size or sha256_of(data) != ref.sha256:
        raise IntegrityError(f"these are not the bytes of object {ref.key}")
    try:
        store.delete(ref.key)
    except ObjectLocked:
        _put_beside(store, layout.replacement_keys(layout.replaced_key(ref.key), ref.sha256), data)
        return RepairOutcome.BESIDE
    with suppress(ObjectExists):  # someone else repairs it, too
        store.put(ref.key, data)
    Objects(store).fetch_stored(ref.key, ref.size, ref.sha256)
    return RepairOutcome.MENDED


def _put_beside(store: Store, keys: Sequence[str], data: bytes) -> None:
    for key in keys:
        try:
            store.put(key, data)
            return
        except ObjectExists:
            try:
                if store.get_range(key, 0, len(data) + 1) == data:
                    return
            except ObjectNotFound:
                continue
