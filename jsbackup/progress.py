"""What a long operation tells whoever watches it. Drawing it is `cli/output/progress.py`'s business.

The contract, for both sides: calls come from several threads at once; `name` (a stream, or what is being read) tells
operations that run side by side apart; `start` for a name that is running means that it begins again from nothing (a
retry); totals are what was announced and may be missed by a little; calls are cheap, but not one per message: report
per batch. A watcher never raises and never blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["NullProgress", "Progress"]


class Progress(Protocol):
    """Bytes are raw bytes (the canonical encoding of messages), or stored bytes where only objects are read."""

    def expect(self, totals: Mapping[str, int]) -> None:
        """All that is to come, bytes by name, where that is known: called once at most, before the first `start`."""

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        """`name` begins, or begins again."""

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        """So much more of `name` is done."""

    def finish(self, name: str) -> None:
        """`name` has ended, well or not."""


class NullProgress:
    """Nobody watches."""

    def expect(self, totals: Mapping[str, int]) -> None:
        pass

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        pass

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        pass

    def finish(self, name: str) -> None:
        pass
