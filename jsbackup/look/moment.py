"""Up to which moment a backup knows a stream."""

from __future__ import annotations

from jsbackup.errors import UsageError
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, Edge

__all__ = ["check_known", "end_of", "is_known", "known_until", "option_text"]


def end_of(stream: StreamBackup) -> int:
    """Return the last sequence that the stream had given, also if that message was removed."""
    return stream.last_seq


def known_until(manifest: Manifest, stream: StreamBackup) -> int:
    """Return the moment (ns) up to which all messages are known that were there: that of its last message, or when the
    capture began. When an import was captured is not known.
    """
    last_ns = max((part.max_ns for part in parts_of(stream.segments)), default=0)
    if {"imported", "transformed"} & manifest.source.extra.keys():
        return last_ns
    return max(last_ns, parse_time(stream.captured.begun))


def is_known(manifest: Manifest, stream: StreamBackup, at: Edge) -> bool:
    """Return whether all messages up to the moment are known that were there when the backup was made."""
    if isinstance(at, AtSequence):
        return at.sequence <= end_of(stream)
    return at.time_ns <= known_until(manifest, stream)


def check_known(manifest: Manifest, stream: StreamBackup, at: Edge | None) -> None:
    """Raise UsageError for a moment after the backup: it is not known what came then."""
    if at is not None and not is_known(manifest, stream, at):
        is_sequence = isinstance(at, AtSequence)
        text = f"sequence {end_of(stream)}" if is_sequence else format_time(known_until(manifest, stream))
        raise UsageError(
            f"backup {manifest.id} has stream {stream.name} only up to {text}, not at {at}",
            hint="Leave the moment out for the newest state, or name a newer backup.",
        )


def option_text(at: Edge) -> str:
    """Return the moment as `--at` takes it."""
    return str(at.sequence) if isinstance(at, AtSequence) else str(at)
