from __future__ import annotations

import random
from array import array
from collections.abc import Iterable
from hashlib import sha256

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import kernels
from jsbackup.formats.archive import archive_v1_writer as index_db_writer
from jsbackup.formats.archive.archive_items import IndexState
from jsbackup.formats.archive.archive_v1_writer import IndexWriter
from jsbackup.formats.archive.index_db import IndexReader
from jsbackup.formats.sequences import GivenSequences

STREAM = "ORDERS"


def given_of(sequences: Iterable[int]) -> GivenSequences:
    found = GivenSequences()
    for sequence in sequences:
        found.append(memoryview(array("q", [sequence])))
    return found


def read(pieces: Iterable[bytes], size: int, sequences: Iterable[int] = ()) -> IndexState:
    reader = IndexReader(STREAM, size, given_of(sequences))
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def read_whole(index: bytes, sequences: Iterable[int] = ()) -> IndexState:
    return read([index], len(index), sequences)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    return varint(value * 2 if value >= 0 else -value * 2 - 1)


def sealed(body: bytes) -> bytes:
    hasher = kernels.HighwayHash(sha256(STREAM.encode()).digest())
    hasher.update(body)
    return body + hasher.digest64()


def set_of(sequences: Iterable[int], version: int = 2) -> bytes:
    bits = {1: 4096, 2: 2048}[version]
    nodes: dict[int, int] = {}
    count = 0
    for sequence in sequences:
        count += 1
        base = sequence // bits * bits
        nodes[base] = nodes.get(base, 0) | 1 << sequence - base
    encoded = b"".join(
        base.to_bytes(8, "little") + bitmap.to_bytes(bits // 8, "little") + b"\x01\x00"
        for base, bitmap in nodes.items()
    )
    return bytes((22, version)) + len(nodes).to_bytes(4, "little") + count.to_bytes(4, "little") + encoded


def index_of(
    version: int,
    blocks: Iterable[tuple[int, int, Iterable[int]]],
    last_seq: int,
    subjects: Iterable[tuple[str, int]] = (),
    set_version: int = 2,
) -> bytes:
    """An index as a server of that version writes it; blocks are (first, last, deleted)."""
    subjects, blocks = list(subjects), list(blocks)
    out = bytes((11, version)) + varint(7) + varint(700) + varint(3) + zigzag(10**18) + varint(last_seq) + zigzag(-5)
    out += varint(len(subjects))
    for name, total in subjects:
        out += varint(len(name.encode())) + name.encode() + varint(total) + varint(1)
        if total > 1 or version >= 4:
            out += varint(2)
    out += varint(len(blocks))
    for number, (first, last, deleted) in enumerate(blocks, 1):
        gone = list(deleted)
        out += varint(number) + varint(100) + varint(first) + zigzag(-1) + varint(last) + zigzag(10**9)
        out += varint(len(gone)) + varint(4) * (min(version, 3) - 1)
        if gone:
            out += set_of(gone, set_version)
    return sealed(out + varint(len(blocks)) + b"checksum")


SUBJECTS = [("a", 1), ("größe", 2), ("b" * 300, 1)]
# Block 1 lost its head and a message inside, block 3 is empty, block 2 is gone altogether.
BLOCKS = [(3, 9, [5, 6]), (4000, 9000, [4096, 8191, 8192]), (9001, 9000, [])]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("set_version", [1, 2])
def test_an_index_of_every_version_tells_what_is_gone(version: int, set_version: int) -> None:
    index = index_of(version, BLOCKS, 9000, SUBJECTS, set_version)
    given_before = [1, 2, 3, 5, 6, 9, 10, 3999, 4000, 4095, 4096, 8191, 9000, 9001]
    for state in (
        read_whole(index, given_before),
        read((index[at : at + 1] for at in range(len(index))), len(index), given_before),
    ):
        assert (state.version, state.messages, state.bytes, state.first_seq) == (version, 7, 700, 3)
        assert (state.first_ns, state.last_seq, state.last_ns) == (10**18, 9000, -5)
        # 9001 came after the index was written: it says nothing about it
        assert list(state.removed) == [1, 2, 5, 6, 10, 3999, 4096, 8191]


def test_bits_outside_a_block_mean_nothing() -> None:
    # encrypted servers 2.10 and 2.11 mark what is below a block's first message
    assert list(read_whole(index_of(1, [(5, 9, [1, 2, 3, 7])], 9), [1, 6, 7]).removed) == [1, 7]


def test_an_emptied_stream_has_nothing_left() -> None:
    assert list(read_whole(index_of(4, [(101, 100, [])], 100), [50, 100]).removed) == [50, 100]


def test_an_index_cut_short_anywhere_or_longer_is_refused() -> None:
    index = index_of(3, BLOCKS, 9000, SUBJECTS)
    for size in range(len(index)):
        with pytest.raises(FormatError):
            read_whole(index[:size])
        with pytest.raises(FormatError):
            read([index[:size]], len(index))
    with pytest.raises(FormatError):
        read_whole(index + b"\0")


def test_a_flipped_bit_is_noticed() -> None:
    index = bytearray(index_of(2, [(3, 9, [5])], 9, [("a", 3)]))
    for bit in range(len(index) * 8):
        index[bit // 8] ^= 1 << bit % 8
        with pytest.raises((FormatError, UnsupportedError)):
            read_whole(bytes(index), [3, 5, 9])
        index[bit // 8] ^= 1 << bit % 8


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_hostile_content_with_a_right_checksum_ends_in_an_index_or_a_refusal(chance: random.Random) -> None:
    body = bytearray(index_of(4, BLOCKS, 9000, SUBJECTS)[:-8])
    for _ in range(chance.randrange(1, 4)):
        body[chance.randrange(2, len(body))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    try:
        state = read_whole(sealed(bytes(body)), range(1, 60))
    except FormatError:
        return
    assert len(state.removed) <= 59


def test_a_version_to_come_is_unsupported_and_not_damage() -> None:
    with pytest.raises(UnsupportedError, match="version 5"):
        read_whole(index_of(5, [], 0))


@pytest.mark.parametrize(
    "body",
    [
        b"\x0c\x01" + bytes(9),
        b"\x0b\x00" + bytes(9),
        b"\x0b\x01" + b"\xff" * 11,
        b"\x0b\x01\x00\x00" + varint(1 << 62) + bytes(9),
        b"\x0b\x01\x00\x00\x00\x00\x00\x00" + varint(1) + varint(70_000) + bytes(70_000),
    ],
)
def test_hostile_heads_are_refused(body: bytes) -> None:
    with pytest.raises(FormatError):
        read_whole(sealed(body))


def test_a_set_that_repeats_itself_is_refused() -> None:
    once = set_of([1, 2])
    many = bytes((22, 2)) + (50).to_bytes(4, "little") + once[6:10] + once[10:] * 50
    body = index_of(4, [(1, 2, [1])], 2)[:-8].replace(set_of([1]), many)
    with pytest.raises(FormatError, match="twice"):
        read_whole(sealed(body), [1, 2])


# --- writing ---


def write(config: dict[str, object], blocks: list[list[int]], end: int | None = None) -> bytes | None:
    writer = IndexWriter(STREAM, config)
    for number, sequences in enumerate(blocks, 1):
        writer.begin_block(number)
        for part in (sequences[: len(sequences) // 2], sequences[len(sequences) // 2 :]):
            if part:
                subjects = pa.array([f"s.{sequence % 3}" for sequence in part])
                times = memoryview(array("q", [10**18 + sequence for sequence in part]))
                writer.add(memoryview(array("q", part)), times, subjects, 40 * len(part))
    if end is not None:
        writer.begin_block(len(blocks) + 1)
        writer.end(end, 7)
    return writer.encode(b"checksum")


@pytest.mark.parametrize(
    ("config", "version"),
    [({}, 1), ({"allow_msg_ttl": True}, 2), ({"allow_msg_ttl": True, "allow_msg_schedules": True}, 3)],
)
def test_the_version_is_the_lowest_that_holds_what_the_config_allows(config: dict[str, object], version: int) -> None:
    index = write(config, [[1, 2, 3]])
    assert index is not None
    assert index[1] == version
    assert read_whole(index, [1, 2, 3]).messages == 3


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([1, 1, 1, 2, 3, 2000, 5000]), min_size=1, max_size=30), min_size=1, max_size=4),
    st.sampled_from([None, 1, 100]),
    st.sampled_from([{}, {"allow_msg_ttl": True}]),
)
def test_what_is_written_says_exactly_which_messages_live(
    steps: list[list[int]], tail: int | None, config: dict[str, object]
) -> None:
    last, blocks = 0, []
    for block in steps:
        blocks.append([])
        for step in block:
            last += step
            blocks[-1].append(last)
    alive = {sequence for block in blocks for sequence in block}
    end = None if tail is None else last + tail
    index = write(config, blocks, end)
    assert index is not None
    around = sorted({sequence + d for sequence in alive for d in (-1, 0, 1)} - {0, last + 1})
    state = read_whole(index, around)
    assert list(state.removed) == [sequence for sequence in around if sequence not in alive]
    assert (state.messages, state.bytes) == (len(alive), 40 * len(alive))
    assert (state.first_seq, state.first_ns) == (min(alive), 10**18 + min(alive))
    assert (state.last_seq, state.last_ns) == (last, 10**18 + last) if end is None else (end, 7)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "ä", "s.1"]), min_size=1, max_size=30))
def test_subjects_are_counted_alike_however_many_there_are(names: list[str]) -> None:
    subjects = pa.array(names, pa.string())
    few = dict(index_db_writer._counted(subjects))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_db_writer, "_FEW_ROWS", -1)
        assert dict(index_db_writer._counted(subjects)) == few == {name: names.count(name) for name in names}


def test_sets_are_balanced_trees() -> None:
    index = write({}, [[*range(1, 2048 * 40, 2)]])
    assert index is not None
    at = index.index(bytes((22, 2)) + (40).to_bytes(4, "little")) + 10
    nodes = [index[at + 266 * number : at + 266 * (number + 1)] for number in range(40)]
    order = [int.from_bytes(node[:8], "little") for node in nodes]
    # The server puts each node below those before it, without balancing.
    depth: dict[int, int] = {}
    for number, base in enumerate(order):
        below = max((b for b in order[:number] if b < base), default=None)
        above = min((b for b in order[:number] if b > base), default=None)
        depth[base] = 1 + max(depth.get(one, 0) for one in (below, above) if one is not None) if number else 1
    assert sorted(order) == list(range(0, 2048 * 40, 2048))
    assert max(depth.values()) == 6 == int.from_bytes(nodes[0][-2:], "little")


def test_there_is_no_index_where_a_server_would_refuse_it_or_it_costs_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_subjects(subjects: pa.Array) -> bytes | None:
        writer = IndexWriter(STREAM, {})
        writer.begin_block(1)
        for first in (1, 1 + len(subjects)):
            sequences = memoryview(array("q", range(first, first + len(subjects))))
            writer.add(sequences, sequences, subjects, 50)
        return writer.encode(b"checksum")

    assert with_subjects(pa.array(["a", "b"])) is not None
    assert with_subjects(pa.array([b"\xff", b"b"])) is None
    assert with_subjects(pa.array(["", "b"])) is None
    assert write({}, []) is None
    monkeypatch.setattr(index_db_writer, "_MAX_SUBJECTS", 1)
    assert with_subjects(pa.array(["a", "b"])) is None
    monkeypatch.undo()
    for limit in ("_MAX_GAPS", "_MAX_NODES"):
        monkeypatch.setattr(index_db_writer, limit, 1)
        assert write({}, [[1, 3, 5], [5000, 9000]]) is None
        monkeypatch.undo()
