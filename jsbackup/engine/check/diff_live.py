"""Compare a backup with the present streams of a server.

A stream is read completely, from a snapshot, or message by message if none can be made: nothing less proves that its
messages are those that were stored. It is read up to its end at the beginning of its comparison; later messages are
ignored. Messages deleted meanwhile may still count as present. Only the backup's segments that differ are read.

Nothing is changed on the server, and writers and consumers of the stream are not disturbed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jsbackup.config.connection import Connection
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, advisories, connect_jetstream
from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.engine.read.whole_stream import WholeSource, describe_stream, read_with_attempts
from jsbackup.errors import JsBackupError, NatsError, UnsupportedError
from jsbackup.model import ArchivedConsumer
from jsbackup.planning.interrupted import useless_copies
from jsbackup.protocol.info import StreamInfo, stored_config
from jsbackup.repository import layout
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, Manifest, StreamBackup
from jsbackup.repository.read.diff import (
    AlongSegments,
    DiffReport,
    DiffRun,
    Side,
    StreamDiff,
    compare_entries,
    one_sided,
    skipped_errors,
)
from jsbackup.repository.read.message_diff import EQUAL
from jsbackup.repository.read.segments import SegmentReader

__all__ = ["diff_live"]


@with_own_threads
async def diff_live(run: DiffRun, connection: Connection, manifest: Manifest, side: Side) -> DiffReport:
    """Compare streams; `side` is that of the backup.

    Raises NatsError if the server does not answer, and what `choose` raises. An error in one stream does not stop the
    others.
    """
    diffs: list[StreamDiff] = []
    failures: dict[str, JsBackupError] = {}
    stored = {stream.name: stream for stream in manifest.streams}
    lost = skipped_errors(manifest)
    async with connect_jetstream(connection) as js, advisories(js.link):
        cluster = js.link.cluster_name or js.link.server_name or ""
        account = await js.link.account() or ""
        listing = await js.streams()
        silent = listing.silent
        copies = useless_copies(listing.entries) - stored.keys()
        live = {name: info for name, info in listing.entries.items() if name not in copies}
        chosen = run.choose({*stored, *live, *lost, *silent})
        run.progress.expect(
            {stream: live[stream].state.bytes for stream in chosen if stream in stored and stream in live}
        )
        for stream in sorted(chosen):
            try:
                if stream in lost:
                    raise lost[stream]
                if stream in silent:
                    raise NatsError(f"stream {stream} cannot be read: {silent[stream]}")
                if stream not in live:
                    entry = stored[stream]
                    diffs.append(one_sided(stream, entry.created, entry.captured, side))
                elif stream not in stored:
                    info = live[stream]
                    diffs.append(one_sided(stream, info.created, info.state, Side.B if side is Side.A else Side.A))
                else:
                    diffs.append(await _Stream(run, js, stored[stream], side).compare(cluster, account))
            except JsBackupError as error:
                failures[stream] = error
            finally:
                run.progress.finish(stream)
    return DiffReport(tuple(diffs), failures)


class _Stream:
    """One stream that both sides have."""

    def __init__(self, run: DiffRun, js: JetStream, stored: StreamBackup, side: Side) -> None:
        self._run = run
        self._js = js
        self._stored = stored
        self._side = side

    async def compare(self, cluster: str, account: str) -> StreamDiff:
        stored = self._stored
        if stored.opaque:
            raise UnsupportedError(f"stream {stored.name} is stored undecoded, so its messages cannot be compared")
        info = await describe_stream(self._js, stored.name)
        messages, notes = EQUAL, ["messages are not compared: the backup has the configuration only"]
        archived: Sequence[ArchivedConsumer] = ()
        if stored.archive_format is not ArchiveFormat.CONFIG:
            sink, archived = await self._read(info)
            messages = await in_thread(sink.finish)
            notes = sink.notes
        consumers = self._run.consumers
        live = replace(
            stored,
            incarnation=layout.incarnation(cluster, account, info.name, info.created),
            created=info.created,
            config=stored_config(info.config),
            consumers=await self._live_consumers(archived, info) if consumers else (),
        )
        a, b = (stored, live) if self._side is Side.A else (live, stored)
        return await in_thread(compare_entries, self._run.objects, a, b, messages, consumers=consumers, notes=notes)

    async def _live_consumers(
        self, archived: Sequence[ArchivedConsumer], info: StreamInfo
    ) -> tuple[ConsumerBackup, ...]:
        inventory = await self._js.consumers(info.name)
        known = merge_consumers(archived, inventory, info.state.last_seq)
        lost = sorted({*inventory.missing, *inventory.offline} - {consumer.consumer.name for consumer in known})
        if lost:
            raise NatsError(f"consumer {lost[0]} of stream {info.name} did not answer")
        return tuple(map(as_backed_up, known))

    async def _read(self, info: StreamInfo) -> tuple[AlongSegments, Sequence[ArchivedConsumer]]:
        source = WholeSource(self._js, info.name, self._advance, exact=False, consumers=self._run.consumers)
        sink, whole = await read_with_attempts(source, info, lambda: self._sink(info))
        # If there are more deleted messages than can be requested, the archive tells which ones they are.
        if info.deleted is None and (deleted := whole.late.certain | whole.late.doubtful):
            again = replace(info, deleted=tuple(deleted))
            sink, whole = await read_with_attempts(source, again, lambda: self._sink(info))
        return sink, () if whole.capture is None else whole.capture.consumers

    def _sink(self, info: StreamInfo) -> AlongSegments:
        self._run.progress.start(info.name, info.state.bytes, info.state.messages)
        reader = SegmentReader(self._run.objects)
        return AlongSegments(reader, self._stored.segments, info.state.last_seq, self._side, named=self._run.named)

    def _advance(self, byte_count: int, messages: int) -> None:
        self._run.progress.advance(self._stored.name, byte_count, messages)
