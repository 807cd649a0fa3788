from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.repository import layout
from jsbackup.repository.layout import ObjectKind, SegmentKey
from jsbackup.stores.base import MAX_KEY_BYTES, check_key

DIGEST = "0123456789abcdef" * 4
names = st.text(min_size=1, max_size=300)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("a_B-9", "a_B-9"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("a.b", "a%2Eb"),
        ("..", "%2E%2E"),
        ("a/b\\c", "a%2Fb%5Cc"),
        ("100%", "100%25"),
        (" \0\n", "%20%00%0A"),
        ("😀", "%F0%9F%98%80"),
    ],
)
def test_names_are_percent_encoded(name: str, encoded: str) -> None:
    assert layout.stream_folder(name, "00000000") == f"segments/{encoded}-00000000"


@given(names, st.integers(0, (1 << 32) - 1))
def test_every_name_gives_a_valid_folder_and_a_short_one_comes_back(name: str, number: int) -> None:
    folder = layout.stream_folder(name, f"{number:08x}")
    longest = layout.stored_keys(layout.segment_key(folder, (1 << 64) - 1, (1 << 64) - 1, DIGEST), DIGEST)[0]
    assert check_key(longest) == longest
    assert len(longest) <= MAX_KEY_BYTES
    assert layout.is_stream_folder(folder)
    part, _, incarnation = folder.removeprefix(layout.SEGMENTS).rpartition("-")
    assert incarnation == f"{number:08x}"
    encoded = sum(
        1 if c.isascii() and (c.isalnum() or c in "_-") else 3 * len(c.encode("utf-8", "surrogatepass")) for c in name
    )
    assert layout.decode_name(part) == (name if encoded <= 200 else None)


@given(st.text("aé😀", min_size=60, max_size=300), st.text("aé😀", min_size=60, max_size=300))
def test_different_names_have_different_folders(one: str, other: str) -> None:
    folders = layout.stream_folder(one, "00000000"), layout.stream_folder(other, "00000000")
    assert (folders[0] == folders[1]) == (one == other)


def test_a_long_name_is_cut_at_a_character_and_told_apart_by_a_hash() -> None:
    name = "é" * 255
    folder = layout.stream_folder(name, "00000000")
    cut = "%C3%A9" * (160 // 6)
    assert folder == f"segments/{cut}.{hashlib.sha256(name.encode()).hexdigest()[:16]}-00000000"
    assert layout.is_stream_folder(folder)
    assert layout.stream_folder("x" * 200, "00000000") == f"segments/{'x' * 200}-00000000"
    assert layout.stream_folder("x" * 201, "00000000").startswith(f"segments/{'x' * 160}.")


@pytest.mark.parametrize(
    "folder",
    [
        "",
        "segments/",
        "segments/a",
        "segments/-00000000",
        "segments/a-0000000",
        "segments/a-0000000G",
        "segments/a-00000000/",
        "segments/a-00000000\n",
        "segments/a/b-00000000",
        "segments/a%2-00000000",
        "segments/a%zz-00000000",
        "segments/%61-00000000",  # spells a character that needs no spelling
        "segments/%c3%a9-00000000",  # lower case
        "segments/%C3-00000000",  # half a character
        "segments/a.b-00000000",
        f"segments/{'x' * 201}-00000000",
        f"segments/{'x' * 161}.0123456789abcdef-00000000",
        "backups/a-00000000",
    ],
)
def test_a_folder_that_nobody_would_make_is_refused(folder: str) -> None:
    assert not layout.is_stream_folder(folder)


@pytest.mark.parametrize(("name", "incarnation"), [("", "00000000"), ("a", ""), ("a", "0000000g"), ("a", "00000000\n")])
def test_a_folder_takes_a_name_and_an_incarnation(name: str, incarnation: str) -> None:
    with pytest.raises(FormatError):
        layout.stream_folder(name, incarnation)


def test_segment_keys_come_back() -> None:
    key = layout.segment_key("segments/a-00000000", 5, 9, DIGEST)
    assert layout.parse_segment_key(key) == SegmentKey("segments/a-00000000", 5, 9, DIGEST)
    beside = layout.stored_keys(key, "deadbeef" * 8)[0]
    assert layout.parse_segment_key(beside) == SegmentKey("segments/a-00000000", 5, 9, DIGEST, "deadbeef")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("00000000000000000005", "5"),
        ("00000000000000000005", "00000000000000000000"),
        ("00000000000000000005", "00000000000000000010"),
        ("00000000000000000009", "99999999999999999999"),
        ("00000000000000000009", "0000000000000000000٩"),
        (DIGEST, DIGEST.upper()),
        (DIGEST, DIGEST[1:]),
        (".parquet", ".PARQUET"),
        (".parquet", ".parquet.parquet"),
        (".parquet", ".parquet\n"),
        ("segments/a-", "segments/../a-"),
        ("segments/a-", "segments/%61-"),
    ],
)
def test_a_segment_key_that_nobody_would_make_is_refused(old: str, new: str) -> None:
    key = layout.segment_key("segments/a-00000000", 5, 9, DIGEST)
    with pytest.raises(FormatError):
        layout.parse_segment_key(key.replace(old, new))
    assert layout.kind_of(key.replace(old, new)) is ObjectKind.FOREIGN


def test_an_incarnation_depends_on_all_four_parts() -> None:
    base = ("cluster", "account", "name", "2026-11-21T01:45:00Z")
    assert layout.incarnation(*base) == hashlib.sha256(b"cluster\0account\0name\x001795225500000000000").hexdigest()[:8]
    others = [
        ("x", *base[1:]),
        (base[0], "x", *base[2:]),
        (*base[:2], "x", base[3]),
        (*base[:3], "2026-11-21T01:45:01Z"),
    ]
    assert len({layout.incarnation(*base), *(layout.incarnation(*other) for other in others)}) == 5


def test_an_incarnation_does_not_depend_on_how_the_time_is_written() -> None:
    times = ["2026-11-21T01:45:00Z", "2026-11-21T01:45:00.000000000Z", "2026-11-21T02:45:00+01:00"]
    assert len({layout.incarnation("c", "a", "n", time) for time in times}) == 1


def test_a_creation_time_that_is_none_is_refused() -> None:
    with pytest.raises(FormatError, match="creation time of stream n"):
        layout.incarnation("c", "a", "n", "yesterday")
