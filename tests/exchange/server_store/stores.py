"""Imports of store folders into memory, and what they are compared with."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from jsbackup.exchange.server_store.import_store import import_store
from jsbackup.exchange.server_store.store_files import ServerStore
from jsbackup.formats.server_store.ciphers import StoreKeys
from jsbackup.formats.server_store.plain_block import decode_block
from jsbackup.formats.server_store.records import records_of
from jsbackup.model import JsonObject
from jsbackup.progress import NullProgress
from jsbackup.repository.manifest import BackupResult, Manifest, StreamBackup
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import make_repository
from tests.harness.batches import Message, messages_of
from tests.harness.held import held
from tests.harness.oracle import ObservedMessage, ObservedStream


@dataclass(frozen=True, slots=True)
class Imported:
    manifest: Manifest | None
    messages: Mapping[str, Mapping[int, ObservedMessage]]
    failures: Mapping[str, str]

    def stream(self, name: str) -> StreamBackup:
        assert self.manifest is not None
        return next(stream for stream in self.manifest.streams if stream.name == name)

    @property
    def partial(self) -> bool:
        return self.manifest is None or self.manifest.result is BackupResult.PARTIAL


def import_folder(
    path: Path,
    keys: tuple[bytes, ...] = (),
    *,
    account: str | None = None,
    configs: Mapping[str, JsonObject] | None = None,
) -> Imported:
    store = MemoryStore()
    repository = make_repository(store)
    clock = itertools.count(10**18, 10**9)
    with ServerStore.open(path, account) as found:
        found.check_keys(keys)
        report = import_store(
            found,
            repository,
            keys=keys,
            configs=configs or {},
            lease=held(store),
            tags={},
            progress=NullProgress(),
            clock_ns=lambda: next(clock),
            random=bytes,
        )
    failures = {failure.name: failure.error.message for failure in report.failures}
    if report.manifest is None:
        return Imported(None, {}, failures)
    reader = SegmentReader(repository.objects)
    messages = {
        stream.name: {
            one.sequence: observed(one)
            for one in messages_of(batch for ref in stream.segments for batch in reader.prove(ref))
        }
        for stream in report.manifest.streams
    }
    return Imported(report.manifest, messages, failures)


def observed(message: Message) -> ObservedMessage:
    subject = message.subject.encode() if isinstance(message.subject, str) else message.subject
    return ObservedMessage(message.sequence, message.timestamp_ns, subject, message.headers, message.data)


def lost_sequences(stream: StreamBackup) -> set[int]:
    """All that is certainly lost, by the report."""
    found: set[int] = set()
    for span in stream.lost.spans:
        if span.certain:
            assert span.last_seq is not None
            part = set(range(span.first_seq, span.last_seq + 1))
            assert span.messages == len(part)
            assert not found & part
            found |= part
    return found


def doubtful_sequences(stream: StreamBackup) -> set[int]:
    """All that may be lost; what is open-ended is left out."""
    return {
        sequence
        for span in stream.lost.spans
        if not span.certain and span.last_seq is not None
        for sequence in range(span.first_seq, span.last_seq + 1)
    }


def subjects_of(held: ObservedStream, sequences: set[int]) -> dict[str, int]:
    return dict(Counter(one.subject.decode() for one in held.messages if one.sequence in sequences))


def records_in(path: Path, number: int, keys: tuple[bytes, ...]) -> list[tuple[int, int, int]] | None:
    """Start, end and sequence of the records of an undamaged block, as they lie in its file; None if compressed."""
    data = (path / "msgs" / f"{number}.blk").read_bytes()
    if keys:
        key = StoreKeys(keys, "$G").open((path / "msgs" / f"{number}.key").read_bytes(), f"{path.name}:{number}")
        assert key is not None
        data = key.decrypt(data)
    plain = decode_block(data)
    if plain.compressed:
        return None
    (region,) = plain.regions
    return [(one.start, one.stop, one.sequence) for one in records_of(region, 0, len(region)) if not one.tombstone]


def fingerprint(path: Path) -> dict[str, tuple[int, int, str]]:
    """Everything about a folder that writing would change."""
    return {
        str(file.relative_to(path)): (
            file.stat().st_mtime_ns,
            file.stat().st_mode,
            sha256(file.read_bytes()).hexdigest() if file.is_file() else "",
        )
        for file in sorted(path.rglob("*"))
    }
