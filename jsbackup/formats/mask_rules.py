"""What a kernel is asked to mask, and what it says about it.

A rule replaces the values of a path in JSON payloads, the values of a header field, or whole payloads. Rules are known
by their numbers, and those for a message are a set of numbers in rising order, of which one at most is for its payload.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "MAX_VALUES",
    "MaskAction",
    "MaskPlace",
    "MaskRule",
    "MaskedRows",
    "RuleCount",
    "ShapedColumn",
    "Step",
    "StepKind",
]

# The most values of one message that a rule replaces.
MAX_VALUES = 1_000_000


class StepKind(StrEnum):
    MEMBER = "member"
    ELEMENT = "element"
    EVERY = "every"
    ANYWHERE = "anywhere"  # the member of that name, here and at all levels below


@dataclass(frozen=True, slots=True)
class Step:
    """One step down a path in JSON. `name` for members, `index` for elements."""

    kind: StepKind
    name: str = ""
    index: int = 0


class MaskPlace(StrEnum):
    """Where a rule replaces something."""

    PATH = "path"
    HEADER = "header"
    PAYLOAD = "payload"


class MaskAction(StrEnum):
    REDACT = "redact"  # a value becomes "***"
    HASH = "hash"  # a value becomes the hex digits of its keyed hash
    DROP = "drop"  # a payload becomes empty
    ZERO = "zero"  # a payload becomes zero bytes, as many as it has


class MaskRule(NamedTuple):
    """`steps` for a path, `name` for a header (in lower case): REDACT or HASH. DROP or ZERO for a payload."""

    place: MaskPlace
    action: MaskAction
    steps: tuple[Step, ...] = ()
    name: bytes = b""


class RuleCount(NamedTuple):
    """The numbers of messages that a rule is for: all that it had to examine (`seen`), those that could be read, those
    of them with a value, the values; and those that could not be read, where they are kept.
    """

    seen: int = 0
    read: int = 0
    hit: int = 0
    values: int = 0
    failed: int = 0


class ShapedColumn(NamedTuple):
    """A column in Arrow's layout, without validity: packed int32, and the bytes that they point into."""

    offsets: Buffer
    values: Buffer


class MaskedRows(NamedTuple):
    """The masked columns of a batch, None for one that no rule is for. `faults` has a byte for each row: 0, or what is
    wrong with the message (1, 2: see `_shaping_py.py`).
    """

    headers: ShapedColumn | None
    data: ShapedColumn | None
    faults: bytes
    counts: tuple[RuleCount, ...]
