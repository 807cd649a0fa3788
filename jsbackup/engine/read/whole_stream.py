"""Read all messages of a live stream: from a snapshot, or message by message if none can be made or decoded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import read_into
from jsbackup.engine.read.snapshot_attempts import REPEATABLE, SnapshotAttempts
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, CaptureLimits, Sink, capture_snapshot
from jsbackup.errors import UnsupportedError
from jsbackup.formats.archive.archive import late_deletions
from jsbackup.formats.sequences import SequenceSet
from jsbackup.protocol.info import StreamInfo

__all__ = ["deleted_since", "read_whole"]

S = TypeVar("S", bound=Sink)


async def read_whole(
    js: JetStream,
    info: StreamInfo,
    make_sink: Callable[[], S],
    *,
    deleted: SequenceSet,
    advance: Advance,
    consumers: bool = False,
) -> tuple[S, Capture | None]:
    """Read the stream into a new sink for each attempt; return the last sink, and the snapshot, if it was one.

    A snapshot may have messages that are deleted meanwhile, except those of `deleted`: see `deleted_since`. Message by
    message it is read up to its end in `info`. Raises as `capture_snapshot` and `read_into`.
    """
    attempts = SnapshotAttempts(info.name, CaptureLimits(), level=logging.INFO)
    while True:
        sink = make_sink()
        try:
            capture = await capture_snapshot(
                js,
                info.name,
                sink,
                deleted=deleted,
                consumers=consumers,
                limits=attempts.limits,
                advance=advance,
            )
        except UnsupportedError:
            sink = make_sink()
            await read_into(js, info, sink.add, advance)
            return sink, None
        except REPEATABLE as error:
            await attempts.next(error)
        else:
            return sink, capture


def deleted_since(capture: Capture | None) -> SequenceSet:
    """Return the messages that a reading has although the stream may have deleted them."""
    if capture is None:
        return SequenceSet()
    assert capture.end is not None
    late = late_deletions(capture.end)
    return late.certain | late.doubtful
