"""Parse the status line of a NATS header block.

A block is `NATS/1.0[ <three digits>[ <description>]]\\r\\n`, then `Name: value` lines, then an empty line. Servers put
a status there instead of a payload: 204 at the end of a snapshot, 408 and 500 when it failed, 503 when no one listens.
Only the first line is parsed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.errors import FormatError
from jsbackup.readable import one_line

__all__ = ["NO_RESPONDERS", "HeaderStatus", "parse_status"]

NO_RESPONDERS = 503

_MAGIC = b"NATS/1.0"
_END = b"\r\n"
_MAX_STATUS_LINE_BYTES = 4096  # a complete server error has a few hundred; beyond this it is not a status line


@dataclass(frozen=True, slots=True)
class HeaderStatus:
    """A status and its text, "" if the server sent none."""

    code: int
    description: str

    def __str__(self) -> str:
        return f"{self.code} {self.description}".rstrip()


def parse_status(headers: bytes) -> HeaderStatus | None:
    """Return the status of a header block; None if it is empty or has none. Raises FormatError for anything else."""
    if not headers:
        return None
    end = headers.find(_END, 0, _MAX_STATUS_LINE_BYTES)
    if not headers.startswith(_MAGIC) or end < 0:
        raise FormatError(f"not a NATS header block (starts with {bytes(headers[:16])!r})")
    line = headers[len(_MAGIC) : end]
    if not line.strip(b" \t"):
        return None
    digits, rest = line[1:4], line[4:]
    if line[:1] != b" " or len(digits) != 3 or not digits.isdigit() or rest[:1] not in (b"", b" "):
        raise FormatError(f"not a NATS status line: {bytes(headers[: min(end, 40)])!r}")
    return HeaderStatus(int(digits), one_line(rest.decode("utf-8", "replace")))
