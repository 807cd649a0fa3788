"""Which backups there are: the listing of the manifests, the newest catalog, and the manifests it does not cover.

Readers never depend on a catalog. One that is damaged, or of a later format, is passed over with a warning, and what it
would have told is read from an older one and from the manifests.

Backups tend the catalog (`tend_catalog`), `forget` writes one before it deletes (`write_catalog`) and looks again when
it has (`settle_catalog`). Only what is written here ever leaves entries out, and only those that it is told to.

No catalog covers a backup that follows one which was taken away (`manifest_chain.py`): what is covered is not asked any
more.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    decode_catalog,
    encode_catalog,
    entry_of,
)
from jsbackup.repository.checks.manifest_chain import Evidence, Gap, check_chain, check_links, refuse_gaps
from jsbackup.repository.document import MAX_DOCUMENT_BYTES
from jsbackup.repository.documents import Documents
from jsbackup.repository.manifest_json import decode_manifest
from jsbackup.repository.summary import BackupSummary
from jsbackup.stores.base import ObjectInfo

__all__ = [
    "Inventory",
    "UnreadableBackup",
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

# A new catalog is due when more than so many manifests, or so many bytes of them, are not covered. A manifest of 50
# streams and 500 segments has 300 KB and takes 16 ms to decode; over a link that answers in 50 ms the eight threads
# read a hundred of them in some two seconds, which is what a listing may cost. With a backup every ten minutes that is
# a catalog (5 MB for ten thousand backups) every 17 hours. A manifest of 16,000 segments has 9 MB and takes a second:
# the bytes decide then.
_MOST_UNCOVERED = 100
_MOST_UNCOVERED_BYTES = 32 << 20

# Waiting for the store is most of what it does. Each thread holds one manifest.
_THREADS = 8

# Writers that take the next generation away from `write_catalog`: a backup does once in a hundred times.
_MOST_RIVALS = 20


@dataclass(frozen=True, slots=True)
class UnreadableBackup:
    """A backup whose manifest is there, and is damaged, of a later format, or locked away."""

    id: str
    error: JsBackupError


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is, oldest first. `warnings` say which catalogs were of no use."""

    entries: tuple[CatalogEntry, ...]
    unreadable: tuple[UnreadableBackup, ...] = ()
    warnings: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()  # backups that seem to have been taken away or exchanged; `evidence.py` makes sure

    @property
    def summaries(self) -> tuple[BackupSummary, ...]:
        return _knowing_logins([entry.summary for entry in self.entries])


def take_inventory(documents: Documents, wanted: Collection[str] | None = None) -> Inventory:
    """All backups, or those of `wanted` that there are. Reads the newest catalog, and manifests that it lacks.

    Raises:
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the store does not answer.
    """
    # In this order: what is forgotten meanwhile is gone when its manifest is read, and no catalog brings it back.
    listed = _listed(documents)
    catalog, warnings, witnessed = read_catalogs(documents)
    asked = {backup: info for backup, info in listed.items() if wanted is None or backup in wanted}
    entries, unreadable = _look_up(documents, catalog, asked)
    if not entries:
        for one in unreadable:
            if isinstance(one.error, KeyUnavailable):
                raise one.error
    gaps: list[Gap] = []
    if wanted is None:
        there = frozenset(one.id for one in unreadable)
        gaps = check_chain(Evidence({entry.id: entry for entry in entries}, there, catalog, witnessed=witnessed))
    return Inventory(tuple(entries), tuple(unreadable), warnings, tuple(gaps))


def _knowing_logins(summaries: Sequence[BackupSummary]) -> tuple[BackupSummary, ...]:
    """The same, those of accounts that nobody could learn (`origin.py`) with their login.

    Older tools did not note it. Where all that is known is one login, theirs was that.
    """
    logins: dict[tuple[str, str | None, str | None], set[str]] = {}
    for one in summaries:
        if not one.account and one.login:
            logins.setdefault((one.cluster, one.domain, one.api_prefix), set()).add(one.login)
    if not logins:
        return tuple(summaries)
    found = []
    for one in summaries:
        known = logins.get((one.cluster, one.domain, one.api_prefix), set())
        lacks = one.is_of_a_server and not one.account and not one.login and len(known) == 1
        found.append(replace(one, login=next(iter(known))) if lacks else one)
    return tuple(found)


def newest_catalog(documents: Documents) -> tuple[Catalog | None, tuple[str, ...]]:
    """The newest catalog that can be read, if there is one, and what is wrong with those that are newer."""
    catalog, warnings, _ = read_catalogs(documents)
    return catalog, warnings


def read_catalogs(documents: Documents) -> tuple[Catalog | None, tuple[str, ...], frozenset[str]]:
    """As `newest_catalog`, and the backups for which there are witnesses."""
    found = _catalogs(documents)
    passed_over = (IntegrityError, KeyUnavailable, UnsupportedError)
    return (*_newest(documents, found.generations, passed_over), found.witnessed)


def note_backup(documents: Documents, backup: str, previous: str | None) -> None:
    """Put a witness of a backup that was committed. `previous`, which it follows, needs none any more.

    Without one everything works, but nobody would miss the manifest.
    """
    try:
        documents.put_beside(layout.witness_key(backup))
    except JsBackupError as error:
        _log.warning("the removal of backup %s would not be noticed until the next one: %s", backup, error.message)
        return
    if previous is not None:
        _delete_witnesses(documents, [previous])


def tend_catalog(documents: Documents) -> bool:
    """Write a new catalog if many manifests are not covered by the newest one; tells whether it did.

    What is not covered is guessed first, by when things were stored, as the store says: two listings are all that a
    backup usually pays. If somebody else writes a catalog meanwhile, that one will do.

    Raises the same as `write_catalog`.
    """
    with suppress(ObjectExists):
        return _tend(documents)
    return False


def _tend(documents: Documents) -> bool:
    listed, catalogs = _listed(documents), _catalogs(documents)
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
    """Write a catalog of all backups but those of `without`, which are going to be deleted; gives its generation.

    Of those that follow a backup which is not there, it covers none but those of `loose`. A backup of `without` need
    not be there: it is given up.

    Raises:
        IntegrityError: a backup was taken away or exchanged.
        UnsupportedError: the newest catalog takes a newer tool; it is left as the newest.
        KeyUnavailable: a key that it takes to read or to sign documents was not given.
        StoreError: it cannot be stored, or others have been quicker again and again.
    """
    seen: set[str] = set()
    for _ in range(_MOST_RIVALS):
        catalogs = _catalogs(documents)
        try:
            base = _base(documents, catalogs.generations)
            return _write_next(documents, catalogs, base, _listed(documents), without=without, loose=loose)
        except ObjectExists:
            continue
        except _GapsFoundError as error:
            # Manifests come and go between one look and the next, but not the same one twice.
            if again := [gap for gap in error.gaps if gap.backup in seen]:
                raise refuse_gaps(again) from None
            seen.update(gap.backup for gap in error.gaps)
    raise StoreError("the catalog changes again and again while it is rewritten", hint="Try again later.")


def settle_catalog(documents: Documents, generation: int, gone: Collection[str]) -> None:
    """After backups were deleted that the catalog of `generation` left out: a writer that met us may have seen one of
    them before it went, and named it again. Raises the same as `write_catalog`."""
    catalogs = _catalogs(documents).generations
    if max(catalogs, default=0) > generation and not _by_id(_base(documents, catalogs)).keys().isdisjoint(gone):
        write_catalog(documents, without=gone)


def retract(documents: Documents, backup: str) -> None:
    """Delete a manifest that must not stay, of a backup that somebody may follow by now. Raises StoreError."""
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
    catalogs: _Catalogs,
    base: Catalog,
    listed: Mapping[str, ObjectInfo],
    *,
    without: Collection[str] = (),
    loose: Collection[str] = (),
) -> int:
    """One try. `base` is the newest of `catalogs`; raises `ObjectExists` if there is a newer one by now, and
    `_GapsFoundError` if one would cover up that a backup was taken away."""
    generation = max(catalogs.generations, default=0) + 1
    named = _by_id(base)
    uncovered = {backup: info for backup, info in listed.items() if backup not in named}
    found, unreadable = _look_up(documents, base, uncovered)
    if gaps := _gaps(base, found, unreadable, without, loose=loose, witnessed=catalogs.witnessed):
        raise _GapsFoundError(gaps)
    # An entry never changes: manifests do not, and one that was exchanged or taken away is to be noticed.
    entries = {entry.id: entry for entry in (*base.entries, *found) if entry.id not in without}
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
    _delete(documents, [old for old in catalogs.generations if old < generation - 1])
    # What this catalog names, or has left out, needs no other witness. One that cannot be read is in neither.
    _delete_witnesses(documents, catalogs.witnessed - {one.id for one in unreadable})
    added = {entry.id for entry in found} - set(without)
    if added and (vanished := added - _listed(documents).keys()):  # forgotten while we wrote, see `settle_catalog`
        return write_catalog(documents, without=vanished)
    return generation


def _gaps(
    base: Catalog,
    found: Sequence[CatalogEntry],
    unreadable: Sequence[UnreadableBackup],
    without: Collection[str],
    *,
    loose: Collection[str],
    witnessed: frozenset[str],
) -> list[Gap]:
    """What the backups `found`, which `base` does not cover, witness against, and the witnesses there are."""
    present = {entry.id: entry for entry in (*base.entries, *found) if entry.id not in loose}
    there = frozenset({*(one.id for one in unreadable), *loose, *without})
    return check_links(Evidence(present, there, base, witnessed=witnessed))


def _base(documents: Documents, catalogs: Mapping[int, ObjectInfo]) -> Catalog:
    """What the next catalog is made from.

    From a damaged one nothing is taken over, not even what it left out: better named once more than lost unseen.
    """
    base, _ = _newest(documents, catalogs, (IntegrityError,))
    return base or Catalog(0, None)


def _delete(documents: Documents, generations: Sequence[int]) -> None:
    """Remove catalogs that nobody needs. The newest two stay: whoever lists them needs a moment to read one."""
    for generation in generations:
        try:
            documents.delete(layout.catalog_key(generation))
        except StoreError as error:  # not allowed, or locked for some time yet: the next writer tries again
            _log.info("old catalog %d was not removed: %s", generation, error.message)
            return


def _listed(documents: Documents) -> dict[str, ObjectInfo]:
    found = ((layout.backup_id_of(info.key), info) for info in documents.list(layout.BACKUPS))
    return {backup: info for backup, info in found if backup is not None}


@dataclass(frozen=True, slots=True)
class _Catalogs:
    """What is stored below `catalog/`: catalogs by their generation, and the backups that have a witness."""

    generations: Mapping[int, ObjectInfo]
    witnessed: frozenset[str]


def _catalogs(documents: Documents) -> _Catalogs:
    stored, beside = documents.list_beside(layout.CATALOGS)
    found = ((layout.catalog_generation_of(info.key), info) for info in stored)
    witnessed = (layout.witnessed_backup_of(info.key) for info in beside)
    return _Catalogs(
        {generation: info for generation, info in found if generation is not None},
        frozenset(backup for backup in witnessed if backup is not None),
    )


def _delete_witnesses(documents: Documents, backups: Collection[str]) -> None:
    """Remove witnesses that nobody needs. They do no harm where that is not allowed."""
    for backup in sorted(backups):
        try:
            documents.delete_beside(layout.witness_key(backup))
        except StoreError as error:
            _log.info("the witness of backup %s was not removed: %s", backup, error.message)
            return


def _newest(
    documents: Documents, generations: Iterable[int], passed_over: tuple[type[JsBackupError], ...]
) -> tuple[Catalog | None, tuple[str, ...]]:
    """The newest catalog that does not raise one of these errors, and what those said."""
    warnings: list[str] = []
    for generation in sorted(generations, reverse=True):
        key = layout.catalog_key(generation)
        try:
            return decode_catalog(documents.get(key, MAX_CATALOG_BYTES), key), tuple(warnings)
        except ObjectNotFound:  # two newer ones were written since we looked
            continue
        except passed_over as error:
            warnings.append(error.message)
    return None, tuple(warnings)


def _by_id(catalog: Catalog | None) -> dict[str, CatalogEntry]:
    return {} if catalog is None else {entry.id: entry for entry in catalog.entries}


def _covers(named: Mapping[str, CatalogEntry], backup: str, info: ObjectInfo) -> bool:
    return backup in named and named[backup].size == info.size


def _is_due(uncovered: Sequence[ObjectInfo]) -> bool:
    return len(uncovered) > _MOST_UNCOVERED or sum(info.size for info in uncovered) > _MOST_UNCOVERED_BYTES


def _look_up(
    documents: Documents, catalog: Catalog | None, listed: Mapping[str, ObjectInfo]
) -> tuple[list[CatalogEntry], list[UnreadableBackup]]:
    """The backups of a listing, from the catalog or from their manifests, and those that cannot be read."""
    named = _by_id(catalog)
    found = {backup: named[backup] for backup, info in listed.items() if _covers(named, backup, info)}
    unreadable: list[UnreadableBackup] = []
    for one in in_order([partial(_read, documents, backup) for backup in listed if backup not in found], _THREADS):
        if isinstance(one, UnreadableBackup):
            unreadable.append(one)
        elif one is not None:
            found[one.id] = one
    return [found[backup] for backup in sorted(found)], unreadable


def _read(documents: Documents, backup: str) -> CatalogEntry | UnreadableBackup | None:
    """What a manifest tells; None if it has been forgotten since it was listed."""
    key = layout.manifest_key(backup)
    try:
        stored = documents.fetch(key, MAX_DOCUMENT_BYTES)
        return entry_of(decode_manifest(stored.data, key), stored)
    except ObjectNotFound:
        return None
    except (IntegrityError, KeyUnavailable, UnsupportedError) as error:
        return UnreadableBackup(backup, error)
