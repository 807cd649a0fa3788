"""How the content of objects becomes the bytes that are stored: as it is, or encrypted (`opening.py`).

A sealing decides three things: the names of objects (a digest or a stream's name in a key would reveal to anybody who
can list keys what is stored), the stored bytes, and how they are read again.
"""

from __future__ import annotations

from typing import Protocol

from jsbackup.repository import layout
from jsbackup.stores.base import Data

__all__ = ["PLAIN", "PlainSealing", "Sealing"]


class Sealing(Protocol):
    """`suffix` ends the keys of sealed objects; `reads` says whether a key that opens all of them was given."""

    @property
    def suffix(self) -> str: ...

    @property
    def reads(self) -> bool: ...

    def name(self, digest: str) -> str:
        """Return the name that stands for a digest in a key. Both are 64 hex digits; equal digests have equal names.

        Raises `KeyUnavailable` without the key that is needed to write.
        """

    def folder(self, name: str, incarnation: str) -> str:
        """Return the folder of a stream's objects, without a slash at the end. Errors as `layout.stream_folder` and
        `name`.
        """

    def seal(self, data: Data) -> Data:
        """Return the bytes to store. They may differ each time. Errors as `name`."""

    def unseal(self, key: str, data: bytes) -> bytes:
        """Return the content of the object under `key`.

        Raises:
            KeyUnavailable: the needed key was not given, or does not fit.
            IntegrityError: it is damaged.
        """


class PlainSealing:
    """Stores content as it is."""

    suffix = ""
    reads = True

    def name(self, digest: str) -> str:
        return digest

    def folder(self, name: str, incarnation: str) -> str:
        return layout.stream_folder(name, incarnation)

    def seal(self, data: Data) -> Data:
        return data

    def unseal(self, key: str, data: bytes) -> bytes:
        return data


PLAIN = PlainSealing()
