"""`--since` and `--until`: a stream cut at a time or at a sequence, to the nanosecond and to the message.

Each message is judged separately: `until` keeps those with a sequence, or a store time, up to and including the edge,
`since` those from the edge on, including it. Neighbours do not matter, because times need not rise with sequences
(clocks are set back; mirrors, sources and restores keep times from elsewhere): a cut in time can leave gaps. Sequences
stay. Dropped messages are as if deleted, so that after the cut (`Cut.state_after`):

- `since` does not change the last sequence; the first is that of the first message kept.
- `until` a sequence N: the last sequence is N, or the old one if that is less, also if N itself was deleted. N is 0 for
  a stream as it was before its first message.
- `until` a time: the last sequence is that of the last message kept. If the stream's last message was deleted, and was
  stored before the edge according to the server, the end is not cut and the last sequence stays.
- if no message is kept, the first sequence is one above the last. With `until` before all messages the stream is as it
  was before its first message (`0` and `0` if that had sequence 1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import TypeAlias

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.config import parse_duration, parse_typed_time
from jsbackup.errors import UsageError
from jsbackup.model import StreamState
from jsbackup.times import format_time
from jsbackup.transforms.batches import SEQUENCE, TIMESTAMP, MessageBatch

__all__ = ["AtSequence", "AtTime", "Cut", "Edge", "Extent", "KeptShare", "counts_from_now", "parse_edge"]

_MAX = (1 << 63) - 1
_SECOND = 1_000_000_000
_SEQUENCE = re.compile(r"\d+", re.ASCII)
_TIME = re.compile(r"\d{4}-", re.ASCII)  # its beginning
_HINT = "Give a time such as 2026-11-21T14:02:00Z, a duration before now such as 24h, or a sequence number."


class KeptShare(StrEnum):
    """How much of something is kept."""

    NONE = "none"
    SOME = "some"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class AtSequence:
    """The message with this sequence. As the end of a cut also 0, which keeps nothing."""

    sequence: int

    def __str__(self) -> str:
        return f"sequence {self.sequence}"


@dataclass(frozen=True, slots=True)
class AtTime:
    """A moment, in nanoseconds since the Unix epoch."""

    time_ns: int

    def __str__(self) -> str:
        return format_time(self.time_ns)


Edge: TypeAlias = AtSequence | AtTime


def counts_from_now(text: str) -> bool:
    """Whether `parse_edge` would take a text for a duration before now."""
    return not (_SEQUENCE.fullmatch(text.strip()) or _TIME.match(text.strip()))


def parse_edge(what: str, text: str, now_ns: int) -> Edge:
    """Parse `2026-11-21T14:02:00.5Z`, `24h` (before `now_ns`) or `4711` (a sequence). Raises UsageError, which names
    `what`.
    """
    text = text.strip()
    if _SEQUENCE.fullmatch(text):
        if len(text) > 19 or not 0 < int(text) <= _MAX:
            raise UsageError(f"{what}: no such sequence: {text[:40]}", hint="Sequences are 1 to 2^63-1.")
        return AtSequence(int(text))
    try:
        if _TIME.match(text):
            return AtTime(parse_typed_time(text))
        seconds, fraction = divmod(parse_duration(text, "a time, a duration or a sequence"), 1)
    except UsageError as error:
        raise UsageError(f"{what}: {error.message[:200]}", hint=_HINT) from error
    moment = now_ns - int(seconds) * _SECOND - round(fraction * _SECOND)
    if not -_MAX <= moment <= _MAX:
        raise UsageError(f"{what}: time is out of range: {text[:40]!r}", hint="NATS keeps times from 1678 to 2262.")
    return AtTime(moment)


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of messages, and the first and the last of them. All 0 if there are none."""

    messages: int = 0
    first_seq: int = 0
    first_ns: int = 0
    last_seq: int = 0
    last_ns: int = 0

    def plus(self, batch: MessageBatch) -> Extent:
        """Return the extent with the messages of a later batch."""
        if not batch.num_rows:
            return self
        sequence, time = batch.column(SEQUENCE), batch.column(TIMESTAMP)
        first = self if self.messages else Extent(0, sequence[0].as_py(), time[0].as_py())
        return replace(
            first,
            messages=self.messages + batch.num_rows,
            last_seq=sequence[-1].as_py(),
            last_ns=time[-1].as_py(),
        )

    def followed_by(self, later: Extent) -> Extent:
        """Return the extent with all the messages of a later one."""
        if not self.messages or not later.messages:
            return self if self.messages else later
        return replace(self, messages=self.messages + later.messages, last_seq=later.last_seq, last_ns=later.last_ns)


@dataclass(frozen=True, slots=True)
class Cut:
    """The range to keep: from `since` on, up to `until`, both included. None: no such edge."""

    since: Edge | None = None
    until: Edge | None = None

    @classmethod
    def parse(cls, since: str | None, until: str | None, now_ns: int) -> Cut:
        """Parse the options' texts. Raises UsageError, also if nothing can be between the two."""
        cut = cls(
            None if since is None else parse_edge("--since", since, now_ns),
            None if until is None else parse_edge("--until", until, now_ns),
        )
        if _is_after(cut.since, cut.until):
            raise UsageError(f"--since {since} is after --until {until}, nothing lies between them")
        return cut

    def __bool__(self) -> bool:
        return self.since is not None or self.until is not None

    def share(self, first_seq: int, last_seq: int, min_ns: int, max_ns: int) -> KeptShare:
        """Return how much is kept of messages within these bounds. With NONE and ALL the messages need not be read."""
        shares = []
        for edge, keeps in ((self.since, _from), (self.until, _up_to)):
            if edge is not None:
                low, high = (first_seq, last_seq) if isinstance(edge, AtSequence) else (min_ns, max_ns)
                shares.append(keeps(low, high, _value(edge)))
        if KeptShare.NONE in shares:
            return KeptShare.NONE
        return KeptShare.SOME if KeptShare.SOME in shares else KeptShare.ALL

    def rows(self, batch: MessageBatch) -> pa.BooleanArray:
        """Return for each row of a batch whether it is kept."""
        kept = []
        for edge, compare in ((self.since, pc.greater_equal), (self.until, pc.less_equal)):
            if edge is not None:
                column = SEQUENCE if isinstance(edge, AtSequence) else TIMESTAMP
                kept.append(compare(batch.column(column), pc.int64_array([_value(edge)])[0]))
        return reduce(pc.and_, kept) if kept else pc.is_valid(batch.column(SEQUENCE))

    def state_after(
        self, before: StreamState, last_message: int, cut: Extent, kept: Extent, *, size: int
    ) -> StreamState:
        """Return the stream's state, see above, if only the messages `kept` are left.

        `last_message` is the sequence of the last message before the cut (`before.last_seq` is higher if later ones
        were deleted), `cut` are the messages that this cut keeps, `kept` those of them that a filter keeps too, `size`
        their bytes.
        """
        last_seq, last_ns = before.last_seq, before.last_ns
        if isinstance(self.until, AtSequence):
            last_seq = min(last_seq, self.until.sequence)
        elif isinstance(self.until, AtTime):
            tail_is_old = last_message < last_seq and 0 < last_ns <= self.until.time_ns
            if not tail_is_old:
                last_seq = cut.last_seq if cut.messages else max(before.first_seq - 1, 0)
        if last_seq == cut.last_seq or last_seq != before.last_seq:
            last_ns = cut.last_ns
        if kept.messages:
            first_seq = kept.first_seq
        else:
            begins_later = not before.last_seq and before.first_seq > 1  # a stream that was never used
            first_seq = last_seq + 1 if last_seq else before.first_seq if begins_later else 0
        return replace(
            before,
            messages=kept.messages,
            bytes=size,
            first_seq=first_seq,
            first_ns=kept.first_ns,
            last_seq=last_seq,
            last_ns=last_ns,
            deleted=last_seq - first_seq + 1 - kept.messages if kept.messages else 0,
        )

    @property
    def typed(self) -> dict[str, str]:
        """The edges by their options, as texts that `parse` takes and that do not count from now."""
        return {name: _typed(edge) for name, edge in (("since", self.since), ("until", self.until)) if edge}


def _value(edge: Edge) -> int:
    return edge.sequence if isinstance(edge, AtSequence) else edge.time_ns


def _is_after(since: Edge | None, until: Edge | None) -> bool:
    return since is not None and until is not None and type(since) is type(until) and _value(since) > _value(until)


def _from(low: int, high: int, edge: int) -> KeptShare:
    return KeptShare.ALL if low >= edge else KeptShare.NONE if high < edge else KeptShare.SOME


def _up_to(low: int, high: int, edge: int) -> KeptShare:
    return KeptShare.ALL if high <= edge else KeptShare.NONE if low > edge else KeptShare.SOME


def _typed(edge: Edge) -> str:
    if isinstance(edge, AtSequence):
        return str(edge.sequence)
    # Go's zero time means no time at all: the very start of 1970 is written differently.
    return format_time(edge.time_ns) if edge.time_ns else "1970-01-01T00:00:00Z"
