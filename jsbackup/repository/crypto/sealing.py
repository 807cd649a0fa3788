"""What stands between an object's meaning and its stored bytes: nothing, or encryption (`encryption.py`).

A sealing decides three things: how objects of the same meaning are named (a digest or a stream's name in a key would
tell who reads the listing what is stored), what bytes are stored for them, and how those are read again.
"""

from __future__ import annotations

from typing import Protocol

from jsbackup.repository import layout
from jsbackup.stores.base import Data

__all__ = ["PLAIN", "PlainSealing", "Sealing"]


class Sealing(Protocol):
    """`suffix` ends the keys of what is sealed this way; `head_bytes` at its beginning say for whom, 0 if for all."""

    @property
    def suffix(self) -> str: ...

    @property
    def head_bytes(self) -> int: ...

    def name(self, digest: str) -> str:
        """What stands for a digest (64 hex digits) in a key; 64 hex digits too, equal for equal digests.

        Raises `KeyUnavailable` without the key that it takes to write.
        """

    def folder(self, name: str, incarnation: str) -> str:
        """Where a stream's objects are, without a slash at the end. Errors as `layout.stream_folder` and `name`."""

    def seal(self, data: Data) -> Data:
        """The bytes to store. They need not be the same for the same data. Errors as `name`."""

    def opens(self, head: bytes) -> bool:
        """Whether an object that begins with `head` is for a key at hand. True for what is damaged."""

    def unseal(self, key: str, data: bytes) -> bytes:
        """The opposite, for the object under `key`.

        Raises:
            KeyUnavailable: what is needed to read it was not given, or does not fit.
            IntegrityError: it is damaged.
        """


class PlainSealing:
    """Stored as it is."""

    suffix = ""
    head_bytes = 0

    def name(self, digest: str) -> str:
        return digest

    def folder(self, name: str, incarnation: str) -> str:
        return layout.stream_folder(name, incarnation)

    def seal(self, data: Data) -> Data:
        return data

    def opens(self, head: bytes) -> bool:
        return True

    def unseal(self, key: str, data: bytes) -> bytes:
        return data


PLAIN = PlainSealing()
