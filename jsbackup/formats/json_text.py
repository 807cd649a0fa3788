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
from collections.abc import Callable, Sequence
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
_Place = tuple[Step, ...]
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
    walk = _Walk(text, most)
    end = walk.value(_past_space(text, 0), frozenset((steps,)))
    if _past_space(text, end) != len(text):
        raise FormatError("not JSON: more after its end")
    return walk.spans


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


class _Walk:
    """Walks through a text along a path. A place is what is left of the path there; a value may be at several."""

    def __init__(self, text: str, most: int) -> None:
        self.text = text
        self.most = most
        self.spans: list[tuple[int, int]] = []

    def value(self, at: int, places: frozenset[_Place]) -> int:
        """Search the value at `at`; return its end."""
        start = self.text[at : at + 1]
        if () in places:
            end = _skip(self.text, at)
            if len(self.spans) == self.most:
                raise TooManyValues(f"more than {self.most} values match the path")
            self.spans.append((at, end))
            return end
        if not places or start not in ("{", "["):
            return _skip(self.text, at)
        return self._inside(at, places, is_object=start == "{")

    def _inside(self, at: int, places: frozenset[_Place], *, is_object: bool) -> int:
        text, closing = self.text, "}" if is_object else "]"
        at = _past_space(text, at + 1)
        if text[at : at + 1] == closing:
            return at + 1
        key: Any = -1
        while True:
            if is_object:
                if text[at : at + 1] != '"':
                    raise FormatError("not JSON: a name is missing")
                key, at = _read(text, at)
                colon = _COLON.match(text, at)
                if colon is None:
                    raise FormatError("not JSON: a colon is missing")
                at = colon.end()
            else:
                key += 1
            at = self.value(at, _below(places, key))
            mark = _MARK.match(text, at)
            if mark is None or mark[1] not in (",", closing):
                raise FormatError(f"not JSON: an {'object' if is_object else 'array'} does not end")
            at = mark.end()
            if mark[1] == closing:
                return mark.end(1)


def _below(places: frozenset[_Place], key: str | int) -> frozenset[_Place]:
    """Return the places of the member with this name, or of the element with this index."""
    steps = [(place[0], place) for place in places]
    here = {place for step, place in steps if step.kind is StepKind.ANYWHERE}
    below = {place[1:] for step, place in steps if step.kind is StepKind.EVERY or _target(step) == key}
    return frozenset(here | below)


def _target(step: Step) -> str | int:
    """Return the name or the index that a step goes to."""
    return step.index if step.kind is StepKind.ELEMENT else step.name


def _skip(text: str, at: int) -> int:
    return _read(text, at)[1]


def _read(text: str, at: int) -> tuple[Any, int]:
    """Return the value at `at`, and its end."""
    try:
        return _scan(text, at)
    except (ValueError, StopIteration) as error:
        raise FormatError("not JSON") from error
