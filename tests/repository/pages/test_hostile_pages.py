"""Pages and lists of pages that a hostile store could forge: an error of one sentence, in little memory."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, IntegrityError, JsBackupError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import INT64_MAX, DocumentFields, decode_document, encode_document
from jsbackup.repository.pages import page_store, stream_pages
from jsbackup.repository.pages.segment_pages import decode_page, list_from_json, list_to_json
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.many_streams import manifest_of, many_streams, pages_in
from tests.repository.pages.segments import MemoryPages, segment, segments

KEY = layout.manifest_key(FIRST)


def forged(store: MemoryStore, change: Callable[[JsonObject], None]) -> Repository:
    """Replace the manifest by a changed one, whose checksum is right."""
    value = dict(decode_document(store.get(KEY), KEY).value)
    change(value)
    store.delete(KEY)
    store.put(KEY, encode_document(value, KEY))
    return Repository.open(store)


# --- pages of segments ---


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (5, INT64_MAX),  # more segments than messages
        (6, 1),  # fewer messages than segments
        (6, INT64_MAX),  # more messages than sequences
        (9, 31),  # ends before it begins
    ],
)
def test_a_row_of_a_page_whose_totals_are_impossible_is_refused(at: int, value: int) -> None:
    listed = list_to_json([MemoryPages().store(0, segments(3))])
    listed["parts"][0][at] = value
    with pytest.raises(FormatError, match="states totals that no page has"):
        list_from_json(DocumentFields(listed, "page"))


def test_a_row_of_a_segment_with_more_messages_than_sequences_is_refused() -> None:
    listed = list_to_json([segment(1)])
    listed["parts"][0][2] = 11
    with pytest.raises(FormatError, match="has more messages than sequences"):
        list_from_json(DocumentFields(listed, "page"))


def test_a_page_of_segments_that_decompresses_to_more_than_such_pages_have_is_not_decompressed() -> None:
    data = zstandard.ZstdCompressor(level=3).compress(b"x" * (64 << 20))
    page = replace(MemoryPages().store(0, segments(3)), size=len(data))
    with peak() as held, pytest.raises(FormatError, match="is not compressed as a page is"):
        decode_page(data, page)
    assert held[0] < 1 << 20


@cache
def long_list() -> MemoryStore:
    store = MemoryStore()
    store_backup(make_repository(store), count=2000)
    return store


def copy_of(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for info in store.list():
        copy.put(info.key, store.get(info.key))
    return copy


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_forged_list_of_pages_can_be_counted_or_is_refused(data: st.DataObject) -> None:
    def change(value: JsonObject) -> None:
        rows = [row for row in value["streams"][0]["segments"]["parts"] if len(row) == 14]
        assert len(rows) > 2
        for row in data.draw(st.lists(st.sampled_from(rows), min_size=1)):
            at = data.draw(st.integers(5, 10))
            row[at] = data.draw(st.sampled_from([1, row[at] + 1, 1 << 62, INT64_MAX]))

    try:
        found = forged(copy_of(long_list()), change).manifest(FIRST).streams[0].segments
    except FormatError:
        return
    assert 0 < len(found) <= INT64_MAX


# --- pages of streams ---


def many(count: int = 500) -> MemoryStore:
    store = MemoryStore()
    make_repository(store).commit(manifest_of(many_streams(count)))
    return store


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most bytes that were held at a time."""
    held: list[int] = []
    tracemalloc.start()
    try:
        yield held
        held.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_a_page_that_is_listed_twice_is_refused_before_any_is_read() -> None:
    store = many()

    def change(value: JsonObject) -> None:
        rows = value["paged_streams"]["pages"]
        value["paged_streams"]["pages"] = [max(rows, key=lambda row: row[5])] * 3000

    repository = forged(store, change)
    with peak() as held, pytest.raises(FormatError, match="list of different pages"):
        repository.manifest(FIRST)
    assert held[0] < 30 << 20, "3,000 times the same streams take 290 MB"


def test_a_stream_that_two_pages_list_is_refused_at_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of a page under other names, which end after some of them are read."""
    store = many()

    def change(value: JsonObject) -> None:
        row = max(value["paged_streams"]["pages"], key=lambda row: row[5])
        page = zstandard.decompress(
            store.get(layout.stored_keys(layout.page_key(layout.STREAMS_FOLDER, row[0]), row[0])[0])
        )
        rows = []
        for level in range(1, 20):
            data = zstandard.ZstdCompressor(level=level).compress(page + b" " * level)
            rows.append(row_of(store, data, row))
        value["paged_streams"]["pages"] = rows

    repository = forged(store, change)
    monkeypatch.setattr(stream_pages, "_THREADS", 1)
    read: list[str] = []
    original = stream_pages.decode_stream_page
    monkeypatch.setattr(
        stream_pages,
        "decode_stream_page",
        lambda data, page, segments: read.append(page.key) or original(data, page, segments),
    )
    with pytest.raises(FormatError, match="different names"):
        repository.manifest(FIRST)
    assert len(read) < 8


def row_of(store: MemoryStore, data: bytes, like: list[Any], streams: int | None = None) -> list[Any]:
    name = hashlib.sha256(data).hexdigest()
    store.put(layout.page_key(layout.STREAMS_FOLDER, name), data)
    return [name, "", len(data), "", like[4], streams or like[5], like[6], like[7]]


@pytest.mark.parametrize("value", [0, stream_pages.MOST_STREAMS + 1, INT64_MAX])
def test_a_row_with_more_streams_than_a_page_has_is_refused(value: int) -> None:
    def change(manifest: JsonObject) -> None:
        manifest["paged_streams"]["pages"][0][5] = value

    with pytest.raises(FormatError, match="has no valid number in place 5"):
        forged(many(), change).manifest(FIRST)


def with_bombs(store: MemoryStore, count: int, raw_bytes: int, streams: int) -> Repository:
    """A manifest that lists small pages which decompress to much."""

    def change(value: JsonObject) -> None:
        like = value["paged_streams"]["pages"][0]
        rows = []
        for number in range(count):
            raw = b'{"streams":"' + b"x" * raw_bytes + b'%d"}' % number
            rows.append(row_of(store, zstandard.ZstdCompressor(level=3).compress(raw), like, streams))
        value["paged_streams"]["pages"] = rows

    return forged(store, change)


def test_a_page_of_several_streams_that_decompresses_to_more_than_such_pages_have_is_not_decompressed() -> None:
    repository = with_bombs(many(), 4, stream_pages.MOST_BYTES, 2)
    with peak() as held, pytest.raises(FormatError, match="is not compressed as a page is"):
        repository.manifest(FIRST)
    assert held[0] < 8 << 20


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("streams", [1, 2])
def test_pages_that_decompress_to_much_are_decompressed_a_few_at_a_time(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of one stream may be as large as a manifest: it is alone then."""
    megabytes = 30 if streams == 1 else 14
    repository = with_bombs(many(), 8, megabytes << 20, streams)
    lock, now, most = Lock(), 0, 0
    original = decode_document

    def counted(data: bytes, what: str) -> DocumentFields:
        nonlocal now, most
        with lock:
            now += len(data)
            most = max(most, now)
        try:
            return original(data, what)
        finally:
            with lock:
                now -= len(data)

    monkeypatch.setattr(page_store, "decode_document", counted)
    with pytest.raises(FormatError):
        repository.manifest(FIRST)
    # In part: all of them are read.
    with pytest.raises(FormatError):
        repository.manifest(FIRST, in_part=True)
    assert megabytes << 20 <= most <= page_store.DECODED_BYTES + (megabytes << 20) + 100


def test_a_page_of_streams_that_would_be_too_large_is_stored_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_pages, "MOST_BYTES", 5000)
    store = many()
    found = Repository.open(store).manifest(FIRST)
    assert [one.name for one in found.streams] == [one.name for one in many_streams()]
    sizes = [len(zstandard.decompress(store.get(key))) for key in pages_in(store)]
    assert max(sizes) <= 5000
    before = pages_in(store)
    repository = Repository.open(store)
    repository.commit(manifest_of(repository.manifest(FIRST).streams, "20261121T014600Z-000002"))
    assert pages_in(store) == before


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_forged_page_of_streams_is_an_error_and_no_crash(data: st.DataObject) -> None:
    store = many(70)
    junk = st.none() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({})

    def change(value: JsonObject) -> None:
        row = data.draw(st.sampled_from(value["paged_streams"]["pages"]))
        page = json.loads(
            zstandard.decompress(
                store.get(layout.stored_keys(layout.page_key(layout.STREAMS_FOLDER, row[0]), row[0])[0])
            )
        )
        streams = page["streams"]
        at = data.draw(st.integers(0, len(streams) - 1))
        what = data.draw(st.sampled_from(["twice", "field", "drop", "order"]))
        if what == "twice":
            streams.append(streams[at])
        elif what == "field":
            name = data.draw(st.sampled_from(sorted(streams[at])))
            streams[at][name] = data.draw(junk)
        elif what == "drop":
            del streams[at]
        else:
            streams.reverse()
        del page["sha256"]
        raw = encode_document(page, "page")
        row[:] = row_of(store, zstandard.ZstdCompressor(level=5).compress(raw), row)

    try:
        found = forged(store, change).manifest(FIRST)
    except JsBackupError as error:
        assert isinstance(error, IntegrityError)
        return
    names = [one.name for one in found.streams]
    assert len(set(names)) == len(names) == 70
