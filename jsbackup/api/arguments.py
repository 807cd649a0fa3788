"""Convert and check arguments of functions: texts, times, choices, numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeAlias, TypedDict, TypeVar

from jsbackup.errors import UsageError
from jsbackup.times import parse_time
from jsbackup.transforms.filters.filters import Filters

__all__ = [
    "LOCK_TIMEOUT_SECONDS",
    "Moment",
    "WantedMessages",
    "as_texts",
    "checked_jobs",
    "moment_text",
    "not_opened",
    "one_of",
    "to_datetime",
    "typed_filters",
]

# As on the command line: longer than the lease of a killed command.
LOCK_TIMEOUT_SECONDS = 660.0

Moment: TypeAlias = datetime | str | int
"""A time with a zone; a text such as `2026-11-21T14:02:00Z`, or `24h` (before now); or a sequence."""

E = TypeVar("E", bound=StrEnum)


class WantedMessages(TypedDict, total=False):
    """Which messages are wanted, as keywords: see `Stream.messages`."""

    since: Moment | None
    until: Moment | None
    exclude_subject: str | Sequence[str]
    header: str | Sequence[str]
    payload_match: str | Sequence[str]
    last_per_subject: int | None
    kv_compact: bool


def as_texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return a list; a single text is a list of one."""
    return (value,) if isinstance(value, str) else tuple(value)


def moment_text(name: str, value: Moment | None) -> str | None:
    """Return the value as typed on the command line. Raises UsageError for a time without a zone."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise UsageError(f"{name}: a time without a zone", hint="Give it one: datetime(…, tzinfo=timezone.utc).")
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return None if value is None else str(value)


def one_of(name: str, kind: type[E], value: str) -> E:
    """Return the member with this value. Raises UsageError if there is none."""
    if value not in list(kind):
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(kind)}")
    return kind(value)


def checked_jobs(jobs: int) -> int:
    """Return `jobs`. Raises UsageError if it is out of range."""
    if not 1 <= jobs <= 64:
        raise UsageError(f"jobs: {jobs} is not in the range 1 to 64")
    return jobs


def not_opened(name: str, given: object) -> TypeError:
    """Return the error for an argument that is not a repository or a backup."""
    return TypeError(f"{name}: not a {type(given).__name__}, but the result of jsbackup.open")


def to_datetime(text: str) -> datetime:
    """Parse an RFC 3339 time, to the microsecond, in UTC."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=parse_time(text) // 1000)


def typed_filters(**given: str | Sequence[str]) -> Filters:
    """Return filters by the names of their options. Raises UsageError."""
    return Filters.parse({name: as_texts(texts) for name, texts in given.items()})
