r"""`--payload-match REGEX`, `--exclude-payload-match REGEX`: messages whose payload has a match.

Expressions are those of RE2 (github.com/google/re2/wiki/Syntax), which takes time in proportion to the payload for any
of them, and mean what they mean in Go, and so in `nats backup edit`: a match may be anywhere, `^` and `$` are the ends
of the payload (of each line with `(?m)`), and `.` is no line break (unless `(?s)`).

Go reads text as characters in UTF-8, and each byte that is not part of one as the character U+FFFD, which `.`, `[^a]`
and `\x{FFFD}` match. RE2 in C++ never matches such a byte. So in payloads that are not UTF-8 these bytes are replaced
before. `\C`, which Go does not have, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import UsageError
from jsbackup.formats import kernels

__all__ = ["PayloadRule", "as_text"]

_QUOTED = re.compile(r"\\Q.*?(?:\\E|\Z)", re.DOTALL)
_ANY_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """A payload in which the expression has a match."""

    expression: str

    @classmethod
    def parse(cls, option: str, text: str) -> PayloadRule:
        """Return the rule. Raises UsageError, which names the option, for what is not an expression."""
        try:
            pc.match_substring_regex(pc.binary_array([b""]).view(pa.string()), text)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            reason = str(error).partition("regular expression: ")[2] or "it is not UTF-8"
            raise UsageError(
                f"{option}: not a regular expression: {text[:80]!r}: {reason[:200]}",
                hint="The syntax is that of RE2 and Go; quote the expression for the shell.",
            ) from error
        if _ANY_BYTE.search(_QUOTED.sub("", text)):
            raise UsageError(f"{option}: \\C is not supported: {text[:80]!r}", hint="Write (?s:.) for any character.")
        return cls(text)

    def __str__(self) -> str:
        return self.expression

    def rows(self, text: pa.StringArray) -> pa.BooleanArray:
        """Return for each payload, `as_text`, whether it has a match."""
        return pc.match_substring_regex(text, self.expression)


def as_text(column: pa.Array) -> pa.StringArray:
    """Return payloads as Go reads them: themselves if all are UTF-8, else with U+FFFD for each byte that is not."""
    text = column.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        _, offsets, data = column.buffers()
        within = memoryview(offsets)[4 * column.offset : 4 * (column.offset + len(column) + 1)]
        replaced = map(pa.py_buffer, kernels.replace_strays(within, memoryview(data)))
        return pa.Array.from_buffers(pa.string(), len(column), [None, *replaced])
    return text
