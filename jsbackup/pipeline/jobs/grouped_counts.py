"""Count by keys that may be more than fit into memory: sorted runs go to temporary files, and are merged at the end.

Rows are counted in memory until they take `limit_bytes`; then they are written, sorted, as a run. Sixteen runs of a
level are merged to one of the next, so that few are read at once. A merge reads the runs side by side, in small
batches, and yields rows in the order of their keys.

The files have no name, so nothing of them stays, even after a crash. They have the keys in plain text.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import StoreError

__all__ = ["GroupedCounts"]

_LIMIT_BYTES = 8 << 20
_MOST_RUNS = 16
_BATCH_ROWS = 4096


class GroupedCounts:
    """Rows with key columns, the first of which is binary and comes `first`, and columns to `combine` (`sum`, `min`,
    `max`). May be fed from several threads.
    """

    def __init__(self, keys: Sequence[str], combine: Mapping[str, str], *, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._keys = list(keys)
        self._combine = dict(combine)
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._counted: pa.Table | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._levels: list[list[_Run]] = []

    def add(self, rows: pa.Table) -> None:
        """Count rows. Raises StoreError if the folder for temporary files is full."""
        if not rows.num_rows:
            return
        counted = self._grouped(rows)
        with self._lock:
            self._waiting.append(counted)
            self._waiting_bytes += counted.nbytes
            if self._waiting_bytes * 3 >= self._limit_bytes:
                self._count_waiting()
                if self._counted is not None and self._counted.nbytes >= self._limit_bytes:
                    self._spill()

    def sorted_groups(self) -> Iterator[pa.Table]:
        """Yield all groups, in order of the keys. All rows of a value of the first key are in one table.

        Call it once, when all is counted. Raises StoreError if a temporary file cannot be read.
        """
        self._count_waiting()
        if not any(self._levels):
            if self._counted is not None:
                yield self._sorted(self._counted)
            self._counted = None
            return
        if self._counted is not None:
            self._spill()
        yield from self._merged([run for level in self._levels for run in level])

    def close(self) -> None:
        """Release the temporary files."""
        for level in self._levels:
            for run in level:
                run.close()
        self._levels, self._waiting, self._counted = [], [], None

    def _count_waiting(self) -> None:
        if self._waiting:
            parts = [*([] if self._counted is None else [self._counted]), *self._waiting]
            self._waiting, self._waiting_bytes, self._counted = [], 0, None
            self._counted = self._grouped(pa.concat_tables(parts))

    def _spill(self) -> None:
        assert self._counted is not None
        run = _Run.write([self._sorted(self._counted)])
        self._counted = None
        for level in self._levels:
            level.append(run)
            if len(level) < _MOST_RUNS:
                return
            run = _Run.write(self._merged(level))
            for one in level:
                one.close()
            level.clear()
        self._levels.append([run])

    def _merged(self, runs: Sequence[_Run]) -> Iterator[pa.Table]:
        """Yield the groups of sorted runs in order."""
        first = self._keys[0]
        readers = [_Ahead(run, first) for run in runs]
        while True:
            readers = [reader for reader in readers if reader.fill()]
            if not readers:
                return
            # Up to here no run has any more rows than those at hand. The last key of a batch may go on in the next one.
            open_ends = [reader.last for reader in readers if not reader.at_end]
            bound = min(open_ends) if open_ends else None
            parts = [part for reader in readers if (part := reader.take_before(bound)).num_rows]
            if parts:
                yield self._sorted(self._grouped(pa.concat_tables(parts)))
            else:
                for reader in readers:
                    if not reader.at_end and reader.last == bound:
                        reader.read_more()

    def _grouped(self, rows: pa.Table) -> pa.Table:
        found = rows.group_by(self._keys, use_threads=False).aggregate(list(self._combine.items()))
        columns = [*(found.column(key) for key in self._keys)]
        columns += [found.column(f"{name}_{how}") for name, how in self._combine.items()]
        return pa.table(columns, names=[*self._keys, *self._combine])

    def _sorted(self, rows: pa.Table) -> pa.Table:
        return rows.sort_by([(key, "ascending") for key in self._keys]).combine_chunks()


class _Run:
    """Sorted rows in a temporary file."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self.schema = schema

    @classmethod
    def write(cls, tables: Iterable[pa.Table]) -> _Run:
        file: IO[bytes] = tempfile.TemporaryFile(prefix="jsbackup-")  # noqa: SIM115  # closed with the run
        writer: Any = None
        try:
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            for table in tables:
                writer = writer or pa.ipc.new_stream(file, table.schema, options=options)
                writer.write_table(table, max_chunksize=_BATCH_ROWS)
            writer.close()
            file.flush()
        except OSError as error:
            file.close()
            raise _no_room(error) from error
        except BaseException:
            file.close()
            raise
        return cls(file, table.schema)

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)
        except OSError as error:
            raise _no_room(error) from error

    def close(self) -> None:
        self._file.close()


class _Ahead:
    """The next rows of a run."""

    def __init__(self, run: _Run, first: str) -> None:
        self._batches = run.batches()
        self._first = first
        self._rows = run.schema.empty_table()
        self.at_end = False
        self.last = b""

    def fill(self) -> bool:
        """Have rows at hand; returns False if there are no more."""
        while not self._rows.num_rows and not self.at_end:
            self.read_more()
        return bool(self._rows.num_rows)

    def read_more(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self.at_end = True
            return
        self._rows = pa.concat_tables([self._rows, pa.Table.from_batches([batch])])
        self.last = batch.column(self._first)[-1].as_py()

    def take_before(self, bound: bytes | None) -> pa.Table:
        """Return the rows whose first key is less than `bound` (all without one), and go on behind them."""
        count = self._rows.num_rows
        if bound is not None:
            count = pc.sum(pc.less(self._rows.column(self._first), pa.scalar(bound, pa.binary()))).as_py() or 0
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count)
        return taken


def _no_room(error: OSError) -> StoreError:
    return StoreError(
        f"temporary files cannot be written or read: {error.strerror or error}",
        hint="TMPDIR names the folder for them; with --spark always the work is done by Spark.",
    )
