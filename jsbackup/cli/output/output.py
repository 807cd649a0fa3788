"""All output to stdout: a command returns a result, `Output` prints it as text or as one JSON document.

stdout only has the result; progress and log lines go to stderr. Untrusted text is made safe for a terminal
(`cli/output/result.py`).

`--quiet` holds back the result, and prints it to stderr if the command does not succeed: cron mails what is printed,
and a result that is usually suppressed must be visible on the day of a failure.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import click

from jsbackup.cli.output.result import (
    Block,
    PlainText,
    Result,
    State,
    TextTable,
    bold,
    error_json,
    pad,
    paint,
    to_json,
    wants_colour,
)
from jsbackup.config import hide_logins
from jsbackup.errors import JsBackupError
from jsbackup.readable import display_width, printable

__all__ = [
    "Output",
    "drawn_now",
    "silence",
]

drawn_now: list[object] = []  # the bars of `cli/output/progress.py` that are on stderr
_MOST_HELD_BACK = 200  # for commands that never end


class Output:
    """The output of results. `as_json` prints one JSON document, otherwise its blocks are printed.

    `log_json` prints everything on stderr, including errors, as one JSON object per line, with `labels` in each.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        quiet: bool = False,
        log_json: bool = False,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.log_json = log_json
        self.labels = dict(labels or {})
        self._held_back: deque[Callable[[], None]] = deque(maxlen=_MOST_HELD_BACK)
        self._giving_up = False

    def show(self, result: Result) -> int:
        """Print a command's result, once; return its exit code."""
        if self.as_json:
            indent = None if result.at_once else 2
            _write(sys.stdout, to_json(result.document, indent=indent, encoding=_encoding(sys.stdout)))
        elif self.quiet and not result.at_once:
            self._held_back.append(lambda: self.blocks(result.text))
        else:
            self.blocks(result.text)
        return result.code

    def blocks(self, blocks: Iterable[Block]) -> None:
        """Print lines and tables of a result."""
        for block in blocks:
            if isinstance(block, TextTable):
                self.table(block.header, block.rows)
            elif isinstance(block, PlainText):
                (self.paged if block.paged else self.verbatim)(block.text)
            else:
                self.line(*([block] if isinstance(block, str) else block))

    def give_up_silence(self) -> None:
        """Print on stderr what --quiet has held back so far."""
        self._giving_up = True
        if self._held_back and self.labels and not self.log_json:
            self.line(" ".join(f"{name} {value}" for name, value in self.labels.items()))
        while self._held_back:
            self._held_back.popleft()()
        self._giving_up = False

    def line(self, *parts: str) -> None:
        """Print the parts in one line; `State`s are coloured on a terminal."""
        self._lines([_joined(parts, _encoding(sys.stdout), coloured=self._coloured)])

    def verbatim(self, text: str) -> None:
        """Print our own lines unchanged, such as a script."""
        _write(sys.stdout, text.removesuffix("\n"))

    def paged(self, text: str) -> None:
        """Print a long text of our own, through a pager on a terminal."""
        if sys.stdout.isatty() and not self._giving_up:
            click.echo_via_pager(text)
        else:
            self.verbatim(text)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print left-aligned columns; those whose header starts with `>` are right-aligned. Cells may be a `State`."""
        coloured, encoding = self._coloured, _encoding(sys.stdout)
        cells = [[_shown(cell, encoding) for cell in row] for row in rows]
        names = [h.lstrip(">") for h in header]
        widths = [max([len(n), *(display_width(row[i]) for row in cells)]) for i, n in enumerate(names)]

        def padded(cell: str, width: int, head: str) -> str:
            text = pad(cell, width, right=head.startswith(">"))
            return text.replace(cell, paint(cell)) if coloured and cell else text

        first, *lines = ["  ".join(map(padded, row, widths, header)).rstrip() for row in [names, *cells]]
        self._lines([bold(first) if coloured else first, *lines])

    @property
    def _coloured(self) -> bool:
        """Whether lines of the result have colours."""
        if self._giving_up:
            return not self.log_json and wants_colour(sys.stderr)
        return wants_colour(sys.stdout)

    def _lines(self, lines: Sequence[str]) -> None:
        """Print lines of the result, which are safe to print."""
        if not self._giving_up:
            _write(sys.stdout, "\n".join(lines))
        elif not self.log_json:
            _write(sys.stderr, "\n".join(lines))
        else:
            for line in filter(None, lines):
                self._aside("error", [line])

    def note(self, *parts: str) -> None:
        """Print a remark on stderr, held back by --quiet."""
        self._remark("info", parts)

    def warning(self, text: str) -> None:
        """Print a warning on stderr, held back by --quiet."""
        self._remark("warning", self._named("warning", text))

    def _remark(self, level: str, parts: Sequence[str]) -> None:
        if not self.quiet:
            self._aside(level, parts)
        elif not self.as_json:
            self._held_back.append(lambda: self._aside(level, parts))

    def announce(self, text: str) -> None:
        """Print an important remark on stderr, which --quiet does not hold back."""
        self._aside("warning" if self.quiet else "info", [text])

    def log(self, level: str, text: str, fields: Mapping[str, Any]) -> None:
        """Print a line of a log on stderr; `fields` are only in JSON."""
        self._aside(level, self._named(level, text), fields)

    def _named(self, level: str, text: str) -> Sequence[str]:
        return [text] if self.log_json else [State(level), ": ", text]

    def error(self, error: JsBackupError) -> None:
        """Print an error: one object on stdout with --json, else `error:` and `hint:` lines on stderr."""
        if self.as_json:
            _write(sys.stdout, to_json(error_json(error), indent=2, encoding=_encoding(sys.stdout)))
            return
        hint = hide_logins(error.hint) if error.hint else None
        text = self._named("error", hide_logins(error.message))
        self._aside("error", text, {"hint": hint, "code": error.exit_code})
        if hint and not self.log_json:
            for line in hint.split("\n"):
                self._aside("error", [f"hint: {line}"])

    def _aside(self, level: str, parts: Sequence[str], fields: Mapping[str, Any] | None = None) -> None:
        encoding = _encoding(sys.stderr)
        if self.log_json:
            moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
            about = {"time": moment, "level": level, "message": "".join(parts), **self.labels, **(fields or {})}
            line = to_json(about, encoding=encoding)
        else:
            line = _joined(parts, encoding, coloured=wants_colour(sys.stderr))
        if drawn_now:
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)  # above the bars
        else:
            _write(sys.stderr, line)


def _shown(part: str, encoding: str) -> str:
    """Return the part safe to print; a `State` stays one."""
    text = printable(part, encoding)
    return State(text) if isinstance(part, State) else text


def _joined(parts: Iterable[str], encoding: str, *, coloured: bool) -> str:
    shown = (_shown(part, encoding) for part in parts)
    return "".join(map(paint, shown) if coloured else shown)


def _encoding(stream: TextIO) -> str:
    return stream.encoding or "utf-8"


def _write(stream: TextIO, text: str) -> None:
    """Write and flush. A closed pipe (`| head`) is not an error, a result cut short by a full disk is."""
    try:
        stream.write(text + "\n")
        stream.flush()
    except OSError as error:
        silence(stream)
        if isinstance(error, BrokenPipeError) or stream is sys.stderr:
            return
        raise JsBackupError(f"cannot write the output: {(error.strerror or str(error)).lower()}") from error


def silence(stream: TextIO) -> None:
    """Discard unwritten output, so that the interpreter does not fail at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
