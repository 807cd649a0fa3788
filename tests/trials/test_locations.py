"""What `-r` names: a folder that is no repository, the one above repositories, a typing error (point 13)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, fill, typing

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def server() -> Iterator[str]:
    with NatsServer(NEWEST) as started:
        fill(started.url, "ORDERS", 3)
        yield started.url


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


def _awkward(folder: Path) -> None:
    """What a listing of all of it would not get through."""
    folder.mkdir()
    (folder / "link").symlink_to("/etc")
    for number in range(500):
        (folder / f"f{number}").write_bytes(b"")
    deep = folder / "backups" / "a" / "b" / "c" / "d" / "e"
    deep.mkdir(parents=True)
    (folder / "backups" / "link").symlink_to("/etc")
    (folder / "segments").symlink_to("/etc")


def test_a_folder_above_repositories_is_none_and_names_them(typed: Type, tmp_path: Path) -> None:
    above, server = tmp_path / "all", ("-s", "nats://127.0.0.1:1")
    _awkward(above)
    none = f"no repository at {above}"
    for line in (("list",), ("restore", "latest", *server), ("backup", *server), ("verify",), ("doctor",)):
        done = typed(*line, "-r", above)
        said = done.out if line == ("doctor",) else done.err
        assert f"{none}, which holds other files" in said
        assert done.code == (1 if line == ("doctor",) else 10)
    assert typed("init", "-r", above).code == 2
    for name in ("pay", "shop"):
        assert typed("init", "-r", above / "backups" / name).code == 0
    for line in (("list",), ("backup", *server)):
        done = typed(*line, "-r", above)
        assert done.code == 10
        assert f"{none}; there are repositories below: {above}/backups/pay, {above}/backups/shop\n" in done.err
        assert "hint: Name one of them with --repo." in done.err
    assert not (above / "jsbackup.json").exists()


def test_a_url_with_one_slash_is_no_folder(typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed("init", "-r", "plain").code == 0
    for location in ("s3:/backups/shop", "s3:backups", "S3:/backups", "file:/backups"):
        for line in (
            ("init", "-r", location),
            ("list", "-r", location),
            ("copy", "-r", "plain", "--to-repo", location),
        ):
            done = typed(*line)
            assert done.code == 2, (line, done.err)
            assert "must be written" in done.err and "Use two slashes." in done.err
    assert list(tmp_path.iterdir()) == [tmp_path / "plain"]
    profile = tmp_path / "config.toml"
    profile.write_text('[profiles.shop]\nrepo = "s3:/backups"\n')
    assert typed("list", "--profile", "shop", "--config", profile).code == 2
    (tmp_path / "s3:").mkdir()
    assert typed("init", "-r", "./s3:/meant").code == 0


def test_what_is_not_a_folder_is_no_repository(typed: Type, tmp_path: Path, server: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, says in (
        ("file", "it is not a folder"),
        ("fifo", "it is not a folder"),
        ("file/below", f"{tmp_path}/file is not a folder"),
        ("link", "it is a link to something that is not there"),
    ):
        at = tmp_path / name
        for line in (("list",), ("verify",), ("restore", "latest", "-s", server)):
            done = typed(*line, "-r", at)
            assert done.code == 10, (line, done)
            assert f"error: no repository at {at}: {says}\nhint: Name a folder" in done.err
        for line in (("init",), ("backup", "-s", server)):
            done = typed(*line, "-r", at)
            assert done.code == 21 and f"error: cannot open {at}: {says}\nhint: Name a folder" in done.err
        assert typed("backup", "--no-init", "-s", server, "-r", at).code == 10
        done = typed("doctor", "-r", at, "-s", server)
        assert done.code in (1, 21) and f"cannot open {at}: {says}" in done.out
    below = tmp_path / "unmounted" / "repo"
    for line in (("init",), ("backup", "-s", server)):
        done = typed(*line, "-r", below)
        assert done.code == 21
        assert (
            f"error: cannot make repo in {below.parent}: the folder is not there\nhint: Create it, or mount" in done.err
        )


def test_a_folder_that_may_not_be_read_is_21(typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    assert typed("init", "-r", repo).code == 0
    lines = ("list", "init", "verify")
    for line in lines:  # everything is imported, then root is root no more
        typed(line, "-r", repo)
    repo.chmod(0)
    was = os.geteuid()
    try:
        os.seteuid(was or 65534)
        said = [typed(line, "-r", repo) for line in lines]
    finally:
        os.seteuid(was)
        repo.chmod(0o700)
    for done in said:
        assert done.code == 21, done
        assert f"cannot read jsbackup.json in {repo}: permission denied\nhint: Check the owner and mode" in done.err


def test_a_backup_does_not_go_into_memory(typed: Type, server: str) -> None:
    for line in (("init",), ("backup", "-s", server), ("list",)):
        done = typed(*line, "-r", "memory:")
        assert done.code == 2 and "a repository in memory would be gone when the command ends" in done.err
