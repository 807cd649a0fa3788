"""Files of JSON lines are read in pieces: each line once, and a sentence with its place for what is wrong."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, StoreError, UsageError
from jsbackup.formats.json_lines import encode_lines
from jsbackup.pipeline.tables import line_files
from jsbackup.pipeline.tables.line_files import FilePiece, ReadLines
from tests.formats.test_json_lines import GOOD
from tests.harness.batches import batch_of, some_messages


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2000), max_size=6), st.booleans())
def test_pieces_of_a_file_have_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], ends: bool
) -> None:
    messages = some_messages(12, 30)
    data = encode_lines(batch_of(messages), "S").replace(b"\n", b"\n\n \n", 1)
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(data if ends else data[:-1])
    bounds = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = tuple(FilePiece(str(path), start, end) for start, end in pairwise(bounds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_files, "_BATCH_BYTES", 500)
        batches = list(ReadLines(pieces)())
    assert [n for batch in batches for n in batch.column("sequence").to_pylist()] == [m.sequence for m in messages]
    assert len(batches) > 2


def test_the_place_of_what_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some.jsonl"
    first = json.dumps(GOOD).encode() + b"\n"
    path.write_bytes(first + b'{"sequence": 8}\n')
    piece = FilePiece(str(path), 0, 1000)
    with pytest.raises(UsageError, match=f"^some.jsonl, line 2 at byte {len(first)}: there is no time$"):
        list(ReadLines((piece,))())
    path.write_bytes(first + first[:-9])
    with pytest.raises(FormatError, match=f"^some.jsonl, line 2 at byte {len(first)}: it is not JSON: unterm"):
        list(ReadLines((piece,))())
    path.write_bytes(3 * b"\n" + 2 * first + b"{}")
    late = 3 + 2 * len(first)
    with monkeypatch.context() as patch, pytest.raises(UsageError, match=f"^some.jsonl, line 6 at byte {late}: there"):
        patch.setattr(line_files, "_BATCH_BYTES", 7)
        list(ReadLines((FilePiece(str(path), 4 + len(first), 1000),))())
    monkeypatch.setattr(line_files, "_MAX_LINE_BYTES", 20)
    with pytest.raises(FormatError, match="line 4 at byte 3: longer than any message is"):
        list(ReadLines((piece,))())
    path.unlink()
    with pytest.raises(UsageError, match="there is no file"):
        list(ReadLines((piece,))())
    with pytest.raises(StoreError, match="cannot be read: is a directory"):
        list(ReadLines((FilePiece(str(tmp_path), 0, 1),))())
