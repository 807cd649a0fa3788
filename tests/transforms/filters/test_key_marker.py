from __future__ import annotations

import pyarrow as pa
import pytest

from jsbackup.transforms.filters.key_marker import KeyOperation, marker_rows, operation_of

PUT, DELETE, PURGE = KeyOperation.PUT, KeyOperation.DELETE, KeyOperation.PURGE

BLOCKS = [
    (None, PUT),
    (b"", PUT),
    (b"NATS/1.0\r\n\r\n", PUT),
    (b"garbage\xff", PUT),
    (b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\n", PUT),
    (b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n", DELETE),
    (b"NATS/1.0\r\nKV-Operation:DEL\r\n\r\n", DELETE),
    (b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-Rollup: sub\r\n\r\n", PURGE),
    (b"NATS/1.0\r\nNats-TTL: 1s\r\nNats-Marker-Reason: MaxAge\r\n\r\n", PURGE),
    (b"NATS/1.0\r\nNats-Marker-Reason: Purge\r\n\r\n", PURGE),
    (b"NATS/1.0\r\nNats-Marker-Reason: Remove\r\n\r\n", DELETE),
    # The operation decides, the first of several, unless it is empty.
    (b"NATS/1.0\r\nKV-Operation: PUT\r\nNats-Marker-Reason: Remove\r\n\r\n", PUT),
    (b"NATS/1.0\r\nNats-Marker-Reason: Remove\r\nKV-Operation: other\r\n\r\n", PUT),
    (b"NATS/1.0\r\nKV-Operation: PUT\r\nKV-Operation: DEL\r\n\r\n", PUT),
    (b"NATS/1.0\r\nKV-Operation:\r\nNats-Marker-Reason: Remove\r\n\r\n", DELETE),
    # Names have this case; values are whole; the block ends with an empty line.
    (b"NATS/1.0\r\nkv-operation: DEL\r\n\r\n", PUT),
    (b"NATS/1.0\r\nKV-Operation: DEL \r\n\r\n", PUT),
    (b"NATS/1.0\r\nKV-Operation : DEL\r\n\r\n", PUT),
    (b"NATS/1.0\r\n\r\nKV-Operation: DEL\r\n\r\n", PUT),
    (b"NATS/1.0\nKV-Operation: DEL\n\n", DELETE),
]


@pytest.mark.parametrize(("block", "operation"), BLOCKS)
def test_what_a_message_did(block: bytes | None, operation: KeyOperation) -> None:
    assert operation_of(block) is operation


def test_rows_of_markers() -> None:
    column = pa.array([block for block, _ in BLOCKS * 2], pa.binary())
    expected = [operation is not PUT for _, operation in BLOCKS * 2]
    assert marker_rows(column).to_pylist() == expected
    assert marker_rows(column.slice(3)).to_pylist() == expected[3:]
    assert marker_rows(pa.array([None, None], pa.binary())).to_pylist() == [False, False]
