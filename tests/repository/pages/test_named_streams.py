"""Of a long list of streams, only the pages are read that have what a command needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.config import Glob
from jsbackup.errors import FormatError, IntegrityError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.manifest_json import encode_manifest, read_needed
from jsbackup.repository.read.latest import BackupSearch, Wanted
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_repository
from tests.harness.counting import CountingStore
from tests.harness.many_streams import MANY, manifest_of, many_streams, small_stream

KEY = layout.manifest_key(FIRST)


def copying(number: int, **config: JsonObject | list[JsonObject]) -> StreamBackup:
    stream = small_stream(number)
    return replace(stream, config={**stream.config, **config})


def stored(streams: Collection[StreamBackup]) -> MemoryStore:
    store = MemoryStore()
    make_repository(store).commit(manifest_of([*streams]))
    return store


def pages_read(store: MemoryStore, names: Collection[str]) -> tuple[int, set[str]]:
    """How many pages are read for some streams, and which streams are found."""
    counting = CountingStore(store)
    found = Repository.open(counting).manifest(FIRST, names=names)
    read = sum(key.startswith(layout.STREAMS) for key in counting.read_bytes)
    assert read == len(found.stream_pages) - len(found.unread)
    return read, {one.name for one in found.streams}


@pytest.mark.parametrize("number", [0, 1, 250, MANY - 1])
def test_for_one_stream_one_page_is_read(number: int) -> None:
    store = stored(many_streams())
    whole = Repository.open(store).manifest(FIRST)
    name = f"STREAM_{number:04}"
    read, found = pages_read(store, [name])
    assert read == 1 and name in found
    one = next(one for one in Repository.open(store).manifest(FIRST, names=[name]).streams if one.name == name)
    assert one == next(one for one in whole.streams if one.name == name)


def test_a_name_that_is_not_there_costs_one_page_or_none() -> None:
    store = stored(many_streams())
    assert pages_read(store, ["STREAM_0100_A"])[0] == 1
    assert pages_read(store, ["A"]) == (0, set())


def test_what_a_stream_copies_from_is_read_with_it() -> None:
    streams = many_streams()
    streams[10] = copying(10, mirror={"name": "STREAM_0200"})
    streams[200] = copying(200, sources=[{"name": "STREAM_0490"}, {"name": "OF_ANOTHER_ACCOUNT", "external": {}}])
    streams[490] = copying(490, sources=[{"name": "STREAM_0010"}])  # in a circle
    read, found = pages_read(stored(streams), ["STREAM_0010"])
    assert found >= {"STREAM_0010", "STREAM_0200", "STREAM_0490"} and read == 3
    read, found = pages_read(stored(streams), ["STREAM_0011"])
    assert found >= {"STREAM_0011", "STREAM_0010"} and read == 1, "only what is asked for brings its origins"


def test_a_list_that_is_in_another_order_is_read_whole() -> None:
    streams = [*many_streams()[250:], *many_streams()[:250]]
    assert pages_read(stored(streams), ["STREAM_0010"])[1] == {one.name for one in streams}


def forge(store: MemoryStore, **paged: object) -> None:
    value = dict(decode_document(store.get(KEY), KEY).value)
    value["paged_streams"] |= paged
    store.delete(KEY)
    store.put(KEY, encode_document(value, KEY))


def test_an_order_that_is_not_there_is_refused() -> None:
    store = stored([*many_streams()[250:], *many_streams()[:250]])
    forge(store, sorted=True)
    with pytest.raises(FormatError, match="sorted is not true of its streams"):
        Repository.open(store).manifest(FIRST)
    forge(store, sorted="yes")
    with pytest.raises(FormatError, match="sorted"):
        Repository.open(store).manifest(FIRST)


def test_streams_within_a_page_that_are_not_in_order_are_refused() -> None:
    streams = many_streams()
    streams[3], streams[4] = streams[4], streams[3]
    store = stored(streams)
    forge(store, sorted=True)
    with pytest.raises(FormatError, match="sorted is not true of its streams"):
        Repository.open(store).manifest(FIRST, names=["STREAM_0003"])


def test_a_manifest_that_was_read_for_some_streams_is_never_written() -> None:
    store = stored(many_streams())
    manifest = Repository.open(store).manifest(FIRST, names=["STREAM_0010"])
    with pytest.raises(AssertionError):
        encode_manifest(manifest)


def test_a_lost_page_concerns_only_those_who_need_it() -> None:
    store = stored(many_streams())
    pages = Repository.open(store).manifest(FIRST).stream_pages
    store.delete(pages[2].key)
    for in_part in (False, True):
        assert pages_read(store, [pages[4].first])[0] == 1
        found = Repository.open(store).manifest(FIRST, names=[pages[4].first], in_part=in_part)
        assert found.unlisted == ()
    with pytest.raises(IntegrityError):
        Repository.open(store).manifest(FIRST, names=[pages[2].first])
    found = Repository.open(store).manifest(FIRST, names=[pages[2].first], in_part=True)
    assert [one.page for one in found.unlisted] == [pages[2]] and found.streams == ()


def test_if_a_needed_stream_is_not_there_all_are_read() -> None:
    repository = Repository.open(stored(many_streams()))
    there, gone = ("STREAM_0010",), ("KV_STREAM_0010",)
    assert len(read_needed(repository, FIRST, [there], in_part=False).streams) < MANY
    assert len(read_needed(repository, FIRST, [(*there, *gone)], in_part=False).streams) < MANY
    assert len(read_needed(repository, FIRST, [there, gone], in_part=False).streams) == MANY
    assert len(read_needed(repository, FIRST, [], in_part=False).streams) == MANY


@pytest.mark.parametrize("text", ["latest", FIRST])
def test_a_search_reads_what_is_needed(text: str) -> None:
    store = stored(many_streams())
    counting = CountingStore(store)
    wanted = Wanted((Glob("STREAM_0010"),))
    manifest = BackupSearch(Repository.open(counting), text, wanted, in_part=True, needed=[("STREAM_0010",)])()
    assert "STREAM_0010" in {one.name for one in manifest.streams} and len(manifest.streams) < MANY
    assert sum(key.startswith(layout.STREAMS) for key in counting.read_bytes) == 1


@pytest.mark.by_turns
@settings(deadline=None, max_examples=50)
@given(st.data())
def test_what_is_read_for_some_names_is_what_all_have(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text("ABC_-", min_size=1, max_size=4), min_size=70, max_size=120, unique=True))
    streams = [
        replace(
            small_stream(number),
            name=name,
            config={"name": name, "mirror": {"name": data.draw(st.sampled_from(names))}},
        )
        for number, name in enumerate(data.draw(st.sampled_from([names, sorted(names)])))
    ]
    store = MemoryStore()
    repository = make_repository(store)
    repository.commit(manifest_of(streams))
    whole = {one.name: one for one in repository.manifest(FIRST).streams}
    asked = data.draw(st.lists(st.sampled_from(names) | st.text("ABC_-", min_size=1, max_size=4), max_size=3))
    found = {one.name: one for one in Repository.open(store).manifest(FIRST, names=asked).streams}
    assert found.items() <= whole.items()
    due = [name for name in asked if name in whole]
    while due:
        name = due.pop()
        assert name in found
        origin = found[name].config["mirror"]["name"]
        due += [] if origin in asked else [origin]
        asked.append(origin)
    repository.commit(manifest_of(streams, SECOND))
