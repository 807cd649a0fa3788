"""`object`: files of clients as they were put, and what is not whole is said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands.look.conftest import Shelf
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.commands import command_line, environment
from tests.harness.shelf import EVIL, LARGE

Type = Callable[..., Typed]
pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


def _bytes(shelf: Shelf, *words: str | Path) -> tuple[int, bytes, str]:
    line = command_line(*words, "-q", "-r", shelf.repo)
    done = subprocess.run(line, capture_output=True, timeout=60, env=environment())
    return done.returncode, done.stdout, done.stderr.decode()


def test_files_come_back_byte_for_byte(shelf: Shelf, typed: Type, tmp_path: Path) -> None:
    contents = {
        "a/large": LARGE,
        "link": LARGE,
        "by-cli": LARGE[:200_000],
        "twice": b"new",
        "empty": b"",
        f"../{EVIL}": b"evil",
    }
    for number, (name, content) in enumerate(contents.items()):
        file = tmp_path / str(number)
        done = typed("object", shelf.backup, "files", name, "-o", file, "-r", shelf.repo, "--json")
        assert check("object", done)["size"] == len(content) and file.read_bytes() == content
        assert EVIL not in typed("object", "latest", "files", name, "-o", file, "--force", "-r", shelf.repo).out
    assert _bytes(shelf, "object", "latest", "OBJ_files", "a/large") == (0, LARGE, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == list("012345")


def test_a_list_has_what_is_there(shelf: Shelf, typed: Type) -> None:
    document = check("object", typed("object", "latest", "files", "-r", shelf.repo, "--json"))
    found = {one["name"]: one for one in document["objects"]}
    assert found.keys() >= {"a/large", "by-cli", "twice", "empty", "link", "to-bucket", f"../{EVIL}"}
    assert "gone" not in found and document["unreadable"] == 2
    assert (found["twice"]["size"], found["a/large"]["size"]) == (3, len(LARGE))
    assert found["link"]["link"] == {"bucket": "files", "name": "a/large"}
    done = typed("object", "latest", "files", "-r", shelf.repo)
    assert "\x1b" not in done.out and "the descriptions of 2 files cannot be read" in done.err
    assert check("object", typed("object", "latest", "-r", shelf.repo, "--json"))["buckets"][0]["bucket"] == "files"


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("nothing", 1, "there is no object nothing"),
        ("gone", 1, "was deleted before the backup"),
        ("to-bucket", 1, "is a link to bucket settings"),
        ("to-nothing", 2, "has no stream OBJ_missing"),
        ("to-link", 1, "which is a link too"),
        ("short", 14, "0 bytes, not 9"),
        ("wild", 14, "no valid nuid"),
        ("wrong", 14, "does not have the digest"),
        ("nojson", 14, "description of an object"),
    ],
)
def test_what_is_not_a_whole_file_is_said(
    shelf: Shelf, typed: Type, tmp_path: Path, *, name: str, code: int, text: str
) -> None:
    done = typed("object", "latest", "files", name, "-o", tmp_path / "file", "-r", shelf.repo)
    assert (done.code, text in done.err) == (code, True), done.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_never_written_through_a_link_or_over_another(shelf: Shelf, typed: Type, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    line = ["object", "latest", "files", "twice", "-r", shelf.repo, "-o"]
    for name in ("link", "dangling"):
        for more in ([], ["--force"]):
            done = typed(*line, tmp_path / name, *more)
            assert done.code == 2 and "is a symbolic link" in done.err
    done = typed(*line, tmp_path / "theirs")
    assert done.code == 2 and "exists already" in done.err
    assert typed(*line, tmp_path).code == 2 and typed(*line, tmp_path / "no" / "folder").code == 2
    assert (tmp_path / "theirs").read_bytes() == b"theirs" and not (tmp_path / "nowhere").exists()
    assert typed(*line, tmp_path / "theirs", "--force").code == 0
    assert (tmp_path / "theirs").read_bytes() == b"new"
    assert typed(*line[:-1], "--json").code == 2


def test_a_full_disk_is_one_sentence(shelf: Shelf, tmp_path: Path) -> None:
    line = command_line("object", "latest", "files", "a/large", "-q", "-r", shelf.repo, "-o", tmp_path / "file")
    shell = ["bash", "-c", 'ulimit -f 100; trap "" XFSZ; exec "$@"', "bash", *line]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stderr) == (1, f"error: cannot write {tmp_path}/file: file too large\n")
    assert list(tmp_path.iterdir()) == []
    with Path("/dev/full").open("wb") as full:
        line = command_line("object", "latest", "files", "a/large", "-q", "-r", shelf.repo)
        told = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment())
    assert (told.returncode, told.stderr) == (1, "error: cannot write the output: no space left on device\n")
