"""Import the streams of an account from a server's store, as one backup.

A damaged stream is imported without what is lost; then it is incomplete, and its losses and warnings say what. If its
files change while they are read, a server uses them, and the stream fails.

What is lost of a stream in a damaged store: exactly, as far as `index.db` tells.

With an index as new as the blocks, every message that it has and that was not found is lost. An older one may still
have messages that were deleted after it was written; then a message that is not found in an intact block was removed by
a limit, if the stream has any, and one of a damaged or missing block may have been. What was stored after it was
written, or without any index, is known by the gaps at damaged records only: the messages between the sequences before
and after them may have been there. And if the last block is missing, only consumers may tell: by what they have got.

The first reading of a stream's blocks: which messages can be read and still belong to the stream, and what cannot.

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
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import IntegrityError, JsBackupError
from jsbackup.exchange.config_files import made_up_config
from jsbackup.exchange.importing import ImportReport, ImportRun, NewStream, import_streams
from jsbackup.exchange.server_store.store_files import (
    BlockFile,
    FileFlaw,
    ServerStore,
    StreamFiles,
    read_consumers,
)
from jsbackup.formats.archive.index_db import IndexBlock
from jsbackup.formats.batch import columns_from_batch
from jsbackup.formats.segment import drop_sequences
from jsbackup.formats.sequences import GivenSequences, SequenceSet, sequence_set
from jsbackup.formats.server_store.block_messages import RegionMessages, misplaced_headers, read_region
from jsbackup.formats.server_store.ciphers import StoreKeys
from jsbackup.formats.server_store.records import Hole, block_key, headers_of, records_of
from jsbackup.formats.server_store.store_index import StoreIndex
from jsbackup.model import JsonObject, StreamState
from jsbackup.progress import Progress
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    Losses,
    LostSpan,
    StreamBackup,
    Totals,
    total_of,
)
from jsbackup.repository.read.losses import describe_losses
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.late_deletions import roll_up_of
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.repository.write.stream_objects import store_consumer
from jsbackup.times import ZERO_TIME, format_time

__all__ = ["Replay", "StoreSurvey", "find_losses", "import_store", "read_messages"]


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
            self._remove([before] if before else [])
        elif self._per_subject or self._rolls_up:
            held = self._of_subject.setdefault(subject, deque())
            if roll_up == "sub":
                self._remove(held)
            held.append(sequence)
            if self._per_subject and len(held) > self._per_subject:
                alive = [stored for stored in held if stored not in self._deleted]
                held.clear()
                held.extend(alive)
                while len(held) > self._per_subject:
                    self._remove([held.popleft()])
        if roll_up == "all":
            for group in (self._newest.values(), *self._of_subject.values()):
                self._remove(stored for stored in list(group) if stored != sequence)
        while (self._messages and self._held_messages > self._messages) or (
            self._bytes and self._held_bytes > self._bytes
        ):
            while not self._sizes[self._head]:
                self._head += 1
            self._remove([self._order[self._head]])

    def delete(self, sequence: int) -> None:
        """Delete a message, as a tombstone says."""
        if sequence in self._deleted:
            return
        self._deleted.add(sequence)
        if self._messages or self._bytes:
            at = bisect_left(self._order, sequence, self._head)
            if at < len(self._order) and self._order[at] == sequence and self._sizes[at]:
                self._held_messages -= 1
                self._held_bytes -= self._sizes[at]
                self._sizes[at] = 0

    def _remove(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            if sequence not in self._deleted:
                self.gone.add(sequence)
                self.delete(sequence)


def _limit(config: JsonObject, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0


Advance = Callable[[int, int], None]

_NO_TIME_NS = -6795364578871345152  # Go's zero time: of a tombstone in a stream that never had a message


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
                sequences = _sequences(batch)
                if removed := unwanted.within(sequences[0], sequences[-1]):
                    batch = drop_sequences(batch, removed)
                if survey.expired_before_ns > -(1 << 63):
                    batch = batch.filter(pc.greater_equal(batch.column("timestamp_ns"), survey.expired_before_ns))
                if batch.num_rows:
                    yield size, batch
                    size = 0


def _sequences(batch: pa.RecordBatch) -> memoryview:
    return memoryview(columns_from_batch(batch).sequences).cast("B").cast("q")


class StoreSurvey:
    """What the first reading of the blocks finds. `config` is that of the stream, {} if it is lost.

    `found` are the messages that can be read, those that do not belong to the stream any more included; `dropped` are
    these. `doubtful` are messages that are left out because a length in them is damaged, with the block they are in.
    `holes` are those of blocks, by number: closed by the first sequence after them in any block, if there is one.
    `intact` are the blocks without damage, `ends` the first and last sequence that was found in each. `buried` are the
    sequences that records call deleted, `limited` whether others may have been removed. `last_seq` is the last sequence
    that was used, `last_ns` its time.

    If it is not `fresh`, the index is older than the blocks; then `has_last_record` tells whether the record that was
    the last one for the index is still there.
    """

    def __init__(self, files: StreamFiles, config: JsonObject) -> None:
        self.index = files.index
        self.fresh = _is_fresh(files)
        self.has_last_record = False
        self.found, self.dropped, self.buried = GivenSequences(), SequenceSet(), SequenceSet()
        self.doubtful: dict[int, int] = {}
        self.holes: list[tuple[int, Hole]] = []
        self.flaws: list[FileFlaw] = []
        self.blocks: list[int] = []
        self.intact: set[int] = set()
        self.ends: dict[int, tuple[int, int]] = {}
        self.last_seq = self.last_ns = 0
        self.expired_before_ns = self._newest_ns = -(1 << 63)
        self._files = files
        self._replay = Replay(config)
        # By age, too, or without a record because nobody needs them.
        ages = config.get("max_age") or config.get("allow_msg_ttl")
        self.limited = bool(self._replay.is_needed or ages or config.get("retention", "limits") != "limits")
        self._dead, self._buried = array("Q"), array("Q")
        self._open_holes: list[tuple[int, Hole]] = []
        self._after_seq = 0  # the last sequence of a record; tombstones speak about others

    def read(self, advance: Advance) -> None:
        """Read all blocks; `advance` gets the bytes of each."""
        for number in self._files.block_numbers:
            block = self._files.block(number)
            self.blocks.append(number)
            self.flaws += block.flaws
            holes = len(self.holes) + len(self._open_holes)
            if block.lost:
                self._open_holes.append((number, Hole(0, 0, "nothing of it can be read", self._after_seq, 0)))
            self._read(block)
            if not block.flaws and len(self.holes) + len(self._open_holes) == holes and block.plain.regions:
                self.intact.add(number)
            advance(sum(map(len, block.plain.regions)), 0)
        self.holes += self._open_holes
        # Blocks that the index has, or whose keys are there.
        expected = {block.number for block in self.index.blocks} if self.index is not None else set()
        missing = sorted((expected | self._files.block_keys).difference(self.blocks))
        self.flaws += [FileFlaw(f"msgs/{number}.blk", "is missing", number) for number in missing]
        self.buried = sequence_set(self._buried)
        if not self.fresh and self._replay.max_age_ns and self.found:
            # What had aged out when the newest message was stored.
            self.expired_before_ns = self._newest_ns - self._replay.max_age_ns
        self._dead.extend(self._buried)
        self._dead.extend(self._replay.gone)
        self.dropped = sequence_set(self._dead)

    def _read(self, block: BlockFile) -> None:
        key = block_key(self._files.name, block.number)
        for region in block.plain.regions:
            read = read_region(region, key, self._after_seq)
            self._add_holes(block, read)
            self._buried.extend(read.tombstones)
            dead = [sequence for batch in read.batches for sequence in self._add(block, batch)]
            if not self.fresh:
                self._play(block, region, read, dead)
            self._after_seq = read.last_seq
            self.last_seq = max(self.last_seq, read.last_seq, *read.tombstones)

    def _add_holes(self, block: BlockFile, read: RegionMessages) -> None:
        """Note the holes; one that nothing follows here is closed by the next block."""
        first = next((_sequences(batch)[0] for batch in read.batches), 0)
        if first:
            self.holes += [(number, replace(hole, before_seq=first)) for number, hole in self._open_holes]
            self._open_holes.clear()
        for hole in read.holes:
            (self.holes if hole.before_seq else self._open_holes).append((block.number, hole))
            problem = f"is damaged at bytes {hole.start} to {hole.stop - 1}: {hole.problem}"
            self.flaws.append(FileFlaw(f"msgs/{block.number}.blk", problem, block.number))

    def _add(self, block: BlockFile, batch: pa.RecordBatch) -> list[int]:
        """Take messages; return those that the index calls deleted."""
        if not (block.plain.compressed and not block.flaws):
            doubtful = {*misplaced_headers(batch), *self._foreign_subjects(batch)}
            if doubtful:
                self.doubtful |= dict.fromkeys(doubtful, block.number)
                batch = drop_sequences(batch, sorted(doubtful))
        if not batch.num_rows:
            return []
        sequences = _sequences(batch)
        self.found.append(sequences)
        self.ends[block.number] = self.ends.get(block.number, (sequences[0], 0))[0], sequences[-1]
        dead = self.index.dead_among(sequences) if self.index is not None else []
        self._dead.extend(dead)
        times = memoryview(columns_from_batch(batch).timestamps).cast("B").cast("q")
        self._newest_ns = max(self._newest_ns, *times)
        self.last_ns = times[-1]
        return dead

    def _foreign_subjects(self, batch: pa.RecordBatch) -> list[int]:
        """Return the sequences of messages with subjects that `index.db` would have if they were right."""
        index = self.index
        if index is None or index.subjects is None:
            return []
        column = batch.column("subject").cast(pa.binary())
        foreign = [subject for subject in pc.unique(column).to_pylist() if subject not in index.subjects]
        if not foreign:
            return []
        rows = pc.indices_nonzero(pc.is_in(column, value_set=pc.binary_array(foreign))).to_pylist()
        sequences = _sequences(batch)
        known = [sequences[row] for row in rows if sequences[row] <= index.state.last_seq]
        dead = set(index.dead_among(known))
        return [sequence for sequence in known if sequence not in dead]

    def _play(self, block: BlockFile, region: bytes, read: RegionMessages, left_out: Collection[int]) -> None:
        """Play what a region records, in its order."""
        replay = self._replay if self._replay.is_needed else None
        unwanted = {*left_out, *self.doubtful}
        index = self.index if self.index is not None and self.index.last_block == block.number else None
        last = self._after_seq
        for start, stop in read.runs:
            for record in records_of(region, start, stop):
                if index is not None and region[record.stop - 8 : record.stop] == index.last_checksum:
                    self.has_last_record = True
                if record.tombstone:
                    if record.sequence >= max(self.last_seq, last):
                        self.last_ns = 0 if record.timestamp_ns == _NO_TIME_NS else record.timestamp_ns
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
    if index is None or not numbers:
        return index is not None and not index.blocks
    return numbers[-1] == index.last_block and files.block(numbers[-1]).last_checksum == index.last_checksum


# A block that lost more ranges than this is described by one span, from the first to the last.
_MOST_RANGES = 100
_MOST_SUBJECTS = 1000


def find_losses(survey: StoreSurvey, most: tuple[int, str]) -> tuple[LostSpan, ...]:
    """Return the spans that are lost, in order of sequences. `most` is the last sequence that a consumer has got,
    and its name: that was there.
    """
    spans: list[LostSpan] = []
    after = 0
    if survey.index is not None:
        after = survey.index.state.last_seq
        for block in survey.index.blocks:
            spans += _of_block(survey, survey.index, block)
    spans += (
        LostSpan(sequence, sequence, 1, True, f"msgs/{number}.blk is damaged")
        for sequence, number in survey.doubtful.items()
        if sequence > after and sequence not in survey.buried
    )
    spans += _at_holes(survey, after)
    spans += _between_blocks(survey, after)
    if _lost_its_end(survey) and all(span.last_seq is not None for span in spans):
        assert survey.index is not None
        first, number = max(after, survey.last_seq) + 1, survey.index.last_block
        spans.append(LostSpan(first, None, None, False, _cause(survey, number)))
    if survey.index is None and not survey.blocks:
        spans.append(LostSpan(1, None, None, False, "there are neither blocks nor an index.db"))
    elif not survey.fresh and all(span.last_seq is not None for span in spans):
        last, (got, name) = max(after, survey.last_seq), most
        if got > last:
            cause = f"obs/{name}/o.dat: consumer {name} had got messages up to sequence {got}"
            spans.append(LostSpan(last + 1, None, None, False, cause))
    return tuple(sorted(spans, key=lambda span: span.first_seq))


def lost_subjects(survey: StoreSurvey, read: Mapping[bytes, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return of how many messages each subject lost, and of how many it has too many: a subject was damaged.

    `read` has the number of messages of each subject that were read. Empty if that is not known exactly.
    """
    index = survey.index
    if index is None or index.subjects is None or not survey.fresh:
        return {}, {}
    lost = ((subject, total - read.get(subject, 0)) for subject, total in index.subjects.items())
    fewer = sorted(((subject, count) for subject, count in lost if count > 0), key=lambda pair: (-pair[1], pair[0]))
    more = ((subject, count - index.subjects.get(subject, 0)) for subject, count in read.items())
    return (
        {subject.decode("utf-8", "backslashreplace"): count for subject, count in fewer[:_MOST_SUBJECTS]},
        {subject.decode("utf-8", "backslashreplace"): count for subject, count in more if count > 0},
    )


def _of_block(survey: StoreSurvey, index: StoreIndex, block: IndexBlock) -> list[LostSpan]:
    cut = block.number == index.last_block and _lost_its_end(survey)
    if not survey.fresh and not cut and block.number in survey.intact and survey.limited:
        return []
    missing = list(_missing(survey, index, block))
    if not missing:
        return []
    cause = _cause(survey, block.number)
    if not survey.fresh and block.number in survey.intact:
        cause = f"msgs/{block.number}.blk {'is cut short' if cut else 'lacks them: deleted since, or lost'}"
    if len(missing) > _MOST_RANGES:
        count = sum(last - first + 1 for first, last in missing)
        return [LostSpan(missing[0][0], missing[-1][1], count, survey.fresh, cause)]
    return [
        LostSpan(first, last, last - first + 1, survey.fresh, cause, _claimed(survey, block.number, first, last))
        for first, last in missing
    ]


def _lost_its_end(survey: StoreSurvey) -> bool:
    """Return whether the record that was the last one for the index is gone, and the last block with it, or its end."""
    index = survey.index
    if index is None or survey.fresh or survey.has_last_record:
        return False
    return max(survey.blocks, default=0) <= index.last_block and bool(index.last_block)


def _missing(survey: StoreSurvey, index: StoreIndex, block: IndexBlock) -> Iterator[tuple[int, int]]:
    """Yield the ranges of sequences that the index has in a block and that were not found."""
    for first, last in index.alive(block):
        within = survey.found.within(first, last)
        for start, stop in _gaps(first, last, within) if len(within) <= last - first else ():
            yield from _gaps(start, stop, survey.buried.within(start, stop))


def _gaps(first: int, last: int, within: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges from `first` to `last` between the sequences `within`."""
    for sequence in (*within, last + 1):
        if sequence > first:
            yield first, sequence - 1
        first = sequence + 1


def _most(survey: StoreSurvey, first: int, last: int) -> int:
    """Return how many messages may have been there, if no index tells."""
    return sum(stop - start + 1 for start, stop in _gaps(first, last, survey.buried.within(first, last)))


def _cause(survey: StoreSurvey, number: int) -> str:
    flaws = [flaw for flaw in survey.flaws if flaw.block == number]
    if any(flaw.path.endswith(".key") for flaw in flaws):
        return next(f"{flaw.path} {flaw.problem}" for flaw in flaws if flaw.path.endswith(".key"))
    if number not in survey.blocks:
        return f"msgs/{number}.blk is missing"
    return f"msgs/{number}.blk {'is damaged' if flaws else 'lacks them'}"


def _claimed(survey: StoreSurvey, number: int, first: int, last: int) -> tuple[str, ...]:
    """Return the subjects of damaged records that seem to be of these messages."""
    claims = (hole.claim for block, hole in survey.holes if block == number and hole.claim is not None)
    return tuple(dict.fromkeys(subject for sequence, subject in claims if first <= sequence <= last))


# --- what no index tells ---


def _at_holes(survey: StoreSurvey, after: int) -> Iterator[LostSpan]:
    for number, hole in survey.holes:
        first, last = max(hole.after_seq, after) + 1, hole.before_seq - 1
        cause = f"msgs/{number}.blk is damaged"
        if not hole.before_seq:
            if not survey.fresh:
                yield LostSpan(first, None, None, False, cause)
        elif first <= last and (most := _most(survey, first, last)):
            subjects = _claimed(survey, number, first, last)
            yield LostSpan(first, last, min(most, 1) if hole.claim else most, False, cause, subjects)


def _between_blocks(survey: StoreSurvey, after: int) -> Iterator[LostSpan]:
    """Yield the sequences before the first block, and between blocks whose numbers do not follow each other, where no
    index tells why. What limits remove is at the beginning.
    """
    known = survey.index.last_block if survey.index is not None else 0
    first_of_all = min((first for first, _ in survey.ends.values()), default=0)
    if survey.index is None and not survey.limited and survey.blocks[:1] > [1] and first_of_all > 1:
        last_removed = first_of_all - 1
        yield LostSpan(1, last_removed, last_removed, False, "msgs/1.blk is not there: deleted, or lost")
    for before, number in zip(survey.blocks, survey.blocks[1:], strict=False):
        absent = max(before, known) + 1
        ends = survey.ends.get(before), survey.ends.get(number)
        if absent >= number or ends[0] is None or ends[1] is None:
            continue
        first, last = max(ends[0][1], after) + 1, ends[1][0] - 1
        if first <= last and (most := _most(survey, first, last)):
            yield LostSpan(first, last, most, False, f"msgs/{absent}.blk is not there: deleted, or lost")


KIND = "server store"
_LOOK_BACK = 50  # backups that may have a lost configuration
_MOST_FLAWS = 20  # that a stream's warnings list, of one kind


def import_store(
    store: ServerStore,
    repository: Repository,
    *,
    keys: tuple[bytes, ...],
    configs: Mapping[str, JsonObject],
    lease: leases.Lease,
    tags: Mapping[str, str],
    progress: Progress,
    clock_ns: Callable[[], int],
    random: Callable[[int], bytes],
) -> ImportReport:
    """Import the streams of `store`, and commit them. `keys` are those of the server; `configs` those of streams that
    lost theirs, by name. The rest, and errors, as in `run_import`.
    """

    def import_one(name: str, path: tuple[str, ...], run: ImportRun) -> StoredStream:
        with store.folder(path) as folder:
            files = StreamFiles(folder, name, StoreKeys(keys, store.account))
            before = files.stamps()
            progress.start(name, 2 * sum(stamp.size for stamp in before.values()), 0)
            find = partial(_find_config, repository, name, configs)
            stream = _import_stream(run, files, find, partial(progress.advance, name))
            if StreamFiles(folder, name, files.keys).stamps() != before:
                raise IntegrityError(
                    f"the files of stream {name} changed while they were read",
                    hint="A server uses them: stop it, or import a copy of the folder.",
                )
        return stream

    return import_streams(
        [(name, partial(import_one, name, path)) for name, path in store.streams.items()],
        repository,
        failures=store.failures,
        origin={"from": KIND, "account": store.account},
        lease=lease,
        tags=tags,
        progress=progress,
        clock_ns=clock_ns,
        random=random,
    )


def _import_stream(
    run: ImportRun, files: StreamFiles, find_config: Callable[[], tuple[JsonObject, str] | None], advance: Advance
) -> StoredStream:
    """Store the stream. `find_config` returns a config for one that has lost its own, and where it comes from."""
    begun_ns = run.clock_ns()
    meta = files.meta()
    other = None if meta else find_config()
    config, created = (meta.config, meta.created or ZERO_TIME) if meta else (other[0] if other else {}, ZERO_TIME)
    survey = StoreSurvey(files, config)
    survey.read(advance)
    stored = NewStream(run, files.name, created)
    counted = meta is None or (survey.index is not None and survey.index.subjects is not None)
    counts: Counter[bytes] = Counter()
    for size, batch in read_messages(files, survey):
        stored.writer.add(batch)
        if counted:
            columns = pc.value_counts(batch.column("subject").cast(pa.binary())).flatten()
            counts.update(dict(zip(*(column.to_pylist() for column in columns), strict=True)))
        advance(size, batch.num_rows)
    segments = stored.writer.finish()
    totals = total_of(segments)
    if meta is None and not totals.messages:
        why = "; ".join(map(str, [*files.flaws, *survey.flaws][:_MOST_FLAWS]))
        raise IntegrityError(f"nothing of stream {files.name} can be read: {why}")
    if meta is None and other is None:
        config = made_up_config(files.name, counts)
    state = _state(survey, totals, segments[0].min_ns if segments else 0)
    consumers, lost_consumers, most = read_consumers(files, state.last_seq)
    subjects, excess = lost_subjects(survey, counts)
    lost = Losses(find_losses(survey, most), subjects)
    warnings = []
    if meta is None:
        source = other[1] if other else "made up from its messages"
        warnings.append(f"its configuration is lost; this one is {source}")
    elif meta.unproved:
        warnings.append(f"its configuration may be wrong: {meta.unproved}")
    warnings += _about_files([*files.flaws, *survey.flaws, *_short_blocks(survey, lost)])
    if survey.index is None:
        warnings.append(
            "without index.db, nothing tells whether there were other blocks, or messages at the ends of those that "
            "are there; and deletions are known by their traces only: servers before 2.11 leave none of purges, so "
            "purged messages may be back"
        )
    if excess:
        shown = ", ".join(f"{subject} ({count:,})" for subject, count in list(excess.items())[:_MOST_FLAWS])
        warnings.append(
            f"more messages than index.db counts have these subjects, so the subject of one is damaged: {shown}"
        )
    warnings += [*describe_losses(lost), *lost_consumers]
    ended_ns = run.clock_ns()
    stream = StreamBackup(
        name=files.name,
        incarnation=stored.incarnation,
        config=config,
        created=created,
        state=replace(state, consumers=len(consumers)),
        captured=Captured.of(totals, format_time(begun_ns), format_time(ended_ns)),
        archive_format=ArchiveFormat.V1,
        digest=totals.digest,
        segments=tuple(segments),
        consumers=tuple(store_consumer(run.objects, stored.folder, consumer) for consumer in consumers),
        warnings=(*warnings, *files.left_out()),
        lost=lost,
    )
    seconds = max(0, ended_ns - begun_ns) / 1e9
    return StoredStream(stream, stored.writer.reused, stored.writer.stored_bytes, seconds, bool(warnings))


def _find_config(repository: Repository, name: str, given: Mapping[str, JsonObject]) -> tuple[JsonObject, str] | None:
    """Return the config of the stream, and where it comes from: one that was given, or that of its last backup."""
    if name in given:
        return given[name], "from --stream-config"
    for backup in reversed(repository.backups()[-_LOOK_BACK:]):
        with suppress(JsBackupError):
            for stream in repository.manifest(backup).streams:
                if stream.name == name:
                    return stream.config, f"that of backup {backup}"
    return None


def _state(survey: StoreSurvey, totals: Totals, first_ns: int) -> StreamState:
    """Return the state that the stream had when the server stopped, as far as that is known."""
    index = survey.index.state if survey.index is not None else None
    last_seq, last_ns = survey.last_seq, survey.last_ns
    if index is not None and index.last_seq >= last_seq:
        last_seq, last_ns = index.last_seq, index.last_ns
    if index is not None and survey.fresh:
        span = last_seq + 1 - index.first_seq
        return StreamState(
            messages=index.messages,
            bytes=index.bytes,
            first_seq=index.first_seq,
            first_ns=index.first_ns,
            last_seq=last_seq,
            last_ns=last_ns,
            deleted=max(0, span - index.messages),
        )
    first = totals.first_seq or last_seq + 1
    deleted = max(0, last_seq + 1 - first - totals.messages)
    return StreamState(totals.messages, totals.bytes, first, first_ns, last_seq, last_ns, deleted=deleted)


# --- what is said ---


def _about_files(flaws: Sequence[FileFlaw]) -> Iterator[str]:
    yield from map(str, flaws[:_MOST_FLAWS])
    if len(flaws) > _MOST_FLAWS:
        files = len({flaw.path for flaw in flaws})
        yield f"and {len(flaws) - _MOST_FLAWS:,} more damaged places, in {files} files in all"


def _short_blocks(survey: StoreSurvey, lost: Losses) -> Iterator[FileFlaw]:
    """Yield the blocks that lack messages although nothing in them is damaged."""
    flawed = {flaw.path for flaw in survey.flaws}
    for path in dict.fromkeys(span.cause.partition(" ")[0] for span in lost.spans):
        if path.endswith(".blk") and path not in flawed:
            yield FileFlaw(path, "lacks messages that index.db has")
