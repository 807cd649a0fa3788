"""Hold a lease for the duration of some work: a thread renews it, and releases it at the end.

A thread works for synchronous and asynchronous code, and continues while the work waits for a slow store. It sends one
request at a time, so renewals cannot pile up if the store hangs. The lease of a killed process is removed by the next
command on the same machine that it excludes; elsewhere it expires.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from jsbackup.errors import KeyUnavailable, RepositoryLocked, StoreError
from jsbackup.repository.keep.leases import Lease, Mode, Terms, acquire, is_gone, this_process
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["hold_lease", "hold_to_read", "lease_terms", "record_damage"]

_log = logging.getLogger(__name__)

# How long the end of the work waits for the release. After an error or Ctrl-C the user waits too, but a lease that is
# left behind delays prunes for longer. A second Ctrl-C ends the wait.
_PATIENT_SECONDS = 60.0
_HURRIED_SECONDS = 5.0


def lease_terms(purpose: str, mode: Mode = Mode.SHARED) -> Terms:
    """Return the terms of a lease of this program for `purpose`, such as `backup`."""
    host = socket.gethostname().encode("ascii", "backslashreplace").decode()[:100]
    return Terms(mode, purpose, TOOL, host, format_time(time.time_ns()), process=this_process())


@contextmanager
def hold_lease(
    store: Store,
    terms: Terms,
    *,
    wait_seconds: float,
    waiting: Callable[[RepositoryLocked], None],
    sleep: Callable[[float], None] | None = None,
) -> Iterator[Lease]:
    """Hold a lease. Arguments and errors as `acquire`; `lease.check()` raises if it was lost meanwhile.

    `sleep` is called while it waits for another command (default: `time.sleep`).
    """
    lease = acquire(
        store,
        terms,
        wait_seconds=wait_seconds,
        clock=_clock,
        sleep=sleep or time.sleep,
        random=os.urandom,
        waiting=waiting,
        is_gone=is_gone,
        removed=_log.warning,
    )
    keeper = _Keeper(lease)
    keeper.start()
    try:
        yield lease
    except BaseException:
        keeper.stop(_HURRIED_SECONDS)
        raise
    keeper.stop(_PATIENT_SECONDS)


@contextmanager
def hold_to_read(
    repository: Repository,
    purpose: str,
    *,
    wait_seconds: float,
    waiting: Callable[[RepositoryLocked], None],
    note: Callable[[str], None],
    sleep: Callable[[float], None] | None = None,
) -> Iterator[None]:
    """Hold a shared lease for a command that only reads; if none can be put, call `note`. Otherwise as `hold_lease`.

    At the end the objects found damaged are recorded, so that the next backup does not build on them.
    """
    terms = lease_terms(purpose)
    with ExitStack() as stack:
        try:
            stack.enter_context(
                hold_lease(repository.store, terms, wait_seconds=wait_seconds, waiting=waiting, sleep=sleep)
            )
        except StoreError as error:
            note(f"no lease can be stored, so a prune may delete what is read here: {error.message}")
        try:
            yield
        finally:
            record_damage(repository, note)


def record_damage(repository: Repository, note: Callable[[str], None]) -> None:
    """Record the objects that were found damaged, unless they are recorded; if that is not possible, call `note`."""
    if not repository.objects.found_damaged:
        return
    from jsbackup.repository.checks.ledger import (
        read_damaged,  # rarely needed
        remember_damaged,
    )

    known = read_damaged(repository.documents)
    new = {name: folder for name, folder in repository.objects.found_damaged.items() if name not in known}
    if not new:
        return
    try:
        remember_damaged(repository.documents, new, now_seconds=int(time.time()), tool=TOOL, random=os.urandom)
    except (KeyUnavailable, StoreError) as error:
        again = "'jsbackup verify --writer-key FILE'" if isinstance(error, KeyUnavailable) else "'jsbackup verify'"
        note(
            "what is damaged is not recorded, so a backup may build on it, and 'jsbackup repair' needs --check to find "
            f"it; run {again}: {error.message}"
        )


def _clock() -> float:
    """Return monotonic seconds, including the time that the machine sleeps, if the system counts it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _Keeper(threading.Thread):
    """Renews a lease after each fifth of its time, sooner after a failure; releases it in the end."""

    def __init__(self, lease: Lease) -> None:
        # A daemon: the process can end if the store does not answer.
        super().__init__(name=f"lease {lease.id}", daemon=True)
        self._lease = lease
        self._ended = threading.Event()

    def stop(self, wait_seconds: float) -> None:
        self._ended.set()
        self.join(wait_seconds)

    def run(self) -> None:
        duration = self._lease.terms.duration_seconds
        pause = duration / 5
        while not self._ended.wait(pause):
            try:
                self._lease.renew()
                pause = duration / 5
            except RepositoryLocked as lost:
                _log.warning("%s", lost.message)
                break
            except StoreError as error:
                _log.warning("the lease could not be renewed, trying again: %s", error.message)
                pause = duration / 30
        self._ended.wait()
        try:
            self._lease.release()
        except StoreError as error:
            _log.info("the lease was not removed and will expire: %s", error.message)
