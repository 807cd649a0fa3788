"""The consumers of a stream in a server's store: `obs/<name>/` with `meta.inf`, `meta.sum`, `o.dat`, and `meta.key` if
the store is encrypted.

Nothing proves an `o.dat` in plain text: it is taken if its numbers can be those of a consumer. A consumer without a
usable one starts as its config says. One without a config is lost; what its `o.dat` says is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jsbackup.errors import FormatError, JsBackupError
from jsbackup.exchange.folder import Folder, FolderEntry
from jsbackup.exchange.import_stream import consumer_as_imported
from jsbackup.exchange.server_store.meta_files import FileFlaw, MetaFile, read_meta
from jsbackup.exchange.server_store.stream_files import StreamFiles
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.archive.consumer_state import decode_state
from jsbackup.formats.server_store.ciphers import AssetKey
from jsbackup.model import ArchivedConsumer, ConsumerState
from jsbackup.repository.manifest import ConsumerBackup

__all__ = ["StoreConsumers", "read_consumers"]

_KEY, _STATE = "meta.key", "o.dat"
_MISSING = "is missing"
_MAX_KEY_BYTES = 4096
_MAX_STATE_BYTES = 64 << 20
_SECOND_NS = 10**9
_LATEST_NS = 7_258_118_400 * _SECOND_NS  # the year 2200


@dataclass(frozen=True, slots=True)
class StoreConsumers:
    """The consumers, and sentences about those that are lost. `got` is the last sequence that any of them had got, and
    its name.
    """

    consumers: tuple[ConsumerBackup, ...]
    lost: tuple[str, ...]
    got: tuple[int, str] = (0, "")


def read_consumers(files: StreamFiles, last_seq: int) -> StoreConsumers:
    """Read all consumers of a stream that ends at `last_seq`. Flaws are added to those of `files`."""
    found: list[ConsumerBackup] = []
    lost: list[str] = []
    got = (0, "")
    for name in files.consumer_names:
        if not asset_name_is_sound(name):
            lost.append(f"obs has a folder whose name no consumer can have: {name!r}")
            continue
        with files.consumer(name) as folder:
            consumer = _Reader(files, folder, name, last_seq)
            backup = consumer.read()
        got = max(got, (consumer.got, name))
        if backup is None:
            lost.append(f"consumer {name} is lost: its configuration cannot be read{consumer.position}")
        else:
            found.append(backup)
    return StoreConsumers(tuple(found), tuple(lost), got)


class _Reader:
    def __init__(self, files: StreamFiles, folder: Folder, name: str, last_seq: int) -> None:
        self._files = files
        self._folder = folder
        self._name = name
        self._last_seq = last_seq
        self._entries = folder.entries()
        self._path = f"obs/{name}/"
        self.position = ""
        self.got = 0

    def read(self) -> ConsumerBackup | None:
        key = self._key()
        hash_name = f"{self._files.name}/{self._name}"
        named = ("Name", self._name)
        meta = read_meta(self._folder, self._path, key, hash_name, named=named, flaws=self._files.flaws)
        state, problem = self._state(key)
        if meta is None:
            if state is not None:
                self.position = f"; it had acknowledged all up to sequence {state.ack_floor.stream}"
            return None
        return self._backup(meta, state, problem)

    def _backup(self, meta: MetaFile, state: ConsumerState | None, problem: str) -> ConsumerBackup:
        consumer = ArchivedConsumer(self._name, meta.config, state, meta.created)
        backup = consumer_as_imported(consumer, self._last_seq)
        if state is None:
            if not (problem == _MISSING and _may_be_unused(meta)):
                self._flaw(_STATE, problem)
            backup = replace(backup, reason=f"{_STATE} {problem}; it starts as its configuration says")
        return replace(backup, reason="; ".join(filter(None, (backup.reason, meta.unproved))))

    def _key(self) -> AssetKey | None:
        if _KEY not in self._entries:
            if self._files.encrypted:
                self._flaw(_KEY, "is missing")
            return None
        try:
            data = self._folder.read(_KEY, _MAX_KEY_BYTES)
        except JsBackupError:
            data = b""
        key = self._files.keys.open(data, f"{self._files.name}.{self._name}")
        if key is None:
            self._flaw(_KEY, "is damaged")
        return key

    def _state(self, key: AssetKey | None) -> tuple[ConsumerState | None, str]:
        """Return the state; None and what is wrong, if it cannot be used."""
        if self._entries.get(_STATE) is not FolderEntry.FILE:
            return None, _MISSING
        try:
            data = self._folder.read_around(_STATE, _MAX_STATE_BYTES).content
            if not data:
                return None, "is empty"
            if key is not None:
                data = self._opened(key, data)
            state = decode_state(data)
        except JsBackupError:
            return None, "is damaged"
        if not _is_plausible(state, self._last_seq):
            return None, "is damaged"
        self.got = state.delivered.stream
        return state, ""

    def _opened(self, key: AssetKey, data: bytes) -> bytes:
        try:
            return key.open(data)
        except FormatError:
            decode_state(data)  # of a restored stream it may still be in plain text
            return data

    def _flaw(self, name: str, problem: str) -> None:
        self._files.flaws.append(FileFlaw(self._path + name, problem))


def _is_plausible(state: ConsumerState, last_seq: int) -> bool:
    """Return whether a consumer can have this state: nothing else proves an `o.dat` in plain text."""
    floor, delivered = state.ack_floor, state.delivered
    highest = max(delivered.stream, last_seq)
    return (
        floor.consumer <= delivered.consumer
        and floor.stream <= delivered.stream
        and all(sequence <= highest for sequence in (*state.pending, *state.redelivered))
        and all(ack.consumer <= delivered.consumer for ack in state.pending.values())
        and all(-_SECOND_NS <= ack.timestamp_ns <= _LATEST_NS for ack in state.pending.values())
    )


def _may_be_unused(meta: MetaFile) -> bool:
    """Return whether a server may not have written a state yet: before 2.11 it did so with the first delivery, unless
    the consumer begins with the first message. Later servers mark configs in their metadata.
    """
    metadata = meta.config.get("metadata")
    marked = isinstance(metadata, dict) and any(str(key).startswith("_nats.") for key in metadata)
    return not marked and meta.config.get("deliver_policy", "all") != "all"
