"""Which backups there are: the listing of the manifests, the newest catalog, and the manifests it does not cover.

Readers never depend on a catalog. One that is damaged, or of a later format, is skipped with a warning; an older one
and the manifests are read instead.

Backups maintain the catalog (`tend_catalog`); `forget` writes one before it deletes (`write_catalog`) and checks again
afterwards (`settle_catalog`). Only this module leaves entries out, and only those that its caller names.

No catalog covers a backup whose predecessor was removed (`manifest_chain.py`), because covered backups are not checked
again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    ObjectExists,
    ObjectNotFound,
    StoreError,
    UnsupportedError,
)
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.catalog import (
    MAX_CATALOG_BYTES,
    Catalog,
    CatalogEntry,
    StoredCatalogs,
    delete_catalogs,
    delete_witnesses,
    encode_catalog,
    entry_of,
    list_catalogs,
    newest_of,
    read_witnesses,
)
from jsbackup.repository.checks.manifest_chain import Evidence, Gap, check_chain, check_links, refuse_gaps
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Documents
from jsbackup.repository.manifest import BackupSummary
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.stores.base import ObjectInfo

__all__ = [
    "Inventory",
    "UnreadableBackup",
    "damaged_catalogs",
    "find_gaps",
    "find_missing",
    "newest_catalog",
    "note_backup",
    "read_catalogs",
    "retract",
    "settle_catalog",
    "take_inventory",
    "tend_catalog",
    "write_catalog",
]


_log = logging.getLogger(__name__)

# A new catalog is due when more than this many manifests, or this many bytes of them, are not covered. A manifest of 50
# streams and 500 segments has 300 KB and takes 16 ms to decode; over a link with 50 ms latency the eight threads read a
# hundred of them in about two seconds, which is acceptable for a listing. With a backup every ten minutes that means a
# catalog (5 MB for ten thousand backups) every 17 hours. A manifest of 16,000 segments has 9 MB and takes a second:
# then the limit on bytes decides.
_MOST_UNCOVERED = 100
_MOST_UNCOVERED_BYTES = 32 << 20

# Mostly waits for the store. Each thread holds one manifest.
_THREADS = 8

# How often another writer may take the next generation from `write_catalog`: a backup writes one every hundred times.
_MOST_RIVALS = 20


@dataclass(frozen=True, slots=True)
class UnreadableBackup:
    """A backup whose manifest exists, but is damaged, of a later format, or locked. `summary` is that of the newest
    catalog, if it has one.
    """

    id: str
    error: JsBackupError
    summary: BackupSummary | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All backups, oldest first. `warnings` say which catalogs could not be used."""

    entries: tuple[CatalogEntry, ...]
    unreadable: tuple[UnreadableBackup, ...] = ()
    warnings: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()  # backups that seem to be removed or replaced; `find_gaps` makes sure

    @property
    def summaries(self) -> tuple[BackupSummary, ...]:
        return tuple(entry.summary for entry in self.entries)


def take_inventory(documents: Documents, wanted: Collection[str] | None = None) -> Inventory:
    """Return all backups, or those of `wanted` that exist. Reads the newest catalog, and the manifests that it lacks.

    Raises:
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the store does not answer.
    """
    # In this order: a backup forgotten meanwhile is gone when its manifest is read, and no catalog brings it back.
    listed = _listed(documents)
    catalog, warnings, witnessed = read_catalogs(documents)
    asked = {backup: info for backup, info in listed.items() if wanted is None or backup in wanted}
    entries, unreadable = _look_up(documents, catalog, asked)
    if not entries:
        for broken in unreadable:
            if isinstance(broken.error, KeyUnavailable):
                raise broken.error
    gaps: list[Gap] = []
    if wanted is None:
        ids = frozenset(broken.id for broken in unreadable)
        gaps = check_chain(Evidence({entry.id: entry for entry in entries}, ids, catalog, witnessed=witnessed))
    return Inventory(tuple(entries), tuple(unreadable), warnings, tuple(gaps))


def newest_catalog(documents: Documents) -> tuple[Catalog | None, tuple[str, ...]]:
    """Return the newest catalog that can be read, or None, and what is wrong with the newer ones."""
    catalog, warnings, _ = read_catalogs(documents)
    return catalog, warnings


def damaged_catalogs(documents: Documents) -> tuple[str, ...]:
    """Return what is wrong with catalogs that are newer than the newest sound one; nothing if this needs a key that was
    not given, or a newer tool. Raises StoreError.
    """
    try:
        return newest_of(documents, list_catalogs(documents).generations, (IntegrityError,))[1]
    except (KeyUnavailable, UnsupportedError):
        return ()


def read_catalogs(documents: Documents) -> tuple[Catalog | None, tuple[str, ...], frozenset[str]]:
    """Return the same as `newest_catalog`, and the backups that have a witness."""
    catalogs = list_catalogs(documents)
    passed_over = (IntegrityError, KeyUnavailable, UnsupportedError)
    return (*newest_of(documents, catalogs.generations, passed_over), catalogs.witnessed)


def note_backup(documents: Documents, backup: str, previous: str | None, witness: bytes) -> None:
    """Put the `witness` of a committed backup (`Repository.witness_of`). `previous`, which it follows, needs none any
    more.

    Everything works without a witness, but the removal of the manifest would not be noticed.
    """
    try:
        documents.put_beside(layout.witness_key(backup), witness)
    except JsBackupError as error:
        _log.warning("the removal of backup %s would not be noticed until the next one: %s", backup, error.message)
        return
    if previous is not None:
        delete_witnesses(documents, [previous])


def tend_catalog(documents: Documents) -> bool:
    """Write a new catalog if the newest one does not cover many manifests. Returns whether it did.

    The number of uncovered manifests is first estimated from the store's times: usually a backup pays for two listings
    only. If another process writes a catalog meanwhile, that one is used. Raises IntegrityError, UnsupportedError,
    KeyUnavailable and StoreError, for the reasons that `write_catalog` has.
    """
    with suppress(ObjectExists):
        return _tend(documents)
    return False


def _tend(documents: Documents) -> bool:
    listed, catalogs = _listed(documents), list_catalogs(documents)
    since = max((info.modified_seconds for info in catalogs.generations.values()), default=float("-inf"))
    if not _is_due([info for info in listed.values() if info.modified_seconds >= since]):
        return False
    base = _base(documents, catalogs.generations)
    named = _by_id(base)
    if not _is_due([info for backup, info in listed.items() if not _covers(named, backup, info)]):
        return False
    try:
        _write_next(documents, catalogs, base, listed)
    except _GapsFoundError:  # perhaps only because backups come and go
        write_catalog(documents)
    return True


def write_catalog(documents: Documents, *, without: Collection[str] = (), loose: Collection[str] = ()) -> int:
    """Write a catalog of all backups except those of `without`, which are going to be deleted. Returns its generation.

    Backups whose predecessor is missing are not covered, except those of `loose`. The manifests of `without` may
    already be lost.

    Raises:
        IntegrityError: a backup was removed or replaced.
        UnsupportedError: the newest catalog needs a newer tool; it stays the newest.
        KeyUnavailable: a key that is needed to read or sign documents was not given.
        StoreError: it cannot be stored, or other processes were faster again and again.
    """
    seen: set[str] = set()
    for _ in range(_MOST_RIVALS):
        catalogs = list_catalogs(documents)
        try:
            base = _base(documents, catalogs.generations)
            return _write_next(documents, catalogs, base, _listed(documents), without=without, loose=loose)
        except ObjectExists:
            continue
        except _GapsFoundError as error:
            # Manifests are added and removed between two listings, but the same one does not vanish twice.
            if again := [gap for gap in error.gaps if gap.backup in seen]:
                raise refuse_gaps(again) from None
            seen.update(gap.backup for gap in error.gaps)
    raise StoreError("the catalog changes again and again while it is rewritten", hint="Try again later.")


def settle_catalog(documents: Documents, generation: int, removed: Collection[str]) -> None:
    """Write another catalog if one names deleted backups again: a writer may have seen them before they were deleted.

    `generation` is that of the catalog without them. Raises IntegrityError, UnsupportedError, KeyUnavailable and
    StoreError, for the reasons that `write_catalog` has.
    """
    catalogs = list_catalogs(documents).generations
    if max(catalogs, default=0) > generation and not _by_id(_base(documents, catalogs)).keys().isdisjoint(removed):
        write_catalog(documents, without=removed)


def retract(documents: Documents, backup: str) -> None:
    """Delete a manifest that must not stay, although another backup may already follow it. Raises StoreError."""
    documents.delete_beside(layout.witness_key(backup))
    documents.delete(layout.manifest_key(backup))
    try:
        write_catalog(documents, without=[backup])
    except JsBackupError as error:
        _log.warning("backup %s was withdrawn, but the catalog of backups still lists it: %s", backup, error.message)


class _GapsFoundError(Exception):
    def __init__(self, gaps: Sequence[Gap]) -> None:
        super().__init__()
        self.gaps = gaps


def _write_next(
    documents: Documents,
    catalogs: StoredCatalogs,
    base: Catalog,
    listed: Mapping[str, ObjectInfo],
    *,
    without: Collection[str] = (),
    loose: Collection[str] = (),
) -> int:
    """Try once to write the next catalog. `base` is the newest of `catalogs`.

    Raises `ObjectExists` if there is a newer one by now, and `_GapsFoundError` if the new one would hide that a backup
    was removed.
    """
    generation = max(catalogs.generations, default=0) + 1
    named = _by_id(base)
    uncovered = {backup: info for backup, info in listed.items() if backup not in named}
    summaries, unreadable = _look_up(documents, base, uncovered)
    # The new catalog would cover a manifest that its witness contradicts, and the witness would go.
    judged = {entry.id for entry in summaries}.difference(without, loose) & catalogs.witnessed
    witnesses = read_witnesses(documents, judged)
    if gaps := _gaps(
        base, summaries, unreadable, without, loose=loose, witnessed=catalogs.witnessed, witnesses=witnesses
    ):
        raise _GapsFoundError(gaps)
    # Entries never change: manifests do not, and a replaced or removed one must be noticed.
    entries = {entry.id: entry for entry in (*base.entries, *summaries) if entry.id not in without}
    new = replace(
        base,
        generation=generation,
        head=max(filter(None, (base.head, *entries, *without)), default=None),
        entries=tuple(entries[backup] for backup in sorted(entries)),
    )
    data = encode_catalog(new)
    if len(data) > MAX_CATALOG_BYTES:
        _log.warning("a catalog of %d backups would be too large; their manifests are read instead", len(entries))
        return generation
    documents.put(layout.catalog_key(generation), data)
    delete_catalogs(documents, [old for old in catalogs.generations if old < generation - 1])
    # Backups that this catalog names or leaves out need no witness. Unreadable ones are neither.
    delete_witnesses(documents, catalogs.witnessed - {backup.id for backup in unreadable})
    added = {entry.id for entry in summaries} - set(without)
    if added and (vanished := added - _listed(documents).keys()):  # forgotten while we wrote, see `settle_catalog`
        return write_catalog(documents, without=vanished)
    return generation


def _gaps(
    base: Catalog,
    entries: Sequence[CatalogEntry],
    unreadable: Sequence[UnreadableBackup],
    without: Collection[str],
    *,
    loose: Collection[str],
    witnessed: frozenset[str],
    witnesses: Mapping[str, str],
) -> list[Gap]:
    """Return the gaps that the uncovered backups (`entries`), and the witnesses, reveal."""
    present = {entry.id: entry for entry in (*base.entries, *entries) if entry.id not in loose}
    known = frozenset({*(backup.id for backup in unreadable), *loose, *without})
    return check_links(Evidence(present, known, base, witnessed=witnessed, witnesses=witnesses))


def _base(documents: Documents, catalogs: Mapping[int, ObjectInfo]) -> Catalog:
    """Return the catalog that the next one is made from.

    Nothing is taken over from a damaged one, not even its omissions: a backup named once too often is better than one
    lost unseen.
    """
    base, _ = newest_of(documents, catalogs, (IntegrityError,))
    return base or Catalog(0, None)


def _listed(documents: Documents) -> dict[str, ObjectInfo]:
    manifests = ((layout.backup_id_of(info.key), info) for info in documents.list(layout.BACKUPS))
    return {backup: info for backup, info in manifests if backup is not None}


def _by_id(catalog: Catalog | None) -> dict[str, CatalogEntry]:
    return {} if catalog is None else {entry.id: entry for entry in catalog.entries}


def _covers(named: Mapping[str, CatalogEntry], backup: str, info: ObjectInfo) -> bool:
    return backup in named and named[backup].size == info.size


def _is_due(uncovered: Sequence[ObjectInfo]) -> bool:
    return len(uncovered) > _MOST_UNCOVERED or sum(info.size for info in uncovered) > _MOST_UNCOVERED_BYTES


def _look_up(
    documents: Documents,
    catalog: Catalog | None,
    listed: Mapping[str, ObjectInfo],
    again: Collection[str] = (),
) -> tuple[list[CatalogEntry], list[UnreadableBackup]]:
    """Return the backups of a listing, from the catalog or from their manifests, and those that cannot be read. The
    manifests of `again` are read in any case.
    """
    named = _by_id(catalog)
    entries = {
        backup: named[backup] for backup, info in listed.items() if _covers(named, backup, info) and backup not in again
    }
    unreadable: list[UnreadableBackup] = []
    reads = [partial(_read, documents, backup, named.get(backup)) for backup in listed if backup not in entries]
    for read in in_order(reads, _THREADS):
        if isinstance(read, UnreadableBackup):
            unreadable.append(read)
        elif read is not None:
            entries[read.id] = read
    return [entries[backup] for backup in sorted(entries)], unreadable


def _read(documents: Documents, backup: str, named: CatalogEntry | None) -> CatalogEntry | UnreadableBackup | None:
    """Return a manifest as a catalog entry, which is `named` if it is the same; None if it was forgotten since it was
    listed.
    """
    key = layout.manifest_key(backup)
    try:
        stored = documents.fetch(key, MAX_DOCUMENT_BYTES)
        if named is not None and (named.size, named.sha256) == (stored.size, stored.sha256):
            return named
        return entry_of(decode_manifest(stored.data, key), stored)
    except ObjectNotFound:
        return None
    except (IntegrityError, KeyUnavailable, UnsupportedError) as error:
        return UnreadableBackup(backup, error, None if named is None else named.summary)


def find_gaps(documents: Documents, wanted: Collection[str] | None = None, expect: str | None = None) -> list[Gap]:
    """Return what is wrong with the chain of backups. Backups may be made and forgotten meanwhile.

    Reads all manifests; or, besides those of `wanted`, only those that the newest catalog does not cover.

    Raises:
        KeyUnavailable: no key that opens documents was given.
        StoreError: the store does not answer.
    """
    gaps = check_chain(_gather(documents, wanted), expect)
    if not gaps:
        return []
    # Manifests are added and removed between two listings, but the same one does not vanish twice.
    again = check_chain(_gather(documents, wanted), expect)
    return [gap for gap in again if gap.backup in {first.backup for first in gaps}]


def find_missing(documents: Documents) -> list[Gap]:
    """Return the backups whose manifests were removed or replaced by something else than jsbackup, oldest first.

    Raises:
        KeyUnavailable: no key that opens documents was given.
        StoreError: the store does not answer.
    """
    return [gap for gap in find_gaps(documents, wanted=()) if gap.backup]


def _gather(documents: Documents, wanted: Collection[str] | None) -> Evidence:
    listed = _listed(documents)
    catalog, warnings, witnessed = read_catalogs(documents)
    entries, unreadable = _look_up(documents, catalog, listed, listed if wanted is None else wanted)
    for backup in unreadable:
        if isinstance(backup.error, KeyUnavailable):
            raise backup.error
    present = {entry.id: entry for entry in entries}
    witnesses = read_witnesses(documents, witnessed & (present.keys() - _by_id(catalog).keys()))
    damaged = frozenset(backup.id for backup in unreadable)
    return Evidence(present, damaged, catalog, warnings, witnessed, witnesses)
