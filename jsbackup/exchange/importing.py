"""Import a folder of foreign files as one committed backup.

A stream that cannot be imported does not stop the others; it is reported with the reason, and the backup is partial.
The manifest, written last, commits; an import interrupted before that leaves unreferenced objects.

The manifest's source only has `imported`, with the kind of folder and the time its descriptions were written. The
cluster and account of the streams are not known.

What a folder contains is found out by its entries: its name is arbitrary.

    a stream      `backup.json` and an archive, of `nats backup stream`
    an account    a folder of such folders, of `nats backup account`
    configs       `streams/*.json`, see `config_files.py`
    resources     `*.yaml` of NACK or `*.tf.json` of Terraform, see `declared/`

Descriptions are read at once (they are small, and name the streams), archives are not opened. In an account a folder
that is not a backup, or a damaged one, is reported separately and does not affect the others.

Folders of the nats CLI (github.com/nats-io/jsm.go `snapshots.go`, all its history):

    nats backup stream NAME DIR         DIR/backup.json, and the archive beside it
    nats backup account DIR             the same for each stream, in DIR/<stream>/

These are the commands of CLI 0.5; the former `nats stream backup` and `nats account backup` wrote the same.

`backup.json` holds `config` and `state` from the server's answer to the snapshot request, as far as the CLI's version
knows their fields: `nats backup restore` sends it. It is created first and filled last, so an empty one is left by an
interrupted backup. What `nats backup edit` and `nats sub --backup` write (jsm.go `backup/metafile.go`, from CLI 0.5 on)
has another object, `edit` or `source`, which says so.

The archive is the unchanged snapshot, an S2 stream. Its name is `stream.tar.s2` for both formats up to CLI 0.4, and
since 0.5 `stream.arc.s2` for v2. A folder with both is refused by the CLI, and here. Recorded backups before February
2021 are single files without a description; configuration backups before June 2022 are files with `type`, `time`,
`configuration` and `checksum`. Neither is read here.

The CLI restores `stream.tar.s2` of any format; `stream.arc.s2` and streams kept in memory only since 0.5. Its commands
for folders (`info`, `validate`, `edit`) only support v2.

The archive is read in pieces, and verified like one from a server. An archive v1 is read twice: it reports deletions
after the messages, and so these need not be stored only to be removed again.

Besides the archive a folder only has `backup.json`, which nothing protects. So they are compared:

- the stream's name must be the same, and an archive v1 must reach the last sequence that `backup.json` reports;
- state: an archive v2 has its own, which is used, as by a server;
- config: that of `backup.json`, which `nats backup restore` would send, and which people edit. A CLI older than its
  server drops fields that it does not know; an archive v1 has all of them, so fields missing in `backup.json` are taken
  from there. Both kinds of difference become warnings.

Consumers are exactly those of the archive, with two exceptions: a cluster's archive v2 silently resets those with
unacknowledged messages to their ack floor, and servers before 2.11 do not store where a consumer starts.

The time of creation of a v2 stream is not known: it is set to Go's zero time, which servers ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.exchange.config_files import STREAMS_FOLDER, StreamConfigs, read_config_files, without_server_metadata
from jsbackup.exchange.declared.nack import NACK_SUFFIXES, read_nack_files
from jsbackup.exchange.declared.terraform import TERRAFORM_SUFFIX, read_terraform_files, refuse_other_syntax
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.failure import Failure
from jsbackup.formats.archive.archive import ArchiveDecoder, ArchiveEnd, ArchiveItem, StreamMeta, late_deletions
from jsbackup.formats.archive.archive_items import (
    asset_name_is_sound,
)
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject, StreamState
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.layout import DESCRIPTOR
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    ConsumerBackup,
    Manifest,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.manifest_json import decode_manifest, encode_manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.late_deletions import messages_to_remove
from jsbackup.repository.write.new_backup import NewBackup, StoredStream, imported_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.repository.write.segment_writer import SegmentWriter, stored_segments, untouched
from jsbackup.repository.write.stream_objects import store_consumer
from jsbackup.server_state import MAX_SEQUENCE, clamp_state, stream_state_from_json, stream_state_to_json
from jsbackup.strict_json import Fields, read_object, write_json
from jsbackup.times import ZERO_TIME, format_time, parse_time
from jsbackup.tool import TOOL

__all__ = [
    "ARCHIVE_V1",
    "ARCHIVE_V2",
    "META_FILE",
    "FoundStream",
    "ImportReport",
    "ImportRun",
    "ImportSource",
    "NewStream",
    "SourceKind",
    "StreamMetaFile",
    "archive_in",
    "consumer_as_imported",
    "decode_meta",
    "encode_meta",
    "import_stream",
    "import_streams",
    "run_import",
]

META_FILE = "backup.json"
ARCHIVE_V1 = "stream.tar.s2"
ARCHIVE_V2 = "stream.arc.s2"

_ARCHIVES = {ARCHIVE_V1, ARCHIVE_V2}
_BACKUP_FILES = {META_FILE, *_ARCHIVES}

# A state may list the sequences of deleted messages.
_MAX_META_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StreamMetaFile:
    """The content of `backup.json`. `made` are sentences about its origin if that was not a snapshot of a stream."""

    config: JsonObject
    state: StreamState
    made: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.config["name"])


def decode_meta(data: bytes, where: str) -> StreamMetaFile:
    """Decode the content of a `backup.json`; `where` names it.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it is of a kind of backup that is not supported.
    """
    if not data.strip():
        raise FormatError(f"{where} is empty", hint="The backup was interrupted: its archive is not whole.")
    value = read_object(data, where)
    if "checksum" in value and "configuration" in value:
        raise UnsupportedError(
            f"{where} is of a configuration backup that the nats CLI made before June 2022", hint="It has no messages."
        )
    fields = Fields(value, where)
    config = fields.fields("config")
    if not asset_name_is_sound(config.text("name")):
        raise FormatError(f"{where}: config has no stream name")
    state = stream_state_from_json(fields.fields("state"), absent=0)
    if max(state.first_seq - 1, state.last_seq) > MAX_SEQUENCE:
        raise FormatError(f"{where}: state: sequence out of range")
    return StreamMetaFile(config.value, state, tuple(_made(value)))


def _made(value: JsonObject) -> Iterator[str]:
    edit, source = value.get("edit"), value.get("source")
    if isinstance(edit, dict):
        what = ": names, subjects, headers and payloads are not those of the stream" if edit.get("obfuscated") else ""
        yield f"it was edited with 'nats backup edit'{what}"
    if isinstance(source, dict):
        dropped = source.get("dropped")
        lost = f", which missed {dropped} messages" if isinstance(dropped, int) and dropped else ""
        yield f"it was recorded with 'nats sub --backup'{lost}: it has no consumers"


def encode_meta(config: JsonObject, state: StreamState) -> bytes:
    """Encode a `backup.json`. Raises `FormatError` if the config cannot be encoded as JSON."""
    value = {"config": config, "state": stream_state_to_json(state)}
    return write_json(value, f"the config of stream {config.get('name')}", indent=2, ascii_only=True) + b"\n"


def archive_in(folder: Folder, entries: dict[str, FolderEntry]) -> str:
    """Return the name of the archive in a stream's folder.

    Raises:
        FormatError: there is none.
        UsageError: there are two.
    """
    archives = [name for name in (ARCHIVE_V1, ARCHIVE_V2) if name in entries]
    if len(archives) == 2:
        raise UsageError(
            f"{folder.where or 'the folder'} holds both {ARCHIVE_V1} and {ARCHIVE_V2}",
            hint="Only one of them belongs to its backup.json: remove the other.",
        )
    if not archives:
        raise FormatError(f"{folder.path_of(META_FILE)} has no {ARCHIVE_V1} or {ARCHIVE_V2} beside it")
    return archives[0]


class SourceKind(StrEnum):
    """The kind in manifests, by which retention distinguishes series of imports: these are the terms of CLI 0.4."""

    STREAM = "nats stream backup"
    ACCOUNT = "nats account backup"
    CONFIGS = "config files"
    NACK = "NACK files"
    TERRAFORM = "Terraform files"


@dataclass(frozen=True, slots=True)
class FoundStream:
    """A stream's folder: `folder` is its name in an account, "" if it is the root. `size` is the archive's."""

    folder: str
    meta: StreamMetaFile
    archive: str
    size: int


class ImportSource:
    """An open folder to import; `open` is a context manager."""

    def __init__(self, root: Folder) -> None:
        self.root = root
        self.kind = SourceKind.STREAM
        self.streams: list[FoundStream] = []
        self.configs: list[StreamConfigs] = []
        self.failures: list[Failure] = []
        self.written_seconds = 0  # modification time of the newest description

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ImportSource]:
        """Look into a folder.

        Raises:
            UsageError: it has nothing to import, or invalid config files or resources.
            FormatError: the description of the only stream is damaged.
            UnsupportedError: a kind of backup that is not supported.
            StoreError: it cannot be read.
        """
        with Folder.open(path) as root:
            source = cls(root)
            source._look(printable_name(str(path)))
            yield source

    def _look(self, shown: str) -> None:
        entries = self.root.entries()
        if entries.keys() & _BACKUP_FILES:
            self.streams = [self._stream(self.root, "")]
        elif DESCRIPTOR in entries:
            raise UsageError(
                f"{shown} is a repository of jsbackup already", hint="Name it with --repo; nothing needs importing."
            )
        elif entries.get(STREAMS_FOLDER) is FolderEntry.FOLDER and not self._is_archived(STREAMS_FOLDER):
            self.kind = SourceKind.CONFIGS
            self.configs = read_config_files(self.root)
        else:
            self.kind = SourceKind.ACCOUNT
            self._look_at_account(entries)
            if not self.streams and not any(isinstance(f.error, IntegrityError) for f in self.failures):
                self._look_at_declarations(shown, entries)
        if not self.streams and not self.configs and not self.failures:
            raise UsageError(f"the files in {shown} declare no stream of JetStream")

    def _is_archived(self, name: str) -> bool:
        """Return whether a folder is a backup of a stream; not one of configs, of which one may be `backup.json`."""
        with self.root.folder(name) as folder:
            return bool(folder.entries().keys() & _ARCHIVES)

    def _look_at_account(self, entries: dict[str, FolderEntry]) -> None:
        streams: dict[str, FoundStream] = {}
        for name, kind in entries.items():
            if kind is FolderEntry.FILE or name.startswith("."):
                continue
            try:
                if kind is not FolderEntry.FOLDER:
                    raise UsageError(f"{printable_name(name)} is {kind.value}")
                with self.root.folder(name) as folder:
                    stream = self._stream(folder, name)
                other = streams.setdefault(stream.meta.name, stream)
                if other is not stream:
                    twin = printable_name(other.folder)
                    raise FormatError(
                        f"{printable_name(name)} is a backup of stream {stream.meta.name}, and so is {twin}"
                    )
            except JsBackupError as error:
                self.failures.append(Failure(printable_name(name), error))
        self.streams = list(streams.values())

    def _look_at_declarations(self, shown: str, entries: dict[str, FolderEntry]) -> None:
        files = [name for name, kind in entries.items() if kind is FolderEntry.FILE and not name.startswith(".")]
        terraform = [name for name in files if name.endswith(TERRAFORM_SUFFIX)]
        nack = [name for name in files if name.endswith(NACK_SUFFIXES)]
        refuse_other_syntax(self.root, [name for name in files if name.endswith(".tf")])
        if not terraform and not nack:
            raise UsageError(
                f"{shown} holds no backup of the nats CLI and no config files",
                hint="Name the folder that 'nats backup stream' or 'nats backup account' wrote, or one with "
                "streams/*.json, *.yaml of NACK or *.tf.json of Terraform. For the store of a nats-server that is "
                "stopped, give --server-store. For a table of messages, give --format.",
            )
        if terraform and nack:
            raise UsageError(
                f"{shown} has files of Terraform and of Kubernetes", hint="Import one kind after the other."
            )
        self.kind = SourceKind.TERRAFORM if terraform else SourceKind.NACK
        configs = read_terraform_files(self.root, terraform) if terraform else read_nack_files(self.root, nack)
        self.configs, self.failures = configs.streams(), configs.failures

    def _stream(self, folder: Folder, name: str) -> FoundStream:
        entries = folder.entries()
        if not entries.keys() & _BACKUP_FILES:
            raise UsageError(f"{folder.where} holds no backup of the nats CLI")
        if META_FILE not in entries:
            raise FormatError(
                f"{folder.where or 'the folder'} has an archive, but no {META_FILE}",
                hint="Without it the stream's configuration is not known; the backup was interrupted or moved in part.",
            )
        meta = decode_meta(folder.read(META_FILE, _MAX_META_BYTES), folder.path_of(META_FILE))
        archive = archive_in(folder, entries)
        self.written_seconds = max(self.written_seconds, folder.stamp(META_FILE).modified_ns // 10**9)
        return FoundStream(name, meta, archive, folder.stamp(archive).size)


_ROLLED_BACK = "an archive of a cluster contains only the ack floor; messages delivered above it are redelivered"
_NO_START = "servers before 2.11 keep where a consumer starts with its first delivery only; messages may be redelivered"


@dataclass(frozen=True, slots=True)
class ImportRun:
    """The common arguments for the streams of one import.

    `earlier` are streams that were imported before, by name and incarnation, and `receipts` have what unfinished runs
    have stored: equal segments are not stored again.
    """

    objects: Objects
    earlier: Mapping[tuple[str, str], StreamBackup]
    receipts: Receipts
    clock_ns: Callable[[], int]


class NewStream:
    """A stream that is being stored by `writer` in `folder`. `reusable` are segments that are stored already, without
    those whose keys are `shunned`.
    """

    def __init__(self, run: ImportRun, name: str, created: str, shunned: Collection[str] = ()) -> None:
        self.incarnation = layout.incarnation("", "", name, created)
        self.folder = run.objects.sealing.folder(name, self.incarnation)
        candidates = run.receipts.candidates(self.folder, run.earlier.get((name, self.incarnation)))
        stored = stored_segments(run.objects, self.folder, *candidates)
        self.reusable = [ref for ref in stored if ref.key not in shunned]
        self.writer = SegmentWriter(run.objects, self.folder, self.reusable, note=run.receipts.note)


def import_stream(
    run: ImportRun, folder: Folder, source_stream: FoundStream, advance: Callable[[int, int], None]
) -> StoredStream:
    """Store the stream in `folder`. `advance` is called with the processed bytes of the archive and messages.

    Raises:
        FormatError: the archive is damaged, or does not belong to its `backup.json`.
        UnsupportedError: its format is not known.
        StoreError: it cannot be read, or its segments cannot be stored.
    """
    begun_ns = run.clock_ns()
    intake = _Intake(run, source_stream.meta)
    end = _read(folder, source_stream, intake, advance)
    try:
        segments = intake.finish(end)
    except (KeyUnavailable, IntegrityError):
        # Messages must be removed from a segment of an earlier run, which is encrypted or not as it should be.
        if not intake.touched:
            raise
        intake = _Intake(run, source_stream.meta, shunned=intake.touched)
        end = _read(folder, source_stream, intake, advance)
        segments = intake.finish(end)
    totals = total_of(segments)
    state = replace(intake.state, last_seq=max(intake.state.last_seq, end.last_seq))
    ended_ns = run.clock_ns()
    stream = StreamBackup(
        name=source_stream.meta.name,
        incarnation=intake.stored.incarnation,
        config=intake.config,
        created=intake.created,
        state=state,
        captured=Captured.of(totals, format_time(begun_ns), format_time(ended_ns)),
        archive_format=ArchiveFormat(end.format),
        digest=totals.digest,
        segments=tuple(segments),
        consumers=tuple(intake.stored_consumers(end, state.last_seq)),
        warnings=(
            *source_stream.meta.made,
            *intake.differences,
            *_missing(source_stream.meta.state, totals.messages, len(intake.consumers), end),
        ),
    )
    _check_describable(stream)
    return StoredStream(
        stream, intake.stored.writer.reused, intake.stored.writer.stored_bytes, max(0, ended_ns - begun_ns) / 1e9
    )


def _read(folder: Folder, stream: FoundStream, intake: _Intake, advance: Callable[[int, int], None]) -> ArchiveEnd:
    """Read the archive into `intake`; an archive v1 twice, see above."""
    if not _is_v1(folder, stream):
        return _read_archive(folder, stream, SequenceSet(), take=intake.take, advance=advance)

    def half(byte_count: int, messages: int) -> None:
        advance(byte_count // 2, messages)

    where = folder.path_of(stream.archive)
    before = _read_archive(folder, stream, SequenceSet(), take=lambda _item: 0, advance=half)
    reached = max(before.last_seq, before.index.last_seq if before.index else 0)
    if reached < stream.meta.state.last_seq:
        raise FormatError(
            f"{where} ends at sequence {reached}, {META_FILE} reports {stream.meta.state.last_seq}",
            hint="The two files are not of the same backup, or the server lost messages.",
        )
    deleted = late_deletions(before).certain
    end = _read_archive(folder, stream, deleted, take=intake.take, advance=half)
    if (end.messages, end.last_seq) != (before.messages - len(deleted), before.last_seq):
        raise FormatError(f"{where} changed while it was read")
    return end


def _is_v1(folder: Folder, stream: FoundStream) -> bool:
    decoder = ArchiveDecoder()
    with suppress(FormatError, UnsupportedError):  # which reading raises again
        items = (item for chunk in folder.chunks(stream.archive) for item in decoder.feed(chunk))
        first = next(items, None)
        return isinstance(first, StreamMeta) and first.config is not None
    return False


def _read_archive(
    folder: Folder,
    stream: FoundStream,
    deleted: SequenceSet,
    *,
    take: Callable[[ArchiveItem], int],
    advance: Callable[[int, int], None],
) -> ArchiveEnd:
    """Pass every item, without the messages in `deleted`, to `take`, which returns the number of its messages.

    `advance` is called with the processed bytes and messages. Raises `FormatError`, `UnsupportedError`.
    """
    decoder = ArchiveDecoder(stream.meta.state.first_seq, deleted)
    try:
        for chunk in folder.chunks(stream.archive):
            advance(len(chunk), sum(map(take, decoder.feed(chunk))))
        items, end = decoder.finish()
        advance(0, sum(map(take, items)))
    except (FormatError, UnsupportedError) as error:
        raise error.with_message(f"{folder.path_of(stream.archive)}: {error.message}") from error
    return end


class _Intake:
    """Stores the items of an archive as they come."""

    def __init__(self, run: ImportRun, meta: StreamMetaFile, shunned: Collection[str] = ()) -> None:
        self._run, self._meta, self._shunned = run, meta, shunned
        self.config, self.state, self.created = meta.config, meta.state, ZERO_TIME
        self.differences: list[str] = []
        self.consumers: dict[str, ArchivedConsumer] = {}
        self.touched: set[str] = set()  # segments of earlier runs from which messages must be removed
        self.stored = NewStream(run, meta.name, self.created, shunned)

    def take(self, item: ArchiveItem) -> int:
        """Handle an item; return the number of messages in it."""
        if isinstance(item, StreamMeta):
            self._take_meta(item)
        elif isinstance(item, ArchivedConsumer):
            if item.created is not None:
                parse_time(item.created, f"creation time of consumer {item.name}")
            if self.consumers.setdefault(item.name, item) is not item:
                raise FormatError(f"consumer {item.name} appears twice")
        else:
            self.stored.writer.add(item)
            return int(item.num_rows)
        return 0

    def _take_meta(self, meta: StreamMeta) -> None:
        if meta.state is not None:
            # An edited `backup.json` describes the kept messages, and its archive the original stream.
            if not self._meta.made:
                self.differences += _state_differences(meta.state, self.state)
            self.state = meta.state
        if meta.config is None:
            return
        if meta.config.get("name") != self._meta.name:
            raise FormatError(f"the archive is of stream {meta.config.get('name')}, {META_FILE} of {self._meta.name}")
        self.config, differences = _merged(meta.config, self._meta.config)
        self.differences += differences
        if meta.created is not None:
            parse_time(meta.created, "creation time of the stream")
            self.created = meta.created
            self.stored = NewStream(self._run, self._meta.name, self.created, self._shunned)

    def finish(self, end: ArchiveEnd) -> list[SegmentRef]:
        """Return the segments, without what was deleted while the server read them, as far as newer messages explain
        it.
        """
        self.touched = {ref.key for ref in self.stored.reusable}
        segments = self.stored.writer.finish()
        remove = messages_to_remove(end, self.config, segments, SegmentReader(self._run.objects))
        self.touched -= {ref.key for ref in untouched(segments, remove)}
        return self.stored.writer.without(segments, remove)

    def stored_consumers(self, end: ArchiveEnd, last_seq: int) -> Iterator[ConsumerBackup]:
        clustered = end.format == "v2" and _is_of_a_cluster(self.config)
        for name in sorted(self.consumers):
            backup = consumer_as_imported(self.consumers[name], last_seq, clustered=clustered)
            yield store_consumer(self._run.objects, self.stored.folder, backup)


def _is_of_a_cluster(config: JsonObject) -> bool:
    replicas = config.get("num_replicas")
    return (isinstance(replicas, int) and replicas > 1) or bool(config.get("placement"))


def consumer_as_imported(consumer: ArchivedConsumer, last_seq: int, *, clustered: bool = False) -> ConsumerBackup:
    """Return a consumer of a stream that ends at `last_seq`, with the fidelity of its state; `clustered` if it is of an
    archive v2 of a cluster.
    """
    if consumer.state is None:
        fidelity, state, reason = Fidelity.CONFIG_ONLY, None, "the archive has no state for it"
    else:
        fidelity, state, reason = Fidelity.EXACT, clamp_state(consumer.state, last_seq), ""
        acks = consumer.config.get("ack_policy") != "none"
        if clustered and acks and not state.pending and state.delivered == state.ack_floor:
            fidelity, reason = Fidelity.FLOOR, _ROLLED_BACK
        elif state.delivered.stream == 0 < last_seq and consumer.config.get("deliver_policy", "all") != "all":
            fidelity, reason = Fidelity.FLOOR, _NO_START
    return ConsumerBackup(consumer.name, consumer.config, consumer.created, fidelity, state, reason)


def _means_something(value: object) -> bool:
    """Return whether it differs from the default, which the CLI omits and servers write, or the other way round."""
    return bool(value) and value not in ("none", "default")


def _merged(archived: JsonObject, described: JsonObject) -> tuple[JsonObject, list[str]]:
    """Return the described config, completed from the archived one, and the differences."""
    before, now = without_server_metadata(archived), without_server_metadata(described)
    lacking = sorted(key for key, value in before.items() if _means_something(value) and key not in now)
    differing = sorted(
        key
        for key in before.keys() & now.keys()
        if before[key] != now[key] and (_means_something(before[key]) or _means_something(now[key]))
    )
    differing += sorted(key for key, value in now.items() if key not in before and _means_something(value))
    said: list[str] = []
    if lacking:
        said.append(f"{META_FILE} lacks {', '.join(lacking)}, which was taken from the archive")
    if differing:
        said.append(f"{META_FILE} and the archive differ in {', '.join(differing)}; the value of {META_FILE} was used")
    return {**described, **{key: archived[key] for key in lacking}}, said


def _state_differences(archived: StreamState, described: StreamState) -> Iterator[str]:
    if (archived.first_seq, archived.last_seq) != (described.first_seq, described.last_seq):
        yield (
            f"{META_FILE} reports sequences {described.first_seq} to {described.last_seq}, "
            f"its archive {archived.first_seq} to {archived.last_seq}; the archive's are used"
        )


def _missing(reported: StreamState, messages: int, consumers: int, end: ArchiveEnd) -> Iterator[str]:
    """Yield what a folder lacks according to its description. Messages that arrive or expire meanwhile are one
    reason.
    """
    if messages != reported.messages:
        yield f"messages in the archive: {messages}, in {META_FILE}: {reported.messages}"
    if consumers < reported.consumers:
        why = "those held in memory, or on other servers of a cluster, " if end.format == "v1" else ""
        yield (
            f"consumers in the archive: {consumers}, in {META_FILE}: {reported.consumers}; "
            f"{why}{'or ' if why else ''}they were not asked for"
        )


def _check_describable(stream: StreamBackup) -> None:
    """Raise the error for this stream alone if a manifest could not hold it, instead of failing the whole backup."""
    backup = layout.backup_id(0, bytes(3))
    alone = Manifest(backup, ZERO_TIME, "", Source(), BackupResult.COMPLETE, (stream,))
    try:
        decode_manifest(encode_manifest(alone), layout.manifest_key(backup))
    except FormatError as error:
        raise FormatError(f"stream {stream.name} cannot be kept in a manifest: {error.message}") from error


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The result. `manifest` is None if nothing was committed because no stream could be imported."""

    manifest: Manifest | None
    streams: tuple[StoredStream, ...]
    failures: tuple[Failure, ...]


def run_import(
    source: ImportSource,
    repository: Repository,
    *,
    lease: leases.Lease,
    tags: Mapping[str, str],
    progress: Progress,
    clock_ns: Callable[[], int],
    random: Callable[[int], bytes],
) -> ImportReport:
    """Import every stream of `source` and commit them as one backup.

    `lease` is a shared one, renewed by the caller. `clock_ns` returns Unix time, `random` returns that many random
    bytes.

    Raises:
        RepositoryLocked: the lease was lost; nothing was committed.
        StoreError: the backup cannot be committed.
    """
    now = format_time(clock_ns())
    origin: JsonObject = {"from": str(source.kind)}
    if source.streams:
        origin["written"] = format_time(source.written_seconds * 1_000_000_000)
    return import_streams(
        [(stream.meta.name, partial(_import, source.root, stream, progress)) for stream in source.streams],
        repository,
        described=[StoredStream(_of_configs(configs, now)) for configs in source.configs],
        failures=source.failures,
        origin=origin,
        lease=lease,
        tags=tags,
        progress=progress,
        clock_ns=clock_ns,
        random=random,
    )


def import_streams(
    imports: Sequence[tuple[str, Callable[[ImportRun], StoredStream]]],
    repository: Repository,
    *,
    described: Iterable[StoredStream] = (),
    failures: Iterable[Failure],
    origin: JsonObject,
    lease: leases.Lease,
    tags: Mapping[str, str],
    progress: Progress,
    clock_ns: Callable[[], int],
    random: Callable[[int], bytes],
) -> ImportReport:
    """Do the `imports` of streams by name, and commit them with those that are `described`. `origin` is the source in
    the manifest. The rest is as in `run_import`, which see for errors.
    """
    begun_ns = clock_ns()
    streams, failures = list(described), list(failures)
    receipts = Receipts(repository.documents, lease.id, format_time(begun_ns), TOOL)
    earlier: Mapping[tuple[str, str], StreamBackup] = {}
    if imports:
        earlier = imported_streams(repository)
        receipts.read_earlier()
    run = ImportRun(repository.objects, earlier, receipts, clock_ns)
    for name, do_import in imports:
        try:
            streams.append(do_import(run))
        except JsBackupError as error:
            failures.append(Failure(name, error))
        finally:
            progress.finish(name)
    failures.sort(key=lambda failure: failure.name)
    if not streams:
        return ImportReport(None, (), tuple(failures))
    streams.sort(key=lambda imported: imported.stream.name)
    made = NewBackup(
        repository,
        source=Source(imported=origin),
        begun_ns=begun_ns,
        clock_ns=clock_ns,
        random=random,
        tags=tags,
    )
    manifest = made.manifest(streams, failures)
    leases.commit(repository, manifest, lease)
    receipts.settle({repository.objects.sealing.folder(stream.name, stream.incarnation) for stream in manifest.streams})
    return ImportReport(manifest, tuple(streams), tuple(failures))


def _import(root: Folder, stream: FoundStream, progress: Progress, run: ImportRun) -> StoredStream:
    progress.start(stream.meta.name, stream.size, stream.meta.state.messages)
    advance = partial(progress.advance, stream.meta.name)
    if not stream.folder:
        return import_stream(run, root, stream, advance)
    with root.folder(stream.folder) as folder:
        return import_stream(run, folder, stream, advance)


def _of_configs(configs: StreamConfigs, now: str) -> StreamBackup:
    """Return the stream of config files; reading has checked that they can be encoded as JSON."""
    consumers = [ConsumerBackup(name, config, None, Fidelity.CONFIG_ONLY) for name, config in configs.consumers.items()]
    return StreamBackup(
        name=configs.name,
        incarnation=layout.incarnation("", "", configs.name, ZERO_TIME),
        config=configs.config,
        created=ZERO_TIME,
        state=StreamState(),
        captured=Captured(0, 0, 0, 0, now, now),
        archive_format=ArchiveFormat.CONFIG,
        consumers=tuple(consumers),
    )
