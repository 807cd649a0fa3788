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
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from jsbackup.errors import JsBackupError, UnsupportedError
from jsbackup.exchange.folder import FileStamp, Folder, FolderEntry
from jsbackup.exchange.server_store.meta_files import META, FileFlaw, MetaFile, read_meta
from jsbackup.formats.server_store.ciphers import AssetKey, StoreKeys
from jsbackup.formats.server_store.plain_block import MAX_PLAIN_BYTES, ByteFlaw, PlainBlock, decode_block
from jsbackup.formats.server_store.records import block_key, walk
from jsbackup.formats.server_store.store_index import MAX_INDEX_BYTES, StoreIndex, read_index

__all__ = ["INDEX", "BlockFile", "StreamFiles", "is_stream_folder"]

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

    @contextmanager
    def _messages(self) -> Iterator[Folder]:
        with self.folder.folder(self._messages_folder) as folder:
            yield folder

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
