"""A bucket whose keys are overwritten during a backup: what is complete holds a state that the bucket really had."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jsbackup.engine.read import whole_stream
from jsbackup.engine.read.increment import Incremental
from tests.harness.api import call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.overwrites import Overwrites
from tests.harness.servers import NEWEST, NatsServer
from tests.harness.stored_files import segment_files
from tests.integration.test_increment import Bench

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

KEYS = 3000

# How the server is read: by a snapshot v2, message by message, and by a snapshot v1.
READ = [(NEWEST, "file"), (NEWEST, "memory"), ("2.12.8", "memory"), ("2.10.26", "memory"), ("2.12.8", "file")]


def stored_streams(repo: Path) -> list[tuple[dict[str, Any], set[int]]]:
    """What each backup has of its one stream: its entry in the manifest, and the sequences of its segments."""
    found = []
    for path in sorted(repo.glob("backups/*.json")):
        manifest = json.loads(path.read_text())
        assert manifest["result"] == "complete", manifest
        (entry,) = manifest["streams"]
        sequences = [s for file in segment_files(repo, entry) for s in pq.read_table(file)["sequence"].to_pylist()]
        assert len(sequences) == len(set(sequences))
        found.append((entry, set(sequences)))
    return found


def check(bucket: Overwrites, repo: Path, *, late: bool = False) -> None:
    """Every backup holds exactly what the bucket held at its last sequence; if `late`, messages that snapshots v1
    were in doubt about may have stayed."""
    for entry, sequences in stored_streams(repo):
        last = entry["state"]["last_seq"]
        held = bucket.held(last)
        missing, added = held - sequences, sequences - held
        # A key is rolled up just after the message that does it was stored.
        unrolled = added <= bucket.held(last - 1) and len(added) < bucket.history
        assert not missing, f"{len(missing)} of {len(held)} messages are missing: {sorted(missing)[:5]}"
        assert not added or unrolled or late, f"{len(added)} were gone by then: {sorted(added)[:5]}"


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "storage"), READ)
def test_a_backup_misses_no_key_that_is_overwritten_meanwhile(version: str, storage: str, tmp_path: Path) -> None:
    with NatsServer(version) as server:
        with Overwrites(server.url, keys=KEYS, storage=storage, pause_seconds=0.002) as bucket:
            for mode in ("never", "never", "auto"):
                jsbackup("backup", "-s", server.url, "-r", tmp_path, "--incremental", mode, *PATIENT).ok()
        check(bucket, tmp_path, late=version == "2.12.8" and storage == "file")


@pytest.mark.by_turns
@pytest.mark.parametrize(
    "kind",
    [
        {"history": 3},
        {"roll_ups": 0.3, "history": 3},
        {"hot": 1, "pause_seconds": 0.002},
        {"keys": 1, "pause_seconds": 0.001},
    ],
    ids=["history", "roll-ups", "a hot key", "one key"],
)
def test_history_roll_ups_and_hot_keys_are_as_they_were(kind: dict[str, Any], tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        with Overwrites(server.url, **{"keys": KEYS, **kind}) as bucket:
            for mode in ("never", "auto", "always"):
                jsbackup("backup", "-s", server.url, "-r", tmp_path, "--incremental", mode, *PATIENT).ok()
        check(bucket, tmp_path)


@pytest.mark.by_turns
@pytest.mark.parametrize("version", [NEWEST, "2.12.8"])
def test_follow_has_a_state_that_was(version: str, tmp_path: Path) -> None:
    with NatsServer(version) as server:
        with Overwrites(server.url, keys=KEYS, storage="memory", hot=2) as bucket:
            jsbackup("follow", "--for", "3s", "--every", "1s", "-s", server.url, "-r", tmp_path, *PATIENT).ok()
        check(bucket, tmp_path)


@pytest.mark.parametrize(("version", "storage"), [(NEWEST, "file"), (NEWEST, "memory"), ("2.12.8", "memory")])
def test_a_clone_misses_no_key_that_is_overwritten_meanwhile(version: str, storage: str) -> None:
    with NatsServer(version) as server, NatsServer(NEWEST) as target:
        with Overwrites(server.url, keys=KEYS, storage=storage) as bucket:
            jsbackup("clone", "KV_*", "-s", server.url, "--to-server", target.url, *PATIENT).ok()
        assert asyncio.run(_held_at(target.url, bucket.stream)) == bucket.held(_last(target.url, bucket.stream))


def _last(url: str, stream: str) -> int:
    async def ask() -> int:
        async with connected(url) as nc:
            state = (await call(nc, f"STREAM.INFO.{stream}"))["state"]
            return int(state["last_seq"])

    return asyncio.run(ask())


async def _held_at(url: str, stream: str) -> set[int]:
    """The sequences of a small stream."""
    async with connected(url) as nc:
        state = (await call(nc, f"STREAM.INFO.{stream}", {"deleted_details": True}))["state"]
    gone = state.get("deleted") or ()
    return set(range(state["first_seq"], state["last_seq"] + 1)) - set(gone)


# --- the same, where the server does not list what is deleted ---


@pytest.mark.parametrize("kind", [{}, {"history": 3, "roll_ups": 0.3}, {"hot": 1}], ids=["keys", "roll-ups", "hot"])
def test_more_deleted_sequences_than_can_be_asked_for(
    kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_stream, "MAX_DELETED", 0)
    with NatsServer(NEWEST) as server:
        with Overwrites(server.url, keys=KEYS, storage="memory", **kind) as bucket:
            bench = Bench.make(server.url, tmp_path)
            for _ in range(2):
                bench.back_up(Incremental.NEVER)
        check(bucket, bench.folder)


@pytest.mark.by_turns
def test_a_user_who_may_not_read_on_is_told_what_is_missing(tmp_path: Path) -> None:
    allowed = ["$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.LIST.*"]
    allowed += ["$JS.API.STREAM.SNAPSHOT.*", "$JS.SNAPSHOT.ACK.>"]
    user = f'{{user: backup, password: backup, permissions: {{publish: {json.dumps(allowed)}, subscribe: "_INBOX.>"}}}}'
    users = f"accounts {{ A {{ jetstream: enabled, users: [ {{user: all, password: all}}, {user} ] }} }}"
    with NatsServer(NEWEST, config=users) as server:
        everybody, backup = (server.url.replace("://", f"://{name}:{name}@") for name in ("all", "backup"))
        with Overwrites(everybody, keys=KEYS, storage="memory", pause_seconds=0, size=4000) as bucket:
            ran = jsbackup("backup", "-s", backup, "-r", tmp_path, *PATIENT)
        assert ran.code == 3, ran.out
        assert ran.document["result"] == "partial"
        (warning,) = ran.document["streams"][0]["warnings"]
        assert "overwritten" in warning and "$JS.API." in warning
        # At rest nothing is missing, and nothing more is needed.
        jsbackup("backup", "-s", backup, "-r", tmp_path, *PATIENT).ok()
        assert bucket.stream == ran.document["streams"][0]["name"]
