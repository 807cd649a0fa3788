"""A reader's key file that is lost or damaged: who can know it says it, and `repair --from` puts it back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import read_keys
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.crypto.signing import encode_writer_key, sign_document
from jsbackup.repository.document import encode_document
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Shop, Typed
from tests.harness.backups import CREATED, FIRST, store_backup

Type = Callable[..., Typed]

ME, OTHER, STRANGER = (age.age_identity(bytes([number]) * 32) for number in (1, 2, 3))


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

    def list_file(self, repo: Path | None = None) -> Path:
        """Where the list of readers is."""
        (found,) = ((repo or self.repo) / "keys").glob("readers-*.json")
        return found

    def write(self, *line: str | Path) -> Typed:
        return self.run(*line, "--writer-key", self.writer)

    def read(self, *line: str | Path) -> Typed:
        return self.run(*line, "--identity", self.identity)

    def verify(self) -> Typed:
        return self.write("verify")

    def key_file(self, identity: age.Identity = ME, repo: Path | None = None) -> Path:
        (found,) = ((repo or self.repo) / "keys").glob(f"{recipient(identity).label}-*.age")
        return found


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


@pytest.mark.parametrize("how", ["removed", "flipped", "exchanged"])
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
    assert vault.write("status").code == 0
    assert vault.write("repair", "--from", vault.copy, "--json").document["readers"] == []


@pytest.mark.parametrize(("how", "list_too"), [("removed", False), ("cut", False), ("flipped", True)])
def test_a_reader_learns_what_to_do_and_repairs_with_the_identity_alone(vault: Vault, how: str, list_too: bool) -> None:
    """Also where the list of readers is lost with the key file."""
    key = vault.key_file()
    before = damage(key, how)
    if list_too:
        damage(vault.list_file(), "removed")
    lost = vault.read("show", FIRST)
    assert lost.code == 14 and "'jsbackup repair --from COPY' puts it back from a copy" in lost.err
    assert list_too or how != "removed" or f"keys/{key.name} is missing" in lost.err
    assert vault.read("repair", "--dry-run", "--from", vault.copy).code == 0
    assert not key.exists() or key.read_bytes() != before
    done = vault.read("repair", "--from", vault.copy, "--json")
    rows = check("repair", done)["readers"]
    assert done.code == 0 and [row["outcome"] for row in rows] == ["mended"] * (1 + list_too)
    assert key.read_bytes() == before and vault.list_file().read_bytes() == vault.list_file(vault.copy).read_bytes()
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
    for path in (key, vault.list_file()):
        path.unlink()
        assert vault.write("repair", "--from", other.repo).code == 3
        assert vault.read("repair", "--from", other.repo).code == 14
        assert not key.exists()
    assert [path.name[:6] for path in (vault.repo / "keys").iterdir()] == ["writer"]


def test_a_copy_is_made_without_the_damaged_file_and_says_so(vault: Vault, tmp_path: Path) -> None:
    key = vault.key_file()
    damage(key, "flipped")
    made = vault.write("copy", "--to-repo", tmp_path / "third", "--json")
    assert made.code == 14 and check("copy", made)["backups"] == [FIRST]
    assert any(key.name in note for note in made.document["notes"])
    assert not (tmp_path / "third" / "keys" / key.name).exists()
    assert vault.run("verify", "--writer-key", vault.writer, repo=tmp_path / "third").code == 14
    # The copy that has it keeps it, and says what the source lacks.
    again = vault.write("copy", "--to-repo", vault.copy)
    assert again.code == 14 and vault.key_file(repo=vault.copy).exists()


def test_keys_that_come_and_go_are_followed(vault: Vault, tmp_path: Path) -> None:
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    assert vault.verify().code == 0
    added = vault.key_file(OTHER)
    data = damage(added, "flipped")
    assert vault.verify().code == 14
    added.write_bytes(data)
    assert vault.run("key", "remove", recipient(OTHER).label).code == 12
    assert vault.read("key", "remove", recipient(OTHER).label).code == 0
    assert vault.verify().code == 0 and not list((vault.repo / "keys").glob(f"{added.stem}.*"))
    assert vault.list_file().name == "readers-0000000003.json"
    assert vault.read("key", "replace-writer", "--new-writer-key", tmp_path / "new").code == 0
    assert vault.run("verify", "--writer-key", tmp_path / "new").code == 0


def test_a_key_file_that_no_list_names_is_seen_and_taken_away_without_a_key(vault: Vault) -> None:
    """An older one, put back by whoever has the store; or what an interrupted `key add` has left."""
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    key = vault.key_file(OTHER)
    data = key.read_bytes()
    assert vault.read("key", "remove", recipient(OTHER).label).code == 0
    key.write_bytes(data)
    found = vault.verify()
    assert found.code == 14 and f"keys/{key.name} is not in the list of readers" in found.out
    assert vault.write("status").code == 17
    listed = check("key", vault.run("key", "list", "--json"))
    assert [row["key"] for row in listed["damaged"]] == [f"keys/{key.name}"]
    assert f"warning: keys/{key.name} is not in the list of readers" in vault.run("key", "list").out
    assert vault.write("repair", "--from", vault.copy, "--json").document["readers"] == []
    assert vault.run("key", "remove", recipient(OTHER).label).code == 0 and not key.exists()
    assert vault.verify().code == 0
    # Added again, such a reader has another key file.
    key.write_bytes(data)
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    assert len(list((vault.repo / "keys").glob(f"{recipient(OTHER).label}-*.age"))) == 2


def test_a_list_that_someone_else_has_signed_counts_for_nothing(vault: Vault, typed: Type, tmp_path: Path) -> None:
    """Nor does that of the writer, who could lock all others out."""
    (tmp_path / "else").mkdir()
    other = make_vault(typed, tmp_path / "else", ME)
    path = vault.list_file()
    before = path.read_bytes()
    key = read_keys(vault.writer.read_bytes(), None, None, None).writer
    assert key is not None
    empty = encode_document({"format": 1, "required_features": [], "readers": {}}, "test")
    by_writer = sign_document(key.signatory, "00ff", f"keys/{path.name}", empty)
    for data in (other.list_file().read_bytes(), by_writer, before[:-9], b""):
        path.write_bytes(data)
        found = vault.verify()
        assert found.code == 14 and f"keys/{path.name}" in found.out
        assert vault.read("show", FIRST).code == 0
        assert vault.write("repair", "--from", vault.copy).code == 0
        assert path.read_bytes() == before and vault.verify().code == 0


def test_an_older_list_of_a_copy_is_not_put_back(vault: Vault) -> None:
    """It may name a reader who was removed since."""
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    path = vault.list_file()
    before = path.read_bytes()
    damage(path, "flipped")
    assert vault.write("repair", "--from", vault.copy).code == 3
    path.write_bytes(before)
    assert vault.verify().code == 0
    # Without any list, the next `key add` makes one, of those whom it adds.
    path.unlink()
    vault.key_file(OTHER).unlink()
    assert vault.read("key", "add", "--encrypt-to", recipient(OTHER).label).code == 0
    assert f"keys/{vault.key_file(ME).name} is not in the list of readers" in vault.verify().out


def test_the_whole_folder_of_keys_comes_back(vault: Vault) -> None:
    for line in (vault.read, vault.write):
        shutil.rmtree(vault.repo / "keys")
        assert vault.verify().code == 14
        assert line("repair", "--from", vault.copy).code == 0
        assert vault.verify().code == 0 and vault.read("verify", "--level", "data").code == 0


def test_without_a_key_of_a_reader_damage_is_not_told_from_a_wrong_key(vault: Vault, tmp_path: Path) -> None:
    vault.identity.write_text(f"{STRANGER.text}\n")
    damage(vault.key_file(), "flipped")
    assert vault.read("show", FIRST).code == 12
    assert vault.read("repair", "--from", vault.copy).code == 12


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


def test_the_last_key_file_that_is_whole_is_not_removed(typed: Type, tmp_path: Path) -> None:
    vault = make_vault(typed, tmp_path, ME, OTHER)
    damaged = vault.key_file(ME)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    other = recipient(OTHER).label
    vault.identity.write_text(f"{OTHER.text}\n")
    refused = vault.read("key", "remove", other)
    assert refused.code == 2 and "the last key whose file is not damaged" in refused.err
    assert vault.key_file(OTHER).exists()
    assert vault.read("key", "remove", recipient(ME).label).code == 0
