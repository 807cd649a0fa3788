"""Samples of payloads, read on the driver: to infer a schema, and to see whether a given one is theirs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from jsbackup.errors import JsBackupError
from jsbackup.pipeline.payloads.parsing import PayloadParser
from jsbackup.pipeline.payloads.payload_tally import PayloadTally, why_missed
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.columns import read_columns

__all__ = ["DECIDING", "ReadSegment", "SampleSize", "sampled_payloads", "sampled_tally", "stored", "warn_if_missed"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

ReadSegment = Callable[[StreamBackup, SegmentRef], Iterable[pa.RecordBatch]]
"""Reads the messages of a segment of a stream, at least the column `data`."""


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many messages a sample has at most, and from how many segments."""

    messages: int
    segments: int


# To look whether a schema fits: it is read each time that a query is run or a DataFrame is made.
_LOOK: Final = SampleSize(messages=100, segments=3)
# A sample that decides: none of so many payloads fits.
DECIDING: Final = SampleSize(messages=1000, segments=20)
_LOOK_BYTES: Final = 4 << 20


def stored(objects: Objects) -> ReadSegment:
    """Return what reads the messages that are stored."""
    return lambda _stream, ref: read_columns(objects, ref, {"data"})


def sampled_payloads(streams: Sequence[StreamBackup], read: ReadSegment, most: SampleSize) -> Iterator[bytes]:
    """Yield payloads that are spread over the streams, and over each of them, without empty ones."""
    looked_at = _spread([stream for stream in streams if stream.segments], most.segments)
    refs = [(one, ref) for one in looked_at for ref in _spread(one.segments, most.segments // len(looked_at))]
    for stream, ref in refs:
        column = pa.chunked_array([batch.column("data") for batch in read(stream, ref)], pa.binary())
        for row in _spread(range(len(column)), most.messages // len(refs)):
            if payload := column[row].as_py():
                yield payload


def sampled_tally(
    streams: Sequence[StreamBackup], parser: PayloadParser, read: ReadSegment, most: SampleSize = _LOOK
) -> PayloadTally:
    """Return the counts of a sample of at most 4 MiB; nothing if it cannot be read: what reads all of it says why."""
    tally, size = PayloadTally(), 0
    found: list[bytes] = []
    try:
        for payload in sampled_payloads(streams, read, most):
            size += len(payload)
            if found and size > _LOOK_BYTES:
                break
            found.append(payload)
    except JsBackupError:
        return tally
    parser.parse(pa.array(found, pa.binary()), tally)
    return tally


def warn_if_missed(objects: Objects, streams: Sequence[StreamBackup], parser: PayloadParser) -> None:
    """Log a warning if a schema is not that of a sample of these streams."""
    tally = sampled_tally(streams, parser, stored(objects))
    if tally.missed:
        _log.warning("payloads: %s; select _corrupt_record and data to see them", why_missed(tally, "", "sampled "))


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """Return up to `most` of the items at even distances, the last one among them."""
    if len(items) <= most:
        return items
    return [items[(number + 1) * len(items) // most - 1] for number in range(most)]
