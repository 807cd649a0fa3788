"""Which streams of a large account have not changed since their last backup, by the server's list of streams alone.

A backup asks the server for all streams, a few hundred in one answer. Where there are thousands, asking again for each
of them would take longer than all else. So a stream is taken as it was in its last backup if the list shows that
nothing has changed: the same stream, with the same messages, bytes and ends (as in `read/increment.py`). Its
configuration is that of the list.

What a list does not show is asked for: the positions of consumers, deleted sequences. And a stream that copies from
another one, or that others copy from, is read in its turn (`read/downstream.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace

from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.read.downstream import with_relatives
from jsbackup.engine.read.increment import AT_REST, Incremental, has_same_ends
from jsbackup.model import StreamState
from jsbackup.planning.interrupted import about_leftover
from jsbackup.protocol.info import StreamInfo, stored_config
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.times import format_time

__all__ = ["find_unchanged", "has_many"]

# Measured: asking for this many streams, some at a time, takes a fifth of a second.
_MANY = 64


def has_many(streams: Sized) -> bool:
    """Return whether these are so many streams that the server and the store are not asked for each of them."""
    return len(streams) > _MANY


def find_unchanged(
    run: BackupRun, streams: Sequence[StreamInfo], earlier: Mapping[str, StreamBackup], asked_ns: tuple[int, int]
) -> dict[str, StoredStream]:
    """Return by name the streams that have not changed since their backup in `earlier`; none if the account is small.

    `asked_ns` is when the list was asked for and had been answered, in Unix time.
    """
    options = run.options
    if not has_many(streams) or options.config_only or options.check or options.incremental is Incremental.NEVER:
        return {}
    begun, ended = map(format_time, asked_ns)
    found = {}
    related = with_relatives(streams)
    for info in streams:
        before = earlier.get(info.name)
        if info.name in related or before is None or not _is_unchanged(info, before, with_consumers=options.consumers):
            continue
        if run.repository.objects.damaged_in(run.repository.objects.sealing.folder(info.name, before.incarnation)):
            continue
        stream = replace(
            before,
            config=stored_config(info.config),
            state=info.state,
            captured=before.captured.again(begun, ended),
            archive_format=ArchiveFormat.MESSAGES,
            consumers=(),  # it had none, or none are asked for
            read=AT_REST,
        )
        found[info.name] = StoredStream(stream, len(stream.segments))
    return found


def _is_unchanged(info: StreamInfo, before: StreamBackup, *, with_consumers: bool) -> bool:
    state = info.state
    return (
        info.created == before.created
        and before.archive_format not in (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE)
        and not (info.lost or state.deleted or before.warnings or before.copied)
        and not (with_consumers and (state.consumers or before.consumers))
        and not about_leftover(info.config)
        and (has_same_ends(before, state) or _is_as_empty(before, state))
    )


def _is_as_empty(before: StreamBackup, state: StreamState) -> bool:
    return not (before.captured.messages or state.messages) and before.state == state
