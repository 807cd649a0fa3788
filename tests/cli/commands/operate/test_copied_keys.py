"""Keys that were added, removed or replaced in a repository: a later copy brings them to its replica, or says it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.keys import read_keys
from jsbackup.repository.keep.holds import Hold, put_hold
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.commands.operate.test_reader_keys import ME, OTHER, Vault, damage, make_vault, recipient
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import CREATED, FIRST, SECOND, store_backup

Type = Callable[..., Typed]

OTHER_LABEL = recipient(OTHER).label
THIRD = "20261121T014700Z-000003"


@pytest.fixture
def vault(typed: Type, tmp_path: Path) -> Vault:
    return make_vault(typed, tmp_path, ME)


@pytest.fixture
def signed(typed: Type, tmp_path: Path) -> Vault:
    """A repository that is signed only, and its replica; without backups."""
    vault = Vault(typed, tmp_path / "repo", tmp_path / "copy", tmp_path / "writer.key", tmp_path / "none")
    assert typed("init", "-r", vault.repo, "--sign", "--writer-key", vault.writer).code == 0
    back_up(vault, FIRST)
    assert copied(vault).code == 0
    return vault


def back_up(vault: Vault, backup: str, folder: Path | None = None) -> None:
    keys = read_keys(vault.writer.read_bytes(), None, None, None)
    store_backup(Repository.open(LocalStore(folder or vault.repo), keys), backup)


def copied(vault: Vault, *more: str | Path) -> Typed:
    return vault.write("copy", "--to-repo", vault.copy, *more)


def replaced(vault: Vault, *, folder: Path | None = None) -> Vault:
    """Replace the writer key, and return the vault with the new one."""
    key = vault.writer.with_name(f"writer-{os.urandom(4).hex()}.key")
    by = ["--identity", vault.identity] if vault.identity.exists() else ["--writer-key", vault.writer]
    assert vault.run("key", "replace-writer", "--new-writer-key", key, *by, repo=folder).code == 0
    return replace(vault, writer=key)


def keys_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "keys").iterdir()}


def of_copy(vault: Vault, *line: str | Path) -> Typed:
    return vault.run(*line, "--writer-key", vault.writer, repo=vault.copy)


@pytest.mark.parametrize("kind", ["vault", "signed"])
def test_a_new_writer_is_known_in_the_copy_too(kind: str, request: pytest.FixtureRequest) -> None:
    new = replaced(request.getfixturevalue(kind))
    back_up(new, SECOND)
    done = copied(new, "--json")
    assert done.code == 0 and check("copy", done)["backups"] == [SECOND]
    (note,) = done.document["notes"]
    assert "keys/writer-" in note and str(new.copy) in note
    assert keys_in(new.copy) == keys_in(new.repo)
    assert of_copy(new, "verify").code == 0 and of_copy(new, "show", FIRST).code == 0
    assert of_copy(new, "show", SECOND).code == 0
    assert copied(new, "--json").document["notes"] == []


def test_a_catalog_of_the_copy_outlives_its_writer(signed: Vault) -> None:
    """The new writer's record does not name it; the copy has forgotten a backup, and its source has not."""
    back_up(signed, SECOND)
    assert copied(signed).code == 0 and of_copy(signed, "forget", FIRST).code == 0
    new = replaced(signed)
    back_up(new, THIRD)
    assert copied(new).code == 0
    assert of_copy(new, "verify").code == 0


def test_a_damaged_record_of_a_writer_is_a_breach(vault: Vault) -> None:
    damage(next((vault.repo / "keys").glob("writer-*.json")), "flipped")
    done = vault.write("status")
    assert done.code == 17 and "nothing that this writer has signed can be read" in done.out


def test_what_a_replaced_writer_has_signed_since_is_not_copied(vault: Vault) -> None:
    """The copy would not read it. Its key was replaced in the copy alone."""
    new = replaced(vault, folder=vault.copy)
    back_up(vault, SECOND)
    before = {path for path in vault.copy.rglob("*") if path.is_file() and "locks" not in path.parts}
    done = copied(vault, "--json")
    (one,) = [row for row in check("copy", done)["failed"] if row["backup"] == SECOND]
    assert done.code == 3 and "signed by a key that had been replaced" in one["reason"]
    assert {path for path in vault.copy.rglob("*") if path.is_file() and "locks" not in path.parts} == before
    assert of_copy(new, "verify").code == 0
    # As the hint says. The copy has a new one already, which its source has not.
    newest = replaced(vault)
    assert copied(newest).code == 0 and of_copy(newest, "show", SECOND).code == 0
    assert of_copy(newest, "verify").code == 0


@pytest.mark.parametrize("what", ["backup", "hold", "damage"])
def test_what_only_the_copy_has_stays_readable(what: str, signed: Vault) -> None:
    """Such as backups that were forgotten in the source: the new writer's record does not name them."""
    if what == "backup":
        back_up(signed, SECOND, signed.copy)
    elif what == "hold":
        keys = read_keys(signed.writer.read_bytes(), None, None, None)
        put_hold(Repository.open(LocalStore(signed.copy), keys), Hold(FIRST, CREATED, "t", "why"))
    else:
        segment = next((signed.copy / "segments").rglob("*.parquet*"))
        whole = damage(segment, "flipped")
        assert of_copy(signed, "verify").code == 14
        segment.write_bytes(whole)
    before = keys_in(signed.copy)
    new = replaced(signed)
    refused = copied(new)
    assert refused.code == 16 and "jsbackup key replace-writer" in refused.err and keys_in(signed.copy) == before
    # As the hint says.
    replaced(signed, folder=signed.copy)
    assert copied(new).code == (14 if what == "damage" else 0)  # known to be damaged until it is verified again
    assert of_copy(new, "verify").code == 0 and copied(new).code == 0
    assert of_copy(new, "show", SECOND if what == "backup" else FIRST).code == 0


def added_and_copied(vault: Vault) -> None:
    """Another reader, whom the copy has, too."""
    assert vault.read("key", "add", "--encrypt-to", OTHER_LABEL).code == 0
    assert copied(vault).code == 0 and keys_in(vault.copy) == keys_in(vault.repo)


def test_a_new_reader_reads_the_copy_too(vault: Vault, tmp_path: Path) -> None:
    (tmp_path / "other.key").write_text(f"{OTHER.text}\n")
    assert vault.read("key", "add", "--encrypt-to", OTHER_LABEL).code == 0
    done = copied(vault, "--identity", tmp_path / "other.key")  # which does not open the copy yet
    assert done.code == 0 and f"note: brought to {vault.copy}: keys/{OTHER_LABEL}" in done.out
    assert f"can read {vault.copy} from now on" in done.err
    assert keys_in(vault.copy) == keys_in(vault.repo)
    assert vault.run("verify", "--level", "data", "--identity", tmp_path / "other.key", repo=vault.copy).code == 0
    assert of_copy(vault, "verify").code == 0
    again = copied(vault)
    assert again.code == 0 and "note" not in again.out


def test_a_removed_reader_is_named_and_not_removed(vault: Vault) -> None:
    added_and_copied(vault)
    assert vault.read("key", "remove", OTHER_LABEL).code == 0
    done = copied(vault, "--json")
    (note,) = check("copy", done)["notes"]
    assert done.code == 0 and f"keys/{OTHER_LABEL}" in note and "'jsbackup key remove'" in note
    assert f"note: {note}" in copied(vault).out
    assert vault.key_file(OTHER, vault.copy).exists() and of_copy(vault, "verify").code == 14
    assert vault.run("key", "remove", OTHER_LABEL, repo=vault.copy).code == 0 and of_copy(vault, "verify").code == 0
    assert copied(vault, "--json").document["notes"] == []
    assert keys_in(vault.copy) == keys_in(vault.repo)


def test_a_lost_key_file_is_no_removed_reader(vault: Vault) -> None:
    """The copy keeps it: `repair --from` needs it."""
    damage(vault.key_file(), "removed")
    done = copied(vault, "--json")
    assert done.code == 14 and not any("key remove" in note for note in done.document["notes"])
    damage(vault.list_file(), "removed")
    done = copied(vault, "--json")
    assert done.code == 14 and not any("key remove" in note for note in done.document["notes"])
    assert vault.key_file(repo=vault.copy).exists()


def test_a_damaged_key_file_is_not_brought(vault: Vault) -> None:
    assert vault.read("key", "add", "--encrypt-to", OTHER_LABEL).code == 0
    damage(vault.key_file(OTHER), "exchanged")
    assert copied(vault).code == 14
    assert not list((vault.copy / "keys").glob(f"{OTHER_LABEL}*.age"))


@pytest.mark.parametrize("how", ["flipped", "removed"])
def test_without_a_sound_list_no_key_file_is_brought(vault: Vault, how: str) -> None:
    assert vault.read("key", "add", "--encrypt-to", OTHER_LABEL).code == 0
    damage(vault.list_file(), how)
    damage(vault.key_file(OTHER), "exchanged")
    assert copied(vault).code == 14
    assert not list((vault.copy / "keys").glob(f"{OTHER_LABEL}*"))


def test_a_removed_reader_does_not_come_back_with_a_newer_backup_of_a_copy(vault: Vault, tmp_path: Path) -> None:
    """Nor in another replica, which got the newer list."""
    added_and_copied(vault)
    assert vault.read("key", "remove", OTHER_LABEL).code == 0
    before = keys_in(vault.repo)
    third = tmp_path / "third"
    assert vault.write("copy", "--to-repo", third).code == 0 and keys_in(third) == before
    back_up(vault, THIRD, vault.copy)
    for folder in (vault.repo, third):
        back = vault.run("copy", "--to-repo", folder, "--writer-key", vault.writer, repo=vault.copy)
        assert back.code == 0 and keys_in(folder) == before, back
        assert f"which were not brought: keys/{OTHER_LABEL}" in back.out
        assert "key add" in back.out and "can read" not in back.err
        assert vault.run("verify", "--writer-key", vault.writer, repo=folder).code == 0


def test_what_the_copy_has_lost_is_brought_again(vault: Vault) -> None:
    theirs = vault.key_file(repo=vault.copy)
    before = damage(theirs, "removed")
    done = copied(vault)
    assert done.code == 0 and theirs.name in done.out and theirs.read_bytes() == before
    before = damage(vault.list_file(vault.copy), "removed")
    assert copied(vault).code == 0 and vault.list_file(vault.copy).read_bytes() == before
    assert of_copy(vault, "verify").code == 0


def test_a_record_that_the_authority_has_not_signed_is_not_brought(vault: Vault, typed: Type, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    other = make_vault(typed, tmp_path / "else", age.random_identity())
    (foreign,) = (other.repo / "keys").glob("writer-*.json")
    (vault.repo / "keys" / foreign.name).write_bytes(foreign.read_bytes())
    assert copied(vault).code == 0 and foreign.name not in keys_in(vault.copy)
