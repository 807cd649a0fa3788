"""One message, one value, one file, from Python."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import jsbackup
from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError, UsageError
from tests.api.shop import Shop
from tests.harness.api import connected
from tests.harness.servers import NatsServer

pytestmark = pytest.mark.nats

LARGE = bytes(range(256)) * 1000


def test_one_message_and_one_value_of_a_backup(shop: Shop) -> None:
    backup = jsbackup.open(shop.folder)[shop.backup]
    sequence, _, subject, headers, data = shop.published[-1]
    found = backup["ORDERS"].message(sequence)
    assert (found.sequence, found.subject, found.headers, found.data) == (sequence, subject, headers, data)
    with pytest.raises(JsBackupError, match="no message 10 in backup"):
        backup["ORDERS"].message(10)
    assert backup["KV_settings"].value("theme") == b"dark" == backup["KV_settings"].value("theme", 1)
    assert backup["KV_settings"].keys() == {"theme": 1}
    for wrong in (lambda: backup["ORDERS"].value("theme"), lambda: backup["ORDERS"].objects()):
        with pytest.raises(UsageError, match="stream ORDERS is not a"):
            wrong()
    with pytest.raises(UsageError, match="has stream KV_settings only up to"):
        backup["KV_settings"].value("theme", datetime(2100, 1, 1, tzinfo=UTC))


def test_values_at_moments_and_files(target: NatsServer, tmp_path: Path) -> None:
    async def fill() -> None:
        async with connected(target.url) as nc:
            js = nc.jetstream()
            bucket = await js.create_key_value(bucket="b", history=3)
            for value in (b"one", b"two"):
                await bucket.put("k", value)
            await bucket.delete("k")
            for value in (b"1", b"2", b"3", b"4"):
                await bucket.put("full", value)
            store = await js.create_object_store("files")
            await store.put("large", LARGE)

    asyncio.run(fill())
    repository = jsbackup.open(tmp_path / "repo", create=True)
    backup = jsbackup.backup(target.url, repository)
    bucket = backup["KV_b"]
    rows = bucket.revisions("k")
    assert [(one.revision, one.operation, one.value) for one in rows] == [
        (1, "put", b"one"),
        (2, "put", b"two"),
        (3, "delete", b""),
    ]
    assert bucket.value("k", 2) == b"two"
    assert bucket.keys(at=2) == {"k": 2} and bucket.keys("full") == {"full": 7}
    with pytest.raises(JsBackupError, match="is a delete"):
        bucket.value("k")
    with pytest.raises(IncompleteError, match="cannot say"):
        bucket.value("full", 4)
    with pytest.raises(
        IncompleteError, match="cannot say of bucket b at sequence 4 what these keys were: full"
    ) as known:
        bucket.keys(at=4)
    assert known.value.result == {}
    files = backup["OBJ_files"]
    assert [(one.name, one.size, one.link) for one in files.objects()] == [("large", len(LARGE), None)]
    assert b"".join(files.read_object("large")) == LARGE
    for segment in (tmp_path / "repo").glob("segments/*/*.parquet"):
        segment.unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        b"".join(files.read_object("large"))
