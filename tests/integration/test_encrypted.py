"""An encrypted repository, from the backup host to the restore: who can do what with which key, and what a store that
lies can bring about."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jsbackup.repository.crypto import age
from tests.harness.age_cli import age_decrypt
from tests.harness.api import JSON, call, connected
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.damage import flip
from tests.harness.filling import fill, publish
from tests.harness.oracle import ObservedStream, compare, observe
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

# Nothing of these may be found in the store.
STREAM, SUBJECT, HEADER, PAYLOAD, CONSUMER = (
    "PLANTED_STREAM",
    "planted.subject",
    "Planted-Header",
    "payl0ad!",
    "planted",
)
TAG = "planted-tag"
MESSAGES = 420
ME = age.age_identity(bytes(range(32)))
STRANGER = age.age_identity(bytes(32))


@dataclass(frozen=True)
class Vault:
    """An encrypted repository with two backups of a server, and keys in files."""

    url: str
    repo: Path
    writer: Path
    identity: Path
    backups: list[str]
    second: JSON  # what the second backup printed

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.repo, to)
        return to


async def _add_consumer(url: str) -> None:
    async with connected(url) as nc:
        request = {"stream_name": STREAM, "config": {"durable_name": CONSUMER, "ack_policy": "explicit"}}
        await call(nc, f"CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", request)


async def _observe(url: str) -> dict[str, ObservedStream]:
    async with connected(url) as nc:
        return await observe(nc)


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vault]:
    home = tmp_path_factory.mktemp("vault")
    repo, writer, identity = home / "repo", home / "writer.key", home / "my.key"
    assert ME.recipient is not None
    identity.write_text(f"# mine\n{ME.text}\n")
    payloads = [f"{PAYLOAD}{number}" for number in range(MESSAGES)]
    with NatsServer(NEWEST) as server:
        made = jsbackup("init", "-r", repo, "--encrypt-to", ME.recipient.label, "--writer-key", writer).ok()
        assert made.document["encrypted"] is True and made.document["writer_key"] == str(writer)
        asyncio.run(
            fill(server.url, STREAM, payloads[:-20], subject=SUBJECT, subjects=[SUBJECT], headers={HEADER: "x"})
        )
        asyncio.run(_add_consumer(server.url))
        line: list[str | Path] = ["backup", "-s", server.url, "-r", repo, "--writer-key", writer, "--tag", f"k={TAG}"]
        first = jsbackup(*line).ok().document
        asyncio.run(publish(server.url, SUBJECT, payloads[-20:]))
        second = jsbackup(*line).ok().document
        yield Vault(server.url, repo, writer, identity, [first["backup"], second["backup"]], second)


def test_the_backup_host_makes_lists_and_checks_backups_and_reads_no_message(vault: Vault, tmp_path: Path) -> None:
    (stream,) = vault.second["streams"]
    assert stream["messages"] == MESSAGES
    stored = sum(file.stat().st_size for file in vault.repo.glob("segments/*/*"))
    assert 0 < stream["stored_bytes_added"] < stored / 2
    key = ["--writer-key", vault.writer]
    listed = jsbackup("list", "-r", vault.repo, *key).ok().document["backups"]
    assert [one["backup"] for one in listed] == vault.backups
    shown = jsbackup("show", "latest", "-r", vault.repo, *key).ok().document
    assert shown["previous"] == vault.backups[0] and shown["streams"][0]["name"] == STREAM
    for level in ("manifest", "objects"):
        checked = jsbackup("verify", "-r", vault.repo, "--level", level, *key).ok().document
        assert [one["ok"] for one in checked["backups"]] == [True, True] and checked["chain"] == []
    out = tmp_path / "out"
    for command in (["verify", "--level", "data"], ["export", "latest", "--format", "nats-cli", "--output", str(out)]):
        refused = jsbackup(*command, "-r", vault.repo, *key)
        assert refused.code == 12, refused
        assert "--identity" in refused.document["error"]["hint"]


def test_the_identity_restores_everything_and_writes_nothing(
    vault: Vault, nats_server: Callable[..., NatsServer]
) -> None:
    key = ["--identity", vault.identity]
    jsbackup("verify", "-r", vault.repo, "--level", "data", *key).ok()
    target = nats_server(NEWEST)
    jsbackup("restore", "latest", "-s", target.url, "-r", vault.repo, *key).ok()
    before, after = asyncio.run(_observe(vault.url)), asyncio.run(_observe(target.url))
    assert compare(before, after, ignore=["consumer.*.ack_floor"]) == []
    refused = jsbackup("backup", "-s", vault.url, "-r", vault.repo, *key)
    assert refused.code == 12 and "writer key" in refused.document["error"]["message"]


def test_without_the_right_key_nothing_opens(vault: Vault, tmp_path: Path) -> None:
    (wrong := tmp_path / "wrong.key").write_text(f"{STRANGER.text}\n")
    for key in ([], ["--identity", wrong], ["--expect-signer", _authority(vault)]):
        for command in (["list"], ["show", "latest"], ["verify"], ["restore", "latest", "-s", vault.url]):
            refused = jsbackup(*command, "-r", vault.repo, *key)
            assert refused.code == 12, (command, refused)
            assert refused.document["error"]["hint"]
    assert jsbackup("list", "-r", vault.repo, "--expect-signer", "0" * 64).code == 14


def _authority(vault: Vault) -> str:
    authority: str = jsbackup("key", "list", "-r", vault.repo).ok().document["authority"]
    return authority


def test_nothing_that_is_stored_tells_what_is_in_it(vault: Vault) -> None:
    planted = [STREAM, SUBJECT, HEADER, PAYLOAD, CONSUMER, TAG, quote(STREAM)]
    files = [file for file in vault.repo.rglob("*") if file.is_file()]
    assert len(files) >= 6
    for file in files:
        name, content = str(file.relative_to(vault.repo)), file.read_bytes()
        for text in planted:
            assert text not in name
            assert text.encode() not in content, name
        assert b"PAR1" not in content
        # Nor does a key, which is what opens it all.
        assert ME.text is not None
        assert ME.text.encode() not in content
        assert not any(
            secret.encode() in content for secret in vault.writer.read_text().splitlines()[-1].split(":")[3:5]
        )


def test_the_public_tool_and_a_parquet_reader_open_a_segment(vault: Vault, tmp_path: Path) -> None:
    (wrapped,) = vault.repo.glob("keys/age1*.age")
    (repository_key := tmp_path / "repository.key").write_bytes(age_decrypt(vault.identity, wrapped))
    segments = sorted(vault.repo.glob("segments/*/*.parquet.age"))
    tables = [pq.read_table(pa.BufferReader(age_decrypt(repository_key, file))) for file in segments]
    payloads = {data for table in tables for data in table.column("data").to_pylist()}
    assert payloads == {f"{PAYLOAD}{number}".encode() for number in range(MESSAGES)}
    manifest = age_decrypt(repository_key, sorted(vault.repo.glob("backups/*.json.age"))[-1])
    first, signature = manifest.splitlines()
    assert json.loads(first)["previous"] == vault.backups[0]
    assert set(json.loads(signature)) == {"signature", "signer"}


def test_damage_is_found_with_the_writer_key_alone(vault: Vault, tmp_path: Path) -> None:
    repo = vault.copy(tmp_path / "repo")
    segment = sorted(repo.glob("segments/*/*.age"))[0]
    segment.chmod(0o600)
    segment.write_bytes(flip(segment.read_bytes()))
    found = jsbackup("verify", "-r", repo, "--writer-key", vault.writer)
    assert found.code == 14
    problems = [problem for one in found.document["backups"] for problem in one["problems"]]
    assert problems and all(segment.name in problem["problem"] for problem in problems)
    line = ["restore", "latest", "-s", vault.url, "-r", repo, "--identity", vault.identity, "--rename", "*=X*"]
    restored = jsbackup(*line, "--map-subject", f"{SUBJECT}=>copied")
    assert restored.code == 14
    manifest = sorted(repo.glob("backups/*.age"))[1]
    manifest.chmod(0o600)
    manifest.write_bytes(flip(manifest.read_bytes()))
    assert jsbackup("show", "latest", "-r", repo, "--writer-key", vault.writer).code == 14


def test_a_backup_that_was_removed_or_exchanged_is_noticed(vault: Vault, tmp_path: Path) -> None:
    first, second = (f"backups/{backup}.json.age" for backup in vault.backups)
    key = ["--writer-key", vault.writer]

    removed = vault.copy(tmp_path / "removed")
    (removed / first).unlink()
    found = jsbackup("verify", "-r", removed, *key)
    assert found.code == 14
    assert [gap["backup"] for gap in found.document["chain"]] == [vault.backups[0]]
    assert "removed" in found.document["chain"][0]["problem"]

    exchanged = vault.copy(tmp_path / "exchanged")
    (exchanged / second).unlink()
    shutil.copy(exchanged / first, exchanged / second)
    found = jsbackup("verify", vault.backups[1], "-r", exchanged, *key)
    assert found.code == 14 and "under this name" in found.document["problems"][0]["problem"]

    newest = vault.copy(tmp_path / "newest")
    (newest / second).unlink()
    for expected in ([], ["--expect", vault.backups[1]]):
        found = jsbackup("verify", "-r", newest, *key, *expected)
        assert found.code == 14 and [gap["backup"] for gap in found.document["chain"]] == [vault.backups[1]]
    (newest / "catalog" / f"{vault.backups[1]}.committed").unlink()
    jsbackup("verify", "-r", newest, *key).ok()  # what cannot be seen
    found = jsbackup("verify", "-r", newest, *key, "--expect", vault.backups[1])
    assert found.code == 14 and found.document["chain"][0]["backup"] == vault.backups[1]


def test_a_store_that_shows_another_repository_gets_nothing(vault: Vault, tmp_path: Path) -> None:
    key = ["--writer-key", vault.writer]
    empty = jsbackup("backup", "-s", vault.url, "-r", tmp_path / "empty", *key)
    assert empty.code == 10 and not (tmp_path / "empty").exists()
    plain = tmp_path / "plain"
    jsbackup("init", "-r", plain).ok()
    assert jsbackup("backup", "-s", vault.url, "-r", plain, *key).code == 12
    assert jsbackup("restore", "latest", "-s", vault.url, "-r", plain, "--identity", vault.identity).code == 2
    assert not list(plain.glob("segments/*"))


def test_secrets_come_by_environment_and_command_and_are_never_printed(vault: Vault) -> None:
    assert ME.text is not None
    seeds = vault.writer.read_text().split(":")[3:5]
    ways = [
        {"JSBACKUP_IDENTITY": ME.text},
        {"JSBACKUP_IDENTITY_FILE": str(vault.identity)},
        {"JSBACKUP_IDENTITY_COMMAND": f"cat '{vault.identity}'"},
        {"JSBACKUP_WRITER_KEY": vault.writer.read_text()},
    ]
    for way in ways:
        for more in ([], ["--level", "data"]):
            line = command_line("verify", "-r", vault.repo, "-vv", *more)
            done = subprocess.run(line, capture_output=True, text=True, timeout=240, env=environment(**way))
            assert done.returncode == (12 if more and "JSBACKUP_WRITER_KEY" in way else 0), done.stderr
            assert not any(secret in done.stdout + done.stderr for secret in (ME.text, *seeds))
    pasted: Ran = jsbackup("list", "-r", vault.repo, "--identity", ME.text)
    assert pasted.code == 2 and ME.text not in pasted.out + pasted.err


def test_what_the_keys_at_hand_cannot_read_is_refused_once_and_by_the_plan_too(
    vault: Vault, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    target = nats_server(NEWEST)
    where = ("-s", target.url, "-r", vault.repo, "--writer-key", vault.writer)
    planned = jsbackup("plan", "latest", *where, "-o", tmp_path / "plan.json")
    (refusal,) = planned.document["refusals"]
    assert (planned.code, refusal["rule"], refusal["code"]) == (12, "key-missing", 12)
    assert "--identity" in refusal["hint"] and not (tmp_path / "plan.json").exists()
    (runbook := tmp_path / "runbook.toml").write_text('[[restore]]\nbackup = "latest"\n')
    for line in (("latest",), ("latest", "--partial"), ("latest", "--until", "3"), ("--runbook", runbook)):
        refused = jsbackup("restore", *line, *where)
        assert refused.code == 12 and "--identity" in refused.document["error"]["hint"], refused
    assert asyncio.run(_observe(target.url)) == {}
    assert jsbackup("plan", "latest", *where, "--identity", vault.identity).code == 0
