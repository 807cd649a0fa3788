"""`jsbackup repair --from` of manifests and of the records of writers: what is proved comes back byte for byte, and
nothing else does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from jsbackup.errors import IntegrityError
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.crypto.signing import encode_writer_key
from jsbackup.repository.document import encode_document
from jsbackup.repository.inventory import write_catalog
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_backup

Type = Callable[..., Typed]

RECIPIENT = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"


@dataclass(frozen=True, slots=True)
class Place:
    """A repository with two backups, and a copy of it."""

    typed: Type
    repo: Path
    copy: Path
    keys: tuple[str | Path, ...] = ()

    def manifests(self, repo: Path | None = None) -> list[Path]:
        return sorted(((repo or self.repo) / "backups").iterdir())

    def repair(self, *options: str | Path) -> Typed:
        return self.typed("repair", "--from", self.copy, "-r", self.repo, *self.keys, "--json", *options)

    def verify(self) -> Typed:
        return self.typed("verify", "-r", self.repo, *self.keys)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "flipped":
        data[len(data) // 2] ^= 1
    if how != "removed":
        path.write_bytes({"flipped": bytes(data), "cut": bytes(data[:-9]), "emptied": b""}[how])


def make_place(typed: Type, folder: Path, kind: str) -> Place:
    new_keys = None
    keys: tuple[str | Path, ...] = ()
    if kind != "plain":
        recipients = [age.parse_recipient(RECIPIENT)] if kind == "encrypted" else []
        new_keys = make_new_keys("00ff", recipients, None, os.urandom)
        (folder / "writer.key").write_text(encode_writer_key(new_keys.writer_key))
        keys = ("--writer-key", folder / "writer.key")
    place = Place(typed, folder / "repo", folder / "copy", keys)
    store = LocalStore(place.repo)
    made = Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=new_keys)
    for backup in (FIRST, SECOND):
        store_backup(made, backup)
    assert typed("copy", "--to-repo", place.copy, "-r", place.repo, *keys).code == 0
    return place


@pytest.fixture
def place(request: pytest.FixtureRequest, typed: Type, tmp_path: Path) -> Place:
    return make_place(typed, tmp_path, getattr(request, "param", "plain"))


def test_a_damaged_catalog_is_written_anew(place: Place) -> None:
    write_catalog(Repository.open(LocalStore(place.repo)).documents)
    damage(place.repo / "catalog" / "0000000001.json", "cut")
    assert place.verify().code == 14
    done = place.repair()
    (row,) = check("repair", done)["manifests"]
    assert (done.code, row["key"], row["outcome"]) == (0, "catalog/", "mended")
    assert place.verify().code == 0


def test_a_damaged_catalog_that_may_have_named_a_newer_backup_stays(place: Place) -> None:
    """Its manifest is gone, too: nothing else names it, but the copy has it."""
    write_catalog(Repository.open(LocalStore(place.repo)).documents)
    damage(place.repo / "catalog" / "0000000001.json", "flipped")
    damage(place.manifests()[-1], "removed")
    done = place.typed("repair", "--from", place.copy, "-r", place.repo)
    assert done.code == 3 and f"Run 'jsbackup copy' for {SECOND} before" in done.out
    assert place.typed("copy", SECOND, "-r", place.copy, "--to-repo", place.repo).code == 0
    assert place.repair().code == 0 and place.verify().code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "how", "which"),
    [("plain", "removed", 0), ("plain", "flipped", 1), ("signed", "cut", 0), ("encrypted", "emptied", 1)],
    indirect=["place"],
)
def test_a_manifest_is_put_back_as_it_was(place: Place, how: str, which: int) -> None:
    """It is proved by its signature, or by its witness, or by what is left of it."""
    path = place.manifests()[which]
    before = path.read_bytes()
    damage(path, how)
    assert place.verify().code == 14
    there = path.read_bytes() if path.exists() else None
    tried = place.repair("--dry-run")
    assert (path.read_bytes() if path.exists() else None) == there
    done = place.repair()
    assert tried.code == done.code == 0
    (row,) = check("repair", done)["manifests"]
    assert row["backup"] in path.name and path.name in row["key"]
    assert tried.document["manifests"] == [row] and done.document["beyond"] == []
    assert (row["outcome"], row["reason"], done.document["mended"]) == ("mended", None, 1)
    assert path.read_bytes() == before and place.verify().code == 0
    again = place.repair()
    assert again.code == 0 and again.document["manifests"] == []


@pytest.mark.parametrize("how", ["removed", "cut"])
def test_what_nothing_proves_is_put_back_if_the_user_trusts_the_copy(place: Place, how: str) -> None:
    """As repositories of older tools are, whose witnesses are empty, and whose manifests name no SHA-256."""
    for witness in (place.repo / "catalog").iterdir():
        witness.write_bytes(b"")
    path, theirs = place.manifests()[0], place.manifests(place.copy)[0]
    before = path.read_bytes()
    damage(path, how)
    done = place.repair()
    (row,) = check("repair", done)["manifests"]
    if how == "cut":  # the checksum in what is left of it proves it
        assert (done.code, row["outcome"]) == (0, "mended")
        return
    assert (done.code, row["outcome"]) == (3, "lost") and "--trust-copy" in row["reason"] and not path.exists()
    # A manifest that is damaged, or that of another backup, is not what it should be, whatever the user says.
    for data in (before[:-3], before.replace(b"a", b"b"), place.manifests(place.copy)[1].read_bytes()):
        theirs.write_bytes(data)
        assert place.repair("--trust-copy").code == 3 and not path.exists()
    theirs.write_bytes(before)
    assert place.typed("repair", "--trust-copy", "-s", "nats://127.0.0.1:1", "-r", place.repo).code == 2
    assert place.repair("--trust-copy", "--dry-run").code == 0 and not path.exists()
    assert place.repair("--trust-copy").code == 0
    assert path.read_bytes() == before and place.verify().code == 0


def test_the_next_backup_proves_a_plain_manifest(typed: Type, tmp_path: Path) -> None:
    place = Place(typed, tmp_path / "repo", tmp_path / "copy")
    repository = make_repository(LocalStore(place.repo))
    first = store_backup(repository, FIRST)
    third = "20261121T014700Z-000003"
    repository.commit(replace(first, id=SECOND, previous=FIRST))
    Repository.open(LocalStore(place.repo)).commit(replace(first, id=third, previous=SECOND))
    shas = [hashlib.sha256(path.read_bytes()).hexdigest() for path in place.manifests()]
    named = [repository.manifest(backup).previous_sha256 for backup in (FIRST, SECOND, third)]
    assert named == [None, *shas[:2]]
    assert [path.read_text() for path in (place.repo / "catalog").iterdir()] == [shas[2]]
    assert typed("copy", "--to-repo", place.copy, "-r", place.repo).code == 0
    # All at once: each that is back names the one before it.
    for path in place.manifests():
        damage(path, "removed")
    assert place.repair().code == 0 and place.verify().code == 0
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in place.manifests()] == shas


def test_a_damaged_manifest_is_not_named_by_the_next_one(tmp_path: Path) -> None:
    """Else no copy that is right could be put back."""
    store = LocalStore(tmp_path / "repo")
    make_repository(store)
    first = store_backup(Repository.open(store), FIRST)
    damage(tmp_path / "repo" / "backups" / f"{FIRST}.json", "flipped")
    Repository.open(store).commit(replace(first, id=SECOND, previous=FIRST))
    assert Repository.open(store).manifest(SECOND).previous_sha256 is None


@pytest.mark.parametrize("place", ["plain", "encrypted"], indirect=True)
def test_a_catalog_proves_the_newest_one(place: Place) -> None:
    assert place.typed("hold", "latest", "-r", place.repo, *place.keys).code == 0
    if not place.keys:
        write_catalog(Repository.open(LocalStore(place.repo)).documents)
    path = place.manifests()[1]
    before = path.read_bytes()
    damage(path, "removed")
    assert place.repair().code == 0 and path.read_bytes() == before
    assert place.verify().code == 0


@pytest.mark.parametrize(("place", "which"), [("plain", 0), ("encrypted", 1)], indirect=["place"])
def test_what_is_not_the_stored_manifest_is_not_put_back(place: Place, which: int) -> None:
    """A copy that is damaged itself, that has another backup under the id, or that has none."""
    path, theirs = place.manifests()[which], place.manifests(place.copy)[which]
    other = place.manifests(place.copy)[1 - which].read_bytes()
    damage(path, "removed")
    whole = theirs.read_bytes()
    for data in (whole[:-3], whole.replace(b"a", b"b"), b"", b"{}", other, None):
        theirs.unlink(missing_ok=True)
        if data is not None:
            theirs.write_bytes(data)
        done = place.repair()
        (row,) = done.document["manifests"]
        assert (done.code, row["outcome"]) == (3, "lost") and "Traceback" not in done.err
        assert str(place.copy) in row["reason"] and not path.exists()
    assert place.typed("repair", "--from", place.copy, "-r", place.repo, *place.keys).out.count(": lost: ") == 1


def writer_of(repo: Path) -> Path:
    (path,) = (repo / "keys").glob("writer-*.json")
    return path


@pytest.mark.parametrize(("place", "how"), [("signed", "removed"), ("encrypted", "flipped")], indirect=["place"])
def test_the_record_of_a_writer_is_put_back_and_what_it_has_signed_is_repaired(place: Place, how: str) -> None:
    path = writer_of(place.repo)
    before = path.read_bytes()
    segments = [one for one in place.repo.rglob("segments/*/*") if one.is_file()]
    damage(segments[0], "flipped")
    damage(path, how)
    verified = place.verify()
    assert verified.code == 14 and path.name in verified.out
    assert place.typed("list", "-r", place.repo, *place.keys).out.count(path.name) == 2
    tried = place.repair("--check", "--dry-run")
    assert (path.read_bytes() if path.exists() else None) != before
    done = place.repair("--check")
    assert tried.code == done.code == 0, done
    (row,) = check("repair", done)["writers"]
    assert (row["key"], row["outcome"], row["reason"]) == (f"keys/{path.name}", "mended", None)
    assert tried.document["writers"] == [row]
    assert (done.document["mended"], done.document["lost"], done.document["manifests"]) == (2, 0, [])
    assert path.read_bytes() == before and place.verify().code == 0


@pytest.mark.parametrize("place", ["signed"], indirect=True)
def test_a_record_that_the_authority_has_not_signed_is_not_put_back(place: Place, tmp_path: Path) -> None:
    """A copy without it, with a damaged one, and with one that another repository's authority has signed."""
    path, theirs = writer_of(place.repo), writer_of(place.copy)
    whole = theirs.read_bytes()
    stranger = ("--writer-key", tmp_path / "their.key")
    assert place.typed("init", "--sign", *stranger, "-r", tmp_path / "other").code == 0
    foreign = writer_of(tmp_path / "other").read_bytes()
    damage(path, "removed")
    for data in (None, whole[:-9], b"", whole.replace(b"a", b"b"), foreign):
        theirs.unlink(missing_ok=True)
        if data is not None:
            theirs.write_bytes(data)
        done = place.repair()
        rows = done.document["writers"] or done.document["manifests"]
        assert done.code == 3 and {row["outcome"] for row in rows} == {"lost"} and not path.exists()
        assert path.name in done.out
    text = place.typed("repair", "--from", place.copy, "-r", place.repo, *place.keys)
    assert text.code == 3 and path.name in text.out
    theirs.write_bytes(whole)
    assert place.repair().code == 0 and path.read_bytes() == whole


# --- what the witness of the newest backup says ---


def edited(path: Path) -> bytes:
    """Take a stream out of a manifest, so that its checksum is right; return what was there."""
    before = path.read_bytes()
    document = json.loads(before)
    document["streams"].pop()
    del document["sha256"]
    path.write_bytes(encode_document(document, "test"))
    return before


def test_a_newest_manifest_that_is_not_the_witnessed_one_is_found_and_put_back(place: Place) -> None:
    before = edited(place.manifests()[1])
    found = place.verify()
    assert found.code == 14 and f"{SECOND}: its manifest was replaced, or catalog/" in found.out
    tried = place.repair("--dry-run")
    (row,) = check("repair", tried)["manifests"]
    assert tried.code == 0 and place.manifests()[1].read_bytes() != before
    done = place.repair()
    assert done.code == 0 and done.document["manifests"] == [row] and row["outcome"] == "mended"
    assert place.manifests()[1].read_bytes() == before and place.verify().code == 0


def test_later_backups_do_not_hide_a_replaced_manifest(place: Place) -> None:
    before = edited(place.manifests()[1])
    repository = Repository.open(LocalStore(place.repo))
    first = repository.manifest(FIRST)
    for number in (3, 4):
        newest = repository.backups()[-1]
        repository.commit(replace(first, id=f"20261121T01480{number}Z-000003", previous=newest))
    assert place.verify().code == 14
    with pytest.raises(IntegrityError, match="its manifest was replaced"):
        write_catalog(repository.documents)
    assert place.repair().code == 0
    assert place.manifests()[1].read_bytes() == before and place.verify().code == 0
    write_catalog(repository.documents)
    assert place.verify().code == 0


def test_a_replaced_manifest_can_be_forgotten(place: Place) -> None:
    edited(place.manifests()[1])
    assert place.typed("forget", SECOND, "-r", place.repo).code == 0
    assert place.verify().code == 0


def test_a_damaged_witness_is_said_and_replaced_if_that_of_the_copy_is_sound(place: Place) -> None:
    witness = place.repo / "catalog" / f"{SECOND}.committed"
    right = witness.read_text()
    witness.write_text("0" * 64)
    assert place.verify().code == 14
    done = place.repair()
    (row,) = check("repair", done)["manifests"]
    assert done.code == 0 and "named another manifest" in row["problem"]
    assert witness.read_text() == right and place.verify().code == 0


def test_a_manifest_that_its_witness_contradicts_takes_no_ones_place_and_is_not_copied(
    place: Place, tmp_path: Path
) -> None:
    edited(place.manifests()[1])
    forgotten = place.typed("forget", "--keep-last", "1", "-r", place.repo)
    assert forgotten.code == 14 and f"{SECOND}  keep  damaged, takes no" in forgotten.out
    assert len(place.manifests()) == 2
    copied = place.typed("copy", "--to-repo", tmp_path / "another", "-r", place.repo)
    assert copied.code == 3 and f"not copied: {SECOND}: the manifest of {SECOND} was replaced" in copied.out
    assert [path.stem for path in place.manifests(tmp_path / "another")] == [FIRST]
