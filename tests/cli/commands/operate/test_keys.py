"""`init` with keys, `key`, and the file of a writer key. What keys do is in tests/repository/crypto/test_keys.py."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository.crypto import age
from tests.cli.test_json import check
from tests.cli.typed import Typed

Type = Callable[..., Typed]

ME, OTHER = age.age_identity(bytes(32)), age.age_identity(bytes([1]) * 32)


def recipient(identity: age.Identity) -> str:
    assert identity.recipient is not None
    return identity.recipient.label


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where files with keys are; the shell of the developer gives none."""
    for name in os.environ:
        if name.startswith("JSBACKUP_"):
            monkeypatch.delenv(name)
    (tmp_path / "me").write_text(f"{ME.text}\n")
    (tmp_path / "other").write_text(f"{OTHER.text}\n")
    (tmp_path / "nobody").write_text("# no recipient\n")
    (tmp_path / "words").write_text("correct horse\n")
    return tmp_path


@pytest.fixture
def repo(typed: Type, keys: Path) -> Path:
    made = typed("init", "-r", keys / "repo", "--encrypt-to", recipient(ME), "--writer-key", keys / "w", "--json")
    document = check("init", made)
    assert made.code == 0 and document["encrypted"] is True and document["writer_key"] == str(keys / "w")
    return keys / "repo"


# --- init ---


def test_the_writer_key_is_the_users_alone_and_never_printed(typed: Type, repo: Path, keys: Path) -> None:
    assert stat.S_IMODE((keys / "w").stat().st_mode) == 0o600
    line = (keys / "w").read_text().splitlines()[1]
    for command in (["list"], ["key", "list"], ["verify"], ["list", "--json"]):
        done = typed(*command, "-r", repo, "--writer-key", keys / "w", "-vv")
        assert done.code == 0 and not any(secret in done.out + done.err for secret in line.split(":")[3:5])


def test_a_file_that_exists_is_left_alone_and_nothing_is_made(typed: Type, keys: Path) -> None:
    (keys / "w").write_text("precious")
    done = typed("init", "-r", keys / "repo", "--sign", "--writer-key", keys / "w")
    assert done.code == 2 and "exists already" in done.err
    assert (keys / "w").read_text() == "precious" and not (keys / "repo").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--sign"],
        ["--encrypt-to", recipient(ME)],
        ["--writer-key", "{keys}/w"],
        ["--encrypt-to", "me", "--writer-key", "{keys}/w"],
        ["--encrypt-to", "{keys}/nobody", "--writer-key", "{keys}/w"],
        ["--encrypt-to", recipient(ME), "--encrypt-to", recipient(ME), "--writer-key", "{keys}/w"],
        ["--encrypt-to", str(ME.text), "--writer-key", "{keys}/w"],
        ["--encrypt-passphrase-file", "/nonexistent", "--writer-key", "{keys}/w"],
        ["--sign", "--writer-key", "{keys}/no/w"],
    ],
)
def test_what_makes_no_sense_makes_nothing(typed: Type, keys: Path, options: list[str]) -> None:
    done = typed("init", "-r", keys / "repo", *(option.format(keys=keys) for option in options))
    assert done.code == 2 and not (keys / "repo").exists() and not (keys / "w").exists()
    assert str(ME.text) not in done.out + done.err


def test_a_signed_repository_is_made_and_pinned(typed: Type, keys: Path) -> None:
    made = check("init", typed("init", "-r", keys / "r", "--sign", "--writer-key", keys / "w", "--json"))
    assert made["encrypted"] is False
    assert typed("list", "-r", keys / "r", "--expect-signer", made["authority"]).code == 0
    assert typed("list", "-r", keys / "r", "--expect-signer", "0" * 64).code == 14
    pinned = typed("verify", "-r", keys / "r", "--expect-signer", made["authority"])
    assert pinned.code == 0 and "--expect-signer" not in pinned.err
    assert "status will not know of this run" in pinned.err  # which nobody without the writer key can record
    assert "--expect-signer" in typed("verify", "-r", keys / "r").err
    assert typed("list", "-r", keys / "r", "--identity", keys / "me").code == 2


def test_recipients_may_be_in_a_file(typed: Type, keys: Path) -> None:
    (keys / "team").write_text(f"# public key: of the team\n{recipient(ME)}\n\n{recipient(OTHER)}\n")
    assert typed("init", "-r", keys / "r", "--encrypt-to", keys / "team", "--writer-key", keys / "w").code == 0
    assert all(typed("list", "-r", keys / "r", "--identity", keys / who).code == 0 for who in ("me", "other"))


# --- key ---


def test_readers_are_added_listed_and_removed(typed: Type, repo: Path, keys: Path) -> None:
    def readers() -> list[str]:
        return [one["for"] for one in check("key", typed("key", "list", "-r", repo, "--json"))["readers"]]

    line: list[str | Path] = ["key", "add", "-r", repo, "--identity", keys / "me", "--json"]
    assert check("key", typed(*line, "--encrypt-to", recipient(OTHER)))["added"]
    assert set(readers()) == {recipient(ME), recipient(OTHER)}
    assert typed(*line, "--encrypt-to", recipient(OTHER)).code == 2
    assert typed("list", "-r", repo, "--identity", keys / "other").code == 0
    done = typed("key", "remove", recipient(ME), "-r", repo, "--identity", keys / "me")
    assert done.code == 0 and "can still read everything" in " ".join(done.out.split())
    assert readers() == [recipient(OTHER)]
    assert typed("list", "-r", repo, "--identity", keys / "me").code == 12
    assert typed("key", "remove", "age1", "-r", repo, "--json").code == 2, "it is the last one"


@pytest.mark.slow
def test_a_passphrase_reads_and_is_never_printed(typed: Type, keys: Path) -> None:
    """Each time it takes a second of work, by intent."""
    repo, words = keys / "repo", keys / "words"
    made = typed("init", "--encrypt-passphrase-file", words, "-r", repo, "-vv", "--writer-key", keys / "w")
    opened = typed("list", "-r", repo, "-vv", "--passphrase-command", f"cat {words}")
    for done in (made, opened):
        assert done.code == 0 and "correct horse" not in done.out + done.err
    (reader,) = check("key", typed("key", "list", "-r", repo, "--json"))["readers"]
    assert reader["for"].startswith("passphrase-")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["key", "add", "--encrypt-to", recipient(OTHER)], 12),
        (["key", "add", "--encrypt-to", recipient(OTHER), "--writer-key", "{keys}/w"], 12),
        (["key", "add", "--encrypt-to", recipient(OTHER), "--identity", "{keys}/other"], 12),
        (["key", "remove", "nothing"], 2),
        (["key", "remove", recipient(ME), "--writer-key", "{keys}/w"], 2),
        (["key", "replace-writer"], 2),
        (["key", "replace-writer", "--new-writer-key", "{keys}/w2", "--writer-key", "{keys}/w"], 12),
        (["key", "replace-writer", "--new-writer-key", "{keys}/w", "--identity", "{keys}/me"], 2),
        (["list", "--writer-key", "{keys}/me"], 2),
    ],
)
def test_what_cannot_be_done_is_said(typed: Type, repo: Path, keys: Path, line: list[str], code: int) -> None:
    before = {file: file.read_bytes() for file in keys.rglob("*") if file.is_file()}
    done = typed(*(word.format(keys=keys) for word in line), "-r", repo)
    assert done.code == code, done
    assert {file: file.read_bytes() for file in keys.rglob("*") if file.is_file()} == before
    assert not any(str(one.text) in done.err for one in (ME, OTHER))


def test_a_writer_key_is_replaced(typed: Type, repo: Path, keys: Path) -> None:
    line: list[str | Path] = ["key", "replace-writer", "-r", repo, "--identity", keys / "me", "--json"]
    done = check("key", typed(*line, "--new-writer-key", keys / "w2"))
    assert stat.S_IMODE((keys / "w2").stat().st_mode) == 0o600
    writers = check("key", typed("key", "list", "-r", repo, "--json"))["writers"]
    assert [(one["signer"] == done["signer"], one["replaced"]) for one in writers] == [(False, True), (True, False)]
    assert "replaced" in typed("key", "list", "-r", repo).out
