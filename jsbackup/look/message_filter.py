"""Which messages are looked for: by sequence or time, subject, header, and text of the payload.

All conditions must hold. A filter judges a page or segment by its bounds in the manifest, a row group by its
statistics, and messages by their columns; nothing is read that an earlier judgement rules out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import UsageError
from jsbackup.formats.segment import GroupBounds
from jsbackup.look.message import headers_of
from jsbackup.repository.pages.segment_list import Part
from jsbackup.transforms.cut import Cut, KeptShare
from jsbackup.transforms.subjects import check_pattern

__all__ = ["ALL_MESSAGES", "HeaderRule", "MessageFilter", "parse_header_rule"]

_HEAD = ("sequence", "timestamp_ns", "subject")


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """A header with this name, in any case; with this value, unless it is None."""

    name: str
    value: str | None = None

    def matches(self, block: bytes | None) -> bool:
        return any(
            header.name.lower() == self.name.lower() and self.value in (None, header.value)
            for header in headers_of(block)
        )


def parse_header_rule(text: str) -> HeaderRule:
    """Parse `NAME` or `NAME=VALUE`. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not name or ":" in name or not text.isprintable():
        raise UsageError(f"--header: not a header: {text[:80]!r}", hint="Write --header NAME or --header NAME=VALUE.")
    return HeaderRule(name, value if equals else None)


@dataclass(frozen=True)
class MessageFilter:
    """`subjects` are patterns of which one must match; none: any subject. `text` is part of the payload, as bytes."""

    cut: Cut = field(default_factory=Cut)
    subjects: tuple[str, ...] = ()
    headers: tuple[HeaderRule, ...] = ()
    text: bytes = b""

    @classmethod
    def of(
        cls, cut: Cut, subjects: Sequence[str] = (), headers: Sequence[HeaderRule] = (), text: str = ""
    ) -> MessageFilter:
        """Return a filter. Raises UsageError for a pattern that is not one."""
        for one in subjects:
            check_pattern("--subject", one)
        return cls(cut, tuple(subjects), tuple(headers), text.encode("utf-8", "surrogateescape"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it judges by."""
        return (*_HEAD, *(["headers"] if self.headers else []), *(["data"] if self.text else []))

    @property
    def by_content(self) -> bool:
        """Whether it needs more than sequences and times."""
        return bool(self.subjects or self.headers or self.text)

    def wants_part(self, part: Part) -> bool:
        """Return whether a page or segment may have such messages."""
        return self._share(part) is not KeptShare.NONE

    def takes_all_of(self, part: Part) -> bool:
        """Return whether all messages of a page or segment are wanted."""
        return not self.by_content and self._share(part) is KeptShare.ALL

    def _share(self, part: Part) -> KeptShare:
        return self.cut.share(part.first_seq, part.last_seq, part.min_ns, part.max_ns)

    def wants_group(self, bounds: GroupBounds) -> bool:
        """Return whether a row group may have such messages."""
        sequences, times = bounds.sequence, bounds.timestamp_ns
        if sequences and times and self.cut.share(*sequences, *times) is KeptShare.NONE:
            return False
        if not self.subjects or bounds.subject is None:
            return True
        low, high = bounds.subject
        # A bound may be a shortened subject, so that only as much of it is compared.
        return any(low[: len(one)] <= one and high[: len(one)] >= one[: len(high)] for one in self._prefixes)

    def rows(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row of a batch, which has at least `columns`, whether it is wanted."""
        masks = [] if not self.cut else [self.cut.rows(batch)]
        if self.subjects:
            masks.append(self._subject_rows(batch.column("subject")))
        if self.text:
            masks.append(pc.match_substring(batch.column("data"), self.text))
        if self.headers:
            masks += [_header_rows(batch.column("headers"), rule) for rule in self.headers]
        return reduce(pc.and_, masks) if masks else pc.is_valid(batch.column("sequence"))

    def any_row(self, batch: pa.RecordBatch) -> bool:
        return bool(self.rows(batch).true_count)

    @cached_property
    def _literals(self) -> pa.Array:
        return pc.binary_array([one.encode() for one in self.subjects if not _has_wildcard(one)])

    @cached_property
    def _expressions(self) -> list[str]:
        return [_expression(one) for one in self.subjects if _has_wildcard(one)]

    @cached_property
    def _prefixes(self) -> list[bytes]:
        return [_literal_part(one).encode() for one in self.subjects]

    def _subject_rows(self, column: pa.Array) -> pa.BooleanArray:
        raw = column.view(pa.binary())
        masks = [pc.match_substring_regex(raw, one) for one in self._expressions]
        if len(self._literals) == 1:
            masks.append(pc.equal(raw, self._literals[0]))
        elif len(self._literals):
            masks.append(pc.is_in(raw, value_set=self._literals))
        return reduce(pc.or_, masks)


ALL_MESSAGES = MessageFilter()


def _has_wildcard(pattern: str) -> bool:
    return any(token in ("*", ">") for token in pattern.split("."))


def _literal_part(pattern: str) -> str:
    """Return what all subjects that match begin with."""
    tokens = pattern.split(".")
    for at, token in enumerate(tokens):
        if token in ("*", ">"):
            return "".join(f"{one}." for one in tokens[:at])
    return pattern


def _expression(pattern: str) -> str:
    """Return a regular expression for RE2 that matches the bytes of a literal subject."""
    wild = {"*": "[^.]*", ">": ".*"}
    tokens = (wild.get(token) or "".join(f"\\x{byte:02x}" for byte in token.encode()) for token in pattern.split("."))
    return "(?s)\\A" + "\\.".join(tokens) + "\\z"


def _header_rows(column: pa.Array, rule: HeaderRule) -> pa.BooleanArray:
    # Few blocks have the name, and only those are parsed.
    near = pc.match_substring(column, rule.name.encode("utf-8", "surrogateescape"), ignore_case=True).to_pylist()
    return pa.array([bool(maybe and rule.matches(column[row].as_py())) for row, maybe in enumerate(near)], pa.bool_())
