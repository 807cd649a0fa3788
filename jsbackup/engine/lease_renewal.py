"""A lease for as long as a piece of work takes: renewed by a thread beside it, given up when it ends.

A thread serves plain and asynchronous work alike, and goes on while the work waits for a slow store. It does one thing
after the other, so renewals of a store that hangs cannot pile up. A killed process leaves its lease to expire.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jsbackup.errors import RepositoryLocked, StoreError
from jsbackup.repository.leases import Lease, Terms, acquire
from jsbackup.stores.base import Store

__all__ = ["hold_lease"]

_log = logging.getLogger(__name__)

# How long the end of the work waits for the lease to be given up. After an error or Ctrl-C somebody waits too, but a
# lease that is left behind keeps prunes waiting for longer. A second Ctrl-C ends that as well.
_PATIENT_SECONDS = 60.0
_HURRIED_SECONDS = 5.0


@contextmanager
def hold_lease(
    store: Store, terms: Terms, *, wait_seconds: float, waiting: Callable[[RepositoryLocked], None]
) -> Iterator[Lease]:
    """Hold a lease. Arguments and errors as `acquire`; that it was lost meanwhile, `lease.check()` tells."""
    lease = acquire(
        store, terms, wait_seconds=wait_seconds, clock=_clock, sleep=time.sleep, random=os.urandom, waiting=waiting
    )
    keeper = _Keeper(lease)
    keeper.start()
    try:
        yield lease
    except BaseException:
        keeper.stop(_HURRIED_SECONDS)
        raise
    keeper.stop(_PATIENT_SECONDS)


def _clock() -> float:
    """Seconds that rise, also while the machine sleeps, where the system can count those."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class _Keeper(threading.Thread):
    """Renews a lease after each fifth of its time, sooner after a failure; gives it up when it is told to stop."""

    def __init__(self, lease: Lease) -> None:
        # A daemon: the process ends without it where the store does not answer.
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
                _log.warning("the lease could not be renewed, and is tried again: %s", error.message)
                pause = duration / 30
        self._ended.wait()
        try:
            self._lease.release()
        except StoreError as error:
            _log.info("the lease is left to expire: %s", error.message)
