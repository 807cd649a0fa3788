"""What a server says of a followed stream at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.protocol.paging import Listing

__all__ = ["Look"]


@dataclass(frozen=True, slots=True)
class Look:
    """A stream as its server describes it. `consumers` is None if they are not backed up, or are `silent`."""

    info: StreamInfo
    consumers: Listing[ConsumerInfo] | None
    at_ns: int
    silent: bool = False
