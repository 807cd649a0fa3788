"""The readable twin of the part of the compiled kernel for subjects and masks (`_masks.pxi`, `_subjects.pxi`).

Masks are rules (`mask_rules.py`). Those for a message are applied in order, each to the result of the ones before:

- to the values of a path, in a payload of strict JSON (`json_text.py`). REDACT makes `"***"` of a value, HASH a string
  of 64 hex digits: HMAC-SHA-256 over the value's canonical JSON in UTF-8. An empty payload has nothing to mask.
- to the values of a header field, whose name is compared case-insensitively. A value counts as a JSON string; a byte of
  it that is not UTF-8 as half of a surrogate pair (`surrogateescape`), in the UTF-8 that has these (`surrogatepass`).
- to a payload that is not empty: DROP makes it empty, ZERO makes zero bytes of it. No path comes after that.

Faults of a message: 1 if its payload is not JSON or its header block is malformed, 2 if it has too many values or would
become larger than a message can be. It is then as it was, and nothing of it is counted. Applied *apart*, rules do not
depend on each other: those that fail are counted, the others take effect, and the fault is 1. A fault of 2 leaves the
whole message to the caller even then, who can apply one rule after the other.

Subjects are bytes of tokens between dots. A pattern is one, in which the tokens `*` and `>` stand for one token and, at
the end, for all that follow; a token may be empty.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.batch import ColumnReader, Columns, typed_buffer
from jsbackup.formats.header_block import fields
from jsbackup.formats.mask_rules import MAX_VALUES, MaskAction, MaskedRows, MaskPlace, MaskRule, RuleCount, ShapedColumn

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_MASKED_BYTES", "Masker", "SubjectMapper", "SubjectMatcher"]

# The server's limit for a message (`MAX_PAYLOAD_MAX_SIZE`); hashes of many small values could be larger.
MAX_MASKED_BYTES = 64 << 20

_MOST = (1 << 31) - 1  # bytes of a column
_HASHED = 66  # bytes of a hash in quotes
_UNREADABLE, _TOO_MUCH = 1, 2
_RESERVED = (b"$KV", b"$O", b"$MQTT")


class _TooMuch(FormatError):
    """A message that can be read, but has too many values or would become too large."""


class _Masked:
    """What became of a message, and what was found by each rule; `failed` has the places whose rules failed."""

    def __init__(self, headers: bytes | None, data: bytes, fault: int = 0) -> None:
        self.headers, self.data = headers, data
        self.fault = fault
        self.hits: dict[int, int] = {}
        self.failed: set[MaskPlace] = set()


class Masker:
    """Rules, and the secret for hashes. The limits are those of a message; tests have smaller ones."""

    def __init__(
        self, rules: Sequence[MaskRule], secret: bytes, max_values: int = MAX_VALUES, max_bytes: int = MAX_MASKED_BYTES
    ) -> None:
        self._rules = tuple(rules)
        self._secret = secret
        self._max_values = max_values
        self._max_bytes = max_bytes

    def mask(self, columns: Columns, sets: Sequence[Sequence[int]], rows: Buffer, apart: bool) -> MaskedRows:
        """Mask a batch. `rows` has the number of each row's set of rules (packed int32), -1 for none.

        Raises FormatError for a batch with bad buffers, or one that would have a column of more than 2 GiB.
        """
        if any(not 0 <= number < len(self._rules) for numbers in sets for number in numbers):
            raise ValueError("no rule has this number")
        reader = ColumnReader(columns)
        if memoryview(rows).nbytes < 4 * columns.count:
            raise ValueError("each row has a number of 4 bytes")
        chosen = typed_buffer(rows, "i", columns.count)
        if any(not -1 <= number < len(sets) for number in chosen):
            raise ValueError("no set has this number")
        ends, out = (array("i", (0,)), array("i", (0,))), (bytearray(), bytearray())
        faults, counts = bytearray(), [RuleCount()] * len(self._rules)
        for row in range(columns.count):
            block, data = reader.headers(row), bytes(reader.data(row))
            numbers = () if chosen[row] < 0 else sets[chosen[row]]
            masked = self._message(numbers, None if block is None else bytes(block), data, apart)
            faults.append(masked.fault)
            for number, count in self._counted(numbers, masked, bool(data), apart):
                counts[number] = RuleCount(*map(sum, zip(counts[number], count, strict=True)))
            for column, content in enumerate((masked.headers or b"", masked.data)):
                out[column].extend(content)
                if len(out[column]) > _MOST:
                    raise FormatError(f"message batch: more than 2 GiB once masked, in row {row}")
                ends[column].append(len(out[column]))
        places = {self._rules[number].place for numbers in sets for number in numbers}
        columns_out = [ShapedColumn(stops.tobytes(), bytes(values)) for stops, values in zip(ends, out, strict=True)]
        return MaskedRows(
            columns_out[0] if MaskPlace.HEADER in places else None,
            columns_out[1] if places - {MaskPlace.HEADER} else None,
            bytes(faults),
            tuple(counts),
        )

    def reason(self, numbers: Sequence[int], headers: bytes | None, data: bytes) -> str:
        """Return why a message cannot be masked by these rules, the first reason in their order; "" if it can."""
        size = len(data)
        try:
            for number in numbers:
                place = self._rules[number].place
                if place is MaskPlace.HEADER and headers is not None:
                    headers, _ = self._in_headers([number], headers)
                elif place is MaskPlace.PATH and size:
                    data, _ = self._in_json([number], data)
            self._check_size(data, size)
        except FormatError as error:
            return error.message
        return ""

    def _message(self, numbers: Sequence[int], headers: bytes | None, data: bytes, apart: bool) -> _Masked:
        masked = _Masked(headers, data)
        in_headers, paths, payloads = (
            [number for number in numbers if self._rules[number].place is place]
            for place in (MaskPlace.HEADER, MaskPlace.PATH, MaskPlace.PAYLOAD)
        )
        fault = 0
        if in_headers and headers is not None:
            try:
                masked.headers, hits = self._in_headers(in_headers, headers)
                masked.hits |= hits
            except FormatError:
                masked.failed.add(MaskPlace.HEADER)
                fault = _UNREADABLE
        if data and (apart or not fault):
            try:
                if paths:
                    changed, hits = self._in_json(paths, data)
                    self._check_size(changed, len(data))
                    if apart and len(paths) > 1:  # each of them might have failed
                        self._check_size(bytes(len(data) + _HASHED * sum(hits.values())), len(data))
                    masked.data = changed
                    masked.hits |= hits
            except _TooMuch:
                masked.fault = _TOO_MUCH
            except FormatError:
                masked.failed.add(MaskPlace.PATH)
                fault = _UNREADABLE
            if payloads and not masked.fault and (apart or not fault):
                masked.data = bytes(len(data)) if self._rules[payloads[0]].action is MaskAction.ZERO else b""
                masked.hits[payloads[0]] = 1
        masked.fault = masked.fault or fault
        if masked.fault == _TOO_MUCH or (masked.fault and not apart):
            return _Masked(headers, data, masked.fault)
        return masked

    def _counted(
        self, numbers: Sequence[int], masked: _Masked, with_data: bool, apart: bool
    ) -> Iterator[tuple[int, RuleCount]]:
        """Yield what there is to count of a message that is sent on."""
        if masked.fault == _TOO_MUCH or (masked.fault and not apart):
            return
        for number in numbers:
            place = self._rules[number].place
            if place is not MaskPlace.HEADER and not with_data:
                continue  # nothing to mask
            if place in masked.failed:
                yield number, RuleCount(seen=1, failed=1)
            elif number in masked.hits:
                values = masked.hits[number]
                yield number, RuleCount(seen=1, read=1, hit=values > 0, values=values)
            else:
                yield number, RuleCount(seen=1)  # without headers

    def _in_json(self, numbers: Sequence[int], data: bytes) -> tuple[bytes, dict[int, int]]:
        from jsbackup.formats.json_text import TooManyValues, decode_text, find_spans, splice  # only for masks

        text = decode_text(data)
        hits = {}
        for number in numbers:
            rule = self._rules[number]
            try:
                spans = find_spans(text, rule.steps, self._max_values)
            except TooManyValues as error:
                find_spans(text, ())  # what is not JSON is that first of all
                raise _TooMuch(error.message) from error
            values = [self._replacement(rule, text[slice(*span)]) for span in spans]
            text = splice(text, spans, [f'"{value}"' for value in values])
            hits[number] = len(spans)
        return text.encode(), hits

    def _check_size(self, changed: bytes, before: int) -> None:
        if len(changed) > max(before, self._max_bytes):
            raise _TooMuch("it would become larger than a message can be")

    def _in_headers(self, numbers: Sequence[int], block: bytes) -> tuple[bytes, dict[int, int]]:
        hits = dict.fromkeys(numbers, 0)
        out, copied = bytearray(), 0
        for name, start, stop in fields(block):
            key = name.strip().lower()
            before = value = block[start:stop].decode("utf-8", "surrogateescape")
            for number in numbers:
                if key == self._rules[number].name:
                    value = self._replacement(self._rules[number], json.dumps(value, ensure_ascii=False))
                    hits[number] += 1
            if value is not before:
                out += block[copied:start] + value.encode()
                copied = stop
        return bytes(out + block[copied:]), hits

    def _replacement(self, rule: MaskRule, value: str) -> str:
        """Return what a value, as JSON, is replaced by."""
        from jsbackup.formats.json_text import canonical

        if rule.action is MaskAction.REDACT:
            return "***"
        return hmac.digest(self._secret, canonical(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hex()


# --- subjects -----------------------------------------------------------------------------------------------------


class SubjectMatcher:
    """Patterns that subjects are compared with."""

    def __init__(self, patterns: Sequence[bytes]) -> None:
        self._patterns = [pattern.split(b".") for pattern in patterns]

    def first(self, columns: Columns) -> bytes:
        """Return for each row the number of the first pattern that matches, -1 if none does (packed int32).

        Raises FormatError for a batch with bad buffers.
        """
        reader = ColumnReader(columns)
        return array("i", (next(self._matching(reader, row), -1) for row in range(columns.count))).tobytes()

    def sets(self, columns: Columns) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
        """Return for each row the number of the set of patterns that match (packed int32), and these sets.

        Raises FormatError for a batch with bad buffers.
        """
        reader = ColumnReader(columns)
        known: dict[tuple[int, ...], int] = {}
        rows = array("i")
        for row in range(columns.count):
            rows.append(known.setdefault(tuple(self._matching(reader, row)), len(known)))
        return rows.tobytes(), tuple(known)

    def _matching(self, reader: ColumnReader, row: int) -> Iterator[int]:
        tokens = bytes(reader.subject(row)).split(b".")
        return (number for number, pattern in enumerate(self._patterns) if _wildcards(pattern, tokens) is not None)


def _wildcards(pattern: Sequence[bytes], tokens: Sequence[bytes]) -> list[bytes] | None:
    """Return what the wildcards stand for; None if the subject of these tokens does not match."""
    matched: list[bytes] = []
    for at, token in enumerate(pattern):
        if at == len(tokens):
            return None
        if token == b">":
            return [*matched, b".".join(tokens[at:])]
        if token == b"*":
            matched.append(tokens[at])
        elif token != tokens[at]:
            return None
    return matched if len(pattern) == len(tokens) else None


class SubjectMapper:
    """Stages of maps. A map is a pattern, and the parts of what it is mapped to: tokens, and numbers of wildcards,
    counted from 1. In each stage the first map that matches is used. No map from the first one on whose pattern begins
    with a wildcard is for subjects of buckets and of MQTT.
    """

    def __init__(self, stages: Sequence[Sequence[tuple[bytes, Sequence[bytes | int]]]]) -> None:
        self._stages = [[(pattern.split(b"."), parts) for pattern, parts in stage] for stage in stages]

    def map(self, columns: Columns) -> ShapedColumn | None:
        """Return the column of mapped subjects; None if none changes.

        Raises FormatError for a batch with bad buffers, or more than 2 GiB of subjects.
        """
        reader = ColumnReader(columns)
        ends, out = array("i", (0,)), bytearray()
        changed = False
        for row in range(columns.count):
            before = subject = bytes(reader.subject(row))
            for stage in self._stages:
                subject = _mapped(stage, subject)
            changed = changed or subject != before
            out += subject
            if len(out) > _MOST:
                raise FormatError(f"message batch: more than 2 GiB once mapped, in row {row}")
            ends.append(len(out))
        return ShapedColumn(ends.tobytes(), bytes(out)) if changed else None


def _mapped(stage: Sequence[tuple[Sequence[bytes], Sequence[bytes | int]]], subject: bytes) -> bytes:
    tokens = subject.split(b".")
    for pattern, parts in stage:
        if tokens[0] in _RESERVED and pattern[0] in (b"*", b">"):
            break
        matched = _wildcards(pattern, tokens)
        if matched is not None:
            return b".".join(matched[part - 1] if isinstance(part, int) else part for part in parts)
    return subject
