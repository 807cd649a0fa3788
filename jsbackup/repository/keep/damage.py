"""Which backups are known to be damaged, so that people see it where they choose one, and retention lets none of them
take the place of a sound one.

Two kinds of records tell of damage. Records of objects (`ledger.py`) list those that were found damaged, and not
sound since. Missing objects, lost pages and manifests that contradict themselves are not among them: the outcomes of
`verify` (`ledger.py`) name the backups that have any. These backups are looked at again, because they may have been
repaired since: their manifests and pages are read, and the folders of their objects are listed.

What no command has looked at may be missing, too. `absent_objects` looks for the objects of backups in listings of
their folders, before they take the place of others.

Backups share objects. So what was found is then looked for in all backups, also in those made since the last `verify`.
Each page is read once for that. Without a record of damage `find_damaged` reads nothing but the newest outcomes.

For what deletes, doubt is an error: if a record of damage cannot be read, nobody knows what was damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from jsbackup.errors import IntegrityError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.ledger import MOST_NAMED, VerifyOutcome, damage_on_record, read_damaged, read_runs
from jsbackup.repository.checks.verify import FolderListings, Level, Problem, Verifier
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import AnyRef, PageRef, StreamPageRef, folder_of, id_of
from jsbackup.repository.pages.segment_list import Part, parts_of
from jsbackup.repository.repository import Repository

__all__ = ["LostObjects", "absent_objects", "find_damaged", "known_damage", "known_problems"]

_Read = TypeVar("_Read")

_THREADS = 8  # each holds one manifest
_FEW, _MANY = 4, 60  # outcomes of `verify` that are read: mostly one of the newest is of a run over all backups


def find_damaged(repository: Repository, backups: Collection[str]) -> frozenset[str]:
    """Return those of the backups (ids, with manifests) that are known to need what is missing or damaged.

    Raises:
        IntegrityError, UnsupportedError: a record of damaged objects cannot be read.
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the store does not answer.
    """
    recorded = damage_on_record(repository.documents)
    suspects = _suspects(repository, backups)
    if not recorded and not suspects:
        return frozenset()
    damaged = set[str]()
    verifier = Verifier(repository.objects, Level.MANIFEST)  # lists each folder once
    for backup, manifest in _manifests(repository, sorted(suspects), streams=True):
        if manifest is None or [*verifier.check(manifest)]:
            damaged.add(backup)
    lost = {**recorded, **verifier.damaged}
    if lost:
        needed = LostObjects(repository, lambda ref: id_of(ref) in lost, frozenset(lost.values()).__contains__)
        damaged |= needed.backups_with(set(backups) - damaged)
    return frozenset(damaged)


def known_damage(repository: Repository, backups: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Do `find_damaged` for commands that delete nothing: if it is not known, return a sentence that says so. Raises
    StoreError.
    """
    if not backups:
        return frozenset(), ()
    try:
        return find_damaged(repository, backups), ()
    except (IntegrityError, UnsupportedError, KeyUnavailable) as error:
        return frozenset(), (f"which damage was found before is not known: {error.message}",)


def known_problems(repository: Repository, manifest: Manifest) -> list[Problem]:
    """Return what is missing of a backup, and of what was found damaged what still is: that is read again.

    Raises StoreError.
    """
    level = Level.DATA if repository.objects.sealing.reads else Level.OBJECTS
    verifier = Verifier(repository.objects, level)
    verifier.limit_to(read_damaged(repository.documents))
    return list(verifier.check(manifest))


def absent_objects(repository: Repository) -> LostObjects:
    """Return a search for objects that are not there, with their sizes. Lists each folder once, and reads no object."""
    listings = FolderListings(repository.store)
    return LostObjects(repository, lambda ref: not listings.has(ref))


def _suspects(repository: Repository, backups: Collection[str]) -> set[str]:
    """Return the backups that were damaged when they were last verified."""
    for most in (_FEW, _MANY):
        outcomes = read_runs(VerifyOutcome, repository.documents, most)
        whole = next((at for at, outcome in enumerate(outcomes) if outcome.everything), None)
        if whole is not None or len(outcomes) < most:
            break
    # Every run looks whether all objects of its backups are there, at whatever level, and if it reads only a part.
    recent = outcomes if whole is None else outcomes[: whole + 1]
    named = {backup for outcome in recent for backup in outcome.damaged}
    return set(backups) if any(map(_is_cut, recent)) else named & set(backups)


def _is_cut(outcome: VerifyOutcome) -> bool:
    """Whether it names only the first of the backups that were damaged."""
    return len(outcome.damaged) >= MOST_NAMED


def _manifests(
    repository: Repository, backups: Collection[str], *, streams: bool
) -> Iterator[tuple[str, Manifest | None]]:
    """Yield the manifests of backups that were not forgotten meanwhile; None for one that cannot be read."""
    reads = in_order([partial(_manifest, repository, backup, streams) for backup in backups], _THREADS)
    for backup, manifest in zip(backups, reads, strict=True):
        if not isinstance(manifest, UsageError):
            yield backup, manifest


def _manifest(repository: Repository, backup: str, streams: bool) -> Manifest | UsageError | None:
    try:
        return _readable(partial(repository.manifest, backup, streams=streams, in_part=streams))
    except UsageError as error:
        return error


def _readable(read: Callable[[], _Read]) -> _Read | None:
    try:
        return read()
    except (IntegrityError, UnsupportedError):
        return None


class LostObjects:
    """Looks in backups for objects that are `lost`, in folders that `may_have` any. Each page is read once. One that
    cannot be read counts as a lost object, and what it lists does not.
    """

    def __init__(
        self,
        repository: Repository,
        lost: Callable[[AnyRef], bool],
        may_have: Callable[[str], bool] = lambda folder: True,
    ) -> None:
        self._repository = repository
        self._lost = lost
        self._may_have = may_have
        self._known: dict[str, int] = {}  # pages, by key

    def backups_with(self, backups: Collection[str]) -> frozenset[str]:
        """Return those of the backups (ids) that need any, or whose manifest cannot be read.

        Raises:
            KeyUnavailable: nothing can be read without a key that was not given.
            StoreError: the store does not answer.
        """
        manifests = _manifests(self._repository, sorted(backups), streams=False)
        return frozenset(backup for backup, manifest in manifests if manifest is None or self.count(manifest))

    def count(self, manifest: Manifest) -> int:
        """Return how many a backup needs; a page of streams counts only if the streams were not read with it."""
        if manifest.streams or not manifest.stream_pages:
            return self._in_streams(manifest.streams)
        new = [page for page in manifest.stream_pages if page.key not in self._known]
        reads = in_order([partial(_readable, partial(self._read_streams, page)) for page in new], _THREADS)
        for page, streams in zip(new, reads, strict=True):
            self._known[page.key] = 1 if streams is None or self._is(page) else self._in_streams(streams)
        return sum(self._known[page.key] for page in manifest.stream_pages)

    def _read_streams(self, page: StreamPageRef) -> Sequence[StreamBackup]:
        return self._repository.stream_pages.read(page)

    def _in_streams(self, streams: Sequence[StreamBackup]) -> int:
        self._look_in(part for stream in streams for part in parts_of(stream.segments))  # of all at once
        return sum(map(self._in_stream, streams))

    def _in_stream(self, stream: StreamBackup) -> int:
        pending = [consumer.pending for consumer in stream.consumers if consumer.pending is not None]
        few: list[AnyRef] = [*stream.opaque, *pending]
        return sum(map(self._is, few)) + self._in_parts(parts_of(stream.segments))

    def _in_parts(self, parts: Sequence[Part]) -> int:
        if not parts or not self._may_have(folder_of(parts[0])):  # they are all in the folder of the stream
            return 0
        self._look_in(parts)
        return sum(self._known[part.key] if isinstance(part, PageRef) else self._is(part) for part in parts)

    def _look_in(self, parts: Iterable[Part]) -> None:
        """Read those of the parts that are pages, and were not read before."""
        pages = [part for part in parts if isinstance(part, PageRef) and part.key not in self._known]
        new = [page for page in pages if self._may_have(folder_of(page))]
        reads = in_order([partial(_readable, partial(self._repository.pages.read, page)) for page in new], _THREADS)
        for page, listed in zip(new, reads, strict=True):
            self._known[page.key] = 1 if listed is None or self._is(page) else self._in_parts(listed)

    def _is(self, ref: AnyRef) -> bool:
        return self._may_have(folder_of(ref)) and self._lost(ref)
