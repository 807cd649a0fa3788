"""A reader's key file that is lost or damaged: who can know it says it, and `repair --from` puts it back."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from jsbackup.repository.checks.verify_run import tend_readers
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import read_keys
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.crypto.signing import encode_writer_key
from jsbackup.repository.keep.holds import Hold, put_hold
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Shop, Typed
from tests.harness.backups import CREATED, FIRST, SECOND, store_backup

Type = Callable[..., Typed]

ME, OTHER, STRANGER = (age.age_identity(bytes([number]) * 32) for number in (1, 2, 3))
HOW = ("removed", "flipped", "cut", "exchanged")


def recipient(identity: age.Identity) -> age.Recipient:
    assert identity.recipient is not None
    return identity.recipient


@dataclass(frozen=True, slots=True)
class Vault:
    """An encrypted repository with one backup, its copy, and the files of its writer key and of an identity."""

    typed: Type
    repo: Path
    copy: Path
    writer: Path
    identity: Path

    def run(self, *line: str | Path, repo: Path | None = None) -> Typed:
        return self.typed(*line, "-r", repo or self.repo)

    def write(self, *line: str | Path) -> Typed:
        return self.run(*line, "--writer-key", self.writer)

    def read(self, *line: str | Path) -> Typed:
        return self.run(*line, "--identity", self.identity)

    def verify(self) -> Typed:
        return self.write("verify")

    def key_file(self, identity: age.Identity = ME, repo: Path | None = None) -> Path:
        (found,) = ((repo or self.repo) / "keys").glob(f"{recipient(identity).label}-*.age")
        return found

    def forget_records(self) -> None:
        """As a version without records leaves a repository."""
        for folder in (self.repo, self.copy):
            for path in (folder / "keys").glob("[!w]*.json"):
                path.unlink()


def make_vault(typed: Type, folder: Path, *readers: age.Identity) -> Vault:
    vault = Vault(typed, folder / "repo", folder / "copy", folder / "writer.key", folder / "me.key")
    new_keys = make_new_keys("00ff", [recipient(one) for one in readers], None, os.urandom)
    store_backup(
        Repository.create(LocalStore(vault.repo), repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    )
    vault.writer.write_text(encode_writer_key(new_keys.writer_key))
    vault.identity.write_text(f"{ME.text}\n")
    assert vault.write("copy", "--to-repo", vault.copy).code == 0
    return vault


@pytest.fixture
def vault(typed: Type, tmp_path: Path) -> Vault:
    return make_vault(typed, tmp_path, ME)


def damage(path: Path, how: str) -> bytes:
    """Return what was there."""
    before = path.read_bytes()
    data = bytearray(before)
    path.unlink()
    if how == "flipped":  # where any bytes may be: only the reader, and the record, can tell
        data[-20] ^= 1
    elif how == "exchanged":  # well-formed, and for the same reader
        data = bytearray(age.encrypt(b"nothing", [recipient(ME)]))
    elif how == "cut":
        del data[-20:]
    if how != "removed":
        path.write_bytes(data)
    return before


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("what", ["key", "record"])
def test_key_list_names_what_is_damaged(vault: Vault, what: str, how: str) -> None:
    path = vault.key_file() if what == "key" else vault.key_file().with_suffix(".json")
    assert check("key", vault.run("key", "list", "--json"))["damaged"] == []
    damage(path, how)
    listed = vault.run("key", "list", "--json")
    named = [one["key"] for one in check("key", listed)["damaged"]]
    assert listed.code == 0 and named == ([] if how == "removed" else [f"keys/{path.name}"])
    assert (f"damaged: keys/{path.name} " in vault.run("key", "list").out) == (how != "removed")


@pytest.mark.parametrize("how", HOW)
def test_with_the_writer_key_everything_says_it_and_repair_puts_it_back(vault: Vault, how: str) -> None:
    key = vault.key_file()
    assert vault.verify().code == 0 and "key file" not in vault.write("status").out
    before = damage(key, how)
    found = vault.verify()
    assert found.code == 14 and f"repository: keys/{key.name} is " in found.out
    assert "'jsbackup repair --from COPY' puts it back" in found.out
    assert vault.write("verify", FIRST).code == 14
    status = vault.write("status", "--json")
    breaches = {one["rule"]: one for one in check("status", status)["breaches"]}
    assert status.code == 17 and breaches["keys"]["about"] == f"keys/{key.name}"
    checks = check("doctor", vault.write("doctor", "--for", "backup", "--json"))["checks"]
    (problem,) = [one for one in checks if one["about"] == "readers"]
    assert problem["result"] == "problem" and key.name in problem["found"]
    tried = vault.write("repair", "--check", "--dry-run", "--from", vault.copy, "--json")
    (row,) = check("repair", tried)["readers"]
    assert (tried.code, row["key"], row["outcome"]) == (0, f"keys/{key.name}", "mended")
    assert not key.exists() or key.read_bytes() != before
    done = vault.write("repair", "--from", vault.copy)
    assert done.code == 0 and f"keys/{key.name} is " in done.out and ": put back" in done.out
    assert key.read_bytes() == before and vault.verify().code == 0
    assert vault.verify().code == 0 and vault.write("status").code == 0
    assert vault.write("repair", "--from", vault.copy, "--json").document["readers"] == []


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("how", HOW)
def test_a_reader_learns_what_to_do_and_repairs_with_the_identity_alone(vault: Vault, how: str, recorded: bool) -> None:
    """Also where no record is, as in repositories of older versions."""
    if not recorded:
        vault.forget_records()
    key = vault.key_file()
    before = damage(key, how)
    lost = vault.read("show", FIRST)
    assert lost.code == 14 and "'jsbackup repair --from COPY' puts it back from a copy" in lost.err
    assert not recorded or how != "removed" or f"keys/{key.name} is missing" in lost.err
    assert vault.read("repair", "--dry-run", "--from", vault.copy).code == 0
    assert not key.exists() or key.read_bytes() != before
    done = vault.read("repair", "--from", vault.copy, "--json")
    (row,) = check("repair", done)["readers"]
    assert (done.code, row["outcome"]) == (0, "mended")
    assert key.read_bytes() == before
    assert vault.read("verify", "--level", "data").code == 0 and vault.verify().code == 0


def test_what_a_copy_lacks_is_named_with_the_way_out(vault: Vault) -> None:
    key, theirs = vault.key_file(), vault.key_file(repo=vault.copy)
    before = damage(key, "removed")
    theirs.unlink()
    by_writer = vault.write("repair", "--from", vault.copy)
    assert by_writer.code == 3 and "from where you keep the folder keys/" in by_writer.out
    by_reader = vault.read("repair", "--from", vault.copy)
    assert by_reader.code == 14 and "from where you keep the folder keys/" in by_reader.err
    for data in (before[:-20], age.encrypt(b"nothing", [recipient(ME)]), b""):
        theirs.write_bytes(data)
        assert vault.write("repair", "--from", vault.copy).code == 3
        assert vault.read("repair", "--from", vault.copy).code == 14
        assert not key.exists()
    key.write_bytes(before)
    assert vault.verify().code == 0


def test_of_another_repository_nothing_is_put_back(vault: Vault, typed: Type, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    other = make_vault(typed, tmp_path / "else", ME)
    key = vault.key_file()
    for recorded in (True, False):
        if not recorded:
            vault.forget_records()
        key.unlink(missing_ok=True)
        assert vault.write("repair", "--from", other.repo).code == 3
        assert vault.read("repair", "--from", other.repo).code == 14
        assert not key.exists()


def test_a_repository_without_records_says_what_can_be_known(vault: Vault) -> None:
    """No key file at all, and one that is no age file any more. The next backup records those that are there."""
    vault.forget_records()
    key = vault.key_file()
    before = damage(key, "cut")
    key.write_bytes(b"not an age file")
    assert vault.verify().code == 14
    assert vault.write("repair", "--from", vault.copy).code == 0 and key.read_bytes() == before
    assert key.with_suffix(".json").exists()  # the writer has recorded it
    vault.forget_records()
    damage(key, "removed")
    found = vault.verify()
    assert found.code == 14 and "nobody can read the messages" in found.out
    assert "nobody can read the messages" in vault.run("key", "list").out
    assert vault.write("repair", "--from", vault.copy).code == 0
    assert key.read_bytes() == before and vault.verify().code == 0


def test_without_a_record_only_the_reader_can_tell_which_of_two_key_files_is_right(vault: Vault) -> None:
    vault.forget_records()
    key = vault.key_file()
    before = damage(key, "flipped")
    flipped = key.read_bytes()
    assert vault.verify().code == 0  # nobody who cannot open it can know
    lost = vault.write("repair", "--from", vault.copy)
    assert lost.code == 3 and "no record says which is right: lost: with --identity FILE" in lost.out
    assert key.read_bytes() == flipped
    assert vault.read("repair", "--from", vault.copy).code == 0 and key.read_bytes() == before
    # A damaged copy is the other way round.
    vault.forget_records()
    vault.key_file(repo=vault.copy).write_bytes(flipped)
    assert vault.write("repair", "--from", vault.copy).code == 3
    assert vault.read("repair", "--from", vault.copy).code == 0 and key.read_bytes() == before


def test_the_next_import_records_what_an_older_version_has_made(vault: Vault, tmp_path: Path) -> None:
    vault.forget_records()
    assert vault.read("export", FIRST, "orders", "--format", "nats-cli", "--output", tmp_path / "out").code == 0
    assert vault.write("import", tmp_path / "out").code == 0
    damage(vault.key_file(), "flipped")
    assert vault.verify().code == 14
    again = vault.write("import", tmp_path / "out", "--json")
    assert again.code == 14 and check("import", again)["result"] == "complete"
    assert any("SHA-256 differs" in note for note in again.document["notes"])


def test_the_other_reader_still_reads_and_is_told(vault: Vault, tmp_path: Path, typed: Type) -> None:
    (tmp_path / "two").mkdir()
    two = make_vault(typed, tmp_path / "two", ME, OTHER)
    damage(two.key_file(OTHER), "removed")
    assert two.read("verify", "--level", "data").code == 14
    done = two.read("repair", "--from", two.copy)
    assert done.code == 0 and two.read("verify", "--level", "data").code == 0


@pytest.mark.parametrize("how", HOW)
def test_a_copy_is_made_without_the_damaged_file_and_says_so(vault: Vault, tmp_path: Path, how: str) -> None:
    key = vault.key_file()
    damage(key, how)
    made = vault.write("copy", "--to-repo", tmp_path / "third", "--json")
    assert made.code == 14 and check("copy", made)["backups"] == [FIRST]
    assert any(key.name in note for note in made.document["notes"])
    assert not (tmp_path / "third" / "keys" / key.name).exists()
    assert vault.run("verify", "--writer-key", vault.writer, repo=tmp_path / "third").code == 14
    # The copy that has it keeps it, and says what the source lacks.
    again = vault.write("copy", "--to-repo", vault.copy)
    assert again.code == 14 and vault.key_file(repo=vault.copy).exists()


def test_a_copy_has_records_too_that_of_an_older_version_with_the_next_run(vault: Vault) -> None:
    record = vault.key_file(repo=vault.copy).with_suffix(".json")
    assert record.read_bytes() == vault.key_file().with_suffix(".json").read_bytes()
    vault.forget_records()
    assert vault.write("copy", "--to-repo", vault.copy).code == 0 and record.exists()
    assert not vault.key_file().with_suffix(".json").exists()  # nothing is written to the source
    assert vault.run("verify", "--writer-key", vault.writer, repo=vault.copy).code == 0


def test_keys_that_come_and_go_are_followed(vault: Vault, tmp_path: Path) -> None:
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    assert vault.verify().code == 0
    added = vault.key_file(OTHER)
    data = damage(added, "flipped")
    assert vault.verify().code == 14
    added.write_bytes(data)
    assert vault.run("key", "remove", recipient(OTHER).label).code == 0
    assert vault.verify().code == 0 and not list((vault.repo / "keys").glob(f"{added.stem}.*"))
    assert vault.read("key", "replace-writer", "--new-writer-key", tmp_path / "new").code == 0
    assert vault.run("verify", "--writer-key", tmp_path / "new").code == 0


def test_a_key_that_an_older_version_has_removed_is_removed_again(vault: Vault) -> None:
    """Such a version leaves the record."""
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    vault.key_file(OTHER).unlink()
    listed = vault.run("key", "list", "--json")
    assert check("key", listed)["missing"] == [
        f"keys/{one.stem}.age" for one in (vault.repo / "keys").glob(f"{recipient(OTHER).label}*.json")
    ]
    assert vault.verify().code == 14
    assert vault.run("key", "remove", recipient(OTHER).label).code == 0
    assert vault.verify().code == 0
    # The last one is not removed, lost or not.
    vault.key_file().unlink()
    assert vault.run("key", "remove", recipient(ME).label).code == 2


def test_a_record_that_someone_else_has_stored_counts_for_nothing(vault: Vault, typed: Type, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    other = make_vault(typed, tmp_path / "else", ME)
    record = vault.key_file().with_suffix(".json")
    before = record.read_bytes()
    for data in (other.key_file().with_suffix(".json").read_bytes(), before[:-9], b""):
        record.write_bytes(data)
        found = vault.verify()
        assert found.code == 14 and f"keys/{record.name}" in found.out
        assert vault.read("show", FIRST).code == 0
        assert vault.write("repair", "--from", vault.copy).code == 0
        assert record.read_bytes() == before and vault.verify().code == 0


def test_the_whole_folder_of_keys_comes_back(vault: Vault) -> None:
    for line in (vault.read, vault.write):
        shutil.rmtree(vault.repo / "keys")
        assert vault.verify().code == 14
        assert line("repair", "--from", vault.copy).code == 0
        assert vault.verify().code == 0 and vault.read("verify", "--level", "data").code == 0


def test_a_stranger_is_a_stranger(vault: Vault, tmp_path: Path) -> None:
    vault.identity.write_text(f"{STRANGER.text}\n")
    damage(vault.key_file(), "flipped")
    assert vault.read("show", FIRST).code == 12
    assert vault.read("repair", "--from", vault.copy).code == 12


def test_a_changed_copy_is_made_and_ends_with_14(typed: Type, tmp_path: Path) -> None:
    vault = make_vault(typed, tmp_path, ME, OTHER)
    to = ("--to-repo", vault.repo, "--writer-key", vault.writer)
    line = ("copy", FIRST, "--stream", "orders", "--rename", "*=N*", *to)
    assert vault.read(*line).code == 0
    damage(vault.key_file(OTHER), "removed")
    done = vault.read(*line, "--json")
    assert done.code == 14 and any("is missing" in note for note in check("copy", done)["notes"])
    assert "warning: keys/" in vault.read(*line).out


@pytest.mark.nats
def test_a_backup_is_made_and_ends_with_14(vault: Vault, shop: Shop) -> None:
    assert vault.write("backup", "-s", shop.url).code == 0
    damage(vault.key_file(), "removed")
    done = vault.write("backup", "-s", shop.url, "--json")
    assert done.code == 14 and check("backup", done)["result"] == "complete"
    assert any("is missing" in note for note in done.document["notes"])
    text = vault.write("backup", "-s", shop.url)
    assert "warning: keys/" in text.out and "is complete" in text.out
    lost = vault.read("restore", "latest", "-s", shop.url)
    assert lost.code == 14 and "jsbackup repair --from COPY" in lost.err


@pytest.mark.nats
def test_follow_goes_on_and_ends_with_14(vault: Vault, shop: Shop) -> None:
    damage(vault.key_file(), "removed")
    done = vault.write("follow", "-s", shop.url, "--for", "1s", "--json")
    assert done.code == 14 and check("follow", done)["result"] == "complete"
    assert any("is missing" in note for note in done.document["notes"])


def test_nothing_of_it_concerns_a_plain_repository(typed: Type, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "plain")
    repository = Repository.create(store, repository_id="00ff", created=CREATED, tool="t")
    store_backup(repository)
    put_hold(repository, Hold(FIRST, CREATED, "t", "why"))
    assert typed("verify", "-r", tmp_path / "plain").code == 0
    assert not (tmp_path / "plain" / "keys").exists()


@pytest.mark.parametrize("kind", ["age", "ssh-ed25519", "ssh-rsa"])
def test_the_identity_counts_more_than_a_record_of_damaged_bytes(vault: Vault, tmp_path: Path, kind: str) -> None:
    """Such as the next backup makes in a repository of an older version."""
    key = vault.key_file()
    if kind != "age":
        file = tmp_path / "ssh"
        subprocess.run(["ssh-keygen", "-q", "-t", kind.removeprefix("ssh-"), "-N", "", "-f", str(file)], check=True)
        assert vault.read("key", "add", "--encrypt-to", file.with_suffix(".pub").read_text()).code == 0
        writer = read_keys(vault.writer.read_bytes(), None, None, None)
        store_backup(Repository.open(LocalStore(vault.repo), writer), SECOND)
        assert vault.write("copy", "--to-repo", vault.copy).code == 0  # it brings readers with a newer backup
        vault = replace(vault, identity=file)
        (key,) = (vault.repo / "keys").glob(f"{kind}-*.age")
    before = key.read_bytes()
    key.write_bytes(before[:-5] + bytes([before[-5] ^ 1]) + before[-4:])
    key.with_suffix(".json").unlink()
    writer = read_keys(vault.writer.read_bytes(), None, None, None)
    assert tend_readers(Repository.open(LocalStore(vault.repo), writer)) == ()
    assert vault.verify().code == 0  # the record is that of the damaged bytes
    lost = vault.read("show", FIRST)
    assert lost.code == 14 and "'jsbackup repair --from COPY' puts it back" in lost.err
    done = vault.read("repair", "--from", vault.copy, "--json")
    (row,) = check("repair", done)["readers"]
    assert (done.code, row["key"], row["outcome"]) == (0, f"keys/{key.name}", "mended")
    assert key.read_bytes() == before and vault.verify().code == 0
    assert vault.read("show", FIRST).code == 0
    assert vault.read("repair", "--from", vault.copy, "--json").document["readers"] == []


def test_a_key_file_that_the_identity_opens_is_right_whatever_its_record_says(vault: Vault) -> None:
    """Put back by hand, after damaged bytes were recorded, and copied."""
    key = vault.key_file()
    before = key.read_bytes()
    key.write_bytes(before[:-5] + bytes([before[-5] ^ 1]) + before[-4:])
    damaged = key.read_bytes()
    key.with_suffix(".json").unlink()
    writer = read_keys(vault.writer.read_bytes(), None, None, None)
    assert tend_readers(Repository.open(LocalStore(vault.repo), writer)) == ()
    vault.key_file(repo=vault.copy).write_bytes(damaged)
    key.write_bytes(before)
    assert vault.verify().code == 14
    done = vault.read("repair", "--from", vault.copy, "--json")
    (row,) = check("repair", done)["readers"]
    assert (done.code, row["key"], row["outcome"]) == (0, f"keys/{key.name}", "mended")
    assert key.read_bytes() == before and vault.verify().code == 0


def test_the_last_key_file_that_is_whole_is_not_removed(typed: Type, tmp_path: Path) -> None:
    vault = make_vault(typed, tmp_path, ME, OTHER)
    damaged = vault.key_file(ME)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    other = recipient(OTHER).label
    refused = vault.run("key", "remove", other)
    assert refused.code == 2 and "the last key whose file is not damaged" in refused.err
    assert vault.key_file(OTHER).exists()
    assert vault.run("key", "remove", recipient(ME).label).code == 0
