r"""The conditions that a message is judged by alone: its subject, its headers, its payload.

Those of one kind are alternatives: a message has to meet one of them, if there are any. None of the subjects that
leave out may match. All kinds have to agree. So it is in `nats backup edit` (jsm.go `backup/filter.go`).

Messages that are not kept are as if deleted: sequences stay, and so does the stream's last one.

`--header NAME[:VALUE]`: messages that have a header.

A header is what `nats backup edit` takes for one (jsm.go `backup/headers.go`, nats.go `DecodeHeadersMsg`), so that the
same option keeps the same messages:

- Names are compared without regard to case, as Unicode folds single characters (Go's `strings.EqualFold`).
- A value is the rest of the line after blanks and tabs; blanks at its end belong to it. It has to be equal. Of a header
  that occurs several times, one value has to be.
- The block ends at its first empty line.

What differs from the nats CLI 0.5.1: a block with a malformed line ends their command; here its other lines are read.
An inline status (`NATS/1.0 503`) is none of the headers here, and the header `Status` there. Blanks after the colon of
the option do not count here; there they belong to the value, which no header then has. In both, a name cannot have
colons or blanks; here neither an equals sign, which is a slip for the colon.

`--payload-match REGEX`: messages whose payload has a match.

Expressions are those of RE2 (github.com/google/re2/wiki/Syntax), which takes time in proportion to the payload for any
of them, and mean what they mean in Go, and so in `nats backup edit`: a match may be anywhere, `^` and `$` are the ends
of the payload (of each line with `(?m)`), and `.` is no line break (unless `(?s)`).

Go reads text as characters in UTF-8, and each byte that is not part of one as the character U+FFFD, which `.`, `[^a]`
and `\x{FFFD}` match. RE2 in C++ never matches such a byte. So in payloads that are not UTF-8 these bytes are replaced
before. `\C`, which Go does not have, is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, reduce
from typing import TypeVar

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import UsageError
from jsbackup.transforms.batches import MessageBatch, matching_subjects
from jsbackup.transforms.subjects import check_pattern, is_literal

__all__ = ["Filters", "HeaderRule", "PayloadRule", "as_text", "subject_rows"]

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


_STRAY = re.compile("[\udc80-\udcff]")  # as `surrogateescape` decodes a byte of no character


def as_text(column: pa.Array) -> pa.StringArray:
    """Return payloads as Go reads them: themselves if all are UTF-8, else with U+FFFD for each byte that is not."""
    text = column.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        rows = (payload.decode("utf-8", "surrogateescape") for payload in column.to_pylist())
        return pc.binary_array([_STRAY.sub("\ufffd", row).encode() for row in rows]).view(pa.string())
    return text


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
    variants |= {text.upper() for text in variants} | {text.lower() for text in variants}
    return f"(?:{'|'.join(_literally(text) for text in sorted(variants) if len(text) == 1)})"


def _literally(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode("utf-8", "surrogateescape"))


# --- subjects ---
#
# Subjects are those in the backup, before any is mapped.


def subject_rows(column: pa.Array, patterns: tuple[str, ...]) -> pa.BooleanArray:
    """Return for each subject of a column whether any of the patterns, at least one, matches it."""
    raw = column.view(pa.binary())
    literals, wide = _sorted(patterns)
    masks = [matching_subjects(column, wide)] if wide else []
    if len(literals) == 1:
        masks.append(pc.equal(raw, literals[0]))
    elif len(literals):
        masks.append(pc.is_in(raw, value_set=literals))
    return reduce(pc.or_, masks)


@lru_cache(maxsize=64)
def _sorted(patterns: tuple[str, ...]) -> tuple[pa.Array, list[str]]:
    """Return the literal subjects, and the patterns with wildcards."""
    literals = pc.binary_array([pattern.encode() for pattern in patterns if is_literal(pattern)])
    return literals, [pattern for pattern in patterns if not is_literal(pattern)]


R = TypeVar("R", str, HeaderRule, PayloadRule)


def option_of(name: str) -> str:
    """Return the option of a field of `Filters`."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Filters:
    """The conditions, named as their options. The default keeps all messages."""

    subject: tuple[str, ...] = ()
    exclude_subject: tuple[str, ...] = ()
    header: tuple[HeaderRule, ...] = ()
    payload_match: tuple[PayloadRule, ...] = ()

    @classmethod
    def parse(cls, typed: Mapping[str, Iterable[str]]) -> Filters:
        """Parse the texts of the options, by the names of fields. Others are ignored. Raises UsageError."""

        def rules(name: str, parse: Callable[[str, str], R]) -> tuple[R, ...]:
            return tuple(parse(option_of(name), text) for text in typed.get(name, ()))

        return cls(
            rules("subject", check_pattern),
            rules("exclude_subject", check_pattern),
            rules("header", HeaderRule.parse),
            rules("payload_match", PayloadRule.parse),
        )

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    @property
    def by_content(self) -> Sequence[tuple[str, HeaderRule | PayloadRule]]:
        """The conditions on headers and payloads, each with its option."""
        return [(option_of(name), rule) for name in ("header", "payload_match") for rule in getattr(self, name)]

    @property
    def by_subject(self) -> Filters:
        """Only the conditions on subjects."""
        return Filters(self.subject, self.exclude_subject)

    @property
    def words(self) -> list[str]:
        """The options as typed."""
        return [f"{option_of(field.name)} {rule}" for field in fields(self) for rule in getattr(self, field.name)]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a batch that it judges by."""
        return (
            *(("subject",) if self.subject or self.exclude_subject else ()),
            *(("headers",) if self.header else ()),
            *(("data",) if self.payload_match else ()),
        )

    def rows(self, batch: MessageBatch, matched: Counter[str] | None = None) -> pa.BooleanArray | None:
        """Return for each row of a batch, which has at least `columns`, whether it is kept; None if all are.

        `matched` is updated: for each condition of `by_content`, as typed, how many messages met it, of those that the
        kinds before let through; and by the option alone, how many these were.
        """
        counts: Counter[str] = Counter() if matched is None else matched
        kept = _and(None, batch.column("subject"), self._subjects) if self.subject or self.exclude_subject else None
        if self.header:
            kept = _and(kept, batch.column("headers"), lambda column: _judge("--header", self.header, column, counts))
        if self.payload_match:
            rules = self.payload_match
            kept = _and(
                kept, batch.column("data"), lambda column: _judge("--payload-match", rules, as_text(column), counts)
            )
        return kept

    def _subjects(self, column: pa.Array) -> pa.BooleanArray:
        kept = subject_rows(column, self.subject) if self.subject else None
        if not self.exclude_subject:
            return kept
        left = pc.invert(subject_rows(column, self.exclude_subject))
        return left if kept is None else pc.and_(kept, left)


def _judge(
    option: str, rules: Sequence[HeaderRule | PayloadRule], column: pa.Array, matched: Counter[str]
) -> pa.BooleanArray:
    """Return for each row of a column whether one of the rules is met, and count in `matched`."""
    matched[option] += len(column)
    met = [rule.rows(column) for rule in rules]
    for rule, rows in zip(rules, met, strict=True):
        matched[f"{option} {rule}"] += rows.true_count
    return reduce(pc.or_, met)


def _and(
    kept: pa.BooleanArray | None, column: pa.Array, judge: Callable[[pa.Array], pa.BooleanArray]
) -> pa.BooleanArray | None:
    """Return which rows are kept and pass the judge, who sees only rows that are kept; None: all."""
    if kept is None:
        rows = judge(column)
        return None if rows.true_count == len(rows) else rows
    if not kept.true_count:
        return kept
    return pc.replace_with_mask(kept, kept, judge(column.filter(kept)))
