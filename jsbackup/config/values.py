"""Parse sizes, durations, times, booleans and globs; format sizes; find names that are similar to a mistyped one. Pure
functions; invalid text is a UsageError that contains it.

Sizes are IEC: `64MiB`, `64M` and `64MB` all mean 64 · 2²⁰ bytes, as in the nats CLI. Durations are written as in Go,
with days and weeks added (`90s`, `1h30m`, `7d`). Times are RFC 3339 with a zone, so that a restore "until 14:00" does
not depend on the local time zone.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from jsbackup.errors import FormatError, UsageError
from jsbackup.names import has_blank
from jsbackup.times import parse_time

__all__ = [
    "MAY_MISS",
    "Glob",
    "excludes_nothing",
    "format_bytes",
    "is_chosen",
    "nearest",
    "parse_bool",
    "parse_duration",
    "parse_glob",
    "parse_size",
    "parse_typed_time",
    "similar",
]

# Added to hints about a pattern that matches nothing.
MAY_MISS = "With --allow-nothing it may match nothing."

_INT64_MAX = 2**63 - 1

_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?(?:([KMGTPE])(?:I?B)?|B)?", re.ASCII | re.IGNORECASE)
_SIZE_POWERS = {letter: 1024**power for power, letter in enumerate("KMGTPE", start=1)}

_DURATION_PART = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(ns|us|µs|μs|ms|s|m|h|d|w)", re.ASCII)
_DURATION_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,  # U+00B5, as Go prints it
    "μs": 10**3,  # U+03BC, as typed on a Greek keyboard
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "w": 7 * 86400 * 10**9,
}
# A hundred years: longer is a mistake, and sums with today's date stay within every date type.
_DURATION_MAX_SECONDS = 100 * 365 * 86400

_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d)(:\d\d(?:\.\d{1,9})?)?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII)

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def parse_size(text: str) -> int:
    """Parse `"64MiB"`, `"8M"`, `"1.5 GiB"`, `"4096"` to bytes. Raises UsageError, also above 2⁶³-1 and for fractions of
    bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"not a size: {text!r}", hint="Write bytes, or a number with a unit such as 64MiB or 2GiB.")
    number, divisor = _ratio(match[1])
    size, rest = divmod(number * _SIZE_POWERS.get((match[2] or "").upper(), 1), divisor)
    if rest:
        raise UsageError(f"not a whole number of bytes: {text!r}")
    if size > _INT64_MAX:
        raise UsageError(f"size is too large: {text!r}")
    return int(size)


def _ratio(decimal: str) -> tuple[int, int]:
    """Return a decimal number exactly: `"1.5"` is 15 and 10. Each command would wait for `fractions`, which can do it,
    too.
    """
    whole, _, part = decimal.partition(".")
    return int(whole + part), 10 ** len(part)


def format_bytes(count: int) -> str:
    """Format bytes in IEC units with three significant digits: `0 B`, `999 B`, `1.23 MiB`."""
    power = min(max(abs(count).bit_length() - 1, 0) // 10, 5)
    if not power:
        return f"{count} B"
    value = count / 1024**power
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {'KMGTP'[power - 1]}iB"


def parse_duration(text: str, wanted: str = "a duration") -> float:
    """Parse `"90s"`, `"1h30m"`, `"7d"` to seconds. Raises UsageError, also for a number without a unit, except 0.

    `wanted` is what the text could have been.
    """
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    nanoseconds, position = 0.0, 0
    while position < len(stripped) and (part := _DURATION_PART.match(stripped, position)):
        number, divisor = _ratio(part[1])
        nanoseconds += number * _DURATION_NANOSECONDS[part[2]] / divisor
        position = part.end()
    if position == 0 or position != len(stripped):
        raise UsageError(f"not {wanted}: {text!r}", hint="Write a number with a unit: 500ms, 90s, 15m, 24h, 7d, 2w.")
    if nanoseconds > _DURATION_MAX_SECONDS * 10**9:
        raise UsageError(f"duration is too long: {text!r}")
    return nanoseconds / 10**9


def parse_typed_time(text: str) -> int:
    """Parse RFC 3339 (`"2026-11-21T01:45:00.5Z"`, `"…+02:00"`) to nanoseconds since the Unix epoch; seconds may be
    left out. Raises UsageError.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"not an RFC 3339 time: {text!r}",
            hint="Write it as 2026-11-21T01:45:00Z, or with an offset such as +02:00 in place of the Z.",
        )
    day, minute, rest, zone = match.groups()
    try:  # not with a Z: Go's zero time would be 1970
        return parse_time(f"{day}T{minute}{rest or ':00'}{zone or '+00:00'}")
    except FormatError:
        raise UsageError(f"no such time: {text!r}", hint="NATS keeps times from 1678 to 2262.") from None


def parse_bool(text: str) -> bool:
    """Parse `true/yes/on/1` and `false/no/off/0`, in any case. Raises UsageError."""
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise UsageError(f"neither true nor false: {text!r}", hint="Write true or false.") from None


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern for stream names: `*` and `?` as in a shell, case-sensitive. Brackets are characters of names."""

    pattern: str

    @property
    def is_literal(self) -> bool:
        """Whether it names one stream, which therefore must exist."""
        return not any(character in self.pattern for character in "*?")

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern.replace("[", "[[]"))


def is_chosen(name: str, streams: Sequence[Glob], exclude: Sequence[Glob]) -> bool:
    """Return whether a stream is chosen by names or globs; no `streams` means all."""
    wanted = not streams or any(glob.matches(name) for glob in streams)
    return wanted and not any(glob.matches(name) for glob in exclude)


def excludes_nothing(names: Collection[str], exclude: Sequence[Glob]) -> list[str]:
    """Return the patterns of `exclude` that match none of these streams."""
    return [glob.pattern for glob in exclude if not any(map(glob.matches, names))]


def parse_glob(text: str) -> Glob:
    """Parse a stream name or a pattern of names. Raises UsageError if no stream can have it, such as a subject."""
    if not text:
        raise UsageError("an empty stream name", hint="Name a stream, or give a pattern such as 'ORDERS*'.")
    if has_blank(text) or any(character in "./\\>" for character in text):
        raise UsageError(
            f"no stream can be named {text!r}",
            hint="Streams are chosen by name or by a pattern of names such as 'ORDERS*', not by subject.",
        )
    return Glob(text)


_ALIKE = 0.66  # of the ratio of difflib: "gte" is like "get"
_BUCKETS = ("KV_", "OBJ_")  # the prefixes of a bucket's stream


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return a hint with the most similar name, if there is one. The stream of a bucket is similar to its name, and to
    what is similar to that.
    """
    names = list(known)
    buckets = {each.removeprefix(prefix): each for prefix in _BUCKETS for each in names if each.startswith(prefix)}
    meant = buckets.get(name) or next(iter(similar(name, names)), None)
    if meant is None:
        meant = next((buckets[each] for each in similar(name, buckets)), None)
    return f"Did you mean {meant}?" if meant else None


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three similar names, the most similar first; upper and lower case are the same."""
    from difflib import get_close_matches  # only after a mistake

    folded = {each.casefold(): each for each in known}
    return [folded[match] for match in get_close_matches(name.casefold()[:100], folded, cutoff=_ALIKE)]
