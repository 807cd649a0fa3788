"""Report to a caller: progress by a callback, and waiting for a lock in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from jsbackup.errors import RepositoryLocked
from jsbackup.progress import NullProgress, Progress

__all__ = ["OnProgress", "StreamProgress", "note_waiting", "progress_to"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of a stream; in a restore it has its name at the server.

    Bytes are of messages, uncompressed. Totals are estimates, which may be off by some percent. A stream that is
    restarted after a failure is back at 0.
    """

    stream: str
    done_bytes: int = 0
    total_bytes: int = 0
    done_messages: int = 0
    total_messages: int = 0
    finished: bool = False


OnProgress: TypeAlias = Callable[[StreamProgress], object]
"""Called from other threads, but never concurrently. It should be quick, because the work waits for it. If it raises an
error, that is logged, and it is not called again.
"""


def note_waiting(error: RepositoryLocked) -> None:
    _log.warning("%s; waiting for it", error.message)


def progress_to(callback: OnProgress | None) -> Progress:
    return NullProgress() if callback is None else _Telling(callback)


class _Telling:
    """A progress watcher that calls a callback."""

    def __init__(self, callback: OnProgress) -> None:
        self._callback: OnProgress | None = callback
        self._streams: dict[str, StreamProgress] = {}
        self._lock = threading.Lock()

    def expect(self, totals: Mapping[str, int]) -> None:
        for name, total_bytes in totals.items():
            self.start(name, total_bytes, 0)

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        begun = StreamProgress(name, total_bytes=total_bytes, total_messages=total_messages)
        self._tell(name, lambda _now: begun)

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        self._tell(
            name,
            lambda now: replace(
                now, done_bytes=now.done_bytes + byte_count, done_messages=now.done_messages + messages
            ),
        )

    def pause(self, name: str) -> None:
        pass

    def finish(self, name: str) -> None:
        self._tell(name, lambda now: replace(now, finished=True))

    def _tell(self, name: str, change: Callable[[StreamProgress], StreamProgress]) -> None:
        with self._lock:
            now = self._streams[name] = change(self._streams.get(name) or StreamProgress(name))
            if self._callback is None:
                return
            try:
                self._callback(now)
            except Exception:  # noqa: BLE001 - whatever it is, it is not the work that failed
                self._callback = None
                _log.warning("the progress callback failed, and is not called again", exc_info=True)
