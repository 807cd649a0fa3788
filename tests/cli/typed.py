"""Commands as people type them: in a shell of their own, with a terminal or without, and what came of it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.commands import command_line, environment

SAFETY_SECONDS = 240.0  # only what hangs lasts so long


@dataclass(frozen=True, slots=True)
class Shop:
    """The server and the repository of the fixture `shop`."""

    url: str
    repo: Path
    backup: str


@dataclass(frozen=True, slots=True)
class Typed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        return document

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines on stderr."""
        return [json.loads(line) for line in self.err.splitlines()]


def in_shell(
    *arguments: str | Path, seconds: float = SAFETY_SECONDS, cold: bool = False, wire: str = "auto", **extra: str
) -> Typed:
    """Run a command in a process of its own, without a terminal, exactly as given; `cold` and `wire` as in
    `command_line`.
    """
    done = subprocess.run(
        command_line(*arguments, cold=cold, wire=wire),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=seconds,
        env=environment(**extra),
        start_new_session=True,  # no terminal of the developer's to ask
    )
    return Typed(done.returncode, done.stdout.decode(), done.stderr.decode())


def in_terminal(
    *arguments: str | Path,
    columns: int = 100,
    rows: int = 24,
    seconds: float = SAFETY_SECONDS,
    when_drawn: tuple[str, Callable[[int], None]] | None = None,
    out_too: bool = False,
    **extra: str,
) -> Typed:
    """Run a command whose stderr is a terminal; `err` is everything that was drawn there, escape sequences included.

    `when_drawn` is a text and what to do when it has appeared, once, with the process's id. With `out_too` stdout is
    the same terminal. Colours are there with an empty NO_COLOR.
    """
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        command_line(*arguments),
        stdin=side,
        stdout=side if out_too else subprocess.PIPE,
        stderr=side,
        env=environment(**{"TERM": "xterm", "NO_COLOR": "1", **extra}),
        start_new_session=True,
    )
    os.close(side)
    drawn, out, deadline = b"", b"", time.monotonic() + seconds
    open_ends = {terminal} if process.stdout is None else {terminal, process.stdout.fileno()}
    try:
        while open_ends:
            ready, _, _ = select.select(list(open_ends), [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"still running after {seconds} s:\n{drawn.decode(errors='replace')}")
            for end in ready:
                try:
                    data = os.read(end, 1 << 16)
                except OSError:  # Linux: the other side of the terminal is closed
                    data = b""
                if not data:
                    open_ends.discard(end)
                elif end == terminal:
                    drawn += data
                else:
                    out += data
            if when_drawn is not None and when_drawn[0].encode() in drawn:
                when_drawn[1](process.pid)
                when_drawn = None
        code = process.wait(timeout=10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        os.close(terminal)
    return Typed(code, out.decode(), drawn.decode())
