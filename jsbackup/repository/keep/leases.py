"""Leases: who is at work in a repository, so that nothing is deleted under anybody's feet.

A *shared* lease says "what I read, and what I store or find stored, must stay", and everybody takes one before the
first look: a backup (a segment that it stored, or means to use again, is named by no manifest yet), a restore (its
backup may be forgotten meanwhile). An *exclusive* one is alone: `prune` takes it to delete, and for nothing else.

A lease is an object that holds for some seconds from its put on, and is renewed by a new one of the next generation;
nothing is overwritten. All that decides stands in the key (`layout.LeaseKey`) and in the time that the listing shows.
The content is for people: a damaged one changes nothing, and neither a host name nor a process id means anything.
Time is the store's: "now" is the time of an object that this process has just put.

Why this is safe:

- A lease is granted by a listing that began after its own put had ended. Of two that exclude each other, the one that
  lists last sees the other. An exclusive one that sees any other gives way and tries again after a random pause. A
  shared one that sees an exclusive one stays, looks again and again, and is granted when none is there: exclusive ones
  that have not listed yet will see it. ("The lowest wins" would not do: the other may have listed before we came.)
- A listing is no snapshot: an object can go before it is looked at, and its successor come too late. So a generation
  is deleted only when the second one after it has been put; and later generations sort behind earlier ones.
- Others pass a lease over when its newest generation that they see is older than it holds, compared with something
  they put themselves before. A holder that renews compares the same times: if they are too far apart, or the
  generation before is gone, the chain is broken and the lease is lost for good (`RepositoryLocked`), even if it came to
  no harm. So no two sides can judge differently.
- Between renewals the holder judges by its own clock, from before it sent the last put, and stops when two fifths of
  the time are over (`check`). What it sends while `check` passes has the other three to arrive, which is longer than a
  request is tried again for (`stores/retry.py`): a store cannot refuse what comes late. `commit` renews once more
  afterwards and takes back what took too long.

Whoever may not delete objects can hold leases too: they are left behind, and expire.
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
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.repository.inventory import retract
from jsbackup.repository.layout import LeaseKey
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import ObjectInfo, Store

__all__ = [
    "DURATION_SECONDS",
    "Lease",
    "LeaseText",
    "Mode",
    "SeenLease",
    "Terms",
    "acquire",
    "commit",
    "confirm",
    "list_leases",
    "read_lease",
    "remove_lease",
    "store_now",
]

# Three fifths of it are more than the five minutes after which no request is tried again, and one more try; and it is
# short enough to be waited for after a crash.
DURATION_SECONDS = 600
_SURE = 2 / 5

_FORMAT_VERSION = 1
_MAX_BYTES = 64 << 10
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0


class Mode(StrEnum):
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True, slots=True)
class Terms:
    """What a holder asks for. But for `mode` and `duration_seconds` (1 to 9999) it is read by people only.

    `purpose` is the command, `tool` its name and version, `created` RFC 3339 by the host's clock.
    """

    mode: Mode
    purpose: str
    tool: str
    host: str
    created: str
    duration_seconds: int = DURATION_SECONDS


@dataclass(frozen=True, slots=True)
class LeaseText:
    """What a lease says of its holder."""

    purpose: str
    tool: str
    host: str
    created: str

    def __str__(self) -> str:
        return f"{self.purpose} (since {self.created}, {self.tool} on {self.host})"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A lease as a listing shows it: its newest generation, put at `modified_seconds`, and the keys of all."""

    key: LeaseKey
    modified_seconds: float
    keys: tuple[str, ...]

    @property
    def expires_seconds(self) -> float:
        return self.modified_seconds + self.key.duration_seconds

    def is_live(self, now_seconds: float) -> bool:
        return now_seconds - self.modified_seconds <= self.key.duration_seconds


class Lease:
    """A lease of one's own; `acquire` makes one. May be used from several threads. `clock` gives seconds that rise."""

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
        """Hold it for another while; the store's time.

        Raises:
            RepositoryLocked: it was lost meanwhile.
            StoreError: it could not be renewed now; it may still be held, and the next try may succeed.
        """
        now, _ = self._put_and_list(layout.lease_prefix(self.id))
        return now

    def look(self) -> list[SeenLease]:
        """Renew it, and give the live leases that it does not go together with. Errors as `renew`."""
        now, infos = self._put_and_list(layout.LOCKS)
        return [
            seen
            for seen in _grouped(infos)
            if seen.key.id != self.id
            and seen.is_live(now)
            and (seen.key.exclusive or self.terms.mode is Mode.EXCLUSIVE)
        ]

    @property
    def held(self) -> bool:
        """Whether it is held for certain, and for three fifths of its time still. Asks the own clock only."""
        # Read in this order, a renewal in between is of no harm.
        sent_at, last, lost = self._sent_at, self._last, self._lost
        return last is not None and not lost and self._clock() - sent_at <= self.terms.duration_seconds * _SURE

    def check(self) -> None:
        """To be called right before anything that takes the lease. Raises `RepositoryLocked` unless it is `held`."""
        if not self.held:
            raise self._no_more(self._lost or "could not be renewed in time")

    def release(self) -> None:
        """Give it up. Raises `StoreError` if its objects cannot be deleted now: they expire."""
        with self._lock:
            self._lost = self._lost or "was given up"
            _delete_all(self._store, [info.key for info in self._store.list(layout.lease_prefix(self.id))])

    def _put_and_list(self, prefix: str) -> tuple[float, list[ObjectInfo]]:
        with self._lock:
            if self._lost:
                raise self._no_more(self._lost)
            sent_at = self._clock()
            # Counted first: a put that fails may have been done.
            self._generation += 1
            key = layout.lease_key(self._key())
            self._store.put(key, self._document())
            infos = list(self._store.list(prefix))
            own = {info.key: info for info in infos if info.key.startswith(layout.lease_prefix(self.id))}
            if key not in own or (self._last is not None and self._last.key not in own):
                self._lose(own, "was removed by somebody")
            new, last = own[key], self._last or own[key]
            if new.modified_seconds - last.modified_seconds > self.terms.duration_seconds:
                self._lose(own, "could not be renewed in time")
            self._last, self._sent_at = new, sent_at
            with suppress(StoreError):
                _delete_all(self._store, own.keys() - {new.key, last.key})
            return new.modified_seconds, infos

    def _lose(self, own: Iterable[str], why: str) -> None:
        self._lost = why
        with suppress(StoreError):
            _delete_all(self._store, own)
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
) -> Lease:
    """Take a lease, waiting up to `wait_seconds` for others that stand in its way; `waiting` is then told, once.

    `clock` gives seconds that rise, also while the machine sleeps. `random` gives so many random bytes. Whoever gets
    the lease has to renew it, well before two fifths of its time are over, and to release it.

    Raises:
        RepositoryLocked: others hold it; the message names them.
        StoreError: the store does not answer, or nothing can be put there.
    """
    deadline = clock() + wait_seconds
    pause = _FIRST_PAUSE_SECONDS
    told = False
    lease: Lease | None = None
    try:
        while True:
            lease = lease or Lease(store, terms, random(8).hex(), clock)
            others = lease.look()
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
            if not told:
                told = True
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
        RepositoryLocked: the lease was lost, and what the manifest names may have been deleted; nothing is committed.
        FormatError, ObjectExists, StoreError: as `Repository.commit`.
    """
    lease.renew()
    repository.commit(manifest)
    confirm(repository, manifest.id, lease)


def confirm(repository: Repository, backup: str, lease: Lease) -> None:
    """After a manifest was put: take it back if the lease was lost before it was there.

    The lease is renewed, whatever our clock says: it may have stood still just before the put, with the machine.

    Raises:
        RepositoryLocked: it was lost; what the manifest names may have been deleted.
        StoreError: the store does not answer, and the lease is not held for certain.
    """
    try:
        lease.renew()
    except RepositoryLocked:
        retract(repository.documents, backup)
        raise
    except StoreError:
        if not lease.held:
            raise


def list_leases(store: Store) -> list[SeenLease]:
    """All leases, live and expired ones. Foreign objects among them are passed over."""
    return _grouped(store.list(layout.LOCKS))


def read_lease(store: Store, seen: SeenLease) -> LeaseText:
    """What a lease says of its holder.

    Raises:
        ObjectNotFound: it is gone.
        FormatError: it is damaged.
    """
    key = seen.keys[-1]
    fields = decode_document(store.get_range(key, 0, _MAX_BYTES), f"lease {key}")
    if (fields.text("id"), fields.number("generation")) != (seen.key.id, seen.key.generation):
        raise FormatError(f"lease {key} is not the one that its key names")
    return LeaseText(fields.text("purpose"), fields.text("tool"), fields.text("host"), fields.text("created"))


def remove_lease(store: Store, seen: SeenLease) -> None:
    """Remove somebody else's lease. If it still lives, its holder notices when it renews it, and stops then."""
    _delete_all(store, [info.key for info in store.list(layout.lease_prefix(seen.key.id))])


def store_now(store: Store, random: Callable[[int], bytes]) -> float:
    """The store's time, for those who hold no lease: that of an object, which is then removed."""
    key = layout.probe_key(random(8).hex())
    store.put(key, b"")
    try:
        return store.head(key).modified_seconds
    finally:
        with suppress(StoreError):
            store.delete(key)


def _grouped(infos: Iterable[ObjectInfo]) -> list[SeenLease]:
    """Leases, each with all of its generations; `infos` in order."""
    found: dict[str, SeenLease] = {}
    for info in infos:
        key = layout.parse_lease_key(info.key)
        if key is not None:
            before = found[key.id].keys if key.id in found else ()
            found[key.id] = SeenLease(key, info.modified_seconds, (*before, info.key))
    return list(found.values())


def _delete_all(store: Store, keys: Iterable[str]) -> None:
    for key in sorted(keys):
        store.delete(key)


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
