"""`--mask SUBJECT_FILTER:WHAT={redact,hash}`: remove personal data from JSON payloads and from headers.

WHAT is a path into the payload (`json_path.py`) or `header(NAME)`. `redact` replaces the value by `"***"`, whatever its
type; `hash` by a string of 64 hex digits: HMAC-SHA-256 over the value's canonical JSON (`json_text.py`) in UTF-8, so
that equal values stay equal across streams and runs with the same secret, and values cannot be guessed without it. A
header's value counts as a JSON string, equal to the same string in a payload. The rest stays byte for byte.

Subjects are those in the backup, before any is mapped. Masks are applied in the given order, each to the result of the
ones before. Names of headers are compared case-insensitively.

Fails closed: if a mask applies to a message whose payload is not JSON (or whose header block is malformed), its content
is unknown, and `Unmaskable` says what happens: by default PlanRefused is raised. An empty payload has nothing to mask.
Only payloads and headers are masked: not subjects, nor names and descriptions in configurations.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from jsbackup.errors import FormatError, PlanRefused, UsageError
from jsbackup.transforms.batches import DATA, HEADERS, SEQUENCE, MessageBatch, Subjects, keep_rows, with_column
from jsbackup.transforms.header_block import exchange
from jsbackup.transforms.subjects import check_pattern, matcher, overlaps

if TYPE_CHECKING:
    from jsbackup.transforms.json_path import JsonPath

__all__ = ["MIN_SECRET_BYTES", "REDACTED", "HeaderName", "Mask", "MaskAction", "MaskCount", "Masks", "Unmaskable"]

REDACTED = "***"
# With a shorter one values could be found by trying secrets.
MIN_SECRET_BYTES = 16
# The server's limit for a message (`MAX_PAYLOAD_MAX_SIZE`); hashes of many small values could be larger.
_MAX_PAYLOAD_BYTES = 64 << 20

_RULE = re.compile(r"(?P<subject>.+?):(?P<what>\$(?:[.\[].*)?|header\(.*\))=(?P<action>[^=]*)", re.DOTALL)
_HEADER = re.compile(r"header\((?P<name>[!-9;-~]{1,256})\)", re.ASCII)


class MaskAction(StrEnum):
    REDACT = "redact"
    HASH = "hash"


class Unmaskable(StrEnum):
    """What happens to a message that a mask applies to and that cannot be read."""

    REFUSE = "refuse"  # raise PlanRefused
    DROP = "drop"  # left out, as if it had been deleted
    KEEP = "keep"  # kept, with the parts that could not be read


@dataclass(frozen=True, slots=True)
class HeaderName:
    """The name of a header field, case-insensitive."""

    name: str


@dataclass(frozen=True, slots=True)
class Mask:
    """What to mask in messages with which subjects, and how."""

    subjects: str
    target: JsonPath | HeaderName
    action: MaskAction

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Parse `customers.>:$.email=hash` or `customers.>:header(X-User)=redact`. Raises UsageError."""
        match = _RULE.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--mask: not understood: {text[:80]!r}",
                hint="Write SUBJECT:$.path=redact, SUBJECT:$.path=hash or SUBJECT:header(NAME)=redact, in quotes.",
            )
        subjects = check_pattern("--mask", match["subject"])
        if match["action"] not in list(MaskAction):
            raise UsageError(f"--mask: neither redact nor hash: {match['action'][:40]!r}")
        return cls(subjects, _target(match["what"]), MaskAction(match["action"]))

    def __str__(self) -> str:
        what = f"header({self.target.name})" if isinstance(self.target, HeaderName) else self.target.text
        return f"{self.subjects}:{what}={self.action}"

    def replacement(self, value: str, secret: bytes) -> str:
        """Return the replacement of a value, both as JSON."""
        if self.action is MaskAction.REDACT:
            return f'"{REDACTED}"'
        from jsbackup.transforms.json_text import canonical

        return '"' + hmac.digest(secret, canonical(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hex() + '"'


def _target(text: str) -> JsonPath | HeaderName:
    if text.startswith("$"):
        from jsbackup.transforms.json_path import JsonPath  # not imported for restores without masks

        return JsonPath.parse(text)
    match = _HEADER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--mask: not a header's name: {text[:80]!r}", hint="Write header(NAME), as in header(X-User)."
        )
    return HeaderName(match["name"])


@dataclass(slots=True)
class MaskCount:
    """The numbers of masked values, by the mask's index, and of messages that could not be read.

    `seen` counts the messages that were sent on and that a mask had to examine: with its subjects, and not empty if it
    has a path. A mask that has seen some and masked no values has probably missed its purpose. `unmasked` counts
    messages whose subject no mask matches.
    """

    values: dict[int, int] = field(default_factory=dict)
    dropped: int = 0
    kept: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    unmasked: int = 0

    def plus(self, other: MaskCount) -> MaskCount:
        """Return the sum of both counts."""
        return MaskCount(
            _added(self.values, other.values),
            self.dropped + other.dropped,
            self.kept + other.kept,
            _added(self.seen, other.seen),
            self.unmasked + other.unmasked,
        )

    def look(self, numbers: Iterable[int]) -> None:
        """Count a message that these masks had to examine."""
        for number in numbers:
            self.seen[number] = self.seen.get(number, 0) + 1


def _added(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {number: one.get(number, 0) + other.get(number, 0) for number in one.keys() | other.keys()}


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
        return cls(tuple(Mask.parse(text) for text in texts), Unmaskable(unmaskable))

    def __bool__(self) -> bool:
        return bool(self.masks)

    @property
    def needs_secret(self) -> bool:
        """Whether values are hashed."""
        return any(mask.action is MaskAction.HASH for mask in self.masks)

    def check_secret(self, secret: bytes) -> None:
        """Raise UsageError if there are hashes to make and the secret is missing or too short."""
        if self.needs_secret and len(secret) < MIN_SECRET_BYTES:
            raise UsageError(
                f"hashing needs a secret of {MIN_SECRET_BYTES} bytes or more, not {len(secret)}",
                hint="Make one with 'head -c 32 /dev/urandom > FILE', and keep it as long as values are to be joined.",
            )

    def aimless(self, patterns: Sequence[str]) -> list[Mask]:
        """Return masks for subjects that no stream with these patterns has: probably a mistake, and a leak."""
        return [mask for mask in self.masks if not any(overlaps(mask.subjects, pattern) for pattern in patterns)]

    def apply(
        self, batch: MessageBatch, subjects: Subjects, stream: str, secret: bytes, *, count: MaskCount
    ) -> MessageBatch:
        """Return the masked batch. `subjects` are its rows' in the backup; `stream` names the stream in a refusal.

        Raises:
            PlanRefused: a message cannot be read, and the default says to refuse it.
            UsageError: there is no secret to hash with.
        """
        self.check_secret(secret)
        matching = {
            text: [n for n, mask in enumerate(self.masks) if matcher(mask.subjects).fullmatch(text)]
            for text in subjects.texts
        }
        if not any(matching.values()):
            count.unmasked += batch.num_rows
            return batch
        headers, data = batch.column(HEADERS).to_pylist(), batch.column(DATA).to_pylist()
        kept = [True] * batch.num_rows
        for row, subject in enumerate(subjects):
            count.unmasked += not matching[subject]
            # A message that is kept in any case is still masked as far as possible: each mask separately.
            apart = self.unmaskable is Unmaskable.KEEP
            for numbers in [[n] for n in matching[subject]] if apart else [matching[subject]]:
                try:
                    headers[row], data[row] = self._message(numbers, headers[row], data[row], secret, count=count)
                except FormatError as error:
                    what = f"message {batch.column(SEQUENCE)[row]} of stream {stream}"
                    kept[row] = self._unreadable(what, error, count)
                    count.look(numbers if kept[row] else ())
        batch = with_column(with_column(batch, HEADERS, headers), DATA, data)
        return keep_rows(batch, pa.array(kept, pa.bool_()))

    def _unreadable(self, what: str, error: FormatError, count: MaskCount) -> bool:
        if self.unmaskable is Unmaskable.REFUSE:
            raise PlanRefused(
                f"{what} cannot be masked: {error.message}",
                hint="Narrow the subjects of --mask, or choose with --unmaskable what becomes of such messages.",
            ) from error
        if self.unmaskable is Unmaskable.DROP:
            count.dropped += 1
            return False
        count.kept += 1
        return True

    def _message(
        self, numbers: Sequence[int], headers: bytes | None, data: bytes, secret: bytes, *, count: MaskCount
    ) -> tuple[bytes | None, bytes]:
        """Return the masked headers and payload of a message. Raises FormatError if they cannot be read."""
        text: str | None = None
        found: dict[int, int] = {}
        for number in numbers:
            mask = self.masks[number]
            if isinstance(mask.target, HeaderName):
                if headers is not None:
                    headers, found[number] = _masked_headers(headers, mask, mask.target, secret)
            elif data:
                from jsbackup.transforms.json_text import decode_text, find, splice

                text = decode_text(data) if text is None else text
                spans = find(text, mask.target)
                text = splice(text, spans, [mask.replacement(text[slice(*span)], secret) for span in spans])
                found[number] = len(spans)
        masked = data if text is None else text.encode()
        if len(masked) > max(len(data), _MAX_PAYLOAD_BYTES):
            raise FormatError("it would become larger than a message can be")
        for number, values in found.items():
            count.values[number] = count.values.get(number, 0) + values
        count.look(n for n in numbers if data or isinstance(self.masks[n].target, HeaderName))
        return headers, masked


def _masked_headers(block: bytes, mask: Mask, target: HeaderName, secret: bytes) -> tuple[bytes, int]:
    found = 0
    wanted = target.name.lower().encode()

    def change(name: bytes, value: bytes) -> bytes | None:
        nonlocal found
        if name.strip().lower() != wanted:
            return None
        found += 1
        quoted = json.dumps(value.decode("utf-8", "surrogateescape"), ensure_ascii=False)
        return mask.replacement(quoted, secret)[1:-1].encode()

    return exchange(block, change), found
