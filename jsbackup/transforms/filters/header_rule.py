"""`--header NAME[:VALUE]`, `--exclude-header NAME[:VALUE]`: messages that have a header.

A header is what `nats backup edit` takes for one (jsm.go `backup/headers.go`, nats.go `DecodeHeadersMsg`), so that the
same option keeps the same messages:

- Names are compared without regard to case, as Unicode folds single characters (Go's `strings.EqualFold`).
- A value is the rest of the line after blanks and tabs; blanks at its end belong to it. It has to be equal. Of a header
  that occurs several times, one value has to be.
- The block ends at its first empty line.

What differs from the nats CLI 0.5.1: a block with a malformed line ends their command; here its other lines are read.
An inline status (`NATS/1.0 503`) is none of the headers here, and the header `Status` there. Blanks after the colon of
the option do not count here; there they belong to the value, which no header then has. `--exclude-header` takes no
value there. In both, a name cannot have colons or blanks; here neither an equals sign, which is a slip for the colon.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import UsageError

__all__ = ["HeaderRule"]

# A line that is not empty, with the break that ends it. The expressions are for bytes: Arrow's type `binary`.
_LINE = r"(?:[^\r\n][^\n]*|\r[^\n]+)\n"
_BEFORE = rf"(?s)\ANATS/1\.0[^\n]*\n(?:{_LINE})*"

# Characters that are not ASCII, and are folded to a letter that is.
_FOLDED = {"k": "\u212a", "s": "\u017f"}


@dataclass(frozen=True)
class HeaderRule:
    """A header with this name; with this value, unless it is None."""

    name: str
    value: str | None = None

    @classmethod
    def parse(cls, option: str, text: str) -> HeaderRule:
        """Parse `NAME` or `NAME:VALUE`. Raises UsageError, which names the option."""
        name, colon, value = text.partition(":")
        if not name or re.search(r"[= \t\r\n]", name) or re.search(r"[\r\n]", value):
            raise UsageError(f"{option}: not a header: {text[:80]!r}", hint=f"Write {option} NAME or NAME:VALUE.")
        # No header has a value that begins with a blank.
        return cls(name, value.lstrip(" \t") if colon else None)

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}:{self.value}"

    def rows(self, column: pa.Array) -> pa.BooleanArray:
        """Return for each header block (null: none) whether it has the header."""
        if column.null_count == len(column):
            return pa.repeat(pc.equal(pc.int64_array([0]), 1)[0], len(column))
        return pc.fill_null(pc.match_substring_regex(column, self._expression), False)

    @cached_property
    def _expression(self) -> str:
        name = "".join(map(_in_any_case, self.name))
        if self.value is None:
            return rf"{_BEFORE}{name}:[^\n]*\n"
        return rf"{_BEFORE}{name}:[ \t]*{_literally(self.value)}\r?\n"


def _in_any_case(character: str) -> str:
    # Turkish i and others have variants of two characters, which fold to nothing else.
    variants = {character, character.lower(), character.upper(), character.title(), _FOLDED.get(character.lower(), "")}
    variants |= {letter for letter, other in _FOLDED.items() if other == character}
    variants |= {one.upper() for one in variants} | {one.lower() for one in variants}
    return f"(?:{'|'.join(_literally(one) for one in sorted(variants) if len(one) == 1)})"


def _literally(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode("utf-8", "surrogateescape"))
