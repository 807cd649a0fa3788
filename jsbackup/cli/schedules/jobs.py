"""What a schedule runs, and when: the same for every format.

Minutes and days follow from the profile's name, so that a hundred hosts with a hundred profiles do not use one store at
the full hour, and the same files are printed every time.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jsbackup.config import parse_duration
from jsbackup.errors import UsageError

__all__ = ["JOBS", "Credential", "Job", "Plan", "ScheduleFile", "When", "times_of"]

JOBS: Final = ("backup", "forget", "verify", "status", "drill")

_DAY_MINUTES: Final = 24 * 60
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
# Exists in every month.
_DAYS: Final = 28
_FORGET_AFTER, _VERIFY_AFTER, _DRILL_AFTER = 60, 120, 180


@dataclass(frozen=True, slots=True)
class When:
    """Minutes of hours of days: `hours` None means every hour, `day` None every day, else that day of each month."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...] | None = None
    day: int | None = None

    @property
    def cron(self) -> str:
        """Return the five fields for cron and Kubernetes."""
        hours = "*" if self.hours is None else ",".join(map(str, self.hours))
        return f"{','.join(map(str, self.minutes))} {hours} {self.day or '*'} * *"

    @property
    def calendar(self) -> str:
        """Return the time for systemd."""
        hours = "*" if self.hours is None else ",".join(f"{hour:02}" for hour in self.hours)
        day = "*" if self.day is None else f"{self.day:02}"
        return f"*-*-{day} {hours}:{','.join(f'{minute:02}' for minute in self.minutes)}:00"


@dataclass(frozen=True, slots=True)
class Credential:
    """A file with a secret or a certificate, and its option (`--creds`)."""

    option: str
    path: str

    @property
    def name(self) -> str:
        return self.option.removeprefix("--")


@dataclass(frozen=True, slots=True)
class Job:
    """One command. `arguments` are added to the profile's; `folders` must be writable, including `repo`."""

    name: str
    arguments: tuple[str, ...]
    when: When
    credentials: tuple[Credential, ...] = ()
    repo: Path | None = None
    outputs: tuple[Path, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys([*([self.repo] if self.repo else []), *self.outputs]))


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a profile in the file `config`. `program` are the words that start jsbackup.

    `variables` are the environment variables that the profile names. Construction raises UsageError for a text that
    could end a line in a file of any format.
    """

    profile: str
    config: Path
    program: tuple[str, ...]
    jobs: tuple[Job, ...]
    variables: tuple[str, ...]
    every_minutes: int

    def __post_init__(self) -> None:
        for what, text in self._texts():
            if not all(map(_is_of_a_line, text)):
                raise UsageError(
                    f"{what} has a character that no file of a schedule may hold: {text[:100]!r}",
                    hint="Line feeds, control characters and invisible ones are refused.",
                )

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Yield all untrusted texts, with descriptions."""
        yield "the name of the profile", self.profile
        yield "the path of the config file", str(self.config)
        yield from (("the path of this program", word) for word in self.program)
        yield from (("the name of a variable", name) for name in self.variables)
        for job in self.jobs:
            yield from (("an option", word) for word in job.arguments)
            yield from ((f"{credential.name} of the profile", credential.path) for credential in job.credentials)
            yield from (("repo of the profile", str(folder)) for folder in job.folders[:1] if folder == job.repo)
            yield from (("a path of the profile", str(folder)) for folder in job.folders)

    @property
    def in_s3(self) -> bool:
        return any(job.repo is None for job in self.jobs)


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    name: str
    content: str


def _is_of_a_line(letter: str) -> bool:
    """Return whether it cannot end a line or be dropped: YAML also ends lines at U+0085 and U+2028."""
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def times_of(profile: str, every: str, at: str | None) -> tuple[Mapping[str, When], int]:
    """Return when each of JOBS runs, and the minutes between backups. Raises UsageError."""
    seed = int.from_bytes(hashlib.sha256(profile.encode()).digest()[:8], "big")
    between = _minutes_between(every)
    start = 2 * 60 + seed % 60 if at is None else _minute_of_day(at)

    def daily(after: int, day: int | None = None) -> When:
        hour, minute = divmod((start + after) % _DAY_MINUTES, 60)
        return When((minute,), (hour,), day)

    backup = _every(between, start)
    return {
        "backup": backup,
        "forget": daily(_FORGET_AFTER),
        "verify": daily(_VERIFY_AFTER),
        "status": _every(between, start + between // 2 if between < _DAY_MINUTES else start + _FORGET_AFTER // 2),
        "drill": daily(_DRILL_AFTER, seed // 60 % _DAYS + 1),
    }, between


def _every(between: int, start: int) -> When:
    if between < 60:
        return When(tuple(range(start % between, 60, between)))
    hours = None if between == 60 else tuple(range(start // 60 % (between // 60), 24, between // 60))
    return When((start % 60,), hours)


def _minutes_between(every: str) -> int:
    seconds = parse_duration(every)
    minutes = int(seconds // 60)
    fits = seconds == minutes * 60 and minutes > 0
    whole = fits and (60 % minutes == 0 if minutes < 60 else minutes % 60 == 0 and _DAY_MINUTES % minutes == 0)
    if not whole:
        raise UsageError(
            f"backups cannot be made every {every}",
            hint="Choose minutes that divide an hour (5m, 10m, 15m, 30m) or hours that divide a day (1h, 6h, 1d).",
        )
    return minutes


def _minute_of_day(at: str) -> int:
    match = _TIME.fullmatch(at)
    if match is None:
        raise UsageError(f"not a time of day: {at!r}", hint="Write hours and minutes, such as 02:30.")
    return int(match[1]) * 60 + int(match[2])
