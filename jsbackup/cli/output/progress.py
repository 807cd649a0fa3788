"""Choose the progress watcher: bars if stderr is a terminal and the command is not quiet, else none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from jsbackup.progress import NullProgress, Progress

__all__ = ["make_live_line", "make_progress", "write_above_bars", "write_beside_bars"]

# Writes a line to stderr while bars are drawn there; None while there are none.
_write_above: Callable[[str], None] | None = None


@contextmanager
def make_progress(verb: str, *, wanted: bool) -> Iterator[Progress]:
    """Yield bars if wanted and stderr is a terminal, else a silent watcher."""
    global _write_above
    if not wanted or not sys.stderr.isatty():
        yield NullProgress()
        return
    from jsbackup.cli.output.bars import TqdmProgress

    bars = TqdmProgress(verb, sys.stderr)
    _write_above = bars.write
    try:
        yield bars
    finally:
        _write_above = None
        bars.close()


@contextmanager
def make_live_line(*, wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows a text in a fixed line, if wanted and stderr is a terminal."""
    global _write_above
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from jsbackup.cli.output.bars import LiveLine

    line = LiveLine(sys.stderr)
    _write_above = partial(LiveLine.write, file=sys.stderr)
    try:
        yield line.show
    finally:
        _write_above = None
        line.close()


def write_above_bars(line: str) -> bool:
    """Write a line to stderr above the bars; do nothing and return False if there are none."""
    if _write_above is None:
        return False
    _write_above(line)
    return True


def write_beside_bars(line: str) -> None:
    """Write a line to stderr without breaking the bars, if there are any."""
    if not write_above_bars(line):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
