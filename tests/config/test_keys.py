from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from jsbackup.config import KeySecrets, key_secrets, mask_secret, new_writer_key_file
from jsbackup.errors import UsageError

SECRET = "hunter2-s3cr3t"
WAYS = {"writer_key": "JSBACKUP_WRITER_KEY", "identity": "JSBACKUP_IDENTITY", "passphrase": "JSBACKUP_PASSPHRASE"}
FILES = {"writer_key": "writer_key", "identity": "identity", "passphrase": "passphrase_file"}


def printing(text: str) -> str:
    return shlex.join([sys.executable, "-c", f"print({text!r})"])


@pytest.mark.parametrize("field", WAYS)
def test_each_secret_comes_from_a_file_a_command_or_the_environment(tmp_path: Path, field: str) -> None:
    (file := tmp_path / "file").write_text(SECRET)
    variable, option = WAYS[field], FILES[field]
    command = f"{option.removesuffix('_file')}_command"
    for given, environ in (
        ({option: str(file)}, {}),
        ({command: printing(SECRET)}, {}),
        ({}, {variable: SECRET}),
        ({}, {f"{variable}_FILE": "$WHERE/file", "WHERE": str(tmp_path)}),
        ({}, {f"{variable}_COMMAND": printing(SECRET)}),
    ):
        secrets = key_secrets(given, environ)
        value = getattr(secrets, field)
        assert value.strip() == SECRET.encode()
        others = set(WAYS) - {field}
        assert all(getattr(secrets, other) is None for other in others)
        assert SECRET not in repr(secrets)


def test_the_key_of_masks_is_the_same_whatever_way_it_comes(tmp_path: Path) -> None:
    (file := tmp_path / "file").write_text(f"{SECRET}\r\n")
    for given, environ in (
        ({"mask_key_file": str(file)}, {"JSBACKUP_MASK_KEY": "another"}),
        ({}, {"JSBACKUP_MASK_KEY": SECRET}),
        ({}, {"JSBACKUP_MASK_KEY_FILE": str(file)}),
        ({}, {"JSBACKUP_MASK_KEY_COMMAND": printing(SECRET)}),
    ):
        assert mask_secret(given, environ) == SECRET.encode()
    assert mask_secret({}, {}) == b""
    with pytest.raises(UsageError, match="the mask key is given twice"):
        mask_secret({}, {"JSBACKUP_MASK_KEY": SECRET, "JSBACKUP_MASK_KEY_FILE": str(file)})


def test_nothing_given_is_nothing() -> None:
    assert key_secrets({}, {}) == KeySecrets() == key_secrets({}, {"JSBACKUP_IDENTITY": ""})


def test_an_option_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    environ = {"JSBACKUP_IDENTITY": "theirs", "JSBACKUP_IDENTITY_COMMAND": "false"}
    assert key_secrets({"identity": str(tmp_path / "file")}, environ).identity == b"mine"


@pytest.mark.parametrize(
    ("given", "environ"),
    [
        ({"identity": "/x", "identity_command": "y"}, {}),
        ({}, {"JSBACKUP_IDENTITY": SECRET, "JSBACKUP_IDENTITY_FILE": "/x"}),
        ({}, {"JSBACKUP_IDENTITY_COMMAND": "x", "JSBACKUP_IDENTITY_FILE": "/x"}),
    ],
)
def test_what_is_given_twice_is_refused(given: dict[str, object], environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="the identity is given twice") as caught:
        key_secrets(given, environ)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("", None),
        ("   ", "cannot be run"),
        ("'", "cannot be run"),
        (f"/nonexistent/{SECRET}", "cannot be run"),
        (shlex.join([sys.executable, "-c", f"print({SECRET!r}); raise SystemExit(3)"]), "failed with exit code 3"),
        (shlex.join([sys.executable, "-c", "print()"]), "prints nothing"),
        (shlex.join([sys.executable, "-c", "while True: print('x' * 100000)"]), "prints more than"),
    ],
)
def test_a_command_that_fails_is_told_without_what_it_printed(
    capfd: pytest.CaptureFixture[str], command: str, problem: str | None
) -> None:
    if problem is None:
        assert key_secrets({"identity_command": command}, {}).identity is None
        return
    with pytest.raises(UsageError, match=problem) as caught:
        key_secrets({"identity_command": command}, {})
    assert SECRET not in f"{caught.value}{caught.value.hint}" and caught.value.__cause__ is None
    assert SECRET not in capfd.readouterr().out


def test_a_command_is_not_run_by_a_shell(tmp_path: Path) -> None:
    command = f"echo $HOME; touch {tmp_path / 'there'}"
    assert key_secrets({"passphrase_command": command}, {}).passphrase is not None
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["AGE-SECRET-KEY-1QQQ", "jsbackup-writer-1:x:y"])
def test_a_secret_given_for_a_file_name_is_not_repeated(name: str) -> None:
    with pytest.raises(UsageError, match="does not exist") as caught:
        key_secrets({"identity": name}, {})
    assert name not in str(caught.value)


def test_an_expected_signer_is_a_public_key() -> None:
    assert key_secrets({"expect_signer": "0a" * 32}, {}).expect_signer == "0a" * 32
    assert key_secrets({}, {"JSBACKUP_EXPECT_SIGNER": "0a" * 32}).expect_signer == "0a" * 32
    for wrong in ("0A" * 32, "0a", SECRET):
        with pytest.raises(UsageError, match="is not a public key") as caught:
            key_secrets({"expect_signer": wrong}, {})
        assert SECRET not in str(caught.value)


def test_where_a_new_writer_key_goes() -> None:
    assert new_writer_key_file({}, {}) is None
    assert new_writer_key_file({"writer_key": "$X/k"}, {"X": "/a"}) == Path("/a/k")
    assert new_writer_key_file({}, {"JSBACKUP_WRITER_KEY_FILE": "/b"}) == Path("/b")
