"""Find tables of messages in local files.

A table is a folder with a folder for each stream, named as by `export`, or, if an option names the stream, one file or
all files in a folder. Hidden files are skipped, and names that begin with `_`, which writers of tables use for other
files, except for a stream's own folder; one that is called as a file of rows is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from jsbackup.errors import FormatError, StoreError, UsageError
from jsbackup.exchange.folder import printable_name
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.json_lines import decode_line
from jsbackup.pipeline.tables.target import LOG_FOLDER
from jsbackup.pipeline.tables.writing import TableFormat
from jsbackup.repository.layout import decode_name, encode_name

__all__ = ["Table", "find_tables", "refuse_other_streams"]

# The folder of one value of the column `stream`, of which Spark reads nothing where it is given files.
_PARTITION = re.compile(r"stream=(.*)", re.IGNORECASE | re.DOTALL)
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

_FIRST_LINE_BYTES = 64 << 20

# What files of rows are called, in lower case. The copies of macOS, `._x.parquet`, have none.
_OF_KIND = {TableFormat.PARQUET: (".parquet", ".parq", ".pq"), TableFormat.JSONL: (".jsonl", ".ndjson", ".json")}
_OF_ROWS = tuple(ending for endings in _OF_KIND.values() for ending in endings)
_CALLED = {TableFormat.PARQUET: "a Parquet file", TableFormat.JSONL: "a file of JSON lines"}
# What such files begin with.
_BEGINS = {TableFormat.PARQUET: b"PAR1", TableFormat.JSONL: b"{"}
_LOOKED_AT_BYTES = 4096
_OF_MACOS = "._"

# A version of a table of Iceberg, by any writer.
_ICEBERG = re.compile(r"\.metadata\.json(?:\.gz)?$")
# Of folders in such a table: `data`, and partitions.
_LEVELS = 5
_PLAIN = "Write its rows out as plain Parquet, and give the folder of that."


@dataclass(frozen=True, slots=True)
class Table:
    """The files of one stream. `alone`: it is the only one, and was named by an option. `any_headers`: its headers are
    those of a server, whatever they are, and not made by somebody.
    """

    stream: str
    files: tuple[str, ...]
    bytes: int
    alone: bool
    any_headers: bool = False


def find_tables(path: Path, kind: TableFormat, stream: str | None) -> list[Table]:
    """Return the tables at `path`, in order of streams. With `stream` it is one table, of that stream.

    Raises:
        UsageError: there is no table, or its streams are not known.
        FormatError: the file with the name of its stream is damaged.
        StoreError: it cannot be read.
    """
    path = path.absolute()
    shown = printable_name(str(path))
    if not path.exists():
        raise UsageError(f"there is no table {shown}")
    _refuse_lake(path)
    _refuse_part_of_lake(path)
    if stream is not None:
        if not asset_name_is_sound(stream):
            raise UsageError(f"not a stream's name: {stream[:80]!r}")
        return [_table(stream, path, kind, alone=True)]
    entries = [path]
    if path.is_dir():
        entries = [e for e in _entries(path) if e.name != LOG_FOLDER and (e.is_dir() or not e.name.startswith("_"))]
    if not all(entry.is_dir() for entry in entries):
        raise UsageError(f"{shown} does not say of which stream it is", hint="Name it with --stream.")
    tables = [_table(_stream_of(folder, kind), folder, kind, alone=False) for folder in entries]
    if not tables:
        raise UsageError(f"there is no table in {shown}")
    return sorted(tables, key=lambda table: table.stream)


def refuse_other_streams(stream_names: Collection[str | None], stream: str, *, given: bool) -> None:
    """Raise UsageError if rows that are to become `stream` name several streams, or another one than their folder.

    `stream_names` are the names in the rows, None of those that have none: these are of `stream`. With `given`, an
    option named the stream: then it may be a new name.
    """
    names = {stream if name is None else name for name in stream_names}
    if len(names) > 1:
        shown = " and ".join(printable_name(name[:80]) for name in sorted(names)[:2])
        raise UsageError(
            f"the table has messages of several streams, such as {shown}",
            hint="Give each stream a folder of its own.",
        )
    if names - {stream} and not given:
        raise UsageError(
            f"the folder of stream {printable_name(stream[:80])} has messages of stream "
            f"{printable_name(min(names)[:80])}",
            hint="Rename the folder, or give only this folder, with the name that is meant as --stream.",
        )


def _table(stream: str, path: Path, kind: TableFormat, *, alone: bool) -> Table:
    try:
        sizes = {str(file): file.stat().st_size for file in _files(path)}
        for file in sizes:
            _refuse_of_others(Path(file), kind)
        refuse_other_streams({_named_by_folder(Path(file), path) for file in sizes}, stream, given=alone)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not sizes:
        raise UsageError(f"there is no file in {printable_name(str(path))}")
    # JSON lines say it themselves: what is no block of headers is in `headers_base64`.
    exported = any((folder / LOG_FOLDER).is_dir() for folder in (path, *path.parents[:3]))
    any_headers = kind is TableFormat.JSONL or exported
    return Table(stream, tuple(sorted(sizes)), sum(sizes.values()), alone, any_headers)


def _refuse_of_others(file: Path, kind: TableFormat) -> None:
    """Refuse a file that neither is called as one of this format nor begins so: it is not damaged, but of another."""
    if file.name.lower().endswith(_OF_KIND[kind]):
        if kind is TableFormat.PARQUET and not file.stat().st_size:
            raise FormatError(f"{printable_name(str(file))} is empty, and no Parquet file")
        return
    with file.open("rb") as opened:
        begins = opened.read(_LOOKED_AT_BYTES).lstrip(b"" if kind is TableFormat.PARQUET else None)
    if begins and not begins.startswith(_BEGINS[kind]):
        raise UsageError(
            f"{printable_name(str(file))} is not {_CALLED[kind]}",
            hint="Take it away if it is not of the table; else give the --format that it has.",
        )


def _named_by_folder(file: Path, root: Path) -> str | None:
    """Return the stream that a folder below `root` names as Hive does, such as `stream=A`."""
    for part in file.relative_to(root).parts[:-1]:
        if match := _PARTITION.fullmatch(part):
            return None if match[1] == _NO_VALUE else unquote(match[1])
    return None


def _files(path: Path) -> Iterator[Path]:
    """Yield the files below. Raises UsageError for a table of Delta or Iceberg, and for a link to a folder, which may
    lead back up.
    """
    if path.is_file():
        yield path
    elif path.is_dir():
        _refuse_lake(path)
        for entry in _entries(path):
            if entry.name.startswith("_"):
                _refuse_rows(entry)
            elif entry.is_symlink() and entry.is_dir():
                raise UsageError(
                    f"{printable_name(str(entry))} is a link to a folder, which is not followed",
                    hint="Take it away if that has no messages of the table; else put the files here.",
                )
            else:
                yield from _files(entry)


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder that are not hidden, in order. Raises UsageError if a hidden one may have rows."""
    try:
        entries = sorted(folder.iterdir())
        for entry in entries:
            if entry.name.startswith(".") and not entry.name.startswith(_OF_MACOS):
                _refuse_rows(entry)
        return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise _unreadable(folder, error) from error


def _refuse_lake(path: Path) -> None:
    """Refuse a table of which only its log or metadata says which files count, and these themselves."""
    log, metadata = path / "_delta_log", path / "metadata"
    if log.exists() or _is_metadata(metadata):
        kind = "a Delta" if log.exists() else "an Iceberg"
        raise UsageError(f"{printable_name(str(path))} is {kind} table, of which files may be obsolete", hint=_PLAIN)
    for folder in (path, path.parent):
        if folder.name == log.name or (folder.name == metadata.name and _is_metadata(folder)):
            what = "log of a Delta" if folder.name == log.name else "metadata of an Iceberg"
            raise UsageError(
                f"{printable_name(str(path))} is of the {what} table, {printable_name(str(folder.parent))}, "
                "and has no messages",
                hint=_PLAIN,
            )


def _refuse_part_of_lake(path: Path) -> None:
    """Refuse a file or folder within a table of Delta or Iceberg: rows that were deleted from that would come back."""
    for folder in islice(path.resolve().parents, _LEVELS):
        with suppress(OSError, StoreError):  # of somebody else
            is_delta = (folder / "_delta_log").is_dir()
            if not is_delta and not _is_metadata(folder / "metadata"):
                continue
            kind = "Delta" if is_delta else "Iceberg"
            raise UsageError(
                f"{printable_name(str(path))} is of the {kind} table {printable_name(str(folder))}, of which files may "
                "be obsolete",
                hint=_PLAIN,
            )


def _is_metadata(folder: Path) -> bool:
    """Return whether these are the metadata of a table of Iceberg."""
    try:
        return any(_ICEBERG.search(entry.name) for entry in folder.iterdir()) if folder.is_dir() else False
    except OSError as error:
        raise _unreadable(folder, error) from error


def _refuse_rows(entry: Path) -> None:
    """Refuse a file whose name ends as that of one with rows, and begins so that it is skipped."""
    if entry.name.lower().endswith(_OF_ROWS) and entry.is_file():
        raise UsageError(
            f"{printable_name(str(entry))} would be left out, as its name begins with {entry.name[0]!r}",
            hint="Rename it if it has messages, and take it away if it has none.",
        )


def _stream_of(folder: Path, kind: TableFormat) -> str:
    """Return the stream of a folder; from the first row if its name is too long for a folder."""
    try:
        name = decode_name(folder.name)
    except FormatError as error:
        raise UsageError(
            f"folder {printable_name(folder.name)} does not have the name of an exported stream",
            hint="Name the stream with --stream if all of it is one table.",
        ) from error
    if name is None:
        name = _first_stream(next(_files(folder), folder), kind)
    if name is None or encode_name(name) != folder.name or not asset_name_is_sound(name):
        raise UsageError(f"folder {printable_name(folder.name)} does not say of which stream it is")
    return name


def _first_stream(file: Path, kind: TableFormat) -> str | None:
    try:
        if kind is TableFormat.JSONL:
            with file.open("rb") as lines:
                return decode_line(lines.readline(_FIRST_LINE_BYTES)).stream
        with pq.ParquetFile(file) as table:
            columns = [name for name in table.schema_arrow.names if name.lower() == "stream"]
            for batch in table.iter_batches(1, columns=columns) if columns else ():
                name = batch.column(0)[0].as_py()
                return name if isinstance(name, str) else None
    except OSError as error:
        raise _unreadable(file, error) from error
    except (pa.ArrowException, ValueError) as error:
        raise FormatError(f"{printable_name(str(file))} is not a Parquet file, or a damaged one") from error
    return None


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{printable_name(str(path))} cannot be read: {os.strerror(error.errno or 0).lower()}")
