"""The backup folders of the nats CLI (github.com/nats-io/jsm.go `snapshots.go`, all its history).

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
from dataclasses import dataclass
from typing import Any

from jsbackup.errors import FormatError, UnsupportedError, UsageError
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.formats.archive.archive_items import (
    MAX_SEQUENCE,
    asset_name_is_sound,
    state_from_json,
    state_to_json,
)
from jsbackup.model import JsonObject, StreamState
from jsbackup.strict_json import read_object, write_json

__all__ = [
    "ARCHIVE_V1",
    "ARCHIVE_V2",
    "META_FILE",
    "StreamMetaFile",
    "archive_in",
    "decode_meta",
    "encode_meta",
    "read_meta",
]

META_FILE = "backup.json"
ARCHIVE_V1 = "stream.tar.s2"
ARCHIVE_V2 = "stream.arc.s2"

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
        name: str = self.config["name"]
        return name


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
        options = edit.get("options")
        words = ", ".join(map(str, options)) if isinstance(options, list) else ""
        what = ": names, subjects, headers and payloads are not those of the stream" if edit.get("obfuscated") else ""
        yield f"it was edited with 'nats backup edit' ({printable_name(words) or 'no options'}){what}"
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
