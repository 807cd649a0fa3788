"""A file in memory: what was written, whatever was reserved."""

from __future__ import annotations

import os

import pytest

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
