"""Results of any length on stdout: lines of text, lines of JSON, and bytes, printed as they come.

A closed pipe ends the result early, and is not an error; a full disk is one (`Output`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

import click

from jsbackup.cli.output.output import Output, silence
from jsbackup.cli.output.terminal import printable
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject

__all__ = ["print_bytes", "print_json_lines", "print_lines"]


def print_lines(output: Output, lines: Iterator[str]) -> None:
    """Print lines of untrusted text, through a pager on a terminal; nothing with --quiet."""
    encoding = sys.stdout.encoding or "utf-8"
    safe = (f"{printable(line, encoding)}\n" for line in lines)
    if output.quiet:
        return
    if sys.stdout.isatty():
        click.echo_via_pager(safe)
    else:
        _write(sys.stdout, safe)


def print_json_lines(documents: Iterable[JsonObject]) -> None:
    """Print documents, one in a line, with every character escaped that is not printable."""
    _write(sys.stdout, (f"{_json_line(one)}\n" for one in documents))


def print_bytes(pieces: Iterable[bytes]) -> None:
    """Print bytes exactly as they are."""
    sys.stdout.flush()
    _write(sys.stdout.buffer, pieces)


def _json_line(document: JsonObject) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    return text


def _write(stream: IO[Any], pieces: Iterable[Any]) -> None:
    iterator = iter(pieces)
    while True:
        piece = next(iterator, None)  # its errors are not those of the output
        try:
            if piece is None:
                stream.flush()
                return
            stream.write(piece)
        except OSError as error:
            silence(sys.stdout)
            if isinstance(error, BrokenPipeError):
                return
            raise JsBackupError(f"cannot write the output: {(error.strerror or str(error)).lower()}") from error
