"""Export streams of a backup as folders that the nats CLI restores, or as files of configurations.

Archives are written from the stored messages, or from what transforms make of them (`change_streams`: cut, filtered,
renamed, masked, as a restore would send them), as v1, which every server accepts, under the names that CLI 0.5 expects
(`importing.py`). Streams in memory are the exception: servers only restore these from v2. Each segment is verified
before it is used, and nothing gets its final name before everything is written (`NewFolder`). An opaque stream is
written unchanged.

`backup.json` describes the content of the archive: the captured messages, and all consumers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jsbackup.errors import UnsupportedError
from jsbackup.exchange.config_files import ExportedStream, StreamConfigs, without_server_metadata, write_config_files
from jsbackup.exchange.declared.nack import write_nack_files
from jsbackup.exchange.declared.terraform import write_terraform_files
from jsbackup.exchange.folder import NewFolder
from jsbackup.exchange.importing import ARCHIVE_V1, ARCHIVE_V2, META_FILE, encode_meta
from jsbackup.formats.archive.archive import ArchiveV2Writer, archive_batches
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.digest import MessageBatch
from jsbackup.model import ArchivedConsumer, ConsumerState
from jsbackup.planning.changed_streams import (
    ChangeOptions,
    PlannedStream,
    about_changed,
    changed_entry,
    refuse_results,
)
from jsbackup.planning.selection.kept_messages import reshaped_messages, survey
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.progress import Progress
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import prove_stream, state_to_restore
from jsbackup.repository.write.stream_objects import load_consumer, read_opaque
from jsbackup.times import ZERO_TIME, format_time

__all__ = [
    "CONFIG_FORMATS",
    "ChangedStream",
    "ExportedStream",
    "change_streams",
    "export_account",
    "export_configs",
    "export_stream",
]

CONFIG_FORMATS = {"config": write_config_files, "nack": write_nack_files, "terraform": write_terraform_files}


@dataclass(frozen=True, slots=True)
class ChangedStream:
    """A stream that differs from the stored one: its description, as if it had been backed up so, and its `batches`.

    `notes` say what a user should know of the change. `created` is the time of creation to write.
    """

    entry: StreamBackup
    batches: Callable[[], Iterable[MessageBatch]]
    created: str
    notes: tuple[str, ...] = ()


def export_account(
    new: NewFolder,
    objects: Objects,
    streams: Iterable[StreamBackup | ChangedStream],
    archive: ArchiveFormat | None,
    *,
    progress: Progress,
) -> list[ExportedStream]:
    """Write a folder for each stream, for `nats backup restore account`. Arguments and errors as in `export_stream`."""
    exported = []
    for stream in streams:
        name = stream.entry.name if isinstance(stream, ChangedStream) else stream.name
        new.folder(name)
        exported.append(export_stream(new, f"{name}/", objects, stream, archive=archive, progress=progress))
    return exported


def export_stream(
    new: NewFolder,
    folder: str,
    objects: Objects,
    exported: StreamBackup | ChangedStream,
    *,
    archive: ArchiveFormat | None,
    progress: Progress,
) -> ExportedStream:
    """Write a stream, for `nats backup restore stream`, to `folder` (a path that ends in `/`, or "").

    `archive` is the format to write; by default v1 if servers accept that.

    Raises:
        UnsupportedError: the stream cannot be written in this format.
        IntegrityError: the repository is damaged.
        StoreError: something cannot be read or written.
    """
    changed = exported if isinstance(exported, ChangedStream) else None
    stream = exported.entry if isinstance(exported, ChangedStream) else exported
    chosen = _choose(stream, archive)
    left_out: list[str] = []
    consumers = list(_consumers(objects, stream, chosen, left_out))
    state = replace(state_to_restore(stream), consumers=len(consumers))
    config = {**without_server_metadata(stream.config), "name": stream.name}
    advance = partial(progress.advance, stream.name)
    progress.start(stream.name, stream.captured.bytes, stream.captured.messages)
    try:
        with new.create(folder + (ARCHIVE_V2 if chosen is ArchiveFormat.V2 else ARCHIVE_V1)) as file:
            if chosen is ArchiveFormat.OPAQUE:
                assert changed is None, "what is not decoded does not change"
                pieces = read_opaque(objects, stream.opaque)
            else:
                created = changed.created if changed else stream.created
                writer: ArchiveV1Writer | ArchiveV2Writer = (
                    ArchiveV1Writer(config, created, state, consumers)
                    if chosen is ArchiveFormat.V1
                    else ArchiveV2Writer(state, consumers)
                )
                pieces = (
                    archive_batches(changed.batches(), writer, advance)
                    if changed
                    else archive_batches(prove_stream(objects, stream), writer, advance)
                )
            file.writelines(pieces)
        new.write(folder + META_FILE, encode_meta(config, state))
    finally:
        progress.finish(stream.name)
    notes = [*left_out, *_notes(stream, chosen), *(changed.notes if changed else ())]
    return ExportedStream(stream.name, chosen, stream.captured.messages, tuple(notes), bool(left_out))


def export_configs(new: NewFolder, streams: Sequence[StreamBackup], kind: str) -> list[ExportedStream]:
    """Write only configurations, in one of `CONFIG_FORMATS`: see `config_files.py`, or `declared/`.

    Raises `StoreError`, `UsageError`, or `FormatError` if one cannot be encoded.
    """
    configs = [
        StreamConfigs(
            {**stream.config, "name": stream.name},
            {consumer.name: consumer.config for consumer in stream.consumers},
        )
        for stream in streams
    ]
    return CONFIG_FORMATS[kind](new, configs)


def _choose(stream: StreamBackup, archive: ArchiveFormat | None) -> ArchiveFormat:
    """Return the format to write: v1, v2, or opaque."""
    if stream.archive_format is ArchiveFormat.CONFIG:
        raise UnsupportedError(
            f"stream {stream.name} was backed up without its messages, and the nats CLI cannot restore such a stream",
            hint="Use --format config.",
        )
    if unknown := stream.unknown_format:
        if archive is not None:
            raise UnsupportedError(
                f"{unknown}, so it cannot be written as {archive}",
                hint="Without --archive it is written unchanged.",
            )
        return ArchiveFormat.OPAQUE
    memory = stream.config.get("storage") == "memory"
    if archive is ArchiveFormat.V1 and memory:
        raise UnsupportedError(
            f"stream {stream.name} is kept in memory, and servers cannot restore such a stream from an archive v1",
            hint="Without --archive it is written as v2, which nats-server 2.15 and newer take.",
        )
    return archive or (ArchiveFormat.V2 if memory else ArchiveFormat.V1)


def _notes(stream: StreamBackup, chosen: ArchiveFormat) -> Iterator[str]:
    if chosen is ArchiveFormat.V2:
        why = ", as it is kept in memory" if stream.config.get("storage") == "memory" else ""
        yield f"written as v2{why}: for nats-server 2.15 and newer, and nats CLI 0.5 and newer"
    if chosen is ArchiveFormat.OPAQUE:
        yield "written unchanged, not decoded: for servers of the same release"
    if stream.config.get("sources") and (chosen is ArchiveFormat.V2 or stream.created == ZERO_TIME):
        yield (
            "it copies from other streams: nats-server 2.15 and newer copy all of it again, where these are restored "
            "from archives without their time of creation"
        )
    first_seq = stream.config.get("first_seq")
    if isinstance(first_seq, int) and 0 < stream.captured.first_seq <= first_seq:
        yield "nats-server 2.10 would empty it at each start, because of its first_seq"
    if chosen is ArchiveFormat.V1:
        for consumer in stream.consumers:
            if consumer.config.get("mem_storage") and consumer.state is not None:
                yield (
                    f"consumer {consumer.name} is kept in memory and starts from its beginning, "
                    "unless restored from an archive v2"
                )


def _consumers(
    objects: Objects, stream: StreamBackup, chosen: ArchiveFormat, notes: list[str]
) -> Iterator[ArchivedConsumer]:
    """Yield the consumers with their whole states. `notes` gets those that the format cannot hold."""
    for backup in stream.consumers:
        state = load_consumer(objects, backup).state
        if state is None and chosen is ArchiveFormat.V2:
            # The server creates consumers before it stores messages: only one that starts with the first message starts
            # correctly.
            if backup.config.get("deliver_policy", "all") != "all":
                notes.append(f"consumer {backup.name} is left out: it has no state, and archives v2 hold none without")
                continue
            state = ConsumerState()
        yield ArchivedConsumer(backup.name, without_server_metadata(backup.config), state, backup.created)


def change_streams(
    objects: Objects, backup: str, planned: Sequence[PlannedStream], options: ChangeOptions, *, secret: bytes
) -> list[StreamBackup | ChangedStream]:
    """Return the streams to export, unchanged ones as they are stored. All messages of the others are read.

    Raises:
        PlanRefused: a message cannot be masked, a mask or a filter has found nothing, or nothing is left of a stream.
        UsageError: there is no secret to hash with.
        IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
    """
    results = [
        (
            stream,
            survey(objects, stream.entry, stream.reshaped.messages, secret)
            if stream.entry.archive_format.has_messages and stream.works
            else KeptStream(stream.entry, had=stream.entry.captured.messages),
        )
        for stream in planned
    ]
    refuse_results(backup, options, results, "exported")
    return [_changed(objects, stream, kept, options, secret=secret) for stream, kept in results]


def _changed(
    objects: Objects, stream: PlannedStream, kept: KeptStream, options: ChangeOptions, *, secret: bytes
) -> StreamBackup | ChangedStream:
    if stream.entry.archive_format is ArchiveFormat.OPAQUE or not (stream.works or stream.renamed):
        return stream.entry
    notes = [finding.reason for finding in about_changed(stream, kept, options)]
    before = {consumer.name: consumer.reason for consumer in stream.entry.consumers}
    notes += [f"consumer {c.name}: {c.reason}" for c in kept.entry.consumers if c.reason != before[c.name]]
    reshape = stream.reshaped.with_chosen(kept)
    created = format_time(time.time_ns()) if reshape.alters else stream.entry.created
    batches = partial(reshaped_messages, objects, kept.entry, reshape, secret)
    return ChangedStream(changed_entry(stream, kept), batches, created, tuple(notes))
