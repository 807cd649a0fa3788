"""Ids of backups: the time each began, and how people name one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from jsbackup.config import nearest
from jsbackup.errors import FormatError, UsageError

__all__ = ["LATEST", "backup_id", "begun_by", "begun_ns", "is_backup_id", "resolve_backup"]

LATEST = "latest"  # accepted in place of a backup's id
_NEWEST = ("last", "newest", "current", "recent", "now", "head")  # typed in its place
_HOW_TO_NAME = "A backup is named before streams: by its id, the start of it, or `latest`. See `jsbackup list`."
_BACKUP_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")
_SET_BACK_SECONDS = 2  # how far behind the newest backup a new one may seem to begin, and is put after it


def backup_id(created_ns: int, random: bytes, newest: str | None = None) -> str:
    """Return the id of a backup that began at this Unix time; `random` is three bytes.

    `newest` is the repository's newest so far. Ids sort by the time at which backups began, not by that of their
    commit: of two that run at once, the one begun later is the newer one, as its messages were read later. (The
    manifests' `previous` says in which order they were committed.) A backup dated far ahead stays ahead, and readers
    treat it as such.

    But if the newest began in the same second, or up to two seconds later, the new one gets the higher id, and may seem
    to have begun that much later. Then the clock was set back a little, or the numbers of that second had run out:
    `latest` should be the backup made last. Readers allow for more than two seconds (`is_dated_ahead`).
    """
    seconds, number = created_ns // 1_000_000_000, int.from_bytes(random[:3], "big")
    for later in range(seconds, seconds + _SET_BACK_SECONDS + 1):
        if newest is not None and newest.startswith(_moment(later)):
            step = int(newest[-6:], 16) + 1 + number % 1024
            seconds, number = (later, step) if step < 1 << 24 else (later + 1, number)
    return f"{_moment(seconds)}-{number:06x}"


def _moment(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%SZ}"


def begun_by(backup: str, moment_ns: int) -> bool:
    """Return whether a backup began at this Unix time or before, as its id says: to the second."""
    return backup.partition("-")[0] <= _moment(moment_ns // 1_000_000_000)


def begun_ns(backup: str) -> int:
    """Return the Unix time at which a backup began, as its id says, in nanoseconds. Raises FormatError for a text that
    is not an id.
    """
    if not is_backup_id(backup):
        raise FormatError(f"not the id of a backup: {backup[:40]!r}")
    try:
        return int(datetime.strptime(backup[:16] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()) * 1_000_000_000
    except ValueError as error:
        raise FormatError(f"not the id of a backup: {backup[:40]!r}") from error


def is_backup_id(text: str) -> bool:
    return _BACKUP_ID.fullmatch(text) is not None


def resolve_backup(text: str, backups: Iterable[str]) -> str:
    """Return the only id that starts with `text`. (`latest.py` decides what `latest` means.)

    Raises:
        UsageError: no id or several start with it.
    """
    ids = sorted(backups)
    if not ids:
        raise UsageError("the repository has no backup yet", hint="Make one with `jsbackup backup`.")
    found = [candidate for candidate in ids if text and candidate.startswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        near = f"Did you mean {LATEST}?" if text.casefold() in _NEWEST else nearest(text, [LATEST, *reversed(ids)])
        raise UsageError(f"no backup starts with {text[:80]!r}", hint=near or _HOW_TO_NAME)
    shown = ", ".join(found[:5]) + (", …" if len(found) > 5 else "")
    raise UsageError(f"{len(found)} backups start with {text[:80]!r}: {shown}", hint="Give more of the id.")
