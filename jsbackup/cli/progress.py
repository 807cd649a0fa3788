"""Progress bars on stderr: one line per running stream and one for the whole, drawn by tqdm.

Only where stderr is a terminal and nobody asked for silence; otherwise `NullProgress` is used. Calls come from worker
threads too, so everything goes through one lock.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm

from jsbackup.progress import NullProgress, Progress

__all__ = ["TqdmProgress", "make_progress"]


class TqdmProgress:
    """One bar per running stream below one for the total: bytes, messages, rate, time left."""

    def __init__(self, verb: str) -> None:
        self._lock = threading.RLock()
        self._total = self._bar(verb, 0, position=0)
        self._bars: dict[str, tqdm[NoReturn]] = {}
        self._messages: dict[str, int] = {}
        self._all_messages = 0
        self._positions: set[int] = set()

    @staticmethod
    def _bar(label: str, total: int, *, position: int) -> tqdm[NoReturn]:
        shown = label if len(label) <= 24 else label[:23] + "…"
        return tqdm(
            total=total,
            desc=f"{shown:<24}",
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            position=position,
            leave=position == 0,
            dynamic_ncols=True,
            file=sys.stderr,
            bar_format="{desc} {percentage:3.0f}% {bar} {n_fmt}/{total_fmt}{postfix} {rate_fmt} {remaining} left",
        )

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        with self._lock:
            if name in self._bars:  # a retry starts the stream again
                bar = self._bars[name]
                self._total.update(-bar.n)
                bar.reset(total_bytes)
                self._all_messages -= self._messages[name]
                self._messages[name] = 0
                return
            position = next(i for i in range(1, len(self._positions) + 2) if i not in self._positions)
            self._positions.add(position)
            self._bars[name] = self._bar(name, total_bytes, position=position)
            self._messages[name] = 0
            self._total.total = (self._total.total or 0) + total_bytes
            self._total.refresh()

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        with self._lock:
            bar = self._bars.get(name)
            if bar is None:
                return
            self._messages[name] += messages
            self._all_messages += messages
            bar.set_postfix_str(f"{self._messages[name]:,} msgs", refresh=False)
            bar.update(byte_count)
            self._total.set_postfix_str(f"{self._all_messages:,} msgs", refresh=False)
            self._total.update(byte_count)

    def finish(self, name: str) -> None:
        with self._lock:
            bar = self._bars.pop(name, None)
            if bar is None:
                return
            # What was announced and what came differ a little (messages arrive and expire meanwhile).
            self._total.total = (self._total.total or 0) + bar.n - (bar.total or 0)
            self._positions.discard(-bar.pos)
            bar.close()
            self._total.refresh()

    def close(self) -> None:
        with self._lock:
            for bar in self._bars.values():
                bar.close()
            self._bars.clear()
            self._total.close()


@contextmanager
def make_progress(verb: str, *, wanted: bool) -> Iterator[Progress]:
    """Bars if wanted and stderr is a terminal, else silence."""
    if not wanted or not sys.stderr.isatty():
        yield NullProgress()
        return
    bars = TqdmProgress(verb)
    try:
        yield bars
    finally:
        bars.close()
