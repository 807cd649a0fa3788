"""Find the streams below a folder of a server's store, whichever of its folders it is:

    <store_dir>/jetstream/<account>/streams/<stream>/

A server without accounts has one called `$G`. `$SYS/_js_` has the logs of a cluster: what is in them was stored by the
streams already, or was never acknowledged. Streams in memory have no folder.

Find out whether a nats-server uses a store folder. Linux only; elsewhere nothing is found.

A server locks nothing. It has the block open that it writes to, until nothing was written for a while; and its command
line or its configuration file names the folder. Both are looked for in all processes that this user may look at. A
server in a container sees another path, which is followed from its own root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from jsbackup.errors import FormatError, KeyUnavailable, UsageError
from jsbackup.exchange.folder import Folder, FolderEntry, printable_name
from jsbackup.exchange.server_store.stream_files import StreamFiles, is_stream_folder, proved_name
from jsbackup.failure import Failure
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.server_store.ciphers import StoreKeys

__all__ = ["ServerStore", "find_users", "refuse_users"]

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
                if files.opens:
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
        candidates = [base, (*base, _STREAMS), *((*base, name, _STREAMS) for name in entries)]
        accounts = {(*path.parts, *below)[-2]: below for below in candidates if self._has_streams(below)}
        for name, kind in entries.items():
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
        folder = self.root
        with ExitStack() as opened:
            for name in path:
                if folder.entries().get(name) is not FolderEntry.FOLDER:
                    return False
                folder = opened.enter_context(folder.folder(name))
            for name, kind in folder.entries().items() if (*self.path.parts, *path)[-1] == _STREAMS else ():
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
        found = path.stat()
        return found.st_dev, found.st_ino
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
    inside = {_mark(one) for one in (folder, *folder.parents)} - {None}
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
