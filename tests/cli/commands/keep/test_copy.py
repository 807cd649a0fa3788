"""`copy` as it is typed, and what `list` shows, on repositories in folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.cli.commands.keep.copy import TO_OPTIONS
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup

Type = Callable[..., Typed]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two backups, the second one tagged."""
    repository = make_repository(LocalStore(tmp_path / "repo"))
    manifest = store_backup(repository, FIRST)
    repository.commit(replace(manifest, id=SECOND, tags={"kind": "nightly", "host": "a"}))
    return tmp_path / "repo"


def opened(folder: Path) -> Repository:
    return Repository.open(LocalStore(folder))


# --- copy ---


def test_all_backups_are_copied_into_an_empty_location_and_no_more_the_next_time(
    typed: Type, repo: Path, tmp_path: Path
) -> None:
    line = ["copy", "-r", repo, "--to-repo", tmp_path / "new", "--json"]
    done = typed(*line)
    assert done.code == 0
    document = check("copy", done)
    assert document["backups"] == [FIRST, SECOND] and document["copied_objects"] > 5
    assert opened(tmp_path / "new").backups() == [FIRST, SECOND]
    assert opened(tmp_path / "new").descriptor.id != opened(repo).descriptor.id
    assert typed("verify", "-r", tmp_path / "new", "--level", "data").code == 0
    again = check("copy", typed(*line))
    assert (again["backups"], again["present"], again["copied_objects"]) == ([], [FIRST, SECOND], 0)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("copy 1999 -r REPO --to-repo NEW", 2, "no backup starts with '1999'"),
        ("copy -r REPO", 2, "missing option '--to-repo'"),
        ("copy -r REPO --to-repo REPO", 2, "would be copied into itself"),
        ("copy -r REPO --to-repo OTHER/link", 2, "would be copied into itself"),
        (
            "copy -r REPO --to-repo OTHER/link/inside",
            2,
            "or one of the two is inside the other",
        ),
        ("copy -r REPO --to-repo OTHER", 2, "is not empty, and is not a repository"),
        ("copy -r NEW --to-repo REPO", 10, "no repository at"),
        ("copy -r REPO --to-repo NEW --to-writer-key OTHER/notes.txt", 2, "writer key"),
    ],
)
def test_what_cannot_be_copied_is_said_and_nothing_is_made(
    typed: Type, repo: Path, tmp_path: Path, line: str, code: int, said: str
) -> None:
    (tmp_path / "OTHER").mkdir()
    (tmp_path / "OTHER" / "notes.txt").write_text("mine")
    (tmp_path / "OTHER" / "link").symlink_to(repo)
    words = [word.replace("REPO", str(repo)) for word in line.split()]
    words = [word.replace("NEW", str(tmp_path / "new")).replace("OTHER", str(tmp_path / "OTHER")) for word in words]
    done = typed(*words)
    assert done.code == code and said in done.err
    assert not (tmp_path / "new" / "backups").exists()
    assert sorted(path.name for path in (tmp_path / "OTHER").iterdir()) == ["link", "notes.txt"]


def test_a_backup_that_cannot_be_copied_is_named_and_the_others_are(typed: Type, repo: Path, tmp_path: Path) -> None:
    (repo / layout.manifest_key(FIRST)).write_bytes(b"{}")
    line = ["-r", repo, "--to-repo", tmp_path / "new"]
    done = typed("copy", *line)
    assert done.code == 3
    assert done.out.splitlines()[0].startswith(f"not copied: {FIRST}: ")
    document = check("copy", typed("copy", *line, "--json"))
    assert [(one["backup"], one["code"]) for one in document["failed"]] == [(FIRST, 14)]
    assert document["present"] == [SECOND]
    alone = typed("copy", FIRST, *line)
    assert alone.code == 14 and alone.err.startswith("error: ")


def test_known_damage_of_backups_that_are_there_ends_the_copy_with_14(typed: Type, repo: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    line = ["copy", "-r", repo, "--to-repo", target]
    assert typed(*line).code == 0
    next(path for path in (target / "segments").rglob("*") if path.is_file()).unlink()
    assert typed("verify", "-r", target).code == 14
    told = typed(*line)
    assert told.code == 14 and f"'jsbackup repair --from {repo} -r {target}'" in told.out
    document = check("copy", typed(*line, "--json"))
    assert document["damaged"] == document["present"] == [FIRST, SECOND]
    assert typed("repair", "--from", repo, "-r", target).code == 0
    assert check("copy", typed(*line, "--json"))["damaged"] == []


def test_holds_are_not_copied_and_the_copy_says_which(typed: Type, repo: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    line = ["copy", "-r", repo, "--to-repo", target]
    assert typed("hold", FIRST, SECOND, "--reason", "audit", "-r", repo).code == 0
    assert f"note: held in {repo}, not in {target}: {FIRST}, {SECOND}; " in typed(*line).out
    assert typed("hold", FIRST, "-r", target).code == 0
    told = check("copy", typed(*line, "--json"))
    assert [one for one in told["notes"] if f"not in {target}: {SECOND}; a hold is of one repository" in one]
    assert typed("hold", SECOND, "-r", target).code == 0
    assert typed(*line).out.startswith("copied 0 backups")


def test_the_second_repository_has_options_and_variables_of_its_own(repo: Path, tmp_path: Path) -> None:
    names = {option.name for option in TO_OPTIONS}
    assert {"to_s3_endpoint", "to_s3_path_style", "to_s3_ca", "to_writer_key", "to_expect_signer"} <= names
    line: list[str | Path] = ["copy", "-r", repo, "--to-repo", tmp_path / "new"]
    # A variable of the first one is not the second one's, nor the other way round.
    done = in_shell(*line, JSBACKUP_TO_S3_ENDPOINT="ftp://nowhere", JSBACKUP_S3_ENDPOINT="")
    assert done.code == 2 and "S3 endpoint" in done.err
    assert not (tmp_path / "new").exists()
    done = in_shell(*line, "--to-s3-endpoint", "ftp://nowhere")
    assert done.code == 2 and "S3 endpoint" in done.err
    assert in_shell(*line, "--to-s3-path-style", JSBACKUP_TO_S3_REGION="here").code == 0


def test_an_encrypted_repository_is_copied_without_a_key_that_reads_messages(
    typed: Type, repo: Path, tmp_path: Path
) -> None:
    identity = age.age_identity(bytes(range(32)))
    assert identity.recipient is not None
    (tmp_path / "identity").write_text(f"{identity.text}\n")
    secret, replica = tmp_path / "secret", tmp_path / "replica"
    made = ["--encrypt-to", identity.recipient.label, "--writer-key", tmp_path / "key"]
    assert typed("init", "-r", secret, *made).code == 0
    # From a plain repository into one that is there, and encrypted.
    into = ["--to-repo", secret, "--to-writer-key", tmp_path / "key"]
    refused = typed("copy", "-r", repo, "--to-repo", secret)
    assert refused.code == 12 and str(secret) in refused.err and "--to-writer-key FILE" in refused.err
    assert typed("copy", "-r", repo, *into).code == 0
    assert check("copy", typed("copy", "-r", repo, *into, "--json"))["present"] == [FIRST, SECOND]
    # From there into a replica.
    line = ["copy", "-r", secret, "--writer-key", tmp_path / "key", "--to-repo"]
    assert typed(*line, replica).code == 0
    assert opened(replica).descriptor.id == opened(secret).descriptor.id
    readers = ["--writer-key", tmp_path / "key", "--identity", tmp_path / "identity"]
    assert typed("verify", "-r", replica, "--level", "data", *readers).code == 0
    # And out of it, for which there has to be a key and the word.
    plain = ["copy", "-r", replica, *readers, "--to-repo", tmp_path / "plain"]
    make_repository(LocalStore(tmp_path / "plain"))
    refused = typed(*plain)
    assert refused.code == 2 and "--decrypt" in refused.err
    assert typed(*line, tmp_path / "plain", "--decrypt").code == 12
    assert typed(*plain, "--decrypt").code == 0
    assert typed("verify", "-r", tmp_path / "plain", "--level", "data").code == 0


# --- list ---


def test_backups_are_listed_by_tag_and_by_number(typed: Type, repo: Path) -> None:
    def listed(*line: str) -> list[str]:
        return [one["backup"] for one in check("list", typed("list", "-r", repo, "--json", *line))["backups"]]

    assert listed() == listed("--last", "5") == [FIRST, SECOND]
    assert listed("--last", "1") == [SECOND]
    assert listed("--tag", "kind") == listed("--tag", "kind=nightly", "--tag", "host=a") == [SECOND]
    assert listed("--tag", "kind=weekly") == listed("--tag", "kind", "--tag", "other") == []
    assert typed("list", "-r", repo, "--last", "0").code == 2
    assert typed("list", "-r", repo, "--tag", "no=such").out.splitlines()[-1] == "no backup matches"
    assert typed("list", "-r", repo, "--tag", "=x").code == 2


def test_repositories_of_several_profiles_are_copied(typed: Type, repo: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("".join(f'[profiles.{name}]\nrepo = "{repo}"\n' for name in ("a", "b")))
    done = typed("copy", "--config", config, "--profile", "*", "--to-repo", tmp_path / "new")
    assert done.code == 0 and done.out.endswith("2 profiles: a done, b done\n")
