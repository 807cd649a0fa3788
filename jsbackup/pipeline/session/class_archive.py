"""Java's archive of the classes of Spark, which halves the time that an embedded Spark takes to start, and shortens
that of the driver of a cluster.

Java takes most of its start to read and check some 15,000 classes. An archive has them as they lie in memory. The first
command that runs on Spark makes it: when the command has ended, its Java writes the archive in the background, for
some seconds. Later ones map it into memory. It has some 150 MB, in `$XDG_CACHE_HOME/jsbackup` (`~/.cache/jsbackup`),
one for each Java and installation of Spark.

Java 25 and newer make an "AOT cache"; older ones a "dynamic archive" on top of the archive that belongs to Java, which
not every Java has. Java compares the class path, with times and sizes, and the checksums of the archive. It does
without one that does not fit, which is then removed, and made again.

Its class path is Spark's without machine learning, whose functions Spark would register in each session, by reflection:
that takes a tenth of the time of a short job.

Nothing here raises: without a folder to write to, or without the room, Spark starts as slowly as without an archive.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["ClassArchive", "find_class_archive", "released_version"]

_LEFT_OUT = "spark-mllib_"

_FREE_BYTES = 1 << 30
_LOCK_SECONDS = 3600.0
_LEFT_SECONDS = 86_400.0
_UNUSED_SECONDS = 30 * 86_400.0

_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)
_OLDEST_DYNAMIC, _OLDEST_AOT = 17, 25
# What Java says in its log of an archive that it does not use, or if it crashes: an archive may be the reason. Warnings
# alone say nothing: Java 25 has some about archives that it uses.
_REFUSED = re.compile(
    r"\[cds *\] UseSharedSpaces: |\[error *\]\[(?:cds|aot) *\]|Unable to (?:use shared archive|map shared spaces)|"
    r"shared class paths mismatch|A fatal error has been detected by the Java"
)


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive to start Java with; or to make, if `new` is the name under which Java writes it."""

    path: Path
    is_aot: bool
    jars: Path
    new: Path | None = None

    @property
    def lock(self) -> Path:
        """A file that exists while a process makes the archive, and for an hour after that has failed."""
        return self.path.with_suffix(".lock")

    @property
    def done(self) -> Path:
        """A file that says that Java has done what it was started for, so that its classes are worth keeping."""
        assert self.new is not None, "it is made"
        return self.new.with_suffix(".done")

    @property
    def size(self) -> Path:
        """A file with the size of the archive in bytes: Java crashes on one that was cut off."""
        return self.path.with_suffix(".size")

    @property
    def options(self) -> tuple[str, ...]:
        """The options for Java."""
        if self.new is not None:
            return (f"-XX:{'AOTCacheOutput' if self.is_aot else 'ArchiveClassesAtExit'}={self.new}",)
        if self.is_aot:
            return (f"-XX:AOTCache={self.path}", "-XX:+VerifySharedSpaces")
        return (f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto", "-XX:+VerifySharedSpaces", "-Xlog:cds=info")

    @property
    def class_path(self) -> str:
        """The jars of Spark that Java has, instead of all in the folder."""
        found = sorted(str(jar) for jar in self.jars.glob("*.jar") if not jar.name.startswith(_LEFT_OUT))
        return os.pathsep.join(found)

    def keep(self) -> None:
        """Say that Java's work succeeded."""
        if self.new is not None:
            with suppress(OSError):
                self.done.touch(0o600)

    def remove_if_refused(self, log: Path) -> bool:
        """Remove the archive if Java says in `log` that it does not fit; return whether it does. The next one is made
        in an hour at the earliest: it may be refused, too.
        """
        if self.new is not None:
            return False
        try:
            refused = _REFUSED.search(log.read_text(errors="replace")) is not None
        except OSError:
            return False
        if refused:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
                self.lock.touch(0o600)
        return refused


def find_class_archive(
    java: Path, jars: Path, environ: Mapping[str, str], *, may_make: bool = True
) -> ClassArchive | None:
    """Return the archive for this Java and Spark's folder of jars, to be used or, if it `may_make` one, made; None if
    neither is possible.
    """
    try:
        is_aot = _is_aot(java)
        folder = None if is_aot is None else _folder(environ)
        if is_aot is None or folder is None:
            return None
        archive = ClassArchive(folder / f"spark-{_key(java, jars)}.{'aot' if is_aot else 'jsa'}", is_aot, jars)
        if _is_whole(archive):
            os.utime(archive.path)
            os.utime(archive.size)
            return archive
        return _to_be_made(archive) if may_make else None
    except (OSError, UnicodeError):
        return None


def _is_whole(archive: ClassArchive) -> bool:
    if not _is_ours(archive.path, stat.S_ISREG):
        return False
    try:
        return int(archive.size.read_text()) == archive.path.stat().st_size
    except (FileNotFoundError, ValueError):
        return False


def _is_aot(java: Path) -> bool | None:
    """Return which kind of archive a Java makes; None for neither."""
    home = java.resolve().parent.parent
    version = released_version(java)
    if version >= _OLDEST_AOT:
        return True
    return False if version >= _OLDEST_DYNAMIC and (home / "lib/server/classes.jsa").is_file() else None


def released_version(java: Path) -> int:
    """Return the major version that the file `release` beside a Java says, 1 for `1.8`; 0 if there is no such file."""
    try:
        found = _RELEASE.search((java.resolve().parent.parent / "release").read_text(errors="replace"))
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _key(java: Path, jars: Path) -> str:
    home = java.resolve().parent.parent
    there = jars.resolve()
    parts = [str(home), (home / "release").read_text(), str(jars), str(there), _LEFT_OUT]
    # Of Spark: what its packages put there, and when.
    parts += [f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in sorted(there.iterdir())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder for caches, created if needed. None if there is none that only this user can write: Java runs
    what is in an archive.
    """
    configured, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    if Path(configured).is_absolute():
        folder = Path(configured, "jsbackup")
    elif home and Path(home).is_dir():
        folder = Path(home, ".cache", "jsbackup")
    else:
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder if _is_ours(folder, stat.S_ISDIR) else None


def _to_be_made(archive: ClassArchive) -> ClassArchive | None:
    """Return the archive with a name to make it; None if another process makes it, or there is no room."""
    folder = archive.path.parent
    if shutil.disk_usage(folder).free < _FREE_BYTES:
        return None
    for old in _outdated(folder):
        old.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        if time.time() - archive.lock.stat().st_mtime > _LOCK_SECONDS:
            archive.lock.unlink()
    try:
        os.close(os.open(archive.lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return None
    return replace(archive, new=folder / f"{archive.path.stem}-{secrets.token_hex(4)}.new")


def _outdated(folder: Path) -> Iterator[Path]:
    """Yield archives that nobody has used for a month, and what processes that were killed have left."""
    for path in folder.glob("spark-*"):
        seconds = _UNUSED_SECONDS if path.suffix in (".jsa", ".aot", ".size") else _LEFT_SECONDS
        if time.time() - path.lstat().st_mtime > seconds:
            yield path


def _is_ours(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether `path` is of that kind, belongs to this user, and nobody else can write it."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
