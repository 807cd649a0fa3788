"""On a store that lets a put replace an object, two who store the same at the same moment take nothing from each other.

Such a store looks at the key before it puts (`stores/s3.py`), and that is all.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from jsbackup.errors import ObjectExists, ObjectNotFound
from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.new_keys import NewKeys, make_new_keys
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Data, StoreProbe
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, SECOND, store_backup

ME = age.age_identity(bytes(32))


class Replacing(MemoryStore):
    """Whoever puts an object looks first, and then waits a moment for someone else to do the same."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting: threading.Barrier | None = None

    def put(self, key: str, data: Data) -> None:
        with suppress(ObjectNotFound):
            self.head(key)
            raise ObjectExists(key)
        if self.meeting is not None and key.startswith(layout.SEGMENTS):
            with suppress(threading.BrokenBarrierError):
                self.meeting.wait(0.5)
        with suppress(ObjectNotFound):
            self.delete(key)
        super().put(key, data)

    def probe(self, key: str, data: Data) -> StoreProbe:
        return StoreProbe(conditional_writes=False)


def new_keys(kind: str) -> NewKeys | None:
    numbers = iter(range(99))
    readers = [ME.recipient] if kind == "encrypted" and ME.recipient else []
    return (
        None if kind == "plain" else make_new_keys("00ff", readers, None, lambda count: bytes([next(numbers)]) * count)
    )


@pytest.mark.parametrize("kind", ["plain", "encrypted"])
def test_two_backups_at_once_are_both_whole(kind: str) -> None:
    store, keys = Replacing(), new_keys(kind)
    Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=keys)
    given = [GivenKeys(writer=keys.writer_key) if keys else GivenKeys()] * 2
    store.meeting = threading.Barrier(2)

    def back_up(backup: str, given: GivenKeys) -> Manifest:
        return store_backup(Repository.open(store, given), backup)

    with ThreadPoolExecutor(2) as pool:
        manifests = list(pool.map(back_up, [FIRST, SECOND], given))
    store.meeting = None
    reader = Repository.open(store, GivenKeys(identities=(ME,)) if kind == "encrypted" else GivenKeys())
    for manifest in manifests:
        assert list(verify_backup(reader.objects, reader.manifest(manifest.id), Level.DATA)) == []
    named = [{ref.key for stream in one.streams for ref in (*stream.segments, *stream.opaque)} for one in manifests]
    assert (named[0] == named[1]) is (kind == "plain")  # the same bytes are one object
    again = store_backup(Repository.open(store, given[0]), "20261121T014900Z-000009")
    assert list(verify_backup(reader.objects, again, Level.DATA)) == []
