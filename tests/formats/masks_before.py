"""Masks as they were when Python masked each message (version 0.3.0), as an oracle for the kernels.

A copy of what `transforms/json_text.py`, `header_block.py` and `mask.py` had then, without counts of messages. Nothing
here is to be changed with the code that it judges.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jsbackup.errors import FormatError
from jsbackup.formats.mask_rules import MaskAction, MaskPlace, MaskRule, Step, StepKind

MAX_DEPTH = 128
MAX_VALUES = 1_000_000
MAX_PAYLOAD_BYTES = 64 << 20

_SPACE = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_MARK = re.compile(r"[ \t\n\r]*([,\]}])[ \t\n\r]*")
_BRACKET = re.compile(r'[\[{]|[\]}]|"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,18}))?", re.ASCII)
_LONGEST_PLAIN = 40  # digits of a number that is written without an exponent


class _Number(str):
    """A number as text."""

    __slots__ = ()


class _Members(list[tuple[str, Any]]):
    """An object: names and values, in order, with repeated names."""


_decoder = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_Members, strict=True
)
# Faster, for skipped values; without `raw_decode` around it, which takes as long as a short value.
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=str, strict=True
).scan_once  # type: ignore[attr-defined]  # of every decoder since Python 2.7


def decode_text(data: bytes) -> str:
    """Decode a payload. Raises FormatError if it is not UTF-8, or nested too deeply."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError("not UTF-8") from error
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise FormatError(f"nested deeper than {MAX_DEPTH} levels")
    return text


def _depth(text: str) -> int:
    depth = deepest = 0
    for match in _BRACKET.finditer(text):
        if match[0] in ("{", "["):
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in ("}", "]"):
            depth -= 1
    return deepest


def find(text: str, steps: tuple[Step, ...]) -> list[tuple[int, int]]:
    """Return the positions of the path's values in a text from `decode_text`; none is within another.

    Raises FormatError if the text is not JSON.
    """
    walk = _Walk(text, steps)
    end = walk.value(_past_space(text, 0), frozenset((0,)))
    if _past_space(text, end) != len(text):
        raise FormatError("not JSON: more after its end")
    return walk.found


def splice(text: str, spans: Sequence[tuple[int, int]], values: Sequence[str]) -> str:
    """Return the text with these values instead of those at the spans, which are in rising order."""
    out: list[str] = []
    done = 0
    for (start, stop), value in zip(spans, values, strict=True):
        out += (text[done:start], value)
        done = stop
    return "".join([*out, text[done:]])


def canonical(text: str) -> str:
    """Return a JSON value in a form that is the same for equal values: members sorted, no space, numbers by their
    value.

    As RFC 8785, but numbers are exact: `1.0`, `1` and `10e-1` are `1`, with any number of digits.
    """
    try:
        return _canonical(_decoder.decode(text))
    except ValueError as error:
        raise FormatError("not JSON") from error


def _canonical(value: Any) -> str:
    if isinstance(value, _Number):
        return _number(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, _Members):
        members = sorted(value, key=lambda member: member[0])
        return "{" + ",".join(f"{_canonical(name)}:{_canonical(inner)}" for name, inner in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return json.dumps(value)


def _number(text: str) -> str:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return str(text)  # not a number, or with an absurd exponent
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", int(match[4] or "0")
    digits = (whole + fraction).lstrip("0")
    power = exponent - len(fraction) + len(digits)
    digits = digits.rstrip("0")
    power -= len(digits)
    if not digits:
        return "0"
    if power >= 0 and len(digits) + power <= _LONGEST_PLAIN:
        return sign + digits + "0" * power
    if power < 0 and max(len(digits), -power) < _LONGEST_PLAIN:
        digits = digits.rjust(1 - power, "0")
        return f"{sign}{digits[:power]}.{digits[power:]}"
    return f"{sign}{digits}e{power}"


def _past_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


# The places below a place: by name, and for all other names; likewise for indexes.
_Below = tuple[Mapping[str, frozenset[int]], frozenset[int]]


@lru_cache(maxsize=64)
def _places(_steps: tuple[Step, ...]) -> dict[frozenset[int], _Below]:
    """Return the cache of the places of a path: they are the same for every text."""
    return {}


class _Walk:
    """Walks through a text along a path. A place is a set of steps: those that may come next."""

    def __init__(self, text: str, steps: tuple[Step, ...]) -> None:
        self.text = text
        self.steps = steps
        self.done = len(steps)
        self.found: list[tuple[int, int]] = []
        self.below = _places(steps)

    def value(self, at: int, places: frozenset[int]) -> int:
        """Search the value at `at`; return its end."""
        start = self.text[at : at + 1]
        if self.done in places:
            end = _skip(self.text, at)
            if len(self.found) == MAX_VALUES:
                raise FormatError(f"more than {MAX_VALUES} values match the path")
            self.found.append((at, end))
            return end
        if not places or start not in ("{", "["):
            return _skip(self.text, at)
        return self._object(at, places) if start == "{" else self._array(at, places)

    def _object(self, at: int, places: frozenset[int]) -> int:
        text = self.text
        named, others = self.below.get(places) or self._members(places)
        at = _past_space(text, at + 1)
        if text[at : at + 1] == "}":
            return at + 1
        while True:
            if text[at : at + 1] != '"':
                raise FormatError("not JSON: a name is missing")
            name, at = _read(text, at)
            colon = _COLON.match(text, at)
            if colon is None:
                raise FormatError("not JSON: a colon is missing")
            there = named.get(name, others)
            at = self.value(colon.end(), there) if there else _skip(text, colon.end())
            mark = _MARK.match(text, at)
            if mark is None or mark[1] == "]":
                raise FormatError("not JSON: an object does not end")
            if mark[1] == "}":
                return mark.end(1)
            at = mark.end()

    def _array(self, at: int, places: frozenset[int]) -> int:
        text = self.text
        at = _past_space(text, at + 1)
        if text[at : at + 1] == "]":
            return at + 1
        index = 0
        while True:
            there = self._element(places, index)
            at = self.value(at, there) if there else _skip(text, at)
            mark = _MARK.match(text, at)
            if mark is None or mark[1] == "}":
                raise FormatError("not JSON: an array does not end")
            if mark[1] == "]":
                return mark.end(1)
            at = mark.end()
            index += 1

    def _members(self, places: frozenset[int]) -> _Below:
        steps = [(place, self.steps[place]) for place in places]
        others = {place for place, step in steps if step.kind is StepKind.ANYWHERE}
        others |= {place + 1 for place, step in steps if step.kind is StepKind.EVERY}
        names = {step.name for _, step in steps if step.kind in (StepKind.MEMBER, StepKind.ANYWHERE)}
        named = {
            name: frozenset(
                others
                | {
                    place + 1
                    for place, step in steps
                    if step.kind in (StepKind.MEMBER, StepKind.ANYWHERE) and step.name == name
                }
            )
            for name in names
        }
        self.below[places] = found = (named, frozenset(others))
        return found

    def _element(self, places: frozenset[int], index: int) -> frozenset[int]:
        if not any(self.steps[place].kind is StepKind.ELEMENT for place in places):
            return (self.below.get(places) or self._members(places))[1]  # as for a member of another name
        below = set()
        for place in places:
            step = self.steps[place]
            if step.kind is StepKind.ANYWHERE:
                below.add(place)
            if step.kind is StepKind.EVERY or (step.kind is StepKind.ELEMENT and step.index == index):
                below.add(place + 1)
        return frozenset(below)


def _skip(text: str, at: int) -> int:
    return _read(text, at)[1]


def _read(text: str, at: int) -> tuple[Any, int]:
    """Return the value at `at`, and its end."""
    try:
        return _scan(text, at)
    except (ValueError, StopIteration) as error:
        raise FormatError("not JSON") from error


# --- header blocks ---

_MAGIC = b"NATS/1.0"


class Field(NamedTuple):
    """A field's name, and the position of its value in the block, without surrounding white space."""

    name: bytes
    start: int
    stop: int


def fields(block: bytes) -> Iterator[Field]:
    """Yield the fields of a block, in order. Raises FormatError if it is malformed."""
    at = _line_end(block, 0)
    status = block[len(_MAGIC) : at]
    if not block.startswith(_MAGIC) or not (status == b"" or status[:1] == b" "):
        raise FormatError("headers: no NATS/1.0 line")
    while True:
        start = at + 2
        at = _line_end(block, start)
        if at == start:
            break
        colon = block.find(b":", start, at)
        if colon <= start or block[start : start + 1] in (b" ", b"\t"):
            raise FormatError("headers: a line without a name")
        value = block[colon + 1 : at]
        first = colon + 1 + len(value) - len(value.lstrip(b" \t"))
        yield Field(block[start:colon], first, max(first, colon + 1 + len(value.rstrip(b" \t"))))
    if at + 2 != len(block):
        raise FormatError("headers: more after the end")


def _line_end(block: bytes, start: int) -> int:
    end = block.find(b"\r\n", start)
    if end < 0:
        raise FormatError("headers: cut short")
    if block.find(b"\n", start, end) >= 0 or block.find(b"\r", start, end) >= 0:
        raise FormatError("headers: a lone line break")
    return end


def exchange(block: bytes, change: Callable[[bytes, bytes], bytes | None]) -> bytes:
    """Return the block with values replaced by `change(name, value)` if that is not None.

    Raises FormatError if the block or a new value is malformed.
    """
    out: list[bytes] = []
    done = 0
    for name, start, stop in fields(block):
        value = change(name, block[start:stop])
        if value is None:
            continue
        if b"\r" in value or b"\n" in value:
            raise FormatError("headers: a value with a line break")
        out += (block[done:start], value)
        done = stop
    return b"".join([*out, block[done:]]) if out else block


# --- masks ---


class Outcome(NamedTuple):
    """A masked message, the values found by each rule that could be applied, and why some could not be."""

    headers: bytes | None
    data: bytes
    found: dict[int, int]
    reasons: list[str]


def mask_message(
    rules: Sequence[MaskRule], headers: bytes | None, data: bytes, secret: bytes, *, apart: bool
) -> Outcome:
    """All rules together, or each of them apart (`--unmaskable keep`)."""
    numbers = range(len(rules))
    found: dict[int, int] = {}
    reasons = []
    for some in [[n] for n in numbers] if apart else [list(numbers)]:
        try:
            headers, data, more = _message(rules, some, headers, data, secret)
            found |= more
        except FormatError as error:
            reasons.append(error.message)
    return Outcome(headers, data, found, reasons)


def _message(
    rules: Sequence[MaskRule], numbers: Sequence[int], headers: bytes | None, data: bytes, secret: bytes
) -> tuple[bytes | None, bytes, dict[int, int]]:
    text: str | None = None
    found: dict[int, int] = {}
    for number in numbers:
        rule = rules[number]
        if rule.place is MaskPlace.HEADER:
            if headers is not None:
                headers, found[number] = _masked_headers(headers, rule, secret)
        elif data:
            text = decode_text(data) if text is None else text
            spans = find(text, rule.steps)
            text = splice(text, spans, [_replacement(rule, text[slice(*span)], secret) for span in spans])
            found[number] = len(spans)
    masked = data if text is None else text.encode()
    if len(masked) > max(len(data), MAX_PAYLOAD_BYTES):
        raise FormatError("it would become larger than a message can be")
    return headers, masked, found


def _masked_headers(block: bytes, rule: MaskRule, secret: bytes) -> tuple[bytes, int]:
    found = 0

    def change(name: bytes, value: bytes) -> bytes | None:
        nonlocal found
        if name.strip().lower() != rule.name:
            return None
        found += 1
        quoted = json.dumps(value.decode("utf-8", "surrogateescape"), ensure_ascii=False)
        return _replacement(rule, quoted, secret)[1:-1].encode()

    return exchange(block, change), found


def _replacement(rule: MaskRule, value: str, secret: bytes) -> str:
    if rule.action is MaskAction.REDACT:
        return '"***"'
    return '"' + hmac.digest(secret, canonical(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hex() + '"'
