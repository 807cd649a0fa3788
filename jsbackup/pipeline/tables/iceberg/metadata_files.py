"""The files of an Iceberg table beside its data, in a store: versions, the hint that names one, and lists in Avro."""

from __future__ import annotations

import io
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal

from jsbackup.errors import ObjectExists, ObjectNotFound, TargetConflict, UnsupportedError
from jsbackup.stores.base import Store

if TYPE_CHECKING:
    from pyiceberg.io import InputFile, OutputFile

__all__ = [
    "CODEC",
    "HINT",
    "MAX_BYTES",
    "VERSION",
    "bare",
    "bound",
    "file_in_memory",
    "file_of",
    "point_to",
    "require_pyiceberg",
    "version_key",
]

CODEC: Final[Literal["deflate"]] = "deflate"
HINT: Final = "version-hint.text"
MAX_BYTES: Final = 256 << 20
VERSION: Final = re.compile(r"v(\d{1,9})\.metadata\.json")

_FILE, _S3 = re.compile(r"^file:/+"), re.compile(r"^s3[an]://")

# Others write the hint at the same time. Whoever comes last finds the newest version.
_ATTEMPTS = 20


def require_pyiceberg() -> None:
    """Raise UnsupportedError if it is not installed."""
    if find_spec("pyiceberg") is None:
        raise UnsupportedError(
            "Iceberg tables take the package pyiceberg, which is not installed",
            hint="Install it with `pip install 'jsbackup[iceberg]'`.",
        )


def version_key(folder: str, version: int) -> str:
    """Return the key of a version, of which the metadata are in `folder`."""
    return f"{folder}/v{version}.metadata.json"


def point_to(store: Store, folder: str, version: int) -> None:
    """Let the hint in `folder` name a version that is there, or a newer one that came meanwhile.

    A store replaces nothing, so for a moment there is no hint. Raises TargetConflict if others write it all the time,
    and StoreError.
    """
    key = f"{folder}/{HINT}"
    for _ in range(_ATTEMPTS):
        version = _newest_from(store, folder, version)
        try:
            found = store.get_range(key, 0, 64).strip()
        except ObjectNotFound:
            found = None
        if found == str(version).encode():
            return
        if found is not None:
            store.delete(key)
        try:
            store.put(key, str(version).encode())
        except ObjectExists:
            continue
    raise TargetConflict(f"another command writes {key} at the same time", hint="Run it again.")


def _newest_from(store: Store, folder: str, version: int) -> int:
    while True:
        try:
            store.head(version_key(folder, version + 1))
        except ObjectNotFound:
            return version
        version += 1


def bare(location: str) -> str:
    """Return a location without what programs spell in several ways: `file:` before a path, `s3a:` for `s3:`."""
    return _S3.sub("s3://", _FILE.sub("/", location))


def bound(value: int | bytes) -> bytes:
    """Encode a bound of longs, of times in microseconds, or of strings, which are given as UTF-8."""
    return value if isinstance(value, bytes) else value.to_bytes(8, "little", signed=True)


def file_in_memory(location: str) -> Any:
    """Return a file for the writers of pyiceberg; `content` has its bytes once it is closed."""
    from pyiceberg.io import OutputFile as Base

    class InMemory(Base):
        content = b""

        def __len__(self) -> int:
            return len(self.content)

        def exists(self) -> bool:
            return False

        def to_input_file(self) -> InputFile:
            raise io.UnsupportedOperation("it is only written")

        def create(self, overwrite: bool = False) -> Any:
            file: OutputFile = self

            class Stream(io.BytesIO):
                def close(self) -> None:
                    if not self.closed:
                        file.content = self.getvalue()  # type: ignore[attr-defined]
                    super().close()

            return Stream()

    return InMemory(location)


def file_of(location: str, content: bytes) -> Any:
    """Return a file with this content, for the readers of pyiceberg."""
    from pyiceberg.io import InputFile as Base

    class Content(Base):
        def __len__(self) -> int:
            return len(content)

        def exists(self) -> bool:
            return True

        def open(self, seekable: bool = True) -> Any:
            return io.BytesIO(content)

    return Content(location)
