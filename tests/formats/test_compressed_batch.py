from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.formats.batch import PackedBatch
from tests.harness.batches import Message, batch_of, message_lists


@settings(max_examples=60, deadline=None)
@given(message_lists(binary=True), st.integers(0, 20), st.integers(0, 20))
def test_a_batch_comes_back_as_it_was(messages: list[Message], skip: int, count: int) -> None:
    batch = batch_of(messages).slice(skip, count)
    again = PackedBatch(batch).unpack()
    assert again.schema == batch.schema
    assert again.equals(batch)


def test_a_slice_does_not_keep_what_it_was_cut_from() -> None:
    batch = batch_of([Message(n, data=bytes(100_000)) for n in range(1, 100)])
    before = pa.total_allocated_bytes() + pa.system_memory_pool().bytes_allocated()
    packed = PackedBatch(batch.slice(50, 1))
    del batch
    assert pa.total_allocated_bytes() + pa.system_memory_pool().bytes_allocated() - before < 100_000
    assert packed.unpack().column("sequence").to_pylist() == [51]
