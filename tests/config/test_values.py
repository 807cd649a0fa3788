"""Text → sizes, durations, times, booleans, globs."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config import Glob, format_bytes, parse_bool, parse_duration, parse_glob, parse_size, parse_typed_time
from jsbackup.errors import JsBackupError, UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1B", 1),
        ("8M", 8 << 20),
        ("64MiB", 64 << 20),
        ("64MB", 64 << 20),
        ("64 mib", 64 << 20),
        ("  1.5KiB ", 1536),
        ("2G", 2 << 30),
        ("1T", 1 << 40),
        ("7E", 7 << 60),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_sizes_are_iec(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "M", "-1", "1.5", "0.3K", "8E", "9223372036854775808", "1 KiB x", "1kbit", "١KiB", "1e3", "0x10", "1KiB\n2"],
)
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert repr(text) in caught.value.message


@given(st.integers(0, 2**63 - 1))
def test_bytes_are_exact_however_large(size: int) -> None:
    assert parse_size(str(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("90s", 90.0),
        ("24h", 86400.0),
        ("7d", 604800.0),
        ("2w", 1209600.0),
        ("1h30m", 5400.0),
        ("1h30m15.5s", 5415.5),
        ("1.5h", 5400.0),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("1ns", 1e-9),
    ],
)
def test_durations_are_written_as_in_go_with_days_and_weeks(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-1s", "1h 30m", "1y", "1M", "1h30", "h1", "1s1", "101w0x", "999999d", "٣s"]
)
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000000001Z", 1),
        ("1970-01-01t01:00:00.5+01:00", 500_000_000),
        ("1969-12-31 23:59:59z", -1_000_000_000),
        ("2026-11-21T01:45:00Z", 1_795_225_500_000_000_000),
        ("2026-11-21T01:45Z", 1_795_225_500_000_000_000),
        ("2026-11-21 03:15+01:30", 1_795_225_500_000_000_000),
        ("2026-11-21T01:45:00.123456789-03:30", 1_795_238_100_123_456_789),
    ],
)
def test_times_are_rfc_3339_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert parse_typed_time(text) == nanoseconds


@given(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2260, 1, 1), timezones=st.just(dt.UTC)))
def test_any_time_python_writes_is_read(moment: dt.datetime) -> None:
    expected = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000
    assert parse_typed_time(moment.isoformat()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-11-21",
        "2026-11-21T01:45:00",
        "2026-13-21T01:45:00Z",
        "2026-02-29T00:00:00Z",
        "2026-11-21T24:00:00Z",
        "2026-11-21T14Z",
        "2026-11-21T14:02.5Z",
        "2026-11-21T01:45:60Z",
        "2026-11-21T01:45:00+24:00",
        "2026-11-21T01:45:00+01:60",
        "2026-11-21T01:45:00.Z",
        "2026-11-21T01:45:00.1234567890Z",
        "0000-01-01T00:00:00Z",
        "1600-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "٢٠٢٦-11-21T01:45:00Z",
    ],
)
def test_what_is_no_time_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_typed_time(text)
    assert repr(text) in caught.value.message


def test_booleans_have_four_spellings_each() -> None:
    assert all(parse_bool(text) for text in ("true", "YES", " on ", "1"))
    assert not any(parse_bool(text) for text in ("false", "No", "off", "0"))
    with pytest.raises(UsageError, match="neither true nor false: 'maybe'"):
        parse_bool("maybe")


def test_a_glob_matches_as_a_shell_does_and_minds_case() -> None:
    assert parse_glob("ORDERS*").matches("ORDERS_EU")
    assert not parse_glob("ORDERS*").matches("orders_eu")
    assert parse_glob("S?").matches("S1")
    assert parse_glob("Größe-*").matches("Größe-ß")
    assert not parse_glob("ORDERS").matches("ORDERS_EU")


def test_a_name_with_brackets_matches_itself() -> None:
    assert parse_glob("odd[1]").matches("odd[1]")
    assert not parse_glob("odd[1]").matches("odd1")
    assert parse_glob("odd[*").matches("odd[1]")
    assert Glob("odd[1]").is_literal
    assert not Glob("odd[*").is_literal


@pytest.mark.parametrize("text", ["", "orders.eu", "orders.>", "a b", "a/b", "a\\b", "a\tb"])
def test_what_can_be_no_stream_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_glob(text)


@given(st.text(max_size=40))
def test_any_text_is_a_value_or_a_usage_error(text: str) -> None:
    for parse in (parse_size, parse_duration, parse_typed_time, parse_bool, parse_glob):
        try:
            parse(text)
        except JsBackupError as error:
            assert isinstance(error, UsageError)


def test_sizes_are_short_and_exact_where_they_can_be() -> None:
    sizes = [0, 999, 1024, 123456, 5 << 20, 1 << 62]
    assert [format_bytes(size) for size in sizes] == ["0 B", "999 B", "1.00 KiB", "121 KiB", "5.00 MiB", "4096 PiB"]
