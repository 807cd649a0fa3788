"""Objects are damaged in a repository on disk: what commands say of it, and what still comes back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.crypto.signing import encode_writer_key
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import CLOSED
from tests.harness.api import connected
from tests.harness.backups import CREATED, FIRST, make_repository
from tests.harness.batches import messages_of
from tests.harness.commands import jsbackup
from tests.harness.damage import FLOOR, MESSAGES, flip, put_instead, store_restorable
from tests.harness.oracle import ObservedStream, observe
from tests.harness.servers import ENDS, NEWEST, NatsServer


def _observe(server: NatsServer) -> dict[str, ObservedStream]:
    async def look() -> dict[str, ObservedStream]:
        async with connected(server.url) as nc:
            return await observe(nc)

    return asyncio.run(look())


def _lost(manifest: Manifest, stream: str, *numbers: int) -> list[tuple[str, int, int, int]]:
    refs = next(one for one in manifest.streams if one.name == stream).segments
    return [(refs[n].key, refs[n].first_seq, refs[n].last_seq, refs[n].messages) for n in numbers]


@pytest.mark.nats
@pytest.mark.parametrize("version", ENDS)
def test_what_is_left_is_restored_and_what_is_lost_is_named(
    version: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    store = LocalStore(repo)
    repository = make_repository(store)
    manifest = store_restorable(repository, FIRST)
    _, orders, other, queue, verbatim = manifest.streams
    last = len(orders.segments) - 1
    assert last > 3
    put_instead(store, orders.segments[0].key, None)
    put_instead(store, orders.segments[2].key, flip(store.get(orders.segments[2].key)))
    put_instead(store, orders.segments[last].key, store.get(orders.segments[last].key)[:-1])
    busy = next(one for one in orders.consumers if one.pending is not None)
    assert busy.pending is not None
    put_instead(store, busy.pending.key, b"")
    put_instead(store, verbatim.opaque[1].key, None)
    for number in (0, 1):
        put_instead(store, queue.segments[number].key, None)

    server = nats_server(version)
    line: list[str | Path] = ["restore", FIRST, "-r", repo, "-s", server.url]
    refused = jsbackup(*line)
    assert refused.code == 14 and "--partial" in refused.document["error"]["hint"]
    assert _observe(server) == {}

    done = jsbackup(*line, "--partial")
    assert done.code == 3, done
    jsonschema.Draft202012Validator({**CLOSED, "$ref": "#/$defs/restore"}).validate(done.document)
    streams = {one["name"]: one for one in done.document["streams"]}
    assert list(streams) == ["KEPT", "ORDERS", "OTHER", "QUEUE"]
    assert [(one["name"], one["code"]) for one in done.document["failed"]] == [("VERBATIM", 14)]
    assert verbatim.opaque[1].key in done.document["failed"][0]["reason"]
    assert streams["OTHER"]["lost"] == streams["KEPT"]["lost"] == []
    found = [(p["key"], p["first_seq"], p["last_seq"], p["messages"]) for p in streams["ORDERS"]["lost"]]
    assert found == [*_lost(manifest, "ORDERS", 0, 2, last), (busy.pending.key, 0, 0, 0)]
    assert all(p["key"] in p["problem"] for p in streams["ORDERS"]["lost"])
    assert streams["ORDERS"]["verified"] and streams["OTHER"]["verified"]
    fidelity = {c["name"]: (c["fidelity"], c["note"]) for c in streams["ORDERS"]["consumers"]}
    assert fidelity["idle"][0] == "exact" and fidelity["busy"][0] == "floor" and "lost" in fidelity["busy"][1]

    seen = _observe(server)
    left = [ref for number, ref in enumerate(orders.segments) if number not in (0, 2, last)]
    reader = SegmentReader(repository.objects)
    expected = [message for ref in left for message in messages_of(reader.read(ref))]
    assert [(m.sequence, m.data) for m in seen["ORDERS"].messages] == [(m.sequence, m.data) for m in expected]
    assert streams["ORDERS"]["messages"] == len(expected)
    state = seen["ORDERS"].state
    assert (state["first_seq"], state["last_seq"]) == (left[0].first_seq, orders.state.last_seq)
    assert seen["ORDERS"].consumers["busy"]["num_ack_pending"] == 0
    assert seen["ORDERS"].consumers["busy"]["delivered"]["stream_seq"] < left[0].first_seq
    assert len(seen["OTHER"].messages) == other.captured.messages and len(seen["KEPT"].messages) == 300
    assert FLOOR.stream < left[0].first_seq
    # A queue whose consumer had lost messages pending: it waits for the others.
    assert streams["QUEUE"]["verified"] and len(streams["QUEUE"]["lost"]) == 2
    remaining = sum(ref.messages for ref in queue.segments[2:])
    assert len(seen["QUEUE"].messages) == remaining
    waiting = seen["QUEUE"].consumers["busy"]
    assert (waiting["num_ack_pending"], waiting["num_pending"]) == (remaining, 0)


@pytest.mark.nats
def test_an_encrypted_backup_is_restored_in_part_by_who_can_read_it(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    me, repo = age.age_identity(bytes(range(32))), tmp_path / "repo"
    assert me.recipient is not None
    new_keys = make_new_keys("00ff", [me.recipient], None, os.urandom)
    store = LocalStore(repo)
    repository = Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    manifest = store_restorable(repository, FIRST)
    lost = manifest.streams[1].segments[1]
    put_instead(store, lost.key, flip(store.get(lost.key)))
    (writer := tmp_path / "writer.key").write_text(encode_writer_key(new_keys.writer_key))
    writer.chmod(0o600)
    (identity := tmp_path / "my.key").write_text(f"{me.text}\n")

    server = nats_server(NEWEST)
    line: list[str | Path] = ["restore", FIRST, "ORDERS", "OTHER", "-r", repo, "-s", server.url, "--partial"]
    assert jsbackup(*line, "--writer-key", writer).code == 12  # what cannot be read is not lost
    assert _observe(server) == {}
    done = jsbackup(*line, "--identity", identity)
    assert done.code == 3, done
    (orders, other) = done.document["streams"]
    assert [one["key"] for one in orders["lost"]] == [lost.key] and other["lost"] == []
    assert orders["verified"] and orders["messages"] == len(MESSAGES) - lost.messages
    whole = jsbackup(*line[:2], "OTHER", *line[4:-1], "--identity", identity, "--if-exists", "replace").ok()
    assert whole.document["streams"][0]["lost"] == []
    assert sorted(_observe(server)) == ["ORDERS", "OTHER"]
