"""What key a bucket had at a moment, judged by what backups have. Pure.

A backup has the messages that were there when it was made. So each of them was there at any moment since it was
stored, and no time to live needs to be computed. But one that was there at the moment may be gone since: pushed out by
newer ones (`max_msgs_per_subject`), purged, expired, or deleted. All that is left of it is a missing sequence. So

- a key without a revision up to the moment did not exist only if no sequence up to the moment is missing;
- the last revision up to the moment was the value if no later one can be gone: if none is missing after it; or if the
  server removes the oldest of a key first (no TTLs of messages, no single message deleted); or if the key has as many
  revisions as its bucket keeps, because one more would have pushed out the oldest.

If a backup from before the moment is known too, and the later one has all messages that came in between, then the state
is that of the earlier backup with these messages applied.

A bucket whose `max_msgs_per_subject` was lowered after a value with a TTL had expired is judged by the lower number:
nothing in it tells of the other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from jsbackup.look.buckets.key_states import KeyRecord, KeyState
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.transforms.filters.key_marker import KeyOperation

__all__ = ["Continued", "KeyVerdict", "Removals", "Unknown", "state_since", "state_then"]


class Unknown(Enum):
    """It cannot be said."""

    UNKNOWN = "unknown"


KeyVerdict: TypeAlias = KeyState | Unknown | None
"""The revision that the key had, a value or a marker; None if it had none."""


@dataclass(frozen=True, slots=True)
class Removals:
    """How the messages of a bucket may have been removed.

    `history` is the number of revisions of a key above which the oldest goes, 0 if there is no limit, or messages come
    from another stream (`copied`). `oldest_first`: of each key the oldest went first. `max_age_ns` is 0 without one.
    `by_size`: the oldest of the stream went where it had too many.
    """

    history: int
    oldest_first: bool
    max_age_ns: int
    by_size: bool
    copied: bool

    @classmethod
    def of(cls, manifest: Manifest, stream: StreamBackup) -> Removals:
        config = stream.config

        def limit(name: str) -> int:
            value = config.get(name)
            return value if isinstance(value, int) and value > 0 else 0

        copied = bool(config.get("mirror") or config.get("sources") or "transformed" in manifest.source.extra)
        by_ttl, by_hand = bool(config.get("allow_msg_ttl")), not config.get("deny_delete")
        by_readers = config.get("retention", "limits") != "limits"
        return cls(
            history=0 if copied else limit("max_msgs_per_subject"),
            oldest_first=not (copied or by_ttl or by_hand or by_readers),
            max_age_ns=limit("max_age"),
            by_size=config.get("discard") != "new" and bool(limit("max_msgs") or limit("max_bytes")),
            copied=copied,
        )


def state_then(record: KeyRecord, removals: Removals, last_gap: int) -> KeyVerdict:
    """Return the state of a key by one backup, of which `last_gap` is the last missing sequence up to the moment."""
    last = record.last
    if last is None:
        return Unknown.UNKNOWN if last_gap else None
    if last.revision > last_gap or removals.oldest_first or 0 < removals.history <= record.count:
        return last
    return Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class Continued:
    """That a later backup has all that was written from an earlier one up to the moment, which is at `moment_ns`, or
    earlier. `first_seq` is the first sequence that the later backup has.
    """

    moment_ns: int
    first_seq: int


def state_since(
    record: KeyRecord, removals: Removals, last_gap: int, *, base: KeyState | None, earlier: Continued | None
) -> KeyVerdict:
    """Return the state of a key that had the state `base` when an earlier backup was made; the rest is by the later."""
    found = state_then(record, removals, last_gap)
    if found is not Unknown.UNKNOWN or earlier is None:
        return found
    # The later backup has all that came in between, and none of it is of this key.
    if base is None or base.operation is not KeyOperation.PUT or base == record.last:
        return base
    # It is gone since. That must have come after the moment.
    pushed_out = 0 < removals.history <= record.later
    purged = record.first_later is not None and record.first_later.operation is KeyOperation.PURGE
    too_old = base.expires or 0 < removals.max_age_ns <= earlier.moment_ns - base.timestamp_ns
    dropped = removals.by_size and base.revision < earlier.first_seq
    return base if (pushed_out or purged) and not (too_old or dropped) else Unknown.UNKNOWN
