"""Decide whether an error of a snapshot means that the server's store is damaged, and list what a server has lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from jsbackup.errors import (
    ApiError,
    IntegrityError,
    JsBackupError,
    NatsTimeout,
    SnapshotBusy,
    TransferError,
)
from jsbackup.formats.sequences import ranges_of
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.responses import ErrCode
from jsbackup.repository.manifest import Losses, LostSpan, SegmentRef

__all__ = ["DAMAGE_HINT", "REPORTED", "Ranges", "is_damage", "is_salvageable", "reported_losses", "spans_of"]

DAMAGE_HINT = (
    "If the server's files of the stream are damaged, copy them before anything else, then see 'jsbackup help salvage'."
)
REPORTED = "the server reports that it lost them"
_FAILED = 500  # the status by which a server ends a snapshot that it cannot make
_MOST_SPANS = 10_000

Ranges = list[tuple[int, int]]


def is_salvageable(error: JsBackupError) -> bool:
    """Return whether this error of a snapshot may come from a damaged store."""
    if isinstance(error, ApiError):
        return error.err_code == ErrCode.SNAPSHOT_FAILED
    return isinstance(error, (TransferError, NatsTimeout, IntegrityError))


def is_damage(error: JsBackupError) -> bool:
    """Return whether this error of a snapshot most likely comes from a damaged store, not from the connection."""
    if isinstance(error, TransferError):
        return f"status {_FAILED}" in error.message
    return is_salvageable(error) and not isinstance(error, (NatsTimeout, SnapshotBusy))


def reported_losses(info: StreamInfo, found: Iterable[SegmentRef]) -> Losses:
    """Return what a server reports to have lost; nothing of a segment that it was found in."""
    covered = [(ref.first_seq, ref.last_seq) for ref in found if ref.dense]
    lost = (one for one in info.lost_sequences if not any(first <= one <= last for first, last in covered))
    return Losses(tuple(spans_of(ranges_of(lost), lambda _: REPORTED)))


def spans_of(ranges: Ranges, why: Callable[[int], str]) -> Iterator[LostSpan]:
    """Yield the ranges as spans; one in place of all if they are too many."""
    if len(ranges) > _MOST_SPANS:
        count = sum(last - first + 1 for first, last in ranges)
        yield LostSpan(ranges[0][0], ranges[-1][1], count, True, why(ranges[0][0]))
        return
    for first, last in ranges:
        yield LostSpan(first, last, last - first + 1, True, why(first))
