"""Up to which moment a backup knows a stream, which sequences it lacks, and which segments are new in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import UsageError
from jsbackup.look.message import ALL_MESSAGES
from jsbackup.look.stream import heads
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects, PageRef
from jsbackup.repository.pages.segment_list import Part, SegmentList, parts_of
from jsbackup.times import format_time, parse_time
from jsbackup.transforms.cut import AtSequence, Cut, Edge

__all__ = [
    "Reach",
    "SequenceGaps",
    "check_known",
    "folder_of",
    "is_known",
    "known_until",
    "option_text",
    "with_sequences",
]


# --- moment ---
#
# Up to which moment a backup knows a stream.


def known_until(manifest: Manifest, stream: StreamBackup) -> int:
    """Return the moment (ns) up to which all messages are known that were there: that of its last message, or when the
    capture began. When an import was captured is not known.
    """
    last_ns = max((part.max_ns for part in parts_of(stream.segments)), default=0)
    if not manifest.source.is_of_a_server:
        return last_ns
    return max(last_ns, parse_time(stream.captured.begun))


def is_known(manifest: Manifest, stream: StreamBackup, at: Edge) -> bool:
    """Return whether all messages up to the moment are known that were there when the backup was made."""
    if isinstance(at, AtSequence):
        return at.sequence <= stream.last_seq
    return at.time_ns <= known_until(manifest, stream)


def check_known(manifest: Manifest, stream: StreamBackup, at: Edge | None) -> None:
    """Raise UsageError for a moment after the backup: it is not known what came then."""
    if at is not None and not is_known(manifest, stream, at):
        is_sequence = isinstance(at, AtSequence)
        text = f"sequence {stream.last_seq}" if is_sequence else format_time(known_until(manifest, stream))
        raise UsageError(
            f"backup {manifest.id} has stream {stream.name} only up to {text}, not at {at}",
            hint="Leave the moment out for the newest state, or name a newer backup.",
        )


def option_text(at: Edge) -> str:
    """Return the moment as `--at` takes it."""
    return str(at.sequence) if isinstance(at, AtSequence) else str(at)


# --- sequence gaps ---
#
# Which sequences of a stream a backup lacks: messages that were there once, and had been removed when it was made.
#
# Bounds and counts in the manifest and its pages tell most of it. At most the two segments are read in which the moment
# and the last gap before it lie.

_NUMBERS = ("sequence", "timestamp_ns")


@dataclass(frozen=True, slots=True)
class SequenceGaps:
    """The missing sequences of a stream in a backup. Methods raise IntegrityError, KeyUnavailable and StoreError."""

    objects: Objects
    stream: StreamBackup

    def last_possible(self, at: Edge) -> int:
        """Return the highest sequence that a message of up to the moment may have had, 0 if none.

        The time of a missing message is not known. It lay between those of its neighbours, as times rise with
        sequences, except where a clock was set back: so all sequences count up to the next message that is later. Of
        before the stream was created there is none, unless it has messages that are older: from elsewhere.
        """
        if isinstance(at, AtSequence):
            return min(at.sequence, self.stream.last_seq)
        parts = parts_of(self.stream.segments)
        following, is_found = self._following(parts, at, self.stream.last_seq + 1)
        if not is_found and at.time_ns < parse_time(self.stream.created) <= min(
            (part.min_ns for part in parts), default=0
        ):
            return 0
        return following - 1

    def last_gap(self, upto: int) -> int:
        """Return the highest missing sequence up to this one, 0 if none is missing. Those that the stream never gave,
        because its configuration has a `first_seq`, are not missing.
        """
        missing = self._last_missing(parts_of(self.stream.segments), upto)
        first = self.stream.config.get("first_seq")
        return missing if missing >= (first if isinstance(first, int) else 1) else 0

    def _following(self, parts: Sequence[Part], at: Edge, following: int) -> tuple[int, bool]:
        """Return the first sequence after the last message of up to the moment, and whether there is such a message.
        After all parts comes `following`.
        """
        until = Cut(until=at)
        for part in reversed(parts):
            share = until.share(part.first_seq, part.last_seq, part.min_ns, part.max_ns)
            if share == "none":
                following = part.first_seq
            elif share == "all":
                return following, True
            elif isinstance(part, PageRef):
                return self._following(self._listed(part), at, following)
            else:
                rows = self._rows(part)
                last = pc.indices_nonzero(until.rows(rows))[-1].as_py()
                return (following if last + 1 == rows.num_rows else rows.column(0)[last + 1].as_py()), True
        return following, False

    def _last_missing(self, parts: Sequence[Part], upto: int) -> int:
        """Return the highest sequence up to `upto` that no part has."""
        for part in reversed(parts):
            if part.first_seq > upto:
                continue
            if part.last_seq < upto:
                return upto
            if not part.dense:
                if isinstance(part, PageRef):
                    upto = self._last_missing(self._listed(part), upto)
                else:
                    upto = _last_missing_of(self._rows(part).column(0), upto)
                if upto >= part.first_seq:
                    return upto
            else:
                upto = part.first_seq - 1
        return max(upto, 0)

    def _listed(self, page: PageRef) -> Sequence[Part]:
        segments = self.stream.segments
        assert isinstance(segments, SegmentList), "only lists have pages"
        return segments.read(page)

    def _rows(self, ref: SegmentRef) -> pa.RecordBatch:
        batches = list(heads(self.objects, ref, ALL_MESSAGES, _NUMBERS))
        return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _last_missing_of(sequences: pa.Array, upto: int) -> int:
    """Return the highest sequence up to `upto` that is not among these, which rise."""
    rows = range(len(sequences))
    count = bisect_right(rows, upto, key=lambda row: sequences[row].as_py())
    if not count or sequences[count - 1].as_py() < upto:
        return upto
    # Without a gap, a sequence and its row differ by as much as the last ones do.
    first = bisect_left(rows, upto - count + 1, hi=count, key=lambda row: sequences[row].as_py() - row)
    missing: int = sequences[first].as_py() - 1
    return missing


# --- new segments ---
#
# Which segments of a stream in many backups have messages that no earlier backup has.
#
# Messages of a stream only go: of the sequences that a backup knows, a later backup has the same messages or fewer. A
# segment that is within them is stored again because messages in it went. So what is not found in an earlier backup is
# not in it either, and what is found has to be looked for in the segments with that sequence only.
#
# If the stream was put back to an older state (restored, or a server lost its newest messages), it gives sequences
# again. Messages with them are later than all that were there before. So a segment with later messages counts as new.


@dataclass(frozen=True, slots=True)
class Reach:
    """How far an earlier backup of a stream reaches. Of a backup that may lack something it is nothing."""

    incarnation: str = ""
    end: int = 0
    last_ns: int = 0

    @classmethod
    def of(cls, stream: StreamBackup) -> Reach:
        if stream.remarks:
            return cls()
        last_ns = max((part.max_ns for part in parts_of(stream.segments)), default=0)
        return cls(stream.incarnation, stream.last_seq, last_ns)

    def covers(self, stream: StreamBackup, ref: SegmentRef) -> bool:
        """Return whether the earlier backup has all messages of a segment of a later one."""
        same = self.incarnation == stream.incarnation
        return same and ref.last_seq <= self.end and ref.max_ns <= self.last_ns


def folder_of(key: str) -> str:
    """Return the folder of a segment: there is one for each incarnation of a stream."""
    return key.rpartition("/")[0]


def with_sequences(refs: Iterable[SegmentRef], sequences: Mapping[str, Sequence[int]]) -> list[SegmentRef]:
    """Return the segments that may have messages with some of these sequences, which rise; they are by folder."""
    holding = []
    for ref in refs:
        wanted = sequences.get(folder_of(ref.key), ())
        at = bisect_left(wanted, ref.first_seq)
        if at < len(wanted) and wanted[at] <= ref.last_seq:
            holding.append(ref)
    return holding
