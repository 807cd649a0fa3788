"""Convert RFC 3339 timestamps, as a nats-server writes them, to and from nanoseconds since the Unix epoch, exactly.

Go prints a moment as `2026-11-21T07:41:00.123456789Z`: up to nine digits of fraction, trailing zeros left out, `Z` or
an offset. Its zero time, `0001-01-01T00:00:00Z`, stands for "no such moment" (the first message of an empty stream) and
is 0 here, both ways. Python's own `datetime` would round to microseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from jsbackup.errors import FormatError

__all__ = ["ZERO_TIME", "datetime_of", "format_time", "parse_time"]

ZERO_TIME = "0001-01-01T00:00:00Z"

_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})T(\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?(?:Z|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000_000
_DAY = 86_400
_NS_LOW, _NS_HIGH = -(1 << 63), (1 << 63) - 1  # the range of a message batch and Go's UnixNano: years 1677 to 2262


def parse_time(text: object, what: str = "timestamp") -> int:
    """Return nanoseconds since the epoch; 0 for Go's zero time and for None.

    Raises FormatError, which names `what`, for anything that is not such a timestamp.
    """
    if text is None or text == ZERO_TIME:
        return 0
    match = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise FormatError(f"{what}: not in RFC 3339: {str(text)[:40]!r}")
    text = match[0]
    day, hours, minutes, secs, fraction, sign, offset_hours, offset_minutes = match.groups()
    hour, minute, second = int(hours), int(minutes), int(secs)
    offset = 0 if sign is None else int(offset_hours) * 3600 + int(offset_minutes) * 60
    try:
        begins = _begin_of(day)
    except ValueError as error:
        raise FormatError(f"{what}: not a date: {text!r}") from error
    if hour > 23 or minute > 59 or second > 59 or offset >= _DAY or int(offset_minutes or 0) > 59:
        raise FormatError(f"{what}: not a time of day: {text!r}")
    seconds = begins + hour * 3600 + minute * 60 + second - (-offset if sign == "-" else offset)
    moment = seconds * _SECOND + int((fraction or "").ljust(9, "0"))
    if not _NS_LOW <= moment <= _NS_HIGH:
        raise FormatError(f"{what}: outside the years 1678 to 2261: {text!r}")
    return moment


@lru_cache(maxsize=256)
def _begin_of(day: str) -> int:
    """Return the seconds from the epoch to a day such as `2026-11-21`. Raises ValueError if there is none."""
    year, month, number = day.split("-")
    return (date(int(year), int(month), int(number)).toordinal() - _EPOCH_DAY) * _DAY


def format_time(moment_ns: int) -> str:
    """Format the timestamp as Go does, in UTC. 0 becomes Go's zero time. Raises FormatError outside a signed 64-bit
    integer.
    """
    if moment_ns == 0:
        return ZERO_TIME
    if not _NS_LOW <= moment_ns <= _NS_HIGH:
        raise FormatError(f"not a moment in nanoseconds: {moment_ns}")
    seconds, fraction = divmod(moment_ns, _SECOND)
    days, second_of_day = divmod(seconds, _DAY)
    day = date.fromordinal(days + _EPOCH_DAY)
    minutes, second = divmod(second_of_day, 60)
    digits = f".{fraction:09}".rstrip("0").rstrip(".")
    return f"{day.isoformat()}T{minutes // 60:02}:{minutes % 60:02}:{second:02}{digits}Z"


def datetime_of(moment_ns: int) -> datetime:
    """Return the moment to the microsecond, in UTC."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_ns // 1000)
