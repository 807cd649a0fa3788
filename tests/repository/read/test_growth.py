"""Growth from backup to backup, from manifests alone."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from jsbackup.repository import layout
from jsbackup.repository.inventory import write_catalog
from jsbackup.repository.manifest import ArchiveFormat, BackupResult, Manifest, Source, StreamBackup
from jsbackup.repository.read.growth import GrowthPoint, growth_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED, make_repository, store_stream
from tests.harness.batches import some_messages


def _commit(repository: Repository, number: int, streams: tuple[StreamBackup, ...], cluster: str = "C1") -> Manifest:
    backup = f"20261121T0145{number:02}Z-{number:06x}"
    manifest = Manifest(backup, CREATED, "tests", Source("2.15.1", cluster), BackupResult.COMPLETE, streams)
    repository.commit(manifest)
    return manifest


@pytest.mark.parametrize("catalog", [False, True])
def test_a_stream_grows_from_backup_to_backup_of_its_origin(catalog: bool, caplog: pytest.LogCaptureFixture) -> None:
    repository = make_repository(MemoryStore())
    sizes = {n: store_stream(repository.objects, "A", some_messages(10 * n, 50)) for n in (1, 2, 3)}
    other = store_stream(repository.objects, "B", some_messages(10, 50))
    config = replace(sizes[1], archive_format=ArchiveFormat.CONFIG, segments=())
    first = _commit(repository, 1, (sizes[1], other))
    _commit(repository, 2, (sizes[3],), cluster="elsewhere")
    _commit(repository, 3, (config,))
    damaged = _commit(repository, 4, (sizes[2],))
    second = _commit(repository, 5, (sizes[2],))
    _commit(repository, 6, (sizes[3],))  # later than the one that is asked about
    key = layout.manifest_key(damaged.id)
    if catalog:  # which tells of a backup that cannot be read as of the others
        write_catalog(repository.documents)
    repository.store.delete(key)
    repository.store.put(key, b"{}")

    with caplog.at_level(logging.WARNING):
        growth = growth_of(repository, second, ["A", "B", "C"])
    assert growth == {
        "A": [
            GrowthPoint(one.id, CREATED, stream.captured.messages, stream.captured.bytes, stored)
            for one, stream, stored in (
                (first, sizes[1], sum(ref.size for ref in sizes[1].segments)),
                (second, sizes[2], sum(ref.size for ref in sizes[2].segments)),
            )
        ],
        "B": [GrowthPoint(first.id, CREATED, 10, growth["B"][0].bytes, growth["A"][0].stored_bytes)],
        "C": [],
    }
    assert damaged.id in caplog.text


def test_only_the_last_backups_count() -> None:
    repository = make_repository(MemoryStore())
    stream = store_stream(repository.objects, "A", some_messages(3, 10))
    manifests = [_commit(repository, number, (stream,)) for number in range(40)]
    (points,) = growth_of(repository, manifests[37], ["A"]).values()
    assert [point.backup for point in points] == [manifest.id for manifest in manifests[8:38]]
