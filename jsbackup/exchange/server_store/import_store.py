"""Import the streams of an account from a server's store, as one backup (`survey.py` decides about each message).

A damaged stream is imported without what is lost; then it is incomplete, and its losses and warnings say what. If its
files change while they are read, a server uses them, and the stream fails.

What is lost of a stream in a damaged store: exactly, as far as `index.db` tells.

With an index as new as the blocks, every message that it has and that was not found is lost. An older one may still
have messages that were deleted after it was written; then a message that is not found in an intact block was removed by
a limit, if the stream has any, and one of a damaged or missing block may have been. What was stored after it was
written, or without any index, is known by the gaps at damaged records only: the messages between the sequences before
and after them may have been there. And if the last block is missing, only consumers may tell: by what they have got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import IntegrityError, JsBackupError
from jsbackup.exchange.import_stream import UNKNOWN_TIME, ImportRun
from jsbackup.exchange.importing import ImportReport
from jsbackup.exchange.server_store.lost_config import FoundConfig, find_config, make_up
from jsbackup.exchange.server_store.meta_files import FileFlaw, MetaFile
from jsbackup.exchange.server_store.places import PlacedStream, ServerStore
from jsbackup.exchange.server_store.store_consumers import StoreConsumers, read_consumers
from jsbackup.exchange.server_store.stream_files import StreamFiles
from jsbackup.exchange.server_store.survey import StoreSurvey, read_messages, take_survey
from jsbackup.failure import Failure
from jsbackup.formats.archive.index_db import IndexBlock
from jsbackup.formats.server_store.ciphers import StoreKeys
from jsbackup.formats.server_store.store_index import StoreIndex
from jsbackup.model import JsonObject, StreamState
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    Losses,
    LostSpan,
    SegmentRef,
    Source,
    StreamBackup,
    Totals,
    total_of,
)
from jsbackup.repository.read.losses import describe_losses
from jsbackup.repository.repository import Repository
from jsbackup.repository.segments import SegmentWriter
from jsbackup.repository.write.new_backup import NewBackup, StoredStream
from jsbackup.repository.write.pending_acks import store_consumer
from jsbackup.repository.write.previous import imported_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.reuse import stored_segments
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["StoreImport"]

# A block that lost more ranges than this is described by one span, from the first to the last.
_MOST_RANGES = 100
_MOST_SUBJECTS = 1000


def find_losses(survey: StoreSurvey, consumers: StoreConsumers) -> tuple[LostSpan, ...]:
    """Return the spans that are lost, in order of sequences. What `consumers` have got was there."""
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
        last, (got, name) = max(after, survey.last_seq), consumers.got
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
    fewer = sorted(((subject, count) for subject, count in lost if count > 0), key=lambda one: (-one[1], one[0]))
    more = ((subject, count - index.subjects.get(subject, 0)) for subject, count in read.items())
    return (
        {_text(subject): count for subject, count in fewer[:_MOST_SUBJECTS]},
        {_text(subject): count for subject, count in more if count > 0},
    )


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "backslashreplace")


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
        at, there = first, survey.found.within(first, last)
        for found in [*there, last + 1] if len(there) <= last - first else ():
            if found > at:
                yield from _without_buried(survey, at, found - 1)
            at = found + 1


def _without_buried(survey: StoreSurvey, first: int, last: int) -> Iterator[tuple[int, int]]:
    at = first
    for gone in [*survey.buried.within(first, last), last + 1]:
        if gone > at:
            yield at, gone - 1
        at = gone + 1


def _cause(survey: StoreSurvey, number: int) -> str:
    flaws = [flaw for flaw in survey.flaws if flaw.block == number]
    if any(flaw.path.endswith(".key") for flaw in flaws):
        return next(f"{flaw.path} {flaw.problem}" for flaw in flaws if flaw.path.endswith(".key"))
    if number not in survey.blocks:
        return f"msgs/{number}.blk is missing"
    return f"msgs/{number}.blk {'is damaged' if flaws else 'lacks them'}"


def _claimed(survey: StoreSurvey, number: int, first: int, last: int) -> tuple[str, ...]:
    """Return the subjects of damaged records that seem to be of these messages."""
    claims = (one.hole.claim for one in survey.holes if one.block == number and one.hole.claim is not None)
    return tuple(dict.fromkeys(subject for sequence, subject in claims if first <= sequence <= last))


# --- what no index tells ---


def _at_holes(survey: StoreSurvey, after: int) -> Iterator[LostSpan]:
    for one in survey.holes:
        hole = one.hole
        first = max(hole.after_seq, after) + 1
        last = one.before_seq - 1 if one.before_seq else None
        cause = f"msgs/{one.block}.blk is damaged"
        if last is None:
            if not survey.fresh:
                yield LostSpan(first, None, None, False, cause)
            continue
        most = sum(stop - start + 1 for start, stop in _without_buried(survey, first, last))
        if most > 0:
            subjects = _claimed(survey, one.block, first, last)
            yield LostSpan(first, last, min(most, 1) if hole.claim else most, False, cause, subjects)


def _between_blocks(survey: StoreSurvey, after: int) -> Iterator[LostSpan]:
    """Yield the sequences before the first block, and between blocks whose numbers do not follow each other, where no
    index tells why. What limits remove is at the beginning.
    """
    known = survey.index.last_block if survey.index is not None else 0
    first_of_all = min((first for first, _ in survey.ends.values()), default=0)
    if survey.index is None and not survey.limited and survey.blocks[:1] > [1] and first_of_all > 1:
        gone = first_of_all - 1
        yield LostSpan(1, gone, gone, False, "msgs/1.blk is not there: deleted, or lost")
    for before, number in zip(survey.blocks, survey.blocks[1:], strict=False):
        absent = max(before, known) + 1
        ends = survey.ends.get(before), survey.ends.get(number)
        if absent >= number or ends[0] is None or ends[1] is None:
            continue
        first, last = max(ends[0][1], after) + 1, ends[1][0] - 1
        most = sum(stop - start + 1 for start, stop in _without_buried(survey, first, last)) if first <= last else 0
        if most:
            yield LostSpan(first, last, most, False, f"msgs/{absent}.blk is not there: deleted, or lost")


KIND = "server store"
_MOST_FLAWS = 20  # that a stream's warnings list, of one kind


@dataclass(frozen=True)
class StoreImport:
    """An import of the streams of `store`. `keys` are those of the server; `configs` those of streams that lost
    theirs, by name.
    """

    store: ServerStore
    repository: Repository
    keys: tuple[bytes, ...]
    configs: Mapping[str, JsonObject]
    clock_ns: Callable[[], int]
    random: Callable[[int], bytes]
    progress: Progress

    def run(self, lease: leases.Lease, tags: Mapping[str, str]) -> ImportReport:
        """Import all streams, and commit them. Raises as `run_import`."""
        begun_ns = self.clock_ns()
        receipts = Receipts(self.repository.documents, lease.id, format_time(begun_ns), TOOL)
        receipts.read_earlier()
        run = ImportRun(self.repository.objects, imported_streams(self.repository), receipts, self.clock_ns)
        stored: list[StoredStream] = []
        failures = list(self.store.failures)
        for stream in self.store.streams:
            try:
                stored.append(self._import(run, stream))
            except JsBackupError as error:
                failures.append(Failure(stream.name, error))
            finally:
                self.progress.finish(stream.name)
        failures.sort(key=lambda failure: failure.name)
        if not stored:
            return ImportReport(None, (), tuple(failures))
        new = NewBackup(
            self.repository,
            source=Source(extra={"imported": {"from": KIND, "account": self.store.account}}),
            begun_ns=begun_ns,
            clock_ns=self.clock_ns,
            random=self.random,
            tags=tags,
        )
        manifest = new.manifest(stored, failures)
        leases.commit(self.repository, manifest, lease)
        receipts.settle({self.repository.objects.sealing.folder(one.name, one.incarnation) for one in manifest.streams})
        return ImportReport(manifest, tuple(stored), tuple(failures))

    def _import(self, run: ImportRun, placed: PlacedStream) -> StoredStream:
        with self.store.folder_of(placed) as folder:
            files = StreamFiles(folder, placed.name, StoreKeys(self.keys, self.store.account))
            before = files.stamps()
            self.progress.start(placed.name, 2 * sum(stamp.size for stamp in before.values()), 0)
            stream = _StreamImport(self, run, files).run()
            if StreamFiles(folder, placed.name, files.keys).stamps() != before:
                raise IntegrityError(
                    f"the files of stream {placed.name} changed while they were read",
                    hint="A server uses them: stop it, or import a copy of the folder.",
                )
        return stream


@dataclass
class _StreamImport:
    """The import of one stream. `subjects` counts its messages, if that is needed."""

    whole: StoreImport
    shared: ImportRun
    files: StreamFiles
    counts: bool = False
    subjects: Counter[bytes] = field(default_factory=Counter)

    def run(self) -> StoredStream:
        begun_ns = self.shared.clock_ns()
        meta = self.files.meta()
        self.counts = meta is None
        found = None if meta else find_config(self.whole.repository, self.files.name, self.whole.configs)
        config = meta.config if meta else found[0] if found else {}
        survey = take_survey(self.files, config, self._advance)
        created = (meta.created if meta else None) or UNKNOWN_TIME
        writer, segments = self._store(survey, created)
        totals = total_of(segments)
        if meta is None and not totals.messages:
            why = "; ".join(map(str, [*self.files.flaws, *survey.flaws][:_MOST_FLAWS]))
            raise IntegrityError(f"nothing of stream {self.files.name} can be read: {why}")
        if meta is None and found is None:
            found = make_up(self.files.name, self.subjects)
            config = found[0]
        state = _state(survey, totals, segments[0].min_ns if segments else 0)
        consumers = read_consumers(self.files, state.last_seq)
        subjects, excess = lost_subjects(survey, self.subjects)
        lost = Losses(find_losses(survey, consumers), subjects)
        flaws = [*self.files.flaws, *survey.flaws, *_short_blocks(survey, lost)]
        warnings = [*_about_config(meta, found), *_about_files(flaws), *_about_deletions(survey)]
        warnings += [*_about_excess(excess), *describe_losses(lost), *consumers.lost]
        incomplete = bool(warnings)
        ended_ns = self.shared.clock_ns()
        stream = StreamBackup(
            name=self.files.name,
            incarnation=self._incarnation(created),
            config=config,
            created=created,
            state=replace(state, consumers=len(consumers.consumers)),
            captured=Captured.of(totals, format_time(begun_ns), format_time(ended_ns)),
            archive_format=ArchiveFormat.V1,
            digest=totals.digest,
            segments=tuple(segments),
            consumers=self._stored(consumers, created),
            warnings=(*warnings, *self.files.left_out()),
            lost=lost,
        )
        seconds = max(0, ended_ns - begun_ns) / 1e9
        return StoredStream(stream, writer.reused, writer.stored_bytes, seconds, incomplete)

    def _advance(self, size: int, messages: int) -> None:
        self.whole.progress.advance(self.files.name, size, messages)

    def _incarnation(self, created: str) -> str:
        return layout.incarnation("", "", self.files.name, created)

    def _folder(self, created: str) -> str:
        return self.shared.objects.sealing.folder(self.files.name, self._incarnation(created))

    def _store(self, survey: StoreSurvey, created: str) -> tuple[SegmentWriter, list[SegmentRef]]:
        folder = self._folder(created)
        before = self.shared.earlier.get((self.files.name, self._incarnation(created)))
        candidates = self.shared.receipts.candidates(folder, before)
        reusable = stored_segments(self.shared.objects, folder, *candidates)
        writer = SegmentWriter(self.shared.objects, folder, reusable, note=self.shared.receipts.note)
        counted = self.counts or (survey.index is not None and survey.index.subjects is not None)
        for size, batch in read_messages(self.files, survey):
            writer.add(batch)
            if counted:
                self._count(batch)
            self._advance(size, batch.num_rows)
        return writer, writer.finish()

    def _count(self, batch: pa.RecordBatch) -> None:
        counts = pc.value_counts(batch.column("subject").cast(pa.binary()))
        for subject, count in zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True):
            self.subjects[subject] += count

    def _stored(self, consumers: StoreConsumers, created: str) -> tuple[ConsumerBackup, ...]:
        folder = self._folder(created)
        return tuple(store_consumer(self.shared.objects, folder, consumer) for consumer in consumers.consumers)


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


def _about_config(meta: MetaFile | None, found: FoundConfig | None) -> Iterator[str]:
    if meta is None:
        assert found is not None
        yield f"its configuration is lost; this one is {found[1]}"
    elif meta.unproved:
        yield f"its configuration may be wrong: {meta.unproved}"


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


def _about_deletions(survey: StoreSurvey) -> Iterator[str]:
    if survey.index is None:
        yield (
            "without index.db, nothing tells whether there were other blocks, or messages at the ends of those that "
            "are there; and deletions are known by their traces only: servers before 2.11 leave none of purges, so "
            "purged messages may be back"
        )


def _about_excess(excess: Mapping[str, int]) -> Iterator[str]:
    if excess:
        shown = ", ".join(f"{subject} ({count:,})" for subject, count in list(excess.items())[:_MOST_FLAWS])
        yield f"more messages than index.db counts have these subjects, so the subject of one is damaged: {shown}"
