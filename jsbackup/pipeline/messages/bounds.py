"""Bounds of the messages that are wanted, by sequences and times.

With them segments (by the manifest) and row groups (by their statistics) are not read, and unwanted messages not sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from jsbackup.formats.segment import GroupBounds
from jsbackup.repository.objects import PageRef
from jsbackup.repository.pages.segment_list import Part

__all__ = ["ALL", "LEAST", "MOST", "Bounds"]

LEAST, MOST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """Ranges include both ends. With `only`, sequences are among these."""

    sequence: tuple[int, int] = (LEAST, MOST)
    timestamp_ns: tuple[int, int] = (LEAST, MOST)
    only: tuple[int, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns needed to decide which messages are wanted."""
        whole = (LEAST, MOST)
        wanted = {"sequence": self.sequence != whole or self.only, "timestamp_ns": self.timestamp_ns != whole}
        return tuple(name for name, used in wanted.items() if used)

    def wants_part(self, part: Part) -> bool | None:
        """Return what `parts_where` gets, to yield segments: pages with other sequences and times are not read."""
        wanted = _meet(self.sequence, (part.first_seq, part.last_seq)) and _meet(
            self.timestamp_ns, (part.min_ns, part.max_ns)
        )
        return None if wanted and isinstance(part, PageRef) else wanted

    def wants_group(self, group: GroupBounds) -> bool:
        if group.sequence is not None and not _meet(self.sequence, group.sequence):
            return False
        return group.timestamp_ns is None or _meet(self.timestamp_ns, group.timestamp_ns)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows. The batch has the columns of `columns`."""
        masks = [
            mask
            for name, (low, high) in (("sequence", self.sequence), ("timestamp_ns", self.timestamp_ns))
            if (low, high) != (LEAST, MOST)
            for mask in (pc.greater_equal(batch.column(name), low), pc.less_equal(batch.column(name), high))
        ]
        if self.only:
            masks.append(pc.is_in(batch.column("sequence"), value_set=pa.array(self.only, pa.int64())))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch


ALL = Bounds()


def _meet(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(span[0], other[0]) <= min(span[1], other[1])
