"""The statistics of a stream, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from jsbackup.pipeline.jobs.distribution import Distribution
from jsbackup.repository.read.growth import GrowthPoint

__all__ = ["Sizes", "StreamStats", "SubjectStats"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Raw bytes of a message: the median, the 90th and 99th percentile, the largest."""

    p50: int = 0
    p90: int = 0
    p99: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True)
class SubjectStats:
    """`oldest_ns` and `newest_ns` are Unix time."""

    subject: str
    messages: int
    bytes: int
    oldest_ns: int
    newest_ns: int
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class StreamStats:
    """`subjects` are the largest of `subject_count`. `duplicates` repeat a `Nats-Msg-Id`; None if they were not
    counted.

    Times are 0 if there are no messages. `growth` ends with this backup.
    """

    stream: str
    messages: int
    bytes: int
    oldest_ns: int
    newest_ns: int
    sizes: Sizes
    subject_count: int
    subjects: tuple[SubjectStats, ...] = ()
    duplicates: int | None = None
    distribution: Distribution = field(default_factory=Distribution)
    growth: tuple[GrowthPoint, ...] = ()
