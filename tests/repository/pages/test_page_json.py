"""Pages as documents: what was written is read again, and nothing else is believed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError, IntegrityError, UnsupportedError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import DocumentFields
from jsbackup.repository.objects import PageRef, SegmentRef
from jsbackup.repository.pages.page_store import encode
from jsbackup.repository.pages.segment_list import Part
from jsbackup.repository.pages.segment_pages import decode_page, encode_page, list_from_json, list_to_json, page_of
from tests.repository.pages.segments import FOLDER, MemoryPages, segment, segments


def stored_page(parts: list[Part], level: int = 0) -> tuple[bytes, PageRef]:
    data = encode_page(level, parts)
    name = hashlib.sha256(data).hexdigest()
    return data, page_of(level, parts, key=layout.page_key(FOLDER, name), name=name, size=len(data), sha256=name)


def test_a_page_of_segments_is_read_as_it_was_written() -> None:
    hidden = "ab" * 32
    awkward = [
        replace(segment(1), gaps="0f" * 16),
        replace(segment(11), key=layout.segment_key(FOLDER, 11, 20, hidden)),
        replace(segment(21), key=layout.stored_keys(segment(21).key, "12345678" + "0" * 56)[0]),
        replace(segment(31), min_ns=-5, max_ns=-1),
    ]
    data, page = stored_page([*awkward])
    assert list(decode_page(data, page)) == awkward
    assert page.segments == 4 and page.messages == 40 and page.dense


def test_a_page_of_encrypted_segments_is_read_as_it_was_written() -> None:
    folder = f"segments/{'0a' * 16}-{'1b' * 4}"
    refs = [
        replace(ref, key=layout.segment_key(folder, ref.first_seq, ref.last_seq, "cd" * 32, suffix=".age"))
        for ref in segments(3)
    ]
    data = encode_page(0, refs)
    page = page_of(
        0, refs, key=layout.page_key(folder, "ef" * 32, suffix=".age"), name="ef" * 32, size=700, sha256="12" * 32
    )
    assert list(decode_page(data, page)) == refs
    upper = encode_page(1, [page])
    above = page_of(
        1, [page], key=layout.page_key(folder, "34" * 32, suffix=".age"), name="34" * 32, size=700, sha256="56" * 32
    )
    assert list(decode_page(upper, above)) == [page]


def test_a_page_of_pages_is_read_as_it_was_written() -> None:
    pages = MemoryPages()
    lower = [pages.store(0, segments(5)), pages.store(0, segments(7, first=5))]
    data, page = stored_page([*lower], 1)
    assert list(decode_page(data, page)) == lower
    assert page.segments == 12 and page.dense


def test_another_page_than_the_one_that_is_named_is_refused() -> None:
    data, page = stored_page([*segments(5)])
    others = {"segments": 6, "messages": 51, "bytes": 1, "stored_bytes": 1, "first_seq": 2, "last_seq": 99, "level": 1}
    for name, value in others.items():
        with pytest.raises(FormatError):
            decode_page(data, replace(page, **{name: value}))  # type: ignore[arg-type]


def test_a_later_format_is_not_supported() -> None:
    data, page = stored_page([*segments(2)])
    later, _ = encode({**content(data), "format": 2}, "page")
    with pytest.raises(UnsupportedError, match="format 2"):
        decode_page(later, page)


def content(data: bytes) -> JsonObject:
    value: JsonObject = json.loads(zstandard.decompress(data))
    del value["sha256"]
    return value


@pytest.mark.parametrize("folder", ["segments/others-1a2b3c4d", "segments/orders-ffffffff"])
def test_a_page_of_segments_in_another_folder_is_refused(folder: str) -> None:
    data, page = stored_page([*segments(2)])
    with pytest.raises(FormatError, match="is not the one that is named"):
        decode_page(encode({**content(data), "folder": folder}, "page")[0], page)


@pytest.mark.parametrize(
    "parts",
    [
        [segment(11), segment(1)],
        [segment(1, 10), segment(5, 10)],
        [segment(1), MemoryPages().store(0, segments(2, first=1))],
    ],
)
def test_parts_that_are_not_in_order_are_refused(parts: list[Part]) -> None:
    with pytest.raises(FormatError):
        list_from_json(DocumentFields(list_to_json(parts), "page"))


WRONG: list[Any] = [None, True, -(1 << 70), 1 << 70, 1.5, "x", "../x", "", [], {}, [1], {"a": 1}]


@given(st.data())
def test_a_damaged_row_is_an_error_and_no_crash(data: st.DataObject) -> None:
    pages = MemoryPages()
    listed = list_to_json([data.draw(st.sampled_from([segment(1), pages.store(0, segments(3))]))])
    row = listed["parts"][0]
    at = data.draw(st.integers(0, len(row) - 1))
    wrong = data.draw(st.sampled_from(WRONG))
    damaged = [*row[:at], wrong, *row[at + 1 :]] if data.draw(st.booleans()) else row[:at]
    try:
        _, found = list_from_json(DocumentFields({**listed, "parts": [damaged]}, "page"))
    except IntegrityError:
        return
    # Empty texts stand for what follows from other values.
    assert wrong == "" and all(isinstance(part, SegmentRef | PageRef) for part in found)


@given(st.binary(max_size=200), st.integers(0, 2000))
def test_damaged_bytes_are_an_error_and_no_crash(noise: bytes, at: int) -> None:
    data, page = stored_page([*segments(3)])
    at = min(at, len(data))
    damaged = data[:at] + noise + data[at + len(noise) :]
    if damaged.strip() != data.strip():  # blanks around it are noticed by the size and SHA-256 of the stored object
        with pytest.raises(IntegrityError):
            decode_page(damaged, page)
