"""The metadata of an Iceberg table (version 2) of messages: the first version, and others that add files.

How far a table goes is in its properties, which a version replaces together with its snapshot: what the table is made
of (`TableSource`), the position, and the last snapshot of an export. They survive what other programs write. A table
that was set back to a snapshot before that one is recognized by it: its position would say too much.

Everything that other programs have written is kept: deleted rows, joined files, tags.

Partitions are the identity of `subject`, and the day of `time`. Files have all columns, so a day needs none.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jsbackup.errors import FormatError, JsBackupError, UnsupportedError, UsageError
from jsbackup.model import JsonObject
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.tables.iceberg.columns import iceberg_fields, last_id
from jsbackup.pipeline.tables.iceberg.lists import DAMAGE
from jsbackup.pipeline.tables.iceberg.metadata_files import CODEC, MAX_BYTES, bare, bound, file_in_memory
from jsbackup.pipeline.tables.table_state import TablePosition, TableSource, TableState
from jsbackup.pipeline.tables.writing import WrittenFile
from jsbackup.strict_json import read_object, write_json

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile

__all__ = ["KnownTable", "NewSnapshot", "known_table", "next_version", "was_exported"]

_SOURCE: Final = "jsbackup.export"
_POSITION: Final = "jsbackup.position"
_SNAPSHOT: Final = "jsbackup.snapshot"
_OVER_SEGMENTS: Final = "jsbackup.repository"  # of a table that `jsbackup iceberg` has made

_LONGEST_LIST = 10_000  # files
_MOST_VERSIONS = 100  # that a version names; the default of other writers
_MAX_SUBJECT_BYTES = 512  # longer subjects would make lists of many files large
_FIRST_PARTITION_ID = 1000
_DAY_0 = date(1970, 1, 1)
_UNKNOWN = -1  # written by some for no snapshot


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A version that was read, with the lists of files of its snapshot."""

    version: int
    location: str
    document: JsonObject
    state: TableState
    snapshot: JsonObject | None
    lists: Sequence[ManifestFile] = ()


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """What a version adds. `names` are those of the files that it is made of, by their content."""

    document: bytes
    files: Mapping[str, bytes]


def known_table(name: str, version: int, data: bytes, location: str) -> KnownTable:
    """Read a version of the table of the stream called `name`, which should be at `location`.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: others have changed it so that it cannot be extended, or it is of a newer version.
        UsageError: no export has made it, or it was moved.
    """
    what = f"the metadata v{version} of the table of stream {name}"
    document = read_object(data, what, max_bytes=MAX_BYTES)
    properties = document.get("properties")
    if not isinstance(properties, dict) or _SOURCE not in properties:
        made = "`jsbackup iceberg`" if properties and _OVER_SEGMENTS in properties else "something else"
        raise UsageError(
            f"the Iceberg table of stream {name} does not say how far it goes: {made} has made it",
            hint="Export to another folder; --append can extend that.",
        )
    texts = [properties.get(one) for one in (_SOURCE, _POSITION, _SNAPSHOT)]
    source, position, last = (one if isinstance(one, str) else "" for one in texts)
    state = TableState(
        TableSource.from_json(read_object(source, what), what),
        TablePosition.from_json(read_object(position, what), what),
    )
    if document.get("format-version") != 2:
        raise _changed(name, f"is of version {str(document.get('format-version'))[:20]} by now")
    snapshot = _snapshot_of(document, what)
    if bare(document["location"]) != bare(location):
        raise UsageError(
            f"the Iceberg table of stream {name} was made at {document['location']}, and is at {location} now: its "
            "files are not found there",
            hint="Move it back, or export to another folder.",
        )
    if document["current-schema-id"] != 0 or document["default-spec-id"] != 0:
        raise _changed(name, "has other columns or partitions by now")
    if last and not _is_after(document, int(last) if last.isdecimal() else _UNKNOWN):
        raise _changed(name, "was set back or made again, or lost snapshots since the last export")
    return KnownTable(version, location, document, state, snapshot)


def was_exported(properties: Mapping[str, object]) -> bool:
    """Return whether an export has made the table with these properties."""
    return _SOURCE in properties


def next_version(
    known: KnownTable | None,
    files: Sequence[WrittenFile],
    schema: pa.Schema,
    *,
    location: str,
    name: str,
    backup: str,
    now_ms: int,
    token: str,
    state: TableState,
) -> NewSnapshot:
    """Return the version after the one that is known, or the first one, with more files: there is no snapshot without.

    `schema` is that of the files, `name` that of the stream, and `backup` the id that all their rows have; `location`
    is that of the table. `token` is random.

    Raises:
        UnsupportedError: the table has other columns, or some that Iceberg has not.
    """
    fields = iceberg_fields(schema)
    if known is None:
        seed = f"{location}\0{now_ms}\0{token}"
        document = _new_document(location, name, fields, partition=state.source.partition, seed=seed)
    else:
        document = dict(known.document)
        if not any(one["schema-id"] == 0 and one["fields"] == fields for one in document["schemas"]):
            raise _changed(name, "has other columns by now")
        then = document["last-updated-ms"]
        version = {"timestamp-ms": then, "metadata-file": f"{location}/metadata/v{known.version}.metadata.json"}
        document["metadata-log"] = [*document.get("metadata-log", []), version][-_MOST_VERSIONS:]
        now_ms = max(now_ms, then)
    document["last-updated-ms"] = now_ms
    properties = dict(document["properties"])
    written: dict[str, bytes] = {}
    if files:
        constants = {"stream": name, "backup": backup}
        writing = _Writing(known, document, location=location, constants=constants, token=token)
        snapshot = writing.snapshot(files, now_ms)
        number = snapshot["snapshot-id"]
        properties[_SNAPSHOT] = str(number)
        refs = document.get("refs") or {}
        document |= {
            "last-sequence-number": snapshot["sequence-number"],
            "current-snapshot-id": number,
            "snapshots": [*document["snapshots"], snapshot],
            "snapshot-log": [*document["snapshot-log"], {"snapshot-id": number, "timestamp-ms": now_ms}],
            "refs": {**refs, "main": {"type": "branch", **refs.get("main", {}), "snapshot-id": number}},
        }
        written = writing.files
    properties[_SOURCE] = write_json(state.source.to_json(), "a table").decode()
    properties[_POSITION] = write_json(state.position.to_json(), "a table").decode()
    document["properties"] = properties
    return NewSnapshot(write_json(document, "the table", ascii_only=True), written)


def _new_document(location: str, name: str, fields: Sequence[JsonObject], *, partition: str, seed: str) -> JsonObject:
    parts: list[JsonObject] = []
    if partition:
        source, transform = ("subject", "identity") if partition == "subject" else ("time", "day")
        number = next(field["id"] for field in fields if field["name"] == source)
        called = "subject" if partition == "subject" else "time_day"  # as other writers call it
        parts = [{"source-id": number, "field-id": _FIRST_PARTITION_ID, "name": called, "transform": transform}]
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, seed)),
        "location": location,
        "last-sequence-number": 0,
        "last-column-id": last_id(fields),
        "schemas": [{"type": "struct", "schema-id": 0, "fields": list(fields)}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": parts}],
        "default-spec-id": 0,
        "last-partition-id": _FIRST_PARTITION_ID - (0 if parts else 1),
        "properties": {"jsbackup.stream": name},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "refs": {},
    }


class _Writing:
    """A snapshot in progress. `files` has the content of its lists, by name."""

    def __init__(
        self, known: KnownTable | None, document: JsonObject, *, location: str, constants: Mapping[str, str], token: str
    ) -> None:
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema

        self._parent, self._lists = (None, ()) if known is None else (known.snapshot, known.lists)
        self._location, self._constants, self._token = f"{location}/metadata", constants, token
        self._data = f"{location}/data"
        self._number = document["last-sequence-number"] + 1
        seed = f"{document['table-uuid']}\0{self._number}\0{token}"
        self._id = uuid.uuid5(uuid.NAMESPACE_URL, seed).int >> 65 or 1  # positive, as a long
        self._schema = Schema.model_validate(next(one for one in document["schemas"] if one["schema-id"] == 0))
        specs = document["partition-specs"]
        self._spec = PartitionSpec.model_validate(next(one for one in specs if one["spec-id"] == 0))
        self._ids = {field.name: field.field_id for field in self._schema.fields}
        self.files: dict[str, bytes] = {}

    def snapshot(self, files: Sequence[WrittenFile], now_ms: int) -> JsonObject:
        """Write the lists, and return the snapshot of them and those that were there."""
        from pyiceberg.manifest import write_manifest_list

        lists = [*self._lists]
        for start in range(0, len(files), _LONGEST_LIST):
            lists.append(self._list(files[start : start + _LONGEST_LIST], start // _LONGEST_LIST))
        parent = None if self._parent is None else self._parent["snapshot-id"]
        name = f"snap-{self._id}-{self._token}.avro"
        file = file_in_memory(f"{self._location}/{name}")
        with write_manifest_list(2, file, self._id, parent, self._number, CODEC) as writer:
            writer.add_manifests(lists)
        self.files[name] = file.content
        return {
            "snapshot-id": self._id,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "sequence-number": self._number,
            "timestamp-ms": now_ms,
            "manifest-list": file.location,
            "summary": self._summary(files),
            "schema-id": 0,
        }

    def _summary(self, files: Sequence[WrittenFile]) -> dict[str, str]:
        added = {
            "data-files": len(files),
            "records": sum(file.rows for file in files),
            "files-size": sum(file.bytes for file in files),
        }
        before = {} if self._parent is None else self._parent.get("summary") or {}
        summary = {"operation": "append", "jsbackup.backup": self._constants["backup"]}
        summary |= {f"added-{what}": str(value) for what, value in added.items()}
        deletes = dict.fromkeys(("delete-files", "position-deletes", "equality-deletes"), 0)
        for what, value in {**added, **deletes}.items():
            total = before.get(f"total-{what}", "" if self._parent else "0")
            if isinstance(total, str) and total.isdecimal():  # else not known
                summary[f"total-{what}"] = str(int(total) + value)
        return summary

    def _list(self, files: Sequence[WrittenFile], number: int) -> ManifestFile:
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, write_manifest

        name = f"{self._id}-{self._token}-m{number}.avro"
        output = file_in_memory(f"{self._location}/{name}")
        with write_manifest(2, self._spec, self._schema, output, self._id, CODEC) as writer:
            for file in files:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self._file(file),
                )
                writer.add_entry(entry)
        self.files[name] = output.content
        return writer.to_manifest_file()

    def _file(self, file: WrittenFile) -> DataFile:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        lower, upper, nulls = _statistics(file, self._constants)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._data}/{file.path()}",
            file_format=FileFormat.PARQUET,
            partition=Record(*self._partition(file)),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            column_sizes={},
            value_counts={self._ids[name]: file.rows for name in nulls},
            null_value_counts={self._ids[name]: count for name, count in nulls.items()},
            nan_value_counts={},
            lower_bounds={self._ids[name]: bound(value) for name, value in lower.items()},
            upper_bounds={self._ids[name]: bound(value) for name, value in upper.items()},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )

    def _partition(self, file: WrittenFile) -> list[Any]:
        if not self._spec.fields:
            return []
        if self._spec.fields[0].name == "subject":
            return [file.partition]
        return [(date.fromisoformat(file.partition) - _DAY_0).days]


def _statistics(
    file: WrittenFile, constants: Mapping[str, str]
) -> tuple[dict[str, int | bytes], dict[str, int | bytes], dict[str, int]]:
    """Return lower and upper bounds and counts of nulls of columns. Readers open a file for columns that have none."""
    nulls, bounds = dict.fromkeys(COLUMNS, 0), file.bounds
    if bounds is None:
        return {}, {}, {}
    nulls["headers"] = bounds.no_headers
    lower, upper = (
        {name: value.encode() for name, value in constants.items() if len(value.encode()) <= _MAX_SUBJECT_BYTES}
        | {
            "sequence": bounds.sequence[end],
            "timestamp_ns": bounds.timestamp_ns[end],
            "time": bounds.timestamp_ns[end] // 1000,
        }
        | ({"subject": bounds.subject[end]} if _is_text(bounds.subject) else {})
        for end in (0, 1)
    )
    return lower, upper, nulls


def _is_text(subjects: Sequence[bytes]) -> bool:
    try:
        return all(one.decode() is not None and len(one) <= _MAX_SUBJECT_BYTES for one in subjects)
    except UnicodeDecodeError:
        return False


def _snapshot_of(document: JsonObject, what: str) -> JsonObject | None:
    """Return the current snapshot of metadata. Raises FormatError if they are damaged."""
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.table.metadata import TableMetadataV2

    try:
        parsed = TableMetadataV2.model_validate(document)
        current = parsed.current_snapshot()
    except (*DAMAGE, ValidationError) as error:
        raise FormatError(f"{what} is damaged") from error
    if current is None:
        if parsed.current_snapshot_id is not None:
            raise FormatError(f"{what} is damaged: it lacks its snapshot")
        return None
    found: JsonObject = next(one for one in document["snapshots"] if one["snapshot-id"] == current.snapshot_id)
    return found


def _is_after(document: JsonObject, last: int) -> bool:
    """Return whether the current snapshot is the one with the id `last`, or surely follows it."""
    parents = {one["snapshot-id"]: one.get("parent-snapshot-id") for one in document["snapshots"]}
    found, seen = document.get("current-snapshot-id"), set()
    while found != last and found in parents and found not in seen:
        seen.add(found)
        found = parents[found]
    return bool(found == last)


def _changed(name: str, how: str) -> JsBackupError:
    return UnsupportedError(
        f"the Iceberg table of stream {name} {how}, and cannot be extended", hint="Export to another folder."
    )
