from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import DigestMismatch, FormatError, IntegrityError
from jsbackup.model import ConsumerState, Fidelity, PendingAck, SequencePair
from jsbackup.repository import layout
from jsbackup.repository.manifest import ConsumerBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.write.stream_objects import (
    INLINE_ENTRIES,
    decode_pending,
    encode_pending,
    load_consumer,
    store_consumer,
)
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import large_state
from tests.harness.damage import put_instead

FOLDER = layout.stream_folder("orders", "1a2b3c4d")
_u64 = st.integers(0, (1 << 64) - 1)
_states = st.builds(
    ConsumerState,
    pending=st.dictionaries(_u64, st.builds(PendingAck, _u64, st.integers(-(1 << 63), (1 << 63) - 1)), max_size=20),
    redelivered=st.dictionaries(_u64, _u64, max_size=20),
)


def consumer_with(state: ConsumerState | None) -> ConsumerBackup:
    return ConsumerBackup("c", {}, None, Fidelity.EXACT, state)


@settings(max_examples=25, deadline=None)
@given(_states)
def test_pending_and_redelivered_messages_come_back(state: ConsumerState) -> None:
    assert decode_pending(encode_pending(state)) == state


def test_a_small_set_stays_in_the_manifest() -> None:
    store = MemoryStore()
    for size in (0, INLINE_ENTRIES):
        consumer = consumer_with(ConsumerState(pending={n: PendingAck(n, n) for n in range(1, size + 1)}))
        assert store_consumer(Objects(store), FOLDER, consumer) == consumer
        assert load_consumer(Objects(store), consumer) == consumer
    assert store_consumer(Objects(store), FOLDER, consumer_with(None)) == consumer_with(None)
    assert list(store.list()) == []


def test_a_large_set_goes_to_an_object_of_its_own() -> None:
    store = MemoryStore()
    consumer = consumer_with(large_state())
    stored = store_consumer(Objects(store), FOLDER, consumer)
    assert stored.pending is not None
    assert stored.state == ConsumerState(consumer.state.delivered, SequencePair())  # type: ignore[union-attr]
    assert [(info.key, info.size) for info in store.list()] == [(stored.pending.key, stored.pending.size)]
    assert layout.kind_of(stored.pending.key) is layout.ObjectKind.PENDING
    assert stored.pending.size < 8 * INLINE_ENTRIES
    assert load_consumer(Objects(store), stored) == consumer
    assert store_consumer(Objects(store), FOLDER, consumer) == stored  # a second run finds it


def test_a_damaged_object_is_found_and_stored_again_beside() -> None:
    store = MemoryStore()
    stored = store_consumer(Objects(store), FOLDER, consumer_with(large_state()))
    assert stored.pending is not None
    data = store.get(stored.pending.key)
    put_instead(store, stored.pending.key, None)
    with pytest.raises(IntegrityError, match="is missing"):
        load_consumer(Objects(store), stored)
    store.put(stored.pending.key, data[:-1])
    with pytest.raises(DigestMismatch):
        load_consumer(Objects(store), stored)
    again = store_consumer(Objects(store), FOLDER, consumer_with(large_state()))
    assert load_consumer(Objects(store), again) == consumer_with(large_state())


def test_a_file_cut_anywhere_or_flipped_is_a_format_error_or_harmless() -> None:
    data = encode_pending(ConsumerState(pending={n: PendingAck(n, n) for n in range(1, 9)}, redelivered={3: 1}))
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode_pending(data[:length])
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        try:
            decode_pending(flipped)
        except FormatError:
            continue


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": [2, 1]},
        {"sequence": [1, 1]},
        {"consumer_sequence": [None, 1]},
        {"timestamp_ns": [1, None]},
    ],
)
def test_rows_that_make_no_sense_are_refused(change: dict[str, list[int | None]]) -> None:
    table = pq.read_table(
        pa.BufferReader(encode_pending(ConsumerState(pending={1: PendingAck(1, 1), 2: PendingAck(2, 2)})))
    )
    for name, values in change.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    with pytest.raises(FormatError, match="bad row"):
        decode_pending(sink.getvalue())
