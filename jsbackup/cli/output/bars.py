"""Progress bars: one line for the whole, and below it one for each running stream, drawn by tqdm.

tqdm moves the cursor, computes the rates and leaves room for log lines; `draw_line` makes the lines, because names are
untrusted text of any width, and numbers should be formatted as in tables. Calls come from worker threads too, so
everything happens under tqdm's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, TextIO

from tqdm import tqdm

from jsbackup.cli.output.terminal import clip, pad, printable

__all__ = ["LiveLine", "TqdmProgress", "draw_line"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BLOCKS = " ▏▎▍▌▋▊▉█"
_ASCII = " #"
# Percentage, amount, messages, rate and time left, with the spaces between them.
_NUMBERS_COLUMNS = 5 + 16 + 12 + 11 + 12
_REDRAW_SECONDS = 0.2


def _scaled(count: float, unit: int) -> str:
    value = count / 1024**unit
    return f"{value:.0f}" if not value or unit == 0 or value >= 100 else f"{value:.{1 if value >= 10 else 2}f}"


def _unit(count: float) -> int:
    return next((unit for unit in range(len(_UNITS)) if count < 1000 * 1024**unit), len(_UNITS) - 1)


def _counted(count: int) -> str:
    """Format with three or four digits: `999`, `12.3k`, `4.56M`."""
    value = float(count)
    for letter in ("", "k", "M", "G"):
        if value < 999.5 or letter == "G":
            digits = 0 if not letter or value >= 100 else 1 if value >= 10 else 2
            return f"{value:.{digits}f}{letter}"
        value /= 1000
    raise AssertionError


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(min(seconds, 1e9)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 100:
        return f"{hours // 24}d"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes:02}:{rest:02}"


def _bar(fraction: float, columns: int, steps: str) -> str:
    """Draw a bar. `steps` are the characters for a column that is empty, partly full and full."""
    full, part = divmod(round(fraction * columns * (len(steps) - 1)), len(steps) - 1)
    return f"{steps[-1] * full}{steps[part] if full < columns else ''}".ljust(columns)


def draw_line(
    label: str, done: int, total: int | None, messages: int, *, rate: float, columns: int, plain: bool = False
) -> str:
    """Return one line of at most `columns`: bytes done of `total` (None if unknown), messages, bytes per second, time
    left.

    `plain` draws the bar in ASCII. Lines too narrow for a bar have none.
    """
    label_columns = max(12, min(30, columns // 4, columns - _NUMBERS_COLUMNS - 12))
    unit = _unit(max(done, total or 0))
    amount = f"{_scaled(done, unit)}{'' if total is None else '/' + _scaled(total, unit)} {_UNITS[unit]}"
    speed_unit = _unit(rate)
    numbers = f"{amount:>16}{_counted(messages) + ' msgs':>12}"
    numbers += f"{_scaled(rate, speed_unit) + ' ' + _UNITS[speed_unit] + '/s':>11}" if rate else " " * 11
    if total is not None and rate and total > done:
        numbers += f"{_clock((total - done) / rate) + ' left':>12}"
    fraction = 0.0 if total is None else 1.0 if done >= total else done / total
    share = "     " if total is None else f"{fraction * 100:4.0f}%"
    bar_columns = columns - label_columns - _NUMBERS_COLUMNS - 1
    bar = f" {_bar(fraction, bar_columns, _ASCII if plain else _BLOCKS)}" if bar_columns > 0 else ""
    return clip(f"{pad(clip(label, label_columns), label_columns)}{share}{bar}{numbers}", columns).rstrip()


if TYPE_CHECKING:
    _Tqdm = tqdm[NoReturn]
else:
    _Tqdm = tqdm


class LiveLine(_Tqdm):
    """A line of text that is redrawn in its place by `show`. The text is our own, without names."""

    monitor_interval = 0

    def __init__(self, stream: TextIO) -> None:
        self._text = ""
        super().__init__(leave=False, dynamic_ncols=True, file=stream)

    def __str__(self) -> str:
        return clip(self._text, (self.format_dict["ncols"] or 80) - 1)

    def show(self, text: str) -> None:
        with _LOCK:
            self._text = text
            self.refresh(nolock=True)


class _Line(_Tqdm):
    """A bar that draws itself with `draw_line`. `known` says whether its total is known."""

    monitor_interval = 0  # no thread of tqdm's own

    def __init__(self, label: str, total: int, position: int, stream: TextIO, *, known: bool) -> None:
        self.label = label
        self.messages = 0
        self.known = known
        super().__init__(
            total=total,
            position=position,
            leave=False,
            dynamic_ncols=True,
            miniters=1,
            mininterval=_REDRAW_SECONDS,
            file=stream,
        )

    def __str__(self) -> str:
        state = self.format_dict
        done, total = int(self.n), int(self.total or 0) if self.known else None
        rate = state["rate"] or (done / state["elapsed"] if state["elapsed"] else 0.0)
        return draw_line(
            self.label, done, total, self.messages, rate=rate, columns=state["ncols"] or 80, plain=bool(state["ascii"])
        )

    def move(self, position: int) -> None:
        """Move to another line, which is free."""
        self.clear(nolock=True)
        self.pos = -position  # negative: tqdm does not move it
        self.refresh(nolock=True)


_LOCK = threading.RLock()
for _kind in (LiveLine, _Line):
    _kind.set_lock(_LOCK)  # tqdm's default lock is shared between processes


class TqdmProgress:
    """See `jsbackup.progress.Progress`. Totals that turn out too small grow; a bar never exceeds its end."""

    def __init__(self, verb: str, stream: TextIO) -> None:
        self._verb = verb
        self._stream = stream
        self._whole = _Line(verb, 0, 0, stream, known=False)
        self._running: dict[str, _Line] = {}  # in the order of their lines
        self._paused: dict[str, tuple[int, int, int]] = {}  # bytes done, bytes in all, messages
        self._expected: dict[str, int] = {}
        self._streams = 0
        self._ended = 0

    def expect(self, totals: Mapping[str, int]) -> None:
        with _LOCK:
            self._expected = dict(totals)
            self._streams = len(totals)
            self._whole.known = True
            self._whole.total = sum(totals.values())
            self._say_whole()

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        with _LOCK:
            line = self._running.get(name) or self._resumed(name)
            if line is None:
                self._begin(name, total_bytes)
                self._grow(total_bytes - self._expected.pop(name, 0))
            else:  # from the beginning
                self._whole.messages -= line.messages
                self._whole.update(-line.n)
                self._grow(total_bytes - int(line.total or 0))
                line.messages = 0
                line.reset(total_bytes)
            self._say_whole()

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        with _LOCK:
            line = self._running.get(name) or self._resumed(name)
            if line is None:
                return
            missing = int(line.n) + byte_count - int(line.total or 0)
            if missing > 0:
                line.total = int(line.total or 0) + missing
                self._grow(missing)
            for one in (line, self._whole):
                one.messages += messages
                one.update(byte_count)

    def pause(self, name: str) -> None:
        with _LOCK:
            line = self._running.pop(name, None)
            if line is not None:
                self._paused[name] = (int(line.n), int(line.total or 0), line.messages)
                self._remove(line)

    def finish(self, name: str) -> None:
        with _LOCK:
            if name in self._paused:
                done, total, _ = self._paused.pop(name)
                self._grow(done - total)
                self._ended += 1
                self._say_whole()
                return
            line = self._running.pop(name, None)
            if line is None:
                if name in self._expected:  # ended before it began
                    self._grow(-self._expected.pop(name))
                    self._ended += 1
                    self._say_whole()
                return
            self._grow(int(line.n) - int(line.total or 0))
            self._ended += 1
            self._remove(line)
            self._say_whole()

    def close(self) -> None:
        with _LOCK:
            for line in reversed(self._running.values()):
                line.close()
            self._running.clear()
            self._whole.close()

    def write(self, text: str) -> None:
        """Write a line of text above the bars."""
        _Line.write(text, file=self._stream)

    def _begin(self, name: str, total_bytes: int) -> _Line:
        label = printable(name, self._stream.encoding or "utf-8")
        line = _Line(label, total_bytes, len(self._running) + 1, self._stream, known=True)
        self._running[name] = line
        return line

    def _resumed(self, name: str) -> _Line | None:
        """Return a new line for what was paused, as far as it had come; None if it was not."""
        if name not in self._paused:
            return None
        done, total, messages = self._paused.pop(name)
        line = self._begin(name, total)
        line.messages = messages
        line.n = line.last_print_n = line.initial = done
        return line

    def _remove(self, line: _Line) -> None:
        line.close()
        for position, other in enumerate(self._running.values(), 1):
            if abs(other.pos) != position:
                other.move(position)

    def _grow(self, byte_count: int) -> None:
        self._whole.total = int(self._whole.total or 0) + byte_count

    def _say_whole(self) -> None:
        if self._streams:
            self._whole.label = f"{self._verb} {self._ended}/{self._streams}"
        self._whole.refresh()
