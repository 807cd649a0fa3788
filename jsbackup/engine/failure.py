"""What became of a stream that was to be backed up or restored, and was not."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.errors import JsBackupError

__all__ = ["Failure"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A stream that is not in the backup (or not restored), and why."""

    name: str
    error: JsBackupError
