"""A command on a terminal, with a person who answers its questions."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.harness.commands import command_line, environment
from tests.harness.warm import take_terminal

_SECONDS = 60.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x07")


class Dialogue:
    """What was drawn so far, and what is typed next. `code` is the exit code after `end`."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self._terminal = terminal
        self.drawn = ""
        self._seen = 0
        self.code: int | None = None

    def expect(self, text: str) -> None:
        """Wait until this is drawn after what was expected before."""
        deadline = time.monotonic() + _SECONDS
        while (found := self.drawn.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"no {text!r} after:\n{self.drawn}"
            assert self._read(), f"no {text!r}, but the end:\n{self.drawn}"
        self._seen = found + len(text)

    def answer(self, question: str, text: str) -> None:
        """Wait for the question, and type the answer."""
        self.expect(question)
        os.write(self._terminal, text.encode() + b"\n")

    def press(self, question: str, keys: bytes) -> None:
        """Wait for the question, and press keys such as Ctrl-C."""
        self.expect(question)
        # A line editor, if there is one, sets the terminal up after it has drawn the question.
        time.sleep(0.3)
        os.write(self._terminal, keys)

    def end(self) -> int:
        """Read until the command ends; return its exit code."""
        while self._read():
            pass
        self.code = self.process.wait(_SECONDS)
        assert "Traceback" not in self.drawn, self.drawn
        return self.code

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], _SECONDS)
        assert ready, f"still running:\n{self.drawn}"
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux: the other side is closed
            return False
        self.drawn += _ESCAPES.sub("", data.decode(errors="replace")).replace("\r", "")
        return bool(data)


@contextlib.contextmanager
def dialogue(*arguments: str | Path, folder: Path | None = None, **extra: str) -> Iterator[Dialogue]:
    """Run a command with a terminal of its own, which is where Ctrl-C comes from."""
    terminal, side = pty.openpty()
    process = subprocess.Popen(
        command_line(*arguments),
        stdin=side,
        stdout=side,
        stderr=side,
        cwd=folder,
        env=environment(**{"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200", **extra}),
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(side)
    try:
        yield Dialogue(process, terminal)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(terminal)
