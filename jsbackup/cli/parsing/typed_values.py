"""What people type, parsed or refused with a sentence: amounts, times, tags, origins, the end of a lock.

Amounts (numbers, durations, sizes) are checked before the command begins, and an error names the option.

Times as people write them are `14:02`, `yesterday 14:02`, `2026-11-22`, `2026-11-22 14:02`, `2h ago`, `now`: those of
this machine's clock and zone. A date without a time is its first moment. What was understood is said, in RFC 3339 with
the offset. A time of today that is still to come is refused: yesterday's may be meant. So is one in an hour that the
clocks skip or have twice, and any where TZ names a zone that the system does not know, which it would take for UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from jsbackup.config import Glob, environment, parse_duration, parse_size, parse_typed_time
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule

__all__ = [
    "AMOUNTS",
    "NOTES",
    "Choosing",
    "Percentage",
    "WholeNumber",
    "as_rfc3339",
    "check_amounts",
    "parse_choosing",
    "parse_lock_end",
    "parse_origin",
    "parse_tag_rule",
    "parse_tags",
    "understand_time",
]


# In `meta` of a context: notes printed before the command runs, such as the interpretation of a time.
NOTES = "jsbackup.notes"
_TYPED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class Choosing:
    """The values of `--origin` and `--tag`; `given` if the command has them."""

    origins: tuple[Glob, ...] = ()
    tags: tuple[TagRule, ...] = ()
    given: bool = False


def parse_choosing(origins: Sequence[str], tags: Sequence[str], backups: Sequence[str | None] = ()) -> Choosing:
    """Parse the options. Raises UsageError for invalid ones, and if all `backups` that the command names are ids."""
    ids = [text for text in backups if text not in (None, "", "latest", "live")]
    if ids and "latest" not in backups and (origins or tags):
        raise UsageError(
            f"--{'origin' if origins else 'tag'} chooses what `latest` means, and {ids[0]} is an id",
            hint="Leave one of them out.",
        )
    return Choosing(tuple(map(parse_origin, origins)), tuple(map(parse_tag_rule, tags)), given=True)


def parse_tags(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse `K=V` texts to a mapping. Raises UsageError for anything else."""
    tags = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"not a tag: {text!r}", hint="Write it as KEY=VALUE.")
        tags[key] = value
    return tags


def parse_lock_end(text: str) -> tuple[float | None, float | None]:
    """Parse a time to seconds since the epoch, or a duration to seconds. Raises UsageError for anything else."""
    if text[:4].isdecimal() and "-" in text:
        return parse_typed_time(text) / 10**9, None
    return None, parse_duration(text)


def parse_origin(text: str) -> Glob:
    """Parse a cluster, an account, a domain, or a pattern of them. Raises UsageError."""
    if not text.strip() or not text.isprintable():
        raise UsageError(
            f"no cluster, account or domain can be named {text!r}", hint="See 'jsbackup list' for those there are."
        )
    return Glob(text)


def parse_tag_rule(text: str) -> TagRule:
    """Parse `KEY` or `KEY=VALUE` to a rule. Raises UsageError for anything else."""
    from jsbackup.repository.keep.retention import TagRule

    key, equals, value = text.partition("=")
    if not key:
        raise UsageError(f"not a tag: {text!r}", hint="Write it as KEY or as KEY=VALUE.")
    return TagRule(key, value if equals else None)


# Options that are any text for click, by their metavar.
AMOUNTS: Final[Mapping[str, Callable[[str], object]]] = {
    "DURATION": parse_duration,
    "BYTES": parse_size,
    "SIZE": parse_size,
    "DURATION|TIME": parse_lock_end,
}


class WholeNumber(click.IntRange):
    """A whole number from `low` to `high`, or of any size."""

    name = "whole number"

    def __init__(self, low: int, high: int | None = None) -> None:
        super().__init__(low, high)

    def _describe_range(self) -> str:
        return f"{self.min} or more" if self.max is None else f"{self.min} to {self.max}"


class Percentage(click.FloatRange):
    """A number above 0, up to 100."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(0, 100, min_open=True)

    def _describe_range(self) -> str:
        return "above 0, up to 100"


def check_amounts(ctx: click.Context) -> None:
    """Raise UsageError for an option of this context that is not such an amount. Profiles check theirs."""
    if ctx.resilient_parsing:
        return
    for param in ctx.command.params:
        name = str(param.name)
        parse, value = AMOUNTS.get(param.metavar or ""), ctx.params.get(name)
        if parse is None or not isinstance(value, str) or ctx.get_parameter_source(name) not in _TYPED:
            continue
        try:
            parse(value)
        except UsageError as error:
            raise error.with_message(f"{param.opts[0]}: {error.message}") from None


_TIME = r"\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_TEXT = re.compile(
    rf"(?P<day>today|yesterday|\d{{4}}-\d\d-\d\d)(?:[ T](?P<at>{_TIME}))?|(?P<time>{_TIME})", re.ASCII | re.IGNORECASE
)
# A zone by its rule, as in `CET-1CEST` (POSIX).
_RULE = re.compile(r"(?:<[^>]+>|[A-Za-z]{3,})[+-]?\d")
_DATE = re.compile(r"\d{4}-", re.ASCII)
_HINT = (
    "Give a time such as 14:02, 'yesterday 14:02', '2026-11-21 14:02' or 2026-11-21T14:02:00Z, a duration before now "
    "such as 24h, or a sequence."
)
_ALWAYS_KNOWN = ("UTC", "GMT")
_AGO = re.compile(r"(.+?)\s+ago", re.IGNORECASE)
_UNIT = re.compile(r"\s*(second|minute|hour|day|week)s?\b\s*", re.IGNORECASE)


def understand_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of an option, for the command, and a note of what it was taken for. Raises UsageError."""
    if value is None:
        return None
    now = datetime.now().astimezone()
    try:
        understood = as_rfc3339(value, now)
    except UsageError as error:
        raise UsageError(f"{param.opts[0]}: {error.message}", hint=error.hint) from None
    if meaning := understood or _meaning(param.opts[0], value.strip(), now):
        ctx.meta.setdefault(NOTES, []).append(f"{param.opts[0]} {value} is {meaning}")
    return understood or value


def _meaning(option: str, text: str, now: datetime) -> str:
    """What a sequence or a duration means, in words; "" for a time in RFC 3339, which says it itself.

    Raises UsageError for other texts.
    """
    try:
        if _DATE.match(text):
            parse_typed_time(text)
            return ""
        if text.isdecimal():
            return f"sequence {int(text):,} of each stream"
        parse_duration(text, "a time, a duration or a sequence")
    except UsageError as error:
        raise UsageError(f"{option}: {error.message[:200]}", hint=_HINT) from None
    try:
        return _before(now, text)
    except UsageError:
        return ""


def _before(now: datetime, duration: str) -> str:
    try:
        return (now - timedelta(seconds=parse_duration(duration))).isoformat(timespec="seconds")
    except OverflowError:
        raise UsageError(f"there was no time {duration} ago") from None


def as_rfc3339(text: str, now: datetime) -> str | None:
    """The moment that such a text means; None if it is of no such form.

    `now` has a zone. Raises UsageError for a day or a time that does not exist, exists twice, or is to come today.
    """
    text = " ".join(text.split())
    if text.lower() == "now":
        return now.isoformat(timespec="microseconds")
    if (ago := _AGO.fullmatch(text)) is not None:
        return _before(now, _UNIT.sub(lambda unit: unit[1][0].lower(), ago[1]))
    match = _TEXT.fullmatch(text)
    if match is None or not text:
        return None
    try:
        hour, _, rest = (match["at"] or match["time"] or "0:00").partition(":")
        at = time.fromisoformat(f"{hour:0>2}:{rest}")
        day = _day_of(match["day"], now)
    except ValueError as error:
        raise UsageError(f"no such time: {text!r} ({error})", hint="Write it as 2026-11-21 14:02.") from None
    _check_zone(environment().get("TZ", ""))
    # By the rules of the zone, as they are on that day.
    moment, other = (datetime.combine(day, at).replace(fold=fold).astimezone() for fold in (0, 1))
    if moment != other:
        raise UsageError(
            f"{text!r} is in an hour that the clocks skip, or have twice",
            hint=f"Write {moment.isoformat()} or {other.isoformat()}.",
        )
    if match["day"] is None and moment > now:
        raise UsageError(
            f"{text} is still to come today, {now:%H:%M} now", hint=f"Write 'yesterday {text}', or the date before it."
        )
    return moment.isoformat()


def _check_zone(name: str) -> None:
    """Raises UsageError for a TZ that the C library does not know: it takes such a one for UTC (tzset(3))."""
    name = name.removeprefix(":")
    if not name or name in _ALWAYS_KNOWN or _RULE.match(name) or Path(name).is_absolute():
        return
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(
            f"TZ is {name!r}, and this system has no such time zone",
            hint="Correct it, or write the time with an offset.",
        ) from None


def _day_of(text: str | None, now: datetime) -> date:
    if text is None or text.lower() == "today":
        return now.date()
    return now.date() - timedelta(days=1) if text.lower() == "yesterday" else date.fromisoformat(text)
