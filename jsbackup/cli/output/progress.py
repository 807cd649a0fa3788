"""What a command says on stderr while it runs: progress bars, and log lines above them.

Bars are drawn by tqdm. Calls come from worker threads, too, so everything happens under a lock.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from jsbackup.cli.output.output import Output, drawn_now
from jsbackup.cli.output.result import pad
from jsbackup.config import hide_logins
from jsbackup.progress import NullProgress, Progress
from jsbackup.readable import NAMED, clip, printable, without_name

if TYPE_CHECKING:
    from tqdm import tqdm

    from jsbackup.cli.parsing.context import Shared

__all__ = ["TqdmProgress", "make_live_line", "make_progress", "silence_spark", "start_log"]

_LABEL_COLUMNS = 24
_REDRAW_SECONDS = 0.2
_NEWS_SECONDS = 60.0

D = TypeVar("D", "TqdmProgress", "tqdm[Any]")

_lock = threading.RLock()


def _bar(stream: TextIO, label: str, *, form: str | None = None) -> tqdm[Any]:
    from tqdm import tqdm

    tqdm.set_lock(_lock)  # tqdm's own is shared between processes
    tqdm.monitor_interval = 0  # no thread of its own
    return tqdm(
        desc=pad(clip(printable(label, stream.encoding or "utf-8"), _LABEL_COLUMNS), _LABEL_COLUMNS),
        total=0,  # until it is known
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        miniters=1,
        mininterval=_REDRAW_SECONDS,
        leave=False,
        dynamic_ncols=True,
        bar_format=form,
        file=stream,
    )


class TqdmProgress:
    """See `jsbackup.progress.Progress`. A bar for the whole, with the names of what runs, the latest first."""

    def __init__(self, verb: str, stream: TextIO) -> None:
        self._verb = verb
        self._encoding = stream.encoding or "utf-8"
        self._bar = _bar(stream, verb)
        self._totals: dict[str, int] = {}  # bytes of what was announced or runs
        self._done: dict[str, int] = {}  # of what runs
        self._streams = 0
        self._ended = 0

    def expect(self, totals: Mapping[str, int]) -> None:
        with _lock:
            self._totals, self._streams = dict(totals), len(totals)
            self._move(sum(totals.values()))

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        with _lock:
            # Again, it starts from nothing.
            more, done = total_bytes - self._totals.get(name, 0), self._done.get(name, 0)
            self._totals[name], self._done[name] = total_bytes, 0
            self._move(more, -done)

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        with _lock:
            if name in self._done:
                self._done[name] = self._done.pop(name) + byte_count
                more = max(0, self._done[name] - self._totals[name])
                self._totals[name] += more
                self._move(more, byte_count)

    def finish(self, name: str) -> None:
        with _lock:
            if name in self._totals:
                self._ended += 1
                self._move(self._done.pop(name, 0) - self._totals.pop(name))

    def close(self) -> None:
        with _lock:
            self._bar.close()

    def _move(self, more: int, done: int = 0) -> None:
        self._bar.total = (self._bar.total or 0) + more
        label = f"{self._verb} {self._ended}/{self._streams}" if self._streams else self._verb
        self._bar.set_description_str(pad(label, _LABEL_COLUMNS), refresh=False)
        names = ", ".join(printable(name, self._encoding) for name in islice(reversed(self._done), NAMED))
        self._bar.set_postfix_str(names, refresh=False)
        self._bar.update(done)
        if done <= 0:  # which draws nothing
            self._bar.refresh()


@contextmanager
def make_progress(verb: str, *, wanted: bool) -> Iterator[Progress]:
    """Yield bars if wanted and stderr is a terminal, else a silent watcher."""
    if wanted and sys.stderr.isatty():
        with _drawing(TqdmProgress(verb, sys.stderr)) as bars:
            yield bars
    else:
        yield NullProgress()


@contextmanager
def make_live_line(*, wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows a text of our own in a fixed line, if wanted and stderr is a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    with _drawing(_bar(sys.stderr, "", form="{desc}")) as line:
        yield lambda text: line.set_description_str(clip(text, (line.format_dict["ncols"] or 80) - 1))


@contextmanager
def _drawing(drawn: D) -> Iterator[D]:
    drawn_now.append(drawn)
    try:
        yield drawn
    finally:
        drawn_now.remove(drawn)
        drawn.close()


class _ToOutput(logging.Handler):
    def __init__(self, output: Output, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        text = hide_logins(record.getMessage())
        self._output.log(record.levelname.lower(), text, getattr(record, "fields", {}))


class _FewAlike(logging.Filter):
    """Logs messages that repeat for many streams or backups only for the first ones.

    The first argument is the stream or backup, and numbers are ignored. After a minute it is logged again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, ...], tuple[float, set[str]]] = {}  # since when, and for which streams

    def filter(self, record: logging.LogRecord) -> bool:
        texts = [arg for arg in record.args if isinstance(arg, str)] if isinstance(record.args, tuple) else []
        if record.levelno < logging.WARNING or len(texts) < 2:
            return True
        name, *others = texts
        alike = (record.msg, *(without_name(name, other) for other in others))
        news_since = record.created - _NEWS_SECONDS
        self._seen = {what: (since, names) for what, (since, names) in self._seen.items() if since > news_since}
        _, names = self._seen.setdefault(alike, (record.created, set()))
        known = len(names)
        names.add(name)
        if known > NAMED:
            return False
        if len(names) > NAMED:
            record.msg, record.args = "more streams have the same problem; -v logs all", ()
        return True


def start_log(shared: Shared) -> None:
    """Set up logging by the options: warnings, -v for actions, -vv for everything, -q only for errors."""
    ours = logging.getLogger("jsbackup")
    level = {0: logging.WARNING, 1: logging.INFO}.get(shared.verbose, logging.DEBUG)
    ours.handlers = [_ToOutput(shared.output)]
    if shared.log_format == "text" and not shared.verbose:
        ours.handlers[0].addFilter(_FewAlike())
    ours.setLevel(logging.ERROR if shared.output.quiet else level)
    ours.propagate = False
    # Without a handler Python prints asyncio's messages unformatted between our lines.
    others = logging.getLogger("asyncio")
    others.handlers = [_ToOutput(shared.output, logging.WARNING if shared.verbose > 1 else logging.CRITICAL)]
    # asyncio's remark when nats-py upgrades a connection to TLS without telling its protocol.
    others.handlers[0].addFilter(lambda record: "eof_received() has no effect" not in record.getMessage())
    # nats-py also reports by callback, or ends a task that is watched.
    nats = logging.getLogger("nats")
    nats.handlers = [logging.NullHandler()]
    nats.propagate = False


def silence_spark() -> None:
    """Silence Spark and its gateway, which would log to the terminal."""
    # py4j uses the root logger for calls interrupted by Ctrl-C.
    if not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())
    # Errors of queries, which contain their text.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
