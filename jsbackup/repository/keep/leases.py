"""Leases: who is using a repository, so that nothing is deleted while it is needed.

A *shared* lease protects everything that its holder reads, stores or finds stored. Every command takes one before it
first reads: a backup (no manifest names yet what it has stored or will reuse), a restore (its backup may be forgotten
meanwhile). An *exclusive* lease excludes all others: only `prune` takes one, to delete.

A lease is an object that is valid for some seconds after its put; it is renewed by putting the next generation. Nothing
is overwritten. Only the key (`layout.LeaseKey`) and the time in the listing matter. The content is for people, and
damage to it changes nothing, with one exception: a lease whose process is certainly gone is
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
  of a manifest. So a holder must have been gone for `Store.late_seconds` before its lease is removed.

Users who may not delete objects can hold leases too: they are left behind, and expire.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from jsbackup.errors import (
    FormatError,
    JsBackupError,
    ObjectLocked,
    ObjectNotFound,
    RepositoryLocked,
    StoreError,
    UsageError,
)
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
    "AbandonedLeases",
    "HolderProcess",
    "Lease",
    "LeaseOutcome",
    "LeaseText",
    "Mode",
    "SeenLease",
    "Terms",
    "acquire",
    "commit",
    "confirm",
    "delete_all",
    "holder_of",
    "is_gone",
    "leases_among",
    "list_leases",
    "read_lease",
    "remove_lease",
    "store_now",
    "this_process",
    "unlock_leases",
]


# --- holder process ---
#
# The process that holds a lease, and whether it is gone: then no one has to wait until its lease expires.
#
# Only a process that could see the holder may decide that it is gone. So a lease says where its process runs: on which
# machine, since which boot, in which namespaces. Another machine, another container, an operating system that does not
# tell all of this (only Linux does): nothing is decided, and the lease expires as ever.
#
# - The boot id is random and drawn at each boot. Copies of a running virtual machine share it, so the name and id of
# the
#   machine are compared too.
# - Containers share the boot id. The number of a living pid namespace is unique on a machine: if it is ours, the holder
#   ran in our namespace, or in one that is gone with all its processes.
# - A process id is used again by others, so the start time is compared too. It is counted from boot, and shifted by the
#   reader's time namespace.
# - `/proc` may show another namespace than ours, or hide processes of other users. So a process is gone only if the
#   kernel says so (`kill` with signal 0), or if `/proc` shows another start time, or that it has ended and no one has
#   asked for its exit code yet.

_PROC = Path("/proc")
_MACHINE_ID = Path("/etc/machine-id")
_MOST_PID = 1 << 22  # of Linux
_MOST_NUMBER = 1 << 63
_LONGEST_TEXT = 64


@dataclass(frozen=True, slots=True)
class HolderProcess:
    """A process of one machine. `machine` is a digest of its name and id, `started` is in clock ticks since boot, the
    namespaces are inode numbers (0 for a time namespace that the kernel does not have).
    """

    machine: str
    boot: str
    pid_namespace: int
    time_namespace: int
    pid: int
    started: int

    @property
    def place(self) -> tuple[str, str, int, int]:
        """Where its process id and its start time mean something."""
        return self.machine, self.boot, self.pid_namespace, self.time_namespace

    def to_json(self) -> JsonObject:
        return asdict(self)


def holder_of(value: Any) -> HolderProcess | None:
    """Return the process that a lease names; None if it names none, or not as this version does."""
    if not isinstance(value, dict):
        return None
    machine, boot = (value.get(name) for name in ("machine", "boot"))
    if not (isinstance(machine, str) and isinstance(boot, str) and 0 < len(machine) <= _LONGEST_TEXT >= len(boot) > 0):
        return None
    numbers = [value.get(name) for name in ("pid_namespace", "time_namespace", "pid", "started")]
    whole = [number for number in numbers if type(number) is int and 0 <= number < _MOST_NUMBER]
    if len(whole) < len(numbers) or not 0 < whole[2] <= _MOST_PID:
        return None
    return HolderProcess(machine, boot, *whole)


def this_process() -> HolderProcess | None:
    """Return this process; None if the operating system does not tell all that is needed."""
    try:
        if not _shows_our_namespace():
            return None
        return HolderProcess(
            machine=_machine(),
            boot=(_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()[:_LONGEST_TEXT],
            pid_namespace=(_PROC / "self/ns/pid").stat().st_ino,
            time_namespace=_time_namespace(),
            pid=os.getpid(),
            started=_stat_of(os.getpid()).started,
        )
    except (OSError, ValueError):
        return None


def is_gone(process: HolderProcess) -> bool:
    """Return whether it is certain that the process has ended. False if this process cannot know."""
    own = this_process()
    if own is None or own.place != process.place:
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to someone else
        pass
    try:
        stat = _stat_of(process.pid)
    except (OSError, ValueError):  # hidden from us, or it ends at this moment
        return False
    return stat.started != process.started or stat.ended


@dataclass(frozen=True, slots=True)
class _Stat:
    ended: bool
    started: int


def _stat_of(pid: int) -> _Stat:
    """Raises OSError, and ValueError if it is not what Linux writes."""
    # The name of the program, in parentheses, may contain anything; state is the third field, of 52.
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError(f"/proc/{pid}/stat has {len(fields)} fields")
    # The first thread of a process may have ended before the others.
    return _Stat(ended=fields[0] in (b"Z", b"X", b"x") and int(fields[17]) <= 1, started=int(fields[19]))


def _shows_our_namespace() -> bool:
    """Return whether `/proc` is of our own pid namespace: then it lists one process id for this process."""
    lines = (_PROC / "self/status").read_bytes().splitlines()
    ids = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return ids == [str(os.getpid()).encode()]


def _time_namespace() -> int:
    try:
        return (_PROC / "self/ns/time").stat().st_ino
    except FileNotFoundError:  # Linux before 5.6
        return 0


def _machine() -> str:
    # The id itself is not for others to know (machine-id(5)).
    try:
        identity = _MACHINE_ID.read_bytes().strip()[:_LONGEST_TEXT]
    except OSError:
        identity = b""
    return hashlib.sha256(b"jsbackup lease\0" + identity + b"\0" + platform.node().encode()).hexdigest()[:32]


# --- seen leases ---
#
# Leases as others see them: what a listing shows, what they say about their holders, and how they are removed.

_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LeaseText:
    """What a lease says about its holder."""

    purpose: str
    tool: str
    host: str
    created: str
    process: HolderProcess | None = None

    def __str__(self) -> str:
        return f"{self.purpose} (since {self.created}, {self.tool} on {self.host})"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A lease as a listing shows it: its newest generation, put at `modified_seconds`, and the keys of all
    generations.
    """

    key: LeaseKey
    modified_seconds: float
    keys: tuple[str, ...]

    @property
    def expires_seconds(self) -> float:
        return self.modified_seconds + self.key.duration_seconds

    def is_live(self, now_seconds: float) -> bool:
        return now_seconds - self.modified_seconds <= self.key.duration_seconds


def list_leases(store: Store) -> list[SeenLease]:
    """List all leases, live and expired ones. Foreign objects among them are skipped."""
    return leases_among(store.list(layout.LOCKS))


def read_lease(store: Store, seen: SeenLease) -> LeaseText:
    """Return what a lease says about its holder.

    Raises:
        ObjectNotFound: it was removed.
        FormatError: it is damaged.
    """
    key = seen.keys[-1]
    fields = decode_document(store.get_range(key, 0, _MAX_BYTES), f"lease {key}")
    if (fields.text("id"), fields.number("generation")) != (seen.key.id, seen.key.generation):
        raise FormatError(f"lease {key} is not the one that its key names")
    return LeaseText(
        fields.text("purpose"),
        fields.text("tool"),
        fields.text("host"),
        fields.text("created"),
        holder_of(fields.get("process")),
    )


def remove_lease(store: Store, seen: SeenLease) -> None:
    """Remove the lease of another process. If it is live, its holder notices when it renews it, and stops."""
    delete_all(store, [info.key for info in store.list(layout.lease_prefix(seen.key.id))])


def store_now(store: Store, random: Callable[[int], bytes]) -> float:
    """Return the store's time without a lease: that of an object, which is removed again."""
    key = layout.probe_key(random(8).hex())
    store.put(key, b"")
    try:
        return store.head(key).modified_seconds
    finally:
        with suppress(StoreError):
            store.delete(key)


def leases_among(infos: Iterable[ObjectInfo]) -> list[SeenLease]:
    """Return leases, each with the keys of all its generations; `infos` are in order."""
    seen: dict[str, SeenLease] = {}
    for info in infos:
        key = layout.parse_lease_key(info.key)
        if key is not None:
            before = seen[key.id].keys if key.id in seen else ()
            seen[key.id] = SeenLease(key, info.modified_seconds, (*before, info.key))
    return list(seen.values())


def delete_all(store: Store, keys: Iterable[str]) -> None:
    for key in sorted(keys):
        store.delete(key)


class AbandonedLeases:
    """Recognizes the leases of processes that are gone, and removes them. Of one `acquire`."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        is_gone: Callable[[HolderProcess], bool],
        removed: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._is_gone = is_gone
        self._removed = removed
        self._seen_at: dict[str, float] = {}

    def without(self, leases: list[SeenLease]) -> list[SeenLease]:
        """Return the leases that have to be waited for. Raises StoreError."""
        return [seen for seen in leases if not self._is_passed_over(seen)]

    def _is_passed_over(self, seen: SeenLease) -> bool:
        try:
            text = read_lease(self._store, seen)
        except (FormatError, ObjectNotFound):  # damaged, or renewed or released at this moment
            return False
        if text.process is None or not self._is_gone(text.process):
            return False
        now = self._clock()
        if now - self._seen_at.setdefault(seen.key.id, now) < self._store.late_seconds():
            return False
        # It counts no more, even if we may not delete it.
        with suppress(StoreError):
            remove_lease(self._store, seen)
            self._removed(f"removed the lease {seen.key.id} of {text}: its process {text.process.pid} is gone")
        return True


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


# --- unlocking ---
#
# Remove the leases of commands that are gone, for `jsbackup unlock`.


@dataclass(frozen=True, slots=True)
class LeaseOutcome:
    """A lease, and whether it was removed.

    `text` is None if it cannot be read: `problem` says why, unless it was renewed or released at this moment.
    `process_gone`: it was held on this machine, by a process that has ended. `locked` says why it could not be removed.
    """

    seen: SeenLease
    live: bool
    text: LeaseText | None = None
    process_gone: bool = False
    removed: bool = False
    problem: str | None = None
    locked: str | None = None

    @property
    def damaged(self) -> bool:
        """Whether it is a damaged one that stays because nobody asked to remove it."""
        return self.problem is not None and not self.removed and self.locked is None


def unlock_leases(store: Store, wanted: Collection[str], now_seconds: float, *, force: bool) -> list[LeaseOutcome]:
    """Remove leases that have expired, or whose process is gone; with `force` active ones too. Returns all leases.

    `wanted` are the ids of those that may be removed, all if it is empty. `now_seconds` is the store's time. A process
    that is gone may still have a request on its way to a store that is late.

    Raises:
        UsageError: there is no such lease.
        StoreError: the store does not answer.
    """
    leases = list_leases(store)
    if unknown := sorted(set(wanted) - {seen.key.id for seen in leases}):
        raise UsageError(f"no lease {unknown[0]}", hint="See 'jsbackup unlock' for those there are.")
    outcomes = []
    for seen in leases:
        outcome = _looked_at(store, seen, now_seconds)
        is_over = not outcome.live or (outcome.process_gone and store.late_seconds() == 0)
        if (not wanted or seen.key.id in wanted) and (force or is_over):
            try:
                remove_lease(store, seen)
                outcome = replace(outcome, removed=True)
            except ObjectLocked as error:
                outcome = replace(outcome, locked=error.message)
        outcomes.append(outcome)
    return outcomes


def _looked_at(store: Store, seen: SeenLease, now_seconds: float) -> LeaseOutcome:
    live = seen.is_live(now_seconds)
    try:
        text = read_lease(store, seen)
    except ObjectNotFound:  # renewed or released at this moment
        return LeaseOutcome(seen, live)
    except JsBackupError as error:
        return LeaseOutcome(seen, live, problem=error.message)
    return LeaseOutcome(seen, live, text, text.process is not None and is_gone(text.process))
