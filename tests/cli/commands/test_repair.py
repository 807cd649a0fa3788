"""`jsbackup repair` where more is lost than objects."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository.crypto.writer_key import encode_writer_key
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Typed
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup, store_stream
from tests.harness.batches import some_messages
from tests.harness.damage import DAMAGES
from tests.harness.history import Scene, initialise
from tests.harness.many_streams import manifest_of, many_streams, pages_in


def test_a_removed_manifest_is_named_as_lost(typed: Callable[..., Typed], tmp_path: Path) -> None:
    repo, copy = tmp_path / "repo", tmp_path / "copy"
    make_repository(LocalStore(repo))
    for backup in (FIRST, SECOND):
        store_backup(Repository.open(LocalStore(repo)), backup)
    shutil.copytree(repo, copy)
    sound = typed("repair", "--from", copy, "-r", repo)
    assert (sound.code, "nothing is known to be missing" in sound.out) == (0, True)
    (repo / "backups" / f"{SECOND}.json").unlink()
    done = typed("repair", "--from", copy, "-r", repo)
    assert done.code == 3 and SECOND in done.out
    assert typed("repair", FIRST, "--from", copy, "-r", repo).code == 0, "only that one was asked for"


@pytest.mark.parametrize("kind", ["plain", "signed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_page_of_streams_is_repaired_from_a_copy(
    kind: str, damage: Callable[[bytes], bytes | None], typed: Callable[..., Typed], tmp_path: Path
) -> None:
    scene = Scene(kind)
    initialise(scene, scene.store)
    repository = scene.open()
    repository.commit(manifest_of([store_stream(repository.objects, "A", some_messages(40, 100)), *many_streams(150)]))
    for name in ("repo", "copy"):
        for info in scene.store.list():
            (tmp_path / name / info.key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / info.key).write_bytes(scene.store.get(info.key))
    key = min(pages_in(scene.store))
    changed = damage(scene.store.get(key))
    if changed is None:
        (tmp_path / "repo" / key).unlink()
    else:
        (tmp_path / "repo" / key).write_bytes(changed)
    line: list[str | Path] = ["-r", tmp_path / "repo"]
    if scene.new_keys is not None:
        (tmp_path / "writer.key").write_text(encode_writer_key(scene.new_keys.writer_key))
        (tmp_path / "writer.key").chmod(0o600)
        line += ["--writer-key", tmp_path / "writer.key"]
    assert typed("verify", *line).code == 14
    assert typed("repair", "--from", tmp_path / "copy", "--dry-run", *line).code == 0
    assert typed("verify", *line).code == 14
    done = typed("repair", "--from", tmp_path / "copy", *line)
    assert (done.code, "repaired" in done.out) == (0, True), done
    assert (tmp_path / "repo" / key).read_bytes() == scene.store.get(key)
    assert typed("verify", *line).code == 0
