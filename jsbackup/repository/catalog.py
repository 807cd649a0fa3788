"""A catalog: which backups there are, so that listing them does not take reading every manifest.

The listing of `backups/` decides which backups exist. A catalog saves reading: for each manifest it has the key, the
size and SHA-256 of the stored object, a summary, and the backup that came before it. An entry is used in place of its
manifest while the listing shows a manifest of that size; manifests that it does not cover are read (`inventory.py`).

Catalogs are immutable and create-only, and form one sequence: the catalog of generation n + 1 is made from generation
n, and its key is its generation. If two processes write the same generation, the second finds the key taken; it stops,
or begins again from the new catalog. So no catalog undoes another: what `forget` took out stays out, and a manifest
removed by anything else is still named. That makes signed catalogs evidence (`manifest_chain.py`). `head` is the newest
backup that was ever covered.

An entry takes about 500 bytes of JSON, and one object holds all of them: 5 MB for ten thousand backups.
`MAX_CATALOG_BYTES` is reached at about 380,000 backups: one every ten minutes for seven years, none forgotten. Beyond
that no catalog is written, and everything works without one, only slower.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from jsbackup.errors import FormatError, JsBackupError, ObjectNotFound, StoreError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import Document, DocumentFields, Documents, decode_document, encode_document
from jsbackup.repository.manifest import BackupResult, BackupSummary, Manifest, summary_of
from jsbackup.repository.manifest_json import selection_from_json, selection_to_json
from jsbackup.stores.base import Data, ObjectInfo
from jsbackup.times import parse_time

__all__ = [
    "MAX_CATALOG_BYTES",
    "Catalog",
    "CatalogEntry",
    "StoredCatalogs",
    "contradicted",
    "decode_catalog",
    "delete_catalogs",
    "delete_witnesses",
    "encode_catalog",
    "entry_of",
    "list_catalogs",
    "newest_of",
    "read_witnesses",
    "replace_witness",
]


FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()

MAX_CATALOG_BYTES = 192 << 20


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A backup. `size` and `sha256` are those of the stored manifest, so it can be compared without a key.

    `previous` is the backup before it and `previous_sha256` the `sha256` of that one, as the manifest names them.
    """

    summary: BackupSummary
    size: int
    sha256: str
    previous: str | None = None
    previous_sha256: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.summary.id


@dataclass(frozen=True, slots=True)
class Catalog:
    """`entries` are in rising order of ids. `head` is the newest backup ever covered, None if there never was one."""

    generation: int
    head: str | None
    entries: tuple[CatalogEntry, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


def entry_of(manifest: Manifest, stored: Document) -> CatalogEntry:
    """The entry for a manifest that was read as `stored`."""
    return CatalogEntry(summary_of(manifest), stored.size, stored.sha256, manifest.previous, manifest.previous_sha256)


def encode_catalog(catalog: Catalog) -> bytes:
    """Encode as canonical JSON with a checksum."""
    document: JsonObject = {
        **catalog.extra,
        "format": FORMAT_VERSION,
        "required_features": [],
        "generation": catalog.generation,
        "head": catalog.head,
        "backups": [_entry_to_json(entry) for entry in catalog.entries],
    }
    return encode_document(document, f"catalog {catalog.generation}")


def decode_catalog(data: Data, key: str) -> Catalog:
    """The catalog stored under `key`.

    Raises:
        FormatError: damaged, hostile, or its generation is not that of its key.
        UnsupportedError: it has a later format.
    """
    fields = decode_document(data, f"catalog {key}")
    fields.version(FORMAT_VERSION, FEATURES)
    catalog = Catalog(
        generation=fields.number("generation"),
        head=_optional_id(fields, "head"),
        entries=tuple(_entry(entry) for entry in fields.each("backups")),
        extra=fields.rest(),
    )
    if layout.catalog_generation_of(key) != catalog.generation:
        raise FormatError(f"catalog {key} is that of another generation: {catalog.generation}")
    if any(low.id >= high.id for low, high in pairwise(catalog.entries)):
        fields.wrong("backups", "in rising order of ids")
    if catalog.entries and (catalog.head is None or catalog.entries[-1].id > catalog.head):
        fields.wrong("head", "the newest backup")
    return catalog


def _entry_to_json(entry: CatalogEntry) -> JsonObject:
    summary = entry.summary
    return {
        **entry.extra,
        "id": summary.id,
        "created": summary.created,
        "result": summary.result,
        "streams": summary.streams,
        "messages": summary.messages,
        "bytes": summary.bytes,
        "tags": dict(summary.tags),
        "cluster": summary.cluster,
        "account": summary.account,
        "domain": summary.domain,
        "imported": summary.imported,
        "transformed": summary.transformed,
        "selection": selection_to_json(summary.selection),
        "account_name": summary.account_name,
        "api_prefix": summary.api_prefix,
        "login": summary.login,
        "profile": summary.profile,
        "ended": summary.ended,
        "stored_bytes": summary.stored_bytes,
        "size": entry.size,
        "sha256": entry.sha256,
        "previous": entry.previous,
        "previous_sha256": entry.previous_sha256,
    }


def _entry(fields: DocumentFields) -> CatalogEntry:
    backup, created, tags = fields.text("id"), fields.text("created"), fields.fields("tags")
    if not layout.is_backup_id(backup):
        fields.wrong("id", "a backup id")
    parse_time(created, f"{fields.where}: created")
    return CatalogEntry(
        BackupSummary(
            id=backup,
            created=created,
            result=fields.choice("result", BackupResult),
            streams=fields.number("streams"),
            messages=fields.number("messages"),
            bytes=fields.number("bytes"),
            tags={name: tags.text(name) for name in tags.value},
            cluster=fields.text("cluster"),
            account=fields.text("account"),
            domain=fields.optional_text("domain"),
            imported=fields.optional_text("imported"),
            transformed=fields.optional_text("transformed"),
            selection=selection_from_json(fields.fields("selection")),
            account_name=fields.optional_text("account_name"),
            api_prefix=fields.optional_text("api_prefix"),
            login=fields.optional_text("login"),
            profile=fields.optional_text("profile"),
            ended=_optional_time(fields, "ended"),
            stored_bytes=None if fields.get("stored_bytes") is None else fields.number("stored_bytes"),
        ),
        size=fields.number("size", 1),
        sha256=fields.hex256("sha256"),
        previous=_optional_id(fields, "previous"),
        previous_sha256=None if fields.get("previous_sha256") is None else fields.hex256("previous_sha256"),
        extra=fields.rest(),
    )


def _optional_time(fields: DocumentFields, key: str) -> str | None:
    text = fields.optional_text(key)
    if text is not None:
        parse_time(text, f"{fields.where}: {key}")
    return text


def _optional_id(fields: DocumentFields, key: str) -> str | None:
    backup = fields.optional_text(key)
    if backup is not None and not layout.is_backup_id(backup):
        fields.wrong(key, "a backup id")
    return backup


# --- stored catalogs ---
#
# The objects below `catalog/`: catalogs by their generation, and the witnesses of backups that no catalog covers yet.
#
# `inventory.py` decides what is in a catalog, and when one is written.

_SHA256_DIGITS = 64

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredCatalogs:
    """The objects below `catalog/`: catalogs by their generation, and the backups that have a witness."""

    generations: Mapping[int, ObjectInfo]
    witnessed: frozenset[str]


def list_catalogs(documents: Documents) -> StoredCatalogs:
    """Return what is stored now. Raises StoreError."""
    stored, beside = documents.list_beside(layout.CATALOGS)
    generations = ((layout.catalog_generation_of(info.key), info) for info in stored)
    witnessed = (layout.witnessed_backup_of(info.key) for info in beside)
    return StoredCatalogs(
        {generation: info for generation, info in generations if generation is not None},
        frozenset(backup for backup in witnessed if backup is not None),
    )


def newest_of(
    documents: Documents, generations: Iterable[int], passed_over: tuple[type[JsBackupError], ...]
) -> tuple[Catalog | None, tuple[str, ...]]:
    """Return the newest catalog that does not raise one of these errors, and their messages."""
    warnings: list[str] = []
    for generation in sorted(generations, reverse=True):
        key = layout.catalog_key(generation)
        try:
            return decode_catalog(documents.get(key, MAX_CATALOG_BYTES), key), tuple(warnings)
        except ObjectNotFound:  # two newer ones were written since the listing
            continue
        except passed_over as error:
            warnings.append(error.message)
    return None, tuple(warnings)


def read_witnesses(documents: Documents, backups: Iterable[str]) -> dict[str, str]:
    """Return what the witnesses of backups say, by backup: the SHA-256 of a manifest that is not signed, in hex, or
    something else, if one is damaged. One that says nothing, as of a signed manifest or an older tool, is left out.

    Raises StoreError.
    """
    witnesses: dict[str, str] = {}
    for backup in sorted(backups) if not documents.signs else ():
        try:
            said = documents.get_beside(layout.witness_key(backup), _SHA256_DIGITS + 1)
        except ObjectNotFound:
            continue
        if said:
            witnesses[backup] = said.decode("ascii", "replace")
    return witnesses


def contradicted(documents: Documents, manifests: Mapping[str, str]) -> frozenset[str]:
    """Return the backups whose witnesses name other manifests than these, given by their SHA-256 in hex. Each is asked
    for. Raises StoreError.
    """
    said = read_witnesses(documents, manifests)
    return frozenset(backup for backup, sha256 in said.items() if sha256 != manifests[backup])


def replace_witness(documents: Documents, backup: str, witness: bytes) -> None:
    """Store another witness of a backup in place of a wrong one. Raises StoreError."""
    documents.delete_beside(layout.witness_key(backup))
    documents.put_beside(layout.witness_key(backup), witness)


def delete_catalogs(documents: Documents, generations: Iterable[int]) -> None:
    """Remove catalogs that are not needed. The newest two stay, because readers list them before they read one."""
    for generation in generations:
        try:
            documents.delete(layout.catalog_key(generation))
        except StoreError as error:  # not allowed, or locked for a while: the next writer tries again
            _log.info("old catalog %d was not removed: %s", generation, error.message)
            return


def delete_witnesses(documents: Documents, backups: Collection[str]) -> None:
    """Remove witnesses that are not needed. They do no harm if that is not allowed."""
    for backup in sorted(backups):
        try:
            documents.delete_beside(layout.witness_key(backup))
        except StoreError as error:
            _log.info("the witness of backup %s was not removed: %s", backup, error.message)
            return
