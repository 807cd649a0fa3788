"""The messages of one stream as they were stored, with what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.protocol.info import ConsumerInfo
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import ArchiveFormat, Losses, OpaqueRef, Reading, SegmentRef
from jsbackup.repository.read.losses import describe_losses

__all__ = ["Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a capture. `config` and `state` are as reported; the state is advanced to what was proved.

    `inventory` has the consumers that belong to the state, None if they are requested afterwards. `goes_back`: it gives
    sequences again that the last backup has.
    """

    archive_format: ArchiveFormat
    state: StreamState
    read: Reading | None = None
    config: JsonObject | None = None
    inventory: Listing[ConsumerInfo] | None = None
    archived: tuple[ArchivedConsumer, ...] = ()
    segments: Sequence[SegmentRef] = ()
    opaque: tuple[OpaqueRef, ...] = ()
    reused: int = 0
    stored_bytes: int = 0
    warnings: tuple[str, ...] = ()
    incomplete: bool = False  # something is missing; the warnings say what
    lost: Losses = field(default_factory=Losses)
    created: str = ""  # of the stream that was read (RFC 3339 as the server writes it)
    goes_back: bool = False

    def with_lost(self, lost: Losses) -> Stored:
        """Return it without what the server has lost."""
        if not lost:
            return self
        return replace(self, warnings=(*self.warnings, *describe_losses(lost)), incomplete=True, lost=lost)
