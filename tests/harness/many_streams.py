"""Backups of many streams, most of them without messages."""

from __future__ import annotations

from collections.abc import Sequence

from jsbackup.model import StreamState
from jsbackup.repository import layout
from jsbackup.repository.layout import ObjectKind
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    Manifest,
    ReadAs,
    Reading,
    Selection,
    Source,
    StreamBackup,
)
from jsbackup.stores.base import Store
from tests.harness.backups import CREATED, FIRST, INCARNATION

UNCHANGED = Reading(ReadAs.INCREMENT, "nothing has changed since the last backup")
MANY = 500


def small_stream(number: int, *, limit: int = -1, at: int = 0, read: Reading | None = UNCHANGED) -> StreamBackup:
    """A stream without messages, of which it may have as many as `limit`."""
    moment = f"2026-11-21T01:45:{at % 60:02}Z"
    return StreamBackup(
        name=f"STREAM_{number:04}",
        incarnation=INCARNATION,
        config={"name": f"STREAM_{number:04}", "subjects": [f"s.{number}.>"], "max_msgs": limit},
        created=CREATED,
        state=StreamState(),
        captured=Captured(0, 0, 0, 0, moment, moment),
        archive_format=ArchiveFormat.MESSAGES,
        read=read,
    )


def many_streams(count: int = MANY) -> list[StreamBackup]:
    return [small_stream(number, limit=number, at=number) for number in range(count)]


def manifest_of(streams: Sequence[StreamBackup], backup: str = FIRST) -> Manifest:
    return Manifest(
        backup,
        CREATED,
        "t",
        Source("2.15.1"),
        BackupResult.COMPLETE,
        tuple(streams),
        selection=Selection(),
        tags={"a": "b"},
    )


def pages_in(store: Store) -> set[str]:
    return {info.key for info in store.list(layout.STREAMS) if layout.kind_of(info.key) is ObjectKind.STREAM_PAGE}
