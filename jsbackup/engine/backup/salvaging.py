"""Store what can be read of a stream that the server cannot read as a whole (`engine/read/salvage/salvage.py`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jsbackup.engine.backup.stored import Stored
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.increment import Incremental, Whole
from jsbackup.engine.read.join import take_increment
from jsbackup.engine.read.salvage.damage import is_salvageable
from jsbackup.engine.read.salvage.salvage import SalvageRun
from jsbackup.errors import JsBackupError
from jsbackup.repository.manifest import ArchiveFormat, ReadAs, Reading, SegmentRef
from jsbackup.repository.segments import SegmentReader

if TYPE_CHECKING:
    from jsbackup.engine.backup.stream_capture import StreamCapture

__all__ = ["salvage"]

_log = logging.getLogger(__name__)


async def salvage(capture: StreamCapture, why: str) -> Stored:
    """Store what can be read of a stream; `why` says what is wrong with it.

    What the last backup has need not be read again, so that this may be everything. Raises NatsError and StoreError.
    """
    _log.warning("stream %s: %s; reading what can be read", capture.name, why)
    info = await capture.js.stream(capture.name)
    capture.progress.start(capture.name, info.state.bytes, info.state.messages)
    earlier: Sequence[SegmentRef] = ()
    if capture.previous is not None and capture.previous.created == info.created:
        earlier = await capture.still_stored(capture.previous.segments)
        if (stored := await _increment(capture, earlier, why)) is not None:
            return stored
    found = await SalvageRun(
        capture.js,
        capture.name,
        capture.new_writer,
        SegmentReader(capture.objects),
        await capture.reusable(),
        earlier,
        capture.options.consumers,
        capture.options.limits,
        capture.advance,
    ).run()
    return Stored(
        found.archive_format,
        found.state,
        Reading(ReadAs.MESSAGES, why),
        found.config,
        archived=found.archived,
        segments=tuple(found.segments),
        reused=found.reused,
        stored_bytes=capture.stored_bytes,
        warnings=(why, *found.flaws, *found.notes),
    ).with_lost(found.lost)


async def _increment(capture: StreamCapture, earlier: Sequence[SegmentRef], why: str) -> Stored | None:
    """Read only what is new, if all that the server cannot read is in the last backup; None if it is not."""
    assert capture.previous is not None
    try:
        joined = await take_increment(
            capture.js,
            Incremental.ALWAYS,
            capture.previous,
            earlier,
            new_writer=lambda: capture.new_writer(earlier),
            start=lambda _bytes, _messages: None,
            advance=capture.advance,
            consumers=capture.options.consumers,
        )
    except JsBackupError as error:
        if not is_salvageable(error):
            raise
        return None
    if isinstance(joined, Whole):
        return None
    return Stored(
        ArchiveFormat.MESSAGES,
        joined.info.state,
        Reading(ReadAs.INCREMENT, f"{why}; {joined.why}"),
        joined.info.config,
        joined.consumers,
        segments=await in_thread(capture.paged, joined.segments),
        reused=joined.reused,
        stored_bytes=capture.stored_bytes,
        warnings=(why, "what was stored before the last backup is taken from that"),
    )
