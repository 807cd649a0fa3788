from __future__ import annotations

import random
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import DigestMismatch, FormatError
from jsbackup.repository import layout
from jsbackup.repository.objects import Objects, sha256_of
from jsbackup.repository.write.stream_objects import OpaqueWriter, read_opaque, read_piece
from jsbackup.stores.memory import MemoryStore

FOLDER = layout.stream_folder("orders", "1a2b3c4d")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 40))
def test_bytes_come_back_and_pieces_depend_on_them_alone(chunks: list[bytes], size: int) -> None:
    store = MemoryStore()
    writer = OpaqueWriter(Objects(store), FOLDER, piece_bytes=size)
    for chunk in chunks:
        writer.feed(chunk)
    refs = writer.finish()
    whole = b"".join(chunks)
    assert b"".join(read_opaque(Objects(store), refs)) == whole
    assert [ref.bytes for ref in refs] == [len(whole[at : at + size]) for at in range(0, len(whole), size)]
    again = OpaqueWriter(Objects(store), FOLDER, piece_bytes=size)
    again.feed(whole)
    assert again.finish() == refs
    assert again.stored_bytes == 0


def test_the_zstd_tool_alone_can_open_it() -> None:
    store = MemoryStore()
    data = random.Random(1).randbytes(10_000)
    writer = OpaqueWriter(Objects(store), FOLDER, piece_bytes=3000)
    writer.feed(data)
    refs = writer.finish()
    assert len(refs) == 4
    # What `cat … | zstd -dc` does: all frames, one after the other.
    frames = b"".join(store.get(ref.key) for ref in refs)
    assert zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress(frames) == data
    assert {layout.kind_of(ref.key) for ref in refs} == {layout.ObjectKind.OPAQUE}


def test_a_damaged_piece_is_found() -> None:
    store = MemoryStore()
    writer = OpaqueWriter(Objects(store), FOLDER)
    writer.feed(b"data" * 100)
    (ref,) = writer.finish()
    data = store.get(ref.key)
    for broken in (data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:], b""):
        store.delete(ref.key)
        store.put(ref.key, broken)
        with pytest.raises(DigestMismatch):
            read_piece(Objects(store), ref)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (b"no zstd frame", 5),
        (zstandard.compress(b"x" * 100), 99),
        (zstandard.compress(b"x" * 100), 101),
        (zstandard.compress(b"x" * 100) + b"tail", 100),
        (zstandard.compress(b"x" * 100)[:-1], 100),
        (zstandard.compress(bytes(300 << 20)), 300 << 20),  # a bomb: more than a piece may have
    ],
)
def test_an_object_that_is_no_such_piece_is_a_format_error(data: bytes, size: int) -> None:
    store = MemoryStore()
    writer = OpaqueWriter(Objects(store), FOLDER)
    writer.feed(b"x")
    (ref,) = writer.finish()
    store.delete(ref.key)
    store.put(ref.key, data)
    with pytest.raises(FormatError):
        read_piece(Objects(store), replace(ref, size=len(data), sha256=sha256_of(data), bytes=size))
