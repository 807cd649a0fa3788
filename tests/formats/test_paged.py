"""A file in memory: what was written, whatever was reserved."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.formats.paged import PagedFile


@pytest.mark.parametrize("reserved", [0, 1, 10_000, 1 << 20])
def test_it_holds_what_was_written_in_pieces(reserved: int) -> None:
    file = PagedFile(reserved)
    pieces = [os.urandom(size) for size in (1, 4095, 0, 4097, 100_000)]
    for number, piece in enumerate(pieces):
        assert file.tell() == sum(map(len, pieces[:number]))
        assert file.write(piece) == len(piece)
    assert file.content() == b"".join(pieces)


def test_content_outlives_the_file() -> None:
    file = PagedFile()
    file.write(memoryview(b"abc"))
    file.close()
    content = file.content()
    assert file.closed
    del file
    assert bytes(content) == b"abc"


@given(st.lists(st.tuples(st.integers(0, 12 << 20), st.lists(st.binary(max_size=3000), max_size=4)), max_size=6))
def test_files_one_after_the_other_in_the_same_memory_hold_what_was_written(
    files: list[tuple[int, list[bytes]]],
) -> None:
    file = PagedFile(0)
    for size, pieces in files:
        file.start_again(size)
        assert file.tell() == 0
        for piece in pieces:
            file.write(piece)
        assert file.content() == b"".join(pieces)
