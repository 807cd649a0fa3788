"""From text to store: the table of schemes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.model import S3Settings
from jsbackup.stores.base import Store, is_key
from jsbackup.stores.local import LocalStore

__all__ = ["check_spelling", "open_store"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?=://)")


_WRITTEN = {"s3": "s3://bucket or s3://bucket/prefix", "file": "file:///absolute/path"}
_TYPO = re.compile(r"(s3|file):", re.IGNORECASE)
_BUCKET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")


def open_store(location: str, s3: S3Settings | None = None) -> Store:
    """Return the store at `location`: a path, `file:///absolute/path`, or `s3://bucket/prefix` with the settings `s3`.

    Nothing is accessed: a folder that does not exist is an empty store until the first put. The result does not retry;
    wrap it in `RetryingStore`.

    Raises:
        UsageError: the location is empty or does not follow its scheme.
        UnsupportedError: another scheme.
    """
    if not location.strip() or "\0" in location:
        raise UsageError("a repository location is a path or a URL, not an empty or blank text or one with NUL in it")
    match = _SCHEME.match(location)
    if match is None:
        check_spelling(location)
        return LocalStore(Path(location))
    # Messages only contain the scheme: the rest may contain a password.
    scheme = match[1].lower()
    opener = _OPENERS.get(scheme)
    if opener is None:
        hint = f"Known locations are a path, {', '.join(f'{known}:' for known in _OPENERS)}."
        raise UnsupportedError(f"no store for locations that start with {scheme}:", hint=hint)
    return opener(location, s3)


def check_spelling(location: str) -> None:
    """Raise UsageError for a URL without its slashes: the user does not mean a folder of that name."""
    if location.lower().startswith("memory:") and not _SCHEME.match(location):
        raise UsageError(
            "a repository in memory would be gone when the command ends",
            hint="Name a folder or s3://bucket/prefix. For a folder of that name, write ./ before it.",
        )
    if (typo := _TYPO.match(location)) and not _SCHEME.match(location):
        scheme = typo[1].lower()
        raise UsageError(
            f"a location that starts with {scheme}: must be written {_WRITTEN[scheme]}",
            hint="Use two slashes. For a folder of that name, write ./ before it.",
        )


def _file(location: str, _s3: S3Settings | None) -> Store:
    try:
        parts = urlsplit(location)
    except ValueError:
        raise UsageError("a file location is written file:///absolute/path") from None
    path = unquote_to_bytes(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path or b"\0" in path:
        raise UsageError("a file location is written file:///absolute/path")
    return LocalStore(Path(path.decode("utf-8", "surrogateescape")))


def _s3(location: str, settings: S3Settings | None) -> Store:
    bucket, _, prefix = location[len("s3://") :].partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket) or (prefix and not is_key(prefix)):
        raise UsageError(
            f"an S3 location is written {_WRITTEN['s3']}",
            hint="A prefix has letters, digits and . _ - %, and no part of it starts with a dot.",
        )
    from jsbackup.stores.s3 import S3Store  # importing boto3 takes half a second

    return S3Store(bucket, prefix, settings)


_OPENERS: dict[str, Callable[[str, S3Settings | None], Store]] = {"file": _file, "s3": _s3}
