"""One reading of a whole stream for a backup or a clone: what is asked before and after, and how it is read on.

A snapshot v1 reports its late deletions at its end, so its messages are counted by the caller, without those. All other
readings miss messages that are overwritten meanwhile, and are read on (`catch_up.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.read.catch_up import CaughtUp, catch_up
from jsbackup.engine.read.consume import open_reader, read_into
from jsbackup.engine.read.snapshot_acks import CaptureLimits
from jsbackup.engine.read.snapshot_transfer import Advance, Capture, Sink, capture_snapshot
from jsbackup.errors import IntegrityError
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import StreamState
from jsbackup.planning.configs.features import V2_SINCE
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count

__all__ = ["StreamReading", "state_at_end"]


@dataclass(frozen=True, slots=True)
class StreamReading:
    """A reading of the stream `name`; `advance` gets the bytes and messages of each piece."""

    js: JetStream
    name: str
    advance: Advance = ignored

    async def snapshot(
        self,
        info: StreamInfo,
        sink: Sink,
        *,
        limits: CaptureLimits,
        consumers: bool,
        check: bool = False,
        begun: Callable[[Capture], None] = ignored,
    ) -> Capture:
        """Read a snapshot into `sink`. That of an archive v2 has as many messages as the server reported.

        Raises as `capture_snapshot`, and IntegrityError if messages are missing.
        """
        capture = await capture_snapshot(
            self.js,
            self.name,
            sink,
            deleted=SequenceSet((await self.with_deleted(info)).deleted or ()),
            consumers=consumers,
            check=check,
            limits=limits,
            advance=self.advance,
            begun=begun,
        )
        assert capture.end is not None
        if capture.end.format == "v2":
            await self.check_count(capture.state, capture.messages)
        return capture

    async def messages(self, info: StreamInfo, add: Callable[[pa.RecordBatch], None]) -> int:
        """Read message by message up to the end in `info`; return the number. Raises as `read_into`."""
        return await read_into(self.js, info, add, self.advance)

    async def read_on(self, info: StreamInfo, after: int, add: Callable[[pa.RecordBatch], None]) -> CaughtUp:
        """Read on after the sequence `after`, until nothing is missing.

        Raises as `catch_up`, and NatsPermissionDenied if the user may not read single messages.
        """
        async with open_reader(self.js, info, self.advance, first=after + 1) as reader:
            return await catch_up(self.js, info, after, reader, add=add)

    async def check_count(self, then: StreamState, messages: int) -> None:
        """Check that `messages` are those of the state `then`, unless the stream has changed since."""
        if messages == then.messages:
            return
        now = (await self.js.stream(self.name)).state
        if (now.messages, now.first_seq, now.last_seq) == (then.messages, then.first_seq, then.last_seq):
            raise IntegrityError(
                f"the snapshot of {self.name} has {format_count(messages, 'message')}, the server reports "
                f"{then.messages}",
                hint="The server's own store may be damaged; look at its log and at 'nats stream info'.",
            )

    async def with_deleted(self, info: StreamInfo) -> StreamInfo:
        """Request deleted sequences before a snapshot v1, unless `info` has them: less has to be removed afterwards."""
        known = info.deleted is not None or not 0 < info.state.deleted <= MAX_DELETED
        if known or self.js.link.server_version >= V2_SINCE:
            return info
        return await self.js.stream(self.name, deleted_details=True)


def state_at_end(capture: Capture) -> StreamState:
    """Return the state that a snapshot v1 has reached: messages that arrived while it began may be in it."""
    assert capture.end is not None
    return replace(capture.state, last_seq=max(capture.state.last_seq, capture.end.last_seq))
