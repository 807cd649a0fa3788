"""Timestamps keep every nanosecond, both ways."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.times import ZERO_TIME, format_time, parse_time

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(INT64)
def test_what_is_formatted_is_parsed_to_the_nanosecond(moment: int) -> None:
    assert parse_time(format_time(moment)) == moment


@given(st.integers(-9_000_000_000_000_000, 9_000_000_000_000_000).filter(bool))
def test_microseconds_agree_with_the_standard_library(moment_us: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)
    assert parse_time(moment.isoformat()) == moment_us * 1000
    assert datetime.fromisoformat(format_time(moment_us * 1000)) == moment


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        (ZERO_TIME, 0),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2026-11-21T07:41:00.123456789Z", 1795246860123456789),
        ("2026-11-21T07:41:00.1Z", 1795246860100000000),
        ("2026-11-21T09:41:00.1+02:00", 1795246860100000000),
        ("2026-11-20T20:11:00.1-11:30", 1795246860100000000),
        ("2024-02-29T00:00:00Z", 1709164800000000000),
    ],
)
def test_what_go_prints_is_understood(text: str, moment: int) -> None:
    assert parse_time(text) == moment


def test_no_moment_is_go_s_zero_time() -> None:
    assert format_time(0) == "0001-01-01T00:00:00Z"


def test_nothing_is_no_moment() -> None:
    assert parse_time(None) == 0


@pytest.mark.parametrize("value", [5, [], {}, True])
def test_what_is_no_text_is_refused_with_the_name_of_what_it_should_be(value: object) -> None:
    with pytest.raises(FormatError, match="creation time: not in RFC 3339"):
        parse_time(value, "creation time")


def test_trailing_zeros_of_the_fraction_are_left_out_as_go_does() -> None:
    assert format_time(1795246860120000000) == "2026-11-21T07:41:00.12Z"
    assert format_time(1795246860000000000) == "2026-11-21T07:41:00Z"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-21",
        "2026-11-21T07:41:00",
        "2026-11-21T07:41:00.Z",
        "2026-11-21T07:41:00.1234567890Z",
        "2026-13-21T07:41:00Z",
        "2026-02-30T07:41:00Z",
        "0000-01-01T00:00:00Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T07:60:00Z",
        "2026-11-21T07:41:60Z",
        "2026-11-21T07:41:00+24:00",
        "2026-11-21T07:41:00+01:60",
        "0001-01-01T00:00:00.5Z",
        "9999-12-31T23:59:59Z",
        "٢٠٢٦-11-21T07:41:00Z",
        "2026-11-21T07:41:00Z\n",
        "9" * 100_000,
    ],
)
def test_anything_else_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_time(text)
    assert len(caught.value.message) < 200


@given(st.text(alphabet="0123456789-+:.TZ", max_size=40))
def test_no_text_makes_another_error_than_a_format_error(text: str) -> None:
    with contextlib.suppress(FormatError):
        assert isinstance(parse_time(text), int)


@pytest.mark.parametrize("moment", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_moments_beyond_64_bits_are_refused(moment: int) -> None:
    with pytest.raises(FormatError):
        format_time(moment)
