"""The items of an archive.

A reader yields items in this order: `StreamMeta`; then message batches (`pyarrow.RecordBatch`, see `batch.py`) and
`ArchivedConsumer`s, batches first in v1 and consumers first in v2; and from `finish()` the `ArchiveEnd`. Memory is
limited by the largest item, not by the archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from jsbackup.errors import FormatError
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.names import is_new_name
from jsbackup.server_state import MAX_SEQUENCE

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ITEM_BYTES",
    "ArchiveEnd",
    "ArchiveItem",
    "ArchiveReader",
    "IndexState",
    "LateDeletions",
    "SealedBlock",
    "StreamMeta",
    "asset_name_is_sound",
    "late_deletions",
    "refuse_too_large",
]

# The approximate size of a batch: large enough that Python's overhead does not matter, small enough to hold several,
# because each step has one, and to stay in the processor's cache.
ITEM_BYTES = 1 << 20


def refuse_too_large(last_seq: int, what: str = "") -> None:
    """Raise FormatError if a server could not have this sequence in its files; `what` begins its message."""
    if last_seq > MAX_SEQUENCE:
        raise FormatError(
            f"{what}no server can have the sequence {last_seq} in its files: they end at {MAX_SEQUENCE}",
            hint="The messages need other sequences: a restore or export with --renumber gives them new ones.",
        )


@dataclass(frozen=True, slots=True)
class StreamMeta:
    """Identifies the stream. v1 has config and `created` (RFC 3339), v2 only has the state."""

    config: JsonObject | None = None
    created: str | None = None
    state: StreamState | None = None


@dataclass(frozen=True, slots=True)
class IndexState:
    """The stream according to `index.db`, which is written after the last block was read.

    `removed` are the sequences that were yielded as messages and are deleted according to `index.db`.
    """

    version: int
    messages: int
    bytes: int
    first_seq: int
    first_ns: int
    last_seq: int
    last_ns: int
    removed: SequenceSet = field(default_factory=SequenceSet)


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """What is only known at the end of an archive.

    `messages` were yielded. `last_seq` is the highest sequence that the archive proves to have been used, by a message
    or by the trace of a deletion. `tombstoned` (v1) are the sequences that were yielded as messages although a later
    record deletes them; `index` is None if the archive has no `index.db` (v2 never has). `late_deletions` computes from
    both what to remove again.
    """

    format: Literal["v1", "v2"]
    messages: int
    last_seq: int
    tombstoned: SequenceSet = field(default_factory=SequenceSet)
    index: IndexState | None = None


ArchiveItem: TypeAlias = StreamMeta | pa.RecordBatch | ArchivedConsumer


class ArchiveReader(Protocol):
    """Decoded bytes in, items out. `feed` takes the bytes at once; items are decoded when they are requested."""

    def feed(self, data: Buffer) -> Iterator[ArchiveItem]: ...

    def finish(self) -> tuple[list[ArchiveItem], ArchiveEnd]: ...


def asset_name_is_sound(name: str) -> bool:
    """Return whether this is a valid name of a stream or consumer: part of a path, of a subject and of a hash key."""
    return is_new_name(name)


class SealedBlock(FormatError):
    """A block without a single record: it is damaged all over, or still encrypted."""


class LateDeletions(NamedTuple):
    """What a v1 archive says at its end about earlier messages.

    `certain` are deleted. `doubtful` were deleted while the snapshot ran, perhaps by a newer message that the snapshot
    does not have: removing a key's only message would lose the key. Drop one of these only if enough newer messages of
    its subject explain it.
    """

    certain: SequenceSet
    doubtful: SequenceSet


def late_deletions(end: ArchiveEnd) -> LateDeletions:
    """Return which of the yielded messages have to be removed again.

    If `index.db` ends where the blocks end, nothing arrived after the blocks were read and it is exact.
    """
    if end.index is None:
        return LateDeletions(end.tombstoned, SequenceSet())
    if end.index.last_seq <= end.last_seq:
        return LateDeletions(end.tombstoned | end.index.removed, SequenceSet())
    buried = set(end.tombstoned)
    return LateDeletions(end.tombstoned, SequenceSet(s for s in end.index.removed if s not in buried))
