"""Configurations as plain files for version control, editing and applying.

    DIR/streams/<stream>.json                 a stream's config
    DIR/consumers/<stream>/<consumer>.json    a consumer's

Each is just the config object of JetStream's API: no state, and no metadata under `_nats.`, which servers write
themselves. Keys are sorted, with an indent of two spaces and a final newline, so that equal configs are equal files and
a change is one line. Names of files are encoded like keys of the repository (`repository/names.py`). Names that differ
only in case get a part of their digest, because file systems of macOS and Windows would take one file for both.

The file's name must match the config's `name`: otherwise a copied file with the old name in it would silently replace
another stream. Hidden files, and anything else in DIR, are skipped; in the folders of configs every other file must be
a config. Mistakes in these files are usage errors: people write them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.exchange.new_folder import NewFolder
from jsbackup.exchange.refused_values import refuse_values
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.model import JsonObject
from jsbackup.repository.names import encode_name, encode_name_with_digest
from jsbackup.strict_json import read_object, write_json

__all__ = [
    "CONSUMERS_FOLDER",
    "MAX_CONFIG_BYTES",
    "STREAMS_FOLDER",
    "StreamConfigs",
    "encode_config",
    "read_config_files",
    "without_server_metadata",
    "write_config_files",
]

STREAMS_FOLDER = "streams"
CONSUMERS_FOLDER = "consumers"

_SUFFIX = ".json"
_SERVER_METADATA = "_nats."
# The server's limit for a request (`max_payload`).
MAX_CONFIG_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class StreamConfigs:
    """A stream's config and those of its consumers by name, in order of names."""

    config: JsonObject
    consumers: dict[str, JsonObject]

    @property
    def name(self) -> str:
        name: str = self.config["name"]
        return name


def without_server_metadata(config: JsonObject) -> JsonObject:
    """Return the config without the metadata that servers add: their version, and the API level they need."""
    metadata = config.get("metadata")
    if not isinstance(metadata, dict):
        return config
    kept = {key: value for key, value in metadata.items() if not key.startswith(_SERVER_METADATA)}
    plain = {key: value for key, value in config.items() if key != "metadata"}
    return {**plain, "metadata": kept} if kept else plain


def encode_config(config: JsonObject) -> bytes:
    """Return the content of a file. Raises `FormatError` if the config cannot be encoded as JSON."""
    what = f"the config of {config.get('name')}"
    return write_json(without_server_metadata(config), what, sort_keys=True, indent=2) + b"\n"


def write_config_files(new: NewFolder, streams: Iterator[StreamConfigs]) -> None:
    """Write the files. Raises `FormatError`, and the errors of `NewFolder`."""
    new.folder(STREAMS_FOLDER)
    with_consumers = False
    found = list(streams)
    files = _file_names(stream.name for stream in found)
    for stream in found:
        new.write(f"{STREAMS_FOLDER}/{files[stream.name]}{_SUFFIX}", encode_config(stream.config))
        if not stream.consumers:
            continue
        if not with_consumers:
            new.folder(CONSUMERS_FOLDER)
            with_consumers = True
        folder = f"{CONSUMERS_FOLDER}/{files[stream.name]}"
        new.folder(folder)
        consumer_files = _file_names(stream.consumers)
        for name, config in stream.consumers.items():
            new.write(f"{folder}/{consumer_files[name]}{_SUFFIX}", encode_config({**config, "name": name}))


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of files, without suffix, which differ also where case is ignored."""
    plain = {name: encode_name(name) for name in names}
    alike = Counter(encoded.lower() for encoded in plain.values())
    return {
        name: encoded if alike[encoded.lower()] == 1 else encode_name_with_digest(name)
        for name, encoded in plain.items()
    }


def read_config_files(root: Folder) -> list[StreamConfigs]:
    """Return all configs below `root`, in order of names.

    Raises:
        UsageError: a file is not a valid config.
        StoreError: a file cannot be read.
    """
    entries = root.entries()
    with root.folder(STREAMS_FOLDER) as folder:
        streams = {name: _config(folder, name, "name") for name in _files(folder)}
    for file, config in streams.items():
        refuse_values(f"{STREAMS_FOLDER}/{file}", config)
    _refuse_two(((config["name"], file) for file, config in streams.items()), STREAMS_FOLDER, "stream")
    consumers: dict[str, dict[str, JsonObject]] = {}
    if CONSUMERS_FOLDER in entries:
        with root.folder(CONSUMERS_FOLDER) as folder:
            for name in _shown(folder.entries()):
                with folder.folder(name) as files:
                    if f"{name}{_SUFFIX}" not in streams:
                        raise UsageError(
                            f"{files.where} has consumers of no stream: {STREAMS_FOLDER}/{name}.json is missing"
                        )
                    found = {file: _config(files, file, "name", "durable_name") for file in _files(files)}
                    _refuse_two(((_name(one), file) for file, one in found.items()), files.where, "consumer")
                    consumers[name] = {_name(config): config for config in found.values()}
    return sorted(
        (
            StreamConfigs(config, dict(sorted(consumers.get(name.removesuffix(_SUFFIX), {}).items())))
            for name, config in streams.items()
        ),
        key=lambda stream: stream.name,
    )


def _shown(entries: dict[str, FolderEntry]) -> dict[str, FolderEntry]:
    return {name: kind for name, kind in entries.items() if not name.startswith(".")}


def _files(folder: Folder) -> list[str]:
    files = _shown(folder.entries())
    for name, kind in files.items():
        if kind is not FolderEntry.FILE:
            raise UsageError(f"{folder.path_of(name)} is {kind.value}")
        if not name.endswith(_SUFFIX):
            raise UsageError(f"{folder.path_of(name)} is not a config file: its name does not end in {_SUFFIX}")
    return list(files)


def _refuse_two(found: Iterable[tuple[str, str]], where: str, what: str) -> None:
    """Raise `UsageError` if a name is in two files: one with its digest, and one without."""
    files: dict[str, str] = {}
    for name, file in found:
        if name in files:
            raise UsageError(
                f"{where}: there are two configurations of {what} {printable_name(name)}: {files[name]} and {file}"
            )
        files[name] = file


def _name(config: JsonObject) -> str:
    name: str = config.get("name") or config["durable_name"]
    return name


def _config(folder: Folder, file: str, *keys: str) -> JsonObject:
    """Return the config in a file, whose name is under one of `keys`."""
    where = folder.path_of(file)
    config = read_object(folder.read(file, MAX_CONFIG_BYTES), where, kind=UsageError, unique_names=True)
    given = {key: config[key] for key in keys if config.get(key)}
    if not given:
        raise UsageError(f"{where} has no name")
    if len(set(map(str, given.values()))) > 1:
        raise UsageError(f"{where} has two names: {' and '.join(given)} differ")
    name = next(iter(given.values()))
    if not isinstance(name, str) or not asset_name_is_sound(name):
        raise UsageError(f"{where} has a name that NATS does not allow")
    if file.removesuffix(_SUFFIX) not in (encode_name(name), encode_name_with_digest(name)):
        raise UsageError(
            f"{where} is the config of {printable_name(name)}",
            hint=f"Call the file {encode_name(name)}{_SUFFIX}, or change the name in it.",
        )
    return config
