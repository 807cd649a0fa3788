"""Encrypted and damaged repositories, and one of many streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.repository.crypto import age
from jsbackup.stores.local import LocalStore
from tests.browse.client import Browsing, rows
from tests.browse.conftest import Estate
from tests.harness.backups import FIRST, make_repository
from tests.harness.commands import jsbackup
from tests.harness.many_streams import manifest_of, many_streams
from tests.harness.shelf import LARGE

pytestmark = pytest.mark.xdist_group("browse")


@pytest.mark.nats
def test_an_encrypted_repository_is_opened_by_an_identity(estate: Estate, tmp_path: Path) -> None:
    me, vault = age.random_identity(), tmp_path / "vault"
    assert me.recipient is not None
    identity, writer = tmp_path / "identity", tmp_path / "writer.key"
    identity.write_text(f"{me.text}\n")
    jsbackup("init", "-r", vault, "--encrypt-to", me.recipient.label, "--writer-key", writer).ok()
    jsbackup("copy", "--to-repo", vault, "--to-writer-key", writer, "-r", estate.repo).ok()
    base = f"/backup/{estate.newest}"
    with Browsing("-r", vault, "--identity", identity) as page:
        page.log_in()
        assert [row[0].split()[0] for row in rows(page.get("/"))] == list(reversed(estate.backups))
        assert "night" in page.get(f"{base}/bucket", name="KV_settings").words
        assert page.get(f"{base}/file", name="OBJ_files", file="a/large").body == LARGE
        assert rows(page.get(f"{base}/messages", name="ORDERS"))[0][0] == "1"
    # The key that writes reads what backups consist of, and no message.
    with Browsing("-r", vault, "--writer-key", writer) as page:
        page.log_in()
        assert page.get(base).status == 200
        locked = page.get(f"{base}/messages", name="ORDERS")
        assert locked.status == 422 and "encrypted" in locked.problem
        stream = page.get(f"{base}/stream", name="ORDERS")
        assert stream.status == 200 and "encrypted" in stream.problem and "Configuration" in stream.words
    assert jsbackup("browse", "--for", "1s", "-r", vault).code == 12


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.nats
def test_damage_is_one_sentence_on_the_page(estate: Estate, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    jsbackup("copy", "--to-repo", repo, "-r", estate.repo).ok()
    for segment in repo.glob("segments/ORDERS-*/*.parquet"):
        _damage(segment)
    for segment in repo.glob("segments/OBJ_files-*/*.parquet"):
        segment.unlink()
    base = f"/backup/{estate.newest}"
    with Browsing("-r", repo) as page:
        page.log_in()
        home = page.get("/")
        assert home.status == 200 and "damaged-objects" in home.words and "missing" in home.words
        shown = page.get(base)
        assert shown.status == 200 and f"jsbackup show {estate.newest}" in shown.words
        assert estate.newest in home.text and ">damaged</span>" in home.text
        stream = page.get(f"{base}/stream", name="ORDERS")
        assert stream.status == 200 and "SHA-256 differs" in stream.problem and "orders.&gt;" in stream.text
        for path, query in (("messages", {}), ("message", {"seq": 1}), ("payload", {"seq": 1})):
            answer = page.get(f"{base}/{path}", name="ORDERS", **query)
            assert answer.status == 422 and "SHA-256 differs" in answer.problem
        files = page.get(f"{base}/files", name="OBJ_files")
        assert files.status == 422 and files.problem
        assert page.get(f"{base}/file", name="OBJ_files", file="a/large").status == 422
        assert page.get(f"{base}/bucket", name="KV_settings").status == 200
        compared = page.get("/compare/stream", a=estate.backups[0], b=estate.newest, name="ORDERS")
        assert compared.status == 200 and compared.problem
        for manifest in repo.glob("backups/*"):
            if estate.backups[1] in manifest.name:
                _damage(manifest)
        broken = page.get(f"/backup/{estate.backups[1]}")
        assert broken.status == 422 and broken.problem
        assert page.get("/", fresh=1).status == 200 and estate.backups[1] in page.get("/backups").words
        _, err = page.stop()
        assert "Traceback" not in err


@pytest.mark.nats
def test_a_backup_that_was_forgotten_is_gone_from_the_pages(estate: Estate, tmp_path: Path) -> None:
    repo, gone = tmp_path / "repo", estate.backups[0]
    jsbackup("copy", "--to-repo", repo, "-r", estate.repo).ok()
    with Browsing("-r", repo, "-s", estate.url) as page:
        page.log_in()
        assert page.get(f"/backup/{gone}").status == 200 and gone in page.get("/backups").words
        jsbackup("forget", gone, "-r", repo).ok()
        for path, query in (
            (f"/backup/{gone}/stream", {"name": "ORDERS"}),
            ("/plan", {"backup": gone, "target": estate.url, "go": 1}),
            ("/compare", {"a": gone, "b": estate.newest}),
        ):
            answer = page.get(path, **query)
            assert answer.status == 404 and gone in answer.problem and "jsbackup restore" not in answer.words
            assert path != f"/backup/{gone}/stream" or answer.problem == f"no such backup: {gone} was forgotten."
        assert gone not in page.get("/backups").words


@pytest.mark.nats
def test_looking_again_sees_what_was_damaged_since(estate: Estate, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    jsbackup("copy", "--to-repo", repo, "-r", estate.repo).ok()
    with Browsing("-r", repo) as page:
        base = f"/backup/{estate.newest}"
        assert page.log_in().get(base).status == 200
        for manifest in repo.glob(f"backups/*{estate.newest}*"):
            _damage(manifest)
        assert page.get("/", fresh=1).status == 200
        answer = page.get(base)
        assert answer.status == 422 and answer.problem


@pytest.mark.nats
def test_a_repository_that_vanishes_is_said(estate: Estate, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    jsbackup("copy", "--to-repo", repo, "-r", estate.repo).ok()
    with Browsing("-r", repo, "-s", estate.url) as page:
        assert page.log_in().get(f"/backup/{estate.newest}").status == 200
        repo.rename(tmp_path / "elsewhere")
        plan = f"/plan?go=1&target={estate.url}&backup={estate.newest}"
        for path in ("/", "/?fresh=1", "/backups", "/compare", plan, *(f"/backup/{one}" for one in estate.backups)):
            answer = page.ask("GET", path)
            assert answer.status == 422 and answer.problem.startswith(f"no repository at {repo}"), (path, answer.words)
        (tmp_path / "elsewhere").rename(repo)
        assert page.get("/").status == page.get(f"/backup/{estate.newest}").status == 200


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "repo"
    make_repository(LocalStore(folder)).commit(manifest_of(many_streams(1000)))
    return folder


@pytest.mark.slow
def test_a_thousand_streams_are_shown_in_parts_and_searched(many: Path) -> None:
    with Browsing("-r", many) as page:
        page.log_in()
        first = page.get(f"/backup/{FIRST}")
        assert "Streams 1 to 150 of 1,000" in first.words and len(rows(first)) == 150
        names = [row[0] for row in rows(first)]
        for start in range(150, 1000, 150):
            names += [row[0] for row in rows(page.get(f"/backup/{FIRST}", start=start))]
        assert names == [f"STREAM_{number:04}" for number in range(1000)]
        assert [row[0] for row in rows(page.get(f"/backup/{FIRST}", search="am_0999"))] == ["STREAM_0999"]
        assert "No stream has that" in page.get(f"/backup/{FIRST}", search="none").words
        assert page.memory_bytes() < 300 << 20


def test_an_empty_repository_has_a_home_too(tmp_path: Path) -> None:
    make_repository(LocalStore(tmp_path / "repo"))
    with Browsing("-r", tmp_path / "repo") as page:
        page.log_in()
        assert "There are no backups" in page.get("/").words
        for path in ("/backups", "/compare", "/plan"):
            assert page.get(path).status == 200
