"""JSON as text: where the values of a path are, so that these are exchanged and all else stays byte for byte.

Strict as RFC 8259, in UTF-8, but for `NaN`, `Infinity` and `-Infinity`, which some writers produce. Names are compared
as they read, whatever escapes they are written with; one that is there twice is found twice. Numbers are never turned
into numbers: they stay the digits that they are.

Bounds: text nested deeper than `MAX_DEPTH` is refused (what reads it here goes as deep), and so are more than
`MAX_VALUES` found values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.transforms.json_path import JsonPath, Step, StepKind

__all__ = ["MAX_DEPTH", "MAX_VALUES", "canonical", "decode_text", "find", "splice"]

MAX_DEPTH = 128
MAX_VALUES = 1_000_000

_SPACE = re.compile(r"[ \t\n\r]*")
_BRACKET = re.compile(r'[\[{]|[\]}]|"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,18}))?", re.ASCII)
_LONGEST_PLAIN = 40  # digits of a number that is written without an exponent


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Members(list[tuple[str, Any]]):
    """An object: names and values, in order, with those that are there twice."""


_decoder = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_Members, strict=True
)
# The same for what is only passed over.
_skipper = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str, strict=True)


def decode_text(data: bytes) -> str:
    """A payload as text. Raises FormatError if it is not UTF-8, or nested too deeply."""
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


def find(text: str, path: JsonPath) -> list[tuple[int, int]]:
    """Where in a text (as `decode_text` gave it) the values are that the path means; none lies within another.

    Raises FormatError if the text is not JSON.
    """
    walk = _Walk(text, path.steps)
    end = walk.value(_past_space(text, 0), frozenset((0,)))
    if _past_space(text, end) != len(text):
        raise FormatError("not JSON: more after its end")
    return walk.found


def splice(text: str, spans: Sequence[tuple[int, int]], values: Sequence[str]) -> str:
    """The text with these values in place of what is at the spans, which rise."""
    out: list[str] = []
    done = 0
    for (start, stop), value in zip(spans, values, strict=True):
        out += (text[done:start], value)
        done = stop
    return "".join([*out, text[done:]])


def canonical(text: str) -> str:
    """A JSON value in the one form that equal values share: members sorted, no space, numbers by what they are worth.

    As RFC 8785, but numbers are exact: `1.0`, `1` and `10e-1` are `1`, however many digits they have.
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
        return str(text)  # not a number, or with an exponent beyond all sense
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


class _Walk:
    """Goes through a text along a path. A place is a set of steps: those that may come next."""

    def __init__(self, text: str, steps: tuple[Step, ...]) -> None:
        self.text = text
        self.steps = steps
        self.found: list[tuple[int, int]] = []

    def value(self, at: int, places: frozenset[int]) -> int:
        """Look into the value at `at`; where it ends."""
        start = self.text[at : at + 1]
        if len(self.steps) in places:
            end = self._skip(at)
            if len(self.found) == MAX_VALUES:
                raise FormatError(f"more than {MAX_VALUES} values are meant")
            self.found.append((at, end))
            return end
        if not places or start not in ("{", "["):
            return self._skip(at)
        return self._object(at, places) if start == "{" else self._array(at, places)

    def _object(self, at: int, places: frozenset[int]) -> int:
        text = self.text
        at = _past_space(text, at + 1)
        if text[at : at + 1] == "}":
            return at + 1
        while True:
            if text[at : at + 1] != '"':
                raise FormatError("not JSON: a name is missing")
            name, at = self._read(at)
            at = _past_space(text, at)
            if text[at : at + 1] != ":":
                raise FormatError("not JSON: a colon is missing")
            at = _past_space(text, self.value(_past_space(text, at + 1), self._below(places, name, None)))
            mark = text[at : at + 1]
            if mark == "}":
                return at + 1
            if mark != ",":
                raise FormatError("not JSON: an object does not end")
            at = _past_space(text, at + 1)

    def _array(self, at: int, places: frozenset[int]) -> int:
        text = self.text
        at = _past_space(text, at + 1)
        if text[at : at + 1] == "]":
            return at + 1
        index = 0
        while True:
            at = _past_space(text, self.value(at, self._below(places, None, index)))
            mark = text[at : at + 1]
            if mark == "]":
                return at + 1
            if mark != ",":
                raise FormatError("not JSON: an array does not end")
            at = _past_space(text, at + 1)
            index += 1

    def _below(self, places: frozenset[int], name: str | None, index: int | None) -> frozenset[int]:
        """Where one comes to in the member of that name, or the element of that index."""
        below = set()
        for place in places:
            step = self.steps[place]
            if step.kind is StepKind.ANYWHERE:
                below.add(place)
            matches = (
                step.kind is StepKind.EVERY
                or (step.kind in (StepKind.MEMBER, StepKind.ANYWHERE) and name == step.name)
                or (step.kind is StepKind.ELEMENT and index == step.index)
            )
            if matches:
                below.add(place + 1)
        return frozenset(below)

    def _skip(self, at: int) -> int:
        return self._read(at)[1]

    def _read(self, at: int) -> tuple[Any, int]:
        try:
            return _skipper.raw_decode(self.text, at)
        except ValueError as error:
            raise FormatError("not JSON") from error
