from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import segment
from jsbackup.formats.batch import BATCH_SCHEMA, BINARY_SUBJECT_SCHEMA
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.formats.segment import SegmentEncoder, decode_segment, drop_sequences, split_batch
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, messages_of, some_messages


def encode(*batches: pa.RecordBatch, compression: Compression = ZSTD) -> bytes:
    encoder = SegmentEncoder(compression)
    for batch in batches:
        encoder.write(batch)
    return encoder.finish().to_pybytes()


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 200 bytes, so that a few messages fill several."""
    monkeypatch.setattr(segment, "BATCH_BYTES", 200)


def test_compressions_have_names() -> None:
    assert str(ZSTD) == str(Compression.parse("zstd:1")) == "zstd"
    for text in ("none", "zstd", "zstd:2", "zstd:22"):
        assert str(Compression.parse(text)) == text
    data = batch_of([Message(1, data=bytes(100_000))])
    assert len(encode(data)) < 2_000 and len(encode(data, compression=Compression(0))) > 100_000


def test_messages_come_back_byte_for_byte() -> None:
    messages = [
        Message(3, -(1 << 63), "", None, b""),
        Message(4, (1 << 63) - 1, "größe.日本", b"", b"\x00\xff"),
        Message(9, 0, "a b\0c", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"x" * 5000),
        Message((1 << 63) - 1, 1, "s" * 5000, b"not really headers", b"y"),
    ]
    batches = list(decode_segment(encode(batch_of(messages))))
    assert messages_of(batches) == messages
    assert all(batch.schema == BATCH_SCHEMA for batch in batches)


@settings(max_examples=60, deadline=None)
@given(message_lists(), st.randoms(use_true_random=False), st.sampled_from(["zstd", "zstd:4", "none"]))
def test_any_messages_come_back(messages: list[Message], chance: random.Random, how: str) -> None:
    data = encode(*cut_anywhere(batch_of(messages), chance), compression=Compression.parse(how))
    assert messages_of(decode_segment(data)) == messages


@settings(max_examples=60, deadline=None)
@given(message_lists(binary=True), st.randoms(use_true_random=False))
def test_subjects_that_are_not_utf8_come_back(messages: list[Message], chance: random.Random) -> None:
    batch = batch_of(messages)
    batches = list(decode_segment(encode(*cut_anywhere(batch, chance))))
    odd = any(_is_odd(message.subject) for message in messages)
    assert all(b.schema == (BINARY_SUBJECT_SCHEMA if odd else BATCH_SCHEMA) for b in batches)
    assert [_with_bytes(m) for m in messages_of(batches)] == [_with_bytes(m) for m in messages]


def _is_odd(subject: str | bytes) -> bool:
    return isinstance(subject, bytes) and subject.decode("utf-8", "replace").encode() != subject


def _with_bytes(message: Message) -> Message:
    subject = message.subject
    return message._replace(subject=subject.encode() if isinstance(subject, str) else subject)


@settings(max_examples=40, deadline=None)
@given(message_lists(max_size=60), st.randoms(use_true_random=False), st.booleans())
def test_the_file_depends_on_the_messages_alone(messages: list[Message], chance: random.Random, odd: bool) -> None:
    if odd and messages:
        at = chance.randrange(len(messages))
        messages[at] = messages[at]._replace(subject=b"\xff")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "BATCH_BYTES", 200)
        whole = encode(batch_of(messages))
        assert encode(*cut_anywhere(batch_of(messages), chance)) == whole
        # One batch per message: text where it can be, bytes only for the odd one.
        assert encode(*(batch_of([message]) for message in messages)) == whole


def test_empty_batches_and_no_batches_make_an_empty_file() -> None:
    assert encode(batch_of([]), batch_of([])) == encode()
    assert list(decode_segment(encode())) == []


@pytest.mark.usefixtures("small_groups")
def test_row_groups_and_batches_are_bounded() -> None:
    messages = some_messages(50, 60)
    messages[20] = messages[20]._replace(data=bytes(1000))
    data = encode(batch_of(messages))
    groups = pq.ParquetFile(pa.BufferReader(data)).metadata
    # 60 B of payload, a subject, perhaps headers: two messages in 200 bytes, or one; the large one alone.
    rows = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    assert set(rows) == {1, 2}
    assert [batch.num_rows for batch in decode_segment(data)] == rows


def test_a_foreign_row_group_is_given_in_pieces() -> None:
    messages = some_messages(3000, 4000)
    data = rewrite(encode(batch_of(messages)), lambda table: table)
    batches = list(decode_segment(data))
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.num_row_groups == 1
    assert len(batches) == 3
    assert messages_of(batches) == messages


def test_any_parquet_reader_opens_it() -> None:
    messages = some_messages(10, 10)
    table = pq.read_table(pa.BufferReader(encode(batch_of(messages))))
    assert table.schema.names == ["sequence", "timestamp_ns", "subject", "headers", "data"]
    assert messages_of(table.to_batches()) == messages


def test_the_footer_says_what_readers_need_and_no_more() -> None:
    data = encode(batch_of(some_messages(10, 10)))
    footer = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert footer.metadata == {b"jsbackup.segment": b'{"subject":"utf8","version":1}'}
    group = footer.row_group(0)
    assert group.sorting_columns == (pq.SortingColumn(0),)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(5)}
    assert {name for name, column in columns.items() if column.is_stats_set} == {"sequence", "timestamp_ns", "subject"}
    assert columns["subject"].statistics.min == "orders.0"
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    odd = pq.ParquetFile(pa.BufferReader(encode(batch_of([Message(1, subject=b"\xff")])))).metadata
    assert odd.metadata == {b"jsbackup.segment": b'{"subject":"binary","version":1}'}


def test_a_batch_of_something_else_is_refused() -> None:
    with pytest.raises(FormatError, match="not a batch of messages: a"):
        encode(pa.RecordBatch.from_pydict({"a": [1]}))


# --- hostile and damaged files ---


def outcome(data: bytes) -> list[Message] | None:
    """The messages, or None for a FormatError; anything else is a failure of the test."""
    try:
        return messages_of(decode_segment(data))
    except FormatError:
        return None


def test_a_file_cut_anywhere_is_an_error() -> None:
    data = encode(batch_of(some_messages(5, 10)))
    assert outcome(data) is not None
    for length in range(len(data)):
        assert outcome(data[:length]) is None, length


@pytest.mark.by_turns
@pytest.mark.usefixtures("small_groups")
@pytest.mark.slow
def test_a_flipped_bit_is_an_error_or_harmless() -> None:
    """Pages have checksums, the footer has none: there only contradictions show, or what changes nothing."""
    messages = some_messages(5, 60)
    data = encode(batch_of(messages))
    wrong = []
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in range(len(data)):
        for bit in range(8) if at >= footer else [at % 8]:
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            try:
                result = messages_of(decode_segment(flipped))
            except (FormatError, UnsupportedError):  # the latter where the bit makes the version a later one
                continue
            if result != messages:
                wrong.append((at, bit))
    assert wrong == []


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\xffPAR1", bytes(100), b"\xff" * 4096])
def test_what_is_no_parquet_file_is_an_error(data: bytes) -> None:
    assert outcome(data) is None


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_between_the_magics_are_an_error(middle: bytes) -> None:
    assert outcome(b"PAR1" + middle + len(middle).to_bytes(4, "little") + b"PAR1") is None


def rewrite(data: bytes, change: Callable[[pa.Table], pa.Table], *, about: bytes | None = None) -> bytes:
    """The file as another writer would have made it, with something changed."""
    source = pq.ParquetFile(pa.BufferReader(data))
    table = change(source.read().replace_schema_metadata(None))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        declared = about if about is not None else source.metadata.metadata[b"jsbackup.segment"]
        if declared:
            writer.add_key_value_metadata({b"jsbackup.segment": declared})
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("sequences", [[2, 1], [1, 1], [0, 1], [-5, 1], [1, -1]])
def test_sequences_that_do_not_rise_are_refused(sequences: list[int]) -> None:
    data = encode(batch_of([Message(1), Message(2)]))
    hostile = rewrite(data, lambda table: table.set_column(0, BATCH_SCHEMA.field(0), pa.array(sequences, pa.int64())))
    with pytest.raises(FormatError, match="sequence"):
        list(decode_segment(hostile))


@pytest.mark.usefixtures("small_groups")
def test_sequences_must_rise_across_row_groups() -> None:
    low, high = encode(batch_of(some_messages(20, 60))), encode(batch_of(some_messages(20, 60, first=500)))
    tables = [pq.read_table(pa.BufferReader(data)) for data in (high, low)]
    hostile = rewrite(low, lambda table: pa.concat_tables(tables).replace_schema_metadata(None))
    with pytest.raises(FormatError, match="sequence"):
        list(decode_segment(hostile))


def test_text_that_is_not_text_is_refused() -> None:
    def lie(table: pa.Table) -> pa.Table:
        bad = pa.array([b"\xff"], pa.binary())
        return table.set_column(2, BATCH_SCHEMA.field(2), pa.Array.from_buffers(pa.string(), 1, bad.buffers()))

    with pytest.raises(FormatError):
        list(decode_segment(rewrite(encode(batch_of([Message(1)])), lie)))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["headers"]),
        lambda table: table.append_column("more", pa.array([1], pa.int64())),
        lambda table: table.select([1, 0, 2, 3, 4]),
        lambda table: table.set_column(4, "data", table.column(4)),  # nullable
        lambda table: table.set_column(0, "sequence", pa.array([1], pa.int32())),
        lambda table: table.set_column(4, "data", pa.array([["x"]])),
    ],
)
def test_other_columns_are_refused(change: Callable[[pa.Table], pa.Table]) -> None:
    with pytest.raises(FormatError, match="wrong columns"):
        list(decode_segment(rewrite(encode(batch_of([Message(1)])), change)))


@pytest.mark.parametrize("about", [b"{", b"[]", b"{}", b'{"version":0}', b'{"version":"1"}', b'{"version":1}', b"\xff"])
def test_a_footer_that_says_nothing_sensible_is_refused(about: bytes) -> None:
    with pytest.raises(FormatError):
        list(decode_segment(rewrite(encode(batch_of([Message(1)])), lambda table: table, about=about)))


def test_a_parquet_file_of_somebody_else_is_refused() -> None:
    with pytest.raises(FormatError, match="not of jsbackup"):
        list(decode_segment(rewrite(encode(batch_of([Message(1)])), lambda table: table, about=b"")))


def test_a_later_version_is_not_supported() -> None:
    later = rewrite(encode(batch_of([Message(1)])), lambda table: table, about=b'{"version":2,"subject":"utf8"}')
    with pytest.raises(UnsupportedError, match="version 2"):
        list(decode_segment(later))


def test_a_footer_that_declares_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(batch_of(some_messages(50, 60)))
    monkeypatch.setattr(segment, "_MAX_GROUP_BYTES", 1000)
    with pytest.raises(FormatError, match="declared"):
        list(decode_segment(data))
    monkeypatch.undo()
    monkeypatch.setattr(segment, "_MAX_ROW_GROUPS", 0)
    with pytest.raises(FormatError, match="1 row groups declared"):
        list(decode_segment(data))


# --- slicing ---


@settings(max_examples=60, deadline=None)
@given(message_lists(), st.integers(0, 120))
def test_slices_hold_what_fits_or_one_message(messages: list[Message], max_bytes: int) -> None:
    slices = [messages_of([part]) for part in split_batch(batch_of(messages), max_bytes)]
    assert [message for part in slices for message in part] == messages
    sizes = [[16 + len(m.subject.encode()) + len(m.headers or b"") + len(m.data) for m in part] for part in slices]  # type: ignore[union-attr]
    assert all(len(part) == 1 or sum(part) <= max_bytes for part in sizes)
    assert all(sum(part) + following[0] > max_bytes for part, following in pairwise(sizes))


def test_a_slice_of_a_slice_is_sliced_right() -> None:
    messages = some_messages(30, 20)
    batch = batch_of(messages).slice(5, 20)
    assert messages_of(split_batch(batch, 100)) == messages[5:25]


@settings(max_examples=30, deadline=None)
@given(message_lists(), st.sets(st.integers(1, 60)))
def test_dropped_sequences_are_gone_and_the_rest_is_left(messages: list[Message], unwanted: set[int]) -> None:
    left = messages_of([drop_sequences(batch_of(messages), unwanted)])
    assert left == [message for message in messages if message.sequence not in unwanted]
