"""A list is complete when the reported total is reached, or it is an error that says why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError, NatsError
from jsbackup.protocol.paging import (
    Page,
    Pager,
    consumer_list_page,
    next_offsets,
    stream_list_page,
    stream_names_page,
)

CREATED = "2026-11-21T07:40:00Z"
STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
PAIR = {"consumer_seq": 0, "stream_seq": 0}


def page(names: str, total: int, offset: int = 0, missing: str = "", offline: str = "") -> Page[str]:
    """A page whose entries are single letters, each its own value."""
    return Page(tuple((c, c.upper()) for c in names), total, offset, tuple(missing), dict.fromkeys(offline, "off"))


def read(*pages: Page[str]) -> Pager[str]:
    pager: Pager[str] = Pager("list of streams")
    for each in pages:
        pager.receive(each)
    return pager


@given(st.integers(0, 700), st.integers(1, 256))
def test_every_page_is_asked_for_until_the_total_is_reached(total: int, limit: int) -> None:
    names = [f"S{index:04}" for index in range(total)]
    pager: Pager[int] = Pager("list of streams")
    while (offset := pager.offset) is not None:
        pager.receive(Page(tuple((name, len(name)) for name in names[offset : offset + limit]), total, offset))
    assert list(pager.result.entries) == names and pager.result.missing == ()


def test_256_of_416_streams_are_not_all_streams() -> None:
    pager: Pager[None] = Pager("list of streams")
    pager.receive(Page(tuple((f"S{index}", None) for index in range(256)), 416, 0))
    assert pager.offset == 256
    with pytest.raises(NatsError, match="not complete"):
        _ = pager.result


def test_names_that_did_not_answer_take_up_places_too() -> None:
    pager = read(page("ab", 6, missing="bc", offline="d"))
    assert pager.offset == 4
    pager.receive(page("ef", 6, offset=4))
    result = pager.result
    assert list(result.entries) == ["a", "b", "e", "f"]
    assert result.missing == ("b", "c") and result.offline == {"d": "off"}


CHANGES = {
    "its total went from 4 to 3": (page("ab", 4), page("c", 3, offset=2)),
    "asked for offset 2, got 1": (page("ab", 4), page("c", 4, offset=1)),
    "'b' is there twice": (page("ab", 4), page("bc", 4, offset=2)),
    "'a' is there twice": (page("aab", 4),),
    "an empty page after 2 of 4 entries": (page("ab", 4), page("", 4, offset=2)),
    "an empty page after 0 of 4 entries": (page("", 4),),
    "3 entries of 2": (page("abc", 2),),
    "its total went from 4 to 0": (page("ab", 4), page("", 0, offset=2)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_list_that_changes_is_read_again_from_the_start_once(change: str) -> None:
    pager = read(*CHANGES[change])
    assert pager.offset == 0
    pager.receive(page("xy", 3))
    pager.receive(page("z", 3, offset=2))
    assert list(pager.result.entries) == ["x", "y", "z"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_list_that_changes_twice_is_an_error_that_says_how(change: str) -> None:
    with pytest.raises(NatsError) as caught:
        read(*CHANGES[change], *CHANGES[change])
    assert f"({change})" in caught.value.message and caught.value.hint is not None


def test_a_broken_or_complete_list_takes_no_more_pages() -> None:
    pager = read(page("a", 1))
    with pytest.raises(NatsError, match="after the last one"):
        pager.receive(page("b", 1))
    assert pager.offset is None
    with pytest.raises(NatsError, match="not complete"):
        _ = pager.result


def test_a_list_that_claims_to_be_endless_is_refused() -> None:
    with pytest.raises(NatsError, match="are believed"):
        read(page("a", 10**7))
    with pytest.raises(NatsError, match="are believed"):
        Pager[str]("list of subjects", max_entries=2).receive(page("a", 3))


@given(
    st.lists(
        st.builds(page, st.text("abc", max_size=3), st.integers(0, 4), st.integers(0, 4), st.text("abc", max_size=2)),
        max_size=12,
    )
)
def test_no_sequence_of_pages_makes_another_error_or_a_wrong_count(pages: list[Page[str]]) -> None:
    pager: Pager[str] = Pager("list of streams")
    for each in pages:
        try:
            pager.receive(each)
        except NatsError:
            return
        if pager.offset is None:
            assert len(set(pager.result.entries) | set(pager.result.missing)) == each.total
            return


def test_pages_of_names() -> None:
    document = {"total": 3, "offset": 1, "limit": 1024, "streams": ["B", "Ö"]}
    assert stream_names_page(document) == Page((("B", None), ("Ö", None)), 3, 1)
    assert stream_names_page({"total": 0, "offset": 0, "limit": 1024, "streams": None}) == Page((), 0, 0)


def test_a_page_of_streams_with_missing_and_offline_ones() -> None:
    stream = {"config": {"name": "A"}, "created": CREATED, "state": STATE}
    found = stream_list_page(
        {"total": 3, "offset": 0, "limit": 256, "streams": [stream], "missing": ["B"], "offline": {"C": "old\nserver"}}
    )
    assert [name for name, _ in found.entries] == ["A"] and found.names == {"A", "B", "C"}
    assert found.missing == ("B",) and found.offline == {"C": "old server"}


def test_a_page_of_consumers() -> None:
    consumer = {"name": "c", "config": {}, "created": CREATED, "delivered": PAIR, "ack_floor": PAIR}
    found = consumer_list_page({"total": 1, "offset": 0, "limit": 256, "consumers": [consumer]}, "ORDERS")
    assert found.entries[0][1].stream == "ORDERS"


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"total": -1, "offset": 0, "limit": 1, "streams": []},
        {"total": 1, "offset": 0, "limit": 1, "streams": ["a.b"]},
        {"total": 1, "offset": 0, "limit": 1, "streams": {}},
        {"total": 1, "offset": 0, "limit": 1, "streams": ["A"], "missing": [1]},
        {"total": 1, "offset": 0, "limit": 1, "streams": ["A"], "offline": ["A"]},
        {"total": 1, "offset": 0, "limit": 1, "streams": ["A"], "offline": {"B": 1}},
    ],
)
def test_a_malformed_page_is_a_format_error(document: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        stream_names_page(document)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"total": 416, "limit": 256, "offset": 0}, [256]),
        ({"total": 2000, "limit": 256, "offset": 256}, [512, 768]),
        ({"total": 256, "limit": 256, "offset": 0}, []),
        ({"total": 10, "limit": 0, "offset": 0}, []),
        ({"total": 10, "limit": True, "offset": 0}, []),
        ({"total": "10", "limit": 1, "offset": 0}, []),
        ({"limit": 1}, []),
        ({"total": 1 << 64, "limit": 1, "offset": -1}, []),
    ],
)
def test_the_pages_after_an_answer_are_expected_at_its_limit(answer: dict[str, object], expected: list[int]) -> None:
    assert [*next_offsets(answer, 2)] == expected
