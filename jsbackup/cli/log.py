"""Log lines on stderr: `level: message`, or with `--log-format json` one JSON object each."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from jsbackup.cli.command import Shared
from jsbackup.cli.output import log_line
from jsbackup.cli.progress import write_beside_bars
from jsbackup.cli.terminal import hide_logins, printable

__all__ = ["start_log"]


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {hide_logins(record.getMessage())}", _encoding())


class _JsonLines(logging.Formatter):
    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = labels

    def format(self, record: logging.LogRecord) -> str:
        more = {**self._labels, **getattr(record, "fields", {})}
        return log_line(record.levelname.lower(), hide_logins(record.getMessage()), more, _encoding())


class _BesideBars(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write_beside_bars(self.format(record))


def _encoding() -> str:
    return sys.stderr.encoding or "utf-8"


def start_log(shared: Shared) -> None:
    """Log as the options say: warnings, with -v what is done, with -vv everything, with -q errors only."""
    lines = _JsonLines(shared.output.labels) if shared.log_format == "json" else _TextLines()
    ours = logging.getLogger("jsbackup")
    level = {0: logging.WARNING, 1: logging.INFO}.get(shared.verbose, logging.DEBUG)
    ours.handlers = [_BesideBars()]
    ours.setLevel(logging.ERROR if shared.output.quiet else level)
    ours.propagate = False
    # Without a handler Python prints what asyncio says as it is, between our lines.
    others = logging.getLogger("asyncio")
    others.handlers = [_BesideBars(logging.WARNING if shared.verbose > 1 else logging.CRITICAL)]
    for handler in (*ours.handlers, *others.handlers):
        handler.setFormatter(lines)
