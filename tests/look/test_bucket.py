"""Keys of buckets at random moments, as backups tell them, compared with what was written to a real server."""

from __future__ import annotations

import asyncio
import json
import random
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nats.aio.client import Client

from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.look.bucket import KeyOperation, KeyValueBucket, find_bucket, operation_of
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence, AtTime, Edge
from tests.harness.api import JSON, call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer

SUBJECT = "$KV.b."
KEYS = ("a", "b.c", "d", "never")


@dataclass
class Recording:
    """What was written to a bucket: for each key the (sequence, time, value), None for a delete or purge."""

    revisions: dict[str, list[tuple[int, int, bytes | None]]] = field(default_factory=dict)
    last: tuple[int, int] = (0, 0)

    def add(self, key: str, sequence: int, time_ns: int, value: bytes | None) -> None:
        self.revisions.setdefault(key, []).append((sequence, time_ns, value))
        self.last = (sequence, time_ns)

    def value(self, key: str, at: Edge) -> bytes | None:
        known = self.revisions.get(key, [])
        if isinstance(at, AtSequence):
            row = bisect_right([one[0] for one in known], at.sequence)
        else:
            row = bisect_right([one[1] for one in known], at.time_ns)
        return known[row - 1][2] if row else None


async def _stored(nc: Client, stream: str, sequence: int) -> JSON:
    found: JSON = (await call(nc, f"STREAM.MSG.GET.{stream}", {"seq": sequence}))["message"]
    return found


async def _write(nc: Client, recording: Recording, chance: random.Random, count: int) -> None:
    js = nc.jetstream()
    for number in range(count):
        key = chance.choice(KEYS[:3])
        what = chance.choice(["put"] * 15 + ["delete"] * 4 + ["purge"])
        headers = {"put": None, "delete": {"KV-Operation": "DEL"}}.get(
            what, {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}
        )
        value = chance.randbytes(chance.choice([0, 3, 40])) + b"%d" % number if what == "put" else b""
        ack = await js.publish(SUBJECT + key, value, headers=headers)
        stored = await _stored(nc, "KV_b", ack.seq)
        recording.add(key, ack.seq, parse_time(stored["time"]), value if what == "put" else None)


def _bucket(repo: Path, backup: str, name: str = "b") -> KeyValueBucket:
    repository = Repository.open(LocalStore(repo))
    return find_bucket(repository.objects, repository.manifest(backup), name)


def _back_up(server: NatsServer, repo: Path) -> str:
    backup: str = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
    return backup


@pytest.mark.nats
@pytest.mark.parametrize("history", [1, 3, 64])
def test_values_at_random_moments_are_those_that_were_written(
    nats_server: Callable[..., NatsServer], tmp_path: Path, history: int
) -> None:
    chance = random.Random(history)
    server, recording, repo = nats_server(NEWEST), Recording(), tmp_path / "repo"
    known: list[tuple[str, int]] = []

    async def fill() -> None:
        async with connected(server.url) as nc:
            if not recording.revisions:
                config = {"name": "KV_b", "subjects": [f"{SUBJECT}>"], "max_msgs_per_subject": history}
                more = {"discard": "new", "allow_rollup_hdrs": True, "allow_direct": True}
                await call(nc, "STREAM.CREATE.KV_b", {**config, **more})
            await _write(nc, recording, chance, 40)

    for _ in range(3):
        asyncio.run(fill())
        known.append((_back_up(server, repo), recording.last[0]))
    told = unknown = 0
    for backup, last_seq in known:
        bucket = _bucket(repo, backup)
        times = [time_ns for found in recording.revisions.values() for seq, time_ns, _ in found if seq <= last_seq]
        moments: list[Edge | None] = [None, *(AtSequence(chance.randint(1, last_seq)) for _ in range(25))]
        moments += [AtTime(chance.choice(times) + chance.choice([-1, 0, 1])) for _ in range(25)]
        for at in moments:
            listed = {state.key: state.revision for state in bucket.keys(at)}
            for key in KEYS:
                truth = recording.value(key, at or AtSequence(last_seq))
                try:
                    found = bucket.value(key, at)
                except IncompleteError:
                    assert at is not None and recording.revisions[key]
                    unknown += 1
                except JsBackupError as error:
                    assert (truth, error.exit_code, key in listed) == (None, 1, False), (backup, key, at)
                    told += 1
                else:
                    assert (found.value, found.revision) == (truth, listed[key]), (backup, key, at)
                    told += 1
    assert told > 0 and unknown > 0
    assert told > unknown or history < 64
    assert [one.revision for one in _bucket(repo, known[-1][0]).revisions("a")][-1] == recording.revisions["a"][-1][0]


@pytest.mark.nats
@pytest.mark.parametrize("version", ["2.12.8", NEWEST])
def test_a_value_that_expired_is_there_before_and_gone_after(
    nats_server: Callable[..., NatsServer], tmp_path: Path, version: str
) -> None:
    server, repo = nats_server(version), tmp_path / "repo"

    async def fill() -> int:
        async with connected(server.url) as nc:
            config = {"name": "KV_b", "subjects": [f"{SUBJECT}>"], "max_msgs_per_subject": 5, "discard": "new"}
            more = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 12 * 10**9, "allow_rollup_hdrs": True}
            await call(nc, "STREAM.CREATE.KV_b", {**config, **more})
            ack = await nc.jetstream().publish(f"{SUBJECT}short", b"once", headers={"Nats-TTL": "12s"})
            return parse_time((await _stored(nc, "KV_b", ack.seq))["time"])

    async def wait() -> int:
        async with connected(server.url) as nc:
            for _ in range(600):
                last = await call(nc, "STREAM.MSG.GET.KV_b", {"last_by_subj": f"{SUBJECT}short"})
                if "Nats-Marker-Reason" in b64decode(last["message"].get("hdrs", "")).decode():
                    return parse_time(last["message"]["time"])
                await asyncio.sleep(0.05)
            raise AssertionError("the value does not expire")

    put_ns = asyncio.run(fill())
    alive = _bucket(repo, _back_up(server, repo))
    gone_ns = asyncio.run(wait())
    gone = _bucket(repo, _back_up(server, repo))
    assert alive.value("short").value == b"once" == alive.value("short", AtTime(put_ns)).value
    # The marker expires too; on a slow machine before the backup is made.
    with pytest.raises(JsBackupError, match=r"is a purge|may have expired"):
        gone.value("short", AtTime(gone_ns))
    assert gone.keys() == []
    for moment_ns in (put_ns, put_ns - 1):
        with pytest.raises(IncompleteError, match=r"cannot say|may have expired"):
            gone.value("short", AtTime(moment_ns))


@pytest.mark.nats
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
            for _ in range(100):
                info = await call(nc, "STREAM.INFO.KV_m")
                if info["state"]["messages"] == 3:
                    return
                await asyncio.sleep(0.1)
            raise AssertionError(json.dumps(info))

    asyncio.run(fill())
    backup = _back_up(server, repo)
    for name in ("b", "KV_b", "m"):
        bucket = _bucket(repo, backup, name)
        assert bucket.value("x.z").value == b"2"
        assert [one.key for one in bucket.keys(pattern="x.*")] == ["x.y", "x.z"]
    with pytest.raises(UsageError, match="knows stream KV_b up to sequence 3"):
        _bucket(repo, backup).value("x.y", AtSequence(4))
    with pytest.raises(UsageError, match="knows stream KV_b up to 2"):
        _bucket(repo, backup).keys(AtTime(2**62))
    with pytest.raises(UsageError, match="not a key"):
        _bucket(repo, backup).value("x.*")


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ("", KeyOperation.PUT),
        ("KV-Operation: DEL", KeyOperation.DELETE),
        ("KV-Operation: PURGE", KeyOperation.PURGE),
        ("Nats-Marker-Reason: MaxAge", KeyOperation.PURGE),
        ("Nats-Marker-Reason: Purge", KeyOperation.PURGE),
        ("Nats-Marker-Reason: Remove", KeyOperation.DELETE),
        ("KV-Operation: other", KeyOperation.PUT),
        ("no colon\r\n: no name", KeyOperation.PUT),
    ],
)
def test_markers_of_clients_and_servers(headers: str, operation: KeyOperation) -> None:
    assert operation_of(f"NATS/1.0\r\n{headers}\r\n\r\n".encode()) is operation
    assert operation_of(None) is operation_of(b"garbage\xff") is KeyOperation.PUT
