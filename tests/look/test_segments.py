"""Reading only what is looked for finds the same messages as reading everything, and damage is never silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import IntegrityError
from jsbackup.formats import segment
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.look import stream as stream_reading
from jsbackup.look.message import LookedUp, MessageFilter, messages_in
from jsbackup.look.stream import first_of_last, message_at, messages_of
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from tests.harness.backups import CREATED, FIRST, store_stream
from tests.harness.batches import Message
from tests.harness.servers import EXPLORE
from tests.transforms.filters.judging import is_wanted

_TOKENS = st.sampled_from(["a", "b", "ä", "x-1", "+"])
_SUBJECTS = st.lists(_TOKENS, min_size=1, max_size=3).map(".".join)
_EVE, _BOB = b"NATS/1.0\r\nWho: eve\r\n\r\n", b"NATS/1.0\r\nwho: bob\r\nX:\r\n\r\n"
_BLOCKS = st.sampled_from([None, _EVE, _BOB, b"broken Who\xff"])
_RULES = st.sampled_from(["WHO", "Who:eve", "x:"])
_MESSAGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 50), _SUBJECTS | st.just("\udcff.a"), _BLOCKS, st.binary(max_size=60)),
    min_size=1,
    max_size=60,
)
_PATTERNS = st.lists(st.sampled_from(["a", "b", "ä", "*", ">", "+"]), min_size=1, max_size=3).map(
    lambda tokens: ".".join(t if t != ">" or i == len(tokens) - 1 else "*" for i, t in enumerate(tokens))
)
_EDGES = st.none() | st.integers(1, 60).map(AtSequence) | st.integers(0, 50).map(AtTime)
_FILTERS = st.builds(
    MessageFilter,
    cut=st.builds(Cut, _EDGES, _EDGES),
    subjects=st.lists(_PATTERNS, max_size=2).map(tuple),
    others=st.fixed_dictionaries(
        {"header": st.lists(_RULES, max_size=2)},
        optional={"payload_match": st.just(["^.*$", "[0-9]"]), "exclude_subject": st.just(["a.>"])},
    ).map(Filters.parse),
    text=st.sampled_from([b"", b"", b"\x00", b"1"]),
)


def _stored(drawn: Sequence[tuple[int, int, str, bytes | None, bytes]]) -> tuple[Objects, StreamBackup, list[Message]]:
    sequence, rows = 0, []
    binary = any("\udcff" in one[2] for one in drawn)
    for step, time_ns, subject, headers, data in drawn:
        sequence += step
        raw = subject.encode("utf-8", "surrogateescape")
        rows.append(Message(sequence, time_ns, raw if binary else subject, headers, data))
    objects = Objects(MemoryStore())
    return objects, store_stream(objects, "S", rows), rows


def _matches(wanted: MessageFilter, one: Message) -> bool:
    """The filter once more, in plain Python."""
    subject = one.subject if isinstance(one.subject, bytes) else one.subject.encode()

    def within(edge: Any, sign: int) -> bool:
        if edge is None:
            return True
        have, want = (one.sequence, edge.sequence) if isinstance(edge, AtSequence) else (one.timestamp_ns, edge.time_ns)
        return sign * have <= sign * want

    def fits(pattern: str) -> bool:
        text, tokens = subject.decode("utf-8", "surrogateescape").split("."), pattern.split(".")
        if tokens[-1] == ">":
            tokens, text = tokens[:-1], text[: len(tokens) - 1] if len(text) >= len(tokens) else ["", "", "", ""]
        return len(text) == len(tokens) and all(t in ("*", have) for t, have in zip(tokens, text, strict=True))

    return (
        within(wanted.cut.since, -1)
        and within(wanted.cut.until, 1)
        and (not wanted.subjects or any(map(fits, wanted.subjects)))
        and is_wanted(one._replace(subject=subject.decode("utf-8", "surrogateescape")), wanted.others)  # type: ignore[arg-type]
        and wanted.text in one.data
    )


def _plain(rows: Sequence[Message]) -> list[LookedUp]:
    return [
        LookedUp(
            one.sequence,
            one.timestamp_ns,
            one.subject if isinstance(one.subject, str) else one.subject.decode("utf-8", "surrogateescape"),
            one.headers,
            one.data,
        )
        for one in rows
    ]


@pytest.fixture(autouse=True, scope="module")
def many_row_groups() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "BATCH_BYTES", 300)
        yield


@settings(max_examples=200 if EXPLORE else 40)
@given(drawn=_MESSAGES, wanted=_FILTERS, count=st.integers(1, 5))
def test_what_is_found_is_what_matches(drawn: Any, wanted: MessageFilter, count: int) -> None:
    objects, stream, rows = _stored(drawn)
    truth = _plain([one for one in rows if _matches(wanted, one)])
    assert list(messages_of(objects, stream, wanted)) == truth
    assert list(messages_of(objects, stream, wanted, newest_first=True)) == truth[::-1]
    assert first_of_last(objects, stream, wanted, count) == (truth[-count:][0].sequence if truth else 0)
    heads = [
        one
        for ref in stream_reading.refs_within(stream.segments, wanted)
        for batch in stream_reading.heads(objects, ref, wanted, BATCH_SCHEMA.names)
        for one in messages_in(batch)
    ]
    assert heads == truth


class _Counting(MemoryStore):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, int] = {}

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = super().get_range(key, offset, length)
        self.read[key] = self.read.get(key, 0) + len(data)
        return data


def _large(store: MemoryStore) -> tuple[Objects, StreamBackup]:
    objects = Objects(store)
    rows = [Message(n, n, f"s.{n}", None, b"%d" % n * 60) for n in range(1, 200)]
    return objects, store_stream(objects, "S", rows)


def test_only_segments_are_read_that_may_have_it() -> None:
    store = _Counting()
    objects, stream = _large(store)
    assert len(stream.segments) > 5
    manifest = Manifest(FIRST, CREATED, "tests", Source("2.15.1"), BackupResult.COMPLETE, (stream,))
    store.read.clear()
    assert message_at(objects, manifest, stream, 199).subject == "s.199"
    assert store.read.keys() == {stream.segments[-1].key}
    wanted = MessageFilter(Cut(AtTime(1), AtTime(2)), ("s.2",))
    store.read.clear()
    assert [one.sequence for one in messages_of(objects, stream, wanted)] == [2]
    assert store.read.keys() == {stream.segments[0].key}


def test_damage_of_any_byte_is_an_error() -> None:
    objects, stream = _large(MemoryStore())
    ref = stream.segments[2]
    stream, data = replace(stream, segments=(ref,)), objects.store.get(ref.key)
    every, last = MessageFilter(subjects=("s.*",)), MessageFilter(subjects=(f"s.{ref.last_seq}",))
    assert len(list(messages_of(objects, stream, every))) == ref.messages
    for at in range(0, len(data), 41):
        objects.store.delete(ref.key)
        objects.store.put(ref.key, data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :])
        for wanted in (every, last, MessageFilter()):
            with pytest.raises(IntegrityError, match="SHA-256 differs"):
                next(messages_of(objects, stream, wanted))
    objects.store.delete(ref.key)
    with pytest.raises(IntegrityError, match="is missing"):
        next(messages_of(objects, stream, every))
