"""Log lines on stderr: `level: message`, or with `--log-format json` one JSON object each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from jsbackup.cli.options.context import Shared
from jsbackup.cli.output.colour import State, paint, wants_colour
from jsbackup.cli.output.grouped import NAMED, without
from jsbackup.cli.output.output import log_line
from jsbackup.cli.output.progress import write_beside_bars
from jsbackup.cli.output.terminal import hide_logins, printable

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
    """Where the same is logged of one stream or backup after the other, it is logged of the first ones only.

    Whose it is the first argument says, and numbers do not count. After a minute it is news again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, ...], tuple[float, set[str]]] = {}  # since when, and of which streams

    def filter(self, record: logging.LogRecord) -> bool:
        texts = [arg for arg in record.args if isinstance(arg, str)] if isinstance(record.args, tuple) else []
        if record.levelno < logging.WARNING or len(texts) < 2:
            return True
        name, *others = texts
        alike = (record.msg, *(without(name, other) for other in others))
        news_since = record.created - _NEWS_SECONDS
        self._seen = {what: (since, names) for what, (since, names) in self._seen.items() if since > news_since}
        _, names = self._seen.setdefault(alike, (record.created, set()))
        known = len(names)
        names.add(name)
        if known > NAMED:
            return False
        if len(names) > NAMED:
            record.msg, record.args = "the same goes for others; -v logs all of them", ()
        return True


class _BesideBars(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write_beside_bars(self.format(record))


def _is_no_remark_on_tls(record: logging.LogRecord) -> bool:
    """nats-py upgrades a connection to TLS without telling its protocol, and asyncio remarks on that when it ends."""
    return "eof_received() has no effect" not in record.getMessage()


def _encoding() -> str:
    return sys.stderr.encoding or "utf-8"


def start_log(shared: Shared) -> None:
    """Log as the options say: warnings, with -v what is done, with -vv everything, with -q errors only."""
    lines = _JsonLines(shared.output.labels) if shared.log_format == "json" else _TextLines()
    ours = logging.getLogger("jsbackup")
    level = {0: logging.WARNING, 1: logging.INFO}.get(shared.verbose, logging.DEBUG)
    ours.handlers = [_BesideBars()]
    if shared.log_format == "text" and not shared.verbose:
        ours.handlers[0].addFilter(_FewAlike())
    ours.setLevel(logging.ERROR if shared.output.quiet else level)
    ours.propagate = False
    # Without a handler Python prints what asyncio says as it is, between our lines.
    others = logging.getLogger("asyncio")
    others.handlers = [_BesideBars(logging.WARNING if shared.verbose > 1 else logging.CRITICAL)]
    others.handlers[0].addFilter(_is_no_remark_on_tls)
    # What nats-py logs is told by callback too, or ends a task that is watched.
    nats = logging.getLogger("nats")
    nats.handlers = [logging.NullHandler()]
    nats.propagate = False
    for handler in (*ours.handlers, *others.handlers):
        handler.setFormatter(lines)


def silence_spark() -> None:
    """What Spark and its gateway log by themselves would go to the terminal."""
    # py4j tells the root logger of calls that Ctrl-C has broken off.
    if not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())
    # Errors of queries, with the text of these in them.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
