"""Counts that do not fit into memory come out as those that do."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import StoreError
from jsbackup.pipeline.jobs import grouped_counts
from jsbackup.pipeline.jobs.grouped_counts import GroupedCounts

_ROWS = st.lists(
    st.tuples(st.binary(max_size=3), st.integers(0, 3), st.integers(1, 5), st.integers(-9, 9)), max_size=30
)


def _table(rows: list[tuple[bytes, int, int, int]]) -> pa.Table:
    key, size, messages, oldest = zip(*rows, strict=True) if rows else ((), (), (), ())
    types = {"key": pa.binary(), "size": pa.int64(), "messages": pa.int64(), "oldest": pa.int64()}
    values = dict(zip(types, (key, size, messages, oldest), strict=True))
    return pa.table({name: pa.array(values[name], kind) for name, kind in types.items()})


@pytest.mark.by_turns
@given(tables=st.lists(_ROWS, max_size=30), limit_bytes=st.sampled_from([1, 200, 1 << 20]))
def test_groups_are_those_of_a_dictionary(tables: list[Any], limit_bytes: int) -> None:
    truth: defaultdict[tuple[bytes, int], list[int]] = defaultdict(lambda: [0, 99])
    counts = GroupedCounts(("key", "size"), {"messages": "sum", "oldest": "min"}, limit_bytes=limit_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouped_counts, "_BATCH_ROWS", 2)
        patch.setattr(grouped_counts, "_MOST_RUNS", 3)
        for rows in tables:
            counts.add(_table(rows))
            for key, size, messages, oldest in rows:
                group = truth[key, size]
                group[:] = [group[0] + messages, min(group[1], oldest)]
        parts = [part.to_pylist() for part in counts.sorted_groups()]
    counts.close()
    found = [((row["key"], row["size"]), [row["messages"], row["oldest"]]) for part in parts for row in part]
    assert found == sorted(truth.items())
    keys = [{row["key"] for row in part} for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys))  # each key is in one table


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> Any:
        return open("/dev/full", "w+b", buffering=0)  # noqa: PTH123

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    counts = GroupedCounts(("key", "size"), {"messages": "sum", "oldest": "min"}, limit_bytes=1)
    with pytest.raises(StoreError, match=r"temporary files cannot be written or read: .*[Nn]o space left"):
        counts.add(_table([(b"a", 1, 1, 1)]))
    counts.close()
