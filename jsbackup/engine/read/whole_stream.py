"""Read all messages of a live stream: from a snapshot, or message by message if none can be made or decoded."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import read_into
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.read.snapshot_attempts import SnapshotAttempts
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, Sink, capture_snapshot
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
    sinks: list[S] = []

    def new_sink() -> S:
        sinks[:] = [make_sink()]
        return sinks[0]

    async def snapshot(limits: CaptureLimits) -> Capture:
        return await capture_snapshot(
            js, info.name, new_sink(), deleted=deleted, consumers=consumers, limits=limits, advance=advance
        )

    async def messages(_limits: CaptureLimits, _unsupported: UnsupportedError) -> None:
        await read_into(js, info, new_sink().add, advance)

    attempts = SnapshotAttempts(js, info.name, CaptureLimits(), level=logging.INFO)
    capture = await attempts.run(snapshot, messages)
    return sinks[0], capture


def deleted_since(capture: Capture | None) -> SequenceSet:
    """Return the messages that a reading has although the stream may have deleted them."""
    if capture is None:
        return SequenceSet()
    assert capture.end is not None
    late = late_deletions(capture.end)
    return late.certain | late.doubtful
