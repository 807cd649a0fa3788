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

Of values, only those are refused that servers of all releases refuse: a backup may hold anything else, and what is
exported must be imported again. So a `republish` without a destination is taken, as servers do, although it has no
effect.

Configurations of streams are also read from the JSON output of commands:

    {"name": …, …}                       a config itself, as in these files
    {"config": {…}, …}                   `nats stream info --json`, or the `backup.json` of `nats backup stream`
    {"streams": [{"config": {…}}, …]}    `jsbackup show --json`
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.exchange.new_folder import NewFolder
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.model import JsonObject
from jsbackup.names import BLANKS
from jsbackup.repository.names import encode_name, encode_name_with_digest
from jsbackup.strict_json import read_object, write_json

__all__ = [
    "CONSUMERS_FOLDER",
    "MAX_CONFIG_BYTES",
    "STREAMS_FOLDER",
    "StreamConfigs",
    "checked_age",
    "checked_pattern",
    "encode_config",
    "read_config_files",
    "read_configs_of",
    "read_printed_configs",
    "refuse_values",
    "without_server_metadata",
    "write_config_files",
]

_AGES = ("max_age", "duplicate_window", "subject_delete_marker_ttl")


def checked_age(value: int) -> int:
    """Return a duration. Raises `ValueError` if it is negative."""
    if value < 0:
        raise ValueError("a negative duration")
    return value


def checked_pattern(text: str) -> str:
    """Return a subject that may have wildcards; "" means none. Raises `ValueError` if it is not one (`IsValidSubject`
    in the server's `sublist.go`).
    """
    if not set(BLANKS).isdisjoint(text):
        raise ValueError("not a subject: it has a blank")
    tokens = text.split(".")
    if text and ("" in tokens or ">" in tokens[:-1]):
        raise ValueError("not a subject: it has an empty token, or > before its end")
    return text


def refuse_values(where: str, config: JsonObject) -> None:
    """Raise `UsageError` if a stream's config has such a value. Values of other types are left to the server."""
    for field in _AGES:
        if type(config.get(field)) is int:
            _check(f"{where}: {field}", checked_age, config[field])
    for subject in _list(config.get("subjects")):
        _check_pattern(f"{where}: subjects", subject)
    for field, sources in (("mirror", [config.get("mirror")]), ("sources", _list(config.get("sources")))):
        for source in sources:
            if isinstance(source, dict):
                _check_pattern(f"{where}: {field}: filter_subject", source.get("filter_subject"))


def _check_pattern(where: str, value: Any) -> None:
    if isinstance(value, str):
        _check(where, checked_pattern, value)


def _check(where: str, check: Callable[[Any], Any], value: Any) -> None:
    try:
        check(value)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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


def read_printed_configs(path: Path) -> dict[str, JsonObject]:
    """Return the configs in a file, by the names of their streams. Raises `UsageError` if there are none."""
    shown = printable_name(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {os.strerror(error.errno or 0).lower()}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise UsageError(f"{shown} is too large for a configuration")
    document = read_object(data, shown, kind=UsageError, unique_names=True)
    streams = document.get("streams")
    if isinstance(streams, list):
        configs = [one.get("config") if isinstance(one, dict) else None for one in streams]
    else:
        configs = [document.get("config", document)]
    found: dict[str, JsonObject] = {}
    for config in configs:
        name = _name_of(config)
        if name is None or not isinstance(config, dict):
            raise UsageError(
                f"{shown} has no configuration of a stream",
                hint="Give what `nats stream info --json` or `jsbackup show --json` prints.",
            )
        if name in found:
            raise UsageError(f"{shown} has two configurations of stream {name}")
        found[name] = config
    return found


def _name_of(config: object) -> str | None:
    name = config.get("name") if isinstance(config, dict) else None
    return name if isinstance(name, str) and asset_name_is_sound(name) else None


def read_configs_of(files: Sequence[Path], streams: Sequence[str]) -> dict[str, JsonObject]:
    """Return the configurations of `streams` by name, from several files; a single one also fits a single stream.

    Raises the errors of `read_printed_configs`, and UsageError if there are two of a stream, or none that is needed.
    """
    by_name: dict[str, JsonObject] = {}
    for file in files:
        found = read_printed_configs(file)
        if twice := found.keys() & by_name.keys():
            raise UsageError(f"there are two configurations of stream {min(twice)}")
        by_name |= found
    if len(by_name) == len(streams) == 1:
        return dict(zip(streams, by_name.values(), strict=True))
    if files and not by_name.keys() & set(streams):
        raise UsageError(f"--stream-config has no configuration of stream {streams[0]}")
    return by_name
