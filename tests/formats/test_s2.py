"""S2 streams, with golden ones written by the S2 library that nats-server uses (github.com/klauspost/compress v1.19.2).

`golden/s2-*.s2` and `golden/snappy-compat.s2` come from a small Go program: JSON with random numbers, 80 kB of one pair
of bytes, the JSON again (more than 64 KiB back), noise, runs of all sizes; written at the levels fast, better (blocks
of 16 KiB), best (blocks of 64 KiB, padded, with an index), uncompressed, and in Snappy's format.
"""

from __future__ import annotations

import hashlib
import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats import kernels
from jsbackup.formats.s2 import BLOCK_BYTES, MAX_BLOCK_BYTES, S2Decoder, S2Encoder

GOLDEN = Path(__file__).parent / "golden"
START = b"\xff\x06\x00\x00S2sTwO"
SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"
INDEX, PADDING = 0x99, 0xFE


@pytest.fixture(params=["python", "compiled"])
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.active()
    choice: Literal["python", "compiled"] = request.param
    try:
        kernels.use(choice)
    except UnsupportedError:
        if os.environ.get("CI"):
            raise
        pytest.skip("the compiled kernel was not built")
    yield
    kernels.use(before)  # type: ignore[arg-type]


def frame(kind: int, content: bytes) -> bytes:
    return bytes((kind,)) + len(content).to_bytes(3, "little") + content


def checksum(content: bytes) -> bytes:
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def stored(content: bytes) -> bytes:
    return frame(0x01, checksum(content) + content)


def compressed(block: bytes, content: bytes) -> bytes:
    return frame(0x00, checksum(content) + block)


def zeros(size: int) -> bytes:
    """A frame of a few bytes that stands for `size` zeros: a literal and a copy of all the rest."""
    copy = b"\x02\x01\x00" + b"\x1d\x00" + (size - 2 - 65540).to_bytes(3, "little")
    return compressed(uvarint(size) + b"\x00\x00" + copy, bytes(size))


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def decode(stream: bytes, step: int | None = None) -> bytes:
    decoder = S2Decoder()
    out: list[bytes] = []
    for at in range(0, len(stream), step or len(stream) or 1):
        out += decoder.feed(memoryview(stream)[at : at + (step or len(stream))])
    decoder.finish()
    return b"".join(out)


def encode(content: bytes, step: int = 1 << 18) -> bytes:
    encoder = S2Encoder()
    out: list[bytes] = []
    for at in range(0, len(content), step):
        buffer = bytearray(content[at : at + step])
        out += encoder.feed(buffer)
        buffer[:] = bytes(len(buffer))  # it is the caller's again
    return b"".join(out + encoder.finish())


SAMPLE = b"".join(b"orders.%d.created " % (n * n % 97) for n in range(60))
# All kinds of frames, and two identifiers.
MIXED = b"".join(
    (START, encode(SAMPLE)[10:], frame(INDEX, b"index"), stored(b"as it was"), frame(PADDING, bytes(9)), START)
)


# --- decoding -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("step", [None, 1, 1000])
@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("s2-fast", "38981a7320d11906ab763ca068011c1639e535ccebc43a0f93f76e46bf6741ee"),
        ("s2-better-blocks", "38981a7320d11906ab763ca068011c1639e535ccebc43a0f93f76e46bf6741ee"),
        ("s2-best-padded-indexed", "38981a7320d11906ab763ca068011c1639e535ccebc43a0f93f76e46bf6741ee"),
        ("s2-uncompressed", "cda44f883382091946ecdadbd232da94d8618783404297aad874c22ad415bf64"),
        ("snappy-compat", "2f49b70416396e9078e267fdeede1ffde39cd3d0c0c80fdab101fb6bd91ccf0d"),
    ],
)
def test_streams_of_the_go_library_are_read(name: str, digest: str, step: int | None) -> None:
    stream = (GOLDEN / f"{name}.s2").read_bytes()
    assert hashlib.sha256(decode(stream, step)).hexdigest() == digest


@pytest.mark.usefixtures("kernel")
def test_a_snapshot_of_a_real_server_is_read() -> None:
    archive = decode((GOLDEN / "snapshot-2.15.1.s2").read_bytes())
    assert archive.startswith(b"NATSARC1")
    assert len(archive) == 1519


def test_all_kinds_of_frames_are_read_however_they_come() -> None:
    for step in (None, 1, 2, 3, 7, 100):
        assert decode(MIXED, step) == SAMPLE + b"as it was"


def test_an_empty_stream_is_empty() -> None:
    assert decode(b"") == b""
    assert decode(START) == b""
    assert decode(START + stored(b"")) == b""
    assert decode(START + compressed(b"\x00", b"")) == b""


def test_a_stream_cut_inside_a_frame_is_incomplete() -> None:
    ends = set()
    at = 0
    while at < len(MIXED):
        ends.add(at)
        at += 4 + int.from_bytes(MIXED[at + 1 : at + 4], "little")
    for size in range(len(MIXED)):
        decoder = S2Decoder()
        taken = b"".join(decoder.feed(MIXED[:size]))
        assert (SAMPLE + b"as it was").startswith(taken)
        if size in ends:
            decoder.finish()
        else:
            with pytest.raises(FormatError, match="cut short"):
                decoder.finish()


def test_a_flipped_bit_is_found_unless_it_says_that_a_frame_may_be_skipped() -> None:
    content = SAMPLE + b"as it was"
    for bit in range(8 * len(MIXED)):
        flipped = bytearray(MIXED)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            out = decode(bytes(flipped))
        except FormatError:
            continue
        if out != content:
            # Bit 7 of a frame's kind: a block became skippable, and is missing as a whole.
            assert bit % 8 == 7
            assert flipped[bit // 8] in (0x80, 0x81)
            assert out in (SAMPLE, b"as it was")


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (stored(b"x"), "no stream identifier in the frame at byte 0"),
        (frame(PADDING, b"xx") + START, "no stream identifier in the frame at byte 0"),
        (b"NATSARC1", "no stream identifier"),
        (frame(0xFF, b"S2sTwo"), "unknown stream identifier"),
        (b"\xff\x05\x00\x00", "bad size 5"),
        (b"\xff\xff\xff\xff", "bad size 16777215"),
        (START + frame(0xFF, b"nothin"), "unknown stream identifier in the frame at byte 10"),
        (START + b"\x00\x03\x00\x00", "bad size 3 in the frame at byte 10"),
        (START + b"\x01\x03\x00\x00", "bad size 3"),
        (START + b"\x01" + (MAX_BLOCK_BYTES + 5).to_bytes(3, "little"), "bad size 4194309"),
        (START + b"\x00\xff\xff\xff", "bad size 16777215"),
        (SNAPPY_START + b"\x01" + (65536 + 5).to_bytes(3, "little"), "bad size 65541"),
        (START + stored(b"x")[:-1] + b"y", "wrong checksum in the frame at byte 10"),
        (START + compressed(b"\x01\x00y", b"x"), "wrong checksum"),
        (START + compressed(b"\x02\x00y", b"x"), "s2 block: 1 bytes decoded, 2 declared in the frame at byte 10"),
        (START + compressed(uvarint(MAX_BLOCK_BYTES + 1) + b"\x00y", b"x"), "4194305 bytes declared, 4194304 allowed"),
        (SNAPPY_START + zeros(65537 + 65540), "131077 bytes declared, 65536 allowed"),
        (SNAPPY_START + compressed(uvarint(65537) + b"\x00y", b"x"), "65537 bytes declared, 65536 allowed"),
    ],
)
def test_a_bad_stream_is_refused_in_words_and_stays_refused(stream: bytes, words: str) -> None:
    for step in (len(stream), 1):
        decoder = S2Decoder()
        with pytest.raises(FormatError, match=words):
            for at in range(0, len(stream), step):
                list(decoder.feed(stream[at : at + step]))
        with pytest.raises(FormatError, match=words):
            list(decoder.feed(stored(b"more")))


def test_frames_that_must_not_be_skipped_are_refused() -> None:
    for kind in range(0x02, 0x80):
        with pytest.raises(FormatError, match=f"unknown kind 0x{kind:02x}"):
            decode(START + frame(kind, b"x"))
    for kind in range(0x80, 0xFF):
        assert decode(START + frame(kind, b"x") + stored(b"y")) == b"y"


def test_the_limit_of_a_block_follows_the_last_identifier() -> None:
    large = stored(bytes(65537))
    assert len(decode(SNAPPY_START + START + large)) == 65537
    with pytest.raises(FormatError, match="bad size"):
        decode(START + large + SNAPPY_START + large)


def test_the_largest_block_is_read() -> None:
    assert decode(START + stored(bytes(MAX_BLOCK_BYTES)) + zeros(MAX_BLOCK_BYTES)) == bytes(2 * MAX_BLOCK_BYTES)


def test_what_is_skipped_is_not_kept() -> None:
    decoder = S2Decoder()
    list(decoder.feed(START + b"\xfe\xff\xff\xff"))
    piece = bytes(65535)
    tracemalloc.start()
    try:
        for _ in range(256):
            assert list(decoder.feed(piece)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    with pytest.raises(FormatError, match="cut short"):
        decoder.finish()
    assert b"".join(decoder.feed(bytes(255) + stored(b"behind it"))) == b"behind it"


def test_blocks_are_decoded_one_at_a_time() -> None:
    bomb = START + zeros(MAX_BLOCK_BYTES) * 20
    decoder = S2Decoder()
    size = 0
    tracemalloc.start()
    try:
        for block in decoder.feed(bomb):
            size += len(block)
            del block
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 20 * MAX_BLOCK_BYTES
    assert peak < 3 * MAX_BLOCK_BYTES


def test_blocks_not_taken_come_with_the_next_piece() -> None:
    decoder = S2Decoder()
    pieces = decoder.feed(START + stored(b"one") + stored(b"two") + stored(b"three")[:-1])
    assert next(pieces) == b"one"
    with pytest.raises(FormatError, match="cut short"):
        decoder.finish()
    assert list(decoder.feed(b"e")) == [b"two", b"three"]
    assert list(pieces) == []
    decoder.finish()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(MIXED)), st.integers(0, 20))
def test_hostile_bytes_are_never_more_than_a_format_error(noise: bytes, at: int, width: int) -> None:
    for stream in (noise, START + noise, MIXED[:at] + noise + MIXED[at + width :]):
        try:
            decode(stream)
        except FormatError as error:
            assert error.message.startswith("s2 stream: ")


# --- encoding -----------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 5), st.sampled_from([1, 77, 1 << 16]), st.integers(1, 1 << 20))
def test_what_is_encoded_is_decoded(content: bytes, times: int, repeats: int, step: int) -> None:
    content = (content * repeats)[: 3 * BLOCK_BYTES // 2] * times
    assert decode(encode(content, step), 1 << 17) == content


def test_blocks_have_one_mebibyte_and_only_the_last_is_shorter() -> None:
    content = random.Random(1).randbytes(1000) * 2500
    decoder = S2Decoder()
    sizes = [len(block) for block in decoder.feed(encode(content, 99_999))]
    assert sizes == [BLOCK_BYTES, BLOCK_BYTES, 2_500_000 - 2 * BLOCK_BYTES]


def test_frames_do_not_depend_on_how_the_content_comes() -> None:
    content = SAMPLE * 2000
    whole = encode(content, len(content))
    assert all(encode(content, step) == whole for step in (1 << 14, 1 << 20, 1 << 21, 123_457))


def test_what_does_not_shrink_is_stored() -> None:
    noise = random.Random(2).randbytes(5000)
    assert encode(noise) == START + stored(noise)
    assert encode(b"x") == START + stored(b"x")
    assert len(encode(bytes(5000))) < 300


def test_a_full_block_is_given_at_once_and_the_rest_at_the_end() -> None:
    encoder = S2Encoder()
    assert encoder.feed(b"") == [START]
    assert encoder.feed(bytes(BLOCK_BYTES - 1)) == []
    assert encoder.feed(bytes(2))[0][:1] == b"\x00"
    assert b"".join(encoder.finish()) == stored(b"\x00")
    assert encoder.finish() == []


def test_nothing_is_compressed_in_a_hurry() -> None:
    hurry = iter((True, False, True))
    encoder = S2Encoder(lambda: next(hurry))
    blocks = [bytes([number]) * BLOCK_BYTES for number in range(3)]
    out = START + b"".join(map(stored, blocks[::2]))
    encoded = b"".join([*(part for block in blocks for part in encoder.feed(block)), *encoder.finish()])
    assert decode(encoded) == b"".join(blocks)
    assert len(out) < len(encoded) < len(out) + BLOCK_BYTES // 10


def test_no_content_is_a_stream_identifier_alone() -> None:
    assert S2Encoder().finish() == [START]
