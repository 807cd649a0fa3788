from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.repository import layout


def test_backup_ids_hold_the_time_and_sort_by_it() -> None:
    assert layout.backup_id(1795225500_999_999_999, b"\x1a\x2b\x3c") == "20261121T014500Z-1a2b3c"
    assert layout.backup_id(0, b"\0\0\0") == "19700101T000000Z-000000"
    ids = [layout.backup_id(second * 10**9, b"\xff\xff\xff") for second in range(0, 10**10, 10**8 + 7)]
    assert ids == sorted(ids)
    assert all(layout.is_backup_id(backup) for backup in ids)
    assert [layout.backup_id_of(layout.manifest_key(backup)) for backup in ids] == ids


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=2))
def test_backups_of_the_same_second_have_ids_that_rise(randoms: list[bytes]) -> None:
    ids: list[str] = []
    for random in randoms:
        ids.append(layout.backup_id(1795225500 * 10**9, random, ids[-1] if ids else None))
    assert ids == sorted(set(ids))
    assert all(layout.is_backup_id(backup) for backup in ids)


def test_an_id_passes_no_later_backup_by() -> None:
    for later in ("19700101T000004Z-ffffff", "20301121T014500Z-ffffff"):
        assert layout.backup_id(10**9, b"\0\0\1", later) == "19700101T000001Z-000001"
    assert layout.backup_id(10**9, b"\0\0\1", "19700101T000001Z-ffffff") == "19700101T000002Z-000001"


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ("19700101T000002Z-000001", "19700101T000002Z-000003"),  # the numbers of second 1 had run out
        ("19700101T000003Z-00000a", "19700101T000003Z-00000c"),  # a clock was set back by two seconds
        ("19700101T000003Z-ffffff", "19700101T000004Z-000001"),
        ("19700101T000000Z-ffffff", "19700101T000001Z-000001"),
    ],
)
def test_an_id_is_higher_than_that_of_a_backup_two_seconds_later(newest: str, expected: str) -> None:
    made = layout.backup_id(10**9, b"\0\0\1", newest)
    assert made == expected
    assert made > newest


BACKUPS = ["20261121T014500Z-1a2b3c", "20261121T014500Z-1b0000", "20261122T000000Z-000000", "20260101T000000Z-ffffff"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20261122", BACKUPS[2]), ("20261121T014500Z-1a", BACKUPS[0]), (BACKUPS[3], BACKUPS[3])],
)
def test_a_backup_is_named_by_a_unique_start(text: str, expected: str) -> None:
    assert layout.resolve_backup(text, BACKUPS) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2025", "no backup starts with '2025'"),
        ("", "no backup"),
        ("2026", "4 backups"),
        ("20261121", "2 backups"),
        ("latest", "no backup"),  # what that means, `latest.py` says
    ],
)
def test_an_unclear_backup_is_a_usage_error(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        layout.resolve_backup(text, BACKUPS)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("latset", "Did you mean latest?"),
        ("LAST", "Did you mean latest?"),
        ("newest", "Did you mean latest?"),
        ("20261121T014500Z-1a2b3d", "Did you mean 20261121T014500Z-1a2b3c?"),
        ("ORDERS", "A backup is named before streams: by its id, the start of it, or `latest`. See `jsbackup list`."),
    ],
)
def test_a_similar_backup_is_suggested(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        layout.resolve_backup(text, BACKUPS)
    assert raised.value.hint == hint


def test_where_there_is_no_backup_that_is_said() -> None:
    with pytest.raises(UsageError, match="the repository has no backup yet"):
        layout.resolve_backup("2026", [])
