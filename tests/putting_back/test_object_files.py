"""Files of object stores on real servers, read back by a client."""

from __future__ import annotations

import json
import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.js.api import ObjectMeta
from nats.js.errors import NotFoundError

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.errors import IntegrityError
from jsbackup.protocol.info import StoredMessage
from jsbackup.putting_back.model import PutBackOptions, PutBackReport, PutBackRun
from jsbackup.putting_back.plan import make_plan
from jsbackup.putting_back.run import write_object
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import back_up, held, in_client, last_sequence, purge, put_back, run

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]
BIG = random.Random(17).randbytes(700_000)  # six chunks
NAME = "2026/quarter three.pdf"


async def _store(nc: Client) -> None:
    store = await nc.jetstream().create_object_store("reports")
    await store.put(NAME, BIG, meta=ObjectMeta(name=NAME, description="for the board", headers={"K": "v"}))
    await store.put("empty", b"")
    await store.put("small", b"hello")


def _read(url: str, name: str) -> tuple[bytes, Any] | None:
    async def read(nc: Client) -> tuple[bytes, Any] | None:
        store = await nc.jetstream().object_store("reports")
        try:
            found = await store.get(name)  # compares the digest
        except NotFoundError:
            return None
        return found.data or b"", found.info

    result: tuple[bytes, Any] | None = run(in_client(url, read))
    return result


def _chunks(url: str) -> dict[str, int]:
    async def count(nc: Client) -> dict[str, int]:
        found = await call(nc, "STREAM.INFO.OBJ_reports", {"subjects_filter": "$O.reports.C.>"})
        counts: dict[str, int] = found["state"].get("subjects") or {}
        return counts

    result: dict[str, int] = run(in_client(url, count))
    return result


def _lost(url: str, repo: Path, *names: str) -> None:
    """Back a store up, and delete these files of it."""

    async def remove(nc: Client) -> None:
        store = await nc.jetstream().object_store("reports")
        for name in names:
            await store.delete(name)

    run(in_client(url, _store))
    back_up(url, repo)
    run(in_client(url, remove))


def test_a_deleted_file_comes_back_whole(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    _lost(server.url, repo, NAME, "empty")
    assert _read(server.url, NAME) is None
    before = run(last_sequence(server.url, "OBJ_reports"))
    dry = put_back(server.url, repo, "latest", "reports", "--object", NAME, "--dry-run").ok()
    assert dry.document["write"] == 1 and run(last_sequence(server.url, "OBJ_reports")) == before
    for name, data in ((NAME, BIG), ("empty", b""), ("small", b"hello")):
        made = put_back(server.url, repo, "latest", "reports", "--object", name).ok()
        assert made.document["written"] == (name != "small")
        read = _read(server.url, name)
        assert read is not None and (read[0], read[1].digest) == (data, _digest(data))
    found = _read(server.url, NAME)
    assert found is not None and (found[1].description, found[1].headers) == ("for the board", {"K": "v"})
    before = run(last_sequence(server.url, "OBJ_reports"))
    assert put_back(server.url, repo, "latest", "OBJ_reports", "--object", NAME).ok().document["there"] == 1
    assert run(last_sequence(server.url, "OBJ_reports")) == before
    assert put_back(server.url, repo, "latest", "reports", "--object", "no such").code == 1


def test_a_newer_file_stays_unless_told_and_its_chunks_go_then(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    _lost(server.url, repo)

    async def overwrite(nc: Client) -> None:
        await (await nc.jetstream().object_store("reports")).put(NAME, b"newer" * 50_000)

    run(in_client(server.url, overwrite))
    refused = put_back(server.url, repo, "latest", "reports", "--object", NAME)
    assert refused.code == 16 and "newer" in refused.document["error"]["message"]
    read = _read(server.url, NAME)
    assert read is not None and read[0] == b"newer" * 50_000
    put_back(server.url, repo, "latest", "reports", "--object", NAME, "--overwrite").ok()
    read = _read(server.url, NAME)
    assert read is not None and read[0] == BIG
    assert sorted(_chunks(server.url).values()) == [1, 6]


def test_a_file_that_lost_chunks_is_written_again(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    _lost(server.url, repo)
    run(in_client(server.url, lambda nc: call(nc, "STREAM.MSG.DELETE.OBJ_reports", {"seq": 3})))
    put_back(server.url, repo, "latest", "reports", "--object", NAME).ok()
    read = _read(server.url, NAME)
    assert read is not None and read[0] == BIG


async def _written_after(url: str, repo: Path, between: Callable[[Client], Awaitable[object]]) -> PutBackReport:
    """Delete the file, plan, let something happen, and write."""
    opened = Repository.open(LocalStore(repo))
    manifest = opened.manifest(opened.backups()[-1])
    options = PutBackOptions("reports", object_name=NAME)
    connection = source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
    async with connect_jetstream(connection) as js, connected(url) as nc:
        await (await nc.jetstream().object_store("reports")).delete(NAME)
        plan = await make_plan(js, opened.objects, manifest, options, now_ns=time.time_ns())
        await between(nc)
        return await write_object(js, opened.objects, plan, PutBackRun(connection, options))


def test_a_writer_between_plan_and_write_is_not_lost(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    _lost(server.url, repo)

    async def put(nc: Client) -> None:
        await (await nc.jetstream().object_store("reports")).put(NAME, b"from someone else")

    report = run(_written_after(server.url, repo, put))
    assert report.code == 16 and not report.written
    read = _read(server.url, NAME)
    assert read is not None and read[0] == b"from someone else"
    assert sorted(_chunks(server.url).values()) == [1, 1]  # of the others; ours are purged


def test_chunks_that_are_read_back_otherwise_make_no_file(
    nats_server: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    _lost(server.url, repo)
    read_message = JetStream.message

    async def damaged(js: JetStream, stream: str, sequence: int) -> StoredMessage | None:
        found = await read_message(js, stream, sequence)
        return found and replace(found, data=found.data[::-1])

    async def damage(_nc: Client) -> None:
        monkeypatch.setattr(JetStream, "message", damaged)

    with pytest.raises(IntegrityError):
        run(_written_after(server.url, repo, damage))
    assert _read(server.url, NAME) is None and sorted(_chunks(server.url).values()) == [1]


def test_a_file_that_is_not_whole_in_the_backup_is_not_written(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(in_client(server.url, _store))
    run(in_client(server.url, lambda nc: call(nc, "STREAM.MSG.DELETE.OBJ_reports", {"seq": 3})))
    back_up(server.url, repo)
    before = run(last_sequence(server.url, "OBJ_reports"))
    found = put_back(server.url, repo, "latest", "reports", "--object", NAME)
    assert found.code == 14 and "not whole" in found.document["error"]["message"]
    assert run(last_sequence(server.url, "OBJ_reports")) == before


def _digest(data: bytes, prefix: str = "SHA-256=") -> str:
    return prefix + urlsafe_b64encode(sha256(data).digest()).decode()


TWO = b"a" * 1000 + b"b" * 1000
NULLS: dict[str, Any] = {"description": None, "metadata": None, "headers": None, "options": None}
# What clients in other languages write: a description, its chunks, and what was put.
FOREIGN: dict[str, tuple[dict[str, Any], list[bytes], bytes]] = {
    "nulls of Rust": ({**NULLS, "chunks": 1, "size": 4, "digest": _digest(b"text")}, [b"text"], b"text"),
    "only nulls": ({**NULLS, "chunks": None, "size": None, "digest": None, "nuid": None, "deleted": None}, [], b""),
    "empty chunk of .NET": (
        {"chunks": 2, "size": 2000, "digest": _digest(TWO)},
        [TWO[:1000], TWO[1000:], b""],
        TWO,
    ),
    "digest of old Go": ({"chunks": 1, "size": 4, "digest": _digest(b"text", "sha-256=")}, [b"text"], b"text"),
}


def test_files_of_clients_in_other_languages(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    line = ("-r", repo)

    def subject(name: str) -> str:
        return f"$O.reports.M.{urlsafe_b64encode(name.encode()).decode()}"

    async def store(nc: Client) -> None:
        js = nc.jetstream()
        await js.create_object_store("reports")
        for number, (name, (description, chunks, _)) in enumerate(FOREIGN.items()):
            for chunk in chunks:
                await js.publish(f"$O.reports.C.n{number}", chunk)
            entry = {"name": name, "bucket": "reports", "nuid": f"n{number}", **description}
            await js.publish(subject(name), json.dumps(entry).encode())
        gone = {**NULLS, "name": "gone", "nuid": None, "digest": None, "size": 0, "chunks": 0, "deleted": True}
        await js.publish(subject("gone"), json.dumps(gone).encode())
        link = {"name": "to", "description": None, "options": {"link": {"name": None, "bucket": "b"}}}
        await js.publish(subject("to"), json.dumps(link).encode())

    run(in_client(server.url, store))
    back_up(server.url, repo)
    listed = jsbackup("object", "latest", "reports", *line).ok().document
    assert {one["name"] for one in listed["objects"]} == {*FOREIGN, "to"} and listed["unreadable"] == 0
    for name, (_, _, data) in FOREIGN.items():
        jsbackup("object", "latest", "reports", name, "-o", tmp_path / name, *line).ok()
        assert (tmp_path / name).read_bytes() == data
    run(purge(server.url, "OBJ_reports"))
    for name in FOREIGN:
        for action in ("written", "there"):
            made = put_back(server.url, repo, "latest", "reports", "--object", name).ok().document
            assert made[action] == 1, name
    stored = run(held(server.url, "OBJ_reports"))
    assert sorted(one.data for one in stored if b".C." in one.subject) == sorted(
        chunk for _, chunks, _ in FOREIGN.values() for chunk in chunks
    )
