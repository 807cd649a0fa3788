"""Run programs that print a secret, without a shell.

Those that the user writes (`--password-command`) are split as by a shell, and may ask questions on the terminal. Those
that look up a reference (`op`, `nsc`) are found on the PATH, get no input, and are stopped if they take too long.
Nothing that a program prints on stdout is in a message.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from jsbackup.config.secrets import FILE_LIMIT_BYTES, hide_secrets
from jsbackup.errors import UsageError

__all__ = ["looked_up", "output_of"]

# Time to unlock a vault by a fingerprint or on a phone.
_LOOKUP_SECONDS: Final = 60.0
_PROGRAMS: Final = {"op": "the command line tool of 1Password", "nsc": "the tool that manages NATS accounts"}
_MOST_QUOTED: Final = 200


def output_of(command: str, what: str) -> bytes:
    """Return the output. Raises UsageError, which contains neither the command nor its output."""
    try:
        words = shlex.split(command)
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            output = process.stdout.read(FILE_LIMIT_BYTES + 1)
            if len(output) > FILE_LIMIT_BYTES:
                process.kill()
    except (OSError, ValueError, IndexError) as error:  # not chained: the command may contain the secret
        reason = error.strerror if isinstance(error, OSError) else "it is not a command"
        raise UsageError(f"the command for the {what} cannot be run: {reason}") from None
    if len(output) > FILE_LIMIT_BYTES:
        raise UsageError(f"the command for the {what} prints more than {FILE_LIMIT_BYTES >> 20} MiB")
    if process.returncode:
        raise UsageError(f"the command for the {what} failed with exit code {process.returncode}")
    if not output.strip():
        raise UsageError(f"the command for the {what} prints nothing")
    return output


def looked_up(
    words: Sequence[str],
    reference: str,
    what: str,
    environ: Mapping[str, str],
    *,
    limit_seconds: float = _LOOKUP_SECONDS,
) -> bytes:
    """Return what the program `words[0]` prints for a reference. `environ` is its environment, with the PATH.

    Raises UsageError: the program is not there, fails, takes too long, or prints nothing.
    """
    name = words[0]
    program = shutil.which(name, path=environ.get("PATH", os.defpath))
    if program is None:
        raise UsageError(
            f"the {what} is an {name}:// reference, and the program {name} ({_PROGRAMS[name]}) is not on the PATH",
            hint=f"Install {name}, or give a file, or put the secret into a variable and write env://NAME.",
        )
    command = " ".join(words[:-1])
    try:
        process = subprocess.Popen(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,  # so that all that it starts can be stopped
        )
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it has a zero byte"
        raise UsageError(f"'{command}' for the {what} cannot be run: {reason}") from error
    with process:
        try:
            output, said = _read(process, limit_seconds)
            if len(output) <= FILE_LIMIT_BYTES:
                process.wait(limit_seconds)
        except (TimeoutError, subprocess.TimeoutExpired):
            raise UsageError(
                f"'{command}' for the {what} did not end within {limit_seconds:g} s, and was stopped",
                hint=f"It may wait to be unlocked: run '{command} {reference}' by hand once.",
            ) from None
        finally:
            if process.returncode is None:  # also what it has started, which may hold the pipes open
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
    if len(output) > FILE_LIMIT_BYTES:
        raise UsageError(f"'{command}' for the {what} prints more than {FILE_LIMIT_BYTES >> 20} MiB")
    if process.returncode:
        reason = _quoted(said, output)
        raise UsageError(
            f"the {what} {reference} cannot be looked up: '{command}' failed with exit code {process.returncode}"
            + (f": {reason}" if reason else "")
        )
    if not output.strip():
        raise UsageError(f"the {what} {reference} cannot be looked up: '{command}' prints nothing")
    return output


def _read(process: subprocess.Popen[bytes], limit_seconds: float) -> tuple[bytes, bytes]:
    """Return what is printed on stdout and on stderr until both are closed, or there is too much of it. Raises
    TimeoutError.
    """
    assert process.stdout is not None and process.stderr is not None
    until = time.monotonic() + limit_seconds
    found = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in found:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                for stream, seen in found.items():
                    if stream is key.fileobj:
                        seen += data
            if any(len(seen) > FILE_LIMIT_BYTES for seen in found.values()):
                break
    return bytes(found[process.stdout]), bytes(found[process.stderr])


def _quoted(said: bytes, output: bytes) -> str:
    """Return the last line that a program wrote on stderr, without anything that may be a secret."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    text = "".join(letter if letter.isprintable() else " " for letter in (lines[-1] if lines else ""))
    printed = output.decode("utf-8", "replace").split()
    if any(len(word) > 3 and word in text for word in printed):
        return ""
    return hide_secrets(text.removeprefix("Error: "))[:_MOST_QUOTED]
