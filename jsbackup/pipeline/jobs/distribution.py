"""The distribution of messages over time and sizes, and the largest messages.

They are some hundred numbers for each stream, which add up. Time is divided into buckets of one of `WIDTHS_NS`, the
same for a whole stream, which begin at multiples of it since 1970; sizes into classes from one power of two to the
next. The width depends on the bounds in the manifest. A message outside of them is counted at the nearer end, so that
the number of buckets is limited.

Sizes are raw bytes (`formats/digest.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.formats.digest import MessageBatch, encode_rows
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.pages.segment_list import parts_of

__all__ = [
    "WIDTHS_NS",
    "Distribution",
    "LargeMessage",
    "MessageTally",
    "SizeClass",
    "TimeBin",
    "TimeScale",
    "raw_sizes",
    "scale_of",
    "scales_of",
]

_SECOND, _DAY = 10**9, 86_400 * 10**9
_WITHIN_A_DAY = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAYS = (1, 7, 30, 365, 3650)

WIDTHS_NS = tuple(count * _SECOND for count in _WITHIN_A_DAY) + tuple(count * _DAY for count in _DAYS)
"""From a second to ten years; timestamps of 64 bits span 59 such buckets."""

# What a chart can show; less for thousands of streams, so that the driver holds some hundred thousand at most.
_MOST_BUCKETS, _LEAST_BUCKETS, _BUCKETS_IN_ALL = 100, 10, 200_000

_MOST_LARGE = 5


@dataclass(frozen=True, slots=True)
class TimeBin:
    """Messages stored within the bucket that begins at `start_ns` (Unix time)."""

    start_ns: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Messages of at least `least` bytes, and less than twice that. `bytes` is their sum."""

    least: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LargeMessage:
    """`bytes` is its size."""

    bytes: int
    sequence: int
    timestamp_ns: int
    subject: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Buckets and classes in rising order, without empty ones; the `largest` messages, the largest first.

    `bucket_ns` is 0 if there are no messages.
    """

    bucket_ns: int = 0
    buckets: tuple[TimeBin, ...] = ()
    classes: tuple[SizeClass, ...] = ()
    largest: tuple[LargeMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Buckets of time: their width, and the numbers of the first and the last; number 0 begins in 1970."""

    width_ns: int
    first: int
    last: int


def scale_of(oldest_ns: int, newest_ns: int, most_buckets: int = _MOST_BUCKETS) -> TimeScale:
    """Return the narrowest buckets with which at most `most_buckets` are needed, or the widest possible."""
    for width in WIDTHS_NS:
        scale = TimeScale(width, oldest_ns // width, newest_ns // width)
        if scale.last - scale.first < most_buckets:
            break
    return scale


class MessageTally:
    """Counts messages of batches, or of other tallies with the same scale."""

    def __init__(self, scale: TimeScale) -> None:
        self._scale = scale
        self._times: dict[int, tuple[int, int]] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._largest: list[LargeMessage] = []

    def add(self, batch: MessageBatch, sizes: pa.Array | None = None) -> None:
        """Count the messages of a batch; `sizes` are those of `raw_sizes`, if they are known."""
        if not batch.num_rows:
            return
        sizes = raw_sizes(batch) if sizes is None else sizes
        _count(self._times, self._numbers(batch.column("timestamp_ns")), sizes)
        # Exact for possible sizes: a double has more than 50 bits.
        powers = pc.cast(pc.floor(pc.log2(pc.cast(sizes, pa.float64()))), pa.int64())
        _count(self._sizes, powers, sizes)
        self._keep([*self._largest, *_largest(batch, sizes)])

    def merge(self, other: MessageTally) -> None:
        for mine, theirs in ((self._times, other._times), (self._sizes, other._sizes)):
            for key, (messages, size) in theirs.items():
                _add(mine, key, messages, size)
        self._keep([*self._largest, *other._largest])

    def distribution(self) -> Distribution:
        if not self._times:
            return Distribution()
        width = self._scale.width_ns
        return Distribution(
            bucket_ns=width,
            buckets=tuple(TimeBin(number * width, *counted) for number, counted in sorted(self._times.items())),
            classes=tuple(SizeClass(1 << power, *counted) for power, counted in sorted(self._sizes.items())),
            largest=tuple(self._largest),
        )

    def _keep(self, messages: Iterable[LargeMessage]) -> None:
        self._largest = sorted(messages, key=lambda one: (-one.bytes, one.sequence))[:_MOST_LARGE]

    def _numbers(self, timestamps: pa.Array) -> pa.Array:
        width = self._scale.width_ns
        quotient = pc.divide(timestamps, width)  # rounded towards zero; before 1970 it has to be rounded down
        rest = pc.subtract(timestamps, pc.multiply(quotient, width))
        number = pc.subtract(quotient, pc.cast(pc.less(rest, 0), pa.int64()))
        return pc.max_element_wise(pc.min_element_wise(number, self._scale.last), self._scale.first)


def scales_of(streams: Sequence[StreamBackup]) -> list[TimeScale]:
    """Return the buckets for each stream, by the bounds in the manifest."""
    most = max(_LEAST_BUCKETS, min(_MOST_BUCKETS, _BUCKETS_IN_ALL // max(1, len(streams))))
    return [
        scale_of(
            min((part.min_ns for part in parts_of(stream.segments)), default=0),
            max((part.max_ns for part in parts_of(stream.segments)), default=0),
            most,
        )
        for stream in streams
    ]


def raw_sizes(batch: MessageBatch) -> pa.Array:
    """Return the raw bytes of each message, as int64. Raises as `encode_rows`."""
    rows = encode_rows(batch)
    ends = pa.Array.from_buffers(pa.int64(), len(rows.ends), [None, pa.py_buffer(rows.ends)])
    return pc.subtract(ends, pa.concat_arrays([pa.array([0], pa.int64()), ends[:-1]]))


def _count(counts: dict[int, tuple[int, int]], keys: pa.Array, sizes: pa.Array) -> None:
    table = pa.table({"key": keys, "size": sizes}).group_by("key", use_threads=False)
    found = table.aggregate([("size", "count"), ("size", "sum")])
    columns = (found.column(name).to_pylist() for name in ("key", "size_count", "size_sum"))
    for key, messages, size in zip(*columns, strict=True):
        _add(counts, key, messages, size)


def _add(counts: dict[int, tuple[int, int]], key: int, messages: int, size: int) -> None:
    before = counts.get(key, (0, 0))
    counts[key] = (before[0] + messages, before[1] + size)


def _largest(batch: MessageBatch, sizes: pa.Array) -> list[LargeMessage]:
    table = pa.table({"size": sizes, "sequence": batch.column("sequence")})
    order = [("size", "descending"), ("sequence", "ascending")]
    found = []
    for index in pc.select_k_unstable(table, k=_MOST_LARGE, sort_keys=order).to_pylist():
        sequence, moment, subject = (
            batch.column(name)[index].as_py() for name in ("sequence", "timestamp_ns", "subject")
        )
        text = subject if isinstance(subject, str) else subject.decode(errors="replace")
        found.append(LargeMessage(sizes[index].as_py(), sequence, moment, text))
    return found
