"""A changed copy on executors: read, verify, change and store a run of a stream's segments; return references.

Each segment becomes a separate new segment, so that the same copy of the next backup, which shares most segments with
this one, produces the same objects and finds them already stored. Short adjacent segments (`joining.py`) are joined.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import reduce

from jsbackup.config import environment
from jsbackup.config import mask_secret as _mask_secret
from jsbackup.errors import UsageError
from jsbackup.formats.digest import MessageBatch, StreamDigest
from jsbackup.pipeline.jobs.joining import Group
from jsbackup.pipeline.session.repository_ref import RepositoryRef, opened
from jsbackup.pipeline.tasks.packing import OPENING_BYTES
from jsbackup.planning.selection.subset import Counted
from jsbackup.repository.manifest import SegmentRef, total_of
from jsbackup.repository.objects import Objects, fitting_bytes
from jsbackup.repository.read.segments import SegmentReader, read_columns
from jsbackup.repository.write.segment_writer import SegmentWriter, StoredSegments
from jsbackup.transforms.batches import surviving
from jsbackup.transforms.cut import Extent
from jsbackup.transforms.mask import MaskCount
from jsbackup.transforms.renumber import following
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["CountPieces", "MaskKey", "ReshapePieces", "ReshapedRun", "SegmentRun", "kept_batches"]


@dataclass(frozen=True, slots=True)
class MaskKey:
    """The options that name the key for hashes of masks, or have it as bytes. A file is read on each node.

    `salt` and `mark` distinguish other keys from the one that was `marked`, and reveal next to nothing about it.
    """

    given: tuple[tuple[str, str | bytes], ...] = field(default=(), repr=False)
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

    `to_know` are the sequences for which the result says whether they are kept; `to_rank` those for which it says how
    many messages of the run are kept up to there. If messages get new sequences, the first one follows on `numbered`.
    """

    stream: str
    folder: str
    groups: tuple[Group, ...]
    reshape: Reshape
    to_know: tuple[int, ...] = ()
    to_rank: tuple[int, ...] = ()
    numbered: int = 0

    @classmethod
    def of(cls, stream: str, group: Group, reshape: Reshape, *, folder: str = "") -> SegmentRun:
        """Return a run of one group of segments, with what it needs of the reshaping of its stream."""
        if reshape.chosen is not None:
            reshape = replace(reshape, chosen=reshape.chosen.within(group[0].first_seq, group[-1].last_seq))
        return cls(stream, folder, (group,), reshape)

    @property
    def known_count(self) -> int | None:
        """How many messages are kept; None if they have to be read for it."""
        if self.reshape.masks_drop:
            return None
        if self.reshape.chosen is not None:
            return len(self.reshape.chosen)
        return None if self.reshape.drops else sum(ref.messages for group in self.groups for ref in group)

    def changed(self, batches: Iterable[MessageBatch], secret: bytes, tally: ReshapeTally) -> Iterator[MessageBatch]:
        """Yield the changed messages of the run, in their new sequences if they get some. Updates the tally."""
        for batch in self.reshape.apply(batches, stream=self.stream, secret=secret, tally=tally):
            yield following(batch, self.numbered) if self.reshape.renumber else batch

    @property
    def bytes(self) -> int:
        return sum(ref.bytes for group in self.groups for ref in group)

    @property
    def segments(self) -> int:
        return sum(map(len, self.groups))

    @property
    def cost(self) -> int:
        """What it takes to read it, in raw bytes."""
        return self.bytes + self.segments * OPENING_BYTES


@dataclass(frozen=True, slots=True)
class ReshapedRun:
    """The result of a run: of `to_know` it has `found`, of `to_rank` the `ranks`.

    `matched` and `markers` are those of `ReshapeTally`. `hashed` are tokens that were obfuscated for the first time.
    """

    stored: StoredSegments = field(default_factory=StoredSegments)
    counted: Counted = field(default_factory=Counted)
    masked: MaskCount = field(default_factory=MaskCount)
    found: frozenset[int] = frozenset()
    matched: Counter[str] = field(default_factory=Counter)
    markers: int = 0
    ranks: Mapping[int, int] = field(default_factory=dict)
    hashed: frozenset[str] = frozenset()

    @classmethod
    def joined(cls, parts: Sequence[ReshapedRun]) -> ReshapedRun:
        """Return the results of all parts together, whose messages are in order."""
        ranks: dict[int, int] = {}
        before = 0
        for part in parts:
            ranks |= {sequence: before + rank for sequence, rank in part.ranks.items()}
            before += part.counted.kept.messages
        return cls(
            StoredSegments.joined(part.stored for part in parts),
            Counted(
                reduce(Extent.followed_by, (part.counted.cut for part in parts), Extent()),
                reduce(Extent.followed_by, (part.counted.kept for part in parts), Extent()),
                sum(part.counted.bytes for part in parts),
                sum((part.counted.digest for part in parts), StreamDigest()),
            ),
            reduce(MaskCount.plus, (part.masked for part in parts), MaskCount()),
            frozenset().union(*(part.found for part in parts)),
            sum((part.matched for part in parts), Counter()),
            sum(part.markers for part in parts),
            ranks,
            frozenset().union(*(part.hashed for part in parts)),
        )


@dataclass(frozen=True, slots=True)
class ReshapePieces:
    """A task. Reads segments at `place`, and stores new ones at `target`."""

    place: RepositoryRef
    target: RepositoryRef
    mask_key: MaskKey
    pieces: tuple[SegmentRun, ...]

    def __call__(self) -> list[ReshapedRun]:
        source, target = opened(self.place).objects, opened(self.target).objects
        hashing = any(piece.reshape.masks.needs_secret for piece in self.pieces)
        secret = self.mask_key.secret() if hashing else b""
        return [_reshape(source, target, piece, secret) for piece in self.pieces]


def _reshape(source: Objects, target: Objects, piece: SegmentRun, secret: bytes) -> ReshapedRun:
    """Store the changed messages of a run. Holds a few batches of messages, and one compressed segment.

    Raises:
        PlanRefused: a message cannot be masked, or two counters would become one.
        IntegrityError, KeyUnavailable, StoreError: something cannot be read or stored.
    """
    # If masks and maps make messages a little longer, they still fit into one segment.
    segment_bytes = fitting_bytes(2 * target.segment_bytes)
    reader, wanted, tally = SegmentReader(source), set(piece.to_know), ReshapeTally()
    parts: list[StoredSegments] = []
    present: set[int] = set()
    renumber, obfuscation = piece.reshape.renumber, piece.reshape.obfuscation
    known = 0 if obfuscation is None else obfuscation.names.count
    for group in piece.groups:
        batches: Iterator[MessageBatch] = (batch for ref in group for batch in reader.prove(ref))
        with closing(SegmentWriter(target, piece.folder, segment_bytes=segment_bytes)) as writer:
            for batch in piece.changed(batches, secret, tally):
                writer.add(batch)
                if wanted and not renumber:
                    present |= surviving(batch, wanted)
            parts.append(writer.finish_all())
    if renumber:
        present = {sequence for sequence in wanted if sequence in tally.numbered}
    stored = StoredSegments.joined(parts)
    total = total_of(stored.refs)
    return ReshapedRun(
        stored,
        Counted(tally.cut, tally.kept, total.bytes, total.digest),
        tally.masked,
        frozenset(present),
        tally.matched,
        tally.markers,
        {sequence: tally.numbered.rank(sequence) for sequence in piece.to_rank},
        frozenset() if obfuscation is None else frozenset(obfuscation.names.since(known)),
    )


@dataclass(frozen=True, slots=True)
class CountPieces:
    """A task; returns how many messages of each run are kept."""

    place: RepositoryRef
    mask_key: MaskKey
    pieces: tuple[SegmentRun, ...]

    def __call__(self) -> list[int]:
        objects = opened(self.place).objects
        return [_count(objects, piece, self.mask_key) for piece in self.pieces]


def _count(objects: Objects, piece: SegmentRun, key: MaskKey) -> int:
    reshape, tally = piece.reshape, ReshapeTally()
    secret = key.secret() if reshape.masks_drop and reshape.masks.needs_secret else b""
    for ref in (ref for group in piece.groups for ref in group):
        for _ in kept_batches(objects, ref, piece.stream, reshape, secret=secret, tally=tally):
            pass
    return tally.kept.messages


def kept_batches(
    objects: Objects, ref: SegmentRef, stream: str, reshape: Reshape, *, secret: bytes, tally: ReshapeTally
) -> Iterator[MessageBatch]:
    """Yield the messages of a segment that a change to their stream keeps, with only those columns that decide. Updates
    the tally; `secret` is the key of masks, b"" without one.

    Raises IntegrityError, KeyUnavailable, StoreError.
    """
    counting = reshape.keeping
    if reshape.masks_drop:
        counting = replace(counting, masks=reshape.masks)
        batches = SegmentReader(objects).read(ref)
    else:
        batches = read_columns(objects, ref, counting.filters.columns)
    yield from counting.apply(batches, stream=stream, secret=secret, tally=tally)
