"""Run programs that print a secret: split as by a shell, run without one, and able to ask questions on the terminal."""

from __future__ import annotations

import shlex
import subprocess

from jsbackup.config.secrets import FILE_LIMIT_BYTES
from jsbackup.errors import UsageError

__all__ = ["output_of"]


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
        reason = error.strerror if isinstance(error, OSError) else "it is no command"
        raise UsageError(f"the command for the {what} cannot be run: {reason}") from None
    if len(output) > FILE_LIMIT_BYTES:
        raise UsageError(f"the command for the {what} prints more than {FILE_LIMIT_BYTES >> 20} MiB")
    if process.returncode:
        raise UsageError(f"the command for the {what} failed with exit code {process.returncode}")
    if not output.strip():
        raise UsageError(f"the command for the {what} prints nothing")
    return output
