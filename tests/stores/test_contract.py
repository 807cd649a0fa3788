"""What every store must do. `conftest.FACTORIES` names the stores that are held to it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError
from jsbackup.stores.base import MAX_KEY_BYTES, MAX_PART_BYTES, ObjectInfo, Store

BAD_KEYS = [
    "",
    "a/",
    "..",
    "a/../b",
    ".hidden",
    "a b",
    "a\0b",
    "a\nb",
    "größe",
    "a?b",
    "x" * (MAX_PART_BYTES + 1),
    "/".join(["x" * 100] * 6),
]

LONGEST = "/".join(["x" * MAX_PART_BYTES, "y" * MAX_PART_BYTES])[:MAX_KEY_BYTES]


def keys_of(store: Store, prefix: str = "") -> list[str]:
    return [info.key for info in store.list(prefix)]


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(data)[::1].cast("B", (2, len(data) // 2))])
def test_any_contiguous_buffer_can_be_put_and_is_not_kept(store: Store, wrap: type) -> None:
    source = bytearray(b"0123456789")
    store.put("key", wrap(source))
    source[:] = b"x" * 10
    assert store.get("key") == b"0123456789"


def test_a_large_object_survives(store: Store) -> None:
    data = random.Random(1).randbytes(5 << 20)
    store.put("large", data)
    assert store.get("large") == data
    assert store.get_range("large", (5 << 20) - 3, 100) == data[-3:]


def test_put_never_replaces(store: Store) -> None:
    store.put("a/key", b"first")
    for data in (b"second", b"first", b""):
        with pytest.raises(ObjectExists) as caught:
            store.put("a/key", data)
        assert caught.value.key == "a/key"
    assert store.get("a/key") == b"first"
    assert keys_of(store) == ["a/key"]


def test_of_concurrent_puts_exactly_one_wins(store: Store) -> None:
    def put(number: int) -> int | None:
        try:
            store.put("race/key", bytes([number]) * 70_000)
        except ObjectExists:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(put, range(12)) if number is not None]
    assert len(winners) == 1
    assert store.get("race/key") == bytes(winners) * 70_000


def test_absence_is_an_error_of_its_own(store: Store) -> None:
    store.put("there/object", b"x")
    for key in ("nothing", "nothing/at/all", "there/nothing", "there"):
        for read in (store.get, store.head, lambda k: store.get_range(k, 0, 1)):
            with pytest.raises(ObjectNotFound) as caught:
                read(key)
            assert caught.value.key == key
            assert not store.is_temporary(caught.value)


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (0, 11, b"0123456789"),
        (3, 4, b"3456"),
        (10, 1, b""),
    ],
)
def test_a_range_is_cut_at_the_end_of_the_object(store: Store, offset: int, length: int, expected: bytes) -> None:
    store.put("digits", b"0123456789")
    assert store.get_range("digits", offset, length) == expected


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, 0), (0, -1)])
def test_an_impossible_range_is_refused(store: Store, offset: int, length: int) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(StoreError, match="not a valid range"):
        store.get_range("digits", offset, length)


def test_head_tells_key_size_and_a_time(store: Store) -> None:
    store.put("a/b", b"12345")
    info = store.head("a/b")
    assert (info.key, info.size) == ("a/b", 5)
    assert info.modified_seconds >= 0
    assert list(store.list()) == [info]


def test_a_listing_is_sorted_by_key_across_folders(store: Store) -> None:
    # '-' and '%' sort before '/', digits and letters behind it: the order is that of whole keys, not of folders.
    keys = ["A", "a", "b-c", "b%c", "b/c", "b/c2/d", "b/c-2", "b0", "bb/a", "B/a", "z/y/x/w", "b.c"]
    for key in random.Random(2).sample(keys, len(keys)):
        store.put(key, key.encode())
    assert keys_of(store) == sorted(keys)
    assert [info.size for info in store.list()] == [len(key) for key in sorted(keys)]


def test_a_listing_takes_any_prefix(store: Store) -> None:
    keys = ["backups/2026-a.json", "backups/2026-b.json", "backups/2027.json", "back", "segments/s/1", "segments/s2/1"]
    for key in keys:
        store.put(key, b"")
    prefixes = [
        "",
        "b",
        "back",
        "backups",
        "backups/",
        "backups/2026",
        "segments/s",
        "segments/s/",
        "segments/s/1",
        "x",
        "backups/x/y",
    ]
    for prefix in prefixes:
        assert keys_of(store, prefix) == sorted(key for key in keys if key.startswith(prefix)), prefix


def test_objects_can_be_deleted_while_they_are_listed(store: Store) -> None:
    for number in range(20):
        store.put(f"f{number % 3}/{number}", b"")
    for info in store.list():
        store.delete(info.key)
    assert keys_of(store) == []


def test_delete_removes_one_object_and_can_be_repeated(store: Store) -> None:
    store.put("a/b", b"1")
    store.put("a/bc", b"2")
    store.delete("a/b")
    store.delete("a/b")
    assert keys_of(store) == ["a/bc"]
    with pytest.raises(ObjectNotFound):
        store.get("a/b")
    store.put("a/b", b"new")
    assert store.get("a/b") == b"new"


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_bad_key_is_refused_by_every_operation(store: Store, key: str) -> None:
    for use in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete(key),
    ):
        with pytest.raises(StoreError, match="not a valid object key"):
            use()
    assert keys_of(store) == []


@pytest.mark.parametrize("key", ["a%2E", "-", "a..b", LONGEST, "a/" * 250 + "a"])
def test_every_good_key_works(store: Store, key: str) -> None:
    store.put(key, b"data")
    assert store.get(key) == b"data"
    assert [(info.key, info.size) for info in store.list()] == [(key, 4)]
    store.delete(key)
    assert keys_of(store) == []


def test_threads_may_share_a_store(store: Store) -> None:
    def work(number: int) -> ObjectInfo:
        key = f"shared/{number % 5}/{number}"
        store.put(key, bytes(number))
        assert store.get(key) == bytes(number)
        assert key in keys_of(store, f"shared/{number % 5}/")
        return store.head(key)

    with ThreadPoolExecutor(8) as pool:
        infos = list(pool.map(work, range(20)))
    assert sorted(infos, key=lambda info: info.key) == list(store.list())
