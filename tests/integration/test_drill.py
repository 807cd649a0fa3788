"""Drills: of every awkward stream, on a single server and a cluster; of damaged backups; cut short; without a key."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import DrillOutcome, read_runs
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import call, connected, until_stored
from tests.harness.awkward import fill
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.servers import BUNDLED, NatsServer, binary

pytestmark = pytest.mark.nats

EMBEDDED = Path(sys.executable).parent / "nats-server"


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A backup of every awkward stream; beside it, as `small`, one of two of them."""
    folder = tmp_path_factory.mktemp("drill") / "repo"
    with NatsServer(BUNDLED) as server:
        asyncio.run(_fill(server.url))
        jsbackup("backup", "-s", server.url, "-r", folder).ok()
        jsbackup("backup", "OLD", "KV_ttl", "-s", server.url, "-r", folder.parent / "small").ok()
    yield folder


@pytest.fixture
def small(repo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(repo.parent / "small", tmp_path / "small"))


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        await fill(nc, BUNDLED)
        old = {"name": "OLD", "subjects": ["old"], "storage": "file", "max_age": 3600 * 10**9}
        await call(nc, "STREAM.CREATE.OLD", {**old, "retention": "limits", "num_replicas": 1})
        await nc.publish("old", b"message")
        await until_stored(nc, "old")


def outcomes(repo: Path) -> list[DrillOutcome]:
    return read_runs(DrillOutcome, Repository.open(LocalStore(repo)).documents, 10)


@pytest.mark.by_turns
@pytest.mark.parametrize("nodes", [1, 3])
def test_every_awkward_stream_is_restored_and_proved(repo: Path, nodes: int, tmp_path: Path) -> None:
    done = jsbackup("drill", "-r", repo, "--nodes", str(nodes), "--work-dir", tmp_path, "--nats-server", EMBEDDED).ok()
    shown = jsbackup("show", "latest", "-r", repo).ok().document
    document = done.document
    assert document["backup"] == shown["backup"]
    streams = {one["name"]: one for one in document["streams"]}
    # A cluster makes the origins anew, and what was copied of them must not name the lives that ended.
    renewed = {name for name, one in streams.items() if any("lose the creation time" in note for note in one["notes"])}
    assert renewed == (set() if nodes == 1 else {"SOURCES"})
    assert {one["name"]: one["messages"] for one in shown["streams"]} == {
        name: one["messages"] for name, one in streams.items()
    }
    digests = {one["name"]: one["digest"] for one in shown["streams"]}
    assert {name for name, one in streams.items() if one["digest"] != digests[name]} == renewed
    assert len(streams) > 50
    assert all(one["verified"] for one in streams.values())
    assert {one["name"]: len(one["consumers"]) for one in shown["streams"]} == {
        name: len(one["consumers"]) for name, one in streams.items()
    }
    assert "restored without max_age" in streams["OLD"]["notes"]
    assert document["ok"] and document["everything"] and not document["failed"]
    assert document["server"]["nodes"] == nodes
    assert document["seconds"] >= max(one["seconds"] for one in streams.values()) > 0
    assert document["recovery_point"]["newest_message_age_seconds"] > 0
    assert list(tmp_path.iterdir()) == []

    newest = outcomes(repo)[0]
    assert (newest.ok, newest.code, newest.nodes, newest.everything) == (True, 0, nodes, True)
    assert {one.name for one in newest.streams} == set(streams)
    status = jsbackup("status", "-r", repo, "--max-drill-age", "1h").ok().document
    assert status["newest_drill"]["backup"] == document["backup"]


def test_a_drill_of_some_streams_does_not_count_for_all(small: Path) -> None:
    done = jsbackup("drill", "latest", "*", "--exclude", "KV*", "-r", small, "--nats-server", EMBEDDED).ok()
    assert [one["name"] for one in done.document["streams"]] == ["OLD"] and not done.document["everything"]
    status = jsbackup("status", "-r", small, "--max-drill-age", "1h")
    assert status.code == 17
    assert [one["rule"] for one in status.document["breaches"]] == ["drill-age"]


def test_an_older_server_is_warned_of_and_what_it_cannot_hold_is_refused(repo: Path, small: Path) -> None:
    older = binary("2.12.8")
    done = jsbackup("drill", "-r", small, "--nats-server", older).ok()
    [warning] = done.document["warnings"]
    assert BUNDLED in warning and "2.12.8" in warning
    before = len(outcomes(repo))
    refused = jsbackup("drill", "-r", repo, "--nats-server", older)
    assert refused.code == 15, refused
    newest = outcomes(repo)
    assert len(newest) == before + 1 and (newest[0].ok, newest[0].code) == (False, 15)
    assert "2.12" in newest[0].error


def test_a_damaged_backup_fails_and_is_told_until_a_drill_goes_well(small: Path, tmp_path: Path) -> None:
    copy = small
    store = LocalStore(copy)
    manifest = next(iter(Repository.open(store).backups()))
    entry = next(one for one in Repository.open(store).manifest(manifest).streams if one.name == "OLD")
    key = entry.segments[0].key
    whole = store.get(key)
    path = copy / key
    path.chmod(0o600)
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    done = jsbackup("drill", "-r", copy, "--nats-server", EMBEDDED, "--work-dir", tmp_path)
    assert done.code == 14, done
    assert [(one["name"], one["code"]) for one in done.document["failed"]] == [("OLD", 14)]
    assert [one.name for one in tmp_path.iterdir()] == ["small"]
    [outcome] = outcomes(copy)
    assert (outcome.ok, outcome.code, outcome.backup) == (False, 14, manifest)
    status = jsbackup("status", "-r", copy)
    assert status.code == 17
    damaged, breach = status.document["breaches"]
    assert damaged["rule"] == "damaged-objects" and f"1 backup is known to be damaged: {manifest}" == damaged["reason"]
    assert breach["rule"] == "drill-failed" and manifest in breach["reason"]
    path.write_bytes(whole)
    jsbackup("verify", "-r", copy).ok()
    jsbackup("drill", "-r", copy, "--nats-server", EMBEDDED).ok()
    jsbackup("status", "-r", copy, "--max-drill-age", "1h").ok()


def test_its_server_is_for_nobody_else_and_ends_with_it(repo: Path, tmp_path: Path) -> None:
    """Looked at while it runs, then interrupted."""
    drilling = subprocess.Popen(
        command_line("drill", "-r", repo, "--nats-server", EMBEDDED, "--work-dir", tmp_path, "--nodes", "3", cold=True),
        env=environment(SECRET_OF_THE_ENVIRONMENT="do not pass on"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 60
        files: list[Path] = []
        while len(files) < 3 and time.monotonic() < deadline and drilling.poll() is None:
            # The server makes the file, and then writes it.
            files = [file for file in tmp_path.glob("*/*/*.ports") if "nats://" in file.read_text()]
        assert len(files) == 3, drilling.poll()
        pids = [int(file.stem.rpartition("_")[2]) for file in files]
        [folder] = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        for file, pid in zip(files, pids, strict=True):
            config = file.parent / "server.conf"
            assert config.stat().st_mode & 0o777 == 0o600
            password = next(line for line in config.read_text().splitlines() if line.startswith("authorization"))
            password = password.split('"')[1]
            process = Path("/proc") / str(pid)
            assert password not in (process / "cmdline").read_text()
            assert "SECRET_OF_THE_ENVIRONMENT" not in (process / "environ").read_text()
            assert password not in (Path("/proc") / str(drilling.pid) / "cmdline").read_text()
        url = files[0].read_text().split('"nats://')[1].split('"')[0]
        assert url.startswith("127.0.0.1:")
        refused = jsbackup("backup", "-s", f"nats://{url}", "-r", tmp_path / "stolen", "--timeout", "2s")
        assert refused.code == 20
        drilling.send_signal(signal.SIGINT)
        _, said = drilling.communicate(timeout=240)
        assert drilling.returncode == 130, said
        assert not [pid for pid in pids if _lives(pid)]
        assert not folder.exists()
    finally:
        if drilling.poll() is None:
            drilling.kill()
            drilling.wait()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_is_missing_is_told_before_anything_starts(small: Path, tmp_path: Path) -> None:
    for arguments, code, said in (
        (("--nats-server", tmp_path / "absent"), 2, "cannot be started"),
        (("--nats-server", "/bin/true"), 2, "not a nats-server"),
        (("NOT_THERE",), 2, "NOT_THERE"),
    ):
        done = jsbackup("drill", "latest", *arguments, "-r", small)
        assert (done.code, said in done.document["error"]["message"]) == (code, True), done


def test_an_encrypted_backup_takes_an_identity(shop_vault: tuple[Path, Path, Path]) -> None:
    vault, writer, identity = shop_vault
    before = len(list((vault / "receipts").glob("drill-*"))) if (vault / "receipts").exists() else 0
    done = jsbackup("drill", "-r", vault, "--writer-key", writer, "--nats-server", EMBEDDED)
    assert done.code == 12 and "--identity" in done.document["error"]["hint"], done
    done = jsbackup("drill", "-r", vault, "--identity", identity, "--nats-server", EMBEDDED).ok()
    assert "status will not know" in done.err
    jsbackup("drill", "-r", vault, "--identity", identity, "--writer-key", writer, "--nats-server", EMBEDDED).ok()
    assert len(list((vault / "receipts").glob("drill-*.age"))) == before + 1
    [key] = [p.relative_to(vault).as_posix() for p in (vault / "receipts").glob("drill-*")]
    assert layout.kind_of(key) is layout.ObjectKind.CHECK
    status = jsbackup("status", "-r", vault, "--writer-key", writer, "--max-drill-age", "1h").ok().document
    assert status["newest_drill"]["ok"]


@pytest.fixture
def shop_vault(tmp_path: Path) -> Iterator[tuple[Path, Path, Path]]:
    """An encrypted repository with one backup: its folder, writer key and identity."""
    from jsbackup.repository.crypto import age

    me = age.age_identity(bytes(range(32)))
    assert me.recipient is not None
    vault, writer, identity = tmp_path / "vault", tmp_path / "writer.key", tmp_path / "me.key"
    identity.write_text(f"{me.text}\n")
    identity.chmod(0o600)
    jsbackup("init", "-r", vault, "--encrypt-to", me.recipient.label, "--writer-key", writer).ok()
    with NatsServer(BUNDLED) as server:
        asyncio.run(_few(server.url))
        jsbackup("backup", "-s", server.url, "-r", vault, "--writer-key", writer).ok()
    yield vault, writer, identity


async def _few(url: str) -> None:
    async with connected(url) as nc:
        config = {"name": "FEW", "subjects": ["few"], "storage": "file", "retention": "limits", "num_replicas": 1}
        await call(nc, "STREAM.CREATE.FEW", config)
        await nc.publish("few", b"message")
        await until_stored(nc, "few")
