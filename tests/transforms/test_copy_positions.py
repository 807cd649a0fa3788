from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.transforms.copied_from import Mend
from jsbackup.transforms.copy_positions import (
    CopyPosition,
    last_positions,
    mark_of,
    read_mark,
    source_key,
    stream_identity,
)
from tests.harness.batches import Message, batch_of

PLAIN, TURNED = ("O", ">", ">"), ("P", "a.*", "b.$1")


def block(mark: str) -> bytes:
    return f"NATS/1.0\r\nX: y\r\nNats-Stream-Source: {mark}\r\n\r\n".encode()


def message(sequence: int, mark: str | None) -> Message:
    return Message(sequence, sequence, "a.b", None if mark is None else block(mark), b"")


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ({"name": "O"}, ("O", ">", ">")),
        ({"name": "O", "filter_subject": "a"}, ("O", "a", ">")),
        ({"name": "O", "subject_transforms": [{"src": "a", "dest": "b"}]}, ("O", "a", "b")),
        ({"name": "O", "subject_transforms": [{"src": "a"}, {"src": "", "dest": "c"}]}, ("O", "a\f>", ">\fc")),
        ({"name": "O", "external": {"api": "$JS.hub.API"}, "filter_subject": "a"}, ("O:", "a", ">")),
        ({"name": "O", "consumer": {"name": "c"}}, ("O:C=", ">", ">")),
    ],
)
def test_a_source_is_known_by_its_name_filter_and_destination(source: dict[str, object], key: tuple[str, ...]) -> None:
    name, *rest = source_key(source)
    assert rest == list(key[1:])
    assert name.startswith(key[0]) and len(name) == len(key[0]) + (8 if key[0] != "O" else 0)


def test_an_identity_is_what_a_server_makes_of_a_time_of_creation() -> None:
    """As 2.15.2 had it in marks of a stream that it had created then."""
    assert stream_identity("2026-11-22T20:36:11.480019556Z") == "QRFhgWE8"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("O 7", (("O", "", ""), 7, "")),
        ("O 7 > >", (PLAIN, 7, "")),
        ("O 7 > > a.b", (PLAIN, 7, "")),
        ("O 7 > > a.b id", (PLAIN, 7, "id")),
        ("O 7 >", None),
        ("O x > >", None),
        ("O", None),
        ("", None),
        ("O 7 > > a b c", None),
    ],
)
def test_marks_of_all_releases_are_read(value: str, read: object) -> None:
    assert read_mark(value) == read
    assert mark_of(block(value)) == read


def test_the_last_mark_of_each_source_counts_with_what_comes_behind_it() -> None:
    batch = batch_of(
        [
            message(1, "O 1 > > a id"),
            message(3, "P 9 a.* b.$1 a id"),
            message(4, "O 5 > > a id"),
            message(7, "X 8 > > a"),
            message(8, None),
        ]
    )
    assert last_positions(batch, [PLAIN, TURNED]) == {
        PLAIN: CopyPosition(5, "id", 4, 2),
        TURNED: CopyPosition(9, "id", 3, 3),
    }
    assert last_positions(batch, [PLAIN]) == {PLAIN: CopyPosition(5, "id", 4, 2)}


def test_a_mark_of_two_fields_is_of_every_source_of_that_name() -> None:
    other = ("O", "a", ">")
    found = last_positions(batch_of([message(1, "O 4")]), [PLAIN, other, TURNED])
    assert found == {PLAIN: CopyPosition(4, "", 1, 0), other: CopyPosition(4, "", 1, 0)}


numbers = st.integers(0, 1 << 63)
mends = st.builds(Mend, st.booleans(), st.none() | numbers, st.none() | st.tuples(numbers, numbers))


@given(mends, numbers)
def test_mends_never_lead_beyond_the_origin(mend: Mend, sequence: int) -> None:
    if mend.most is not None:
        assert mend.sequence(sequence) <= mend.most
    if not mend:
        assert mend.sequence(sequence) == sequence
