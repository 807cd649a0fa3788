"""The files of one stream in a server's store (nats-server `filestore.go`), read as far as they can be read:

    meta.inf meta.sum   the stream's config, and the checksum of that file (`archive_v1_reader.py` has both)
    meta.key            the stream's key, if the store is encrypted (`ciphers.py`)
    msgs/<n>.blk        message blocks; `<n>.key` is the key of one
    msgs/index.db       which messages there are
    msgs/thw.db, msgs/sched.db, sources.db
                        caches that servers make again
    obs/<consumer>/     meta.inf, meta.sum, meta.key, o.dat
    batches/            batches that were not committed
    __msgs__, __new_msgs__
                        left by a purge that was under way; with a block in the latter, the purge counts
    *.tmp, <n>.new      files that were being written and count for nothing

Damage is no error here but a flaw of a file. The name of the folder is that of the stream, which is part of every key
and checksum.

The configs in a server's store: `meta.inf` and its checksum `meta.sum`, of streams and of consumers.

An encrypted file proves itself. Otherwise the checksum does; without it, or if the two do not fit, the config is used
as it is and called unproved, if it can be one at all: it is worth more than none, and a person can look at it.

The consumers of a stream in a server's store: `obs/<name>/` with `meta.inf`, `meta.sum`, `o.dat`, and `meta.key` if
the store is encrypted.

Nothing proves an `o.dat` in plain text: it is taken if its numbers can be those of a consumer. A consumer without a
usable one starts as its config says. One without a config is lost; what its `o.dat` says is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256

from jsbackup.errors import FormatError, JsBackupError, UnsupportedError
from jsbackup.exchange.folder import FileStamp, Folder, FolderEntry
from jsbackup.exchange.importing import consumer_as_imported
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.archive.consumer_state import decode_state
from jsbackup.formats.server_store.ciphers import AssetKey, StoreKeys
from jsbackup.formats.server_store.plain_block import MAX_PLAIN_BYTES, ByteFlaw, PlainBlock, decode_block
from jsbackup.formats.server_store.records import block_key, walk
from jsbackup.formats.server_store.store_index import MAX_INDEX_BYTES, StoreIndex, read_index
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject
from jsbackup.repository.manifest import ConsumerBackup
from jsbackup.strict_json import read_object
from jsbackup.times import parse_time

__all__ = [
    "INDEX",
    "BlockFile",
    "FileFlaw",
    "MetaFile",
    "StoreConsumers",
    "StreamFiles",
    "is_stream_folder",
    "proved_name",
    "read_consumers",
    "read_meta",
]

META, SUM = "meta.inf", "meta.sum"
_MAX_META_BYTES = 16 << 20
_MAX_SUM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileFlaw:
    """What is wrong with a file, by its path in the stream's folder; `block` is its number if it is that of a block."""

    path: str
    problem: str
    block: int | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


@dataclass(frozen=True, slots=True)
class MetaFile:
    """A config, without what only the file has. `created` is RFC 3339. `unproved` says what may be wrong, or is ""."""

    config: JsonObject
    created: str | None
    unproved: str = ""


def read_meta(
    folder: Folder, path: str, key: AssetKey | None, hash_name: str, *, named: tuple[str, str], flaws: list[FileFlaw]
) -> MetaFile | None:
    """Return the config in a folder; None if it is lost. `path` is that of the folder, "" or with a slash at its end.

    `key` opens it, if it is encrypted. `hash_name` is what its checksum is keyed with. `named` are the field that has
    the name, and the name.
    """
    checksum_path = path + SUM
    path += META
    try:
        stored = folder.read_around(META, _MAX_META_BYTES).content
    except JsBackupError:
        flaws.append(FileFlaw(path, _absence(folder, META)))
        return None
    checksum_flaw = _checksum_flaw(folder, stored, hash_name)
    content, proved = stored, not checksum_flaw
    if key is not None:
        with suppress(FormatError):  # of a restored stream it may still be in plain text
            content, proved = key.open(stored), True
    try:
        meta = _decoded(content, *named)
    except FormatError:
        flaws.append(FileFlaw(path, "is damaged"))
        return None
    if not checksum_flaw:
        return meta
    if proved:
        flaws.append(FileFlaw(checksum_path, f"{checksum_flaw}, but the encryption of {META} proves it"))
        return meta
    flaws.append(FileFlaw(checksum_path, checksum_flaw))
    return MetaFile(meta.config, meta.created, f"{SUM} {checksum_flaw}, so nothing proves {META}")


def _absence(folder: Folder, name: str) -> str:
    return "cannot be read" if name in folder.entries() else "is missing"


def _checksum_flaw(folder: Folder, stored: bytes, hash_name: str) -> str:
    try:
        checksum = folder.read_around(SUM, _MAX_SUM_BYTES).content
    except JsBackupError:
        return _absence(folder, SUM)
    if checksum == checksum_of(stored, hash_name):
        return ""
    return f"does not fit {META}" if len(checksum) == 16 else "is damaged"


def checksum_of(meta: bytes, hash_name: str) -> bytes:
    hasher = kernels.HighwayHash(sha256(hash_name.encode("utf-8", "surrogateescape")).digest())
    hasher.update(meta)
    return hasher.digest64().hex().encode()


def _decoded(content: bytes, field: str, name: str) -> MetaFile:
    config = read_object(content, META)
    created = config.pop("Created", None)
    if isinstance(created, str):
        parse_time(created, "creation time")
    found = config.pop(field, "") if field == "Name" else config.get(field)
    # An ephemeral consumer that was restored has no name in its file.
    if found != name and not (field == "Name" and found == ""):
        raise FormatError(f"{META} is of another one")
    return MetaFile(config, created if isinstance(created, str) else None)


def proved_name(folder: Folder) -> str | None:
    """Return the name of the stream in a folder of any name, None if its `meta.inf` does not prove it."""
    try:
        stored = folder.read_around(META, _MAX_META_BYTES).content
        name = read_object(stored, META).get("name")
    except JsBackupError:
        return None
    return name if isinstance(name, str) and not _checksum_flaw(folder, stored, name) else None


INDEX = "msgs/index.db"

_KEY = "meta.key"
_MESSAGES, _CONSUMERS, _PURGED, _PURGED_TO = "msgs", "obs", "__msgs__", "__new_msgs__"
_MAX_SMALL_BYTES = 4096
_BLOCK = re.compile(r"(0|[1-9][0-9]{0,9})\.blk", re.ASCII)
_BLOCK_KEY = re.compile(r"(0|[1-9][0-9]{0,9})\.key", re.ASCII)


@dataclass(frozen=True, slots=True)
class BlockFile:
    """The content of a block. `flaws` are of its file; `lost` if nothing of it can be read."""

    number: int
    plain: PlainBlock
    flaws: tuple[FileFlaw, ...] = ()
    lost: bool = False
    last_checksum: bytes = b""

    @property
    def path(self) -> str:
        return f"{_MESSAGES}/{self.number}.blk"


def is_stream_folder(entries: dict[str, FolderEntry]) -> bool:
    return META in entries or entries.get(_MESSAGES) is FolderEntry.FOLDER


class StreamFiles:
    """The files of the stream `name`, in its open folder. `flaws` grows with what is read."""

    def __init__(self, folder: Folder, name: str, keys: StoreKeys) -> None:
        self.folder = folder
        self.name = name
        self.keys = keys
        self.flaws: list[FileFlaw] = []
        self._entries = folder.entries()

    # --- the stream ---

    @cached_property
    def encrypted(self) -> bool:
        """Whether any file of it was encrypted when it was written."""
        return _KEY in self._entries or any(_BLOCK_KEY.fullmatch(name) for name in self._message_files)

    @cached_property
    def opens(self) -> bool:
        """Whether a key of the server opens any of the stream's key files."""
        return self.key is not None or any(self._block_key_of(number) is not None for number in self.block_keys)

    @cached_property
    def key(self) -> AssetKey | None:
        return self._asset_key(self.folder, _KEY, _KEY, self.name)

    def meta(self) -> MetaFile | None:
        """Return the config; None, with flaws, if it is lost."""
        if self.encrypted and self.key is None:
            problem = "is damaged, or of another key" if _KEY in self._entries else "is missing"
            self.flaws.append(FileFlaw(_KEY, problem))
        return read_meta(self.folder, "", self.key, self.name, named=("name", self.name), flaws=self.flaws)

    @cached_property
    def index(self) -> StoreIndex | None:
        """What `index.db` says; None, with a flaw, if that is not known."""
        if self.encrypted and self.key is None:
            problem = "cannot be read without the stream's key" if "index.db" in self._message_files else "is missing"
            self.flaws.append(FileFlaw(INDEX, problem))
            return None
        if "index.db" not in self._message_files:
            self.flaws.append(FileFlaw(INDEX, "is missing"))
            return None
        try:
            with self._messages() as folder:
                data = folder.read_around("index.db", MAX_INDEX_BYTES).content
            return read_index(data, self.name, self.key)
        except UnsupportedError:
            raise
        except JsBackupError as error:
            self.flaws.append(FileFlaw(INDEX, f"cannot be used: {error.message}"))
            return None

    # --- the blocks ---

    @cached_property
    def block_numbers(self) -> list[int]:
        found = (_BLOCK.fullmatch(name) for name in self._message_files)
        return sorted(int(match[1]) for match in found if match)

    def block(self, number: int) -> BlockFile:
        """Read a block."""
        name = f"{number}.blk"
        path = f"{_MESSAGES}/{name}"
        try:
            with self._messages() as folder:
                content, unread = folder.read_around(name, MAX_PLAIN_BYTES)
        except JsBackupError as error:
            return BlockFile(
                number, PlainBlock(()), (FileFlaw(path, f"cannot be read: {error.message}", number),), True
            )
        flaws = [
            FileFlaw(path, f"cannot be read from the disk at bytes {start} to {stop - 1}", number)
            for start, stop in unread
        ]
        if not self.encrypted:
            return self._decoded(number, content, flaws)
        key, problem = self._block_key_of(number), ""
        if key is not None:
            return self._decoded(number, key.decrypt(content), flaws)
        # One that was there before the store was encrypted is in plain text until the server converts it.
        plain = self._decoded(number, content, flaws)
        if not content or any(walk(region, block_key(self.name, number), 0).runs for region in plain.plain.regions):
            return plain
        problem = "is damaged" if number in self.block_keys else "is missing"
        flaw = FileFlaw(f"{_MESSAGES}/{number}.key", f"{problem}, and nothing can be read of {path} without it", number)
        return BlockFile(number, PlainBlock(()), (*flaws, flaw), True)

    def _decoded(self, number: int, content: bytes, flaws: list[FileFlaw]) -> BlockFile:
        plain = decode_block(content)
        path = f"{_MESSAGES}/{number}.blk"
        flaws = [*flaws, *(FileFlaw(path, _of_bytes(flaw), number) for flaw in plain.flaws)]
        return BlockFile(number, plain, tuple(flaws), last_checksum=content[-8:])

    @cached_property
    def block_keys(self) -> frozenset[int]:
        """The numbers of the blocks that have a key file."""
        found = (_BLOCK_KEY.fullmatch(name) for name in self._message_files)
        return frozenset(int(match[1]) for match in found if match)

    def _block_key_of(self, number: int) -> AssetKey | None:
        if number not in self.block_keys:
            return None
        with self._messages() as folder:
            return self._asset_key(folder, f"{number}.key", f"{_MESSAGES}/{number}.key", f"{self.name}:{number}")

    def _asset_key(self, folder: Folder, name: str, path: str, context: str) -> AssetKey | None:
        try:
            data = folder.read(name, _MAX_SMALL_BYTES)
        except JsBackupError:
            return None
        return self.keys.open(data, context)

    # --- folders ---

    def _messages(self) -> Folder:
        return self.folder.folder(self._messages_folder)

    @cached_property
    def _messages_folder(self) -> str:
        """The folder of the blocks: that of a purge, if it got as far as its own block."""
        if self._entries.get(_PURGED_TO) is FolderEntry.FOLDER:
            with self.folder.folder(_PURGED_TO) as folder:
                if any(_BLOCK.fullmatch(name) for name in folder.entries()):
                    return _PURGED_TO
        return _MESSAGES

    @cached_property
    def _message_files(self) -> dict[str, FolderEntry]:
        if self._entries.get(self._messages_folder) is not FolderEntry.FOLDER:
            self.flaws.append(FileFlaw(_MESSAGES, "is missing"))
            return {}
        with self._messages() as folder:
            return {name: kind for name, kind in folder.entries().items() if kind is FolderEntry.FILE}

    @cached_property
    def consumer_names(self) -> list[str]:
        if self._entries.get(_CONSUMERS) is not FolderEntry.FOLDER:
            return []
        with self.folder.folder(_CONSUMERS) as folder:
            return [name for name, kind in folder.entries().items() if kind is FolderEntry.FOLDER]

    @contextmanager
    def consumer(self, name: str) -> Iterator[Folder]:
        with self.folder.folder(_CONSUMERS) as consumers, consumers.folder(name) as folder:
            yield folder

    def left_out(self) -> Iterator[str]:
        """Yield sentences about what is there and does not count."""
        if self._messages_folder == _PURGED_TO:
            yield "a purge was under way: the messages that it removed are left out"
        elif _PURGED in self._entries:
            yield f"{_PURGED} has messages that were purged; they are left out"
        if self._entries.get("batches") is FolderEntry.FOLDER:
            with self.folder.folder("batches") as folder:
                if folder.entries():
                    yield "batches of messages that were not committed are left out"

    def stamps(self) -> dict[str, FileStamp]:
        """Return what changes if a server writes to the stream."""
        found = _stamps("", self.folder)
        if self._entries.get(self._messages_folder) is FolderEntry.FOLDER:
            with self._messages() as folder:
                found |= _stamps(f"{_MESSAGES}/", folder)
        for name in self.consumer_names:
            with self.consumer(name) as folder:
                found |= _stamps(f"{_CONSUMERS}/{name}/", folder)
        return found


def _stamps(above: str, folder: Folder) -> dict[str, FileStamp]:
    files = (name for name, kind in folder.entries().items() if kind is FolderEntry.FILE)
    return {above + name: folder.stamp(name) for name in files}


def _of_bytes(flaw: ByteFlaw) -> str:
    return f"is damaged at bytes {flaw.start} to {flaw.stop - 1}: {flaw.problem}"


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
