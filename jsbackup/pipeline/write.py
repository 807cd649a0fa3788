"""A DataFrame becomes a backup, ready to be restored.

Executors store segments; the driver checks what they have made and commits the manifest, last. So whoever is stopped,
and wherever, leaves no backup or a whole one.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jsbackup import __version__
from jsbackup.engine.lease_renewal import hold_lease
from jsbackup.errors import FormatError, RepositoryLocked, UsageError
from jsbackup.model import JsonObject, StreamState
from jsbackup.pipeline.columns import ddl
from jsbackup.pipeline.failures import explained
from jsbackup.pipeline.place import Place
from jsbackup.pipeline.session import attach
from jsbackup.repository import layout, leases
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Manifest,
    Result,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.repository import Repository
from jsbackup.times import ZERO_TIME, format_time

__all__ = ["TableStream", "write_backup"]

_COLUMNS = ("sequence", "timestamp_ns", "subject", "headers", "data")
_WAIT_SECONDS = 660.0


@dataclass(frozen=True, slots=True)
class TableStream:
    """A stream to be made of a DataFrame with the columns sequence, timestamp_ns, subject, data, and headers if any.

    Sequences are from 1 on, each once, in any order. `config` is the stream's configuration as a server knows it, of
    which a restore makes the stream; without one it is a file stream with its own name as its subject.
    """

    frame: DataFrame
    config: JsonObject = field(default_factory=dict)


def write_backup(
    session: SparkSession,
    place: Place,
    streams: Mapping[str, TableStream],
    *,
    tags: Mapping[str, str] | None = None,
    origin: str = "a table",
) -> Manifest:
    """Make a backup of streams by their names, in a repository that exists; gives its manifest.

    `origin` says where the messages come from, as `show` tells it.

    Raises:
        UsageError: a column is missing or has another type, or a row lacks a value.
        FormatError: a sequence comes twice, or is less than 1.
        KeyUnavailable: the repository takes a writer key, and none was given.
        RepositoryLocked, StoreError: nothing can be stored now.
    """
    if not streams:
        raise UsageError("a backup of no streams is none")
    attach(session)
    repository = place.open()
    repository.documents.ensure_writable()
    frames = {name: _checked(name, table.frame) for name, table in streams.items()}
    begun_ns = time.time_ns()
    tool = f"jsbackup {__version__}"
    host = socket.gethostname().encode("ascii", "backslashreplace").decode()[:100]
    terms = leases.Terms(leases.Mode.SHARED, "import", tool, host, format_time(begun_ns))
    with hold_lease(repository.store, terms, wait_seconds=_WAIT_SECONDS, waiting=_wait) as lease:
        stored = []
        for name, frame in sorted(frames.items()):
            lease.check()
            stored.append(_store(repository, place, name, frame, streams[name].config, begun_ns))
        previous = next(reversed(repository.backups()), None)
        manifest = Manifest(
            id=layout.backup_id(begun_ns, os.urandom(3), previous),
            created=format_time(begun_ns),
            tool=tool,
            source=Source(extra={"imported": {"from": origin}}),
            result=Result.COMPLETE,
            streams=tuple(stored),
            tags=dict(tags or {}),
            previous=previous,
        )
        leases.commit(repository, manifest, lease)
    return manifest


def _wait(_error: RepositoryLocked) -> None:
    """Nobody is told: this may be a notebook."""


def _checked(name: str, frame: DataFrame) -> DataFrame:
    """The frame with our columns alone, cast where nothing is lost."""
    if "headers" not in frame.columns:
        frame = frame.withColumn("headers", F.lit(None).cast("binary"))
    missing = [column for column in _COLUMNS if column not in frame.columns]
    if missing:
        raise UsageError(f"the table of stream {name} has no column {missing[0]}")
    wanted = {"sequence": ("bigint", "int"), "timestamp_ns": ("bigint",), "subject": ("string",)}
    types = dict(frame.dtypes)
    for column in _COLUMNS:
        allowed = wanted.get(column, ("binary", "string"))
        if types[column] not in allowed:
            raise UsageError(f"column {column} of stream {name} is {types[column]}, not {allowed[0]}")
    return frame.select(*(F.col(part.split()[0]).cast(part.split()[1]) for part in ddl(_COLUMNS).split(", ")))


def _store(
    repository: Repository, place: Place, name: str, frame: DataFrame, config: JsonObject, begun_ns: int
) -> StreamBackup:
    incarnation = layout.incarnation("", "", name, ZERO_TIME)
    folder = repository.objects.sealing.folder(name, incarnation)
    ordered = frame.repartitionByRange("sequence").sortWithinPartitions("sequence")
    with tempfile.TemporaryDirectory(prefix="jsbackup-write-") as temporary, explained(f"storing stream {name}"):
        result = Path(temporary) / "segments"
        options = {"place": pickle.dumps(place).hex(), "folder": folder, "result": str(result)}
        ordered.write.format("jsbackup_segments").options(**options).mode("append").save()
        parts: list[Sequence[SegmentRef]] = pickle.loads(result.read_bytes())
    segments = sorted((ref for part in parts for ref in part), key=lambda ref: ref.first_seq)
    for before, after in pairwise(segments):
        if after.first_seq <= before.last_seq:
            raise FormatError(f"stream {name} has sequence {after.first_seq} twice")
    total = total_of(segments)
    begun = format_time(begun_ns)
    return StreamBackup(
        name=name,
        incarnation=incarnation,
        config={"subjects": [name], "retention": "limits", "storage": "file", **config, "name": name},
        created=ZERO_TIME,
        state=StreamState(
            messages=total.messages,
            bytes=total.bytes,
            first_seq=total.first_seq,
            last_seq=total.last_seq,
            deleted=total.last_seq - total.first_seq + 1 - total.messages if segments else 0,
        ),
        captured=Captured(
            total.messages, total.bytes, total.first_seq, total.last_seq, begun, format_time(time.time_ns())
        ),
        archive_format=ArchiveFormat.MESSAGES,
        digest=total.digest,
        segments=tuple(segments),
    )
