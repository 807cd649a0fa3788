"""What pages read: the repository, and what was read of it lately.

A page must be quick, and what a request may make this process read is limited: few requests read at a time, and each
ends its search after some seconds. Manifests never change, so the last ones are kept as long as they exist in the
repository; the status is taken again when it is old. What was kept is dropped when someone asks to look again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jsbackup.config import hide_logins
from jsbackup.config.connection import Connection
from jsbackup.engine.check.health_rules import Breach, Limits, find_breaches
from jsbackup.engine.check.status import RepositoryStatus, take_status
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.memory import give_back
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.keep.holds import held_backups
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository

__all__ = ["Library", "RestoreTarget", "TakenStatus"]

_FRESH_SECONDS = 30.0
_MANIFESTS = 4
_READERS = 2
_WAIT_SECONDS = 20.0
_SEARCH_SECONDS = 3.0
_COUNTED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A server for plans: how people call it, the options of a command line that lead to it, and the connection.

    `hidden`: a login, which is not in the options, was given too.
    """

    name: str
    options: tuple[tuple[str, str], ...]
    connect: Callable[[], Connection]
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class TakenStatus:
    """The status, what is wrong, all backups, and which of them are held. `taken` is of the monotonic clock."""

    status: RepositoryStatus
    breaches: tuple[Breach, ...]
    inventory: Inventory
    held: frozenset[str]
    taken: float

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.taken


class Library:
    """May be used from several threads. `place` is how a command line names the repository, and `options` are those of
    its store and keys; `policy` is what `forget` keeps by the `profile`, if it says so.
    """

    def __init__(
        self,
        repository: Repository,
        place: str,
        *,
        options: Sequence[tuple[str, str]] = (),
        targets: Sequence[RestoreTarget] = (),
        policy: Policy | None = None,
        profile: str = "",
    ) -> None:
        self.repository = repository
        self.place = place
        self.options = tuple(options)
        self.location = hide_logins(repository.store.location)
        self.targets = tuple(targets)
        self.policy = policy
        self.profile = profile
        self.stopping = threading.Event()
        self._readers = threading.BoundedSemaphore(_READERS)
        self._counters = threading.BoundedSemaphore(1)
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._looking = threading.Lock()
        self._status: TakenStatus | None = None

    def status(self, *, fresh: bool = False) -> TakenStatus:
        """Return the status, that of a second ago at most if it is to be `fresh`, and nothing read before is used any
        more. Raises RepositoryNotFound, IntegrityError, KeyUnavailable, StoreError.
        """
        with self._looking:
            if fresh:
                self.repository = self.repository.renewed()
                with self._lock:
                    self._manifests.clear()
            else:
                self.repository.check_there()
            known = self._status
            if known is not None and known.age_seconds < (1.0 if fresh else _FRESH_SECONDS):
                return known
            status = take_status(self.repository, now_ns=time.time_ns())
            inventory, held = self.repository.inventory(), held_backups(self.repository)
            breaches = tuple(find_breaches(status, Limits()))
            self._status = TakenStatus(status, breaches, inventory, held, time.monotonic())
            return self._status

    def manifest(self, backup: str) -> Manifest:
        """Return the manifest of an id, the start of one, or `latest`. Raises IntegrityError,
        KeyUnavailable, StoreError, and UsageError if it is ambiguous, or was forgotten.
        """
        with self._lock:
            known = self._manifests.get(backup)
            if known is not None:
                self._manifests.move_to_end(backup)
        if known is not None:
            if self.repository.has_backup(backup):
                return known
            self.repository.check_there()
            with self._lock:
                self._manifests.pop(backup, None)
                self._status = None
            raise UsageError(f"no such backup: {backup} was forgotten", hint="See the list of those there are.")
        try:
            manifest = self.repository.find(backup)
        except JsBackupError:
            self.repository.check_there()
            raise
        with self._lock:
            self._manifests[manifest.id] = manifest
            while len(self._manifests) > _MANIFESTS:
                self._manifests.popitem(last=False)
        return manifest

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Wait for a turn to read and hold something for each of many messages: one request at a time. Raises as
        `reading`.
        """
        try:
            with _turn(self._counters), self.reading():
                yield
        finally:
            give_back(_COUNTED_BYTES)

    @contextmanager
    def reading(self) -> Iterator[Callable[[], bool]]:
        """Wait for a turn to read; give a function that says when a search has to end. Raises JsBackupError if
        others have had it for long."""
        with _turn(self._readers):
            deadline = time.monotonic() + _SEARCH_SECONDS
            yield lambda: self.stopping.is_set() or time.monotonic() > deadline


@contextmanager
def _turn(turns: threading.Semaphore) -> Iterator[None]:
    if not turns.acquire(timeout=_WAIT_SECONDS):
        raise JsBackupError("other pages are still being prepared", hint="Load the page again in a moment.")
    try:
        yield
    finally:
        turns.release()
