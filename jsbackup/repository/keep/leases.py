"""Leases: who is using a repository, so that nothing is deleted while it is needed.

A *shared* lease protects everything that its holder reads, stores or finds stored. Every command takes one before it
first reads: a backup (no manifest names yet what it has stored or will reuse), a restore (its backup may be forgotten
meanwhile). An *exclusive* lease excludes all others: only `prune` takes one, to delete.

A lease is an object that is valid for some seconds after its put; it is renewed by putting the next generation. Nothing
is overwritten. Only the key (`layout.LeaseKey`) and the time in the listing matter. The content is for people, and
damage to it changes nothing, with one exception: a lease whose process is certainly gone (`holder_process.py`) is
removed by a command that it excludes. Time is the store's: "now" is the time of an object that this process has just
put.

Why this is safe:

- A lease is granted by a listing that began after its own put had ended. Of two that exclude each other, the one that
  lists last sees the other. An exclusive lease that sees any other is removed and tried again after a random pause. A
  shared lease that sees an exclusive one stays, lists again and again, and is granted when there is none: exclusive
  ones that have not listed yet will see it. ("The lowest wins" would not work: the other may have listed before our
  put.)
- A listing is not atomic: it can miss both an object that is deleted early and its successor that is put late. So a
  generation is deleted only when the second one after it has been put; and later generations sort behind earlier ones.
- Other processes ignore a lease if the newest generation that they see has expired, compared with an object that they
  put themselves before. A holder that renews compares the same times: if they are too far apart, or the generation
  before is gone, the lease is lost for good (`RepositoryLocked`), even if nothing happened. So both sides decide alike.
- Between renewals the holder uses its own clock, from before it sent the last put, and stops when two fifths of the
  time are over (`check`). Requests that it sends while `check` passes have the other three fifths to arrive, which is
  longer than requests are retried (`stores/retry.py`): a store cannot refuse a late request. `commit` renews once more
  afterwards and removes a manifest that came too late.

- A process that is gone sends no more requests, but one that it has sent may still arrive in the store, such as the put
  of a manifest. So a holder must have been gone for `stores.base.late_seconds_of` before its lease is removed.

Users who may not delete objects can hold leases too: they are left behind, and expire.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from jsbackup.errors import FormatError, ObjectNotFound, RepositoryLocked, StoreError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import encode_document
from jsbackup.repository.inventory import retract
from jsbackup.repository.keep.holder_process import HolderProcess
from jsbackup.repository.keep.seen_leases import AbandonedLeases, SeenLease, delete_all, leases_among, read_lease
from jsbackup.repository.layout import LeaseKey
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import ObjectInfo, Store

__all__ = [
    "DURATION_SECONDS",
    "Lease",
    "Mode",
    "Terms",
    "acquire",
    "commit",
    "confirm",
]

# Three fifths of it are longer than the five minutes after which no request is retried, plus one more try; and it is
# short enough to wait for after a crash.
DURATION_SECONDS = 600
_SURE = 2 / 5

_FORMAT_VERSION = 1
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0


class Mode(StrEnum):
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a lease. Except `mode`, `duration_seconds` (1 to 9999) and `process` they are only for people.

    `purpose` is the command, `tool` its name and version, `created` RFC 3339 by the host's clock. `process` is the one
    that alone does what needs the lease, or None.
    """

    mode: Mode
    purpose: str
    tool: str
    host: str
    created: str
    duration_seconds: int = DURATION_SECONDS
    process: HolderProcess | None = None


class Lease:
    """A lease of this process; `acquire` makes one. May be used from several threads. `clock` is monotonic, in
    seconds.
    """

    def __init__(self, store: Store, terms: Terms, lease_id: str, clock: Callable[[], float]) -> None:
        self.id = lease_id
        self.terms = terms
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._generation = 0
        self._last: ObjectInfo | None = None
        self._sent_at = 0.0
        self._lost = ""

    def renew(self) -> float:
        """Renew it. Returns the store's time.

        Raises:
            RepositoryLocked: it was lost meanwhile.
            StoreError: it could not be renewed now; it may still be held, and the next try may succeed.
        """
        now, _ = self._put_and_list(layout.lease_prefix(self.id))
        return now

    def look(self) -> list[SeenLease]:
        """Renew it, and return the live leases that exclude it. Errors as `renew`."""
        now, infos = self._put_and_list(layout.LOCKS)
        return [
            seen
            for seen in leases_among(infos)
            if seen.key.id != self.id
            and seen.is_live(now)
            and (seen.key.exclusive or self.terms.mode is Mode.EXCLUSIVE)
        ]

    @property
    def held(self) -> bool:
        """Whether it is certainly held, for at least three fifths of its time. Only uses our clock."""
        # Read in this order, a renewal in between does no harm.
        sent_at, last, lost = self._sent_at, self._last, self._lost
        return last is not None and not lost and self._clock() - sent_at <= self.terms.duration_seconds * _SURE

    def check(self) -> None:
        """Raise `RepositoryLocked` unless it is `held`. Call it right before anything that needs the lease."""
        if not self.held:
            raise self._no_more(self._lost or "could not be renewed in time")

    def release(self) -> None:
        """Release it. Raises `StoreError` if its objects cannot be deleted now; they expire."""
        with self._lock:
            self._lost = self._lost or "was given up"
            delete_all(self._store, [info.key for info in self._store.list(layout.lease_prefix(self.id))])

    def _put_and_list(self, prefix: str) -> tuple[float, list[ObjectInfo]]:
        with self._lock:
            if self._lost:
                raise self._no_more(self._lost)
            sent_at = self._clock()
            # Counted first: a put that fails may still have been done.
            self._generation += 1
            key = layout.lease_key(self._key())
            self._store.put(key, self._document())
            infos = list(self._store.list(prefix))
            own = {info.key: info for info in infos if info.key.startswith(layout.lease_prefix(self.id))}
            if key not in own or (self._last is not None and self._last.key not in own):
                self._lose(own, "was removed by someone")
            new, last = own[key], self._last or own[key]
            if new.modified_seconds - last.modified_seconds > self.terms.duration_seconds:
                self._lose(own, "could not be renewed in time")
            self._last, self._sent_at = new, sent_at
            with suppress(StoreError):
                delete_all(self._store, own.keys() - {new.key, last.key})
            return new.modified_seconds, infos

    def _lose(self, own: Iterable[str], why: str) -> None:
        self._lost = why
        with suppress(StoreError):
            delete_all(self._store, own)
        raise self._no_more(why)

    def _no_more(self, why: str) -> RepositoryLocked:
        return RepositoryLocked(
            f"the lease {self.id} of this {self.terms.purpose} {why}",
            hint="Run it again: what was stored so far is used.",
        )

    def _key(self) -> LeaseKey:
        exclusive = self.terms.mode is Mode.EXCLUSIVE
        return LeaseKey(self.id, self._generation, exclusive, self.terms.duration_seconds)

    def _document(self) -> bytes:
        document: JsonObject = {
            "format": _FORMAT_VERSION,
            "id": self.id,
            "generation": self._generation,
            "mode": str(self.terms.mode),
            "duration_seconds": self.terms.duration_seconds,
            "purpose": self.terms.purpose,
            "tool": self.terms.tool,
            "host": self.terms.host,
            "created": self.terms.created,
        }
        if self.terms.process is not None:
            document["process"] = self.terms.process.to_json()
        return encode_document(document, f"lease {self.id}")


def acquire(
    store: Store,
    terms: Terms,
    *,
    wait_seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    random: Callable[[int], bytes],
    waiting: Callable[[RepositoryLocked], None] = lambda error: None,
    is_gone: Callable[[HolderProcess], bool] = lambda process: False,
    removed: Callable[[str], None] = lambda text: None,
) -> Lease:
    """Take a lease, waiting up to `wait_seconds` for leases that exclude it; `waiting` is then called once.

    `clock` is monotonic, in seconds, and continues while the machine sleeps. `random` returns that many random bytes.
    `is_gone` decides whether the process of another lease is gone; such a lease is removed, and `removed` called.
    The caller has to renew the lease, well before two fifths of its time are over, and to release it.

    Raises:
        RepositoryLocked: others hold it; the message names them.
        StoreError: the store does not answer, or nothing can be put there.
    """
    deadline = clock() + wait_seconds
    pause = _FIRST_PAUSE_SECONDS
    announced = False
    lease: Lease | None = None
    abandoned = AbandonedLeases(store, clock, is_gone, removed)
    try:
        while True:
            lease = lease or Lease(store, terms, random(8).hex(), clock)
            others = abandoned.without(lease.look())
            if not others:
                if lease.held:
                    return lease
                raise StoreError(f"{store.location} is too slow to hold a lease of {terms.duration_seconds} s there")
            if terms.mode is Mode.EXCLUSIVE:
                lease.release()
                lease = None
            left = deadline - clock()
            if left <= 0:
                raise _locked(store, others)
            if not announced:
                announced = True
                waiting(_locked(store, others))
            sleep(min(left, pause * (0.5 + int.from_bytes(random(2), "big") / 65536)))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    except BaseException:
        if lease is not None:
            with suppress(StoreError):
                lease.release()
        raise


def commit(repository: Repository, manifest: Manifest, lease: Lease) -> None:
    """Commit a backup made under `lease`, or leave none.

    Raises:
        RepositoryLocked: the lease was lost, and objects that the manifest names may have been deleted; nothing is
            committed.
        FormatError, ObjectExists, StoreError: as `Repository.commit`.
    """
    lease.renew()
    repository.commit(manifest)
    confirm(repository, manifest.id, lease)


def confirm(repository: Repository, backup: str, lease: Lease) -> None:
    """Remove a manifest that was put if the lease was lost before.

    The lease is renewed, whatever our clock says: it may have stopped just before the put, together with the machine.

    Raises:
        RepositoryLocked: it was lost; objects that the manifest names may have been deleted.
        StoreError: the store does not answer, and the lease is not certainly held.
    """
    try:
        lease.renew()
    except RepositoryLocked:
        retract(repository.documents, backup)
        raise
    except StoreError:
        if not lease.held:
            raise


def _locked(store: Store, others: Sequence[SeenLease]) -> RepositoryLocked:
    first = others[0]
    try:
        holder = str(read_lease(store, first))
    except (FormatError, ObjectNotFound):
        holder = "an unknown command"
    more = f", and {len(others) - 1} more" if len(others) > 1 else ""
    mode = Mode.EXCLUSIVE if first.key.exclusive else Mode.SHARED
    return RepositoryLocked(
        f"the repository is in use by {holder}, {mode} lease {first.key.id}{more}",
        hint=f"Wait longer with --lock-timeout: the lease of a killed command expires after "
        f"{first.key.duration_seconds} s. 'jsbackup unlock' shows leases and removes expired ones.",
    )
