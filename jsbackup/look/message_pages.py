"""Messages of a stream a page at a time, from a sequence on or back: for streams of millions.

A page reads the segments from its sequence on until it is full, or until it was told to stop. So it may have few
messages, or none, and still say where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.look.message import subject_text
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import matching, refs_within
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = ["ListedMessage", "MessagePage", "PageStart", "read_message_page"]

_START_BYTES = 256


@dataclass(frozen=True, slots=True)
class PageStart:
    """The sequence that a page begins with; going `back`, it is that of its last message. 0: the end of the stream."""

    sequence: int = 0
    back: bool = False


@dataclass(frozen=True, slots=True)
class ListedMessage:
    """A message with the `start` of its payload of `size` bytes. `headers` is the header block."""

    sequence: int
    timestamp_ns: int
    subject: str
    headers: bytes | None
    size: int
    start: bytes


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in rising sequence. `more` is where the search goes on in the same direction, None at the end of the
    stream; `stopped`: it was told to stop before the page was full.
    """

    messages: tuple[ListedMessage, ...]
    more: int | None
    stopped: bool = False


def read_message_page(
    objects: Objects,
    stream: StreamBackup,
    wanted: MessageFilter,
    *,
    start: PageStart,
    most: int,
    is_over: Callable[[], bool],
) -> MessagePage:
    """Return up to `most` of the wanted messages. `is_over` is asked before each segment but the first.

    Raises as `matching`.
    """
    found: list[ListedMessage] = []
    first = True
    for ref in _refs(stream, wanted, start):
        if not first and is_over():
            return _page(found, start, ref.last_seq if start.back else ref.first_seq, stopped=True)
        first = False
        for one in _listed(objects, ref, wanted, start):
            if len(found) == most:
                return _page(found, start, one.sequence)
            found.append(one)
    return _page(found, start, None)


def _page(found: list[ListedMessage], start: PageStart, more: int | None, *, stopped: bool = False) -> MessagePage:
    return MessagePage(tuple(reversed(found) if start.back else found), more, stopped)


def _refs(stream: StreamBackup, wanted: MessageFilter, start: PageStart) -> Iterator[SegmentRef]:
    bound, cut = AtSequence(start.sequence), wanted.cut
    within = wanted
    if start.sequence:
        within = replace(wanted, cut=Cut(cut.since, bound) if start.back else Cut(bound, cut.until))
    for ref in refs_within(stream.segments, within, newest_first=start.back):
        if wanted.wants_part(ref):
            yield ref


def _listed(objects: Objects, ref: SegmentRef, wanted: MessageFilter, start: PageStart) -> Iterator[ListedMessage]:
    for batch in matching(objects, (ref,), wanted, newest_first=start.back):
        if start.sequence:
            compare = pc.less_equal if start.back else pc.greater_equal
            batch = batch.filter(compare(batch.column("sequence"), pc.int64_array([start.sequence])[0]))
        rows = range(batch.num_rows)
        yield from (_listed_row(batch, row) for row in (reversed(rows) if start.back else rows))


def _listed_row(batch: pa.RecordBatch, row: int) -> ListedMessage:
    sequence, timestamp_ns, subject, headers, data = batch.columns
    payload = data[row].as_buffer()
    return ListedMessage(
        sequence[row].as_py(),
        timestamp_ns[row].as_py(),
        subject_text(subject[row].as_py()),
        headers[row].as_py(),
        payload.size,
        payload.slice(0, min(payload.size, _START_BYTES)).to_pybytes(),
    )
