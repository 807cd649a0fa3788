"""Locks on the objects of a backup, in a store with object lock (`Store.lock_until`).

The objects of a backup are locked before its manifest commits it, and the manifest right after: every backup is locked,
unless the command was killed between the two. The descriptor and the keys are locked too, because nothing can be read
without them. Locks are extended and never shortened, so an object that several backups use is kept as long as the
longest lock.

A lock takes two requests, and backups share most of their objects. So the end of a lock "for 30 days" is rounded up to
the next multiple of an eighth of that: backups made meanwhile have the same end, and objects that the newest backup has
locked until then are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, objects_named
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import LockMode
from jsbackup.times import format_time

__all__ = ["LOCKED", "BackupLock", "LockRequest", "open_lock"]

_STEPS = 8
_THREADS = 8
LOCKED = "locked"  # in a manifest: {"until": RFC 3339, "mode": …, "at": location}; a copy elsewhere is not locked


@dataclass(frozen=True, slots=True)
class LockRequest:
    """How long a backup is locked: for a duration after its beginning, or until a Unix time. One of the two is set."""

    mode: LockMode
    for_seconds: float | None = None
    until_seconds: float | None = None

    def end_seconds(self, begun_seconds: float) -> float:
        if self.until_seconds is not None:
            return self.until_seconds
        assert self.for_seconds is not None
        step = max(1.0, self.for_seconds / _STEPS)
        return math.ceil((begun_seconds + self.for_seconds) / step) * step


@dataclass(frozen=True, slots=True)
class BackupLock:
    """The lock of one backup."""

    repository: Repository
    mode: LockMode
    until_seconds: float

    def lock_content(self, manifest: Manifest) -> Manifest:
        """Lock all objects of the backup except its manifest, which is returned with the lock recorded in it."""
        store = self.repository.store
        keys = [info.key for info in store.list(layout.KEYS)]
        self._lock([layout.DESCRIPTOR, *keys, *sorted(set(objects_named(manifest)) - self._locked_already())])
        return replace(manifest, extra={**manifest.extra, LOCKED: self._field()})

    def lock_manifest(self, manifest: Manifest) -> None:
        """Lock the manifest, which is stored under its key or, encrypted, under that key with a suffix."""
        self._lock(info.key for info in self.repository.store.list(layout.manifest_key(manifest.id)))

    def _lock(self, keys: Iterable[str]) -> None:
        tasks = (partial(self.repository.store.lock_until, key, self.until_seconds, self.mode) for key in keys)
        for _ in in_order(tasks, _THREADS):
            pass

    def _locked_already(self) -> set[str]:
        newest = next(reversed(self.repository.backups()), None)
        if newest is None:
            return set()
        try:
            manifest = self.repository.manifest(newest)
        except JsBackupError:  # it is only a shortcut
            return set()
        return set(objects_named(manifest)) if manifest.extra.get(LOCKED) == self._field() else set()

    def _field(self) -> dict[str, str]:
        until = format_time(math.ceil(self.until_seconds) * 10**9)
        return {"until": until, "mode": self.mode.value, "at": self.repository.store.location}


def open_lock(repository: Repository, request: LockRequest, begun_seconds: float) -> BackupLock:
    """Return the lock for a backup that begins now.

    Raises:
        UsageError: it would end before it begins.
        UnsupportedError: the store has no object lock.
    """
    until = request.end_seconds(begun_seconds)
    if until <= begun_seconds:
        raise UsageError(
            "the lock would end before the backup begins", hint="Give a time in the future, or a duration."
        )
    repository.store.check_object_lock()
    return BackupLock(repository, request.mode, until)
