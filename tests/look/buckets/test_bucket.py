"""Buckets by their names, values that expire, markers, and what errors say. Random moments: `test_bucket_truth.py`."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.look.buckets.bucket import KeyValueBucket
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence, AtTime
from tests.harness.api import JSON, call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

SUBJECT = "$KV.b."


def _bucket(repo: Path, backup: str, name: str = "b") -> KeyValueBucket:
    repository = Repository.open(LocalStore(repo))
    return KeyValueBucket.find(repository.objects, repository.manifest(backup), name)


def _back_up(server: NatsServer, repo: Path) -> str:
    backup: str = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    return backup


def test_a_value_that_expired_is_there_before_and_gone_after(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"

    async def fill() -> int:
        async with connected(server.url) as nc:
            config = {"name": "KV_b", "subjects": [f"{SUBJECT}>"], "max_msgs_per_subject": 5, "discard": "new"}
            more = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 6 * 10**9, "allow_rollup_hdrs": True}
            await call(nc, "STREAM.CREATE.KV_b", {**config, **more})
            ack = await nc.jetstream().publish(
                f"{SUBJECT}short", b"once", headers={"Nats-TTL": "6s"}
            )  # no less than of markers
            stored: JSON = (await call(nc, "STREAM.MSG.GET.KV_b", {"seq": ack.seq}))["message"]
            return parse_time(stored["time"])

    async def until_marked() -> int:
        async with connected(server.url) as nc:
            while True:
                last = (await call(nc, "STREAM.MSG.GET.KV_b", {"last_by_subj": f"{SUBJECT}short"}))["message"]
                if "Nats-Marker-Reason" in b64decode(last.get("hdrs", "")).decode():
                    return parse_time(last["time"])
                await asyncio.sleep(0.05)

    put_ns = asyncio.run(fill())
    alive = _bucket(repo, _back_up(server, repo))
    gone_ns = asyncio.run(until_marked())
    gone = _bucket(repo, _back_up(server, repo))
    assert alive.value("short", AtTime(put_ns)).value == b"once"
    # The marker expires too; on a slow machine before the backup is made.
    with pytest.raises(JsBackupError, match=r"expired|cannot say"):
        gone.value("short", AtTime(gone_ns))
    assert gone.keys().keys == ()
    for moment_ns in (put_ns, put_ns - 1):
        with pytest.raises(IncompleteError, match=r"expired|cannot say"):
            gone.value("short", AtTime(moment_ns))


def test_buckets_are_found_by_name_and_moments_after_the_backup_are_refused(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"

    async def fill() -> None:
        async with connected(server.url) as nc:
            bucket = await nc.jetstream().create_key_value(bucket="b", history=2)
            await nc.jetstream().publish(f"{SUBJECT}evil\x1b[31m", b"v")
            await bucket.put("x.y", b"1")
            await bucket.put("x.z", b"2")
            await call(nc, "STREAM.CREATE.KV_m", {"name": "KV_m", "mirror": {"name": "KV_b"}})
            while (await call(nc, "STREAM.INFO.KV_m"))["state"]["messages"] < 3:
                await asyncio.sleep(0.05)

    asyncio.run(fill())
    backup = _back_up(server, repo)
    for name in ("b", "KV_b", "m"):
        bucket = _bucket(repo, backup, name)
        assert bucket.value("x.z").value == b"2"
        assert [one.key for one in bucket.keys(pattern="x.*").keys] == ["x.y", "x.z"]
    with pytest.raises(UsageError, match="has stream KV_b only up to sequence 3"):
        _bucket(repo, backup).value("x.y", AtSequence(4))
    with pytest.raises(UsageError, match="has stream KV_b only up to 2"):
        _bucket(repo, backup).keys(AtTime(2**62))
    with pytest.raises(UsageError, match="not a key"):
        _bucket(repo, backup).value("x.*")
