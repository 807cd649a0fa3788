"""The messages of a stream in a backup."""

from __future__ import annotations

from collections.abc import Iterator

from jsbackup.config import nearest
from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.look.message import LookedUp, messages_in
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import matching
from jsbackup.repository.manifest import ArchiveFormat, Manifest, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.losses import refuse_unlisted
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = ["find_stream", "first_of_last", "last_messages", "message_at", "messages_of", "with_messages"]


def find_stream(manifest: Manifest, name: str) -> StreamBackup:
    """Return the stream with this name.

    Raises:
        UsageError: the backup has none.
        IntegrityError: it is perhaps one of those that cannot be listed.
    """
    for stream in manifest.streams:
        if stream.name == name:
            return stream
    refuse_unlisted(manifest, name)
    reason = next((one.reason for one in manifest.skipped if one.name == name), "")
    raise UsageError(
        f"backup {manifest.id} has no stream {name}" + (f": {reason}" if reason else ""),
        hint=nearest(name, sorted(stream.name for stream in manifest.streams))
        or f"See 'jsbackup show {manifest.id}' for the streams it has.",
    )


def with_messages(manifest: Manifest, stream: StreamBackup) -> StreamBackup:
    """Return the stream if its messages can be read.

    Raises:
        UsageError: the backup has only its configuration.
        UnsupportedError: it is in an archive format that is not known here.
    """
    if stream.archive_format is ArchiveFormat.CONFIG:
        raise UsageError(f"backup {manifest.id} has only the configuration of stream {stream.name}, no messages")
    if unknown := stream.unknown_format:
        raise UnsupportedError(unknown)
    return stream


def messages_of(objects: Objects, stream: StreamBackup, wanted: MessageFilter) -> Iterator[LookedUp]:
    """Yield the wanted messages, in rising sequence. Raises as `matching`."""
    for batch in matching(objects, stream.segments, wanted):
        yield from messages_in(batch)


def first_of_last(objects: Objects, stream: StreamBackup, wanted: MessageFilter, count: int) -> int:
    """Return the sequence of the first of the last `count` wanted messages, 0 without any. Raises as `matching`."""
    first = 0
    for batch in matching(objects, stream.segments, wanted, newest_first=True):
        first = batch.column("sequence")[max(batch.num_rows - count, 0)].as_py()
        count -= batch.num_rows
        if count <= 0:
            break
    return first


def last_messages(objects: Objects, stream: StreamBackup, wanted: MessageFilter) -> Iterator[LookedUp]:
    """Yield the wanted messages, the last one first. Raises as `matching`."""
    for batch in matching(objects, stream.segments, wanted, newest_first=True):
        yield from messages_in(batch, newest_first=True)


def message_at(objects: Objects, manifest: Manifest, stream: StreamBackup, sequence: int) -> LookedUp:
    """Return one message. Raises JsBackupError if the backup does not have it, and as `matching`."""
    at = AtSequence(sequence)
    for message in messages_of(objects, stream, MessageFilter(Cut(at, at))):
        return message
    captured = stream.captured
    if not captured.messages:
        there = "it has no messages"
    elif captured.first_seq < sequence < captured.last_seq:
        there = "it was deleted before the backup"
    else:
        there = f"it has {captured.first_seq} to {captured.last_seq}"
    raise JsBackupError(f"stream {stream.name} has no message {sequence} in backup {manifest.id}: {there}")
