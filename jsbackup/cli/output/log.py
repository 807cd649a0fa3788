"""Log lines on stderr: `level: message`, or with `--log-format json` one JSON object each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from jsbackup.cli.output.colour import State, paint, wants_colour
from jsbackup.cli.output.output import log_line
from jsbackup.cli.output.progress import write_beside_bars
from jsbackup.cli.output.terminal import printable
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import hide_logins
from jsbackup.readable import NAMED, without_name

__all__ = ["silence_spark", "start_log"]


_NEWS_SECONDS = 60.0


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = State(record.levelname.lower())
        text = printable(f": {hide_logins(record.getMessage())}", _encoding())
        return (paint(level) if wants_colour(sys.stderr) else level) + text


class _JsonLines(logging.Formatter):
    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = labels

    def format(self, record: logging.LogRecord) -> str:
        more = {**self._labels, **getattr(record, "fields", {})}
        return log_line(record.levelname.lower(), hide_logins(record.getMessage()), more, _encoding())


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


class _BesideBars(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write_beside_bars(self.format(record))


def _is_no_remark_on_tls(record: logging.LogRecord) -> bool:
    """Filter asyncio's remark when nats-py upgrades a connection to TLS without telling its protocol."""
    return "eof_received() has no effect" not in record.getMessage()


def _encoding() -> str:
    return sys.stderr.encoding or "utf-8"


def start_log(shared: Shared) -> None:
    """Set up logging by the options: warnings, -v for actions, -vv for everything, -q only for errors."""
    lines = _JsonLines(shared.output.labels) if shared.log_format == "json" else _TextLines()
    ours = logging.getLogger("jsbackup")
    level = {0: logging.WARNING, 1: logging.INFO}.get(shared.verbose, logging.DEBUG)
    ours.handlers = [_BesideBars()]
    if shared.log_format == "text" and not shared.verbose:
        ours.handlers[0].addFilter(_FewAlike())
    ours.setLevel(logging.ERROR if shared.output.quiet else level)
    ours.propagate = False
    # Without a handler Python prints asyncio's messages unformatted between our lines.
    others = logging.getLogger("asyncio")
    others.handlers = [_BesideBars(logging.WARNING if shared.verbose > 1 else logging.CRITICAL)]
    others.handlers[0].addFilter(_is_no_remark_on_tls)
    # nats-py also reports by callback, or ends a task that is watched.
    nats = logging.getLogger("nats")
    nats.handlers = [logging.NullHandler()]
    nats.propagate = False
    for handler in (*ours.handlers, *others.handlers):
        handler.setFormatter(lines)


def silence_spark() -> None:
    """Silence Spark and its gateway, which would log to the terminal."""
    # py4j uses the root logger for calls interrupted by Ctrl-C.
    if not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())
    # Errors of queries, which contain their text.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
