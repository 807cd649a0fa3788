"""What stands between an object's meaning and its stored bytes: nothing, or encryption (`age.py`).

A sealing decides three things: how objects of the same meaning are named (a digest in a name would tell who reads the
listing what is stored), what bytes are stored for them, and how those are read again.
"""

from __future__ import annotations

from typing import Protocol

from jsbackup.stores.base import Data

__all__ = ["PLAIN", "PlainSealing", "Sealing"]


class Sealing(Protocol):
    """`suffix` ends the keys of what is sealed this way."""

    @property
    def suffix(self) -> str: ...

    def name(self, digest: str) -> str:
        """What stands for a digest (64 hex digits) in a key; 64 hex digits too, equal for equal digests."""

    def seal(self, data: Data) -> Data:
        """The bytes to store. They need not be the same for the same data."""

    def unseal(self, key: str, data: bytes) -> bytes:
        """The opposite, for the object under `key`.

        Raises:
            KeyUnavailable: what is needed to read it was not given, or does not fit.
            IntegrityError: it is damaged.
        """


class PlainSealing:
    """Stored as it is."""

    suffix = ""

    def name(self, digest: str) -> str:
        return digest

    def seal(self, data: Data) -> Data:
        return data

    def unseal(self, key: str, data: bytes) -> bytes:
        return data


PLAIN = PlainSealing()
