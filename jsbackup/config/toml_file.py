"""Read TOML files that people write, of limited size; errors are one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from jsbackup.errors import UsageError

__all__ = ["read_toml"]

MAX_FILE_BYTES: Final = 256 << 10
MAX_LINE_BYTES: Final = 4 << 10  # tomllib needs a time that grows with the square of a dotted key


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the tables of a file; `what` names its kind in errors, such as `runbook`. Raises UsageError."""
    import tomllib  # here, because --help and --version read no files

    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable name"
        raise UsageError(f"cannot read the {what} {path}: {reason.lower()}") from error
    if len(data) > MAX_FILE_BYTES or any(len(line) > MAX_LINE_BYTES for line in data.splitlines()):
        raise UsageError(
            f"{what} {path} is larger than a {what} may be ({MAX_FILE_BYTES} bytes, {MAX_LINE_BYTES} a line)"
        )
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError:
        raise UsageError(f"{what} {path} is not UTF-8") from None
    except ValueError as error:
        text = " ".join(str(error).split())
        raise UsageError(f"{what} {path} is not TOML: {text[:1].lower()}{text[1:200]}") from None
    except RecursionError:
        raise UsageError(f"{what} {path} is nested too deeply") from None
