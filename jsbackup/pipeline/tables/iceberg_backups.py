"""Describe backups of a stream as an Iceberg table (version 2), over the segments that are in the repository.

Each backup is a snapshot, with its id as a tag: `SELECT … FROM orders VERSION AS OF '20261121T094249Z-acd9df'`. Nothing
of the segments is read: counts and bounds are in the manifests of the repository. Segments have no field ids, so the
table has a name mapping.

    ORDERS/metadata/version-hint.text         the number of the newest version
    ORDERS/metadata/v3.metadata.json          a version: all backups that there were
    ORDERS/metadata/snap-<id>-<digest>.avro   what a backup has: its lists of files
    ORDERS/metadata/<digest>-m.avro           a list of up to a thousand files, which many backups share

Versions are never changed, and lists are named by their content: only what is new is written. A list says which
snapshot has added a file, so it is shared by backups from the first that has it on.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal

from jsbackup.errors import FormatError, ObjectExists, ObjectNotFound, TargetConflict, UnsupportedError
from jsbackup.model import JsonObject
from jsbackup.pipeline.tables.target import refuse_others
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.names import decode_name, encode_name
from jsbackup.stores.base import Store
from jsbackup.strict_json import read_object, write_json

if TYPE_CHECKING:
    from pyiceberg.io import InputFile, OutputFile
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema

__all__ = ["BackedUp", "IcebergTable", "described_streams", "require_pyiceberg", "write_iceberg"]

_CODEC: Final[Literal["deflate"]] = "deflate"
_HINT: Final = "version-hint.text"
_MAX_BYTES: Final = 256 << 20
_VERSION: Final = re.compile(r"v(\d{1,9})\.metadata\.json")

# Others write the hint at the same time. Whoever comes last finds the newest version.
_ATTEMPTS = 20

_COLUMNS = {"sequence": "long", "timestamp_ns": "long", "subject": "string", "headers": "binary", "data": "binary"}
_OWNER = "jsbackup.repository"

# A list ends after a segment whose digest begins so, or after so many: lists stay the same when segments are added at
# the end, or removed at the beginning.
_END_OF_LIST, _LONGEST_LIST = "00", 1000


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A stream in a backup. `created_ms` is the time of the backup."""

    backup: str
    created_ms: int
    segments: Sequence[SegmentRef]


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """A written table: `metadata` is the location of its newest version. `is_new`: there was none with this content."""

    stream: str
    metadata: str
    backups: int
    files: int
    messages: int
    is_new: bool


def require_pyiceberg() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("pyiceberg") is None:
        raise UnsupportedError(
            "Iceberg tables take the package pyiceberg, which is not installed",
            hint="Install it with `pip install 'jsbackup[iceberg]'`.",
        )


def described_streams(store: Store) -> list[str]:
    """Return the streams that have a table there, if their folders spell their names."""
    ending = f"/metadata/{_HINT}"
    folders = [info.key.removesuffix(ending) for info in store.list() if info.key.endswith(ending)]
    names: list[str] = []
    for folder in folders:
        with suppress(FormatError):
            names += [name] if (name := decode_name(folder)) is not None else []
    return names


def write_iceberg(
    store: Store, location: str, stream: str, backups: Sequence[BackedUp], *, data: str, repository: str = ""
) -> IcebergTable:
    """Write the table of a stream to `store`, which readers know as `location`; segments are below `data`. Backups are
    in the order of their times, at least one. `repository` is the id of theirs.

    Raises:
        TargetConflict: another command writes it at the same time, or something else is there.
        StoreError: it cannot be read or written.
    """
    folder = f"{encode_name(stream)}/metadata"
    there = {info.key.removeprefix(f"{folder}/") for info in store.list(f"{folder}/")}
    last = max((int(found[1]) for name in there if (found := _VERSION.fullmatch(name))), default=0)
    _refuse_others(store, stream, _version_key(folder, last) if last else "", repository)
    writing = _Writing(store, f"{location}/{folder}", folder, data, there)
    snapshots: list[_Snapshot] = []
    for number, one in enumerate(backups, start=1):
        snapshots.append(writing.snapshot(stream, one, number, snapshots[-1] if snapshots else None))
    document = _metadata(f"{location}/{encode_name(stream)}", stream, snapshots, repository)
    is_new = not last or store.get(_version_key(folder, last)) != document
    if is_new:
        last += 1
        try:
            store.put(_version_key(folder, last), document)
        except ObjectExists:
            raise TargetConflict(
                f"another command writes the table of stream {stream} at the same time", hint="Run it again."
            ) from None
    _point_to(store, folder, last)
    newest, metadata = snapshots[-1], f"{location}/{folder}/v{last}.metadata.json"
    return IcebergTable(stream, metadata, len(backups), newest.files, newest.messages, is_new)


def _refuse_others(store: Store, stream: str, version: str, repository: str) -> None:
    """Raise UsageError if there is something else, and TargetConflict for a table of another repository."""
    refuse_others(store, encode_name(stream), stream, re.compile("metadata/(v[0-9]+|version-hint|snap-|[0-9a-f]+-m).*"))
    found = read_object(store.get(version), version, max_bytes=_MAX_BYTES).get("properties") if version else None
    if version and (found if isinstance(found, dict) else {}).get(_OWNER) != repository:
        raise TargetConflict(
            f"the Iceberg table of stream {stream} there is of another repository",
            hint="Name another folder with --output.",
        )


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A written snapshot."""

    id: int
    parent: int | None
    number: int
    backup: str
    created_ms: int
    location: str
    files: int
    messages: int
    bytes: int

    @property
    def json(self) -> JsonObject:
        return {
            "snapshot-id": self.id,
            **({} if self.parent is None else {"parent-snapshot-id": self.parent}),
            "sequence-number": self.number,
            "timestamp-ms": self.created_ms,
            "manifest-list": self.location,
            "summary": {
                "operation": "overwrite",
                "total-data-files": str(self.files),
                "total-records": str(self.messages),
                "total-files-size": str(self.bytes),
                "jsbackup.backup": self.backup,
            },
            "schema-id": 0,
        }


@dataclass(slots=True)
class _Writing:
    """The table in progress. `added` has the snapshot, by id and number, that was the first with a segment."""

    store: Store
    location: str
    folder: str
    data: str
    there: set[str]
    added: dict[str, tuple[int, int]] = field(default_factory=dict)
    lists: dict[str, ManifestFile] = field(default_factory=dict)

    def snapshot(self, stream: str, one: BackedUp, number: int, before: _Snapshot | None) -> _Snapshot:
        """Write what a backup has."""
        from pyiceberg.manifest import write_manifest_list

        snapshot_id, parent = _snapshot_id(stream, one.backup), None if before is None else before.id
        groups = list(_lists_of(one.segments))
        lists = [self._list(refs, snapshot_id, number) for refs in groups]
        paths = [entry.manifest_path for entry in lists]
        name = f"snap-{snapshot_id}-{_digest([*paths, str(number), str(parent)])}.avro"
        file = _file_in_memory(f"{self.location}/{name}")
        with write_manifest_list(2, file, snapshot_id, parent, number, _CODEC) as writer:
            writer.add_manifests(lists)
        self._put(name, file)
        return _Snapshot(
            snapshot_id,
            parent,
            number,
            one.backup,
            one.created_ms,
            f"{self.location}/{name}",
            sum(map(len, groups)),
            sum(ref.messages for refs in groups for ref in refs),
            sum(ref.size for refs in groups for ref in refs),
        )

    def _list(self, refs: Sequence[SegmentRef], snapshot_id: int, number: int) -> ManifestFile:
        """Return the list of these segments; write it unless a backup before has it."""
        from pyiceberg.manifest import write_manifest
        from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC

        key = _digest([ref.key for ref in refs])
        if key in self.lists:
            return self.lists[key]
        entries = [self._entry(ref, snapshot_id, number) for ref in refs]
        about = [f"{ref.key} {self.added[ref.key]}" for ref in refs]
        name = f"{_digest([self.data, *about, str(snapshot_id)])}-m.avro"
        file = _file_in_memory(f"{self.location}/{name}")
        with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, _schema(), file, snapshot_id, _CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        self._put(name, file)
        found = writer.to_manifest_file()
        found.sequence_number = number
        if found.min_sequence_number < 0:  # all of it is new
            found.min_sequence_number = number
        self.lists[key] = found
        return found

    def _entry(self, ref: SegmentRef, snapshot_id: int, number: int) -> ManifestEntry:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
        from pyiceberg.typedef import Record

        added = self.added.setdefault(ref.key, (snapshot_id, number))
        is_new = added == (snapshot_id, number)
        content = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self.data}/{ref.key}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=ref.messages,
            file_size_in_bytes=ref.size,
            column_sizes={},
            value_counts=dict.fromkeys(range(1, len(_COLUMNS) + 1), ref.messages),
            null_value_counts={number: 0 for number, name in enumerate(_COLUMNS, start=1) if name != "headers"},
            nan_value_counts={},
            lower_bounds={1: _bound(ref.first_seq), 2: _bound(ref.min_ns)},
            upper_bounds={1: _bound(ref.last_seq), 2: _bound(ref.max_ns)},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED if is_new else ManifestEntryStatus.EXISTING,
            snapshot_id=added[0],
            sequence_number=None if is_new else added[1],
            file_sequence_number=None if is_new else added[1],
            data_file=content,
        )

    def _put(self, name: str, file: Any) -> None:
        """Put a list. One with this name has the same content, but for what Avro draws at random."""
        if name in self.there:
            return
        try:
            self.store.put(f"{self.folder}/{name}", file.content)
        except ObjectExists:
            return
        self.there.add(name)


def _lists_of(segments: Sequence[SegmentRef]) -> Iterator[list[SegmentRef]]:
    refs: list[SegmentRef] = []
    for ref in segments:
        refs.append(ref)
        if ref.digest.startswith(_END_OF_LIST) or len(refs) == _LONGEST_LIST:
            yield refs
            refs = []
    if refs:
        yield refs


def _metadata(location: str, stream: str, snapshots: Sequence[_Snapshot], repository: str) -> bytes:
    """Return a version, as in https://iceberg.apache.org/spec/#table-metadata."""
    names = [{"field-id": number, "names": [name]} for number, name in enumerate(_COLUMNS, start=1)]
    newest = snapshots[-1]
    fields = [
        {"id": number, "name": name, "required": name != "headers", "type": kind}
        for number, (name, kind) in enumerate(_COLUMNS.items(), start=1)
    ]
    refs = {one.backup: {"snapshot-id": one.id, "type": "tag"} for one in snapshots}
    table = {
        "format-version": 2,
        "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{location}\0{stream}")),
        "location": location,
        "last-sequence-number": len(snapshots),
        "last-updated-ms": newest.created_ms,
        "last-column-id": len(_COLUMNS),
        "schemas": [{"type": "struct", "schema-id": 0, "fields": fields}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "properties": {
            "schema.name-mapping.default": json.dumps(names),
            "jsbackup.stream": stream,
            _OWNER: repository,
        },
        "current-snapshot-id": newest.id,
        "snapshots": [one.json for one in snapshots],
        "snapshot-log": [{"snapshot-id": one.id, "timestamp-ms": one.created_ms} for one in snapshots],
        "metadata-log": [],
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "refs": {"main": {"snapshot-id": newest.id, "type": "branch"}, **refs},
    }
    return write_json(table, "the table", ascii_only=True)


def _schema() -> Schema:
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    fields = [
        NestedField(field_id=number, name=name, field_type=kind, required=name != "headers")
        for number, (name, kind) in enumerate(_COLUMNS.items(), start=1)
    ]
    return Schema(*fields)


def _snapshot_id(stream: str, backup: str) -> int:
    """Return an id that each run gives to a backup."""
    digest = hashlib.sha256(f"{stream}\0{backup}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) >> 1 or 1


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _version_key(folder: str, version: int) -> str:
    """Return the key of a version, of which the metadata are in `folder`."""
    return f"{folder}/v{version}.metadata.json"


def _point_to(store: Store, folder: str, version: int) -> None:
    """Let the hint in `folder` name a version that is there, or a newer one that came meanwhile.

    A store replaces nothing, so for a moment there is no hint. Raises TargetConflict if others write it all the time,
    and StoreError.
    """
    key = f"{folder}/{_HINT}"
    for _ in range(_ATTEMPTS):
        version = _newest_from(store, folder, version)
        try:
            found = store.get_range(key, 0, 64).strip()
        except ObjectNotFound:
            found = None
        if found == str(version).encode():
            return
        if found is not None:
            store.delete(key)
        try:
            store.put(key, str(version).encode())
        except ObjectExists:
            continue
    raise TargetConflict(f"another command writes {key} at the same time", hint="Run it again.")


def _newest_from(store: Store, folder: str, version: int) -> int:
    while True:
        try:
            store.head(_version_key(folder, version + 1))
        except ObjectNotFound:
            return version
        version += 1


def _bound(value: int | bytes) -> bytes:
    """Encode a bound of longs, of times in microseconds, or of strings, which are given as UTF-8."""
    return value if isinstance(value, bytes) else value.to_bytes(8, "little", signed=True)


def _file_in_memory(location: str) -> Any:
    """Return a file for the writers of pyiceberg; `content` has its bytes once it is closed."""
    from pyiceberg.io import OutputFile as Base

    class InMemory(Base):
        content = b""

        def __len__(self) -> int:
            return len(self.content)

        def exists(self) -> bool:
            return False

        def to_input_file(self) -> InputFile:
            raise io.UnsupportedOperation("it is only written")

        def create(self, overwrite: bool = False) -> Any:
            file: OutputFile = self

            class Stream(io.BytesIO):
                def close(self) -> None:
                    if not self.closed:
                        file.content = self.getvalue()  # type: ignore[attr-defined]
                    super().close()

            return Stream()

    return InMemory(location)
