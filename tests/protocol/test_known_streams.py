"""What a server says again of a stream at rest is the same object; whatever it says anew is decoded."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import ApiError, FormatError, JsBackupError
from jsbackup.protocol import known_streams
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.protocol.known_streams import KnownStreams
from jsbackup.protocol.paging import stream_list_page
from jsbackup.protocol.responses import TYPE_PREFIX, decode_response
from jsbackup.strict_json import read_object
from tests.protocol.test_info import STATE, STREAM

QUIET = {**STREAM, "ts": "2026-11-21T07:41:10.123456791Z"}  # ten seconds after its last message
LATER = {**STREAM, "ts": "2026-11-21T09:00:00Z"}
WHERE = "stream list"


def said_again(first: dict[str, Any], second: dict[str, Any]) -> tuple[StreamInfo, StreamInfo]:
    """What two lists say."""
    known = KnownStreams()
    infos = []
    for entry in (first, second):
        known.begin()
        infos.append(known.info(deepcopy(entry), WHERE))
    return infos[0], infos[1]


def test_a_stream_that_is_described_again_is_the_same() -> None:
    first, second = said_again(QUIET, LATER)
    assert second is first
    assert first == stream_info(QUIET, WHERE)


def test_the_time_since_a_replica_was_heard_makes_no_difference() -> None:
    later = deepcopy(LATER)
    for replica in later["cluster"]["replicas"]:
        replica["active"] += 1
    first, second = said_again(QUIET, later)
    assert second is first
    later["cluster"]["replicas"][0]["current"] = False
    first, second = said_again(QUIET, later)
    assert second == stream_info(later, WHERE) != first


def test_the_clock_of_a_stream_that_is_not_quiet_for_long_is_that_of_each_answer() -> None:
    first, second = said_again(STREAM, QUIET)
    assert (first.now_ns, second.now_ns) == (stream_info(STREAM).now_ns, stream_info(QUIET).now_ns)


def test_one_that_a_list_did_not_have_is_forgotten() -> None:
    known = KnownStreams()
    known.begin()
    first = known.info(QUIET, WHERE)
    assert known.info(QUIET, WHERE) is first  # pages overlap
    for _ in range(2):
        known.begin()
    assert known.info(QUIET, WHERE) is not first


PLACES = st.sampled_from(
    [("config",), ("state",), ("cluster",), ("cluster", "replicas", 0), ("mirror",), ("sources", 0), ()]
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 300),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
)


@given(st.lists(st.tuples(PLACES, st.integers(0, 40), VALUES), max_size=3), st.booleans())
def test_what_is_said_is_what_would_be_decoded(changes: list[tuple[tuple[Any, ...], int, Any]], later: bool) -> None:
    """Whatever changes in an answer, also if it makes it invalid."""
    changed = deepcopy(LATER if later else QUIET)
    for place, number, value in changes:
        part: Any = changed
        try:
            for step in place:
                part = part[step]
            keys = [key for key in (*part, "new") if key != "ts"]  # the clock is not looked at
            part[keys[number % len(keys)]] = value
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    changed = json.loads(json.dumps(changed))
    known = KnownStreams()
    known.begin()
    known.info(deepcopy(QUIET), WHERE)
    known.begin()
    try:
        wanted = stream_info(deepcopy(changed), WHERE)
    except FormatError as error:
        with pytest.raises(FormatError) as caught:
            known.info(changed, WHERE)
        assert caught.value.message == error.message
    else:
        found = known.info(changed, WHERE)
        assert replace(found, now_ns=0) == replace(wanted, now_ns=0)
        assert found.now_ns == wanted.now_ns or found.now_ns == stream_info(QUIET).now_ns


@pytest.mark.parametrize("entry", [None, 7, "x", [], [QUIET]])
def test_an_entry_that_is_none_is_refused(entry: Any) -> None:
    with pytest.raises(FormatError, match="stream list is not a JSON object"):
        KnownStreams().info(entry, WHERE)


def test_a_page_is_decoded_with_them() -> None:
    known = KnownStreams()
    known.begin()
    info = known.info(QUIET, WHERE)
    page = stream_list_page({"total": 1, "offset": 0, "streams": [LATER]}, known.info)
    assert page.entries == (("ORDERS", info),)
    assert page.entries[0][1] is info
    assert STATE["messages"] == info.state.messages


# --- answers as bytes ---


def answer(*entries: Any, **more: Any) -> bytes:
    """As a server writes it: the configuration of a stream first, its clock last."""
    said = []
    for entry in entries:
        others = {key: value for key, value in entry.items() if key not in ("config", "ts")}
        said.append({"config": entry["config"], **others, "ts": entry["ts"]})
    page = {"type": f"{TYPE_PREFIX}stream_list_response", "total": len(said), "offset": 0, "limit": 256}
    return json.dumps({**page, "streams": said, **more}, separators=(",", ":")).encode()


def listed(known: KnownStreams, payload: bytes) -> list[StreamInfo]:
    known.begin()
    document = decode_response(payload, f"{TYPE_PREFIX}stream_list_response", WHERE, known.read)
    return [info for _, info in stream_list_page(document, known.info).entries]


def usually(payload: bytes) -> list[StreamInfo]:
    document = decode_response(payload, f"{TYPE_PREFIX}stream_list_response", WHERE)
    return [info for _, info in stream_list_page(document).entries]


def named(name: str, **changed: Any) -> dict[str, Any]:
    """A stream at rest that copies from none."""
    entry = {key: deepcopy(value) for key, value in QUIET.items() if key not in ("mirror", "sources")}
    return {**entry, "config": {"name": name, "num_replicas": 3, "metadata": {"x": ',{"config":{"name":'}}, **changed}


def test_what_is_said_again_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownStreams()
    entries = [named("A"), named("B"), named("C")]
    first = listed(known, answer(*entries))
    assert first == usually(answer(*entries))
    read = list[bytes]()

    def watched(payload: bytes, what: str, **limits: Any) -> Any:
        read.append(payload)
        return read_object(payload, what, **limits)

    monkeypatch.setattr(known_streams, "read_object", watched)
    later = deepcopy(entries)
    for entry in later:
        entry["ts"] = LATER["ts"]
        for replica in entry["cluster"]["replicas"]:
            replica["active"] += 5
    later[1]["state"]["messages"] += 1
    second = listed(known, answer(*later))
    assert second[0] is first[0] and second[2] is first[2]
    assert second[1] == usually(answer(*later))[1] != first[1]
    assert len(read) == 2 and b'"A"' not in b"".join(read)


def test_how_long_a_source_is_silent_counts() -> None:
    source = {"name": "O", "lag": 0, "active": 17}
    known = KnownStreams()
    first = listed(known, answer(named("A", sources=[source])))
    assert listed(known, answer(named("A", sources=[source])))[0] is first[0]
    changed = answer(named("A", sources=[{**source, "active": 18}]))
    assert listed(known, changed) == usually(changed)
    assert listed(known, changed)[0] is not first[0]


@pytest.mark.parametrize(
    "more", [{"missing": ["C"]}, {"offline": {"C": "too new"}}, {"more": [{"config": {"name": "D"}}]}, {"x": []}]
)
def test_what_follows_the_streams_is_read(more: dict[str, Any]) -> None:
    known = KnownStreams()
    listed(known, answer(named("A"), named("B")))
    payload = answer(named("A"), named("B"), **more)
    document = known.read(payload, WHERE)
    assert {key: document.get(key) for key in more} == more
    assert listed(known, payload) == usually(payload)


def test_an_error_is_what_it_was() -> None:
    payload = json.dumps({"type": "x", "error": {"code": 503, "err_code": 10008, "description": "no"}}).encode()
    with pytest.raises(ApiError, match="no"):
        listed(KnownStreams(), payload)


@given(st.integers(0, 1 << 30), st.integers(1, 255), st.integers(0, 1 << 30))
def test_a_damaged_answer_is_refused_as_usual(place: int, flipped: int, length: int) -> None:
    known = KnownStreams()
    whole = answer(named("A"), named("B"))
    listed(known, whole)
    damaged = bytearray(whole)
    damaged[place % len(whole)] ^= flipped
    for payload in (bytes(damaged), whole[: length % len(whole)], whole + bytes(damaged)):
        try:
            wanted = usually(payload)
        except JsBackupError as error:
            with pytest.raises(type(error)) as caught:
                listed(known, payload)
            assert caught.value.message == error.message
        else:
            found = listed(known, payload)
            assert [replace(one, now_ns=0) for one in found] == [replace(one, now_ns=0) for one in wanted]
