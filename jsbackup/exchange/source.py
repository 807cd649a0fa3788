"""Find out what a folder to import contains by its entries: its name is arbitrary.

    a stream      `backup.json` and an archive, of `nats backup stream`
    an account    a folder of such folders, of `nats backup account`
    configs       `streams/*.json`, see `config_files.py`
    resources     `*.yaml` of NACK or `*.tf.json` of Terraform, see `declared/`

Descriptions are read at once (they are small, and name the streams), archives are not opened. In an account a folder
that is not a backup, or a damaged one, is reported separately and does not affect the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, UnsupportedError, UsageError
from jsbackup.exchange import nats_cli
from jsbackup.exchange.config_files import STREAMS_FOLDER, StreamConfigs, read_config_files
from jsbackup.exchange.declared.nack import NACK_SUFFIXES, read_nack_files
from jsbackup.exchange.declared.terraform import TERRAFORM_SUFFIX, read_terraform_files, refuse_other_syntax
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.exchange.nats_cli import StreamMetaFile
from jsbackup.failure import Failure
from jsbackup.repository.layout import DESCRIPTOR

__all__ = ["FoundStream", "ImportSource", "SourceKind"]

_STORED_STREAM = {"meta.inf", "msgs"}
_BACKUP_FILES = {nats_cli.META_FILE, nats_cli.ARCHIVE_V1, nats_cli.ARCHIVE_V2}


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
        self.streams: tuple[FoundStream, ...] = ()
        self.configs: tuple[StreamConfigs, ...] = ()
        self.failures: tuple[Failure, ...] = ()
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
            self.kind = SourceKind.STREAM
            self.streams = (self._stream(self.root, ""),)
        elif DESCRIPTOR in entries:
            raise UsageError(
                f"{shown} is a repository of jsbackup already", hint="Name it with --repo; nothing needs importing."
            )
        elif entries.get(STREAMS_FOLDER) is FolderEntry.FOLDER and not self._is_stream_folder(STREAMS_FOLDER):
            self.kind = SourceKind.CONFIGS
            with self.root.folder(STREAMS_FOLDER) as folder:
                if _is_of_server(folder):
                    raise _foreign(shown, of_server=True)
            self.configs = tuple(read_config_files(self.root))
            if not self.configs:
                raise UsageError(f"there is no config file in {shown}/{STREAMS_FOLDER}")
        else:
            self.kind = SourceKind.ACCOUNT
            self._look_at_account(entries)
            if not self.streams and not any(isinstance(f.error, IntegrityError) for f in self.failures):
                self._look_at_declarations(shown, entries)

    def _is_stream_folder(self, name: str) -> bool:
        """Return whether a folder is a backup of a stream, not one of configs (a config may be called
        `backup.json`).
        """
        with self.root.folder(name) as folder:
            entries = folder.entries()
            if entries.keys() & {nats_cli.ARCHIVE_V1, nats_cli.ARCHIVE_V2}:
                return True
            if nats_cli.META_FILE not in entries:
                return False
            try:
                nats_cli.read_meta(folder)
            except JsBackupError:
                return False
            return True

    def _look_at_account(self, entries: dict[str, FolderEntry]) -> None:
        found: dict[str, FoundStream] = {}
        failures: list[Failure] = []
        for name, kind in entries.items():
            if kind is FolderEntry.FILE or name.startswith("."):
                continue
            try:
                if kind is not FolderEntry.FOLDER:
                    raise UsageError(f"{printable_name(name)} is {kind.value}")
                with self.root.folder(name) as folder:
                    stream = self._stream(folder, name)
                other = found.setdefault(stream.meta.name, stream)
                if other is not stream:
                    twin = printable_name(other.folder)
                    raise FormatError(
                        f"{printable_name(name)} is a backup of stream {stream.meta.name}, and so is {twin}"
                    )
            except JsBackupError as error:
                failures.append(Failure(printable_name(name), error))
        self.streams = tuple(found.values())
        self.failures = tuple(failures)

    def _look_at_declarations(self, shown: str, entries: dict[str, FolderEntry]) -> None:
        files = [name for name, kind in entries.items() if kind is FolderEntry.FILE and not name.startswith(".")]
        terraform = [name for name in files if name.endswith(TERRAFORM_SUFFIX)]
        nack = [name for name in files if name.endswith(NACK_SUFFIXES)]
        refuse_other_syntax(self.root, [name for name in files if name.endswith(".tf")])
        if not terraform and not nack:
            raise _foreign(shown, of_server=_is_of_server(self.root))
        if terraform and nack:
            raise UsageError(
                f"{shown} has files of Terraform and of Kubernetes", hint="Import one kind after the other."
            )
        self.kind = SourceKind.TERRAFORM if terraform else SourceKind.NACK
        found = read_terraform_files(self.root, terraform) if terraform else read_nack_files(self.root, nack)
        self.configs, self.failures = tuple(found.streams()), tuple(found.failures)
        if not self.configs and not self.failures:
            raise UsageError(f"the files in {shown} declare no stream of JetStream")

    def _stream(self, folder: Folder, name: str) -> FoundStream:
        entries = folder.entries()
        if not entries.keys() & _BACKUP_FILES:
            raise UsageError(f"{folder.where} holds no backup of the nats CLI")
        if nats_cli.META_FILE not in entries:
            raise FormatError(
                f"{folder.where or 'the folder'} has an archive, but no {nats_cli.META_FILE}",
                hint="Without it the stream's configuration is not known; the backup was interrupted or moved in part.",
            )
        meta = nats_cli.read_meta(folder)
        archive = nats_cli.archive_in(folder, entries)
        self.written_seconds = max(self.written_seconds, folder.stamp(nats_cli.META_FILE).modified_ns // 10**9)
        return FoundStream(name, meta, archive, folder.stamp(archive).size)


def _is_of_server(folder: Folder) -> bool:
    """Return whether it is a server's `store_dir`, or a folder in it: of all accounts, of streams, or of one."""
    entries = folder.entries()
    if entries.keys() >= _STORED_STREAM or entries.get("jetstream") is FolderEntry.FOLDER:
        return True
    for name in (name for name, kind in entries.items() if kind is FolderEntry.FOLDER):
        with suppress(JsBackupError), folder.folder(name) as inner:
            within = inner.entries()
            if within.keys() >= _STORED_STREAM or within.get("streams") is FolderEntry.FOLDER:
                return True
    return False


def _foreign(shown: str, *, of_server: bool) -> JsBackupError:
    """Return the error for a folder with nothing that can be imported."""
    if of_server:
        return UnsupportedError(
            f"{shown} is a nats-server's own store, not a backup",
            hint="Import it with --server-store if its server is stopped; else use 'jsbackup backup'.",
        )
    return UsageError(
        f"{shown} holds no backup of the nats CLI and no config files",
        hint="Name the folder that 'nats backup stream' or 'nats backup account' wrote, or one with streams/*.json, "
        "*.yaml of NACK or *.tf.json of Terraform. For a table of messages, give --format.",
    )
