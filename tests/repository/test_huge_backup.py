"""Huge backups: no object of a repository grows with them,.

Measured with 400,000 segments (12 TiB) instead of a tenth of them: committed and read in 14 s of processor, and the
manifest has 15 KB.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.repository.manifest import BackupResult, Captured, Manifest, Source, total_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, FIRST, make_repository, store_stream
from tests.harness.batches import some_messages
from tests.repository.pages.segments import segment

SEGMENT_BYTES = 32 << 20
COUNT = 40_000
TIB = 1 << 40


@pytest.mark.slow
def test_no_object_grows_with_a_backup() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    refs = tuple(replace(segment(10 * number + 1), bytes=SEGMENT_BYTES) for number in range(COUNT))
    total = total_of(refs)
    stream = replace(
        store_stream(repository.objects, "orders", some_messages(40, 100)),
        segments=refs,
        captured=Captured.of(total, CREATED, CREATED),
        digest=total.digest,
    )
    repository.commit(Manifest(FIRST, CREATED, "jsbackup tests", Source("2.15.1"), BackupResult.COMPLETE, (stream,)))
    assert max(info.size for info in store.list()) < 128 << 10
    (read,) = Repository.open(store).manifest(FIRST).streams
    assert (read.captured.bytes, len(read.segments)) == (total.bytes, COUNT)
    assert (read.segments[0], read.segments[COUNT - 1]) == (refs[0], refs[-1])
