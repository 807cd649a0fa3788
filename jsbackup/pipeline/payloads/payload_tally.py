"""What parsing has shown of payloads and their schema: how many do not fit, and which fields were there.

Parsers count while they parse; what tasks have counted is summed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from jsbackup.errors import PlanRefused
from jsbackup.readable import format_count, in_short

__all__ = ["FieldPath", "PayloadTally", "about_payloads", "against_misfits", "why_missed"]

FieldPath = tuple[str, ...]
"""The names of a field and of those around it, the outermost first; lists and maps on the way have no names."""

_HINT = (
    "Check the schema, and name the streams that it is for; 'jsbackup view' shows payloads. --payload-may-miss "
    "allows it."
)


@dataclass(slots=True)
class PayloadTally:
    """`payloads` were parsed, without those that have no values at all: empty ones, and JSON's null. `misfits` of them
    are in `_corrupt_record`. `known`: one of the others has a field of the schema, or no field at all. `seen` are the
    fields that payloads of JSON have; a field that is null was seen.
    """

    payloads: int = 0
    misfits: int = 0
    known: bool = False
    seen: set[FieldPath] = field(default_factory=set)

    def plus(self, other: PayloadTally) -> PayloadTally:
        return PayloadTally(
            self.payloads + other.payloads,
            self.misfits + other.misfits,
            self.known or other.known,
            self.seen | other.seen,
        )

    @property
    def missed(self) -> bool:
        """Whether there are payloads, and the schema is not theirs: none fits, or none has any of its fields."""
        return self.payloads > 0 and (self.misfits == self.payloads or not self.known)

    def unseen(self, schema: pa.StructType) -> tuple[str, ...]:
        """Return the fields of a schema of JSON that no payload has, with dots between names; of a field that none has,
        not also its parts.
        """
        return tuple(".".join(path) for path in _unseen(schema, (), self.seen))


def _unseen(kind: pa.DataType, path: FieldPath, seen: set[FieldPath]) -> Iterator[FieldPath]:
    if isinstance(kind, pa.StructType):
        for one in kind:
            inner = (*path, one.name)
            if inner in seen:
                yield from _unseen(one.type, inner, seen)
            else:
                yield inner
    elif isinstance(kind, pa.MapType):
        yield from _unseen(kind.item_type, path, seen)
    elif isinstance(kind, pa.ListType):
        yield from _unseen(kind.value_type, path, seen)


def why_missed(tally: PayloadTally, of: str, which: str = "") -> str:
    """Return in words why a schema that `missed` payloads is not theirs. `of` says whose they are, as ` of stream A`,
    and `which` they are, as `sampled `.
    """
    if tally.payloads == 1:
        return f"the one {which}payload{of} {'does not fit' if tally.misfits else 'has no field of'} the schema"
    count, fit = f"the {tally.payloads:,} {which}payloads{of}", tally.payloads - tally.misfits
    if not fit:
        return f"none of {count} fits the schema"
    if not tally.misfits:
        return f"none of {count} has a field of the schema"
    return f"only {fit:,} of {count} {'fits' if fit == 1 else 'fit'} the schema, without any field of it"


def against_misfits(stream: str, tally: PayloadTally, which: str = "") -> PlanRefused:
    """Return the refusal of a stream of which a schema has `missed` the payloads; `which` as in `why_missed`."""
    return PlanRefused(why_missed(tally, f" of stream {stream}", which), hint=_HINT)


def about_payloads(tally: PayloadTally, unseen: Sequence[str]) -> Iterator[str]:
    """Yield what users should know of the payloads of a stream that was written; `unseen` are fields that none has."""
    if tally.misfits:
        them = "it is" if tally.misfits == 1 else "they are"
        yield (
            f"{tally.misfits:,} of {format_count(tally.payloads, 'payload')} did not fit the schema; {them} in "
            "_corrupt_record"
        )
    if unseen and tally.payloads > tally.misfits:
        yield f"no payload has {'the field' if len(unseen) == 1 else 'any of the fields'} {in_short(unseen)}"
