"""Progress of a long operation. `cli/output/progress.py` draws it.

The contract, for both sides: calls come from several threads at once; `name` (a stream, or what is being read) tells
operations that run side by side apart; `start` for a name that is running means that it begins again from nothing (a
retry); totals are what was announced and may be missed by a little; calls are cheap, but not one per message: report
per batch. A watcher never raises and never blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["NullProgress", "Progress", "ignored"]


class Progress(Protocol):
    """Bytes are raw bytes (the canonical encoding of messages), or stored bytes where only objects are read."""

    def expect(self, totals: Mapping[str, int]) -> None:
        """Announce everything to come, bytes by name, if known: called at most once, before the first `start`."""

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        """`name` begins, or begins again."""

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        """Report progress of `name`."""

    def finish(self, name: str) -> None:
        """`name` has ended, successfully or not."""


class NullProgress:
    """A watcher that ignores everything."""

    def expect(self, totals: Mapping[str, int]) -> None:
        pass

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        pass

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        pass

    def finish(self, name: str) -> None:
        pass


def ignored(*_values: object) -> None:
    """Ignore what is reported: for callers that need no progress of a part."""
