"""Durations of Go, both ways and exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.exchange.declared.resources import format_go_duration, parse_go_duration


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0s", 0), ("24h", 86400 * 10**9), ("1m30s", 90 * 10**9), ("500ms", 5 * 10**8), ("1.5s", 15 * 10**8),
        ("1us", 1000), ("1ns", 1), ("-2m", -120 * 10**9), ("1h0.000000001s", 3600 * 10**9 + 1),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_write_them(text: str, ns: int) -> None:
    assert format_go_duration(ns) == text
    assert parse_go_duration(text) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [("0", 0), ("+1h", 3600 * 10**9), (".5s", 5 * 10**8), ("1.s", 10**9), ("1µs1μs", 2000), ("24h0m0s", 86400 * 10**9)],
)
def test_what_go_reads_is_read(text: str, ns: int) -> None:
    assert parse_go_duration(text) == ns


@pytest.mark.parametrize("text", ["", "-", "1", "1d", "h", ".s", "1h 2m", "1H", "٣s", "9999999999h", "1h\n"])
def test_what_go_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_go_duration(text)


@given(st.integers(-(1 << 63) + 1, (1 << 63) - 1))
def test_each_duration_comes_back(ns: int) -> None:
    assert parse_go_duration(format_go_duration(ns)) == ns
