"""The first reading of a stream's blocks: which messages can be read and still belong to the stream, and what cannot.

Messages that were deleted are still in blocks until the server compacts these. A message belongs to the stream unless

- `index.db` says that it had been deleted when that was written, or
- a tombstone in a later record deletes it, or
- limits removed it since, if `index.db` is older than the blocks or not there.

What nothing proves is left out: a record that fails its checksum; one whose headers end in the wrong place; one with a
subject that the stream had no messages of, according to `index.db` (the checksum covers no lengths).

Which messages a stream had removed by its limits, found out from the messages alone.

What a limit removes leaves no trace in the blocks: only `index.db` says so, and that may be missing or older. The same
holds for what a roll-up replaced, and for purges of a part, in servers before 2.11. So the history of the stream is
played again: each message is stored, each deletion done, in their order, and limits and roll-ups applied as the server
does (`filestore.go`: storeRawMsg, enforceMsgLimit, enforceBytesLimit). A message that cannot be read removes none, so
those that it had removed come back. Limits that were changed are taken as they are now.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.exchange.server_store.meta_files import FileFlaw
from jsbackup.exchange.server_store.stream_files import BlockFile, StreamFiles
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequence_bitmap import GivenSequences, sequence_set
from jsbackup.formats.sequences import SequenceSet
from jsbackup.formats.server_store.block_messages import RegionMessages, misplaced_headers, read_region
from jsbackup.formats.server_store.records import Hole, block_key, headers_of, records_of
from jsbackup.formats.server_store.store_index import StoreIndex
from jsbackup.model import JsonObject
from jsbackup.repository.write.late_deletions import roll_up_of

__all__ = ["Replay", "StoreSurvey", "read_messages", "take_survey"]


class Replay:
    """Plays the history of a stream with this config. `gone` are the sequences that limits removed."""

    def __init__(self, config: JsonObject) -> None:
        drops_old = config.get("discard", "old") == "old"
        self._per_subject = _limit(config, "max_msgs_per_subject")
        if config.get("discard_new_per_subject"):
            self._per_subject = 0
        self._messages = _limit(config, "max_msgs") if drops_old else 0
        self._bytes = _limit(config, "max_bytes") if drops_old else 0
        self._rolls_up = bool(config.get("allow_rollup_hdrs"))
        self.max_age_ns = _limit(config, "max_age")
        self.gone: set[int] = set()
        self._deleted: set[int] = set()
        self._newest: dict[bytes, int] = {}  # if one message is kept of each subject
        self._of_subject: dict[bytes, deque[int]] = {}
        self._order, self._sizes, self._head = array("Q"), array("L"), 0
        self._held_messages = self._held_bytes = 0

    @property
    def is_needed(self) -> bool:
        """Whether it has a limit that depends on the order of messages."""
        return bool(self._per_subject or self._messages or self._bytes or self._rolls_up)

    def store(self, sequence: int, subject: bytes, size: int, headers: bytes = b"") -> None:
        """Store a message; `size` is that of its record."""
        if self._messages or self._bytes:
            self._order.append(sequence)
            self._sizes.append(size)
            self._held_messages += 1
            self._held_bytes += size
        roll_up = roll_up_of(headers) if self._rolls_up else ""
        if self._per_subject == 1:
            before = self._newest.get(subject, 0)
            self._newest[subject] = sequence
            if before and before not in self._deleted:
                self._remove(before)
        elif self._per_subject or self._rolls_up:
            held = self._of_subject.setdefault(subject, deque())
            if roll_up == "sub":
                self._remove_all(held)
            held.append(sequence)
            if self._per_subject:
                self._limit_subject(held)
        if roll_up == "all":
            for one in list(self._newest.values()):
                self._remove_all([one] if one != sequence else [])
            for held in self._of_subject.values():
                self._remove_all([one for one in held if one != sequence])
        while (self._messages and self._held_messages > self._messages) or (
            self._bytes and self._held_bytes > self._bytes
        ):
            self._remove_first()

    def _remove_all(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            if sequence not in self._deleted:
                self._remove(sequence)

    def _limit_subject(self, held: deque[int]) -> None:
        if len(held) <= self._per_subject:
            return
        alive = [one for one in held if one not in self._deleted]
        held.clear()
        held.extend(alive)
        while len(held) > self._per_subject:
            self._remove(held.popleft())

    def delete(self, sequence: int) -> None:
        """Delete a message, as a tombstone says."""
        if sequence not in self._deleted:
            self._forget(sequence)

    def _remove(self, sequence: int) -> None:
        self.gone.add(sequence)
        self._forget(sequence)

    def _forget(self, sequence: int) -> None:
        self._deleted.add(sequence)
        if self._messages or self._bytes:
            self._take_from_totals(sequence)

    def _take_from_totals(self, sequence: int) -> None:
        at = bisect_left(self._order, sequence, self._head)
        if at < len(self._order) and self._order[at] == sequence and self._sizes[at]:
            self._held_messages -= 1
            self._held_bytes -= self._sizes[at]
            self._sizes[at] = 0

    def _remove_first(self) -> None:
        while not self._sizes[self._head]:
            self._head += 1
        self._remove(self._order[self._head])


def _limit(config: JsonObject, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0


Advance = Callable[[int, int], None]

_NO_TIME_NS = -6795364578871345152  # Go's zero time: of a tombstone in a stream that never had a message


@dataclass(frozen=True, slots=True)
class BlockHole:
    """A hole in a block. `before_seq` is the first sequence after it in any block, 0 if there is none."""

    block: int
    hole: Hole
    before_seq: int


@dataclass(slots=True)
class StoreSurvey:
    """What the first reading found.

    `found` are the messages that can be read, those that do not belong to the stream any more included; `dropped` are
    these. `doubtful` are messages that are left out because a length in them is damaged, with the block they are in.
    `intact` are the blocks without damage, `ends` the first and last sequence that was found in each. `buried` are the
    sequences that records call deleted, `limited` whether others may have been removed. `last_seq` is the last sequence
    that was used, `last_ns` its time.

    If it is not `fresh`, the index is older than the blocks; then `has_last_record` tells whether the record that was
    the last one for the index is still there.
    """

    index: StoreIndex | None
    fresh: bool
    limited: bool = False
    has_last_record: bool = False
    found: GivenSequences = field(default_factory=GivenSequences)
    dropped: SequenceSet = field(default_factory=SequenceSet)
    doubtful: dict[int, int] = field(default_factory=dict)
    buried: SequenceSet = field(default_factory=SequenceSet)
    holes: list[BlockHole] = field(default_factory=list)
    flaws: list[FileFlaw] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    intact: set[int] = field(default_factory=set)
    ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    last_seq: int = 0
    last_ns: int = 0
    expired_before_ns: int = -(1 << 63)


def take_survey(files: StreamFiles, config: JsonObject, advance: Advance) -> StoreSurvey:
    """Read all blocks. `config` is that of the stream, {} if it is lost; `advance` gets the bytes of each block."""
    return _Surveyor(files, config).survey(advance)


def read_messages(files: StreamFiles, survey: StoreSurvey) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read the blocks again; yield the bytes that were read for them, and the messages that belong to the stream."""
    unwanted = survey.dropped | SequenceSet(sorted(survey.doubtful))
    last = 0
    for number in survey.blocks:
        block = files.block(number)
        size = sum(map(len, block.plain.regions))
        for region in block.plain.regions:
            read = read_region(region, block_key(files.name, number), last)
            last = read.last_seq
            for batch in read.batches:
                batch = _without(batch, unwanted)
                if survey.expired_before_ns > -(1 << 63):
                    batch = batch.filter(pc.greater_equal(batch.column("timestamp_ns"), survey.expired_before_ns))
                if batch.num_rows:
                    yield size, batch
                    size = 0


def _without(batch: pa.RecordBatch, unwanted: SequenceSet) -> pa.RecordBatch:
    sequences = _sequences(batch)
    gone = unwanted.within(sequences[0], sequences[-1])
    return drop_sequences(batch, gone) if gone else batch


def _sequences(batch: pa.RecordBatch) -> memoryview:
    return memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")


class _Surveyor:
    def __init__(self, files: StreamFiles, config: JsonObject) -> None:
        self._files = files
        self._survey = StoreSurvey(files.index, False)
        self._survey.fresh = _is_fresh(files)
        self._replay = Replay(config)
        self._survey.limited = self._replay.is_needed or _removes_otherwise(config)
        self._dead = array("Q")
        self._buried = array("Q")
        self._open_holes: list[tuple[int, Hole]] = []
        self._newest_ns = -(1 << 63)
        self._after_seq = 0  # the last sequence of a record; tombstones speak about others

    def survey(self, advance: Advance) -> StoreSurvey:
        survey = self._survey
        for number in self._files.block_numbers:
            block = self._files.block(number)
            survey.blocks.append(number)
            survey.flaws += block.flaws
            holes = len(survey.holes) + len(self._open_holes)
            if block.lost:
                self._open_holes.append((number, Hole(0, 0, "nothing of it can be read", self._after_seq, 0)))
            self._read(block)
            if not block.flaws and len(survey.holes) + len(self._open_holes) == holes and block.plain.regions:
                survey.intact.add(number)
            advance(sum(map(len, block.plain.regions)), 0)
        survey.holes += [BlockHole(number, hole, 0) for number, hole in self._open_holes]
        survey.flaws += self._missing_blocks()
        survey.buried = sequence_set(self._buried)
        if not survey.fresh and self._replay.max_age_ns and survey.found:
            # What had aged out when the newest message was stored.
            survey.expired_before_ns = self._newest_ns - self._replay.max_age_ns
        self._dead.extend(self._buried)
        self._dead.extend(self._replay.gone)
        survey.dropped = sequence_set(self._dead)
        return survey

    def _missing_blocks(self) -> Iterator[FileFlaw]:
        """Yield the blocks that the index has, or whose keys are there, and that are not."""
        blocks = self._survey.index.blocks if self._survey.index is not None else ()
        expected = {block.number for block in blocks} | self._files.block_keys
        for number in sorted(expected.difference(self._survey.blocks)):
            yield FileFlaw(f"msgs/{number}.blk", "is missing", number)

    def _read(self, block: BlockFile) -> None:
        survey = self._survey
        key = block_key(self._files.name, block.number)
        for region in block.plain.regions:
            read = read_region(region, key, self._after_seq)
            self._add_holes(block, read)
            self._buried.extend(read.tombstones)
            dead = [one for batch in read.batches for one in self._add(block, batch)]
            if not survey.fresh:
                self._play(block, region, read, dead)
            self._after_seq = read.last_seq
            survey.last_seq = max(survey.last_seq, read.last_seq, *read.tombstones)

    def _add_holes(self, block: BlockFile, read: RegionMessages) -> None:
        """Note the holes; one that nothing follows here is closed by the next block."""
        first = next((_sequences(batch)[0] for batch in read.batches), 0)
        if first:
            self._survey.holes += [BlockHole(number, hole, first) for number, hole in self._open_holes]
            self._open_holes.clear()
        for hole in read.holes:
            if hole.before_seq:
                self._survey.holes.append(BlockHole(block.number, hole, hole.before_seq))
            else:
                self._open_holes.append((block.number, hole))
            problem = f"is damaged at bytes {hole.start} to {hole.stop - 1}: {hole.problem}"
            self._survey.flaws.append(FileFlaw(block.path, problem, block.number))

    def _add(self, block: BlockFile, batch: pa.RecordBatch) -> list[int]:
        """Take messages; return those that the index calls deleted."""
        survey = self._survey
        if not (block.plain.compressed and not block.flaws):
            doubtful = {*misplaced_headers(batch), *self._foreign_subjects(batch)}
            if doubtful:
                survey.doubtful |= dict.fromkeys(doubtful, block.number)
                batch = drop_sequences(batch, sorted(doubtful))
        if not batch.num_rows:
            return []
        sequences = _sequences(batch)
        survey.found.append(sequences)
        survey.ends[block.number] = survey.ends.get(block.number, (sequences[0], 0))[0], sequences[-1]
        dead = survey.index.dead_among(sequences) if survey.index is not None else []
        self._dead.extend(dead)
        times = memoryview(columns_from_batch(batch).timestamps).cast("B").cast("q")
        self._newest_ns = max(self._newest_ns, *times)
        survey.last_ns = times[-1]
        return dead

    def _foreign_subjects(self, batch: pa.RecordBatch) -> list[int]:
        """Return the sequences of messages with subjects that `index.db` would have if they were right."""
        index = self._survey.index
        if index is None or index.subjects is None:
            return []
        column = batch.column("subject").cast(pa.binary())
        foreign = [one for one in pc.unique(column).to_pylist() if one not in index.subjects]
        if not foreign:
            return []
        rows = pc.indices_nonzero(pc.is_in(column, value_set=pc.binary_array(foreign))).to_pylist()
        sequences = _sequences(batch)
        known = [sequences[row] for row in rows if sequences[row] <= index.state.last_seq]
        dead = set(index.dead_among(known))
        return [sequence for sequence in known if sequence not in dead]

    def _play(self, block: BlockFile, region: bytes, read: RegionMessages, left_out: Collection[int]) -> None:
        """Play what a region records, in its order."""
        survey, replay = self._survey, self._replay if self._replay.is_needed else None
        unwanted = {*left_out, *survey.doubtful}
        index = survey.index if survey.index is not None and survey.index.last_block == block.number else None
        last = self._after_seq
        for start, stop in read.runs:
            for record in records_of(region, start, stop):
                if index is not None and region[record.stop - 8 : record.stop] == index.last_checksum:
                    survey.has_last_record = True
                if record.tombstone:
                    if record.sequence >= max(survey.last_seq, last):
                        survey.last_ns = 0 if record.timestamp_ns == _NO_TIME_NS else record.timestamp_ns
                    if replay is not None:
                        replay.delete(record.sequence)
                elif record.sequence > last:
                    last = record.sequence
                    if record.erased:
                        self._buried.append(last)
                    elif replay is not None and last not in unwanted:
                        size, headers = record.stop - record.start, headers_of(region, record)
                        replay.store(last, bytes(record.subject), size, headers)


def _is_fresh(files: StreamFiles) -> bool:
    """Return whether nothing was written to the blocks after `index.db`."""
    index, numbers = files.index, files.block_numbers
    if index is None:
        return False
    if not numbers:
        return not index.blocks
    return numbers[-1] == index.last_block and files.block(numbers[-1]).last_checksum == index.last_checksum


def _removes_otherwise(config: JsonObject) -> bool:
    """Return whether the server removes messages by age, or without a record because nobody needs them."""
    return bool(config.get("max_age") or config.get("allow_msg_ttl")) or config.get("retention", "limits") != "limits"
