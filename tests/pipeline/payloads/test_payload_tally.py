"""What parsers count agrees with plain Python, also in parts, and sums up."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.pipeline.payloads.json_payload import JsonParser
from jsbackup.pipeline.payloads.json_types import parse_schema
from jsbackup.pipeline.payloads.payload_tally import PayloadTally, against_misfits

SCHEMA = "a BIGINT, b STRUCT<c: BIGINT, d: ARRAY<STRUCT<e: BIGINT>>>, m MAP<STRING, STRUCT<f: BIGINT>>"
PARSER = JsonParser(parse_schema(SCHEMA))
NAMES = {"a", "b", "b.c", "b.d", "b.d.e", "m", "m.f"}

_NUMBER = st.none() | st.integers(-9, 9)
_ITEM = st.none() | st.dictionaries(st.sampled_from("ex"), _NUMBER)
_INNER = st.none() | st.fixed_dictionaries({}, optional={"c": _NUMBER, "d": st.none() | st.lists(_ITEM), "x": _NUMBER})
_MAP = st.none() | st.dictionaries(st.sampled_from("kl"), st.none() | st.dictionaries(st.sampled_from("fx"), _NUMBER))
_OBJECT = st.fixed_dictionaries({}, optional={"a": _NUMBER, "b": _INNER, "m": _MAP, "x": _NUMBER})
_PAYLOAD = _OBJECT.map(lambda one: json.dumps(one).encode()) | st.sampled_from([b"", b"null", b"text", b"[]", None])


def _names(value: Any, path: str = "") -> Iterator[str]:
    """The fields that a value has; of the map `m` those of its values."""
    for one in value if isinstance(value, list) else ():
        yield from _names(one, path)
    for name, one in value.items() if isinstance(value, dict) else ():
        inner = f"{path}.{name}".strip(".")
        yield inner
        yield from _names(list(one.values()) if inner == "m" and one else one, inner)


def _count(payloads: list[bytes | None]) -> PayloadTally:
    tally = PayloadTally()
    PARSER.parse(pa.array(payloads, pa.binary()), tally)
    return tally


@given(st.lists(_PAYLOAD, max_size=12), st.integers(0, 12))
def test_json_is_counted_as_by_hand(payloads: list[bytes | None], at: int) -> None:
    objects = [json.loads(one) for one in payloads if one not in (None, b"", b"null", b"text", b"[]")]
    misfits = sum(one in (b"text", b"[]") for one in payloads)
    seen = {name for one in objects for name in _names(one)} & NAMES
    found = _count(payloads)
    assert (found.payloads, found.misfits) == (len(objects) + misfits, misfits)
    unseen = {name for name in NAMES - seen if name.rpartition(".")[0] in {*seen, ""}}
    assert set(PARSER.unseen(found)) == unseen
    assert found.known == bool(seen)
    assert found.missed == (len(objects) + misfits > 0 and not seen)
    # Tasks count parts, and send what they have counted.
    parts = [pickle.loads(pickle.dumps(_count(part))) for part in (payloads[:at], payloads[at:])]
    assert parts[0].plus(parts[1]) == found
    once = PayloadTally()
    for part in (payloads[:at], payloads[at:]):
        PARSER.parse(pa.array(part, pa.binary()), once)
    assert once == found


def test_a_refusal_says_how_many_there_are() -> None:
    for tally, said in (
        (PayloadTally(1, 1), "the one payload of stream A does not fit the schema"),
        (PayloadTally(1, 0), "the one payload of stream A has no field of the schema"),
        (PayloadTally(2000, 2000), "none of the 2,000 payloads of stream A fits the schema"),
        (PayloadTally(2000, 0), "none of the 2,000 payloads of stream A has a field of the schema"),
        (PayloadTally(9, 8), "only 1 of the 9 payloads of stream A fits the schema, without any field of it"),
    ):
        assert tally.missed and against_misfits("A", tally).message == said
    assert not PayloadTally().missed and not PayloadTally(2, 1, known=True).missed
