"""Which messages of stored segments an export keeps: messages that its options leave out cannot be missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jsbackup.pipeline.tasks.reshape_task import kept_batches
from jsbackup.repository.objects import Objects
from jsbackup.repository.refs import SegmentRef
from jsbackup.transforms.cut import KeptShare
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["KeptMessages"]


@dataclass(frozen=True, slots=True)
class KeptMessages:
    """What the `reshape` of an export keeps of a stream of that name. `secret` is the key of masks, b"" without one."""

    objects: Objects
    stream: str
    reshape: Reshape
    secret: bytes

    @property
    def all(self) -> bool:
        """Whether that is all of it."""
        return not self.reshape.drops

    def may_have(self, ref: SegmentRef) -> bool:
        """Return whether a cut keeps something of a segment, by its bounds."""
        return self.reshape.cut.share(ref.first_seq, ref.last_seq, ref.min_ns, ref.max_ns) is not KeptShare.NONE

    def of(self, ref: SegmentRef, sequences: Sequence[int]) -> Sequence[int]:
        """Return those of the sequences of a segment that are kept. Reads it, if options leave messages out.

        Raises IntegrityError, KeyUnavailable, StoreError.
        """
        if self.all or not sequences:
            return sequences
        found: set[int] = set()
        tally = ReshapeTally()
        for batch in kept_batches(self.objects, ref, self.stream, self.reshape, secret=self.secret, tally=tally):
            found.update(batch.column("sequence").to_pylist())
        return [one for one in sequences if one in found]
