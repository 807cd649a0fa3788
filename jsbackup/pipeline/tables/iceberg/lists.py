"""Lists of files of an Iceberg table, in Avro, as they are read: by pyiceberg, from bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jsbackup.errors import FormatError
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.tables.iceberg.metadata_files import file_of
from jsbackup.pipeline.tables.table_log import ANY_RANGE, FileRange, range_of

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile

__all__ = ["DAMAGE", "known_lists", "known_ranges"]

DAMAGE = (ValueError, TypeError, LookupError, EOFError, ArithmeticError, AssertionError, struct.error, zlib.error)
"""What readers of pyiceberg raise for files that are damaged."""


# The number that the column `sequence` has in all our tables (`columns.py`).
_SEQUENCE = 1 + COLUMNS.index("sequence")


def known_lists(name: str, location: str, content: bytes) -> list[ManifestFile]:
    """Read the lists of files of a snapshot. Raises FormatError."""
    from pyiceberg.manifest import read_manifest_list

    try:
        return list(read_manifest_list(file_of(location, content)))
    except DAMAGE as error:
        raise FormatError(f"the list {location} of the Iceberg table of stream {name} is damaged") from error


def known_ranges(name: str, lists: Iterable[ManifestFile], read: Callable[[str], bytes]) -> list[FileRange]:
    """Return the ranges of the files in `lists`, with their locations instead of keys; those of files of other programs
    by the bounds of sequences, or as if they may be of any messages. `read` returns the content of a list at a
    location, and may raise.

    Raises:
        FormatError: a list is damaged.
    """
    from pyiceberg.manifest import ManifestContent

    ranges = []
    for one in lists:
        if one.content != ManifestContent.DATA:  # rows that others have deleted were there
            continue
        there: Any = _OneFile(read(one.manifest_path))
        try:
            entries = one.fetch_manifest_entry(there)
        except DAMAGE as error:
            raise FormatError(f"a list of files of the Iceberg table of stream {name} is damaged") from error
        files = [entry.data_file for entry in entries]
        ranges += [_range_of(file) for file in files]
    return ranges


def _range_of(file: DataFile) -> FileRange:
    path, rows = file.file_path, file.record_count
    if named := range_of(path, rows, path):
        return named
    ends = [(bounds or {}).get(_SEQUENCE, b"") for bounds in (file.lower_bounds, file.upper_bounds)]
    if any(len(end) != 8 for end in ends):
        return ANY_RANGE._replace(key=path)
    first, last = (int.from_bytes(end, "little", signed=True) for end in ends)
    return FileRange(first, last, rows, path)


class _OneFile:
    """What readers of pyiceberg take for a place to read from, with one file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def new_input(self, location: str) -> Any:
        return file_of(location, self._content)
