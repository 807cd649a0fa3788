"""Times as people write them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.cli.parsing.typed_values import as_rfc3339
from jsbackup.config import parse_typed_time
from jsbackup.errors import UsageError
from tests.cli.typed import Typed


@pytest.fixture(autouse=True, scope="module")
def berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def _now() -> datetime:
    return datetime(2026, 11, 22, 15, 30, 20).astimezone()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("14:02", "2026-11-22T14:02:00+01:00"),
        ("9:05", "2026-11-22T09:05:00+01:00"),
        ("14:02:30.5", "2026-11-22T14:02:30.500000+01:00"),
        ("today 14:02", "2026-11-22T14:02:00+01:00"),
        ("today 23:59", "2026-11-22T23:59:00+01:00"),
        (" Yesterday  14:02 ", "2026-11-21T14:02:00+01:00"),
        ("yesterday", "2026-11-21T00:00:00+01:00"),
        ("2026-11-20", "2026-11-20T00:00:00+01:00"),
        ("2026-07-20 14:02", "2026-07-20T14:02:00+02:00"),  # by the rules of that day
        ("2026-07-20T14:02", "2026-07-20T14:02:00+02:00"),
        ("now", "2026-11-22T15:30:20.000000+01:00"),
        ("2h ago", "2026-11-22T13:30:20+01:00"),
        ("1 hour ago", "2026-11-22T14:30:20+01:00"),
        ("2 Days 30 minutes ago", "2026-11-20T15:00:20+01:00"),
    ],
)
def test_what_people_write_is_a_moment_of_the_local_zone(text: str, moment: str) -> None:
    assert as_rfc3339(text, _now()) == moment


@pytest.mark.parametrize(
    "text", ["24h", "4711", "2026-11-20T14:02:00Z", "2026-11-20T14:02:00+02:00", "", "14h02", "soon"]
)
def test_other_forms_are_left_alone(text: str) -> None:
    assert as_rfc3339(text, _now()) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("15:31", "15:31 is still to come today, 15:30 now"),
        ("25:00", "no such time"),
        ("2026-02-30", "no such time"),
        ("yesterday 14:60", "no such time"),
        ("2026-03-29 02:30", "the clocks skip"),
        ("2026-10-25 02:30", "have twice"),
        ("9999999h ago", "there was no time 9999999h ago|too long"),
        ("soon ago", "not a duration"),
    ],
)
def test_what_no_moment_can_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        as_rfc3339(text, _now())


@given(st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1)))
def test_any_day_and_time_is_what_it_says(moment: datetime) -> None:
    try:
        understood = as_rfc3339(f"{moment:%Y-%m-%d %H:%M:%S.%f}", _now())
    except UsageError as error:
        assert moment.hour in (1, 2) and "skip, or have twice" in error.message
        return
    assert understood is not None and understood.startswith(f"{moment:%Y-%m-%dT%H:%M:%S}")
    assert (
        parse_typed_time(understood)
        == int(moment.replace(microsecond=0).astimezone().timestamp()) * 10**9 + moment.microsecond * 1000
    )


def test_an_hour_that_comes_twice_is_told_apart_by_its_offset() -> None:
    with pytest.raises(UsageError) as caught:
        as_rfc3339("2026-10-25 02:30", _now())
    assert caught.value.hint == "Write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00."


@pytest.mark.parametrize(
    ("zone", "known"),
    [
        *((zone, True) for zone in ("Europe/Berlin", ":Europe/Berlin", "CET-1CEST", "<+03>-3", "UTC", "")),
        *((zone, False) for zone in ("Europe/Berln", "../x")),
    ],
)
def test_a_zone_that_the_system_does_not_know_is_not_taken_for_utc(
    zone: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    if known:
        assert as_rfc3339("2026-11-20 14:02", _now()) is not None
        return
    with pytest.raises(UsageError, match="no such time zone"):
        as_rfc3339("2026-11-20 14:02", _now())


def test_a_command_says_what_it_understood(typed: Callable[..., Typed], tmp_path: Path) -> None:
    done = typed("plan", "latest", "--until", "yesterday 14:02", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "none")
    assert "--until yesterday 14:02 is 20" in done.err and "T14:02:00+0" in done.err
    quiet = typed("plan", "latest", "--until", "yesterday", "-q", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "none")
    assert "--until" not in quiet.err
    number = typed("plan", "latest", "--until", "2026", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "none")
    assert "--until 2026 is sequence 2,026 of each stream" in number.err
    before = typed("plan", "latest", "--since", "24h", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "none")
    assert "--since 24h is 20" in before.err
    for text, sentence in (
        ("tomorrow", "--until: not a time, a duration or a sequence: 'tomorrow'"),
        ("14.00", "--until: not a time, a duration or a sequence: '14.00'"),
        ("2pm", "--until: not a time, a duration or a sequence: '2pm'"),
        ("last monday", "--until: not a time, a duration or a sequence: 'last monday'"),
        ("2026-11-21T14h", "--until: not an RFC 3339 time: '2026-11-21T14h'"),
        ("9999999999999h", "--until: duration is too long: '9999999999999h'"),
    ):
        wrong = typed("plan", "latest", "--until", text, "-r", tmp_path / "none")
        assert wrong.code == 2 and wrong.err.splitlines()[0] == f"error: {sentence}"
        assert "Give a time such as 14:02, 'yesterday 14:02'" in wrong.err
    wrong = typed("plan", "latest", "--since", "2026-02-30", "-r", tmp_path / "none")
    assert wrong.code == 2 and "--since: no such time: '2026-02-30'" in wrong.err
