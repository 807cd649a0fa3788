"""Checks of a repository for `jsbackup doctor`: whether it is ready for backups and restores, one check a line.

Nothing is left behind. Whether the store can be written to is tested with an object below `probe/` that is removed
again, and only where a repository exists, so that an empty location stays empty. A check that fails does not stop the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    RepositoryNotFound,
    StoreError,
    UnsupportedError,
    UsageError,
)
from jsbackup.formats.compression import ZSTD
from jsbackup.model import Check
from jsbackup.repository import layout
from jsbackup.repository.crypto.access import NEEDS_IDENTITY, NO_KEYS, GivenKeys
from jsbackup.repository.crypto.readers import examine_readers
from jsbackup.repository.descriptor import FORMAT_VERSION, Descriptor, holds_anything
from jsbackup.repository.keep.leases import SeenLease, list_leases, read_lease, store_now
from jsbackup.repository.objects import SEGMENT_BYTES
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.probe import probe_store

__all__ = ["Purpose", "check_clock", "examine_repository"]

# A smaller difference is normal for a machine that keeps time. Beyond the larger one, backups of several hosts sort
# wrongly, and credentials and stores are refused (S3 after a quarter of an hour).
_CLOCK_SECONDS = 5.0
_CLOCK_PROBLEM_SECONDS = 300.0
# The segments in flight of four streams.
_LEAST_FREE_BYTES = 128 << 20
_FREE_SHARE = 0.05

_SHOWN = 3
_REACH = "Check --repo and what leads there."
_AFTER_THAT = "See the lines above first."
_READ = "See 'jsbackup verify'."
_UNLOCK = "Remove expired ones with 'jsbackup unlock'."


class Purpose(StrEnum):
    """What server and repository are to be used for. ALL means backups and restores, without following."""

    BACKUP = "backup"
    FOLLOW = "follow"
    RESTORE = "restore"
    ALL = "all"

    @property
    def backs_up(self) -> bool:
        return self is not Purpose.RESTORE

    @property
    def restores(self) -> bool:
        return self in (Purpose.RESTORE, Purpose.ALL)


def check_clock(name: str, whose: str, ahead_seconds: float, unsure_seconds: float) -> Check:
    """Check a clock that is `ahead_seconds` ahead of ours (negative: behind), with an uncertainty of
    `unsure_seconds`.
    """
    off = max(0.0, abs(ahead_seconds) - unsure_seconds)
    way = "ahead of" if ahead_seconds > 0 else "behind"
    if off <= _CLOCK_SECONDS:
        return Check.fine(name, f"the clock of {whose} agrees with this host's within {max(_CLOCK_SECONDS, 0):g} s")
    sentence = f"the clock of {whose} is {off:.0f} s {way} ours"
    fix = "Synchronize both clocks with NTP."
    return Check.problem(name, sentence, fix) if off > _CLOCK_PROBLEM_SECONDS else Check.warning(name, sentence, fix)


def examine_repository(
    store: Store,
    keys: GivenKeys | JsBackupError,
    purpose: Purpose,
    *,
    clock: Callable[[], float],
    random: Callable[[int], bytes],
) -> list[Check]:
    """Run all checks of a repository. Raises no JsBackupError.

    `keys` are the given keys, or the error that reading them raised. `clock` returns our Unix time in seconds, `random`
    that many random bytes.
    """
    space = _space(store)
    given = NO_KEYS if isinstance(keys, JsBackupError) else keys
    misfit = keys if isinstance(keys, JsBackupError) else None
    try:
        try:
            repository = Repository.open(store, given)
        except (KeyUnavailable, UsageError) as error:
            if given == NO_KEYS:
                raise
            misfit = error
            repository = Repository.open(store)
    except RepositoryNotFound as error:
        return [_not_there(store, error, purpose, plain=keys == NO_KEYS), *_rest("there is no repository"), *space]
    except JsBackupError as error:
        return [Check.failed("repository", error, _REACH), *_rest("the repository cannot be opened"), *space]
    writable, now = _writable(repository, purpose, clock, random)
    return [
        Check.fine("repository", _described(repository.descriptor, store)),
        *_keys(repository, misfit, purpose),
        _backups(repository, purpose),
        *writable,
        _leases(store, clock() if now is None else now),
        *space,
    ]


def _rest(why: str) -> list[Check]:
    names = ("keys", "backups", "writable", "create-only", "store-clock", "leases")
    return [Check.not_tried(name, why, _AFTER_THAT) for name in names]


def _not_there(store: Store, error: RepositoryNotFound, purpose: Purpose, *, plain: bool) -> Check:
    fix = "Make one with 'jsbackup init', or check --repo."
    try:
        empty = not holds_anything(store)
    except StoreError:
        empty = False
    if empty and plain and not purpose.restores:
        return Check.fine("repository", f"{store.location} is empty: the first backup makes a plain repository")
    if empty and plain and purpose is Purpose.ALL:
        sentence = f"{store.location} is empty: the first backup makes a plain repository"
        return Check.warning("repository", sentence, "Make one with 'jsbackup init', if it should be encrypted.")
    return Check.problem("repository", error.message, fix, code=error.exit_code)


def _described(descriptor: Descriptor, store: Store) -> str:
    kind = "encrypted and signed" if descriptor.recipient else "signed" if descriptor.authority else "plain"
    if descriptor.segment_bytes != SEGMENT_BYTES:
        kind += f", segments of {descriptor.segment_bytes} bytes"
    if descriptor.compression != ZSTD:
        kind += f", compression {descriptor.compression}"
    return f"{kind}, format {FORMAT_VERSION}, at {store.location}, made {descriptor.created[:10]} by {descriptor.tool}"


def _keys(repository: Repository, misfit: JsBackupError | None, purpose: Purpose) -> list[Check]:
    """Check that the given keys are enough for the purpose."""
    if misfit is not None:
        return [Check.failed("keys", misfit, "Give the keys of this repository.")]
    descriptor = repository.descriptor
    if descriptor.authority is None:
        return [Check.fine("keys", "none are needed")]
    checks = _readers(repository)
    if purpose.backs_up:
        try:
            repository.documents.ensure_writable()
            checks.append(Check.fine("keys", "valid, for backups", about="writer key"))
        except KeyUnavailable as error:
            checks.append(Check.failed("keys", error, "Give it with --writer-key FILE.", about="writer key"))
    if purpose.restores and descriptor.recipient is not None:
        if repository.secret is not None:
            checks.append(Check.fine("keys", "valid, for restores", about="identity"))
        else:
            missing = KeyUnavailable("nothing was given that reads messages", hint=NEEDS_IDENTITY)
            checks.append(Check.failed("keys", missing, NEEDS_IDENTITY, about="identity"))
    return checks or [Check.fine("keys", "none are needed for that")]


def _readers(repository: Repository) -> list[Check]:
    """Check that no key file of a reader is missing or damaged: with a writer key that would not be noticed."""
    fix = "Run 'jsbackup repair --from COPY', or bring it back from where you keep the folder keys/."
    try:
        readers = examine_readers(repository.store, repository.descriptor)
    except StoreError as error:
        return [Check.failed("keys", error, _REACH, about="readers")]
    code = IntegrityError.exit_code
    return [Check.problem("keys", reader.problem, fix, code=code, about="readers") for reader in readers.broken]


def _backups(repository: Repository, purpose: Purpose) -> Check:
    """Check that backups can be listed, and that the newest can be read."""
    try:
        backups = repository.backups()
        if not backups:
            if purpose is Purpose.RESTORE:
                return Check.problem("backups", "there is none", "Make one with 'jsbackup backup'.", code=2)
            return Check.fine("backups", "readable; there is none yet")
        newest = repository.manifest(backups[-1])
    except KeyUnavailable as error:
        if not purpose.restores:
            return Check.not_tried("backups", "no key was given that reads them", error.hint or NEEDS_IDENTITY)
        return Check.failed("backups", error, NEEDS_IDENTITY)
    except IntegrityError as error:
        return Check.failed("backups", error, _READ)
    except JsBackupError as error:
        return Check.failed("backups", error, _REACH)
    count = f"{len(backups)} backup{'' if len(backups) == 1 else 's'}"
    return Check.fine("backups", f"readable; {count}, the newest {newest.id} ({newest.result})")


def _writable(
    repository: Repository, purpose: Purpose, clock: Callable[[], float], random: Callable[[int], bytes]
) -> tuple[list[Check], float | None]:
    """Check that objects can be put, are never replaced, and have our time. Also returns the store's time."""
    store = repository.store
    later = [Check.not_tried(name, "nothing can be put", _AFTER_THAT) for name in ("create-only", "store-clock")]
    try:
        probe = probe_store(store, layout.probe_key(random(8).hex()))
    except UnsupportedError as error:
        broken = Check.failed("create-only", error, "Use another store.")
        return [Check.fine("writable", "objects can be put"), broken, later[1]], None
    except StoreError as error:
        if purpose.backs_up:
            return [Check.failed("writable", error, "Let the user put and delete objects there."), *later], None
        fix = "Let the user put objects there: without a lease nothing keeps a prune from what a restore reads."
        return [Check.warning("writable", error.message, fix), *later], None
    if probe.conditional_writes:
        once = Check.fine("create-only", "the store supports write-once")
    else:
        sentence = "the store replaces objects, so jsbackup looks before it writes"
        once = Check.warning("create-only", sentence, "Use a store that honours If-None-Match if several hosts write.")
    before = clock()
    try:
        now = store_now(store, random)
    except StoreError as error:
        time, seen = Check.failed("store-clock", error, _REACH), None
    else:
        after = clock()
        # S3 reports whole seconds.
        time = check_clock("store-clock", "the store", now - (before + after) / 2, (after - before) / 2 + 1)
        seen = now
    return [Check.fine("writable", "objects can be put, read, listed and removed"), once, time], seen


def _leases(store: Store, now: float) -> Check:
    """Report who is working on the repository, and whether others have to wait for that."""
    try:
        leases = list_leases(store)
    except StoreError as error:
        return Check.failed("leases", error, _REACH)
    live = [seen for seen in leases if seen.is_live(now)]
    shown = "; ".join(_holder(store, seen) for seen in live[:_SHOWN])
    if any(seen.key.exclusive for seen in live):
        fix = "Wait until it is done, or until the lease of a killed one expires, some ten minutes later."
        return Check.warning("leases", f"other commands wait for {shown}", fix)
    expired = len(leases) - len(live)
    if expired:
        more = f"; active: {shown}" if live else ""
        return Check.warning("leases", f"{expired} left behind by commands that were killed{more}", _UNLOCK)
    return Check.fine("leases", f"active locks: {shown}" if live else "no active locks")


def _holder(store: Store, seen: SeenLease) -> str:
    try:
        return str(read_lease(store, seen))
    except JsBackupError:  # removed meanwhile, or damaged
        return f"lease {seen.key.id}"


def _space(store: Store) -> list[Check]:
    """Check how much free space a folder has."""
    fix = "Free some space, forget backups with --prune, or move the repository with 'jsbackup copy'."
    try:
        room = store.room()
    except StoreError as error:
        return [Check.failed("space", error, fix)]
    if room is None:
        return []
    free, total = room
    sentence = f"{free >> 20:,} MiB of {total >> 20:,} MiB are free"
    if free < _LEAST_FREE_BYTES:
        return [Check.problem("space", sentence, fix, code=StoreError.exit_code)]
    if free < total * _FREE_SHARE:
        return [Check.warning("space", sentence, fix)]
    return [Check.fine("space", sentence)]
