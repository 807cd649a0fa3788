"""The newest messages of each subject of a stream that is cloned, while it is written to.

Which ones they are is found before the messages are sent, in a reading of its own: without payloads, unless these are
filtered. Of what comes after that reading all is sent. In the end, messages that are not the newest any more are
superseded, and deleted at the target. So the copy has the newest messages of the source as it was when it was read to
its end; except that one that was deleted meanwhile is not replaced by an older one.

All subjects are in memory, as they are in that of the servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.consume import read_messages
from jsbackup.formats.sequences import SequenceSet
from jsbackup.transforms.filters.newest import NewestFinder, rows_of_subjects
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.reshape import Reshape

__all__ = ["LiveNewest", "look_for_newest"]

_ANY_SIZE = 1 << 62
_SIZE_HEADER = "nats-msg-size"  # added by servers where a consumer gets no payloads


def _unheeded(_bytes: int, _messages: int) -> None:
    """Ignore progress: messages are counted when they are sent."""


class LiveNewest:
    """What is known of the newest messages. `chosen` grows with what comes after sequence `end`."""

    def __init__(self, finder: NewestFinder, keeping: Reshape, end: int) -> None:
        self._finder = finder
        self._keeping = keeping
        self._end = end
        self.chosen = RisingSequences.of(finder.sequences())

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages that are about to be sent; later ones than before are chosen too."""
        for batch in batches:
            if batch.num_rows and batch.column("sequence")[-1].as_py() > self._end:
                self._choose(batch.filter(pc.greater(batch.column("sequence"), self._end)))
            yield batch

    def superseded(self) -> SequenceSet:
        """Return the chosen messages that are not the newest any more."""
        newest, chosen = self._finder.sequences(), self.chosen.array()
        return SequenceSet(chosen.filter(pc.invert(pc.is_in(chosen, value_set=newest))).to_pylist())

    def _choose(self, later: pa.RecordBatch) -> None:
        for kept in self._keeping.apply([later], stream=""):
            self._finder.add(rows_of_subjects(kept, self._finder.rule))
            self.chosen.add(kept.column("sequence"))


async def look_for_newest(js: JetStream, stream: str, reshape: Reshape) -> LiveNewest | None:
    """Read a stream, and return what `reshape.newest` keeps of it; None if all is kept.

    Raises NatsError, FormatError and UnsupportedError.
    """
    if reshape.newest is None:
        return None
    keeping = replace(reshape.keeping, newest=None)
    finder = NewestFinder(reshape.newest, most_bytes=_ANY_SIZE)
    info = await js.stream(stream, deleted_details=True)
    async for batch in read_messages(js, info, _unheeded, only=_only(keeping)):
        for kept in keeping.apply([batch], stream=stream):
            await in_thread(finder.add, rows_of_subjects(kept, reshape.newest))
    return LiveNewest(finder, keeping, info.state.last_seq)


def _only(keeping: Reshape) -> dict[str, bool]:
    """Return what the reading can do without."""
    filters = keeping.filters
    named = any(rule.name.lower() == _SIZE_HEADER for rule in filters.header)
    return {} if named or "data" in filters.columns else {"headers_only": True}
