from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.repository import layout
from jsbackup.repository.catalog import Catalog, CatalogEntry, decode_catalog, encode_catalog
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    BackupSummary,
    Manifest,
    Selection,
    SkippedStream,
    Source,
    summary_of,
)
from tests.harness.backups import CREATED, FIRST
from tests.harness.many import some_stream

MANIFEST = Manifest(
    FIRST,
    CREATED,
    "jsbackup tests",
    Source("2.15.1", "C1", "A", "hub"),
    BackupResult.PARTIAL,
    (some_stream("B", 2), some_stream("A", 1)),
    (SkippedStream("C", "it is offline"),),
    {"env": "production"},
    selection=Selection(("A*",), ("*old",), consumers=False, config_only=True),
)


def test_a_summary_says_what_was_asked_for_and_what_there_is() -> None:
    assert summary_of(MANIFEST) == BackupSummary(
        id=FIRST,
        created=CREATED,
        result=BackupResult.PARTIAL,
        streams=2,
        messages=3000,
        bytes=3 * (64 << 20),
        tags={"env": "production"},
        cluster="C1",
        account="A",
        domain="hub",
        selection=Selection(("A*",), ("*old",), consumers=False, config_only=True),
    )


def test_where_nothing_was_selected_all_streams_stand_for_it_also_those_that_are_missing() -> None:
    assert summary_of(replace(MANIFEST, selection=None)).selection == Selection(("A", "B", "C"))


def test_an_import_of_configurations_is_known_to_hold_no_messages() -> None:
    streams = tuple(replace(stream, archive_format=ArchiveFormat.CONFIG) for stream in MANIFEST.streams)
    some = replace(MANIFEST, selection=None, streams=(streams[0], *MANIFEST.streams[1:]))
    assert not summary_of(some).selection.config_only
    assert summary_of(replace(some, streams=streams)).selection.config_only


@pytest.mark.parametrize(("made", "imported"), [({"from": "nats-cli", "written": "today"}, "nats-cli"), (None, None)])
def test_an_import_is_known_by_the_kind_of_its_folder(made: dict[str, object] | None, imported: str | None) -> None:
    assert summary_of(replace(MANIFEST, source=Source(imported=made))).imported == imported


@pytest.mark.parametrize("manifest", [MANIFEST, replace(MANIFEST, source=Source(imported={"from": "x"}))])
def test_a_catalog_keeps_all_of_a_summary(manifest: Manifest) -> None:
    catalog = Catalog(1, FIRST, (CatalogEntry(summary_of(manifest), 500, "ab" * 32),))
    assert decode_catalog(encode_catalog(catalog), layout.catalog_key(1)) == catalog
