"""The configs in a server's store: `meta.inf` and its checksum `meta.sum`, of streams and of consumers.

An encrypted file proves itself. Otherwise the checksum does; without it, or if the two do not fit, the config is used
as it is and called unproved, if it can be one at all: it is worth more than none, and a person can look at it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from jsbackup.errors import FormatError, JsBackupError
from jsbackup.exchange.folder import Folder
from jsbackup.formats import kernels
from jsbackup.formats.server_store.ciphers import AssetKey
from jsbackup.model import JsonObject
from jsbackup.strict_json import read_object
from jsbackup.times import parse_time

__all__ = ["FileFlaw", "MetaFile", "proved_name", "read_meta"]

META, SUM = "meta.inf", "meta.sum"
_MAX_META_BYTES = 16 << 20
_MAX_SUM_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileFlaw:
    """What is wrong with a file, by its path in the stream's folder; `block` is its number if it is that of a block."""

    path: str
    problem: str
    block: int | None = None

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


@dataclass(frozen=True, slots=True)
class MetaFile:
    """A config, without what only the file has. `created` is RFC 3339. `unproved` says what may be wrong, or is ""."""

    config: JsonObject
    created: str | None
    unproved: str = ""


def read_meta(
    folder: Folder, path: str, key: AssetKey | None, hash_name: str, *, named: tuple[str, str], flaws: list[FileFlaw]
) -> MetaFile | None:
    """Return the config in a folder; None if it is lost. `path` is that of the folder, "" or with a slash at its end.

    `key` opens it, if it is encrypted. `hash_name` is what its checksum is keyed with. `named` are the field that has
    the name, and the name.
    """
    checksum_path = path + SUM
    path += META
    try:
        stored = folder.read_around(META, _MAX_META_BYTES).content
    except JsBackupError:
        flaws.append(FileFlaw(path, _absence(folder, META)))
        return None
    checksum_flaw = _checksum_flaw(folder, stored, hash_name)
    content, proved = stored, not checksum_flaw
    if key is not None:
        with suppress(FormatError):  # of a restored stream it may still be in plain text
            content, proved = key.open(stored), True
    try:
        meta = _decoded(content, *named)
    except FormatError:
        flaws.append(FileFlaw(path, "is damaged"))
        return None
    if not checksum_flaw:
        return meta
    if proved:
        flaws.append(FileFlaw(checksum_path, f"{checksum_flaw}, but the encryption of {META} proves it"))
        return meta
    flaws.append(FileFlaw(checksum_path, checksum_flaw))
    return MetaFile(meta.config, meta.created, f"{SUM} {checksum_flaw}, so nothing proves {META}")


def _absence(folder: Folder, name: str) -> str:
    return "cannot be read" if name in folder.entries() else "is missing"


def _checksum_flaw(folder: Folder, stored: bytes, hash_name: str) -> str:
    try:
        checksum = folder.read_around(SUM, _MAX_SUM_BYTES).content
    except JsBackupError:
        return _absence(folder, SUM)
    if checksum == checksum_of(stored, hash_name):
        return ""
    return f"does not fit {META}" if len(checksum) == 16 else "is damaged"


def checksum_of(meta: bytes, hash_name: str) -> bytes:
    hasher = kernels.HighwayHash(sha256(hash_name.encode("utf-8", "surrogateescape")).digest())
    hasher.update(meta)
    return hasher.digest64().hex().encode()


def _decoded(content: bytes, field: str, name: str) -> MetaFile:
    config = read_object(content, META)
    created = config.pop("Created", None)
    if isinstance(created, str):
        parse_time(created, "creation time")
    found = config.pop(field, "") if field == "Name" else config.get(field)
    # An ephemeral consumer that was restored has no name in its file.
    if found != name and not (field == "Name" and found == ""):
        raise FormatError(f"{META} is of another one")
    return MetaFile(config, created if isinstance(created, str) else None)


def proved_name(folder: Folder) -> str | None:
    """Return the name of the stream in a folder of any name, None if its `meta.inf` does not prove it."""
    try:
        stored = folder.read_around(META, _MAX_META_BYTES).content
        name = read_object(stored, META).get("name")
    except JsBackupError:
        return None
    return name if isinstance(name, str) and not _checksum_flaw(folder, stored, name) else None
