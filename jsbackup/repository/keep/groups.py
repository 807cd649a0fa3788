"""Groups of backups that succeed each other: of the same source, with the same selection (`retention.py`).

Backups that show that a server has lost its streams.

Such a backup has nothing of what an earlier one of the same streams had. New ones are marked as partial when they are
made (`engine/backup/backup.py`). Those of older tools are marked as complete; here they are recognized by their
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from jsbackup.config import Glob
from jsbackup.repository.manifest import BackupResult
from jsbackup.repository.origin import origin_of
from jsbackup.repository.summary import BackupSummary

__all__ = ["FOLLOW_TAG", "Grouping", "can_replace", "group_of", "hollow_backups"]


def find_hollow(line: Iterable[BackupSummary]) -> frozenset[str]:
    """Return the ids of backups without any stream after a complete one that had messages; `line` is oldest first.

    The backups must be of one group (`retention.py`); for configurations, streams count instead of messages. The
    backups of an account that never had streams are fine, and so is one with `backup --allow-nothing`.
    """
    found: set[str] = set()
    full = False
    for backup in line:
        if backup.selection.allow_empty and not backup.streams:
            full = False
        elif backup.streams:
            something = backup.messages or backup.selection.config_only
            full = full or (bool(something) and backup.result is BackupResult.COMPLETE)
        elif full:
            found.add(backup.id)
    return frozenset(found)


# The tag of backups that `follow` made.
FOLLOW_TAG = "follow"


class Grouping(StrEnum):
    """What the backups of one group have in common."""

    SELECTION = "selection"  # the source and the selection
    SOURCE = "source"  # the source
    NONE = "none"  # nothing


def group_of(backup: BackupSummary, grouping: Grouping) -> tuple[str, ...]:
    """Return the words that name a backup's group, such as `cluster C1`, `account A`, `streams ORDERS*`."""
    words: list[str] = []
    if grouping is not Grouping.NONE:
        words += [f"import of {backup.imported}"] if backup.imported is not None else []
        words += [f"changed copies {backup.transformed}".rstrip()] if backup.transformed is not None else []
        words += [f"{what} {name}" for what, name in origin_of(backup).parts if name]
    selection = backup.selection
    if grouping is Grouping.SELECTION:
        words.append(f"streams {' '.join(selection.streams)}" if selection.streams else "all streams")
        words += [f"except {' '.join(selection.exclude)}"] if selection.exclude else []
        words += [] if selection.consumers else ["without consumers"]
    words += ["without messages"] if selection.config_only else []
    words += ["followed"] if FOLLOW_TAG in backup.tags else []
    return tuple(words) or ("all backups",)


def can_replace(one: BackupSummary, other: BackupSummary) -> bool:
    """Return whether a backup has all that the other, older one was to have: of the same source, with no fewer streams,
    and not transformed, unless the other is in the same way.
    """
    if one.imported != other.imported or one.transformed not in (None, other.transformed):
        return False
    if origin_of(one).parts != origin_of(other).parts:
        return False
    has, had = one.selection, other.selection
    if (had.consumers and not has.consumers) or (has.config_only and not had.config_only):
        return False
    if not set(has.exclude) <= set(had.exclude):
        return False
    return not has.streams or (
        bool(had.streams)
        and all(name in has.streams or (Glob(name).is_literal and has.selects(name)) for name in had.streams)
    )


def hollow_backups(backups: Iterable[BackupSummary]) -> frozenset[str]:
    """Return the ids of backups without any stream whose group (the narrowest) had some before; `backups` oldest
    first.
    """
    groups: dict[tuple[str, ...], list[BackupSummary]] = {}
    for one in backups:
        groups.setdefault(group_of(one, Grouping.SELECTION), []).append(one)
    return frozenset(backup for group in groups.values() for backup in find_hollow(group))
