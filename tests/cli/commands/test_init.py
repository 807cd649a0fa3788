"""`init` with options for segments, as a user types it. What they do is in tests/integration/test_segment_size.py and
test_compression.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_json import check
from tests.cli.typed import Typed

Type = Callable[..., Typed]

NACK = """
apiVersion: jetstream.nats.io/v1beta2
kind: Stream
metadata: {name: a}
spec: {name: A, subjects: [a], storage: file}
"""


@pytest.mark.parametrize(("written", "size"), [("4KiB", 4096), ("8192", 8192), ("1.5M", 3 << 19), ("256MiB", 1 << 28)])
def test_a_size_is_recorded_and_said(written: str, size: int, typed: Type, tmp_path: Path) -> None:
    document = check("init", typed("init", "-r", tmp_path / "a", "--segment-size", written, "--json"))
    assert document["segment_bytes"] == size
    done = typed("init", "-r", tmp_path / "b", "--segment-size", written)
    assert done.code == 0 and "its segments take up to " in done.out
    assert f"segments of {size} bytes" in typed("doctor", "-r", tmp_path / "b").out


def test_without_it_segments_have_the_usual_size_and_nothing_is_said(typed: Type, tmp_path: Path) -> None:
    assert check("init", typed("init", "-r", tmp_path / "a", "--json"))["segment_bytes"] == 32 << 20
    assert "its segments" not in typed("init", "-r", tmp_path / "b").out
    assert "segments of" not in typed("doctor", "-r", tmp_path / "b").out


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "--segment-size: not a size: ''"),
        ("8 kibs", "--segment-size: not a size: '8 kibs'"),
        ("-8KiB", "--segment-size: not a size: '-8KiB'"),
        ("0.1", "not a whole number of bytes: '0.1'"),
        ("0", "--segment-size 0: a segment is an object, held in memory: 4.00 KiB to 256 MiB"),
        ("4095", "--segment-size 4095: a segment is an object, held in memory: 4.00 KiB to 256 MiB"),
        ("257M", "--segment-size 257M: a segment is an object, held in memory: 4.00 KiB to 256 MiB"),
    ],
)
def test_what_cannot_be_a_size_is_refused_and_nothing_is_made(
    written: str, said: str, typed: Type, tmp_path: Path
) -> None:
    done = typed("init", "-r", tmp_path / "repo", "--segment-size", written)
    assert done.code == 2 and said in done.err
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("written", "said"),
    [("none", "its segments are not compressed"), ("zstd:3", "its segments are compressed by zstd:3")],
)
def test_a_compression_is_recorded_and_said(written: str, said: str, typed: Type, tmp_path: Path) -> None:
    document = check("init", typed("init", "-r", tmp_path / "a", "--compression", written, "--json"))
    assert document["compression"] == written
    done = typed("init", "-r", tmp_path / "b", "--compression", written)
    assert done.code == 0 and said in done.out
    assert f"compression {written}" in typed("doctor", "-r", tmp_path / "b").out


@pytest.mark.parametrize("written", ["", "lz4", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:1.5", "NONE", "zstd:٣"])
def test_what_is_no_compression_is_refused_and_nothing_is_made(written: str, typed: Type, tmp_path: Path) -> None:
    done = typed("init", "-r", tmp_path / "repo", "--compression", written)
    assert done.code == 2 and "is not none, zstd, or zstd:1 to zstd:22" in done.err
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize("below", ["pruning", "segments/more", "deep/er/still"])
def test_inside_of_a_repository_there_is_no_other_one(below: str, typed: Type, tmp_path: Path) -> None:
    outer, inner = tmp_path / "repo", tmp_path / "repo" / below
    assert typed("init", "-r", outer).code == 0
    inner.parent.mkdir(parents=True, exist_ok=True)
    refused = typed("init", "-r", inner)
    assert refused.code == 2 and f"{inner} is inside of the repository {outer}" in refused.err
    assert not inner.exists()
    link = tmp_path / "link"
    link.symlink_to(outer)
    assert typed("init", "-r", link / below).code == 2
    assert typed("copy", "-r", outer, "--to", inner).code == 2
    assert typed("verify", "-r", outer).code == 0


def test_a_backup_makes_none_inside_of_another_one(typed: Type, tmp_path: Path) -> None:
    assert typed("init", "-r", tmp_path / "repo").code == 0
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "a.yaml").write_text(NACK)
    done = typed("import", configs, "-r", tmp_path / "repo" / "backups")
    assert done.code == 2 and "is inside of the repository" in done.err
    assert typed("import", configs, "-r", tmp_path / "repo").code == 0
