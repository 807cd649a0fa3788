"""Up to which moment a backup knows a stream."""

from __future__ import annotations

from jsbackup.errors import UsageError
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, Edge

__all__ = ["check_known", "known_until"]


def known_until(manifest: Manifest, stream: StreamBackup) -> int:
    """Return the moment (ns) up to which all messages are known that were there: that of its last message, or when the
    capture began. When an import was captured is not known.
    """
    last_ns = max((part.max_ns for part in parts_of(stream.segments)), default=0)
    if {"imported", "transformed"} & manifest.source.extra.keys():
        return last_ns
    return max(last_ns, parse_time(stream.captured.begun))


def check_known(manifest: Manifest, stream: StreamBackup, at: Edge | None) -> None:
    """Raise UsageError for a moment after the backup: nobody knows what came then."""
    if at is None:
        return
    if isinstance(at, AtSequence):
        end = max(stream.captured.last_seq, stream.state.last_seq)
        known, text = at.sequence <= end, f"sequence {end}"
    else:
        until_ns = known_until(manifest, stream)
        known, text = at.time_ns <= until_ns, format_time(until_ns)
    if not known:
        raise UsageError(
            f"backup {manifest.id} knows stream {stream.name} up to {text}, not at {at}",
            hint="Leave the moment out for the newest state, or name a newer backup.",
        )
