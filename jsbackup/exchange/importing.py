"""Import a folder of foreign files as one committed backup.

A stream that cannot be imported does not stop the others; it is reported with the reason, and the backup is partial.
The manifest, written last, commits; an import interrupted before that leaves unreferenced objects.

The manifest's source only has `imported`, with the kind of folder and the time its descriptions were written. The
cluster and account of the streams are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jsbackup.errors import JsBackupError
from jsbackup.exchange.config_files import StreamConfigs
from jsbackup.exchange.folder import Folder
from jsbackup.exchange.import_stream import UNKNOWN_TIME, ImportRun, import_stream
from jsbackup.exchange.source import FoundStream, ImportSource
from jsbackup.failure import Failure
from jsbackup.model import Fidelity, JsonObject, StreamState
from jsbackup.progress import Progress
from jsbackup.repository import layout
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import ArchiveFormat, Captured, ConsumerBackup, Manifest, Source, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.new_backup import NewBackup, StoredStream
from jsbackup.repository.write.previous import imported_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["ImportReport", "run_import"]


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
    begun_ns = clock_ns()
    streams = [StoredStream(_of_configs(configs, format_time(begun_ns))) for configs in source.configs]
    failures = list(source.failures)
    earlier: Mapping[tuple[str, str], StreamBackup] = {}
    receipts = Receipts(repository.documents, lease.id, format_time(begun_ns), TOOL)
    if source.streams:
        earlier = imported_streams(repository)
        receipts.read_earlier()
    run = ImportRun(repository.objects, earlier, receipts, clock_ns)
    for found in source.streams:
        name = found.meta.name
        progress.start(name, found.size, found.meta.state.messages)
        try:
            streams.append(_import(run, source.root, found, progress))
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
        source=Source(extra={"imported": _origin(source)}),
        begun_ns=begun_ns,
        clock_ns=clock_ns,
        random=random,
        tags=tags,
    )
    manifest = made.manifest(streams, failures)
    leases.commit(repository, manifest, lease)
    receipts.settle({repository.objects.sealing.folder(one.name, one.incarnation) for one in manifest.streams})
    return ImportReport(manifest, tuple(streams), tuple(failures))


def _import(run: ImportRun, root: Folder, found: FoundStream, progress: Progress) -> StoredStream:
    def advance(byte_count: int, messages: int) -> None:
        progress.advance(found.meta.name, byte_count, messages)

    if not found.folder:
        return import_stream(run, root, found, advance)
    with root.folder(found.folder) as folder:
        return import_stream(run, folder, found, advance)


def _origin(source: ImportSource) -> JsonObject:
    origin: JsonObject = {"from": str(source.kind)}
    if source.streams:
        origin["written"] = format_time(source.written_seconds * 1_000_000_000)
    return origin


def _of_configs(configs: StreamConfigs, now: str) -> StreamBackup:
    """Return the stream of config files; reading has checked that they can be encoded as JSON."""
    consumers = [ConsumerBackup(name, config, None, Fidelity.CONFIG_ONLY) for name, config in configs.consumers.items()]
    return StreamBackup(
        name=configs.name,
        incarnation=layout.incarnation("", "", configs.name, UNKNOWN_TIME),
        config=configs.config,
        created=UNKNOWN_TIME,
        state=StreamState(),
        captured=Captured(0, 0, 0, 0, now, now),
        archive_format=ArchiveFormat.CONFIG,
        consumers=tuple(consumers),
    )
