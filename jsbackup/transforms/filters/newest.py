"""`--last-per-subject N`, `--kv-compact`: of the messages that other options keep, the newest ones of each subject.

"Newest" is the highest sequence. A subject is that in the backup, before any is mapped. `--kv-compact` keeps the newest
revision of each key, and nothing of a key that it says is gone (`key_marker.py`).

Which messages these are is only known when all subjects were seen. So this is found in a pass of its own, by a
`NewestFinder`, and the messages are chosen by their sequences in a second one. A finder holds the newest messages of
each subject without their content: the subject and 8 bytes each. If that is more than it may hold, it gives up the
upper half of the subjects, in the order of their bytes; these are left for another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import UsageError
from jsbackup.transforms.batches import MessageBatch
from jsbackup.transforms.filters.key_marker import marker_rows
from jsbackup.transforms.filters.rising import RisingSequences

__all__ = ["NEWEST_SCHEMA", "NewestFinder", "NewestRule", "find_newest", "newest_rows", "rows_of_subjects"]

NEWEST_SCHEMA = pa.schema([("subject", pa.binary()), ("sequence", pa.int64()), ("gone", pa.bool_())])
"""Rows of messages: `gone` says that the key of a bucket is gone."""

MOST_BYTES = 128 << 20
_LEAST_ROWS = 1 << 16  # so many are collected before they are sorted


@dataclass(frozen=True, slots=True)
class NewestRule:
    """The newest `count` messages of each subject; `compact`: one of each key, unless it says that the key is gone."""

    count: int = 1
    compact: bool = False

    @classmethod
    def of(cls, count: int | None, compact: bool) -> NewestRule | None:
        """Return the rule of the options, None without any. Raises UsageError."""
        if compact and count is not None:
            raise UsageError("--kv-compact and --last-per-subject exclude each other", hint="Leave one of them out.")
        if count is not None and count < 1:
            raise UsageError(f"--last-per-subject: {count} is none to keep", hint="Give 1 or more.")
        return cls(1 if count is None else count, compact) if compact or count is not None else None

    def __str__(self) -> str:
        return "--kv-compact" if self.compact else f"--last-per-subject {self.count}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a batch that it judges by."""
        return ("subject", "headers") if self.compact else ("subject",)


def rows_of_subjects(batch: MessageBatch, rule: NewestRule) -> pa.Table:
    """Return the rows of a batch of messages, in the schema `NEWEST_SCHEMA`. It has sequences and `rule.columns`."""
    is_marker = marker_rows(batch.column("headers")) if rule.compact else pa.nulls(batch.num_rows, pa.bool_())
    return pa.table(
        [batch.column("subject").cast(pa.binary()), batch.column("sequence"), is_marker], schema=NEWEST_SCHEMA
    )


def newest_rows(rows: pa.Table, rule: NewestRule) -> pa.Table:
    """Return the newest rows of each subject, also those that say that a key is gone. Other columns stay with them."""
    if rows.num_rows < 2:
        return rows
    rows = rows.combine_chunks()
    subjects = rows.column("subject").chunk(0).dictionary_encode().indices
    keyed = pa.table([subjects, rows.column("sequence").chunk(0)], names=["subject", "sequence"])
    order = pc.sort_indices(keyed, sort_keys=[("subject", "ascending"), ("sequence", "descending")])
    subjects = subjects.take(order)
    # A row is among the newest of its subject unless the one so many places before is of the same.
    later = min(rule.count, len(order))
    others = pc.not_equal(subjects.slice(later), subjects.slice(0, len(order) - later))
    kept = pa.concat_arrays([order.slice(0, later), order.slice(later).filter(others)])
    return rows.take(kept)


class NewestFinder:
    """Finds the newest messages of each subject. Those that it is given may come in any order, and in parts.

    It is for the subjects from `low` on, below `high`; None: all others. `high` falls if there are too many of them.
    """

    def __init__(self, rule: NewestRule, low: bytes = b"", most_bytes: int = MOST_BYTES) -> None:
        self.rule = rule
        self.low = low
        self.high: bytes | None = None
        self._most_bytes = most_bytes
        self._found: pa.Table = NEWEST_SCHEMA.empty_table()
        self._ahead: list[pa.Table] = []
        self._ahead_rows = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows of messages, as `rows_of_subjects` or `newest_rows` return them."""
        rows = self._within(rows)
        if rows.num_rows:
            self._ahead.append(rows)
            self._ahead_rows += rows.num_rows
        if self._ahead_rows >= max(_LEAST_ROWS, self._found.num_rows):
            self._merge()

    def sequences(self) -> pa.Int64Array:
        """Return the sequences to keep so far, rising."""
        self._merge()
        table = self._found
        if self.rule.compact:
            table = table.filter(pc.invert(table.column("gone")))
        kept = table.column("sequence").combine_chunks()
        return kept.take(pc.sort_indices(kept))

    def _within(self, rows: pa.Table) -> pa.Table:
        if self.low:
            rows = rows.filter(pc.greater_equal(rows.column("subject"), pc.binary_array([self.low])[0]))
        if self.high is not None:
            rows = rows.filter(pc.less(rows.column("subject"), pc.binary_array([self.high])[0]))
        return rows

    def _merge(self) -> None:
        if self._ahead:
            self._found = newest_rows(pa.concat_tables([self._found, *self._ahead]), self.rule)
            self._ahead, self._ahead_rows = [], 0
        while self._found.nbytes > self._most_bytes:
            subjects = self._found.column("subject").combine_chunks()
            middle = subjects[pc.sort_indices(subjects)[len(subjects) // 2].as_py()].as_py()
            if middle == pc.min(subjects).as_py():  # one subject cannot be halved
                break
            self.high = middle
            self._found = self._within(self._found).combine_chunks()


def find_newest(
    rule: NewestRule, read: Callable[[], Iterable[pa.Table]], most_bytes: int = MOST_BYTES
) -> RisingSequences:
    """Return the sequences to keep. `read` yields the rows of all messages, and is called again for each pass."""
    passes: list[pa.Int64Array] = []
    low: bytes | None = b""
    while low is not None:
        finder = NewestFinder(rule, low, most_bytes)
        for rows in read():
            finder.add(rows)
        passes.append(finder.sequences())
        low = finder.high
    if len(passes) == 1:
        return RisingSequences.of(passes[0])
    kept = pa.concat_arrays(passes)
    return RisingSequences.of(kept.take(pc.sort_indices(kept)))
