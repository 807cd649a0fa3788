"""JSON as text: find the values of a path, so that they can be replaced and the rest stays byte for byte.

Strict as RFC 8259, in UTF-8, except that `NaN`, `Infinity` and `-Infinity` are allowed, which some writers produce.
Names are compared after decoding their escapes; a repeated name is found twice. Numbers are never converted: they stay
text.

Limits: text nested deeper than `MAX_TEXT_DEPTH` is refused (the parser is recursive), and so are more values than a
rule may replace.

The compiled kernel (`_json.pxi`) does the same on bytes, ten times as fast.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.formats.mask_rules import MAX_VALUES, Step, StepKind

__all__ = ["MAX_TEXT_DEPTH", "TooManyValues", "canonical", "decode_text", "find_spans", "splice"]

MAX_TEXT_DEPTH = 128

_SPACE = re.compile(r"[ \t\n\r]*")
_COLON = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_MARK = re.compile(r"[ \t\n\r]*([,\]}])[ \t\n\r]*")
_BRACKET = re.compile(r'[\[{]|[\]}]|"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,18}))?", re.ASCII)
_LONGEST_PLAIN = 40  # digits of a number that is written without an exponent


class TooManyValues(FormatError):
    """More values than may be replaced."""


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
    if text.count("{") + text.count("[") > MAX_TEXT_DEPTH and _is_too_deep(text):
        raise FormatError(f"nested deeper than {MAX_TEXT_DEPTH} levels")
    return text


def _is_too_deep(text: str) -> bool:
    depth = 0
    for match in _BRACKET.finditer(text):
        if match[0] in ("{", "["):
            depth += 1
            if depth > MAX_TEXT_DEPTH:
                return True
        elif match[0] in ("}", "]"):
            depth -= 1
    return False


def find_spans(text: str, steps: tuple[Step, ...], most: int = MAX_VALUES) -> list[tuple[int, int]]:
    """Return the positions of the values of a path, given by its steps, in a text from `decode_text`.

    None is within another. Raises FormatError if the text is not JSON, or has more than `most` values.
    """
    walk = _Walk(text, steps, most)
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

    def __init__(self, text: str, steps: tuple[Step, ...], most: int) -> None:
        self.text = text
        self.steps = steps
        self.most = most
        self.done = len(steps)
        self.found: list[tuple[int, int]] = []
        self.below = _places(steps)

    def value(self, at: int, places: frozenset[int]) -> int:
        """Search the value at `at`; return its end."""
        start = self.text[at : at + 1]
        if self.done in places:
            end = _skip(self.text, at)
            if len(self.found) == self.most:
                raise TooManyValues(f"more than {self.most} values match the path")
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
