"""Prune: remove objects that no manifest names, in two phases.

1. *Mark*, under a shared lease, while backups and restores may run: read every manifest and every page, and put a list
    of the unused objects, with the time since when each is known to be unused. The list replaces
    that of the run before, and keeps its times.
2. *Delete*, under an exclusive lease: read the manifests that were added since, and delete the objects that are still
    unused and have been marked for the grace period.

An object that a running backup has stored, or will reuse, is protected by the backup's shared lease: while that is live
there is no exclusive one, and after it the manifest is among those that are read. A restore's lease protects a backup
that is forgotten meanwhile. The grace period protects writers without a lease, and allows users to change their minds;
it counts from the later of mark and put, because an object may have been stored again.

Objects that only receipts list (`receipts.py`) are unused: receipts protect nothing, and are deleted after the grace
period if their run has ended.

In doubt nothing is deleted. Prune stops if a manifest is damaged, of a newer format, listed but missing, in a form that
this repository does not use, replaced, or removed by something else than `forget` (`manifest_chain.py`); and, if there
is no manifest at all, if an object is newer than the last catalog. Foreign objects are never touched. If it is killed,
it has only deleted what the next run would have deleted.

The objects that some backups name. Each page is read once, however many backups share it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, ObjectLocked, ObjectNotFound, UsageError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.manifest_chain import refuse_gaps
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, decode_document, encode_document
from jsbackup.repository.inventory import find_missing
from jsbackup.repository.keep.leases import Lease, Mode, list_leases
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import PageRef, StreamPageRef
from jsbackup.repository.pages.segment_list import Part, parts_of
from jsbackup.repository.pages.stream_pages import StreamPages
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import ObjectInfo, Store
from jsbackup.times import format_time

__all__ = [
    "Mark",
    "Marks",
    "NamedObjects",
    "PruneReport",
    "delete_marks",
    "preview_prune",
    "prune",
    "put_marks",
    "read_marks",
]


# --- unused objects ---
#
# The objects that `prune` found unused, and since when: a list in the store, which outlives the run that put it.

_FORMAT_VERSION = 1
# About 100 MB of JSON; further objects are marked after these are gone.
_MOST_MARKED = 500_000


@dataclass(frozen=True, slots=True)
class Mark:
    """Since when an object is known to be unused (Unix time), and its size."""

    seen_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class Marks:
    """The keys of the lists, and the objects in them by their keys."""

    keys: tuple[str, ...]
    unused: Mapping[str, Mark]


def read_marks(store: Store) -> Marks:
    """Read the lists. A damaged list only makes objects wait again.

    Raises:
        UnsupportedError: one is of a newer tool.
        UsageError: another repository is in their place; older versions made one there on S3.
        StoreError: the store does not answer.
    """
    keys: list[str] = []
    seen: dict[str, Mark] = {}
    for info in list(store.list(layout.MARKS)):
        if layout.kind_of(info.key) is not ObjectKind.MARKS:
            continue
        if info.key == f"{layout.MARKS}{layout.DESCRIPTOR}":
            raise UsageError(
                f"{store.location}/{layout.MARKS.rstrip('/')} is another repository, where this one keeps "
                "lists of unused objects",
                hint="Copy it to a location outside of this one with 'jsbackup copy', then delete it there.",
            )
        keys.append(info.key)
        try:
            listed = _decode(store.get_range(info.key, 0, MAX_DOCUMENT_BYTES + 1), info.key)
        except (FormatError, ObjectNotFound):  # another prune has replaced it
            continue
        for key, mark in listed.items():
            # Several lists exist if a run was killed or two overlapped: the later time is the safer one.
            if key not in seen or mark.seen_ns > seen[key].seen_ns:
                seen[key] = mark
    return Marks(tuple(keys), seen)


def put_marks(
    store: Store, before: Marks, unused: Mapping[str, Mark], tool: str, *, random: Callable[[int], bytes]
) -> Marks:
    """Replace the lists with this one, unless they are the same. Raises StoreError."""
    unused = dict(islice(unused.items(), _MOST_MARKED))
    if unused == before.unused and len(before.keys) <= 1:
        return before
    after: tuple[str, ...] = ()
    if unused:
        after = (layout.mark_key(random(8).hex()),)
        store.put(after[0], _encode(unused, tool, after[0]))
    delete_marks(store, before)
    return Marks(after, unused)


def delete_marks(store: Store, marks: Marks) -> None:
    """Delete the lists, except those that the store keeps locked. Raises StoreError."""
    for key in marks.keys:
        with suppress(ObjectLocked):
            store.delete(key)


def _encode(unused: Mapping[str, Mark], tool: str, what: str) -> bytes:
    rows: list[JsonObject] = [
        {"key": key, "seen": format_time(mark.seen_ns), "size": mark.size} for key, mark in sorted(unused.items())
    ]
    document: JsonObject = {"format": _FORMAT_VERSION, "required_features": [], "tool": tool, "unused": rows}
    return encode_document(document, what)


def _decode(data: bytes, what: str) -> dict[str, Mark]:
    fields = decode_document(data, what)
    fields.version(_FORMAT_VERSION, frozenset())
    return {row.text("key"): Mark(row.time_ns("seen"), row.number("size")) for row in fields.each("unused")}


_AT_ONCE = 4096  # pages whose references are held


class NamedObjects:
    """A set of keys.

    Holds a hash of each key instead of the key: 8 bytes for an object, sorted when one is first looked for. If two keys
    had the same hash, an unused object would seem named, and stay. The keys of pages, one in some forty, are held as
    they are: a page that seemed known would not be read, and what only it lists would seem unused.
    """

    def __init__(self, pages: StreamPages) -> None:
        self._pages = pages
        self._hashes = array("q")
        self._sorted = True
        self._pages_seen: set[str] = set()
        self._unread: dict[str, PageRef] = {}
        self._unread_streams: dict[str, StreamPageRef] = {}

    def __contains__(self, key: str) -> bool:
        if not self._sorted:
            self._hashes = array("q", sorted(self._hashes))
            self._sorted = True
        wanted = hash(key)
        at = bisect_left(self._hashes, wanted)
        return at < len(self._hashes) and self._hashes[at] == wanted

    def add(self, manifest: Manifest) -> None:
        """Add what a manifest names itself. `read_pages` adds what its pages list."""
        if manifest.stream_pages:
            new = {page.key: page for page in manifest.stream_pages if page.key not in self._pages_seen}
            self._unread_streams.update(new)
            self._note_pages(new)
            return
        self._add_streams(manifest.streams)

    def read_pages(self, threads: int) -> None:
        """Read the pages that were added, and those that they list.

        Raises IntegrityError, KeyUnavailable, StoreError.
        """
        while self._unread_streams:
            some = [self._unread_streams.popitem()[1] for _ in range(min(len(self._unread_streams), _AT_ONCE))]
            self._add_streams(self._pages.read_all(some))
        while self._unread:
            some_pages = [self._unread.popitem()[1] for _ in range(min(len(self._unread), _AT_ONCE))]
            for parts in in_order([partial(self._pages.segments.read, page) for page in some_pages], threads):
                self._add(parts)

    def _add_streams(self, streams: Iterable[StreamBackup]) -> None:
        for stream in streams:
            self._add(parts_of(stream.segments))
            self._note(piece.key for piece in stream.opaque)
            self._note(consumer.pending.key for consumer in stream.consumers if consumer.pending is not None)

    def _add(self, parts: Sequence[Part]) -> None:
        new = {part.key: part for part in parts if isinstance(part, PageRef) and part.key not in self._pages_seen}
        self._unread.update(new)
        self._note_pages(new)
        self._note(part.key for part in parts if not isinstance(part, PageRef))

    def _note_pages(self, keys: Collection[str]) -> None:
        self._pages_seen.update(keys)
        self._note(keys)

    def _note(self, keys: Iterable[str]) -> None:
        self._hashes.extend(hash(key) for key in keys)
        self._sorted = False


LeaseTaker = Callable[[Mode], AbstractContextManager[Lease]]
"""Takes a lease of that mode and keeps it renewed. Raises `RepositoryLocked` and `StoreError`."""

_CONTENT = frozenset(
    {ObjectKind.SEGMENT, ObjectKind.PENDING, ObjectKind.OPAQUE, ObjectKind.PAGE, ObjectKind.STREAM_PAGE}
)
# Requests are short and mostly wait. Each thread holds one manifest.
_THREADS = 8
# Older probes of an `init` and uploads cannot be in use any more.
_LEFTOVER_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class PruneReport:
    """The result of a prune.

    *Marked* objects wait for their grace period; the first of them can be deleted at `due_seconds` (Unix time, by the
    store's clock; None if there is none). *Kept* ones are due, but locked by the store. `leftovers` are expired leases,
    receipts of runs that have ended, holds of backups that are gone, traces of an interrupted `init`, and unfinished
    uploads.
    """

    deleted_objects: int = 0
    freed_bytes: int = 0
    marked_objects: int = 0
    marked_bytes: int = 0
    due_seconds: float | None = None
    kept_objects: int = 0
    kept_bytes: int = 0
    leftovers: int = 0


def _ns(seconds: float) -> int:
    """Return nanoseconds, in which moments are compared: floats of seconds could differ by rounding."""
    return int(seconds * 1e9)


@dataclass(frozen=True, slots=True)
class _Unused:
    """An object that no manifest names, and since when that is known, by the store's clock."""

    info: ObjectInfo
    seen_ns: int

    def due_ns(self, grace_seconds: float) -> int:
        return max(self.seen_ns, _ns(self.info.modified_seconds)) + _ns(grace_seconds)


@dataclass(frozen=True, slots=True)
class _Survey:
    """The result of looking at all objects; `now_seconds` is the store's time after it."""

    backups: frozenset[str]
    unused: tuple[_Unused, ...]
    now_seconds: float

    def split(self, grace_seconds: float, now_seconds: float) -> tuple[list[ObjectInfo], list[_Unused]]:
        """Return the objects that are due, and those that wait."""
        now_ns = _ns(now_seconds)
        due = [unused.info for unused in self.unused if unused.due_ns(grace_seconds) <= now_ns]
        return due, [unused for unused in self.unused if unused.due_ns(grace_seconds) > now_ns]


def prune(
    repository: Repository,
    take: LeaseTaker,
    *,
    grace_seconds: float,
    tool: str,
    random: Callable[[int], bytes],
    threads: int = _THREADS,
) -> PruneReport:
    """Mark unused objects, and delete those marked long enough ago; with a grace of 0, all of them at once.

    The caller must not hold a lease itself (`forget --prune` releases its own first). `tool` is name and version,
    `random` returns that many random bytes.

    Raises:
        RepositoryLocked: others use the repository, so nothing was deleted; the marks were put, and count.
        IntegrityError, UnsupportedError, KeyUnavailable: a manifest cannot be read, or is missing although it was not
            forgotten; nothing was deleted.
        UsageError: another repository is where this one keeps its lists; nothing was deleted.
        StoreError: the store fails.
    """
    store = repository.store
    with take(Mode.SHARED) as lease:
        holds = list(store.list(layout.HOLDS))  # before the backups: a held backup was there first
        marks = read_marks(store)
        survey = _look(repository, lease, marks.unused, frozenset(), threads=threads)
        unused_now = {unused.info.key: Mark(unused.seen_ns, unused.info.size) for unused in survey.unused}
        marks = put_marks(store, marks, unused_now, tool, random=random)
        leftovers = _remove_leftovers(store, survey, holds, grace_seconds)
    due, waiting = survey.split(grace_seconds, survey.now_seconds)
    if not due:
        return _waiting(waiting, PruneReport(leftovers=leftovers), grace_seconds)
    with take(Mode.EXCLUSIVE) as lease:
        outcomes, waiting = _delete_due(repository, lease, survey, grace_seconds, threads=threads)
        deleted = [info for info, is_deleted in outcomes if is_deleted]
        kept = [info for info, is_deleted in outcomes if not is_deleted]
        keys = {info.key for info in deleted}
        left = {key: mark for key, mark in marks.unused.items() if key not in keys}
        put_marks(store, marks, left, tool, random=random)
    report = PruneReport(
        deleted_objects=len(deleted),
        freed_bytes=sum(info.size for info in deleted),
        kept_objects=len(kept),
        kept_bytes=sum(info.size for info in kept),
        leftovers=leftovers,
    )
    return _waiting(waiting, report, grace_seconds)


def preview_prune(
    repository: Repository,
    take: LeaseTaker,
    *,
    grace_seconds: float,
    without: Collection[str] = (),
    threads: int = _THREADS,
) -> PruneReport:
    """Report what `prune` would delete and keep now, if the backups `without` were forgotten. Errors as `prune`."""
    with take(Mode.SHARED) as lease:
        survey = _look(repository, lease, read_marks(repository.store).unused, frozenset(without), threads=threads)
    due, waiting = survey.split(grace_seconds, survey.now_seconds)
    if due:
        _refuse_without_manifests(repository, survey.backups, due)
        _refuse_gaps(repository)
    report = PruneReport(deleted_objects=len(due), freed_bytes=sum(info.size for info in due))
    return _waiting(waiting, report, grace_seconds)


# --- finding unused objects ---


def _look(
    repository: Repository, lease: Lease, marks: Mapping[str, Mark], without: frozenset[str], *, threads: int
) -> _Survey:
    backups = _all_backups(repository)
    named = _named_by(repository, backups - without, threads)
    unused = [
        info
        for prefix in (layout.SEGMENTS, layout.STREAMS)
        for info in repository.store.list(prefix)
        if info.key not in named and layout.kind_of(info.key) in _CONTENT
    ]
    now = lease.renew()  # after the listing, so that no mark is older than its listing
    now_ns = _ns(now)
    seen = (marks[info.key].seen_ns if info.key in marks else now_ns for info in unused)
    return _Survey(backups, tuple(map(_Unused, unused, seen)), now)


def _all_backups(repository: Repository) -> frozenset[str]:
    """Return every backup. Raises `IntegrityError` if there are manifests in a form that this repository does not
    use.
    """
    infos = repository.store.list(layout.BACKUPS)
    stored = [info.key for info in infos if layout.kind_of(info.key) is ObjectKind.MANIFEST]
    backups = frozenset(repository.backups())
    own = {repository.documents.stored_key(layout.manifest_key(backup)) for backup in backups}
    for key in stored:
        if key not in own and _is_there(repository.store, key):  # if not: forgotten between the two listings
            raise IntegrityError(f"{key} is a manifest of a kind that this repository does not have", hint=_HINT)
    return backups


def _is_there(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True


_HINT = "Nothing is deleted as long as a manifest or a page cannot be read: what it names would seem unused."


def _named_by(repository: Repository, backups: Collection[str], threads: int) -> NamedObjects:
    named = NamedObjects(repository.stream_pages)
    missing: list[str] = []
    try:
        reads = [partial(_read, repository, backup) for backup in sorted(backups)]
        for backup, manifest in zip(sorted(backups), in_order(reads, threads), strict=True):
            if manifest is None:
                missing.append(backup)
            else:
                named.add(manifest)
        named.read_pages(threads)
    except JsBackupError as error:
        raise error.with_hint(error.hint or _HINT) from error.__cause__
    if missing:
        listed = set(repository.backups())
        for backup in missing:
            if backup in listed:
                raise IntegrityError(f"manifest {layout.manifest_key(backup)} is listed, but not there", hint=_HINT)
    return named


def _read(repository: Repository, backup: str) -> Manifest | None:
    """Return the manifest of a backup, without streams that are in pages; None if it is not there."""
    try:
        return repository.manifest(backup, streams=False)
    except UsageError:
        return None


def _refuse_gaps(repository: Repository) -> None:
    """Raise if manifests were removed or replaced: the objects that they named would seem unused."""
    if gaps := find_missing(repository.documents):
        raise refuse_gaps(gaps)


def _refuse_without_manifests(repository: Repository, backups: Collection[str], due: Sequence[ObjectInfo]) -> None:
    """Raise if there is no manifest, and no later catalog shows that all backups were forgotten."""
    if backups or not due:
        return
    written = [info.modified_seconds for info in repository.documents.list(layout.CATALOGS)]
    if not written or any(info.modified_seconds > max(written) for info in due):
        raise IntegrityError(
            f"there are objects of backups below {layout.SEGMENTS}, and no manifest below {layout.BACKUPS}",
            hint="Nothing was deleted. If backups were made here, restore their manifests from a copy. "
            "If these objects are left by a first backup that failed, make one, and prune again.",
        )


# --- deleting ---


def _delete_due(
    repository: Repository, lease: Lease, survey: _Survey, grace_seconds: float, *, threads: int
) -> tuple[list[tuple[ObjectInfo, bool]], list[_Unused]]:
    """Return what was due, and whether it is deleted: the store may keep it locked; and what is not due yet."""
    # Manifests never change: those that were read need not be read again.
    backups = _all_backups(repository)
    named = _named_by(repository, backups - survey.backups, threads)
    survey = replace(survey, unused=tuple(unused for unused in survey.unused if unused.info.key not in named))
    due, waiting = survey.split(grace_seconds, lease.renew())
    # Under the exclusive lease: a first backup that is running has stored objects, but no manifest yet.
    _refuse_without_manifests(repository, backups, due)
    _refuse_gaps(repository)
    deletes = (partial(_delete, repository.store, lease, info.key) for info in due)
    return list(zip(due, in_order(deletes, threads), strict=True)), waiting


def _delete(store: Store, lease: Lease, key: str) -> bool:
    """Delete it, unless the store keeps it locked. Raises `RepositoryLocked` if the lease is lost."""
    lease.check()
    return _is_deleted(store, key)


def _is_deleted(store: Store, key: str) -> bool:
    """Delete it, unless the store keeps it locked."""
    try:
        store.delete(key)
    except ObjectLocked:
        return False
    return True


def _waiting(unused: Sequence[_Unused], report: PruneReport, grace_seconds: float) -> PruneReport:
    """Add the objects that wait to the report."""
    return replace(
        report,
        marked_objects=len(unused),
        marked_bytes=sum(waiting.info.size for waiting in unused),
        due_seconds=min((waiting.due_ns(grace_seconds) / 1e9 for waiting in unused), default=None),
    )


# --- leftovers ---


def _remove_leftovers(store: Store, survey: _Survey, holds: Sequence[ObjectInfo], grace_seconds: float) -> int:
    """Delete leftovers. Returns how many there were."""

    def is_old(info: ObjectInfo) -> bool:
        return survey.now_seconds - info.modified_seconds > _LEFTOVER_SECONDS

    def is_of_no_backup(info: ObjectInfo) -> bool:
        backup = layout.held_backup_of(info.key)
        return backup is not None and backup not in survey.backups

    def is_spent(info: ObjectInfo) -> bool:
        receipt = layout.parse_receipt_key(layout.unsealed(info.key))
        age_seconds = survey.now_seconds - info.modified_seconds
        return receipt is not None and receipt.run not in live and age_seconds >= grace_seconds

    leases = list_leases(store)
    live = {seen.key.id for seen in leases if seen.is_live(survey.now_seconds)}
    expired = [key for seen in leases if seen.key.id not in live for key in seen.keys]
    receipts = [info.key for info in store.list(layout.RECEIPTS) if is_spent(info)]
    probes = [info for info in store.list(layout.PROBES) if layout.kind_of(info.key) is ObjectKind.PROBE]
    old = [info.key for info in [*probes, *filter(is_of_no_backup, holds)] if is_old(info)]
    deleted = sum([_is_deleted(store, key) for key in [*expired, *receipts, *old]])
    uploads = store.abort_stale_uploads(_LEFTOVER_SECONDS)
    return deleted + uploads
