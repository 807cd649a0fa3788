"""A list has everything that was there all the time, or it is an error that says why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
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


class Names:
    """Answers with the names that there are at that moment."""

    def __init__(self, names: Iterable[str], limit: int) -> None:
        self.names = {*names}
        self.limit = limit

    def page(self, offset: int) -> Page[int]:
        listed = sorted(self.names)
        some = listed[offset : offset + self.limit]
        return Page(tuple((name, len(name)) for name in some), len(listed), min(offset, len(listed)))


@given(st.integers(0, 700), st.integers(1, 256))
def test_every_page_is_asked_for_until_the_total_is_reached(total: int, limit: int) -> None:
    names = [f"S{index:04}" for index in range(total)]
    there = Names(names, limit)
    pager: Pager[int] = Pager("list of streams")
    while (offset := pager.offset) is not None:
        pager.receive(there.page(offset))
    assert list(pager.result.entries) == names and pager.result.missing == ()


def test_256_of_416_streams_are_not_all_streams() -> None:
    there = Names((f"S{index}" for index in range(416)), 256)
    pager: Pager[int] = Pager("list of streams")
    pager.receive(there.page(0))
    assert pager.offset == 248
    with pytest.raises(NatsError, match="not complete"):
        _ = pager.result


# Which name is created or deleted (each name is one of a hundred places), and how late its page is made.
CHURN = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3)), max_size=60)


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)), CHURN, st.integers(2, 40))
@example({10, 30, 50, 70, 90}, {5}, [(5, 0), (99, 0)], 3)
def test_what_is_there_all_the_time_is_listed(
    resting: set[int], others: set[int], churn: list[tuple[int, int]], limit: int
) -> None:
    """Whatever comes and goes between the requests, and in whichever order the server makes the pages."""
    there = Names((f"S{index:02}" for index in resting | others), limit)
    rest = {f"S{index:02}" for index in resting}
    ever = {*there.names}
    moments = [{*there.names}]
    events = iter(churn)
    pager: Pager[int] = Pager("list of streams")
    while (offset := pager.offset) is not None:
        number, late = next(events, (None, 0))
        there.names = moments[max(len(moments) - 1 - late, 0)]  # made before others that were received
        pager.receive(there.page(offset))
        names = {*moments[-1]}
        if number is not None and number not in resting:
            names ^= {f"S{number:02}"}
        ever |= names
        moments.append(names)
    assert rest <= {*pager.result.entries} <= ever


def test_a_stream_that_others_push_over_the_border_of_two_pages_is_listed() -> None:
    """One is deleted and another is created: the total stays the same."""
    names = [f"S{index:03}" for index in range(500)]
    there = Names(names, 256)
    pager: Pager[int] = Pager("list of streams")
    pager.receive(there.page(0))
    there.names = there.names - {*names[:9]} | {f"T{index}" for index in range(9)}
    while (offset := pager.offset) is not None:
        pager.receive(there.page(offset))
    assert {*names[9:]} <= {*pager.result.entries}


def test_names_that_did_not_answer_take_up_places_too() -> None:
    pager = read(page("ab", 6, missing="bc", offline="d"))
    assert pager.offset == 2
    pager.receive(page("cdef", 6, offset=2))
    result = pager.result
    assert list(result.entries) == ["a", "b", "c", "d", "e", "f"]
    assert result.missing == ("b",) and result.offline == {}  # the others have answered since


def test_what_has_answered_stays_as_it_was() -> None:
    pager = read(page("abcd", 6), page("ef", 6, offset=2, missing="cd"))
    assert list(pager.result.entries) == ["a", "b", "c", "d", "e", "f"]
    assert pager.result.missing == ()


WRONG = {
    "asked for offset 2, got 3": (page("abcd", 6), page("cd", 6, offset=3)),
    "'a' is there twice in one page": (page("aab", 4),),
    "an empty page of 4 entries": (page("", 4),),
    "3 entries of 2": (page("abc", 2),),
}


@pytest.mark.parametrize("problem", WRONG)
def test_a_page_that_cannot_be_one_is_an_error(problem: str) -> None:
    with pytest.raises(NatsError) as caught:
        read(*WRONG[problem])
    assert caught.value.message == f"list of streams: {problem}"


def test_a_list_without_end_is_given_up() -> None:
    pager: Pager[str] = Pager("list of streams")
    with pytest.raises(NatsError, match="changes while it is read") as caught:
        while (offset := pager.offset) is not None:
            pager.receive(page("abcd" if not offset else "xyz", 999, offset))
    assert caught.value.hint is not None


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
            assert {*pager.result.entries, *pager.result.missing} <= {*"abc"}
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
        ({"total": 416, "limit": 256, "offset": 0}, [248]),
        ({"total": 504, "limit": 256, "offset": 0}, [248]),
        ({"total": 505, "limit": 256, "offset": 0}, [248, 496]),
        ({"total": 2000, "limit": 256, "offset": 248}, [496, 744]),
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
