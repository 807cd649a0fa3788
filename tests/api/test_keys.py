"""Repositories that are encrypted, and in S3: what opens them is given as arguments, or stands in the environment."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import jsbackup
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import GivenKeys
from jsbackup.repository.crypto.keys import add_readers, needed
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.api.shop import Shop, look, rows
from tests.harness.age_files import cheap_passphrase_file
from tests.harness.commands import jsbackup as run
from tests.harness.oracle import compare
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import NatsServer

pytestmark = pytest.mark.nats

errors = jsbackup.errors

ME, STRANGER = age.age_identity(bytes(range(32))), age.age_identity(bytes(32))
PASSPHRASE = "correct horse battery staple"

_NUMBERS = itertools.count()


def _make(folder: Path) -> tuple[Path, Path]:
    """An encrypted repository, and its writer key."""
    assert ME.recipient is not None
    repo, writer = folder / "repo", folder / "writer.key"
    run("init", "-r", repo, "--writer-key", writer, "--encrypt-to", ME.recipient.label).ok()
    return repo, writer


def test_an_encrypted_repository(
    shop: Shop, tmp_path: Path, target: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, writer = _make(tmp_path)
    with pytest.raises(errors.KeyUnavailable):
        jsbackup.backup(shop.url, jsbackup.open(repo))
    made = jsbackup.backup(shop.url, jsbackup.open(repo, writer_key=writer))
    assert made.complete and "ORDERS" in made

    host = jsbackup.open(repo, writer_key=writer.read_bytes())
    assert host.latest().id == made.id
    with pytest.raises(errors.KeyUnavailable):
        rows(host.latest()["ORDERS"].messages())
    with pytest.raises(errors.KeyUnavailable, match="nothing was restored"):
        jsbackup.restore(host, target.url)
    with pytest.raises(errors.KeyUnavailable):
        jsbackup.open(repo).backups()

    identity = tmp_path / "me.key"
    identity.write_text(f"{ME.text}\n")
    by_file = jsbackup.open(repo, identity=identity)
    by_content = jsbackup.open(repo, identity=ME.text.encode())
    with pytest.raises(errors.KeyUnavailable):
        jsbackup.export(host, tmp_path / "lake", format="parquet")
    lake = jsbackup.export(by_content, tmp_path / "lake", format="parquet", streams="ORDERS")
    assert lake.rows == len(shop.published)
    monkeypatch.setenv("JSBACKUP_IDENTITY_FILE", str(identity))
    for opened in (by_file, by_content, jsbackup.open(repo)):
        assert rows(opened.latest()["ORDERS"].messages()) == shop.published
    jsbackup.restore(by_content, target.url)
    assert compare(look(shop.url), look(target.url)) == []


class _QuickScrypt:
    """In place of what takes a second or more."""

    @staticmethod
    def encrypt(data: bytes, passphrase: str) -> bytes:
        return cheap_passphrase_file(data, passphrase)


def test_a_passphrase(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo, writer = _make(tmp_path)
    jsbackup.backup(shop.url, jsbackup.open(repo, writer_key=writer))
    monkeypatch.setattr(age, "_passphrase", _QuickScrypt)
    opened = Repository.open(LocalStore(repo), GivenKeys(identities=(ME,)))
    add_readers(opened.store, opened.descriptor, needed(opened.secret), [], passphrase=(PASSPHRASE, b"abc"))
    assert rows(jsbackup.open(repo, passphrase=PASSPHRASE).latest()["ORDERS"].messages()) == shop.published
    with pytest.raises(errors.KeyUnavailable):
        jsbackup.open(repo, passphrase="a guess")


def test_wrong_keys(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo, _ = _make(tmp_path)
    with pytest.raises(errors.KeyUnavailable):
        jsbackup.open(repo, identity=STRANGER.text.encode())
    with pytest.raises(errors.UsageError):
        jsbackup.open(repo, identity=b"no key")
    with pytest.raises(errors.UsageError):
        jsbackup.open(repo, identity=tmp_path / "missing.key")
    with pytest.raises(errors.UsageError, match="not encrypted"):
        jsbackup.open(shop.folder, passphrase=PASSPHRASE)
    with pytest.raises(errors.RepositoryNotFound):  # who has keys expects one that is not plain
        jsbackup.open(tmp_path / "new", create=True, passphrase=PASSPHRASE)
    # What is given counts, whatever is in the environment.
    monkeypatch.setenv("JSBACKUP_IDENTITY_FILE", str(tmp_path / "missing.key"))
    assert jsbackup.open(repo, identity=ME.text.encode()).backups() == []


def test_keys_in_memory_are_not_for_executors(tmp_path: Path) -> None:
    repo, _ = _make(tmp_path)
    opened = jsbackup.open(repo, identity=ME.text.encode())
    with pytest.raises(errors.UsageError, match="executors"):
        jsbackup.Backup(opened, "20260101T000000Z-abcdef").spark(None)  # type: ignore[arg-type]


@pytest.mark.s3
def test_a_repository_in_s3(
    shop: Shop, s3_server: S3Server, target: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in S3Server.credentials().items():
        monkeypatch.setenv(name, value)
    location = f"s3://{BUCKET}/face/{next(_NUMBERS)}"
    with pytest.raises(errors.RepositoryNotFound):
        jsbackup.open(location, s3_endpoint=s3_server.url, s3_region="us-east-1")
    repository = jsbackup.open(location, create=True, s3_endpoint=s3_server.url, s3_region="us-east-1")
    made = jsbackup.backup(shop.url, repository)
    assert [one.id for one in repository.backups()] == [made.id]
    assert rows(made["ORDERS"].messages("orders.eu.*")) == [row for row in shop.published if ".eu." in row[2]]
    jsbackup.restore(made, target.url)
    assert compare(look(shop.url), look(target.url)) == []
    with pytest.raises(errors.UsageError, match="endpoint"):
        jsbackup.open(location, s3_endpoint="nowhere")
