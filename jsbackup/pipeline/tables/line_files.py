"""Read files of JSON lines (`formats/json_lines.py`) as rows, for `import`.

A task has the lines that begin in a piece of a file, or several short files. Lines are read by Python and not by Spark,
so that the output of `export` is read back byte for byte, and errors have their position.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from jsbackup.errors import FormatError, JsBackupError, StoreError, UsageError
from jsbackup.formats.json_lines import JsonLine, decode_line
from jsbackup.pipeline.tasks.packing import pack

__all__ = ["LINE_SCHEMA", "FilePiece", "ReadLines", "line_tasks"]

_COLUMNS = ("stream", "sequence", "timestamp_ns", "subject", "headers", "data")
_TYPES = (pa.string(), pa.int64(), pa.int64(), pa.string(), pa.binary(), pa.binary())
LINE_SCHEMA = pa.schema(list(zip(_COLUMNS, _TYPES, strict=True)))

_PIECE_BYTES = 32 << 20

# A message has up to 96 MiB, and up to six times that as JSON.
_MAX_LINE_BYTES = 640 << 20

# A batch for Spark.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 4 << 20


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The lines of a file that begin at the byte `start` or later, and before `end`."""

    path: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadLines:
    """A task: yields the messages of the lines, in batches. Blank lines are skipped.

    Raises:
        FormatError: a line is not JSON.
        UsageError: a line is not a message, or the file does not exist on this node.
        StoreError: a file cannot be read.
    """

    pieces: tuple[FilePiece, ...]

    def __call__(self) -> Iterator[pa.RecordBatch]:
        waiting: list[JsonLine] = []
        size = 0
        for piece in self.pieces:
            for at, text in _lines(piece):
                waiting.append(_decoded(piece, at, text))
                size += len(text)
                if len(waiting) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                    yield _batch(waiting)
                    waiting, size = [], 0
        if waiting:
            yield _batch(waiting)


def line_tasks(files: Iterable[str]) -> list[ReadLines]:
    """Return tasks that read the messages of files; none if these are empty.

    Raises:
        UsageError: there is no such file.
        StoreError: it cannot be read.
    """
    pieces = [piece for path in files for piece in _pieces(path)]
    return [
        ReadLines(tuple(pieces[part])) for part in pack([piece.end - piece.start for piece in pieces], _PIECE_BYTES)
    ]


def _pieces(path: str) -> Iterator[FilePiece]:
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    for start in range(0, size, _PIECE_BYTES):
        yield FilePiece(path, start, min(size, start + _PIECE_BYTES))


def _lines(piece: FilePiece) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its position."""
    try:
        with Path(piece.path).open("rb") as file:
            if piece.start:  # the line before belongs to the previous piece
                file.seek(piece.start - 1)
                while (skipped := file.readline(_BATCH_BYTES)) and not skipped.endswith(b"\n"):
                    pass
            while (at := file.tell()) < piece.end and (line := file.readline(_MAX_LINE_BYTES + 1)):
                if len(line) > _MAX_LINE_BYTES:
                    raise FormatError(f"{_place(piece, at)}: longer than any message is")
                if not line.isspace():
                    yield at, line
    except OSError as error:
        raise _unreadable(piece.path, error) from error


def _decoded(piece: FilePiece, at: int, text: bytes) -> JsonLine:
    try:
        return decode_line(text)
    except (FormatError, UsageError) as error:
        raise type(error)(f"{_place(piece, at)}: {error.message}") from error


def _place(piece: FilePiece, at: int) -> str:
    """Say which line of the file begins at the byte `at`. Lines are counted only now that something is wrong."""
    number, rest = 1, at
    with suppress(OSError), Path(piece.path).open("rb") as file:
        while rest and (data := file.read(min(rest, _BATCH_BYTES))):
            number += data.count(b"\n")
            rest -= len(data)
    return f"{Path(piece.path).name}, line {number:,} at byte {at}"


def _batch(lines: Sequence[JsonLine]) -> pa.RecordBatch:
    stream, sequence, timestamp_ns, subject, headers, data = zip(*lines, strict=True)
    arrays = [
        pa.array(stream, pa.string()),
        pa.array(sequence, pa.int64()),
        pa.array(timestamp_ns, pa.int64()),
        pa.array(subject, pa.binary()).view(pa.string()),  # unchanged bytes, see `columns.py`
        pa.array(headers, pa.binary()),
        pa.array(data, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=LINE_SCHEMA)


def _unreadable(path: str, error: OSError) -> JsBackupError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"there is no file {path}", hint="Where the work is spread, every node has to see it.")
    return StoreError(f"{path} cannot be read: {os.strerror(error.errno or 0).lower()}")
