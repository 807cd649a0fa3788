"""The compiled kernel and its Python twin, through the same tests, and against each other on hostile bytes.

`golden/block-*.blk` and `golden/index-*.db` are the files of a stream GOLD as servers of these versions left them: 12
messages, of which 3 (erased), 4 and 12 (kept as bytes) were deleted, one more message, then a purge below 2.
`golden/snapshot-2.15.1.s2` is a snapshot of the same stream.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import _kernels_py, kernels
from jsbackup.formats.batch import Columns, batch_from_columns, columns_from_batch
from jsbackup.formats.s2 import S2Decoder
from tests.harness.batches import Message, batch_of, message_lists, messages_of, some_messages

GOLDEN = Path(__file__).parent / "golden"
KEY = bytes(range(32))
MIB = 1 << 20
ERASED, TOMBSTONE = 1 << 63, 1 << 62


def compiled_kernel() -> ModuleType:
    try:
        return import_module("jsbackup.formats._kernels")
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip("the compiled kernel was not built")


@pytest.fixture(params=["python", "compiled"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    return _kernels_py if request.param == "python" else compiled_kernel()


def columns_of(messages: list[Message]) -> Columns:
    return columns_from_batch(batch_of(messages))


def messages_in(columns: Columns) -> list[Message]:
    return messages_of([batch_from_columns(columns)])


def without_empty_headers(messages: list[Message]) -> list[Message]:
    """No format tells an empty header block from none."""
    return [message._replace(headers=message.headers or None) for message in messages]


def outcome(kernel: ModuleType, name: str, *arguments: Any) -> Any:
    """What a kernel gives, or the words with which it refuses."""
    try:
        return getattr(kernel, name)(*arguments)
    except FormatError as error:
        return error.message


def both(name: str, *arguments: Any) -> Any:
    """The outcome, after comparing the kernels."""
    expected = outcome(_kernels_py, name, *arguments)
    assert outcome(compiled_kernel(), name, *arguments) == expected
    return expected


def damaged(data: st.DataObject, content: bytes) -> bytes:
    """The content cut short, with bits flipped, with bytes replaced, inserted or taken out, or as it is."""
    out = bytearray(content)
    for _ in range(data.draw(st.integers(0, 3))):
        if not out:
            break
        at = data.draw(st.integers(0, len(out) - 1))
        match data.draw(st.integers(0, 4)):
            case 0:
                del out[at:]
            case 1:
                out[at] ^= 1 << data.draw(st.integers(0, 7))
            case 2:
                out[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case 3:
                out[at:at] = data.draw(st.binary(max_size=4))
            case _:
                del out[at : at + data.draw(st.integers(1, 4))]
    return bytes(out)


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


# --- the choice ---------------------------------------------------------------------------------------------------


@pytest.fixture
def restored_choice() -> Iterator[None]:
    before = kernels.active()
    yield
    kernels.use(before)  # type: ignore[arg-type]


@pytest.mark.usefixtures("restored_choice")
def test_the_choice_takes_effect_for_callers_of_the_module(kernel: ModuleType) -> None:
    name = "python" if kernel is _kernels_py else "compiled"
    kernels.use(name)  # type: ignore[arg-type]
    assert kernels.active() == name
    for function in (n for n in kernels.__all__ if n not in ("use", "active") and not n.isupper()):
        assert getattr(kernels, function) is getattr(kernel, function)


def test_a_kernel_that_cannot_be_had_is_an_error_and_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    before = kernels.active()
    monkeypatch.setitem(sys.modules, "jsbackup.formats._kernels", None)
    for name in ("compiled", "rust"):
        with pytest.raises(UnsupportedError) as caught:
            kernels.use(name)  # type: ignore[arg-type]
        assert caught.value.exit_code == 13
    assert kernels.active() == before


def test_the_compiled_kernel_is_preferred() -> None:
    compiled_kernel()
    assert kernels.active() == "compiled"


# --- S2 blocks ----------------------------------------------------------------------------------------------------


def literal(content: bytes, extra: int = 0) -> bytes:
    """A literal with its length in the tag, or in 1 to 4 bytes of their own."""
    size = len(content) - 1
    return (bytes((59 + extra << 2,)) + size.to_bytes(extra, "little") if extra else bytes((size << 2,))) + content


def copy(kind: int, offset: int, length: int) -> bytes:
    if kind == 1:
        return bytes((1 | length - 4 << 2 | offset >> 8 << 5, offset & 0xFF))
    return bytes((kind | length - 1 << 2,)) + offset.to_bytes(2 if kind == 2 else 4, "little")


def repeat(code: int, more: int = 0) -> bytes:
    """A copy from the last offset. Codes 0-4 stand for lengths 4-8; 5, 6, 7 for 8, 260, 65540 and `more`."""
    return bytes((1 | code << 2, 0)) + more.to_bytes(max(0, code - 4), "little")


@st.composite
def s2_blocks(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """An S2 block with every kind of operation, and what it stands for, found byte by byte."""
    block, out, last = bytearray(), bytearray(), 0
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 4)) if out else 0
        if kind == 0:
            content = draw(st.binary(min_size=1, max_size=70))
            extra = draw(st.integers(0 if len(content) <= 60 else 1, 4))
            block += literal(content, extra)
            out += content
            continue
        if kind == 4 and last:
            code = draw(st.integers(0, 7))
            more = draw(st.integers(0, 255 if code == 5 else 3000)) if code > 4 else 0
            block += repeat(code, more)
            length = code + 4 if code < 5 else (8, 260, 65540)[code - 5] + more
        else:
            kind = kind % 4 or 1
            last = draw(st.integers(1, min(len(out), 2047)))
            length = draw(st.integers(4, 11) if kind == 1 else st.integers(1, 64))
            block += copy(kind, last, length)
        for _ in range(length):
            out.append(out[-last])
    return uvarint(len(out)) + bytes(block), bytes(out)


@settings(max_examples=150, deadline=None)
@given(s2_blocks())
def test_every_s2_operation_is_understood(sample: tuple[bytes, bytes]) -> None:
    block, content = sample
    assert both("s2_decode_block", block, 4 * MIB) == content


@pytest.mark.parametrize(
    ("operations", "content"),
    [
        (b"", b""),
        (literal(b"abc") + copy(2, 3, 1) + repeat(0), b"abcabcab"),
        (literal(b"ab") + copy(2, 2, 1) + repeat(4), b"aba" + b"babababa"),
        (literal(b"ab") + copy(2, 1, 1) + repeat(5, 255), b"ab" + b"b" * 264),
        (literal(b"ab") + copy(3, 2, 2) + repeat(6, 0xFFFF), b"ab" * 2 + (b"ab" * 33000)[:65795]),
        (literal(b"ab") + copy(1, 2, 4) + repeat(7, 1 << 20), b"ababab" + (b"ab" * 600000)[: 65540 + (1 << 20)]),
        (literal(bytes(2000) + b"xyz!", 2) + copy(1, 2004, 4), bytes(2000) + b"xyz!" + bytes(4)),
        (literal(b"x" + bytes(69999), 3) + copy(3, 70000, 2), b"x" + bytes(69999) + b"x\0"),
    ],
)
def test_s2_operations_in_numbers(kernel: ModuleType, operations: bytes, content: bytes) -> None:
    assert kernel.s2_decode_block(uvarint(len(content)) + operations, 4 * MIB) == content


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (b"", "bad length"),
        (b"\x80", "bad length"),
        (b"\x80" * 5 + b"\x00", "bad length"),
        (uvarint(1 << 32), "bad length"),
        (b"\xff" * 11, "more than 64 bits"),
        (uvarint(4 * MIB + 1), "4194305 bytes declared, 4194304 allowed"),
        (b"\xff\xff\xff\xff\x0f", "4294967295 bytes declared"),
        (uvarint(3), "0 bytes decoded, 3 declared"),
        (uvarint(3) + literal(b"ab"), "2 bytes decoded, 3 declared"),
        (uvarint(3) + literal(b"abcd"), "more than the declared length at byte 1"),
        (uvarint(4) + literal(b"abcd")[:-1], "cut short at byte 1"),
        (uvarint(4) + b"\xfc\x03\x00\x00", "cut short at byte 1"),
        (uvarint(9) + b"\xfc\xff\xff\xff\xff", "cut short at byte 1"),
        (uvarint(5) + copy(2, 1, 5), "copy from before the start at byte 1"),
        (uvarint(5) + repeat(0), "copy from before the start at byte 1"),
        (uvarint(5) + literal(b"a") + repeat(0), "copy from before the start at byte 3"),
        (uvarint(5) + literal(b"a") + copy(2, 2, 4), "copy from before the start at byte 3"),
        (uvarint(5) + literal(b"a") + copy(2, 0, 4), "copy from before the start at byte 3"),
        (uvarint(5) + literal(b"a") + copy(3, 0xFFFFFFFF, 4), "copy from before the start at byte 3"),
        (uvarint(5) + literal(b"a") + copy(2, 1, 5), "more than the declared length at byte 3"),
        (uvarint(5) + literal(b"a") + copy(3, 1, 4)[:-1], "cut short at byte 3"),
        (uvarint(99) + literal(b"a") + copy(2, 1, 4) + repeat(7, 9)[:-1], "cut short at byte 6"),
    ],
)
def test_a_bad_s2_block_is_refused_in_words(kernel: ModuleType, block: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        kernel.s2_decode_block(block, 4 * MIB)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_both_kernels_judge_damaged_s2_blocks_alike(data: st.DataObject) -> None:
    block = data.draw(s2_blocks().map(lambda sample: sample[0]) | st.binary(max_size=40))
    both("s2_decode_block", damaged(data, block), 1 << 17)


def test_a_snappy_block_is_an_s2_block(kernel: ModuleType) -> None:
    content = b"".join(b"orders.%d.created " % (n % 37) for n in range(9000)) + hashlib.sha256(b"").digest() * 9
    assert kernel.s2_decode_block(bytes(cramjam.snappy.compress_raw(content)), MIB) == content


# --- HighwayHash --------------------------------------------------------------------------------------------------

# github.com/minio/highwayhash, highwayhash_test.go (those of google/highwayhash): data 00 01 02 …, key 00 01 … 1f.
HASHES = {
    0: ("536ec222de567a90", "f574c8c22a4844dd1f35c713730146d9ff1487b9ccbeaeb3f41d75453123da41"),
    1: ("78ddcdc7aa43ab7e", "54825fe4bc41b9ed0fc6ca3def440de2474a32cb9b1b657284e475b24c627320"),
    2: ("623db5b09a56d0b8", "54e4af24dff9df3f73e80a1b1abfc4117a592269cc6951112cb4330d59f60812"),
    3: ("803d468aabef6b5c", "5cd9d10dd7a00a48d0d111697c5e22895a86bb8b6b42a88e22c7e190c3fb3de2"),
    15: ("3bf349a4863f7940", "2e604278700519c146b1018501dbc362c10634fa17adf58547c3fed47bf884c8"),
    16: ("32b87ef98934abcf", "1fcdb6a189d91af5d97b622ad675f0f7068af279f5d5017e9f4d176ac115d41a"),
    17: ("e2c0c5c8d267fe19", "8e06a42ca8cff419b975923abd4a9d3bc610c0e9ddb000801356214909d58488"),
    31: ("685a03cf7c00c79f", "4d641a6076e28068dab70fb1208b72b36ed110060612bdd0f22e4533ef14ef8a"),
    32: ("fc80d5ecd964c9a0", "fec3a139908ce3bc8912c1a32663d542a9aefc64f79555e3995a47c96b3cb0c9"),
    33: ("fc8131a03cf7902c", "e5a634f0cb1501f6d046cebf75ea366c90597282d3c8173b357a0011eda2da7e"),
    63: ("a03921bfe9eb8eab", "67eb3a6a26f8b1f5dd1aec4dbe40b083aefb265b63c8e17f9fd7fede47a4a3f4"),
    64: ("ffa6d24c5d2c5475", "7524c16affe6d890f2c1da6e192a421a02b08e1ffe65379ebecf51c3c4d7bdc1"),
}


@pytest.mark.parametrize("size", HASHES)
def test_hashes_are_the_published_ones(kernel: ModuleType, size: int) -> None:
    hasher = kernel.HighwayHash(KEY)
    hasher.update(bytes(range(size)))
    assert (hasher.digest64().hex(), hasher.digest256().hex()) == HASHES[size]


def test_a_digest_does_not_end_a_hash_however_the_data_comes(kernel: ModuleType) -> None:
    data = bytes(range(200))
    whole = kernel.HighwayHash(KEY)
    whole.update(data)
    for step in (1, 5, 31, 32, 33, 64, 199):
        pieces = kernel.HighwayHash(KEY)
        for at in range(0, len(data), step):
            pieces.update(memoryview(data)[at : at + step])
            pieces.update(b"")
            assert len(pieces.digest64()) == 8
        assert pieces.digest64() == whole.digest64()
        assert pieces.digest256() == whole.digest256()


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.lists(st.binary(max_size=100), max_size=5))
def test_both_kernels_hash_alike_with_and_without_avx2(key: bytes, pieces: list[bytes]) -> None:
    compiled = compiled_kernel()
    digests = set()
    try:
        for kernel, lanes in ((_kernels_py, False), (compiled, False), (compiled, True)):
            compiled.use_lanes(lanes)
            hasher = kernel.HighwayHash(key)
            for piece in pieces:
                hasher.update(piece)
            digests.add((hasher.digest64(), hasher.digest256()))
    finally:
        compiled.use_lanes(True)
    assert len(digests) == 1


def test_a_key_of_another_size_is_a_mistake_of_the_caller(kernel: ModuleType) -> None:
    columns = columns_of([])
    for name, arguments in (
        ("HighwayHash", (b"short",)),
        ("decode_records", (b"", b"short", 0, 1, 0, 0, b"")),
        ("encode_records", (columns, 0, b"short", 1)),
        ("sum_digest", (b"", b"", b"short")),
    ):
        with pytest.raises(ValueError, match="32 bytes"):
            getattr(kernel, name)(*arguments)


# --- archive v2 ---------------------------------------------------------------------------------------------------

SAMPLE = [
    Message(1, 0, "", None, b""),
    Message(2, -1, "a.b", b"NATS/1.0\r\n\r\n", b"payload"),
    Message(300, 10**18, "späti.\U0001f4e6", None, b"x" * 300),
    Message((1 << 62) - 1, (1 << 63) - 1, "s" * 200, b"h" * 130, b""),
    Message((1 << 63) - 1, -(1 << 63), "end", None, b"\0"),
]


def entry(sequence: int, name: int = 0, headers: int = 0, payload: int = 0, rest: bytes = b"") -> bytes:
    """The head of an archive entry with these sizes and whatever is to follow it."""
    return uvarint(name) + uvarint(0) + uvarint(sequence) + uvarint(headers) + uvarint(payload) + rest


def test_entries_of_a_real_snapshot_are_read_and_written_byte_for_byte(kernel: ModuleType) -> None:
    decoder = S2Decoder()
    archive = b"".join(decoder.feed((GOLDEN / "snapshot-2.15.1.s2").read_bytes()))
    decoder.finish()
    messages_start = 226  # behind the magic and state.json
    columns, stop = kernel.decode_entries(archive, messages_start, MIB)
    assert [message.sequence for message in messages_in(columns)] == [2, 5, 6, 7, 8, 9, 10, 11, 13]
    assert archive[stop:] == bytes(5)  # the entry that ends an archive
    assert messages_in(columns)[1].subject == "g.ä.1"
    assert messages_in(columns)[2].headers == b"NATS/1.0\r\nN: 6\r\nEmpty: \r\n\r\n"
    assert messages_in(columns)[3].data == b""
    assert kernel.encode_entries(columns)[0] == archive[messages_start:stop]


def test_the_canonical_encoding_is_pinned(kernel: ModuleType) -> None:
    encoded, ends = kernel.encode_entries(columns_of(SAMPLE))
    assert encoded.startswith(bytes(2) + b"\1" + bytes(2) + b"\3\1\2\x0c\7a.bNATS/1.0\r\n\r\npayload")
    assert hashlib.sha256(encoded).hexdigest() == "8386963f3e2a590ea140fc9d642c67aba4e2cf93b981835270db2d7c42eeb017"
    assert array("q", ends).tolist() == [5, 32, 358, 712, 738]


@settings(max_examples=60, deadline=None)
@given(message_lists(binary=True), st.integers(0, 300))
def test_entries_come_back_as_they_were(messages: list[Message], max_bytes: int) -> None:
    columns = columns_of(messages)
    encoded, ends = both("encode_entries", columns)
    found: list[Message] = []
    at = 0
    while at < len(encoded):
        taken, stop = both("decode_entries", encoded, at, max_bytes)
        assert stop > at
        found += columns_messages(taken)
        at = stop
    assert found == [as_bytes(message) for message in without_empty_headers(messages)]
    assert len(ends) == 8 * len(messages)


def as_bytes(message: Message) -> Message:
    subject = message.subject
    return message._replace(subject=subject.encode() if isinstance(subject, str) else subject)


def columns_messages(columns: Columns) -> list[Message]:
    return [as_bytes(message) for message in messages_in(columns)]


def test_a_batch_that_was_sliced_is_encoded_from_its_slice(kernel: ModuleType) -> None:
    messages = without_empty_headers(some_messages(50, 20))
    for start, count in ((0, 50), (3, 20), (8, 1), (49, 1), (20, 0)):
        encoded, _ = kernel.encode_entries(columns_from_batch(batch_of(messages).slice(start, count)))
        assert messages_in(kernel.decode_entries(encoded, 0, MIB)[0]) == messages[start : start + count]


def test_entries_are_taken_up_to_the_limit_but_always_one(kernel: ModuleType) -> None:
    encoded, ends = kernel.encode_entries(columns_of(SAMPLE))
    stops = array("q", ends).tolist()
    for max_bytes, count in ((-1, 1), (0, 1), (5, 1), (6, 2), (32, 2), (33, 3), (10**30, 5)):
        columns, stop = kernel.decode_entries(encoded, 0, max_bytes)
        assert (columns.count, stop) == (count, stops[count - 1])


def test_an_incomplete_entry_is_left_for_later(kernel: ModuleType) -> None:
    encoded, ends = kernel.encode_entries(columns_of(SAMPLE))
    stops = [0, *array("q", ends).tolist()]
    for size in range(len(encoded)):
        columns, stop = kernel.decode_entries(encoded[:size], 0, MIB)
        assert stop == max(at for at in stops if at <= size)
        assert messages_in(columns) == SAMPLE[: stops.index(stop)]


def test_an_entry_that_is_no_message_is_left_to_the_caller(kernel: ModuleType) -> None:
    good = entry(5, rest=b"")
    for foreign in (bytes(5), entry(0, 70000), entry(0, 5, 0, 1 << 40), b"\x0a\x00\x00"):
        columns, stop = kernel.decode_entries(good + foreign, 0, MIB)
        assert (columns.count, stop) == (1, len(good))
        assert kernel.decode_entries(good + foreign, stop, MIB) == (columns_nothing(kernel), stop)


def columns_nothing(kernel: ModuleType) -> Columns:
    columns: Columns = kernel.decode_entries(b"", 0, MIB)[0]
    assert columns.count == 0
    assert batch_from_columns(columns).num_rows == 0
    return columns


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (entry(5) + entry(5), "sequence 5 after 5 at byte 5"),
        (entry(5) + entry(4), "sequence 4 after 5 at byte 5"),
        (entry(1 << 63), "sequence 9223372036854775808 out of range at byte 0"),
        (entry((1 << 64) - 1), "out of range"),
        (entry(1, name=65536), "too large at byte 0"),
        (entry(1, headers=96 * MIB + 1), "too large"),
        (entry(1, payload=96 * MIB + 1), "too large"),
        (entry(1, headers=1, payload=96 * MIB), "too large"),
        (entry(1, headers=(1 << 64) - 1, payload=1), "too large"),
        (entry(1, headers=1, payload=(1 << 64) - 1), "too large"),
        (b"\xff" * 9 + b"\x02", "more than 64 bits at byte 0"),
        (b"\x00" + b"\x80" * 10, "more than 64 bits at byte 1"),
    ],
)
def test_a_bad_entry_is_refused_in_words(kernel: ModuleType, encoded: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        kernel.decode_entries(encoded, 0, MIB)


def test_numbers_longer_than_need_be_are_read(kernel: ModuleType) -> None:
    long_zero, long_seven = b"\x80" * 9 + b"\x00", b"\x87\x80\x00"
    columns, _ = kernel.decode_entries(long_zero + long_zero + long_seven + long_zero + b"\x82\x00ab", 0, MIB)
    assert messages_in(columns) == [Message(7, 0, "", None, b"ab")]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_both_kernels_judge_damaged_entries_alike(data: st.DataObject) -> None:
    messages = data.draw(message_lists(max_size=4))
    encoded = both("encode_entries", columns_of(messages))[0] + data.draw(st.sampled_from([b"", bytes(5), b"\x01"]))
    both("decode_entries", damaged(data, encoded), 0, data.draw(st.sampled_from([0, 60, MIB])))


class Spoilt(NamedTuple):
    """A batch of which one buffer is not what it should be."""

    field: str
    value: Any
    words: str


@pytest.mark.parametrize(
    "spoilt",
    [
        Spoilt("count", -1, "too short"),
        Spoilt("count", 4, "too short"),
        Spoilt("count", 1 << 60, "too short"),
        Spoilt("sequences", bytes(23), "too short"),
        Spoilt("timestamps", bytes(23), "too short"),
        Spoilt("subject_offsets", bytes(15), "too short"),
        Spoilt("header_offsets", bytes(15), "too short"),
        Spoilt("data_offsets", bytes(15), "too short"),
        Spoilt("header_validity", b"", "too short"),
        Spoilt("sequences", struct.pack("<3q", 1, 2, 2), "sequence 2 after 2 in row 2"),
        Spoilt("sequences", struct.pack("<3q", 0, 1, 2), "sequence 0 after 0 in row 0"),
        Spoilt("sequences", struct.pack("<3q", -5, 1, 2), "sequence -5 after 0 in row 0"),
        Spoilt("subject_offsets", struct.pack("<4i", 0, 1, 0, 0), "bad offsets in row 1"),
        Spoilt("subject_offsets", struct.pack("<4i", -1, 0, 0, 0), "bad offsets in row 0"),
        Spoilt("data_offsets", struct.pack("<4i", 0, 0, 0, 1 << 30), "bad offsets in row 2"),
        Spoilt("header_offsets", struct.pack("<4i", 0, 9, 9, 9), "bad offsets in row 0"),
        Spoilt("data", b"", "bad offsets in row 0"),
    ],
)
def test_a_batch_with_bad_buffers_is_refused(kernel: ModuleType, spoilt: Spoilt) -> None:
    columns = columns_of([Message(n, 0, "s", None, b"data") for n in (1, 2, 3)])
    columns = columns._replace(**{spoilt.field: spoilt.value})
    with pytest.raises(FormatError, match=spoilt.words):
        kernel.encode_entries(columns)
    with pytest.raises(FormatError, match=spoilt.words):
        kernel.encode_records(columns, 0, KEY, MIB)


def test_what_no_archive_could_hold_is_not_encoded(kernel: ModuleType) -> None:
    with pytest.raises(FormatError, match="the subject in row 1 has 65536 bytes"):
        kernel.encode_entries(columns_of([Message(1), Message(2, 0, "s" * 65536)]))
    huge = columns_of([Message(1, 0, "s", b"h", b"")])
    huge = huge._replace(data=bytes(96 * MIB), data_offsets=struct.pack("<2i", 0, 96 * MIB))
    with pytest.raises(FormatError, match="the message in row 0 is too large for an archive"):
        kernel.encode_entries(huge)


# --- the stream digest --------------------------------------------------------------------------------------------


def test_the_digest_of_a_stream_adds_up_over_any_cut(kernel: ModuleType) -> None:
    messages = some_messages(20, 30)
    whole = kernel.sum_digest(*kernel.encode_entries(columns_of(messages)), bytes(32))
    parts = bytes(32)
    for part in (messages[13:], messages[:4], messages[4:13]):
        parts = kernel.sum_digest(*kernel.encode_entries(columns_of(part)), parts)
    assert parts == whole
    assert whole.hex() == "ebd1f8b9857ae0198468bf4c39abd20fcae6410cbc8ee33f609e8f6f891fdb97"


def test_the_digest_of_a_message_is_its_hash_as_a_number(kernel: ModuleType) -> None:
    encoded, ends = kernel.encode_entries(columns_of([Message(7, 1, "s", None, b"x")]))
    hasher = kernel.HighwayHash(b"jsbackup stream digest, version1")
    hasher.update(encoded)
    number = int.from_bytes(hasher.digest256(), "little")
    for total in (0, 1, (1 << 256) - 1, 1 << 255, (1 << 128) - 1):
        expected = (total + number) % (1 << 256)
        assert kernel.sum_digest(encoded, ends, total.to_bytes(32, "little")) == expected.to_bytes(32, "little")


@pytest.mark.parametrize("ends", [b"1234567", struct.pack("<q", 4), struct.pack("<2q", 2, 1), struct.pack("<q", -1)])
def test_ends_outside_the_encoding_are_refused(kernel: ModuleType, ends: bytes) -> None:
    with pytest.raises(FormatError, match="bad entry ends"):
        kernel.sum_digest(b"abc", ends, bytes(32))


# --- archive v1 ---------------------------------------------------------------------------------------------------


def record(
    sequence: int,
    subject: bytes = b"s",
    headers: bytes | None = None,
    data: bytes = b"data",
    *,
    timestamp: int = 9,
    header_length: int | None = None,
) -> bytes:
    """A block record, flags in its sequence and all, with a checksum that is right."""
    stored = struct.pack("<Qq", sequence, timestamp)
    hasher = _kernels_py.HighwayHash(KEY)
    hasher.update(stored + subject + (headers or b"") + data)
    content = subject + data
    if headers is not None:
        size = len(headers) if header_length is None else header_length
        content = subject + struct.pack("<I", size) + headers + data
    length = 30 + len(content) | (headers is not None) << 31
    return struct.pack("<I", length) + stored + struct.pack("<H", len(subject)) + content + hasher.digest64()


class Decoded(NamedTuple):
    messages: list[Message]
    tombstones: list[int]
    stop: int
    last: int


def decode(
    kernel: ModuleType,
    block: bytes,
    *,
    first_seq: int = 0,
    after_seq: int = 0,
    deleted: tuple[int, ...] = (),
    key: bytes = KEY,
    offset: int = 0,
    max_bytes: int = MIB,
) -> Decoded:
    columns, tombstones, stop, last = kernel.decode_records(
        block, key, offset, max_bytes, first_seq, after_seq, array("Q", deleted).tobytes()
    )
    return Decoded(messages_in(columns), array("Q", tombstones).tolist(), stop, last)


@pytest.mark.parametrize(
    ("version", "tombstones"),
    # 2.10 leaves no tombstones for messages of the block it writes to: what is gone stands in index.db alone.
    [("2.10.26", [12]), ("2.14.6", [3, 4, 12, 1])],
)
def test_blocks_of_real_servers_are_read(kernel: ModuleType, version: str, tombstones: list[int]) -> None:
    block = (GOLDEN / f"block-{version}.blk").read_bytes()
    decoded = decode(kernel, block, key=hashlib.sha256(b"GOLD-1").digest())
    assert [message.sequence for message in decoded.messages] == [1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 13]
    assert decoded.tombstones == tombstones
    assert (decoded.stop, decoded.last) == (len(block), 13)
    five, six = decoded.messages[3], decoded.messages[4]
    assert (five.subject, five.headers, five.data) == ("g.ä.1", None, b"payload 5 " * 10)
    assert (six.subject, six.headers) == ("g.a.2", b"NATS/1.0\r\nN: 6\r\nEmpty: \r\n\r\n")
    living = decode(kernel, block, key=hashlib.sha256(b"GOLD-1").digest(), first_seq=2, deleted=(4,))
    assert [message.sequence for message in living.messages] == [2, 5, 6, 7, 8, 9, 10, 11, 13]


def test_records_are_written_as_a_server_wrote_them(kernel: ModuleType) -> None:
    block = (GOLDEN / "block-2.14.6.blk").read_bytes()
    key = hashlib.sha256(b"GOLD-1").digest()
    columns, _, _, _ = kernel.decode_records(block, key, 0, MIB, 5, 0, b"")
    encoded, row = kernel.encode_records(columns, 0, key, MIB)
    assert row == columns.count == 8
    start = block.index(b"g.\xc3\xa4.1") - 22
    before_erased = block.index(struct.pack("<Q", 12 | ERASED)) - 4
    assert encoded.startswith(block[start:before_erased])


def test_the_encoding_of_records_is_pinned(kernel: ModuleType) -> None:
    encoded, row = kernel.encode_records(columns_of(SAMPLE[:4]), 0, KEY, MIB)
    assert row == 4
    assert hashlib.sha256(encoded).hexdigest() == "4c7fa5bb2d50d08c9d7f81fa8662a9a77d3537f5b5a6020e4c73a979585a07b5"
    assert encoded == b"".join(
        record(m.sequence, str(m.subject).encode(), m.headers, m.data, timestamp=m.timestamp_ns) for m in SAMPLE[:4]
    )


@settings(max_examples=60, deadline=None)
@given(message_lists(binary=True), st.integers(0, 400))
def test_records_come_back_as_they_were(messages: list[Message], max_bytes: int) -> None:
    columns = columns_of(messages)
    found: list[Message] = []
    row = 0
    while row < len(messages):
        block, after = both("encode_records", columns, row, KEY, max_bytes)
        assert after > row
        assert after == row + 1 or len(block) <= max_bytes
        taken, tombstones, stop, last = both("decode_records", block, KEY, 0, MIB, 0, 0, b"")
        assert (tombstones, stop, last) == (b"", len(block), messages[after - 1].sequence)
        found += columns_messages(taken)
        row = after
    assert found == [as_bytes(message) for message in without_empty_headers(messages)]


def test_the_dead_are_dropped_and_the_highest_sequence_is_told(kernel: ModuleType) -> None:
    block = b"".join(
        (
            record(3),  # below the first sequence
            record(0),
            record(5),
            record(9 | ERASED, b"", None, b"noise"),
            record(8),  # does not rise
            record(2 | TOMBSTONE, b"", None, b""),
            record(9),  # its sequence was passed
            record(10),  # deleted
            record(11, b"t", b"NATS/1.0\r\n\r\n"),
            record(7 | TOMBSTONE, b"", None, b""),
            record(20 | ERASED, b"", None, b""),
        )
    )
    decoded = decode(kernel, block, first_seq=4, deleted=(1, 10, 12))
    assert decoded.messages == [Message(5, 9, "s", None, b"data"), Message(11, 9, "t", b"NATS/1.0\r\n\r\n", b"data")]
    assert decoded.tombstones == [2, 7]
    assert (decoded.stop, decoded.last) == (len(block), 20)
    assert decode(kernel, block, first_seq=30) == Decoded([], [2, 7], len(block), 0)
    assert [message.sequence for message in decode(kernel, block, after_seq=9).messages] == [10, 11]


def test_a_block_read_in_pieces_is_the_block_read_whole(kernel: ModuleType) -> None:
    block = (GOLDEN / "block-2.14.6.blk").read_bytes()
    key = hashlib.sha256(b"GOLD-1").digest()
    whole = decode(kernel, block, key=key, first_seq=2, deleted=(4,))
    for max_bytes in (-1, 0, 1, 100, 300, 10**30):
        messages, tombstones, at, last = [], [], 0, 0
        while at < len(block):
            piece = decode(
                kernel, block, key=key, first_seq=2, deleted=(4,), offset=at, after_seq=last, max_bytes=max_bytes
            )
            assert piece.stop > at
            messages += piece.messages
            tombstones += piece.tombstones
            at, last = piece.stop, piece.last
        assert Decoded(messages, tombstones, at, last) == whole


def test_a_block_cut_anywhere_but_between_records_is_refused(kernel: ModuleType) -> None:
    records = [record(1), record(2, b"subject", b"headers"), record(3 | ERASED, b"", None, b"noise"), record(4)]
    block = b"".join(records)
    ends = [sum(map(len, records[:n])) for n in range(5)]
    for size in range(len(block) + 1):
        if size in ends:
            assert decode(kernel, block[:size]).stop == size
        else:
            start = max(end for end in ends if end <= size)
            with pytest.raises(FormatError, match=f"cut short at byte {start}"):
                decode(kernel, block[:size])


def test_a_flipped_bit_is_found_where_the_checksum_reaches(kernel: ModuleType) -> None:
    """It does not cover the two lengths inside a record, as the server has it: there the same bytes split anew."""
    block = record(5, b"subject", b"headers", b"payload")
    lengths = {20, 21, *range(29, 33)}
    for bit in range(8 * len(block)):
        flipped = bytearray(block)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decoded = decode(kernel, bytes(flipped))
        except FormatError:
            continue
        assert bit // 8 in lengths
        assert all(
            str(m.subject).encode() + (m.headers or b"") + m.data == b"subjectheaderspayload" for m in decoded.messages
        )


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (record(1) + bytes(29), "cut short at byte 35"),
        (record(1) + bytes(30), "bad record length at byte 35"),
        (struct.pack("<I", 29) + bytes(40), "bad record length at byte 0"),
        (struct.pack("<I", (32 << 20) + 1) + bytes(40), "bad record length at byte 0"),
        (struct.pack("<I", 32 << 20) + bytes(40), "cut short at byte 0"),
        (struct.pack("<I", 0x7FFFFFFF) + bytes(40), "bad record length at byte 0"),
        (struct.pack("<IQqH", 40, 1, 1, 11) + bytes(40), "bad record length at byte 0"),
        (struct.pack("<IQqH", 33 | 1 << 31, 1, 1, 0) + bytes(40), "bad record length at byte 0"),
        (record(1) + record(2)[:-1] + b"\0", "wrong checksum of the record at byte 35"),
        (record(2 | ERASED)[:-1] + b"\0", "wrong checksum of the record at byte 0"),
        (record(2 | TOMBSTONE)[:-1] + b"\0", "wrong checksum of the record at byte 0"),
        (record(1, b"s", b"h", b"", header_length=2), "bad header length of the record at byte 0"),
        (record(1, b"s", b"h", b"", header_length=0xFFFFFFFF), "bad header length of the record at byte 0"),
    ],
)
def test_a_bad_block_is_refused_in_words(kernel: ModuleType, block: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        decode(kernel, block)


def test_records_under_another_key_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(FormatError, match="wrong checksum"):
        decode(kernel, record(1), key=bytes(32))


def test_what_no_server_would_read_back_is_not_encoded(kernel: ModuleType) -> None:
    with pytest.raises(FormatError, match="sequence 4611686018427387904 out of range in row 1"):
        kernel.encode_records(columns_of([Message(1), Message(1 << 62)]), 0, KEY, MIB)
    size = (32 << 20) - 30
    message = columns_of([Message(1, 0, "s", None, b"")])._replace(data=bytes(size))
    with pytest.raises(FormatError, match="the message in row 0 is too large for a message block"):
        kernel.encode_records(message._replace(data_offsets=struct.pack("<2i", 0, size)), 0, KEY, MIB)


def test_the_largest_record_is_written_and_read() -> None:
    kernel = compiled_kernel()  # the twin would take ten seconds
    size = (32 << 20) - 31
    message = columns_of([Message(1, 0, "s", None, b"")])._replace(data=bytes(size))
    block, _ = kernel.encode_records(message._replace(data_offsets=struct.pack("<2i", 0, size)), 0, KEY, MIB)
    assert kernel.decode_records(block, KEY, 0, MIB, 0, 0, b"")[2] == len(block) == 32 << 20


RECORDS = st.builds(
    record,
    st.integers(0, 12).flatmap(
        lambda n: st.sampled_from([n, n + 9, n | ERASED, n | TOMBSTONE, n | ERASED | TOMBSTONE])
    ),
    st.binary(max_size=5),
    st.none() | st.binary(max_size=6),
    st.binary(max_size=30),
    timestamp=st.integers(-(1 << 63), (1 << 63) - 1),
    header_length=st.sampled_from([None, None, None, 0, 1, 1 << 31]),
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_both_kernels_judge_damaged_blocks_alike(data: st.DataObject) -> None:
    block = damaged(data, b"".join(data.draw(st.lists(RECORDS, max_size=6))))
    both(
        "decode_records",
        block,
        KEY,
        data.draw(st.sampled_from([0, min(35, len(block))])),
        data.draw(st.sampled_from([0, 70, MIB])),
        data.draw(st.integers(0, 9)),
        data.draw(st.integers(0, 5)),
        array("Q", sorted(data.draw(st.sets(st.integers(0, 20), max_size=4)))).tobytes(),
    )


# --- index.db -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.10.26", "2.14.6"])
def test_the_subjects_of_a_real_index_are_skipped(kernel: ModuleType, version: str) -> None:
    index = (GOLDEN / f"index-{version}.db").read_bytes()
    start = index.index(b"\x06\x05g.a.2") + 1
    at, left = kernel.skip_index_subjects(index, start, 6, index[1])
    assert left == 0
    # Then: one block, with index 1.
    assert index[at : at + 2] == b"\x01\x01"
    for size in range(start, at):
        stop, left = kernel.skip_index_subjects(index[:size], start, 6, index[1])
        assert kernel.skip_index_subjects(index, stop, left, index[1]) == (at, 0)
        assert left > 0


@pytest.mark.parametrize(
    ("entries", "count", "version", "expected"),
    [
        (b"", 3, 1, (0, 3)),
        (b"\x01a\x01\x07" + b"\x01b\x02\x07\x08", 2, 1, (9, 0)),
        (b"\x01a\x01\x07" + b"\x01b\x02\x07\x08", 2, 3, (9, 0)),
        (b"\x01a\x01\x07\x07" + b"\x01b\x02\x07\x08", 2, 4, (10, 0)),
        (b"\x01a\x01\x07" + b"\x01b\x02\x07\x08", 1, 1, (4, 0)),
        (b"\x00\x00\x01a\x01\x07", 3, 1, (6, 0)),
        (b"\x00\x00", (1 << 64) - 1, 1, (2, (1 << 64) - 3)),
        (b"\x01a\x01\x07" + b"\x01b\x02\x07", 2, 1, (4, 1)),
        (b"\xff\xff\x03", 1, 1, (0, 1)),
    ],
)
def test_index_subjects_by_hand(
    kernel: ModuleType, entries: bytes, count: int, version: int, expected: tuple[int, int]
) -> None:
    assert kernel.skip_index_subjects(entries, 0, count, version) == expected


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (b"\x80\x80\x04", "a subject of 65536 bytes at byte 0"),
        (b"\xff" * 10, "more than 64 bits at byte 0"),
        (b"\x01a" + b"\xff" * 10, "more than 64 bits at byte 2"),
        (b"\x01a\x01" + b"\xff" * 10, "more than 64 bits at byte 3"),
        (b"\x01a\x02\x01" + b"\xff" * 10, "more than 64 bits at byte 4"),
    ],
)
def test_a_bad_index_is_refused_in_words(kernel: ModuleType, entries: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        kernel.skip_index_subjects(entries, 0, 9, 1)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_both_kernels_judge_damaged_indexes_alike(data: st.DataObject) -> None:
    index = (GOLDEN / "index-2.14.6.db").read_bytes()
    both("skip_index_subjects", damaged(data, index[38:110]), 0, 6, data.draw(st.sampled_from([1, 4])))


# --- all of them --------------------------------------------------------------------------------------------------


def test_an_offset_outside_the_buffer_is_a_mistake_of_the_caller(kernel: ModuleType) -> None:
    for offset in (-1, 4):
        with pytest.raises(ValueError, match="outside the buffer"):
            kernel.decode_entries(b"abc", offset, MIB)
        with pytest.raises(ValueError, match="outside the block"):
            kernel.decode_records(b"abc", KEY, offset, MIB, 0, 0, b"")
        with pytest.raises(ValueError, match="outside the buffer"):
            kernel.skip_index_subjects(b"abc", offset, 1, 1)
        with pytest.raises(ValueError, match="outside the batch"):
            kernel.encode_records(columns_of([]), offset, KEY, MIB)


def _pass_on(go: threading.Event, ran: threading.Event) -> None:
    go.wait()
    ran.set()


def test_the_compiled_kernel_lets_other_threads_run() -> None:
    """Nobody takes the GIL away meanwhile, so the other thread runs only if the kernel gives it up."""
    compiled = compiled_kernel()
    columns = columns_of(some_messages(2000, 500))
    encoded, ends = compiled.encode_entries(columns)
    block, _ = compiled.encode_records(columns, 0, KEY, 1 << 30)
    packed = bytes(cramjam.snappy.compress_raw(encoded))
    hasher = compiled.HighwayHash(KEY)
    calls: dict[str, Callable[[], object]] = {
        "s2_decode_block": lambda: compiled.s2_decode_block(packed, 4 * MIB),
        "update": lambda: hasher.update(encoded),
        "decode_entries": lambda: compiled.decode_entries(encoded, 0, 1 << 30),
        "encode_entries": lambda: compiled.encode_entries(columns),
        "sum_digest": lambda: compiled.sum_digest(encoded, ends, bytes(32)),
        "decode_records": lambda: compiled.decode_records(block, KEY, 0, 1 << 30, 0, 0, b""),
        "encode_records": lambda: compiled.encode_records(columns, 0, KEY, 1 << 30),
    }
    patience = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        for name, call in calls.items():
            go, ran = threading.Event(), threading.Event()
            other = threading.Thread(target=_pass_on, args=(go, ran))
            other.start()
            go.set()
            for _ in range(2000):
                call()
                if ran.is_set():
                    break
            assert ran.is_set(), name
            other.join()
    finally:
        sys.setswitchinterval(patience)


# --- packed int64 -------------------------------------------------------------------------------------------------

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(-5, 5)


@given(numbers=st.lists(INT64, min_size=1, max_size=50))
def test_extremes_are_the_least_and_the_greatest(numbers: list[int]) -> None:
    assert both("extremes", array("q", numbers)) == (min(numbers), max(numbers))


@given(numbers=st.lists(SMALL | INT64, max_size=20), after=SMALL | INT64, rising=st.booleans())
def test_a_fall_is_found_where_numbers_do_not_rise(numbers: list[int], after: int, rising: bool) -> None:
    numbers = sorted({number for number in numbers if number > after}) if rising else numbers
    before = [after, *numbers]
    falls = [index for index, number in enumerate(numbers) if number <= before[index]]
    assert both("first_fall", array("q", numbers), after) == (falls[0] if falls else -1)
    assert not (rising and falls)


def test_numbers_are_whole(kernel: ModuleType) -> None:
    for values in (b"", b"1234567", bytes(9)):
        with pytest.raises(ValueError, match="8 bytes"):
            kernel.extremes(values)
    with pytest.raises(ValueError, match="8 bytes"):
        kernel.first_fall(bytes(15), 0)
    assert kernel.first_fall(b"", 0) == -1
