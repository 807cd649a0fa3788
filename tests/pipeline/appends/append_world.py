"""A server's streams, a repository of their backups and tables of these: what random histories of `export --append` do.

The server is a model that keeps what was published, whatever happens to it later. Its backups are stored by what makes
those of servers, segment by segment; all other commands run as typed, in this process.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from jsbackup.cli.main import run
from jsbackup.model import StreamState
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.repository import layout
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Manifest,
    Result,
    Selection,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.repository import Repository
from jsbackup.repository.segment_size import MIN_SEGMENT_BYTES
from jsbackup.repository.segments import SegmentWriter
from jsbackup.repository.write.previous import previous_streams
from jsbackup.repository.write.reuse import stored_segments
from jsbackup.stores.local import LocalStore
from jsbackup.times import format_time
from tests.harness.batches import Message, batch_of
from tests.pipeline.tables.growing import iceberg_table

__all__ = ["NAMES", "SUBJECTS", "BackedUp", "Backup", "Done", "Row", "Target", "World"]

NAMES = ("PLAIN", "KV_LAST", "SHORT")
SUBJECTS = ("a.1", "a.2", "b")
# Of the streams above; 0 is without a limit.
_MOST_PER_SUBJECT = (0, 1, 0)
_MOST_MESSAGES = (0, 0, 12)

_SEGMENT_BYTES = 400  # about eight messages
_BEGIN_NS = 1_732_153_500 * 10**9
_STEP_NS = 60 * 10**9

_READ = ("stream", "backup", "sequence", "timestamp_ns", "subject", "headers", "data")

# Sequence, time, subject, headers and payload, as `Message` has them.
Row = Message


@dataclass(slots=True)
class _Stream:
    """A stream of the server. `published` are all that it ever had, by sequence, and `sequences` those that it has."""

    name: str
    incarnation: str
    published: dict[int, Row] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)
    last_seq: int = 0


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A stream in a backup, with its messages by sequence."""

    incarnation: str
    last_seq: int
    rows: Mapping[int, Row]


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup, which read the streams at `moment_ns`. `asked` are the names of these, none if all were meant."""

    id: str
    moment_ns: int
    streams: Mapping[str, BackedUp]
    asked: tuple[str, ...] = ()

    def selects(self, stream: str) -> bool:
        return stream in self.asked or not self.asked


@dataclass(frozen=True, slots=True)
class Done:
    """What a command said, and its exit code."""

    code: int
    document: Any
    err: str


@dataclass(frozen=True, slots=True)
class Target:
    """A folder of tables. They have only messages of a subject, if there is one, and may be divided by subjects."""

    folder: Path
    kind: TableFormat
    subject: str | None = None
    is_divided: bool = False

    @property
    def options(self) -> list[str]:
        words = ["--format", str(self.kind), "--output", str(self.folder), "--append"]
        words += ["--partition-by", "subject"] if self.is_divided else []
        return words if self.subject is None else [*words, "--subject", self.subject, "--allow-empty"]

    def takes(self, row: Row) -> bool:
        return self.subject is None or str(row.subject).startswith(self.subject.removesuffix(">"))

    def has_table(self, stream: str) -> bool:
        marks = {TableFormat.PARQUET: "_jsbackup", TableFormat.DELTA: "_delta_log", TableFormat.ICEBERG: "metadata"}
        folder = self.folder / stream / marks[self.kind]
        return folder.is_dir() and any(path.suffix == ".json" for path in folder.iterdir())

    def rows(self, stream: str) -> list[tuple[str, str, Row]]:
        """The rows of a table: the stream, the backup that it says, and the message. By other readers than ours."""
        if not self.has_table(stream):
            return []
        table = self._read(self.folder / stream)
        columns = (table[name].to_pylist() for name in _READ)
        return [(name, backup, Row(*row)) for name, backup, *row in zip(*columns, strict=True)]

    def _read(self, folder: Path) -> pa.Table:
        if self.kind is TableFormat.DELTA:
            return DeltaTable(folder).to_pyarrow_table()
        if self.kind is TableFormat.ICEBERG:
            return iceberg_table(folder).scan().to_arrow()
        partitioning = (
            ds.partitioning(pa.schema([("subject", pa.string())]), flavor="hive") if self.is_divided else None
        )
        table = ds.dataset(folder, format="parquet", partitioning=partitioning).to_table()
        return table if table.num_columns > 1 else pa.table({name: [] for name in _READ})


class World:
    """All of it, in a folder. `backups` are those in the repository, oldest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.streams: dict[str, _Stream] = {}
        self.published: dict[tuple[str, str], dict[int, Row]] = {}
        self.backups: list[Backup] = []
        self._now_ns = _BEGIN_NS
        self._made = 0
        self._begun_ns = 0  # of the backup that was begun and not made
        store = LocalStore(folder / "repo")
        self._repository = Repository.create(
            store,
            repository_id="00ff",
            created=format_time(self._now_ns),
            tool="jsbackup tests",
            segment_bytes=MIN_SEGMENT_BYTES,
        )

    # --- the server ---

    def publish(self, number: int, count: int) -> None:
        """Publish messages to the stream with this number, which is made if it is not there."""
        stream = self.streams.get(NAMES[number]) or self.create(number)
        for _ in range(count):
            stream.last_seq += 1
            row = self._message(stream)
            stream.published[row.sequence] = row
            stream.sequences.append(row.sequence)
        if most := _MOST_MESSAGES[number]:
            del stream.sequences[:-most]
        if most := _MOST_PER_SUBJECT[number]:
            left = {s: [n for n in stream.sequences if stream.published[n].subject == s][-most:] for s in SUBJECTS}
            stream.sequences = sorted(n for some in left.values() for n in some)

    def create(self, number: int) -> _Stream:
        """Make a stream, in place of the one with its name."""
        self.pass_time()
        self._made += 1
        name, created = NAMES[number], format_time(self._now_ns)
        stream = _Stream(name, hashlib.sha256(f"{name} {created} {self._made}".encode()).hexdigest()[:8])
        self.streams[name] = stream
        self.published[name, stream.incarnation] = stream.published
        return stream

    def delete(self, number: int, place: int, count: int) -> None:
        """Delete messages that follow one another, from a place on, counted from the end if it is negative."""
        if (stream := self.streams.get(NAMES[number])) and stream.sequences:
            at = place % len(stream.sequences)
            del stream.sequences[at : at + count]

    def purge(self, number: int, *, subject: str | None = None, share: float = 1) -> None:
        """Remove messages: those of a subject if one is given, and of these the first ones, so many of all."""
        if stream := self.streams.get(NAMES[number]):
            upto = stream.sequences[: round(len(stream.sequences) * share)]
            gone = {n for n in upto if subject in (None, stream.published[n].subject)}
            stream.sequences = [n for n in stream.sequences if n not in gone]

    def pass_time(self) -> None:
        self._now_ns += _STEP_NS

    def _message(self, stream: _Stream) -> Row:
        chance = random.Random(f"{stream.incarnation} {stream.last_seq}")
        headers = b"NATS/1.0\r\nN: %d\r\n\r\n" % stream.last_seq if chance.random() < 0.3 else None
        self._now_ns += chance.choice([0, 1, 1000])
        payload = chance.randbytes(chance.choice([0, 20, 40]))
        return Row(stream.last_seq, self._now_ns, chance.choice(SUBJECTS), headers, payload)

    # --- the repository ---

    def begin(self) -> None:
        """Begin a backup, which reads the streams later."""
        self.pass_time()
        self._begun_ns = self._now_ns

    def back_up(self, numbers: Sequence[int], *, begun: bool = False) -> None:
        """Back up the streams with these numbers; all if there are none. It may be the one that was `begun`."""
        self.pass_time()
        begun_ns = self._begun_ns if begun and self._begun_ns else self._now_ns
        self._begun_ns = 0 if begun else self._begun_ns
        repository, begin = self._repository, format_time(begun_ns)
        chosen = [NAMES[number] for number in sorted(set(numbers))]
        live = [one for name, one in sorted(self.streams.items()) if name in chosen or not chosen]
        previous = previous_streams(repository, {one.name: one.incarnation for one in live})
        self._now_ns += 10**9
        ended = format_time(self._now_ns)
        stored = [self._stored(one, previous.get(one.name), begin, ended) for one in live]
        newest = self.backups[-1].id if self.backups else None
        manifest = Manifest(
            layout.backup_id(begun_ns, len(self.published).to_bytes(3, "big"), newest),
            begin,
            "jsbackup tests",
            Source("2.15.3", cluster="here"),
            Result.COMPLETE,
            tuple(stored),
            previous=newest,
            selection=Selection(tuple(chosen)),
            ended=ended,
        )
        repository.commit(manifest)
        seen = {
            one.name: BackedUp(one.incarnation, one.last_seq, {n: one.published[n] for n in one.sequences})
            for one in live
        }
        self.backups = sorted(
            [*self.backups, Backup(manifest.id, self._now_ns, seen, tuple(chosen))], key=lambda one: one.id
        )

    def _stored(self, stream: _Stream, previous: StreamBackup | None, begun: str, ended: str) -> StreamBackup:
        objects = self._repository.objects
        folder = objects.sealing.folder(stream.name, stream.incarnation)
        earlier = [] if previous is None else stored_segments(objects, folder, previous.segments)
        writer = SegmentWriter(objects, folder, earlier, segment_bytes=_SEGMENT_BYTES)
        rows = [stream.published[n] for n in stream.sequences]
        writer.add(batch_of(rows))
        segments = writer.finish()
        total = total_of(segments)
        first = rows[0].sequence if rows else stream.last_seq + 1 if stream.last_seq else 0
        times = {"first_ns": rows[0].timestamp_ns, "last_ns": rows[-1].timestamp_ns} if rows else {}
        return StreamBackup(
            name=stream.name,
            incarnation=stream.incarnation,
            config={"name": stream.name},
            created=begun,
            state=StreamState(len(rows), total.bytes, first, last_seq=stream.last_seq, **times),
            captured=Captured.of(total, begun, ended),
            archive_format=ArchiveFormat.V2,
            digest=total.digest,
            segments=tuple(segments),
        )

    def forget(self, backup: Backup, *, prune: bool) -> None:
        """Forget a backup as a user does; `prune` also removes what no other needs."""
        done = self.command("forget", backup.id, *(["--prune", "--grace", "0s"] if prune else []))
        assert done.code == 0, done
        self.backups.remove(backup)

    def compact(self, backup: Backup) -> None:
        """Make a copy of a backup with fewer segments, if there is something to gain."""
        done = self.command("compact", backup.id)
        assert done.code == 0, done
        known = {one.id for one in self.backups}
        made = [one for one in self._repository.backups() if one not in known]
        self.backups = sorted([*self.backups, *(replace(backup, id=one) for one in made)], key=lambda one: one.id)

    def command(self, *words: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = run([*words, "-r", str(self.folder / "repo"), "--json"])
        return Done(code, json.loads(out.getvalue() or "null"), err.getvalue())

    def export(self, target: Target, backup: str, streams: Iterable[str], *, skip_gaps: bool = False) -> Done:
        skips = ["--skip-gaps"] if skip_gaps else []
        return self.command("export", backup, *streams, *target.options, *skips)
