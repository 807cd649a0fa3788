"""System calls of the local store, and their errors in words."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from jsbackup.errors import StoreError

__all__ = ["closing", "exists", "fsync", "is_temporary", "link_new", "posix_errors", "read_at"]

_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}
_NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
_RENAME_NOREPLACE = 1

_SENTENCES = {
    errno.ENOENT: "the folder is not there",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "no space left on the file system",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file system does not take files of this size",
    errno.EIO: "the disk reports an input/output error",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.ELOOP: "a symbolic link is in the way, and links are not followed inside a repository",
    errno.ENOTDIR: "a file or a symbolic link is in the place of a folder",
    errno.EISDIR: "a folder is in the place of an object",
    errno.EMFILE: "too many open files",
    errno.ENFILE: "too many open files",
    errno.ESTALE: "the network file system lost the file",
}
_HINTS = {
    errno.ENOENT: "Create it, or mount the file system that holds it.",
    errno.ENOSPC: "Free some space and run the command again; what was stored already is used again.",
    errno.EDQUOT: "Free some space and run the command again; what was stored already is used again.",
    errno.EACCES: "Check the owner and mode of the folder.",
}
_TEMPORARY = {
    errno.EINTR,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOLCK,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
}


@contextmanager
def posix_errors(doing: str) -> Iterator[None]:
    """Convert an `OSError` to a `StoreError` with a sentence, with the `OSError` as its cause."""
    try:
        yield
    except OSError as error:
        code = error.errno or 0
        what = _SENTENCES.get(code, os.strerror(code).lower())
        raise StoreError(f"{doing}: {what}", hint=_HINTS.get(code)) from error


def is_temporary(error: StoreError) -> bool:
    """Return whether the error of the operating system may be gone after a while."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _TEMPORARY


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read_at(file: int, offset: int, length: int) -> bytes:
    """Return the existing bytes in that range: fewer if the file shrinks meanwhile."""
    parts = []
    while length > 0:
        part = os.pread(file, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


def link_new(source_folder: int, source: str, folder: int, name: str) -> bool:
    """Give the file its final name; return False if the name is taken."""
    try:
        os.link(source, name, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return _rename_new(source_folder, source, folder, name, why=error)
    return True


def _rename_new(source_folder: int, source: str, folder: int, name: str, *, why: OSError) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise why
    if rename(source_folder, source.encode(), folder, name.encode(), _RENAME_NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        return False
    if code in (errno.EINVAL, errno.ENOSYS):
        raise StoreError(
            "the file system can neither link nor rename without replacing, so nothing can be stored safely",
            hint="Use a file system with hard links.",
        ) from why
    raise OSError(code, os.strerror(code))
