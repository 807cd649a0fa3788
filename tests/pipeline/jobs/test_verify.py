"""`verify --spark`: it finds what `verify` finds, and remembers it all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.batches import some_messages
from tests.pipeline.places import Kept, keep

Type = Callable[..., Typed]
ON_SPARK = ("--spark", "local[2]")


def _damage(kept: Kept) -> None:
    """A segment that is gone, one with another byte, one cut short."""
    refs = kept.manifest.streams[0].segments
    gone, changed, cut = (Path(kept.place.location) / ref.key for ref in refs[1:4])
    for path in (changed, cut):
        path.chmod(0o600)
    gone.unlink()
    data = bytearray(changed.read_bytes())
    data[len(data) // 2] ^= 1
    changed.write_bytes(data)
    cut.write_bytes(cut.read_bytes()[:-9])


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_the_same_is_found_with_spark_and_without(typed: Type, tmp_path: Path, encrypted: bool) -> None:
    kept = keep(
        tmp_path, {"A": some_messages(200, 100), "B": some_messages(50, 30)}, encrypted=encrypted, opaque=not encrypted
    )

    def verify(level: str, *more: str) -> tuple[int, dict[str, Any]]:
        done = typed("verify", *kept.line, "--level", level, "--json", *more)
        document = check("verify", done)
        return done.code, document["backups"][0]

    for level in ("objects", "data"):
        code, whole = verify(level, *ON_SPARK)
        assert (code, whole["ok"]) == (0, True)
    again = typed("verify", *kept.line, "--level", "data", "--json").document["coverage"]
    assert again["recent_bytes"] == again["bytes"] > 0
    _damage(kept)
    for level in ("objects", "data"):
        assert verify(level, *ON_SPARK) == verify(level)
    code, damaged = verify("data", *ON_SPARK)
    assert code == 14 and [p["stream"] for p in damaged["problems"]] == ["A"] * 3
    part = typed("verify", *kept.line, "--sample", "50", "--json", *ON_SPARK)
    assert part.code == 14 and part.document["coverage"]["checked_objects"] < part.document["coverage"]["objects"]


def test_what_makes_no_sense_is_refused(typed: Type, tmp_path: Path) -> None:
    kept = keep(tmp_path, {"A": some_messages(20, 10)}, encrypted=True)
    done = typed("verify", *kept.line, "--level", "manifest", *ON_SPARK)
    assert done.code == 2 and "nothing for Spark" in done.err
    key = ["-r", kept.place.location, "--writer-key", str(kept.writer_key)]
    done = typed("verify", *key, "--level", "data", *ON_SPARK)
    assert done.code == 12 and "hint: Give the identity" in done.err
    assert typed("verify", *key, *ON_SPARK).code == 0
