"""The one way to stdout: a command makes a result, `Output` prints it as text for people or as one JSON document.

stdout carries the result only; progress and log lines go to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject

__all__ = ["Output", "format_bytes", "format_count", "format_seconds", "format_time"]


def format_bytes(count: int) -> str:
    """IEC, three significant digits: `0 B`, `999 B`, `1.23 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or unit == "PiB":
            if unit == "B":
                return f"{count} B"
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
        value /= 1024
    raise AssertionError


def format_count(count: int) -> str:
    return f"{count:,}"


def format_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def format_time(ns: int) -> str:
    """RFC 3339 to the second, UTC; `-` for no time."""
    if not ns:
        return "-"
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _printable(text: str) -> str:
    """Names come from servers and archives: control characters must not reach a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


class Output:
    """Where results go. `as_json` prints one JSON document, else `text` is called to print lines."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    def result(self, document: JsonObject, text: Callable[[], None]) -> None:
        """Print a command's result, once."""
        if self.as_json:
            self._json(document)
        elif not self.quiet:
            text()

    def line(self, text: str = "") -> None:
        sys.stdout.write(_printable(text) + "\n")

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Left-aligned columns; those whose header starts with `>` are right-aligned."""
        cells = [[_printable(c) for c in row] for row in rows]
        names = [h.lstrip(">") for h in header]
        widths = [max([len(n), *(len(row[i]) for row in cells)]) for i, n in enumerate(names)]
        for row in [names, *cells]:
            parts = [
                cell.rjust(width) if head.startswith(">") else cell.ljust(width)
                for head, cell, width in zip(header, row, widths, strict=True)
            ]
            sys.stdout.write("  ".join(parts).rstrip() + "\n")

    def note(self, text: str) -> None:
        """A remark for people on stderr, silenced by --quiet."""
        if not self.quiet:
            sys.stderr.write(_printable(text) + "\n")

    def error(self, error: JsBackupError) -> None:
        """One object on stdout with --json, else `error:` and `hint:` lines on stderr."""
        if self.as_json:
            self._json({"error": {"code": error.exit_code, "message": error.message, "hint": error.hint}})
        else:
            sys.stderr.write(f"error: {_printable(error.message)}\n")
            if error.hint:
                sys.stderr.write(f"hint: {_printable(error.hint)}\n")

    def _json(self, document: JsonObject) -> None:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
