"""Import the streams of an account from a server's store, as one backup (`survey.py` decides about each message).

A damaged stream is imported without what is lost; then it is incomplete, and its losses and warnings say what. If its
files change while they are read, a server uses them, and the stream fails.
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
from jsbackup.exchange.server_store.losses import find_losses, lost_subjects
from jsbackup.exchange.server_store.lost_config import FoundConfig, find_config, make_up
from jsbackup.exchange.server_store.meta_files import FileFlaw, MetaFile
from jsbackup.exchange.server_store.places import PlacedStream, ServerStore
from jsbackup.exchange.server_store.store_consumers import StoreConsumers, read_consumers
from jsbackup.exchange.server_store.stream_files import StreamFiles
from jsbackup.exchange.server_store.survey import StoreSurvey, read_messages, take_survey
from jsbackup.failure import Failure
from jsbackup.formats.server_store.ciphers import StoreKeys
from jsbackup.model import JsonObject, StreamState
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    Losses,
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
