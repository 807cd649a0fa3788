"""Programs that print a secret: split as a shell would do it, run without one, asking on the terminal if they like."""

from __future__ import annotations

import shlex
import subprocess

from jsbackup.config.secrets import FILE_LIMIT_BYTES
from jsbackup.errors import UsageError

__all__ = ["output_of"]


def output_of(command: str, what: str) -> bytes:
    """What it prints, as it is. Raises UsageError, which repeats neither the command nor what it printed."""
    try:
        words = shlex.split(command)
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            output = process.stdout.read(FILE_LIMIT_BYTES + 1)
            if len(output) > FILE_LIMIT_BYTES:
                process.kill()
    except (OSError, ValueError, IndexError) as error:  # not chained: somebody may have put the secret into it
        reason = error.strerror if isinstance(error, OSError) else "it is no command"
        raise UsageError(f"the command for the {what} cannot be run: {reason}") from None
    if len(output) > FILE_LIMIT_BYTES:
        raise UsageError(f"the command for the {what} prints more than {FILE_LIMIT_BYTES >> 20} MiB")
    if process.returncode:
        raise UsageError(f"the command for the {what} failed with exit code {process.returncode}")
    if not output.strip():
        raise UsageError(f"the command for the {what} prints nothing")
    return output
