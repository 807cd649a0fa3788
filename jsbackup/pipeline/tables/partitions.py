"""Partitions of a table: a folder for each value of a column, named as Hive does: `day=2026-11-26`,
`subject=orders.new`. Pure.

Readers of plain Parquet take values from the names of folders. They decode `%24` in them; Spark takes it for a byte of
Latin-1, so names have no other characters than those of ASCII. Readers of Delta take values from the log.

On a file system that ignores case, upper-case letters are written as `%41`, or `a.B` and `a.b` would share a folder.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.errors import UsageError
from jsbackup.formats.digest import MessageBatch
from jsbackup.pipeline.messages.columns import COLUMNS, as_text_subjects
from jsbackup.transforms.reshape import ReshapeTally

if TYPE_CHECKING:
    from jsbackup.pipeline.tables.writing import WrittenRun

__all__ = ["MOST_FILES", "MOST_PARTITIONS", "PartitionBy", "PartitionCount", "Partitions", "partition_of"]

MOST_PARTITIONS = 10_000
"""Partitions of a table. Readers list and open each of them."""

MOST_FILES = 100_000
"""Files that an export adds to a table. Each is described to readers, and held in memory until the commit."""

_DAY_NS = 86_400 * 10**9
_MOST_BYTES = 200  # of a value in a key, which also has the folder of the stream, that of an export, and a name
_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Hive writes for null
_OTHERS = "Leave out --partition-by, choose --partition-by day, or export fewer subjects with --subject."


class PartitionBy(StrEnum):
    """What decides the partition of a message: the day of its time in UTC, or its subject."""

    DAY = "day"
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True)
class Partitions:
    """How a table is divided. `spelled`: readers take values from the names of folders. `ignores_case`: the file system
    does. `whole`: files have the columns that partitions are of, too.
    """

    by: PartitionBy
    spelled: bool
    ignores_case: bool = False
    whole: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its files. A Delta table has the value in its log only; other files are also read alone."""
        return COLUMNS if self.whole else tuple(name for name in COLUMNS if name != self.by)

    def divide(self, batches: Sequence[MessageBatch], stream: str) -> list[tuple[str, str, list[pa.RecordBatch]]]:
        """Return the messages of each partition, in their order, with its value and the name of its folder.

        Subjects become text. Holds a copy of the messages.

        Raises UsageError for messages that have no partition, or too many.
        """
        if not batches:
            return []
        values = self._values(batches, stream).dictionary_encode()
        names = [(str(value), self._folder(str(value), stream)) for value in values.dictionary.to_pylist()]
        if len(names) > MOST_PARTITIONS:
            raise _too_many(self.by, stream)
        table = pa.Table.from_batches([as_text_subjects(batch) for batch in batches])
        if len(names) == 1:
            return [(*names[0], table.to_batches())]
        order = pc.array_sort_indices(values.indices)
        counts = pc.value_counts(pc.take(values.indices, order))  # in the order of their first appearance
        table, start, found = table.take(order), 0, []
        for number, count in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
            found.append((*names[number], table.slice(start, count).to_batches()))
            start += count
        return found

    def _values(self, batches: Sequence[MessageBatch], stream: str) -> pa.Array:
        if self.by is PartitionBy.DAY:
            return pa.concat_arrays([_days(batch.column("timestamp_ns")) for batch in batches])
        try:
            return pa.concat_arrays([batch.column("subject").cast(pa.string()) for batch in batches])
        except pa.ArrowInvalid:
            raise UsageError(
                f"stream {stream} has subjects that are not UTF-8, and no partition can be named so",
                hint="Leave out --partition-by, or choose --partition-by day.",
            ) from None

    def _folder(self, value: str, stream: str) -> str:
        """Return the name of a partition's folder. Raises UsageError if readers would not find the value in it."""
        plain = r"[a-z0-9._-]" if self.ignores_case else r"[A-Za-z0-9._-]"
        escaped = "".join(
            one
            if re.fullmatch(plain, one)
            else "".join(f"%{byte:02X}" for byte in one.encode("utf-8", "surrogatepass"))
            for one in value
        )
        if value in ("", _NULL) or (self.spelled and not (value.isascii() and value.isprintable())):
            readers = "plain Parquet" if self.spelled and value not in ("", _NULL) else "tables"
            raise UsageError(
                f"stream {stream} has the subject {value[:80]!r}, which readers of {readers} do not find in the name "
                "of a partition",
                hint="Leave out --partition-by, or choose --partition-by day"
                + (" or --format delta." if readers != "tables" else "."),
            )
        if len(escaped) > _MOST_BYTES:
            if self.spelled:
                raise UsageError(
                    f"stream {stream} has the subject {value[:40]!r}…, which is too long for the name of a partition",
                    hint="Leave out --partition-by, or choose --partition-by day or --format delta.",
                )
            digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
            escaped = f"{escaped[:100]}-{digest}"
        return f"{self.by}={escaped}"


def partition_of(path: str) -> str | None:
    """Return the partition of a file, by its path below the folder of a table; None if it is in none."""
    folder, slash, _ = path.partition("/")
    return folder if slash and "=" in folder else None


class PartitionCount:
    """Counts the partitions and files of tables, whose names `known` has with the partitions that they have."""

    def __init__(self, partitions: Partitions, known: Mapping[str, Iterable[str]]) -> None:
        self._by = partitions.by
        self._found = {name: set(folders) for name, folders in known.items()}
        self._files: Counter[str] = Counter()

    def checked(self, name: str, run: WrittenRun) -> WrittenRun:
        """Count what was written for a table, and return it; as refused from where on it is too much."""
        found = self._found.setdefault(name, set())
        if len(found) <= MOST_PARTITIONS:
            found.update(file.folder for file in run.files)
        self._files[name] += len(run.files)
        if len(found) > MOST_PARTITIONS:
            return replace(run, files=(), tally=ReshapeTally(), refused=_too_many(self._by, name))
        if self._files[name] > MOST_FILES:
            return replace(run, files=(), tally=ReshapeTally(), refused=_too_many_files(name))
        return run


def _days(timestamps: pa.Array) -> pa.Array:
    """Return the days of times in nanoseconds, as text."""
    quotient = pc.divide(timestamps, _DAY_NS)
    rest = pc.subtract(timestamps, pc.multiply(quotient, _DAY_NS))
    down = pc.cast(pc.less(rest, 0), pa.int64())
    return pc.cast(pc.cast(pc.subtract(quotient, down), pa.int32()).view(pa.date32()), pa.string())


def _too_many(by: PartitionBy, stream: str) -> UsageError:
    return UsageError(
        f"stream {stream} has more than {MOST_PARTITIONS:,} {by}s, and each would be a folder of its table",
        hint=_OTHERS,
    )


def _too_many_files(stream: str) -> UsageError:
    return UsageError(
        f"the table of stream {stream} would get more than {MOST_FILES:,} files: one for each "
        "partition of each 32 MiB of messages",
        hint=_OTHERS,
    )
