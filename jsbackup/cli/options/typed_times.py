"""Times as people write them: `14:02`, `yesterday 14:02`, `2026-11-22`, `2026-11-22 14:02`, `2h ago`, `now`.

They are those of this machine's clock and zone. A date without a time is its first moment. What was understood is said,
in RFC 3339 with the offset. A time of today that is still to come is refused: yesterday's may be meant.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

import click

from jsbackup.cli.options.context import NOTES
from jsbackup.errors import UsageError

__all__ = ["as_rfc3339", "understand_time"]

_TIME = r"\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_TEXT = re.compile(
    rf"(?P<day>today|yesterday|\d{{4}}-\d\d-\d\d)(?:[ T](?P<at>{_TIME}))?|(?P<time>{_TIME})", re.ASCII | re.IGNORECASE
)
_AGO = re.compile(r"(\S+)\s+ago", re.IGNORECASE)


def understand_time(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value of an option, for the command, and a note of what it was taken for. Raises UsageError."""
    if value is None:
        return None
    try:
        understood = as_rfc3339(value, datetime.now().astimezone())
    except UsageError as error:
        raise UsageError(f"{param.opts[0]}: {error.message}", hint=error.hint) from None
    if understood is None:
        return value
    ctx.meta.setdefault(NOTES, []).append(f"{param.opts[0]} {value} is {understood}")
    return understood


def as_rfc3339(text: str, now: datetime) -> str | None:
    """The moment that such a text means; None if it is of no such form. `2h ago` becomes `2h`, which all options take.

    `now` has a zone. Raises UsageError where no such day or time is, or where today's is still to come.
    """
    text = " ".join(text.split())
    if text.lower() == "now":
        return now.isoformat(timespec="microseconds")
    if (ago := _AGO.fullmatch(text)) is not None:
        return ago[1]
    match = _TEXT.fullmatch(text)
    if match is None or not text:
        return None
    try:
        at = _time_of(match["at"] or match["time"] or "0:00")
        day = _day_of(match["day"], now)
    except ValueError as error:
        raise UsageError(f"no such time: {text!r} ({error})", hint="Write it as 2026-11-21 14:02.") from None
    local = datetime.combine(day, at)
    moment = local.astimezone()  # by the rules of the zone, as they are on that day
    if moment.astimezone(UTC).astimezone().replace(tzinfo=None) != local:
        raise UsageError(f"no such time: {text!r} (the clocks were put forward)", hint="Write one before, or after.")
    if match["day"] is None and moment > now:
        raise UsageError(
            f"{text} is still to come today, {now:%H:%M} now", hint=f"Write 'yesterday {text}', or the date before it."
        )
    return moment.isoformat()


def _time_of(text: str) -> time:
    hour, _, rest = text.partition(":")
    return time.fromisoformat(f"{hour:0>2}:{rest}")


def _day_of(text: str | None, now: datetime) -> date:
    if text is None or text.lower() == "today":
        return now.date()
    return now.date() - timedelta(days=1) if text.lower() == "yesterday" else date.fromisoformat(text)
