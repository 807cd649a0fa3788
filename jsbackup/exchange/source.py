"""Find out what a folder to import contains by its entries: its name is arbitrary.

    a stream      `backup.json` and an archive, of `nats backup stream`
    an account    a folder of such folders, of `nats backup account`
    configs       `streams/*.json`, see `config_files.py`
    resources     `*.yaml` of NACK or `*.tf.json` of Terraform, see `declared/`

Descriptions are read at once (they are small, and name the streams), archives are not opened. In an account a folder
that is not a backup, or a damaged one, is reported separately and does not affect the others.

The backup folders of the nats CLI (github.com/nats-io/jsm.go `snapshots.go`, all its history):

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
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, UnsupportedError, UsageError
from jsbackup.exchange.config_files import STREAMS_FOLDER, StreamConfigs, read_config_files
from jsbackup.exchange.declared.nack import NACK_SUFFIXES, read_nack_files
from jsbackup.exchange.declared.terraform import TERRAFORM_SUFFIX, read_terraform_files, refuse_other_syntax
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.failure import Failure
from jsbackup.formats.archive.archive_items import (
    MAX_SEQUENCE,
    asset_name_is_sound,
    state_from_json,
    state_to_json,
)
from jsbackup.model import JsonObject, StreamState
from jsbackup.repository.layout import DESCRIPTOR
from jsbackup.strict_json import read_object, write_json

__all__ = [
    "ARCHIVE_V1",
    "ARCHIVE_V2",
    "META_FILE",
    "FoundStream",
    "ImportSource",
    "SourceKind",
    "StreamMetaFile",
    "archive_in",
    "decode_meta",
    "encode_meta",
    "read_meta",
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


def read_meta(folder: Folder) -> StreamMetaFile:
    """Read the `backup.json` of a folder.

    Raises:
        FormatError: it is damaged.
        UnsupportedError: it is of a kind of backup that is not supported.
    """
    return decode_meta(folder.read(META_FILE, _MAX_META_BYTES), folder.path_of(META_FILE))


def decode_meta(data: bytes, where: str) -> StreamMetaFile:
    """Decode the content of a `backup.json`; `where` names it. Raises the same errors as `read_meta`."""
    if not data.strip():
        raise FormatError(f"{where} is empty", hint="The backup was interrupted: its archive is not whole.")
    value = read_object(data, where)
    if "checksum" in value and "configuration" in value:
        raise UnsupportedError(
            f"{where} is of a configuration backup that the nats CLI made before June 2022", hint="It has no messages."
        )
    config = _object(value, "config", where)
    name = config.get("name")
    if not isinstance(name, str) or not asset_name_is_sound(name):
        raise FormatError(f"{where}: config has no stream name")
    state = state_from_json(_object(value, "state", where), f"{where}: state")
    if max(state.first_seq - 1, state.last_seq) > MAX_SEQUENCE:
        raise FormatError(f"{where}: state: sequence out of range")
    return StreamMetaFile(config, state, tuple(_made(value)))


def _made(value: JsonObject) -> Iterator[str]:
    edit, source = value.get("edit"), value.get("source")
    if isinstance(edit, dict):
        what = ": names, subjects, headers and payloads are not those of the stream" if edit.get("obfuscated") else ""
        yield f"it was edited with 'nats backup edit'{what}"
    if isinstance(source, dict):
        dropped = source.get("dropped")
        lost = f", which missed {dropped} messages" if isinstance(dropped, int) and dropped else ""
        yield f"it was recorded with 'nats sub --backup'{lost}: it has no consumers"


def _object(value: JsonObject, key: str, where: str) -> JsonObject:
    part: Any = value.get(key)
    if not isinstance(part, dict):
        raise FormatError(f"{where} has no {key}")
    return part


def encode_meta(config: JsonObject, state: StreamState) -> bytes:
    """Encode a `backup.json`. Raises `FormatError` if the config cannot be encoded as JSON."""
    value = {"config": config, "state": state_to_json(state)}
    return write_json(value, f"the config of stream {config.get('name')}", indent=2, ascii_only=True) + b"\n"


def archive_in(folder: Folder, entries: dict[str, FolderEntry]) -> str:
    """Return the name of the archive in a stream's folder.

    Raises:
        FormatError: there is none.
        UsageError: there are two.
    """
    found = [name for name in (ARCHIVE_V1, ARCHIVE_V2) if name in entries]
    if len(found) == 2:
        raise UsageError(
            f"{folder.where or 'the folder'} holds both {ARCHIVE_V1} and {ARCHIVE_V2}",
            hint="Only one of them belongs to its backup.json: remove the other.",
        )
    if not found:
        raise FormatError(f"{folder.path_of(META_FILE)} has no {ARCHIVE_V1} or {ARCHIVE_V2} beside it")
    return found[0]


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
        elif entries.get(STREAMS_FOLDER) is FolderEntry.FOLDER and self._has_configs():
            self.kind = SourceKind.CONFIGS
            self.configs = tuple(read_config_files(self.root))
            if not self.configs:
                raise UsageError(f"there is no config file in {shown}/{STREAMS_FOLDER}")
        else:
            self.kind = SourceKind.ACCOUNT
            self._look_at_account(entries)
            if not self.streams and not any(isinstance(f.error, IntegrityError) for f in self.failures):
                self._look_at_declarations(shown, entries)

    def _has_configs(self) -> bool:
        """Return whether the folder of configs is one; not a stream of that name, or the folder of a server."""
        with self.root.folder(STREAMS_FOLDER) as folder:
            entries = folder.entries()
        return not entries.keys() & _ARCHIVES and FolderEntry.FOLDER not in entries.values()

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
        found = read_terraform_files(self.root, terraform) if terraform else read_nack_files(self.root, nack)
        self.configs, self.failures = tuple(found.streams()), tuple(found.failures)
        if not self.configs and not self.failures:
            raise UsageError(f"the files in {shown} declare no stream of JetStream")

    def _stream(self, folder: Folder, name: str) -> FoundStream:
        entries = folder.entries()
        if not entries.keys() & _BACKUP_FILES:
            raise UsageError(f"{folder.where} holds no backup of the nats CLI")
        if META_FILE not in entries:
            raise FormatError(
                f"{folder.where or 'the folder'} has an archive, but no {META_FILE}",
                hint="Without it the stream's configuration is not known; the backup was interrupted or moved in part.",
            )
        meta = read_meta(folder)
        archive = archive_in(folder, entries)
        self.written_seconds = max(self.written_seconds, folder.stamp(META_FILE).modified_ns // 10**9)
        return FoundStream(name, meta, archive, folder.stamp(archive).size)
