"""A lease for tests of what works under one; it holds until the test is over."""

from __future__ import annotations

import os

from jsbackup.repository.keep.leases import Lease, Mode, Terms, acquire
from jsbackup.stores.base import Store


def held(store: Store) -> Lease:
    terms = Terms(Mode.SHARED, "test", "jsbackup tests", "tests", "2026-11-21T01:45:00Z", 9999)
    return acquire(store, terms, wait_seconds=0, clock=lambda: 0.0, sleep=lambda seconds: None, random=os.urandom)
