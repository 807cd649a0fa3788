"""Log lines on stderr: `level: message`, or with `--log-format json` one JSON object each."""

from __future__ import annotations

import logging
import sys

from jsbackup.cli.command import Shared
from jsbackup.cli.output import log_line
from jsbackup.cli.progress import write_beside_bars
from jsbackup.cli.terminal import hide_logins, printable

__all__ = ["start_log"]


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {hide_logins(record.getMessage())}", _encoding())


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return log_line(record.levelname.lower(), hide_logins(record.getMessage()), {}, _encoding())


class _BesideBars(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        write_beside_bars(self.format(record))


def _encoding() -> str:
    return sys.stderr.encoding or "utf-8"


def start_log(shared: Shared) -> None:
    """Log as the options say: warnings, with -v what is done, with -vv everything, with -q errors only."""
    handler = _BesideBars()
    handler.setFormatter(_JsonLines() if shared.log_format == "json" else _TextLines())
    ours = logging.getLogger("jsbackup")
    level = {0: logging.WARNING, 1: logging.INFO}.get(shared.verbose, logging.DEBUG)
    ours.handlers = [handler]
    ours.setLevel(logging.ERROR if shared.output.quiet else level)
    ours.propagate = False
    # What the libraries say takes the same form; without a handler Python would print it raw.
    others = logging.getLogger()
    others.handlers = [handler]
    others.setLevel(logging.WARNING if shared.verbose > 1 else logging.CRITICAL)
