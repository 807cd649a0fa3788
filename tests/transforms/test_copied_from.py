from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import PlanRefused
from jsbackup.transforms.copied_from import Mend, follow_headers, source_marks
from jsbackup.transforms.reshape import Reshape

BEFORE = {
    "sources": [
        {"name": "O", "filter_subject": "a.x"},
        {"name": "P", "subject_transforms": [{"src": "a.*", "dest": "b.$1"}, {"src": "", "dest": "c"}]},
        {"name": "Q", "external": {"api": "$JS.hub.API"}},
        {"name": "R"},
    ]
}
AFTER = {
    "sources": [
        {"name": "O2", "filter_subject": "z.x"},
        {"name": "P", "subject_transforms": [{"src": "z.*", "dest": "b.$1"}, {"src": "", "dest": "c"}]},
        {"name": "Q", "external": {"api": "$JS.hub.API"}},
        {"name": "R2"},
    ]
}
MARKS = source_marks(BEFORE, AFTER, ["O", "P", "R"])


def block(name: str, value: str) -> bytes:
    return f"NATS/1.0\r\nX: a.b\r\n{name}: {value}\r\n\r\n".encode()


def followed(name: str, value: str) -> str:
    rename = {"O": "O2", "R": "R2"}
    after = follow_headers(block(name, value), MARKS, lambda n: rename.get(n, n), lambda s: s.replace("a.", "z."))
    assert after.startswith(f"NATS/1.0\r\nX: a.b\r\n{name}: ".encode()) and after.endswith(b"\r\n\r\n")
    return after.decode().split(f"{name}: ")[1][:-4]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("O 7 a.x >", "O2 7 z.x >"),
        ("O 7 a.x > a.x", "O2 7 z.x > z.x"),
        ("O 7 a.x > a.x identity", "O2 7 z.x > z.x"),
        ("Q:hAsH1234 7 > > a.x identity", "Q:hAsH1234 7 > > a.x identity"),
        ("P 7 a.*\f> b.$1\fc a.q", "P 7 z.*\f> b.$1\fc z.q"),
        ("Q:hAsH1234 7 > > a.x", "Q:hAsH1234 7 > > a.x"),
        ("O:C=hash 7 a.x > a.x", "O2:C=hash 7 z.x > z.x"),
        ("R 7 > > a.x", "R2 7 > > z.x"),
        ("O 7", "O2 7"),
        ("O 7 a.y >", "O 7 a.y >"),
        ("O 7 a.x", "O 7 a.x"),
        ("$JS.ACK.O.C.1.7.7.1.0", "$JS.ACK.O.C.1.7.7.1.0"),
        ("", ""),
    ],
)
def test_a_stream_goes_on_where_it_had_copied_up_to(before: str, after: str) -> None:
    assert followed("Nats-Stream-Source", before) == after


@pytest.mark.parametrize("name", ["Nats-Schedule-Target", "Nats-Schedule-Source", "Nats-Scheduler"])
def test_schedules_lead_to_mapped_subjects(name: str) -> None:
    assert followed(name, "a.t") == "z.t"


@pytest.mark.parametrize("name", ["nats-schedule-target", "Nats-Schedule", "Nats-Subject", "Nats-Msg-Id"])
def test_all_other_fields_stay(name: str) -> None:
    assert followed(name, "a.t") == "a.t"


def test_counters_remember_what_they_got_from_whom() -> None:
    value = json.dumps({"O": {"a.x": "5"}, "Q:hash": {"a.x": "6"}, "ELSE": {"a.x": "7"}})
    assert json.loads(followed("Nats-Counter-Sources", value)) == {
        "O2": {"z.x": "5"},
        "Q:hash": {"a.x": "6"},
        "ELSE": {"a.x": "7"},
    }
    for text in ("{", "[]", '{"O": 1}', "[" * 100_000, '{"X":{"a":"1"}}', '{"O":' + "9" * 5000 + "}"):
        assert followed("Nats-Counter-Sources", text) == text


def test_two_counters_do_not_become_one() -> None:
    with pytest.raises(PlanRefused, match="two counters"):
        followed("Nats-Counter-Sources", '{"O": {"a.x": "5", "z.x": "6"}}')


@settings(deadline=None)
@given(st.text(max_size=40).filter(lambda t: "\r" not in t and "\n" not in t), st.binary(max_size=30))
def test_hostile_headers_stay_or_follow(value: str, junk: bytes) -> None:
    for name in ("Nats-Stream-Source", "Nats-Counter-Sources", "Nats-Scheduler"):
        raw = b"NATS/1.0\r\n" + name.encode() + b": " + value.encode("utf-8", "replace") + junk + b"\r\n\r\n"
        assert follow_headers(raw, MARKS, lambda n: n, lambda s: s).startswith(b"NATS/1.0\r\n")
        assert follow_headers(junk, MARKS, lambda n: n, lambda s: s) == junk


def test_an_origin_that_is_made_anew_is_known_by_its_name_alone() -> None:
    renewed = {("O", "a.x", ">"): Mend(renewed=True)}
    reshape = Reshape().of_copy(BEFORE, renewed)
    assert reshape and not Reshape().of_copy(BEFORE, {("X", ">", ">"): Mend()})

    def value(before: str) -> str:
        after = follow_headers(block("Nats-Stream-Source", before), reshape.marks, lambda n: n, lambda s: s)
        return after.decode().split("Nats-Stream-Source: ")[1][:-4]

    assert value("O 7 a.x > a.x identity") == "O 7 a.x > a.x"
    assert value("R 7 > > a.x identity") == "R 7 > > a.x identity"
    assert value("Q:hAsH1234 7 > > a.x identity") == "Q:hAsH1234 7 > > a.x identity"
