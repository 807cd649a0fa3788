"""The conditions that a message is judged by alone: its subject, its headers, its payload.

Those of one kind that keep are alternatives: a message has to meet one of them, if there are any. None of those that
leave out may hold. All kinds have to agree. So it is in `nats backup edit` (jsm.go `backup/filter.go`).

Messages that are not kept are as if deleted: sequences stay, and so does the stream's last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import TypeVar

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import FormatError, UsageError
from jsbackup.model import JsonObject
from jsbackup.transforms.batches import MessageBatch
from jsbackup.transforms.filters.header_rule import HeaderRule
from jsbackup.transforms.filters.payload_rule import PayloadRule, as_text
from jsbackup.transforms.filters.subject_rules import parse_patterns, subject_rows

__all__ = ["Filters", "option_of"]

R = TypeVar("R", HeaderRule, PayloadRule)


def option_of(name: str) -> str:
    """Return the option of a field of `Filters`."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class Filters:
    """The conditions, named as their options. The default keeps all messages."""

    subject: tuple[str, ...] = ()
    exclude_subject: tuple[str, ...] = ()
    header: tuple[HeaderRule, ...] = ()
    exclude_header: tuple[HeaderRule, ...] = ()
    payload_match: tuple[PayloadRule, ...] = ()
    exclude_payload_match: tuple[PayloadRule, ...] = ()

    @classmethod
    def parse(cls, typed: Mapping[str, Iterable[str]]) -> Filters:
        """Parse the texts of the options, by the names of fields. Others are ignored. Raises UsageError."""

        def rules(name: str, parse: Callable[[str, str], R]) -> tuple[R, ...]:
            return tuple(parse(option_of(name), text) for text in typed.get(name, ()))

        return cls(
            parse_patterns("--subject", typed.get("subject", ())),
            parse_patterns("--exclude-subject", typed.get("exclude_subject", ())),
            rules("header", HeaderRule.parse),
            rules("exclude_header", HeaderRule.parse),
            rules("payload_match", PayloadRule.parse),
            rules("exclude_payload_match", PayloadRule.parse),
        )

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))

    @property
    def by_content(self) -> Sequence[tuple[str, HeaderRule | PayloadRule]]:
        """The conditions on headers and payloads, each with its option."""
        named = ("header", "exclude_header", "payload_match", "exclude_payload_match")
        return [(option_of(name), rule) for name in named for rule in getattr(self, name)]

    @property
    def by_subject(self) -> Filters:
        """Only the conditions on subjects."""
        return Filters(self.subject, self.exclude_subject)

    @property
    def words(self) -> list[str]:
        """The options as typed."""
        return [f"{option_of(name)} {text}" for name, texts in self.to_json().items() for text in texts]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a batch that it judges by."""
        return (
            *(("subject",) if self.subject or self.exclude_subject else ()),
            *(("headers",) if self.header or self.exclude_header else ()),
            *(("data",) if self.payload_match or self.exclude_payload_match else ()),
        )

    def rows(self, batch: MessageBatch, matched: Counter[str] | None = None) -> pa.BooleanArray | None:
        """Return for each row of a batch, which has at least `columns`, whether it is kept; None if all are.

        `matched` is updated: for each condition of `by_content`, as typed, how many messages met it, of those that the
        kinds before let through; and by the option alone, how many these were.
        """
        counts: Counter[str] = Counter() if matched is None else matched
        kept = _and(None, batch.column("subject"), self._subjects) if self.subject or self.exclude_subject else None
        if self.header or self.exclude_header:
            judge = _Judge("header", self.header, self.exclude_header, counts)
            kept = _and(kept, batch.column("headers"), judge)
        if self.payload_match or self.exclude_payload_match:
            judge = _Judge("payload_match", self.payload_match, self.exclude_payload_match, counts)
            kept = _and(kept, batch.column("data"), lambda column: judge(as_text(column)))
        return kept

    def _subjects(self, column: pa.Array) -> pa.BooleanArray:
        kept = subject_rows(column, self.subject) if self.subject else None
        if not self.exclude_subject:
            return kept
        left = pc.invert(subject_rows(column, self.exclude_subject))
        return left if kept is None else pc.and_(kept, left)

    def to_json(self) -> dict[str, list[str]]:
        """Encode the options as typed; only those that are given."""
        given = {field.name: [str(rule) for rule in getattr(self, field.name)] for field in fields(self)}
        return {name: texts for name, texts in given.items() if texts}

    @classmethod
    def from_json(cls, value: JsonObject) -> Filters:
        """Decode the result of `to_json`. Raises FormatError."""
        names = {field.name for field in fields(cls)}
        if not isinstance(value, dict) or value.keys() - names:
            raise FormatError("filters: not the fields that they have")
        for name, texts in value.items():
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise FormatError(f"filters: {name} is damaged")
        try:
            return cls.parse(value)
        except UsageError as error:
            raise FormatError(f"filters: {error.message}") from error


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges a column by conditions of one kind."""

    name: str
    keeping: Sequence[HeaderRule | PayloadRule]
    excluding: Sequence[HeaderRule | PayloadRule]
    matched: Counter[str]

    def __call__(self, column: pa.Array) -> pa.BooleanArray:
        for option, rules in ((self.name, self.keeping), (f"exclude_{self.name}", self.excluding)):
            if rules:
                self.matched[option_of(option)] += len(column)
        wanted = [self._met(option_of(self.name), rule, column) for rule in self.keeping]
        unwanted = [self._met(option_of(f"exclude_{self.name}"), rule, column) for rule in self.excluding]
        left = [pc.invert(reduce(pc.or_, unwanted))] if unwanted else []
        return reduce(pc.and_, [*([reduce(pc.or_, wanted)] if wanted else []), *left])

    def _met(self, option: str, rule: HeaderRule | PayloadRule, column: pa.Array) -> pa.BooleanArray:
        rows = rule.rows(column)
        self.matched[f"{option} {rule}"] += rows.true_count
        return rows


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
