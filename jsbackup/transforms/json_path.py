"""Paths to values in a JSON text: a part of JSONPath (RFC 9535).

| path | means |
| --- | --- |
| `$` | the whole text |
| `$.name`, `$['a name']`, `$["a name"]` | the member of an object; all of them if the name is repeated |
| `$[3]` | the element of an array, counted from 0 |
| `$.*`, `$[*]` | every member or element |
| `$..name`, `$..['a name']` | the member at any depth |

In quotes, `\\'`, `\\"` and `\\\\` mean the character after the backslash. Filters, slices, unions, indices from the end
and `..*` are refused by name. Names without quotes: letters, digits, `_`, `-` and all beyond ASCII.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jsbackup.errors import UsageError
from jsbackup.formats.mask_rules import Step, StepKind

__all__ = ["JsonPath", "Step", "StepKind"]


_STEP = re.compile(
    r"""(?P<dots>\.\.?)(?P<name>[A-Za-z0-9_\-\u0080-\U0010ffff]+)
      | (?P<deep>\.\.)?\['(?P<single>(?:[^'\\]|\\['"\\])*)'\]
      | (?P<deeper>\.\.)?\["(?P<double>(?:[^"\\]|\\['"\\])*)"\]
      | \[(?P<index>0|[1-9][0-9]{0,8})\]
      | (?P<every>\.\*|\[\*\])""",
    re.VERBOSE,
)
_REFUSED = (
    (re.compile(r"\[\s*\?"), "a filter"),
    (re.compile(r"\[\s*-?\d*\s*:"), "a slice"),
    (re.compile(r"\[\s*-\d+\s*\]"), "an index from the end"),
    (re.compile(r"\[[^\]]*,"), "a union"),
    (re.compile(r"\.\.(\*|\[\s*[*\d])"), "'..' with anything but a name"),
    (re.compile(r"\[\s*\("), "a script"),
)
_MAX_STEPS = 64


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path; `text` is its original text."""

    text: str
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str) -> JsonPath:
        """Parse a path. Raises UsageError if it is not valid or not supported."""
        steps: list[Step] = []
        at = 1
        if text[:1] != "$":
            raise UsageError(f"not a JSON path: {text[:80]!r}", hint="Write it as $.customer.email or $..email.")
        while at < len(text):
            match = _STEP.match(text, at)
            if match is None or len(steps) == _MAX_STEPS:
                raise _refused(text, at)
            steps.append(_step(match))
            at = match.end()
        return cls(text, tuple(steps))


def _step(match: re.Match[str]) -> Step:
    if match["every"]:
        return Step(StepKind.EVERY)
    if match["index"]:
        return Step(StepKind.ELEMENT, index=int(match["index"]))
    if match["name"]:
        return Step(StepKind.ANYWHERE if match["dots"] == ".." else StepKind.MEMBER, match["name"])
    quoted = match["single"] if match["single"] is not None else match["double"]
    deep = match["deep"] or match["deeper"]
    return Step(StepKind.ANYWHERE if deep else StepKind.MEMBER, re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))


def _refused(text: str, at: int) -> UsageError:
    for pattern, what in _REFUSED:
        if pattern.match(text, at):
            return UsageError(
                f"JSON path {text[:80]!r}: {what} is not supported",
                hint="Supported are $.name, $['a name'], $[0], $[*], $.* and $..name.",
            )
    return UsageError(
        f"JSON path {text[:80]!r}: not understood from {text[at : at + 20]!r} on",
        hint="Supported are $.name, $['a name'], $[0], $[*], $.* and $..name.",
    )
