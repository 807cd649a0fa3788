"""Java's archive of classes: who makes it, who uses it, and that nothing goes wrong where it cannot be had."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from jsbackup.pipeline.session.class_archive import ClassArchive, find_class_archive
from jsbackup.pipeline.session.java import wrap_java
from tests.harness.batches import some_messages
from tests.harness.commands import command_line, environment
from tests.harness.servers import wait_until
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_workers

LAUNCHER = "org.apache.spark.launcher.Main"


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """A program that prints what it is given, and writes the archive that it is asked for."""
    home = tmp_path / "a java"
    (home / "bin").mkdir(parents=True)
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    script = home / "bin" / "java"
    script.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@"\n'
        'for a; do case "$a" in -XX:ArchiveClassesAtExit=*) echo classes >"${a#*=}";; fail) exit 3;; esac; done\n'
    )
    script.chmod(0o755)
    return script


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "spark.jar").write_text("1")
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "a cache")}


def _run(archive: ClassArchive, java: Path, home: Path, *words: str, done: bool = True) -> int:
    shutil.rmtree(home, ignore_errors=True)
    if done:
        archive.keep()
    line = [str(wrap_java(java, home, home.with_suffix(".log"), archive) / "bin" / "java"), *words]
    ran = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("", "")
    return ran.returncode


def _find(java: Path, jars: Path, environ: dict[str, str]) -> ClassArchive:
    archive = find_class_archive(java, jars, environ)
    assert archive is not None
    return archive


def test_the_first_makes_it_and_the_next_use_it(
    java: Path, jars: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    first = _find(java, jars, environ)
    assert first.new is not None and first.options == (f"-XX:ArchiveClassesAtExit={first.new}",)
    assert find_class_archive(java, jars, environ) is None  # another one at the same time
    assert _run(first, java, tmp_path / "home", "a b", "") == 0
    next_one = _find(java, jars, environ)
    assert (next_one.new, next_one.path.read_text()) == (None, "classes\n")
    assert next_one.options[0] == f"-XX:SharedArchiveFile={next_one.path}"
    assert set(first.path.parent.iterdir()) == {first.path, first.size}
    assert (first.path.stat().st_mode, first.path.parent.stat().st_mode) == (0o100600, 0o40700)
    assert _run(next_one, java, tmp_path / "home", "x") == 0
    assert (tmp_path / "home.log").read_text().endswith("\n-XX:+VerifySharedSpaces\n-Xlog:cds=info\nx\n")


def test_who_may_make_none_leaves_it_to_the_next(java: Path, jars: Path, environ: dict[str, str]) -> None:
    assert find_class_archive(java, jars, environ, may_make=False) is None
    made = _find(java, jars, environ)  # nothing was in its way
    assert made.new is not None


def test_another_java_or_another_spark_has_its_own(java: Path, jars: Path, environ: dict[str, str]) -> None:
    found = {_find(java, jars, environ).path}
    (jars / "spark.jar").write_text("22")
    found.add(_find(java, jars, environ).path)
    (java.parents[1] / "release").write_text('JAVA_VERSION="17.0.16"\n')
    found.add(_find(java, jars, environ).path)
    (java.parents[1] / "release").write_text('JAVA_VERSION="25.0.2"\n')
    newest = _find(java, jars, environ)
    assert newest.options == (f"-XX:AOTCacheOutput={newest.new}",)
    assert len({*found, newest.path}) == 4


def test_a_java_that_cannot_make_one_goes_without(java: Path, jars: Path, environ: dict[str, str]) -> None:
    (java.parents[1] / "lib" / "server" / "classes.jsa").unlink()
    assert find_class_archive(java, jars, environ) is None
    (java.parents[1] / "release").write_text("?")
    assert find_class_archive(java, jars, environ) is None
    (java.parents[1] / "release").unlink()
    assert find_class_archive(java, jars, environ) is None


def test_one_that_was_cut_off_is_made_again(java: Path, jars: Path, environ: dict[str, str], tmp_path: Path) -> None:
    first = _find(java, jars, environ)
    _run(first, java, tmp_path / "home")
    first.path.write_text("class")
    assert _find(java, jars, environ).new is not None


def test_work_that_failed_makes_none_and_the_next_one_tries_again(
    java: Path, jars: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    first = _find(java, jars, environ)
    assert _run(first, java, tmp_path / "home", done=False) == 0
    assert list(first.path.parent.iterdir()) == []
    assert _find(java, jars, environ).new is not None


def test_an_archive_that_cannot_be_written_is_not_tried_for_an_hour(
    java: Path, jars: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    first = _find(java, jars, environ)
    assert _run(first, java, tmp_path / "home", "fail") == 3
    assert list(first.path.parent.iterdir()) == [first.lock]
    assert find_class_archive(java, jars, environ) is None
    os.utime(first.lock, (0, 0))
    assert _find(java, jars, environ).new is not None


def test_one_that_java_uses_stays(java: Path, jars: Path, environ: dict[str, str], tmp_path: Path) -> None:
    first = _find(java, jars, environ)
    _run(first, java, tmp_path / "home")
    log = tmp_path / "log"
    for said, stays in [
        ("WARNING: Using incubator modules\n", True),
        ("[0.004s][info][cds] Opened archive /x.jsa\n", True),
        ("[0.614s][warning][aot                ] Failed to link AdapterHandlerEntry (fp=L) to its code\n", True),
        ("[0.614s][warning][aot,codecache,stubs] Saved blob's name 'L' is different from the expected\n", True),
    ]:
        log.write_text(said)
        archive = _find(java, jars, environ)
        archive.remove_if_refused(log)
        assert archive.path.exists() == stays
    assert find_class_archive(java, jars, environ) is not None


@pytest.mark.parametrize(
    "said",
    [
        "[0.003s][info][cds] UseSharedSpaces: Unable to map shared spaces",
        "[0.106s][warning][cds,dynamic] Unable to use shared archive. The top archive failed to load: f.jsa",
        "[0.184s][error  ][aot] An error has occurred while processing the AOT cache. Run with -Xlog:aot for details.",
        "# A fatal error has been detected by the Java Runtime Environment:",
    ],
)
def test_one_that_does_not_fit_is_removed_and_made_again_later(
    java: Path, jars: Path, environ: dict[str, str], tmp_path: Path, said: str
) -> None:
    _run(_find(java, jars, environ), java, tmp_path / "home")
    log = tmp_path / "log"
    log.write_text(f"first\n{said}\n")
    archive = _find(java, jars, environ)
    assert archive.remove_if_refused(log) and not archive.path.exists()
    assert find_class_archive(java, jars, environ) is None
    os.utime(archive.lock, (0, 0))
    assert _find(java, jars, environ).new is not None


def test_without_a_folder_for_it_there_is_none(
    java: Path, jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "home"
    home.mkdir()
    for environ in (
        {},
        {"HOME": "/nonexistent"},
        {"XDG_CACHE_HOME": "relative"},
        {"XDG_CACHE_HOME": str(tmp_path / "file")},
        {"XDG_CACHE_HOME": "/proc"},
    ):
        assert find_class_archive(java, jars, environ) is None, environ
    assert not Path("/nonexistent").exists()
    assert _find(java, jars, {"HOME": str(home)}).path.parent == home / ".cache" / "jsbackup"
    (home / ".cache" / "jsbackup").chmod(0o777)  # others could put classes there
    assert find_class_archive(java, jars, {"HOME": str(home)}) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("usage", "free")(1 << 20))
    assert find_class_archive(java, jars, {"XDG_CACHE_HOME": str(tmp_path / "full")}) is None


def test_what_nobody_uses_is_removed(java: Path, jars: Path, environ: dict[str, str]) -> None:
    folder = Path(environ["XDG_CACHE_HOME"], "jsbackup")
    folder.mkdir(parents=True, mode=0o700)
    for name, days in [("spark-a.jsa", 40), ("spark-b.jsa", 20), ("spark-c.new", 2), ("spark-d.new", 0), ("other", 99)]:
        (folder / name).touch()
        now = (folder / name).stat().st_mtime
        os.utime(folder / name, (now - days * 86_400, now - days * 86_400))
    archive = _find(java, jars, environ)
    assert {path.name for path in folder.iterdir()} == {"spark-b.jsa", "spark-d.new", "other", archive.lock.name}


def test_the_launcher_prints_and_has_no_archive(
    java: Path, jars: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    home = wrap_java(java, tmp_path / "home", tmp_path / "log", _find(java, jars, environ))
    done = subprocess.run([str(home / "bin" / "java"), "-cp", "x", LAUNCHER, "y"], capture_output=True, text=True)
    assert done.stdout.split()[-4:] == ["-cp", "x", LAUNCHER, "y"] and "ArchiveClassesAtExit" not in done.stdout


def test_java_has_all_jars_but_those_of_machine_learning(
    java: Path, jars: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    (jars / "spark-mllib_2.13-4.3.0.jar").touch()
    (jars / "spark-mllib-local_2.13-4.3.0.jar").touch()
    (jars / "connect-repl").mkdir()
    archive = _find(java, jars, environ)
    for before in ("", "/a conf/"):
        assert _run(archive, java, tmp_path / "home", "-cp", f"{before}:{jars}/*", "-Da=b c") == 0
        given = (tmp_path / "home.log").read_text().splitlines()
        assert given[-3:] == ["-cp", f"{before}:{jars}/spark-mllib-local_2.13-4.3.0.jar:{jars}/spark.jar", "-Da=b c"]
        archive = _find(java, jars, environ)


@pytest.mark.by_turns
@pytest.mark.spark
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.timeout(900)
def test_spark_makes_one_uses_it_and_does_without_a_damaged_one(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"ORDERS": some_messages(50, 10)})
    cache = tmp_path / "cache"
    line = command_line("query", "latest", "SELECT max(subject) IS NULL AS x FROM ORDERS", *kept.line, "--json", "-v")
    line += ["--spark", "local"]

    def query() -> str:
        environ = environment(XDG_CACHE_HOME=str(cache), **quick_workers())
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environ)
        assert (done.returncode, json.loads(done.stdout)["rows"]) == (0, [[False]]), done.stderr
        return done.stderr

    assert "Java makes its archive of classes" in query()
    wait_until(lambda: not list(cache.glob("jsbackup/*.lock")), "the archive", seconds=300)
    (path,) = (cache / "jsbackup").glob("*.jsa")
    good = path.read_bytes()
    assert "Java has its archive of classes" in query() and path.read_bytes() == good
    path.write_bytes(good[: len(good) // 2] + bytes(4096) + good[len(good) // 2 + 4096 :])
    assert "Java does without its archive of classes" in query()
    assert not path.exists() and path.with_suffix(".lock").exists()
