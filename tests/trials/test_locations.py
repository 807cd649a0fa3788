"""What `-r` names: a folder that is no repository, the one above repositories, a typing error (point 13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trials.accounts import Type, typing

pytestmark = pytest.mark.timeout(120)


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
        assert f"{none}, which holds something else" in said
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
            assert "is written" in done.err and "With two slashes." in done.err
    assert list(tmp_path.iterdir()) == [tmp_path / "plain"]
    profile = tmp_path / "config.toml"
    profile.write_text('[profiles.shop]\nrepo = "s3:/backups"\n')
    assert typed("list", "--profile", "shop", "--config", profile).code == 2
    (tmp_path / "s3:").mkdir()
    assert typed("init", "-r", "./s3:/meant").code == 0
