"""The folder of a server's store (nats-server `filestore.go`): whether a server uses it, which streams it has, and
their files, read as far as they can be read.

    <store_dir>/jetstream/<account>/streams/<stream>/

Any of these folders will do. A server without accounts has one called `$G`. `$SYS/_js_` has the logs of a cluster: what
is in them was stored by the streams already, or was never acknowledged. Streams in memory have no folder. That of a
stream has

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

An encrypted config proves itself. Otherwise the checksum does; without it, or if the two do not fit, the config is used
as it is and called unproved, if it can be one at all: it is worth more than none, and a person can look at it.

Nothing proves an `o.dat` in plain text: it is taken if its numbers can be those of a consumer. A consumer without a
usable one starts as its config says. One without a config is lost; what its `o.dat` says is reported.

A server locks nothing. It has the block open that it writes to, until nothing was written for a while; and its command
line or its configuration file names the folder. Both are looked for in all processes that this user may look at; on
Linux only, elsewhere nothing is found. A server in a container sees another path, which is followed from its own root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from jsbackup.errors import FormatError, JsBackupError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.exchange.folder import FileStamp, Folder, FolderEntry, printable_name
from jsbackup.exchange.importing import consumer_as_imported
from jsbackup.failure import Failure
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.archive.consumer_state import decode_state
from jsbackup.formats.server_store.ciphers import AssetKey, StoreKeys
from jsbackup.formats.server_store.plain_block import MAX_PLAIN_BYTES, PlainBlock, decode_block
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
    "ServerStore",
    "StreamFiles",
    "find_users",
    "read_consumers",
    "refuse_users",
]

META, SUM = "meta.inf", "meta.sum"
_MAX_META_BYTES = 16 << 20
_MAX_SMALL_BYTES = 4096


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
    try:
        stored = folder.read_around(META, _MAX_META_BYTES).content
    except JsBackupError:
        flaws.append(FileFlaw(path + META, "cannot be read" if META in folder.entries() else "is missing"))
        return None
    proved, opened = _is_proved(folder, stored, hash_name), None
    if key is not None:
        with suppress(FormatError):  # of a restored stream it may still be in plain text
            opened = key.open(stored)
    try:
        meta = _decoded(stored if opened is None else opened, *named)
    except FormatError:
        flaws.append(FileFlaw(path + META, "is damaged"))
        return None
    if proved:
        return meta
    problem = f"does not prove {META}" if opened is None else f"does not prove {META}, but its encryption does"
    flaws.append(FileFlaw(path + SUM, problem))
    return meta if opened is not None else replace(meta, unproved=f"nothing proves {META}")


def _is_proved(folder: Folder, stored: bytes, hash_name: str) -> bool:
    with suppress(JsBackupError):
        return folder.read_around(SUM, _MAX_SMALL_BYTES).content == checksum_of(stored, hash_name)
    return False


def checksum_of(meta: bytes, hash_name: str) -> bytes:
    hasher = kernels.HighwayHash(sha256(hash_name.encode("utf-8", "surrogateescape")).digest())
    hasher.update(meta)
    return hasher.digest64().hex().encode()


def _decoded(content: bytes, field: str, name: str) -> MetaFile:
    config = read_object(content, META)
    created = config.pop("Created", None)
    if isinstance(created, str):
        parse_time(created, "creation time")
    value = config.pop(field, "") if field == "Name" else config.get(field)
    # An ephemeral consumer that was restored has no name in its file.
    if value != name and not (field == "Name" and value == ""):
        raise FormatError(f"{META} is of another one")
    return MetaFile(config, created if isinstance(created, str) else None)


def proved_name(folder: Folder) -> str | None:
    """Return the name of the stream in a folder of any name, None if its `meta.inf` does not prove it."""
    try:
        stored = folder.read_around(META, _MAX_META_BYTES).content
        name = read_object(stored, META).get("name")
    except JsBackupError:
        return None
    return name if isinstance(name, str) and _is_proved(folder, stored, name) else None


INDEX = "msgs/index.db"

_KEY = "meta.key"
_MESSAGES, _CONSUMERS, _PURGED, _PURGED_TO = "msgs", "obs", "__msgs__", "__new_msgs__"
_NUMBERED = re.compile(r"(0|[1-9][0-9]{0,9})\.(blk|key)", re.ASCII)


@dataclass(frozen=True, slots=True)
class BlockFile:
    """The content of a block. `flaws` are of its file; `lost` if nothing of it can be read."""

    number: int
    plain: PlainBlock
    flaws: tuple[FileFlaw, ...] = ()
    lost: bool = False
    last_checksum: bytes = b""


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
        return _KEY in self._entries or bool(self.block_keys)

    @cached_property
    def key(self) -> AssetKey | None:
        return self.key_in(self.folder, "", self.name)

    def key_in(self, folder: Folder, path: str, context: str) -> AssetKey | None:
        """Return the key of the stream or a consumer; None, with a flaw where there should be one."""
        key = self._asset_key(folder, _KEY, context)
        exists = _KEY in folder.entries()
        if key is None and (exists or self.encrypted):
            self.flaws.append(FileFlaw(path + _KEY, "is damaged, or of another key" if exists else "is missing"))
        return key

    def meta(self) -> MetaFile | None:
        """Return the config; None, with flaws, if it is lost."""
        return read_meta(self.folder, "", self.key, self.name, named=("name", self.name), flaws=self.flaws)

    @cached_property
    def index(self) -> StoreIndex | None:
        """What `index.db` says; None, with a flaw, if that is not known."""
        if "index.db" not in self._message_files:
            problem = "is missing"
        elif self.encrypted and self.key is None:
            problem = "cannot be read without the stream's key"
        else:
            try:
                with self._messages() as folder:
                    data = folder.read_around("index.db", MAX_INDEX_BYTES).content
                return read_index(data, self.name, self.key)
            except UnsupportedError:
                raise
            except JsBackupError as error:
                problem = f"cannot be used: {error.message}"
        self.flaws.append(FileFlaw(INDEX, problem))
        return None

    # --- the blocks ---

    @cached_property
    def block_numbers(self) -> list[int]:
        return sorted(self._numbers("blk"))

    def block(self, number: int) -> BlockFile:
        """Read a block."""
        path = f"{_MESSAGES}/{number}.blk"
        try:
            with self._messages() as folder:
                content, unread = folder.read_around(f"{number}.blk", MAX_PLAIN_BYTES)
        except JsBackupError as error:
            flaw = FileFlaw(path, f"cannot be read: {error.message}", number)
            return BlockFile(number, PlainBlock(()), (flaw,), True)
        key = self.block_key_of(number) if self.encrypted else None
        if key is not None:
            content = key.decrypt(content)
        plain, lost = decode_block(content), False
        if self.encrypted and key is None and content:
            # One that was there before the store was encrypted is in plain text until the server converts it.
            lost = not any(walk(region, block_key(self.name, number), 0).runs for region in plain.regions)
        damaged = [(start, stop, "cannot be read from the disk") for start, stop in unread]
        damaged += [(flaw.start, flaw.stop, flaw.problem) for flaw in plain.flaws] if not lost else []
        flaws = [
            FileFlaw(path, f"is damaged at bytes {start} to {stop - 1}: {problem}", number)
            for start, stop, problem in damaged
        ]
        if lost:
            problem = "is damaged" if number in self.block_keys else "is missing"
            problem += f", and nothing can be read of {path} without it"
            flaws.append(FileFlaw(f"{_MESSAGES}/{number}.key", problem, number))
        return BlockFile(number, PlainBlock(()) if lost else plain, tuple(flaws), lost, content[-8:])

    @cached_property
    def block_keys(self) -> frozenset[int]:
        """The numbers of the blocks that have a key file."""
        return frozenset(self._numbers("key"))

    def _numbers(self, kind: str) -> Iterator[int]:
        matches = map(_NUMBERED.fullmatch, self._message_files)
        return (int(match[1]) for match in matches if match and match[2] == kind)

    def block_key_of(self, number: int) -> AssetKey | None:
        """Return the key of a block; None if it has none that opens."""
        if number not in self.block_keys:
            return None
        with self._messages() as folder:
            return self._asset_key(folder, f"{number}.key", f"{self.name}:{number}")

    def _asset_key(self, folder: Folder, name: str, context: str) -> AssetKey | None:
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
                if any(_NUMBERED.fullmatch(name) and name.endswith(".blk") for name in folder.entries()):
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
        by_path = _stamps("", self.folder)
        if self._entries.get(self._messages_folder) is FolderEntry.FOLDER:
            with self._messages() as folder:
                by_path |= _stamps(f"{_MESSAGES}/", folder)
        for name in self.consumer_names:
            with self.consumer(name) as folder:
                by_path |= _stamps(f"{_CONSUMERS}/{name}/", folder)
        return by_path


def _stamps(above: str, folder: Folder) -> dict[str, FileStamp]:
    files = (name for name, kind in folder.entries().items() if kind is FolderEntry.FILE)
    return {above + name: folder.stamp(name) for name in files}


_STATE = "o.dat"
_MAX_STATE_BYTES = 64 << 20
_SECOND_NS = 10**9
_LATEST_NS = 7_258_118_400 * _SECOND_NS  # the year 2200


def read_consumers(files: StreamFiles, last_seq: int) -> tuple[list[ConsumerBackup], list[str], tuple[int, str]]:
    """Read all consumers of a stream that ends at `last_seq`. Flaws are added to those of `files`.

    Returns them, sentences about those that are lost, and the last sequence that any of them had got, with its name.
    """
    consumers: list[ConsumerBackup] = []
    lost: list[str] = []
    most = (0, "")
    for name in files.consumer_names:
        if not asset_name_is_sound(name):
            lost.append(f"obs has a folder whose name no consumer can have: {name!r}")
            continue
        with files.consumer(name) as folder:
            backup, state = _read_consumer(files, folder, name, last_seq)
        most = max(most, (state.delivered.stream if state is not None else 0, name))
        if backup is not None:
            consumers.append(backup)
        else:
            got = f"; it had acknowledged all up to sequence {state.ack_floor.stream}" if state is not None else ""
            lost.append(f"consumer {name} is lost: its configuration cannot be read{got}")
    return consumers, lost, most


def _read_consumer(
    files: StreamFiles, folder: Folder, name: str, last_seq: int
) -> tuple[ConsumerBackup | None, ConsumerState | None]:
    """Return a consumer, None if it is lost, and its state, None if that cannot be used."""
    path, entries = f"{_CONSUMERS}/{name}/", folder.entries()
    key = files.key_in(folder, path, f"{files.name}.{name}")
    meta = read_meta(folder, path, key, f"{files.name}/{name}", named=("Name", name), flaws=files.flaws)
    state = _state(folder, key, last_seq)
    if meta is None:
        return None, state
    backup = consumer_as_imported(ArchivedConsumer(name, meta.config, state, meta.created), last_seq)
    reason = backup.reason
    if state is None:
        problem = "is damaged" if _STATE in entries else "is missing"
        if _STATE in entries or not _may_be_unused(meta):
            files.flaws.append(FileFlaw(path + _STATE, problem))
        reason = f"{_STATE} {problem}; it starts as its configuration says"
    return replace(backup, reason="; ".join(filter(None, (reason, meta.unproved)))), state


def _state(folder: Folder, key: AssetKey | None, last_seq: int) -> ConsumerState | None:
    with suppress(JsBackupError):
        data = folder.read_around(_STATE, _MAX_STATE_BYTES).content
        opened = data
        if key is not None:
            with suppress(FormatError):  # of a restored stream it may still be in plain text
                opened = key.open(data)
        state = decode_state(opened)
        if data and _is_plausible(state, last_seq):
            return state
    return None


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


_STORE, _STREAMS, _SYSTEM = "jetstream", "streams", "$SYS"
_MOST_NAMED = 20


class ServerStore:
    """The open folder of a store, or one in it; `open` is a context manager.

    `streams` has the names of the folders that lead to each stream from the root, `account` is theirs. `notes` are
    sentences about what is left out.
    """

    def __init__(self, root: Folder, path: Path) -> None:
        self.root = root
        self.path = path
        self.account = ""
        self.streams: dict[str, tuple[str, ...]] = {}
        self.failures: list[Failure] = []
        self.notes: list[str] = []

    @classmethod
    @contextmanager
    def open(cls, path: Path, account: str | None) -> Iterator[ServerStore]:
        """Find the streams of an account; None for the only one that has any.

        Raises:
            UsageError: it is no store, or has several accounts, or not this one.
            StoreError: it cannot be read.
        """
        with Folder.open(path) as root:
            store = cls(root, path.resolve())
            store._look(account)
            yield store

    def check_keys(self, given: tuple[bytes, ...]) -> None:
        """Raise KeyUnavailable unless everything is in plain text, or a key opens something."""
        keys = StoreKeys(given, self.account)
        encrypted = False
        for name, path in self.streams.items():
            with self.folder(path) as folder:
                files = StreamFiles(folder, name, keys)
                if files.key is not None or any(map(files.block_key_of, files.block_keys)):
                    return
                encrypted = encrypted or files.encrypted
        if not encrypted:
            return
        if not given:
            raise KeyUnavailable(
                "the store is encrypted",
                hint="Put the server's key ('jetstream { key }' in its configuration) into a file, and name that with "
                "--store-key-file.",
            )
        raise KeyUnavailable(
            f"the key does not open the store of account {self.account or '?'}",
            hint="Each account has keys of its own: if the folder has another name than the account, give --account. "
            "After a change of the server's key, name both files with --store-key-file.",
        )

    @contextmanager
    def folder(self, path: tuple[str, ...]) -> Iterator[Folder]:
        """Open the folder to which folders of these names lead from the root."""
        with ExitStack() as opened:
            folder = self.root
            for name in path:
                folder = opened.enter_context(folder.folder(name))
            yield folder

    def _look(self, account: str | None) -> None:
        path, shown = self.path, printable_name(str(self.path))
        if is_stream_folder(self.root.entries()):
            name = proved_name(self.root) or path.name
            if not asset_name_is_sound(name):
                raise UsageError(f"{shown}: its name is not that of a stream")
            self.account = account or (path.parent.parent.name if path.parent.name == _STREAMS else "")
            self.streams = {name: ()}
            return
        base = (_STORE,) if self.root.entries().get(_STORE) is FolderEntry.FOLDER else ()
        with self.folder(base) as folder:
            entries = folder.entries()
        folders = [name for name, kind in entries.items() if kind is FolderEntry.FOLDER]
        candidates = [base, (*base, _STREAMS), *((*base, name, _STREAMS) for name in folders)]
        accounts = {(*path.parts, *below)[-2]: below for below in candidates if self._has_streams(below)}
        for name, kind in entries.items() if path.name != _STREAMS else ():
            if kind is FolderEntry.LINK:
                self.notes.append(f"{printable_name(name)} is a symbolic link, which is not followed")
        if entries.get(_SYSTEM) is FolderEntry.FOLDER:
            self.notes.append(
                "the cluster's own logs ($SYS) are not read: streams are taken as this server had stored them"
            )
        if not accounts:
            raise UsageError(
                f"{shown} is not the store of a nats-server",
                hint="Name the folder of 'store_dir', or one in it, down to that of a stream, with meta.inf and msgs.",
            )
        if account is not None and len(accounts) == 1 and path.name in (*accounts, _STREAMS):
            accounts = {account: next(iter(accounts.values()))}  # a copy of it may have another name
        names = ", ".join(map(printable_name, list(accounts)[:_MOST_NAMED]))
        if account is not None and account not in accounts:
            raise UsageError(f"the store has no streams of account {account}", hint=f"It has those of: {names}.")
        if account is None and len(accounts) > 1:
            raise UsageError(
                f"the store has streams of {len(accounts)} accounts: {names}",
                hint="Choose one with --account; each makes a backup of its own.",
            )
        self.account = next(iter(accounts)) if account is None else account
        self._list(accounts[self.account])

    def _has_streams(self, path: tuple[str, ...]) -> bool:
        """Return whether this is the folder of an account's streams, and has any."""
        if (*self.path.parts, *path)[-1] != _STREAMS:
            return False
        with self.folder(path[:-1]) as above:
            if path and above.entries().get(_STREAMS) is not FolderEntry.FOLDER:
                return False
        with self.folder(path) as folder:
            for name, kind in folder.entries().items():
                if kind is FolderEntry.FOLDER and not name.startswith("."):
                    with folder.folder(name) as inside:
                        if is_stream_folder(inside.entries()):
                            return True
        return False

    def _list(self, path: tuple[str, ...]) -> None:
        with self.folder(path) as folder:
            entries = folder.entries()
        for name, kind in entries.items():
            shown = printable_name(name)
            if name.startswith("."):
                self.notes.append(f"stream {shown[1:]} was being deleted, and is left out")
            elif kind is FolderEntry.LINK:
                self.failures.append(Failure(shown, UsageError(f"{shown} is a symbolic link, which is not followed")))
            elif kind is FolderEntry.FOLDER and not asset_name_is_sound(name):
                self.failures.append(Failure(shown, FormatError(f"no stream is called {name!r}")))
            elif kind is FolderEntry.FOLDER:
                self.streams[name] = (*path, name)


_PROCESSES = Path("/proc")
_MAX_CONFIG_BYTES = 1 << 20
_STORE_OPTION = re.compile(r"(?:-sd|--store_dir|-store_dir|--sd)(?:=(.+))?", re.ASCII)
_CONFIG_OPTION = re.compile(r"(?:-c|--config|-config|--c)(?:=(.+))?", re.ASCII)
_STORE_SETTING = re.compile(r"""\bstore_?dir["']?\s*[:=\s]\s*["']?([^"'\s;,}]+)""", re.IGNORECASE)


def refuse_users(path: Path) -> None:
    """Raise UsageError if a server uses the folder."""
    if users := find_users(path):
        raise UsageError(
            f"{printable_name(str(path))} is in use by {', '.join(users)}",
            hint="Stop the server first, or import a copy of the folder.",
        )


def find_users(path: Path) -> list[str]:
    """Return words about the processes that use the folder, such as `nats-server (pid 17)`."""
    with suppress(OSError):
        folder = path.resolve()
        pids = {int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdigit()} - {os.getpid()}
        users = [pid for pid in sorted(pids) if _has_open(pid, folder) or _is_server_of(pid, folder)]
        return [f"{_name(pid)} (pid {pid})" for pid in users]
    return []


def _mark(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _name(pid: int) -> str:
    with suppress(OSError):
        return (_PROCESSES / str(pid) / "comm").read_text(errors="replace").strip() or "a process"
    return "a process"


def _has_open(pid: int, folder: Path) -> bool:
    """Return whether the process is a server that has a file below the folder open."""
    with suppress(OSError):
        for entry in (_PROCESSES / str(pid) / "fd").iterdir() if "nats" in _name(pid) else ():
            with suppress(OSError):
                if entry.readlink().is_relative_to(folder):
                    return True
    return False


def _is_server_of(pid: int, folder: Path) -> bool:
    """Return whether the process is a server whose store has the folder, or is it."""
    place = _PROCESSES / str(pid)
    inside = {_mark(path) for path in (folder, *folder.parents)} - {None}
    with suppress(OSError, ValueError):
        words = [os.fsdecode(word) for word in (place / "cmdline").read_bytes().split(b"\0")]
        if "nats-server" in words[0]:
            root, here = place / "root", (place / "cwd").readlink()
            stores = [_seen_from(root, here / named) for named in _stores_named(words, root, here)]
            own = {_mark(folder)} - {None}
            return any(_mark(store / _STORE) in inside or _mark(store) in own for store in stores)
    return False


def _seen_from(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _stores_named(words: list[str], root: Path, here: Path) -> Iterator[str]:
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else ""
        if match := _STORE_OPTION.fullmatch(word):
            yield match[1] or following
        elif match := _CONFIG_OPTION.fullmatch(word):
            config = _seen_from(root, here / (match[1] or following))
            with suppress(OSError), config.open(errors="replace") as file:
                yield from _STORE_SETTING.findall(file.read(_MAX_CONFIG_BYTES))
