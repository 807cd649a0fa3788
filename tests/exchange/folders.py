"""Folders as the nats CLI writes them, made of archives that are at hand, and short ways to import and read back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsbackup.exchange.importing import ImportReport, ImportSource, run_import
from jsbackup.formats.archive.archive import ArchiveV2Writer
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.server_state import stream_state_to_json
from jsbackup.stores.base import Store
from tests.formats.archives import CONFIG, CONSUMERS, CREATED, as_stored, in_s2, state_of, written
from tests.formats.golden_archives import Golden
from tests.harness.batches import Message, batch_of, messages_of
from tests.harness.held import held

V1, V2 = "stream.tar.s2", "stream.arc.s2"


def config_of(name: str) -> JsonObject:
    return {**CONFIG, "name": name}


def archive_of(
    name: str,
    messages: Sequence[Message],
    form: str = "v1",
    *,
    last_seq: int | None = None,
    consumers: Sequence[ArchivedConsumer] = CONSUMERS,
) -> bytes:
    """A stream's snapshot in either format."""
    state = state_of(messages, last_seq)
    writer: ArchiveV1Writer | ArchiveV2Writer
    if form == "v1":
        writer = ArchiveV1Writer(config_of(name), CREATED, state, consumers)
    else:
        writer = ArchiveV2Writer(state, consumers)
    return in_s2(written(writer, [batch_of(messages)]))


def describe(path: Path, config: JsonObject, state: JsonObject, **more: Any) -> None:
    """A `backup.json` in a folder."""
    (path / "backup.json").write_text(json.dumps({"config": config, "state": state, **more}, indent=2))


def stream_folder(
    path: Path,
    messages: Sequence[Message],
    *,
    name: str = "ORDERS",
    form: str = "v1",
    file: str = V1,
    last_seq: int | None = None,
    consumers: Sequence[ArchivedConsumer] = CONSUMERS,
    **config: Any,
) -> Path:
    """What `nats stream backup` writes."""
    path.mkdir(parents=True, exist_ok=True)
    (path / file).write_bytes(archive_of(name, messages, form, last_seq=last_seq, consumers=consumers))
    state = {**stream_state_to_json(state_of(messages, last_seq)), "consumer_count": len(consumers)}
    describe(path, {**config_of(name), **config}, state)
    return path


def golden_folder(path: Path, version: str, file: str = V1) -> Golden:
    """The folder of a real server's snapshot."""
    golden = Golden(version)
    path.mkdir(parents=True, exist_ok=True)
    (path / file).write_bytes(golden.raw)
    describe(path, golden.config, golden.state)
    return golden


def take_in(
    path: Path, repository: Repository, *, progress: Progress | None = None, seconds: int = 10**9, **tags: str
) -> ImportReport:
    """Import a folder; `seconds` is the time at which that begins."""
    clock = itertools.count(seconds * 10**9, 10**9)
    with ImportSource.open(path) as source:
        return run_import(
            source,
            repository,
            lease=held(repository.store),
            tags=tags,
            progress=progress or NullProgress(),
            clock_ns=lambda: next(clock),
            random=lambda count: bytes(count),
        )


def stored_messages(store: Store, stream: StreamBackup) -> list[Message]:
    reader = SegmentReader(Objects(store))
    return as_stored(messages_of(batch for ref in stream.segments for batch in reader.read(ref)))


def imported(report: ImportReport) -> dict[str, StreamBackup]:
    assert report.manifest is not None
    return {stream.name: stream for stream in report.manifest.streams}


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def state_with(state: StreamState, **fields: Any) -> JsonObject:
    return {**stream_state_to_json(state), **fields}
