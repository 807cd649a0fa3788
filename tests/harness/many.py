"""Repositories with many backups: manifests as the codec writes them, of segments that nobody stored, or of zeros."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from jsbackup.formats.digest import StreamDigest
from jsbackup.model import StreamState
from jsbackup.repository import layout
from jsbackup.repository.catalog import Catalog, CatalogEntry, encode_catalog
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    Manifest,
    SegmentRef,
    Selection,
    Source,
    StreamBackup,
    summary_of,
    total_of,
)
from jsbackup.repository.manifest_json import encode_manifest
from jsbackup.stores.base import Store
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, INCARNATION, make_repository

FIRST_MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=10)


def nth_id(number: int) -> str:
    return f"{FIRST_MOMENT + number * EVERY:%Y%m%dT%H%M%SZ}-{number % (1 << 24):06x}"


def nth_created(number: int) -> str:
    return f"{FIRST_MOMENT + number * EVERY:%Y-%m-%dT%H:%M:%SZ}"


def some_segment(folder: str, number: int) -> SegmentRef:
    digest = hashlib.sha256(f"{folder} {number}".encode()).hexdigest()
    first, last = number * 1000 + 1, number * 1000 + 1000
    return SegmentRef(
        key=layout.segment_key(folder, first, last, digest),
        first_seq=first,
        last_seq=last,
        messages=1000,
        bytes=64 << 20,
        min_ns=1_767_225_600_000_000_000 + first,
        max_ns=1_767_225_600_000_000_000 + last,
        size=20 << 20,
        sha256=digest,
        digest=digest,
        fingerprint=StreamDigest.from_hex(digest),
    )


def some_stream(name: str, segments: int) -> StreamBackup:
    folder = layout.stream_folder(name, INCARNATION)
    refs = tuple(some_segment(folder, number) for number in range(segments))
    total = total_of(refs)
    return StreamBackup(
        name=name,
        incarnation=INCARNATION,
        config={"name": name, "subjects": [f"{name}.>"], "retention": "limits", "num_replicas": 3},
        created=CREATED,
        state=StreamState(messages=total.messages, first_seq=total.first_seq, last_seq=total.last_seq),
        captured=Captured.of(total, CREATED, CREATED),
        archive_format=ArchiveFormat.V2,
        digest=total.digest,
        segments=refs,
    )


def nth_manifest(number: int, *, streams: int = 1, segments: int = 1) -> Manifest:
    return Manifest(
        id=nth_id(number),
        created=nth_created(number),
        tool="jsbackup tests",
        source=Source("2.15.1"),
        result=BackupResult.COMPLETE,
        streams=tuple(some_stream(f"STREAM_{one:02}", segments) for one in range(streams)),
        tags={"number": str(number)},
        previous=nth_id(number - 1) if number else None,
        selection=Selection(),
    )


def put_manifests(store: Store, count: int, *, first: int = 0, streams: int = 1) -> None:
    """As if so many backups had been committed, before there were catalogs."""
    for number in range(first, first + count):
        manifest = nth_manifest(number, streams=streams)
        store.put(layout.manifest_key(manifest.id), encode_manifest(manifest))


def put_segments(store: Store) -> None:
    """Zeros in the place of the segments that these manifests name, as `put_manifests` makes them."""
    for ref in segments_of(nth_manifest(0)):
        store.put(ref.key, bytes(ref.size))


def segments_of(manifest: Manifest) -> list[SegmentRef]:
    return [ref for stream in manifest.streams for ref in stream.segments]


class ManyBackups(MemoryStore):
    """A repository of `count` backups of 50 streams, which takes hardly any memory: segments share their bytes.

    A manifest is made when it is read. All but the newest `uncovered` are in a catalog.
    """

    STREAMS = tuple(f"STREAM_{number:02}" for number in range(50))

    def __init__(self, count: int, *, uncovered: int, streams: int = 50) -> None:
        self._seconds = 0.0
        self._numbers: dict[str, int] = {}
        super().__init__(self._tick)
        make_repository(self)
        self._model = replace(nth_manifest(1, streams=streams, segments=1), tags={})
        zeros = bytes(20 << 20)
        for ref in segments_of(self._model):
            self.put(ref.key, zeros)
        self._add(0, count - uncovered)
        self._put_catalog(count - uncovered)
        self._add(count - uncovered, count)

    def made(self, number: int) -> Manifest:
        previous = nth_id(max(number, 1) - 1)  # the first has one too, so that all are of one size
        return replace(self._model, id=nth_id(number), created=nth_created(number), previous=previous)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if key in self._numbers:
            return encode_manifest(self.made(self._numbers[key]))[offset : offset + length]
        return super().get_range(key, offset, length)

    def _tick(self) -> float:
        self._seconds += 1
        return self._seconds

    def _add(self, first: int, end: int) -> None:
        place = bytes(len(encode_manifest(self._model)))  # one for all
        for number in range(first, end):
            key = layout.manifest_key(nth_id(number))
            self._numbers[key] = number
            self.put(key, place)

    def _put_catalog(self, count: int) -> None:
        size, summary = len(encode_manifest(self._model)), summary_of(self._model)
        entries = tuple(
            CatalogEntry(replace(summary, id=nth_id(number), created=nth_created(number)), size, "0" * 64)
            for number in range(count)
        )
        self.put(layout.catalog_key(1), encode_catalog(Catalog(1, nth_id(count - 1), entries)))
