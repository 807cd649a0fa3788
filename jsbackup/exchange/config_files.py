"""Configurations as plain files for version control, editing and applying.

    DIR/streams/<stream>.json                 a stream's config
    DIR/consumers/<stream>/<consumer>.json    a consumer's

Each is just the config object of JetStream's API: no state, and no metadata under `_nats.`, which servers write
themselves. Keys are sorted, with an indent of two spaces and a final newline, so that equal configs are equal files and
a change is one line. Names of files are encoded like keys of the repository (`repository/layout.py`). Names that differ
only in case get a part of their digest, because file systems of macOS and Windows would take one file for both.

The file's name must match the config's `name`: otherwise a copied file with the old name in it would silently replace
another stream. Hidden files, and anything else in DIR, are skipped; in the folders of configs every other file must be
a config. Mistakes in these files are usage errors: people write them.

Of values, only those are refused that servers of all releases refuse: a backup may hold anything else, and what is
exported must be imported again. So a `republish` without a destination is taken, as servers do, although it has no
effect.

What clients set of the streams of buckets, and what a stream gets whose configuration is lost, is here, too.

Configurations of streams are also read from the JSON output of commands:

    {"name": …, …}                       a config itself, as in these files
    {"config": {…}, …}                   `nats stream info --json`, or the `backup.json` of `nats backup stream`
    {"streams": [{"config": {…}}, …]}    `jsbackup show --json`
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import Folder, FolderEntry, NewFolder, printable_name
from jsbackup.failure import Failure
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM, is_pattern
from jsbackup.repository.layout import encode_name, encode_name_with_digest
from jsbackup.strict_json import read_object, write_json

__all__ = [
    "CONSUMERS_FOLDER",
    "MAX_CONFIG_BYTES",
    "STREAMS_FOLDER",
    "ConfigSet",
    "ExportedStream",
    "StreamConfigs",
    "bucket_stream",
    "encode_config",
    "made_up_config",
    "read_config_files",
    "read_configs_of",
    "read_printed_configs",
    "refuse_values",
    "sound_name",
    "without_server_metadata",
    "write_config_files",
]

STREAMS_FOLDER = "streams"
CONSUMERS_FOLDER = "consumers"

_SUFFIX = ".json"
_SERVER_METADATA = "_nats."
# The server's limit for a request (`max_payload`).
MAX_CONFIG_BYTES = 64 << 20
_AGES = ("max_age", "duplicate_window", "subject_delete_marker_ttl")
_WINDOW_NS = 120 * 10**9
_MOST_HISTORY = 64
_MOST_SUBJECTS = 20


@dataclass(frozen=True, slots=True)
class StreamConfigs:
    """A stream's config and those of its consumers by name, in order of names."""

    config: JsonObject
    consumers: dict[str, JsonObject]

    @property
    def name(self) -> str:
        return str(self.config["name"])


@dataclass(frozen=True, slots=True)
class ExportedStream:
    """A stream that was written, as an `archive` of this format or a resource of this kind. `notes` say what a user
    should know before using it; `incomplete` if parts are missing.
    """

    name: str
    archive: str
    messages: int
    notes: tuple[str, ...] = ()
    incomplete: bool = False


class ConfigSet:
    """The configs of streams and consumers that several files have. `failures` are resources that are of NATS but
    cannot be imported.
    """

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self._streams: dict[str, JsonObject] = {}
        self._consumers: list[tuple[str, str, str, JsonObject]] = []

    def add_stream(self, where: str, config: JsonObject) -> None:
        """Add a stream's config. Raises `UsageError` if it has no sound name or a value that no server takes, or is
        there already.
        """
        name = sound_name(where, config.get("name"))
        refuse_values(where, config)
        if name in self._streams:
            raise UsageError(f"{where}: there are two configurations of stream {printable_name(name)}")
        self._streams[name] = config

    def add_consumer(self, where: str, stream: object, name: object, config: JsonObject) -> None:
        """Add a consumer's config. Raises `UsageError` if the stream or the consumer has no sound name."""
        self._consumers.append((where, sound_name(f"{where}: stream", stream), sound_name(where, name), config))

    def streams(self) -> list[StreamConfigs]:
        """Return all in order of names. Raises `UsageError` if a consumer's stream is missing, or one is there
        twice.
        """
        consumers: dict[str, dict[str, JsonObject]] = {name: {} for name in self._streams}
        for where, stream, name, config in self._consumers:
            shown = printable_name(stream)
            if stream not in consumers:
                raise UsageError(f"{where} is of stream {shown}, which has no configuration")
            if name in consumers[stream]:
                twice = f"two configurations of consumer {printable_name(name)} of stream {shown}"
                raise UsageError(f"{where}: there are {twice}")
            consumers[stream][name] = config
        return [
            StreamConfigs(config, dict(sorted(consumers[name].items())))
            for name, config in sorted(self._streams.items())
        ]


def sound_name(where: str, name: object) -> str:
    """Return the name of a stream or consumer. Raises `UsageError` if there is none, or NATS would not allow it."""
    if not isinstance(name, str) or not asset_name_is_sound(name):
        raise UsageError(f"{where} has no name that NATS allows: {printable_name(str(name or ''))[:80]!r}")
    return name


def refuse_values(where: str, config: JsonObject) -> None:
    """Raise `UsageError` if a stream's config has a value that servers of all releases refuse. Values of other types
    are left to the server.
    """
    for field in _AGES:
        if type(config.get(field)) is int and config[field] < 0:
            raise UsageError(f"{where}: {field}: a negative duration")
    subjects = [("subjects", subject) for subject in _list(config.get("subjects"))]
    for source in (config.get("mirror"), *_list(config.get("sources"))):
        subjects += [("filter_subject", source.get("filter_subject"))] if isinstance(source, dict) else []
    for field, subject in subjects:
        if isinstance(subject, str) and subject and not is_pattern(subject):
            raise UsageError(f"{where}: {field}: not a subject: {subject[:80]!r}")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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
    plain = without_server_metadata(config)
    return write_json(plain, f"the config of {config.get('name')}", sort_keys=True, indent=2) + b"\n"


def write_config_files(new: NewFolder, streams: Sequence[StreamConfigs]) -> list[ExportedStream]:
    """Write the files. Raises `FormatError`, and the errors of `NewFolder`."""
    new.folder(STREAMS_FOLDER)
    if any(stream.consumers for stream in streams):
        new.folder(CONSUMERS_FOLDER)
    files = _file_names(stream.name for stream in streams)
    for stream in streams:
        new.write(f"{STREAMS_FOLDER}/{files[stream.name]}{_SUFFIX}", encode_config(stream.config))
        folder = f"{CONSUMERS_FOLDER}/{files[stream.name]}"
        if stream.consumers:
            new.folder(folder)
        for name, file in _file_names(stream.consumers).items():
            new.write(f"{folder}/{file}{_SUFFIX}", encode_config({**stream.consumers[name], "name": name}))
    return [ExportedStream(stream.name, "config", 0) for stream in streams]


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
    configs, streams = ConfigSet(), {}
    with root.folder(STREAMS_FOLDER) as folder:
        for file in _files(folder):
            name, config = _config(folder, file)
            configs.add_stream(folder.path_of(file), config)
            streams[file.removesuffix(_SUFFIX)] = name
    if CONSUMERS_FOLDER in root.entries():
        with root.folder(CONSUMERS_FOLDER) as folder:
            for stream in filter(_is_shown, folder.entries()):
                with folder.folder(stream) as files:
                    if stream not in streams:
                        missing = f"{STREAMS_FOLDER}/{printable_name(stream)}{_SUFFIX} is missing"
                        raise UsageError(f"{files.where} has consumers of no stream: {missing}")
                    for file in _files(files):
                        configs.add_consumer(files.path_of(file), streams[stream], *_config(files, file))
    return configs.streams()


def _is_shown(name: str) -> bool:
    return not name.startswith(".")


def _files(folder: Folder) -> list[str]:
    entries = folder.entries()
    files = list(filter(_is_shown, entries))
    for name in files:
        if entries[name] is not FolderEntry.FILE:
            raise UsageError(
                f"{folder.path_of(name)} is {entries[name].value}",
                hint="Only configurations may be there. For the store of a nats-server, give --server-store.",
            )
        if not name.endswith(_SUFFIX):
            raise UsageError(f"{folder.path_of(name)} is not a config file: its name does not end in {_SUFFIX}")
    return files


def _config(folder: Folder, file: str) -> tuple[str, JsonObject]:
    """Return the name and the config in a file. A consumer may have its `durable_name` only."""
    where = folder.path_of(file)
    config = read_object(folder.read(file, MAX_CONFIG_BYTES), where, kind=UsageError, unique_names=True)
    durable = config.get("durable_name")
    name = sound_name(where, config.get("name") or durable)
    if durable and durable != name:
        raise UsageError(f"{where} has two names: name and durable_name differ")
    if file.removesuffix(_SUFFIX) not in (encode_name(name), encode_name_with_digest(name)):
        raise UsageError(
            f"{where} is the config of {printable_name(name)}",
            hint=f"Call the file {encode_name(name)}{_SUFFIX}, or change the name in it.",
        )
    return name, config


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
        configs: list[Any] = [stream.get("config") if isinstance(stream, dict) else None for stream in streams]
    else:
        configs = [document.get("config", document)]
    printed: dict[str, JsonObject] = {}
    for config in configs:
        name = config.get("name") if isinstance(config, dict) else None
        if not isinstance(name, str) or not asset_name_is_sound(name):
            raise UsageError(
                f"{shown} has no configuration of a stream",
                hint="Give what `nats stream info --json` or `jsbackup show --json` prints.",
            )
        if name in printed:
            raise UsageError(f"{shown} has two configurations of stream {name}")
        printed[name] = config
    return printed


def read_configs_of(files: Sequence[Path], streams: Sequence[str]) -> dict[str, JsonObject]:
    """Return the configurations of `streams` by name, from several files; a single one also fits a single stream.

    Raises the errors of `read_printed_configs`, and UsageError if there are two of a stream, or none that is needed.
    """
    by_name: dict[str, JsonObject] = {}
    for file in files:
        configs = read_printed_configs(file)
        if twice := configs.keys() & by_name.keys():
            raise UsageError(f"there are two configurations of stream {min(twice)}")
        by_name |= configs
    if len(by_name) == len(streams) == 1:
        return dict(zip(streams, by_name.values(), strict=True))
    if files and not by_name.keys() & set(streams):
        raise UsageError(f"--stream-config has no configuration of stream {streams[0]}")
    return by_name


def bucket_stream(prefix: str, bucket: str, config: JsonObject) -> JsonObject:
    """Return the config of a bucket's stream: the fields in `config`, and what clients set (nats.go `jetstream/kv.go`,
    `object.go`). `prefix` is the beginning of the stream's name: `BUCKET_STREAM` or `OBJECT_STREAM`.
    """
    age = config.get("max_age")
    implied: JsonObject = {
        "name": f"{prefix}{bucket}",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "duplicate_window": min(age, _WINDOW_NS) if isinstance(age, int) and age > 0 else _WINDOW_NS,
    }
    if prefix == OBJECT_STREAM:
        implied["subjects"] = [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]
    else:
        implied |= {"subjects": [f"$KV.{bucket}.>"], "deny_delete": True}
        implied |= {"allow_msg_ttl": True} if config.get("subject_delete_marker_ttl") else {}
    return {**config, **implied}


def made_up_config(name: str, subjects: Counter[bytes]) -> JsonObject:
    """Return a config with which a server would take messages: so many of these subjects."""
    config: JsonObject = {"name": name, "retention": "limits", "storage": "file", "num_replicas": 1}
    if name.startswith(BUCKET_STREAM):
        history = min(max(subjects.values(), default=1), _MOST_HISTORY)
        return bucket_stream(
            BUCKET_STREAM, name.removeprefix(BUCKET_STREAM), config | {"max_msgs_per_subject": history}
        )
    if name.startswith(OBJECT_STREAM):
        return bucket_stream(OBJECT_STREAM, name.removeprefix(OBJECT_STREAM), config)
    patterns = sorted(subject.decode("utf-8", "replace") for subject in subjects)
    if len(patterns) > _MOST_SUBJECTS:  # wildcards for their first tokens
        heads = (subject.partition(".") for subject in patterns)
        patterns = sorted({f"{head}.>" if dot else head for head, dot, _ in heads})
    return {**config, "subjects": patterns}
