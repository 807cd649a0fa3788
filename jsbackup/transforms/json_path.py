"""Paths to values in a JSON text: a part of JSONPath (RFC 9535).

| path | means |
| --- | --- |
| `$` | the whole text |
| `$.name`, `$['a name']`, `$["a name"]` | the member of an object; all of them if the name is repeated |
| `$[3]` | the element of an array, counted from 0 |
| `$.*`, `$[*]` | every member or element |
| `$..name`, `$..['a name']` | the member at any depth |

In quotes, `\\'`, `\\"` and `\\\\` mean the character after the backslash. Filters, slices, unions, indices from the end
and `..*` are refused. Names without quotes: letters, digits, `_`, `-` and all beyond ASCII.
"""

from __future__ import annotations

import re

from jsbackup.errors import UsageError
from jsbackup.formats.mask_rules import Step, StepKind

__all__ = ["Step", "StepKind", "parse_path"]


_STEP = re.compile(
    r"""(?P<dots>\.\.?)(?P<name>[A-Za-z0-9_\-\u0080-\U0010ffff]+)
      | (?P<deep>\.\.)?\['(?P<single>(?:[^'\\]|\\['"\\])*)'\]
      | (?P<deeper>\.\.)?\["(?P<double>(?:[^"\\]|\\['"\\])*)"\]
      | \[(?P<index>0|[1-9][0-9]{0,8})\]
      | (?P<every>\.\*|\[\*\])""",
    re.VERBOSE,
)
_MAX_STEPS = 64


def parse_path(text: str) -> tuple[Step, ...]:
    """Return the steps of a path. Raises UsageError if it is not valid or not supported."""
    steps: list[Step] = []
    at = 1
    if text[:1] != "$":
        raise UsageError(f"not a JSON path: {text[:80]!r}", hint="Write it as $.customer.email or $..email.")
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or len(steps) == _MAX_STEPS:
            raise UsageError(
                f"JSON path {text[:80]!r}: not supported from {text[at : at + 20]!r} on",
                hint="Supported are $.name, $['a name'], $[0], $[*], $.* and $..name.",
            )
        steps.append(_step(match))
        at = match.end()
    return tuple(steps)


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
