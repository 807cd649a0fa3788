"""All transforms together, against the rule applied to a list of messages in plain Python."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import replace
from itertools import takewhile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import PlanRefused
from jsbackup.transforms.copied_from import SourceMark
from jsbackup.transforms.cut import Cut, Extent
from jsbackup.transforms.filters.newest import NewestRule, find_newest, rows_of_subjects
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape, ReshapeTally
from jsbackup.transforms.subject_map import UNTOUCHED, SubjectMaps
from tests.harness.servers import EXPLORE
from tests.transforms.filters.judging import filters, is_wanted
from tests.transforms.filters.test_newest import by_the_list
from tests.transforms.messages import Message, batch_of, literals, messages_of
from tests.transforms.test_cut import cuts, is_kept
from tests.transforms.test_subject_map import by_hand, maps
from tests.transforms.test_subjects import by_the_rule

SECRET = b"a secret of the tests"
STREAMS = {"S": {}, "KV_a": {}, "OBJ_a": {}}
RENAMES = [[], ["S=T"], ["KV_a=KV_z"], ["OBJ_a=OBJ_z", "S=T"]]

subjects = st.one_of(
    literals,
    st.sampled_from(["$KV.a.k", "$KV.b.k", "$O.a.C.1", "$O.a.M.eA==", "$O.b.M.eA==", "a.\udcff"]),
)
payloads = st.one_of(
    st.binary(max_size=4),
    st.sampled_from([b"", b'{"m":1}', b'{"m": "x", "n":[1.0]}', b'{"bucket":"a","options":{"link":{"bucket":"b"}}}']),
)
header_blocks = st.none() | st.sampled_from(
    [
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nX-User:  eve\r\n\r\n",
        b"NATS/1.0\r\nNats-Schedule-Target: a.b\r\nX-User: b\r\n\r\n",
        b"NATS/1.0\r\nNats-Stream-Source: S 4 > > a.b\r\n\r\n",
        b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n",
        b"no block",
    ]
)
streams = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 12), subjects, header_blocks, payloads),
    max_size=12,
    unique_by=lambda row: row[0],
).map(lambda rows: [Message(*row) for row in sorted(rows, key=lambda row: row[0])])

masks = st.builds(
    Masks.parse,
    st.lists(
        st.sampled_from(["a.>:$.m=redact", ">:$..m=hash", "b:header(x-user)=hash", "*.b:header(X-User)=redact"]),
        max_size=2,
    ),
    st.sampled_from(["drop", "keep"]),
)


@st.composite
def reshapes(draw: st.DrawFn) -> Reshape:
    renames = RenameOptions.parse(draw(st.sampled_from(RENAMES))).over(STREAMS)
    return Reshape(
        draw(cuts),
        draw(filters()),
        SubjectMaps(tuple(draw(st.lists(maps(), max_size=2)))),
        renames,
        draw(masks),
        (SourceMark(("S", ">", ">"), (renames.name("S"), ">", ">"), True),) if renames else (),
        newest=draw(st.none() | st.integers(1, 3).map(NewestRule) | st.just(NewestRule(compact=True))),
        renumber=draw(st.booleans()),
    )


def one(message: Message, reshape: Reshape) -> Message | None:
    """The rule for one message that is kept; None if it cannot be masked."""
    message = masked_by_hand(message, reshape.masks)
    if message is None:
        return None

    def move(subject: str) -> str:
        for stage in (reshape.maps, reshape.renames.subjects):
            some = list(stage.maps)
            if subject.startswith(("$KV.", "$O.")):
                some = list(takewhile(lambda one: one.source[0] not in "*>", some))
            found = [by_hand(m, subject) for m in some]
            subject = next((f for f in found if f is not None), subject)
        return subject

    data, headers = message.data, message.headers
    between = replace(reshape, renames=replace(reshape.renames, subjects=UNTOUCHED)).move(message.subject)
    if "OBJ_a" in dict(reshape.renames.names) and by_the_rule("$O.*.M.>", between):
        data = data.replace(b'"bucket":"a"', b'"bucket":"z"')
    if headers is not None and (reshape.maps or reshape.renames):
        target = f"Target: {move('a.b')}\r".encode()
        source = f"Source: {reshape.renames.name('S')} 4 > > {move('a.b') if reshape.marks else 'a.b'}\r".encode()
        headers = headers.replace(b"Target: a.b\r", target).replace(b"Source: S 4 > > a.b\r", source)
    return message._replace(subject=move(message.subject), headers=headers, data=data)


def masked_by_hand(message: Message, masks: Masks) -> Message | None:
    headers, data = message.headers, message.data
    keep = masks.unmaskable == "keep"

    def replacement(mask: str, value: object) -> str:
        canonical = json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
        return "***" if mask.endswith("redact") else hmac.new(SECRET, canonical.encode(), hashlib.sha256).hexdigest()

    for mask in map(str, masks.masks):
        pattern, what = mask.split(":", 1)
        if not by_the_rule(pattern, message.subject):
            continue
        if what.startswith("header"):
            if headers == b"no block" and not keep:
                return None
            found = re.search(rb"(?<=X-User: )( ?)([^ \r]+)", headers or b"")
            if headers is not None and found is not None:
                new = replacement(mask, found[2].decode()).encode()
                headers = headers[: found.start(2)] + new + headers[found.end(2) :]
        elif data:
            try:
                document = json.loads(data)
            except ValueError:
                if not keep:
                    return None
                continue
            if isinstance(document, dict) and "m" in document:
                written = json.dumps(document["m"]).encode()
                data = data.replace(written, json.dumps(replacement(mask, document["m"])).encode(), 1)
    return message._replace(headers=headers, data=data)


def test_a_message_with_an_unwanted_header_stops_everything() -> None:
    blocks = [None, b"NATS/1.0\r\nX: Nats-TTL: 1\r\n\r\n", b"NATS/1.0\r\nA: b\r\nNats-TTL: 1h\r\n\r\n"]
    some = [Message(number, number, "a", block, b"") for number, block in enumerate(blocks, start=1)]
    reshape = Reshape(unwanted=("Nats-Schedule", "Nats-TTL"))
    assert reshape and not reshape.drops
    assert len(list(reshape.apply([batch_of(some[:2])], stream="S"))) == 1
    with pytest.raises(PlanRefused, match="message 3 of stream S has the header Nats-TTL"):
        list(reshape.apply([batch_of(some)], stream="S"))
    assert len(list(replace(reshape, cut=Cut.parse(None, "2", 0)).apply([batch_of(some)], stream="S"))) == 1


@settings(deadline=None, max_examples=300 if EXPLORE else 60)
@given(reshapes(), streams, st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_batches_come_out_as_the_rule_says_for_each_message(
    reshape: Reshape, messages: list[Message], sizes: list[int]
) -> None:
    batches: list[pa.RecordBatch] = []
    left = messages
    while left:
        size = sizes[len(batches) % len(sizes)]
        batches.append(batch_of(left[:size]))
        left = left[size:]
    tally = ReshapeTally()
    kept = [m for m in messages if is_kept(reshape.cut, m) and is_wanted(m, reshape.filters)]
    if (rule := reshape.newest) is not None:
        newest = by_the_list(kept, rule)
        kept = [m for m in kept if m.sequence in newest]
        keeping = replace(reshape.keeping, newest=None)
        looked = (rows_of_subjects(batch, rule) for batch in keeping.apply(batches, stream="S"))
        reshape = replace(reshape, chosen=find_newest(rule, lambda: looked))
    after = messages_of(reshape.apply(batches, stream="S", secret=SECRET, tally=tally))
    expected = [m for m in (one(message, reshape) for message in kept) if m is not None]
    numbers = range(1, len(after) + 1) if reshape.renumber else [m.sequence for m in expected]
    assert after == [m._replace(sequence=number) for m, number in zip(expected, numbers, strict=True)]
    assert tally.numbered.array().to_pylist() == ([m.sequence for m in expected] if reshape.renumber else [])
    within = [m for m in messages if is_kept(reshape.cut, m)]
    assert (tally.came, tally.cut, tally.kept) == (extent(messages), extent(within), extent(expected))
    behind = [m for m in messages if not within or m.sequence > within[-1].sequence]
    assert tally.first_dropped == ((behind[0].sequence, behind[0].timestamp_ns) if behind else None)
    if not reshape.drops:
        assert len(after) == len(messages)
    if not reshape:
        assert after == messages


def extent(messages: list[Message]) -> Extent:
    return Extent().plus(batch_of(messages))


def test_a_stream_and_what_belongs_to_it_follow_together() -> None:
    streams = {
        "ORDERS": {"name": "ORDERS", "subjects": ["orders.>"]},
        "KV_old": {"name": "KV_old", "subjects": ["$KV.old.>"], "republish": {"src": "$KV.old.>", "dest": "seen.>"}},
        "ALL": {"name": "ALL", "sources": [{"name": "ORDERS", "filter_subject": "orders.eu"}, {"name": "KV_old"}]},
    }
    reshape = Reshape(
        maps=SubjectMaps.parse(["orders.*=>old.$1"]),
        renames=RenameOptions.parse(["ORDERS=PAST", "KV_old=KV_new"]).over(streams),
    )
    assert reshape.stream_config(streams["KV_old"], streams) == {
        "name": "KV_new",
        "subjects": ["$KV.new.>"],
        "republish": {"src": "$KV.new.>", "dest": "seen.>"},
    }
    assert reshape.stream_config(streams["ALL"], streams) == {
        "name": "ALL",
        "sources": [{"name": "PAST", "filter_subject": "old.eu"}, {"name": "KV_new"}],
    }
    consumer = {"durable_name": "C", "filter_subjects": ["$KV.old.a", "$KV.old.b"], "deliver_subject": "orders.x"}
    assert reshape.consumer_config(consumer, streams["KV_old"], streams) == {
        "durable_name": "C",
        "filter_subjects": ["$KV.new.a", "$KV.new.b"],
        "deliver_subject": "orders.x",
    }
    headers = b"NATS/1.0\r\nNats-Stream-Source: ORDERS 9 orders.eu > orders.eu\r\n\r\n"
    of_all = reshape.of_stream(streams["ALL"], streams)
    batch = batch_of([Message(1, 1, "orders.eu", headers, b""), Message(2, 2, "$KV.old.k", None, b"")])
    assert messages_of(of_all.apply([batch], stream="ALL")) == [
        Message(1, 1, "old.eu", b"NATS/1.0\r\nNats-Stream-Source: PAST 9 old.eu > old.eu\r\n\r\n", b""),
        Message(2, 2, "$KV.new.k", None, b""),
    ]


def test_object_buckets_keep_names_of_objects_and_follow_links() -> None:
    streams = {"OBJ_o": {"name": "OBJ_o", "subjects": ["$O.o.C.>", "$O.o.M.>"]}}
    reshape = Reshape(renames=RenameOptions.parse(["*=p_*"]).over(streams))
    assert reshape.stream_config(streams["OBJ_o"], streams)["subjects"] == ["$O.p_o.C.>", "$O.p_o.M.>"]
    name = base64.urlsafe_b64encode(b"file").decode()
    meta = b'{"name":"file","bucket":"o","options":{"link":{"bucket":"o"}}}'
    batch = batch_of([Message(1, 1, "$O.o.C.n", None, meta), Message(2, 2, f"$O.o.M.{name}", None, meta)])
    assert messages_of(reshape.apply([batch], stream="OBJ_o")) == [
        Message(1, 1, "$O.p_o.C.n", None, meta),
        Message(2, 2, f"$O.p_o.M.{name}", None, meta.replace(b'"bucket":"o"', b'"bucket":"p_o"')),
    ]
