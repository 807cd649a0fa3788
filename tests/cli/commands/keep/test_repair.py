"""`jsbackup repair` where more is lost than objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.repository.crypto.signing import encode_writer_key
from tests.cli.typed import Typed
from tests.harness.backups import store_stream
from tests.harness.batches import some_messages
from tests.harness.damage import DAMAGES
from tests.harness.history import Scene, initialise
from tests.harness.many_streams import manifest_of, many_streams, pages_in

NOTHING = "no object is missing, has a wrong size, or is recorded as damaged"


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "signed", "encrypted"])
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
    assert "damaged-objects" in typed("status", *line).out
    tried = typed("repair", "--from", tmp_path / "copy", "--dry-run", *line)
    assert (tried.code, tried.out.splitlines()[-1]) == (0, "1 object would be repaired, 0 lost")
    assert typed("verify", *line).code == 14
    done = typed("repair", "--from", tmp_path / "copy", *line)
    assert (done.code, done.out) == (0, tried.out.replace("would be", "").replace("could be", "").replace("  ", " "))
    assert (tmp_path / "repo" / key).read_bytes() == scene.store.get(key)
    assert "damaged-objects" not in typed("status", *line).out
    again = typed("repair", "--from", tmp_path / "copy", *line)
    assert (again.code, again.out.splitlines()[0]) == (0, f"{NOTHING}; objects were not read: --check reads them all")
    said = again.out.splitlines()[1]
    assert (
        said.startswith("the last recorded verify, of ") and " may have been repaired since; 'jsbackup verify'" in said
    )
    assert typed("verify", *line).code == 0


