"""`--mask SUBJECT_FILTER:WHAT=HOW`: remove personal data from payloads and from headers.

WHAT is a path into the payload (`json_path.py`), `header(NAME)`, or `payload`. HOW is for the first two

- `redact`: the value becomes `"***"`, whatever its type,
- `hash`: it becomes a string of 64 hex digits: HMAC-SHA-256 over its canonical JSON (`formats/json_text.py`) in UTF-8,
  so that equal values stay equal across streams and runs with the same secret, and values cannot be guessed without it.
  A header's value counts as a JSON string, equal to the same string in a payload.

The rest stays byte for byte. For whole payloads HOW is `drop` (it becomes empty) or `zero` (zero bytes, as many as it
has). Messages whose payload means something to servers or clients keep it (`reshape.py`).

Subjects are those in the backup, before any is mapped. Masks are applied in the given order, each to the result of the
ones before. Names of headers are compared case-insensitively.

Fails closed: if a mask applies to a message whose payload is not JSON (or whose header block is malformed), its content
is unknown, and `Unmaskable` says what happens: by default PlanRefused is raised. An empty payload has nothing to mask.
Only payloads and headers are masked: not subjects, nor names and descriptions in configurations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from jsbackup.errors import UsageError
from jsbackup.formats.mask_rules import MaskAction, MaskPlace, MaskRule
from jsbackup.transforms.subjects import check_pattern, overlaps

__all__ = ["Mask", "MaskAction", "MaskCount", "Masks", "Unmaskable"]

# With a shorter one values could be found by trying secrets.
MIN_SECRET_BYTES = 16

_RULE = re.compile(
    r"(?P<subject>.+?):(?P<what>\$(?:[.\[].*)?|header\(.*\)|payload)=(?P<action>[^=]*)",
    re.DOTALL,
)
_HEADER = re.compile(r"header\((?P<name>[!-9;-~]{1,256})\)", re.ASCII)
# Servers count with these: a stream that copies a counter reads them.
_COUNTING = frozenset(("nats-incr", "nats-counter-sources"))
_FOR_VALUES = (MaskAction.REDACT, MaskAction.HASH)
_FOR_PAYLOADS = (MaskAction.DROP, MaskAction.ZERO)


class Unmaskable(StrEnum):
    """What happens to a message that a mask applies to and that cannot be read."""

    REFUSE = "refuse"  # raise PlanRefused
    DROP = "drop"  # left out, as if it had been deleted
    KEEP = "keep"  # kept, with the parts that could not be read


@dataclass(frozen=True, slots=True)
class Mask:
    """What to mask in messages with which subjects, and how."""

    subjects: str
    what: str  # as typed
    rule: MaskRule  # for a kernel

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Parse `customers.>:$.email=hash`, `customers.>:header(X-User)=redact` or `customers.>:payload=zero`.

        Raises UsageError.
        """
        match = _RULE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--mask: not understood: {text[:80]!r}",
                hint="Write SUBJECT:$.path=redact, SUBJECT:$.path=hash, SUBJECT:header(NAME)=redact or "
                "SUBJECT:payload=zero, in quotes.",
            )
        subjects, what, action = check_pattern("--mask", match["subject"]), match["what"], match["action"]
        allowed = _FOR_PAYLOADS if what == "payload" else _FOR_VALUES
        if action not in list(allowed):
            raise UsageError(
                f"--mask: neither {' nor '.join(allowed)}: {action[:40]!r}",
                hint=f"{what[:80]} takes {' or '.join(allowed)}.",
            )
        return cls(subjects, what, _rule(what, MaskAction(action)))

    def __str__(self) -> str:
        return f"{self.subjects}:{self.what}={self.rule.action}"

    @property
    def of_payload(self) -> bool:
        """Whether it masks whole payloads."""
        return self.rule.place is MaskPlace.PAYLOAD


def _rule(text: str, action: MaskAction) -> MaskRule:
    if text == "payload":
        return MaskRule(MaskPlace.PAYLOAD, action)
    if text.startswith("$"):
        from jsbackup.transforms.json_path import parse_path  # not imported for restores without masks

        return MaskRule(MaskPlace.PATH, action, parse_path(text))
    match = _HEADER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--mask: not a header's name: {text[:80]!r}", hint="Write header(NAME), as in header(X-User)."
        )
    if match["name"].lower() in _COUNTING:
        raise UsageError(f"--mask: servers count with the header {match['name']}: it has to stay as it is")
    return MaskRule(MaskPlace.HEADER, action, name=match["name"].lower().encode())


@dataclass(slots=True)
class MaskCount:
    """What masks did, by the mask's index or in all.

    `values` counts masked values, `hit` the messages with such values. `seen` counts the messages that were sent on and
    that a mask had to examine: with its subjects, and not empty if it is for payloads. A mask that has seen some and
    masked no values has probably missed its purpose. `dropped` and `kept` count messages that could not be read,
    `unmasked` those whose subject no mask matches, `spared` those that keep a payload that masks are for, because it
    means something.
    """

    values: dict[int, int] = field(default_factory=dict)
    dropped: int = 0
    kept: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    unmasked: int = 0
    hit: dict[int, int] = field(default_factory=dict)
    spared: int = 0

    def plus(self, other: MaskCount) -> MaskCount:
        """Return the sum of both counts."""
        return MaskCount(
            _added(self.values, other.values),
            self.dropped + other.dropped,
            self.kept + other.kept,
            _added(self.seen, other.seen),
            self.unmasked + other.unmasked,
            _added(self.hit, other.hit),
            self.spared + other.spared,
        )


def _added(counts: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {number: counts.get(number, 0) + other.get(number, 0) for number in counts.keys() | other.keys()}


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks in the order of application, and what happens to messages that they cannot read."""

    masks: tuple[Mask, ...] = ()
    unmaskable: Unmaskable = Unmaskable.REFUSE

    @classmethod
    def parse(cls, texts: Iterable[str], unmaskable: str = Unmaskable.REFUSE) -> Masks:
        """Parse the options' texts. Raises UsageError."""
        if unmaskable not in list(Unmaskable):
            raise UsageError(f"--unmaskable: not refuse, drop or keep: {unmaskable[:40]!r}")
        masks = tuple(Mask.parse(text) for text in texts)
        _refuse_two_for_a_payload(masks)
        return cls(masks, Unmaskable(unmaskable))

    def __bool__(self) -> bool:
        return bool(self.masks)

    @property
    def needs_secret(self) -> bool:
        """Whether values are hashed."""
        return any(mask.rule.action is MaskAction.HASH for mask in self.masks)

    def check_secret(self, secret: bytes) -> None:
        """Raise UsageError if there are hashes to make and the secret is missing or too short."""
        if self.needs_secret and len(secret) < MIN_SECRET_BYTES:
            raise UsageError(
                f"hashing needs a secret of {MIN_SECRET_BYTES} bytes or more, not {len(secret)}",
                hint="Make one with 'head -c 32 /dev/urandom > FILE', keep it as long as values are to be joined, and "
                "name it with --mask-key-file (mask_key in Python).",
            )


def _refuse_two_for_a_payload(masks: Sequence[Mask]) -> None:
    """Raise UsageError if a whole payload is masked, and something in it too, or twice."""
    for first, other in combinations([mask for mask in masks if mask.rule.place is not MaskPlace.HEADER], 2):
        if (first.of_payload or other.of_payload) and overlaps(first.subjects, other.subjects):
            raise UsageError(
                f"--mask: {first} and {other} are for the same payloads",
                hint="Choose subjects that do not overlap for a mask of whole payloads.",
            )
