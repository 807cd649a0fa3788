from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UnsupportedError
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, Fidelity, PendingAck, SequencePair, StreamState
from jsbackup.repository import layout
from jsbackup.repository.document import encode_document
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Fact,
    FactKind,
    Losses,
    LostSpan,
    Manifest,
    ObjectRef,
    OpaqueRef,
    ReadAs,
    Reading,
    SegmentRef,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
    Totals,
    total_of,
)
from jsbackup.repository.manifest_json import decode_manifest, encode_manifest
from jsbackup.times import format_time

SCHEMA = json.loads(files("jsbackup.repository").joinpath("manifest.schema.json").read_text())
FOLDER = layout.stream_folder("ORDERS", "1a2b3c4d")
HEX = "0123456789abcdef" * 4


def full_manifest() -> Manifest:
    """Every field filled, every optional part there."""
    segment = SegmentRef(
        key=layout.segment_key(FOLDER, 5, 90, HEX),
        first_seq=5,
        last_seq=90,
        messages=80,
        bytes=4000,
        min_ns=-1,
        max_ns=1_795_225_500_123_456_789,
        size=1000,
        sha256="a" * 64,
        digest=HEX,
        fingerprint=StreamDigest.from_hex("b" * 64),
        gaps="c" * 32,
    )
    state = ConsumerState(
        SequencePair(7, 12), SequencePair(5, 10), {11: PendingAck(6, 1_795_225_500_000_000_001)}, {11: 3, 12: 1}
    )
    consumers = (
        ConsumerBackup("exact", {"durable_name": "exact"}, "2026-11-21T01:45:00.5Z", Fidelity.EXACT, state),
        ConsumerBackup("floor", {}, None, Fidelity.FLOOR, ConsumerState(), "on another node"),
        ConsumerBackup("config", {}, None, Fidelity.CONFIG_ONLY),
        ConsumerBackup(
            "large", {}, None, Fidelity.EXACT, ConsumerState(), "", ObjectRef(layout.pending_key(FOLDER, HEX), 9, HEX)
        ),
    )
    stream = StreamBackup(
        name="ORDERS",
        incarnation="1a2b3c4d",
        config={"name": "ORDERS", "subjects": ["größe.>"], "nested": {"a": [1, 2.5, None, True]}},
        created="2026-11-21T01:45:00.123Z",
        state=StreamState(80, 5000, 5, 1, 90, 2, 4, 6),
        captured=Captured(80, 4000, 5, 90, "2026-11-21T01:45:00Z", "2026-11-21T01:45:01Z"),
        archive_format=ArchiveFormat.V2,
        digest=StreamDigest.from_hex("b" * 64),
        segments=(segment,),
        consumers=consumers,
        opaque=(OpaqueRef(layout.opaque_key(FOLDER, HEX), 10, HEX, 20),),
        warnings=("something was odd",),
        read=Reading(ReadAs.INCREMENT, "7 of 80 messages had to be read", {"later": 1}),
        lost=Losses(
            (
                LostSpan(7, 9, 3, True, "msgs/1.blk is damaged", ("größe.1",)),
                LostSpan(11, 20, 2, False, "msgs/1.blk is damaged"),
                LostSpan(91, None, None, False, "msgs/2.blk is cut short"),
            ),
            {"größe.1": 3},
        ),
        facts=(
            Fact(FactKind.EMPTIED, "20261120T014500Z-000000", "2026-11-20T01:45:00.5Z", 1234),
            Fact(FactKind.LOST_SINCE, detail="it ends at 7 {sic}"),
        ),
    )
    return Manifest(
        id="20261121T014500Z-1a2b3c",
        created="2026-11-21T01:45:00Z",
        tool="jsbackup 0.1.0",
        source=Source(
            "2.15.1",
            "C1",
            "A",
            "hub",
            "production",
            imported={"from": "nats account backup"},
            transformed={"backup": "20261120T014500Z-000000", "options": ["--mask x"], "cut": {}},
        ),
        result=BackupResult.PARTIAL,
        streams=(stream,),
        skipped=(SkippedStream("OTHER", "it is offline"),),
        tags={"env": "production", "": "größe"},
        previous="20261120T014500Z-000000",
        selection=Selection(("ORDERS", "größe*"), ("*old",), consumers=False, config_only=True, extra={"later": 1}),
    )


def key_of(manifest: Manifest) -> str:
    return layout.manifest_key(manifest.id)


def decode(document: Any, key: str = "backups/20261121T014500Z-1a2b3c.json") -> Manifest:
    """Read a document as if somebody had written it like this, with its seal."""
    return decode_manifest(encode_document(document, "test"), key)


def as_json(manifest: Manifest) -> Any:
    document = json.loads(encode_manifest(manifest))
    del document["sha256"]
    return document


def validate(data: bytes) -> None:
    jsonschema.validate(json.loads(data), SCHEMA)


def test_a_full_manifest_comes_back() -> None:
    manifest = full_manifest()
    assert decode_manifest(encode_manifest(manifest), key_of(manifest)) == manifest


def test_facts_are_sentences_for_people() -> None:
    stream = full_manifest().streams[0]
    had = "1,234 in backup 20261120T014500Z-000000, made 2026-11-20T01:45:00Z"
    assert stream.remarks == (
        f"it has no messages any more, and had {had}",
        "the server has lost some of it since the last backup: it ends at 7 {sic}",
        "something was odd",
    )
    seen = replace(stream.facts[0], kind=FactKind.LOST_SINCE, detail="its end")
    assert seen.text == f"the server has lost some of it since the last backup: its end ({had})"


@pytest.mark.parametrize("wrong", [{"kind": "new"}, {"messages": -1}, {"made": None}])
def test_a_fact_that_makes_no_sense_is_damage(wrong: dict[str, object]) -> None:
    document = as_json(full_manifest())
    document["streams"][0]["facts"][0] |= wrong
    with pytest.raises(FormatError, match=next(iter(wrong))):
        decode(document)


@pytest.mark.parametrize(("key", "value"), [("imported", 1), ("imported", {}), ("transformed", {"options": "x"})])
def test_a_source_that_makes_no_sense_is_damage(key: str, value: object) -> None:
    document = as_json(full_manifest())
    document["source"][key] = value
    with pytest.raises(FormatError, match=key):
        decode(document)


def test_a_stream_that_is_captured_again_differs_by_that_alone() -> None:
    stream = copy.copy(full_manifest().streams[0])
    for name in ("copied", "state_extra", "extra"):
        object.__setattr__(stream, name, object())
    read = Reading(ReadAs.SNAPSHOT, "test")
    again = stream.captured_again("2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z", ArchiveFormat.V1, read)
    captured = replace(stream.captured, begun="2026-11-22T00:00:00Z", ended="2026-11-23T00:00:00Z")
    assert again == replace(stream, captured=captured, archive_format=ArchiveFormat.V1, read=read)


def test_the_json_is_canonical() -> None:
    manifest = full_manifest()
    data = encode_manifest(manifest)
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1
    assert "größe.>".encode() in data
    assert (
        data == json.dumps(json.loads(data), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    )
    assert encode_manifest(decode_manifest(data, key_of(manifest))) == data


def test_the_json_reads_like_the_schema_says() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validate(encode_manifest(full_manifest()))
    stream = as_json(full_manifest())["streams"][0]
    assert stream["segments"]["folder"] == FOLDER and len(stream["segments"]["parts"][0]) == 13
    assert stream["consumers"][0]["state"] == {
        "delivered": {"consumer_seq": 7, "stream_seq": 12},
        "ack_floor": {"consumer_seq": 5, "stream_seq": 10},
        "pending": [[11, 6, 1_795_225_500_000_000_001]],
        "redelivered": [[11, 3], [12, 1]],
    }
    assert stream["lost"]["spans"][2] == {
        "first_seq": 91,
        "last_seq": None,
        "messages": None,
        "certain": False,
        "cause": "msgs/2.blk is cut short",
        "subjects": [],
    }


# --- any manifest ---

_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_names = st.from_regex(r"\A[^\x00-\x20.*>/\\\x7f-\xa0\ud800-\udfff\s]{1,12}\Z")
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
_configs = st.dictionaries(_words, _json, max_size=3)
_u63 = st.integers(0, (1 << 63) - 1)
_u64 = st.integers(0, (1 << 64) - 1)
_ns = st.integers(-(1 << 63), (1 << 63) - 1)
_times = st.integers(-(10**18), 4 * 10**18).map(format_time)
_hex = st.binary(min_size=32, max_size=32).map(bytes.hex)
_digests = st.binary(min_size=32, max_size=32).map(StreamDigest)
_pairs = st.builds(SequencePair, _u64, _u64)
_states = st.builds(
    ConsumerState,
    _pairs,
    _pairs,
    st.dictionaries(_u64, st.builds(PendingAck, _u64, _ns), max_size=4),
    st.dictionaries(_u64, _u64, max_size=4),
)
_positive = st.integers(1, (1 << 63) - 1)
_spans = st.builds(
    LostSpan,
    _u63,
    st.none() | _u63,
    st.none() | _u63,
    st.booleans(),
    _words,
    st.lists(_words, max_size=2).map(tuple),
)
_losses = st.just(Losses()) | st.builds(
    Losses, st.lists(_spans, min_size=1, max_size=3).map(tuple), st.dictionaries(_words, _u63, max_size=2)
)


@st.composite
def _streams(draw: st.DrawFn, name: str) -> StreamBackup:
    incarnation = draw(st.integers(0, (1 << 32) - 1)).to_bytes(4, "big").hex()
    folder = layout.stream_folder(name, incarnation)
    segments = []
    ends = sorted(
        draw(st.sets(_positive, max_size=4))
    )  # segments are in order, and have no more messages than sequences
    for first, last in zip(ends[::2], ends[1::2], strict=False):
        digest = draw(_hex)
        key = layout.segment_key(folder, first, last, digest)
        messages = draw(st.integers(1, last - first + 1))
        counts = messages, draw(_positive), draw(_ns), draw(_ns), draw(_positive)
        gaps = draw(st.just("") | _hex.map(lambda digits: digits[:32]))
        segments.append(SegmentRef(key, first, last, *counts, draw(_hex), digest, draw(_digests), gaps))
    consumers = []
    for consumer in draw(st.lists(_names, max_size=2)):
        state, pending = draw(st.none() | _states), None
        if state is not None and draw(st.booleans()):
            pending = ObjectRef(layout.pending_key(folder, draw(_hex)), draw(_positive), draw(_hex))
        created = draw(st.none() | _times)
        fidelity = draw(st.sampled_from(Fidelity))
        consumers.append(ConsumerBackup(consumer, draw(_configs), created, fidelity, state, draw(_words), pending))
    state_numbers = [draw(_u64), draw(_u64), draw(_u64), draw(_ns), draw(_u64), draw(_ns), draw(_u64), draw(_u64)]
    return StreamBackup(
        name,
        incarnation,
        draw(_configs),
        draw(_times),
        StreamState(*state_numbers),
        Captured(draw(_u63), draw(_u63), draw(_u63), draw(_u63), draw(_times), draw(_times)),
        draw(st.sampled_from(ArchiveFormat)),
        draw(_digests),
        tuple(segments),
        tuple(consumers),
        (OpaqueRef(layout.opaque_key(folder, draw(_hex)), draw(_positive), draw(_hex), draw(_positive)),),
        tuple(draw(st.lists(_words, max_size=2))),
        lost=draw(_losses),
    )


@st.composite
def _manifests(draw: st.DrawFn) -> Manifest:
    return Manifest(
        layout.backup_id(draw(st.integers(0, 10**19)), draw(st.binary(min_size=3, max_size=3))),
        draw(_times),
        draw(_words),
        Source(draw(_words), draw(_words), draw(_words), draw(st.none() | _words), draw(st.none() | _words)),
        draw(st.sampled_from(BackupResult)),
        tuple(draw(_streams(name)) for name in draw(st.lists(_names, max_size=2, unique=True))),
        tuple(draw(st.lists(st.builds(SkippedStream, _words, _words), max_size=2))),
        draw(st.dictionaries(_words, _words, max_size=2)),
        draw(st.none() | st.just("20261120T014500Z-000000")),
    )


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(_manifests())
def test_any_manifest_comes_back_and_fits_the_schema(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, key_of(manifest)) == manifest
    validate(data)


# --- fields of later versions ---


def objects_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Every JSON object in a document with its path, but those whose fields are all foreign."""
    if isinstance(value, dict):
        yield path, value
        for key, inner in value.items():
            if key not in ("config", "tags", "subjects"):
                yield from objects_in(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from objects_in(inner, (*path, number))


def test_unknown_fields_survive_a_rewrite_everywhere() -> None:
    document = as_json(full_manifest())
    added = 0
    for path, value in list(objects_in(document)):
        if path[-1:] not in [("delivered",), ("ack_floor",), ("segments",)]:
            value["from_the_future"] = {"path": list(path)}
            added += 1
    assert added > 10
    validate(encode_document(document, "test"))
    assert as_json(decode(document)) == document


def test_a_known_field_wins_over_an_extra_one() -> None:
    manifest = decode(as_json(full_manifest()) | {"later": 1})
    assert manifest.extra == {"later": 1}
    assert decode(as_json(manifest)) == manifest


def test_a_later_format_or_feature_is_not_supported() -> None:
    document = as_json(full_manifest())
    with pytest.raises(UnsupportedError, match="format 3") as caught:
        decode(document | {"format": 3})
    assert caught.value.exit_code == 13
    with pytest.raises(UnsupportedError, match="needs features not known here: age, zebra"):
        decode(document | {"required_features": ["zebra", "age"]})


# --- damage and hostility ---

WRONG = [None, True, -1, 1.5, 1 << 70, "", "x", "../x", [], ["x"], [[1]], {}, {"a": 1}]


def values_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from values_in(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from values_in(inner, (*path, number))


def with_change(document: Any, path: tuple[str | int, ...], change: Callable[[Any, str | int], None]) -> Any:
    result = copy.deepcopy(document)
    target = result
    for step in path[:-1]:
        target = target[step]
    change(target, path[-1])
    return result


@pytest.mark.slow
def test_a_wrong_value_anywhere_is_read_right_or_a_format_error() -> None:
    """And what is accepted can be written again."""
    document = as_json(full_manifest())
    refused = accepted = 0
    for path in values_in(document):
        for wrong in [*WRONG, "delete"] if path else []:

            def change(target: Any, step: str | int, wrong: object = wrong) -> None:
                if wrong == "delete":
                    del target[step]
                else:
                    target[step] = wrong

            try:
                manifest = decode(with_change(document, path, change))
            except (FormatError, UnsupportedError):
                refused += 1
            else:
                accepted += 1
                assert decode_manifest(encode_manifest(manifest), key_of(manifest)) == manifest
    assert refused > 5 * accepted > 0


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("streams", 0, "segments", "parts", 0, 6), "x", r"segments: parts\[0\] has no valid number in place 6"),
        (("streams", 0, "segments", "parts", 0, 7), "A" * 64, r"parts\[0\] has no valid text in place 7"),
        (("streams", 0, "segments", "parts", 0, 1), 80, r"parts\[0\] has more messages than sequences"),
        (("streams", 0, "segments", "parts", 0, 4), "now", r"parts\[0\] has no valid number in place 4"),
        (("streams", 0, "segments", "folder"), "backups", "segments: folder is not that of a stream"),
        (("streams", 0, "segments", "suffix"), ".gz", "segments: suffix is not that of an object"),
        (("streams", 0, "opaque", 0, "key"), f"{FOLDER}/pending-{HEX}.parquet", "folder and of the kind: opaque piece"),
        (("streams", 0, "consumers", 0, "state", "pending"), [[2, 1, 1], [1, 1, 1]], "pending is not in rising order"),
        (("streams", 0, "consumers", 0, "state", "redelivered"), [[1, -1]], "redelivered is not a list of lists"),
        (("streams", 0, "consumers", 3, "state"), None, "state is not there although a pending set is"),
        (("streams", 0, "consumers", 0, "fidelity"), "good", "fidelity is not one of exact, floor, config only"),
        (("streams", 0, "name"), "OTHER", "segments is not the list of segments of this stream"),
        (("streams", 0, "name"), "a.>", "name is not a name that NATS allows"),
        (("streams", 0, "incarnation"), "1A2B3C4D", "not a stream's name and incarnation"),
        (("streams", 0, "state", "first_ts"), "x", "state: first_ts: not in RFC 3339"),
        (("streams", 0, "state", "last_ts"), None, "state: last_ts is not text"),
        (("streams", 0, "state", "messages"), None, "state: messages is not an integer"),
        (("tags", "env"), 1, "tags: env is not text"),
        (("id",), "20261121T014500Z-ffffff", "is that of another backup"),
        (("previous",), "yesterday", "previous is not a backup id"),
        (("result",), "fine", "result is not one of complete, partial"),
    ],
)
def test_an_error_names_the_document_and_the_field(path: tuple[str | int, ...], value: object, says: str) -> None:
    def change(target: Any, step: str | int) -> None:
        target[step] = value

    with pytest.raises(FormatError, match=says) as caught:
        decode(with_change(as_json(full_manifest()), path, change))
    assert caught.value.message.startswith("manifest backups/20261121T014500Z-1a2b3c.json")
    assert caught.value.exit_code == 14


def test_two_streams_of_one_name_are_refused() -> None:
    document = as_json(full_manifest())
    document["streams"] *= 2
    with pytest.raises(FormatError, match="different names"):
        decode(document)


def test_a_manifest_cut_anywhere_is_a_format_error() -> None:
    data = encode_manifest(full_manifest()).rstrip()
    for length in range(len(data)):
        with pytest.raises(FormatError):
            decode_manifest(data[:length], "backups/20261121T014500Z-1a2b3c.json")


def test_a_flipped_bit_anywhere_is_a_format_error() -> None:
    data = encode_manifest(full_manifest()).rstrip()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        with pytest.raises(FormatError):
            decode_manifest(flipped, "backups/20261121T014500Z-1a2b3c.json")


def test_the_seal_is_over_the_canonical_document_without_it() -> None:
    data = encode_manifest(full_manifest())
    document = json.loads(data)
    seal = document.pop("sha256")
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"
    assert seal == hashlib.sha256(text.encode()).hexdigest()
    # Only the content counts: whoever prints it prettily has not changed it.
    pretty = json.dumps({**document, "sha256": seal}, indent=2).encode()
    assert decode_manifest(pretty, key_of(full_manifest())) == full_manifest()
    with pytest.raises(FormatError, match="has changed since it was written"):
        decode_manifest(data.replace(b"production", b"Production"), key_of(full_manifest()))
    with pytest.raises(FormatError, match="sha256 is missing"):
        decode_manifest(text.encode(), key_of(full_manifest()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff{}",
        b"{}",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_no_manifest_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_manifest(data, "backups/20261121T014500Z-1a2b3c.json")


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf"), {1, 2}, b"bytes"])
def test_a_config_that_is_no_json_cannot_be_written(value: object) -> None:
    manifest = full_manifest()
    broken = Manifest(manifest.id, manifest.created, manifest.tool, Source(extra={"x": value}), BackupResult.COMPLETE)
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        encode_manifest(broken)


# --- totals ---


def test_segments_add_up() -> None:
    def ref(first: int, last: int, fingerprint: int) -> SegmentRef:
        digest = StreamDigest(fingerprint.to_bytes(32, "little"))
        return SegmentRef("k", first, last, 10, 100, 0, 0, 50, "", "", digest)

    assert total_of([]) == Totals()
    total = total_of([ref(5, 20, 1), ref(30, 40, (1 << 256) - 1)])
    assert total == Totals(20, 200, 5, 40, StreamDigest())
