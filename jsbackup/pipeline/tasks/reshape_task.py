"""Transform on executors: read, verify, change and store a run of a stream's segments; return references.

Each segment becomes a separate new segment, so that the same transform of the next backup, which shares most segments
with this one, produces the same objects and finds them already stored. Short adjacent segments (`compact.py`) are
joined.
"""

from __future__ import annotations

import hashlib
import hmac
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow.compute as pc

from jsbackup.config import environment
from jsbackup.config import mask_secret as _mask_secret
from jsbackup.errors import UsageError
from jsbackup.formats.digest import MessageBatch
from jsbackup.pipeline.jobs.compact import Group
from jsbackup.pipeline.messages.newest import Sequences
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.planning.selection.subset import Counted
from jsbackup.repository.manifest import SegmentRef, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.segment_size import fitting_bytes
from jsbackup.repository.segments import SegmentReader, SegmentWriter
from jsbackup.transforms.batches import SEQUENCE
from jsbackup.transforms.consumer_state import surviving
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.mask import MaskCount
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["MaskKey", "ReshapePieces", "ReshapedRun", "SegmentRun", "reshape_piece"]


@dataclass(frozen=True, slots=True)
class MaskKey:
    """The options that name the key for hashes of masks. The key is read on each node.

    `salt` and `mark` distinguish other keys from the one that was `marked`, and reveal next to nothing about it.
    """

    given: tuple[tuple[str, str], ...] = ()
    salt: bytes = b""
    mark: bytes = b""

    def secret(self) -> bytes:
        """Return the key, b"" if there is none. Raises UsageError."""
        secret = _mask_secret(dict(self.given), environment())
        if self.mark and _mark(secret, self.salt) != self.mark:
            raise UsageError(
                "the key for masks is another one where the work is done",
                hint="The file, command or variable that names it has to give the same key on every node.",
            )
        return secret

    def marked(self, salt: bytes) -> MaskKey:
        """Return the same with a mark, for executors; `salt` is random."""
        return MaskKey(self.given, salt, _mark(self.secret(), salt))


def _mark(secret: bytes, salt: bytes) -> bytes:
    return hmac.digest(secret, salt, hashlib.sha256)[:4]


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """A run of a stream's segments, to be stored below `folder`.

    `newest` are the sequences to keep, None for all; `to_know` those for which the result says whether they are kept.
    """

    stream: str
    folder: str
    groups: tuple[Group, ...]
    reshape: Reshape
    newest: Sequences | None = None
    to_know: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(ref.bytes for group in self.groups for ref in group)


@dataclass(frozen=True, slots=True)
class ReshapedRun:
    """The result of a run: of `to_know` it has `found`."""

    refs: tuple[SegmentRef, ...] = ()
    counted: Counted = field(default_factory=Counted)
    masked: MaskCount = field(default_factory=MaskCount)
    found: frozenset[int] = frozenset()

    def followed_by(self, later: ReshapedRun) -> ReshapedRun:
        """Return both results together; the later one's messages come after these."""
        one, other = self.counted, later.counted
        return ReshapedRun(
            (*self.refs, *later.refs),
            Counted(
                one.cut.followed_by(other.cut),
                one.kept.followed_by(other.kept),
                one.bytes + other.bytes,
                one.digest + other.digest,
            ),
            self.masked.plus(later.masked),
            self.found | later.found,
        )


@dataclass(frozen=True, slots=True)
class ReshapePieces:
    """A task."""

    place: RepositoryRef
    mask_key: MaskKey
    pieces: tuple[SegmentRun, ...]

    def __call__(self) -> list[ReshapedRun]:
        objects = opened(self.place).objects
        hashing = any(piece.reshape.masks.needs_secret for piece in self.pieces)
        secret = self.mask_key.secret() if hashing else b""
        return [reshape_piece(objects, piece, secret) for piece in self.pieces]


def reshape_piece(objects: Objects, piece: SegmentRun, secret: bytes, segment_bytes: int | None = None) -> ReshapedRun:
    """Store the changed messages of a run. Holds a few batches of messages, and one compressed segment.

    Raises:
        PlanRefused: a message cannot be masked, or two counters would become one.
        IntegrityError, KeyUnavailable, StoreError: something cannot be read or stored.
    """
    if segment_bytes is None:  # if masks and maps make messages a little longer, they still fit into one segment
        segment_bytes = fitting_bytes(2 * objects.segment_bytes)
    reader, wanted = SegmentReader(objects), set(piece.to_know)
    cut, rest = ReshapeTally(), ReshapeTally()
    refs: list[SegmentRef] = []
    found: set[int] = set()
    keeping, changing = Reshape(cut=piece.reshape.cut, subjects=piece.reshape.subjects), piece.reshape
    for group in piece.groups:
        batches: Iterator[MessageBatch] = (batch for ref in group for batch in reader.prove(ref))
        if piece.newest is not None:
            batches = _among(keeping.apply(batches, stream=piece.stream, tally=cut), piece.newest)
            changing = replace(piece.reshape, cut=Cut(), subjects=None)
        with closing(SegmentWriter(objects, piece.folder, segment_bytes=segment_bytes)) as writer:
            for batch in changing.apply(batches, stream=piece.stream, secret=secret, tally=rest):
                writer.add(batch)
                if wanted:
                    found |= surviving(batch, wanted)
            refs += writer.finish()
    total = total_of(refs)
    extent = rest.cut if piece.newest is None else cut.cut
    return ReshapedRun(
        tuple(refs), Counted(extent, rest.kept, total.bytes, total.digest), rest.masked, frozenset(found)
    )


def _among(batches: Iterator[MessageBatch], sequences: Sequences) -> Iterator[MessageBatch]:
    wanted = sequences.array()
    at = 0
    for batch in batches:
        last = batch.column(SEQUENCE)[-1].as_py()
        to = bisect_right(wanted, last, at, key=lambda sequence: sequence.as_py())
        yield batch.filter(pc.is_in(batch.column(SEQUENCE), value_set=wanted.slice(at, to - at)))
        at = to
