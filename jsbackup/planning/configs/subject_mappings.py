"""Whether a server can map one subject to another one: subject transforms, and what it republishes.

As nats-server checks it (`ValidateMapping` in its sublist.go, `NewSubjectTransform` in its subject_transform.go, 2.10
to 2.15). A destination has no wildcards: `$1` and `{{wildcard(1)}}` stand for the first `*` of the source. Other
functions make a token of several, of a part of one, or of none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jsbackup.names import BLANKS, has_blank
from jsbackup.planning.configs.features import Version
from jsbackup.readable import format_count

__all__ = ["is_server_subject", "mapping_problem"]

_INT32, _INT64 = 1 << 31, 1 << 63
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BLANK = f"[{BLANKS}]"
# In this order; the server looks for them anywhere between the braces.
_FUNCTIONS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(rf"\{{\{{{_BLANK}*{word}{_BLANK}*\((.*)\){_BLANK}*\}}\}}")
    for name, word in {
        "wildcard": "[wW]ildcard",
        "partition": "[pP]artition",
        "splitfromleft": "[sS]plit[fF]rom[lL]eft",
        "splitfromright": "[sS]plit[fF]rom[rR]ight",
        "slicefromleft": "[sS]lice[fF]rom[lL]eft",
        "slicefromright": "[sS]lice[fF]rom[rR]ight",
        "right": "[rR]ight",
        "left": "[lL]eft",
        "split": "[sS]plit",
        "random": "[rR]andom",
    }.items()
}
_ANYWHERE = ("partition", "random")  # which need no wildcard in the source


def is_server_subject(text: str) -> bool:
    """Return whether servers take it for a subject, with or without wildcards (`IsValidSubject`)."""
    return not has_blank(text) and _is_tokens(text)


def mapping_problem(source: str, destination: str, version: Version, *, lenient: bool = False) -> str | None:
    """Return why servers of this version cannot map what matches `source` to `destination`; None if they can. An empty
    source is `>`, an empty destination changes nothing. `lenient`: as servers treat what is republished.
    """
    source = source or ">"
    if not destination:
        return None
    if not _is_tokens(destination) or (not lenient and _has_blank_token(destination)):
        return "the destination is not a valid subject"
    if not _is_tokens(source):
        return "the source is not a valid subject"
    sources, tokens = source.split("."), destination.split(".")
    if "*" in tokens:
        return "the destination has a wildcard *; $1 stands for the first * of the source"
    if (sources[-1] == ">") != (tokens[-1] == ">"):
        return "source and destination must both end with >, or neither"
    wildcards = sources.count("*")
    may_need_none = version >= (2, 12)
    lacks_wildcards = not wildcards and (sources[-1] != ">" or not may_need_none)
    for token in tokens:
        function, problem = _read_token(token, version, lenient=lenient)
        if problem or function is None:
            pass
        elif lacks_wildcards and not (function.name in _ANYWHERE and may_need_none):
            problem = "the source has no wildcard *"
        elif not lacks_wildcards and any(index > wildcards for index in function.wildcards):
            problem = f"the source has {format_count(wildcards, 'wildcard')} *"
        if problem:
            return f"{token} in the destination: {problem}"
    return None


@dataclass(frozen=True, slots=True)
class _Function:
    """A token that is made from the wildcards with these numbers. Servers accept 0 and less."""

    name: str
    wildcards: Sequence[int]


def _is_tokens(text: str) -> bool:
    tokens = text.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


def _is_function(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def _has_blank_token(destination: str) -> bool:
    return any(has_blank(token) for token in destination.split(".") if not _is_function(token))


def _read_token(token: str, version: Version, *, lenient: bool) -> tuple[_Function | None, str]:
    """Return the function that a token of a destination is, if it is one, and what is wrong with it, or ""."""
    if token.startswith("$") and (number := _number(token[1:])) is not None:
        return _Function("wildcard", [number]), ""
    if not _is_function(token):
        return None, ""
    found = ((name, pattern.search(token)) for name, pattern in _FUNCTIONS.items())
    name, match = next(((name, match) for name, match in found if match), ("", None))
    if match is None or (name == "random" and version < (2, 12)):
        return None, "there is no such function"
    if name in ("left", "right") and not lenient and version < (2, 15):
        return None, f"there is no function {name} here before nats-server 2.15"
    arguments = re.split(f",{_BLANK}*", match[1])
    if name == "split":
        number = _number(arguments[0].strip(" "))
        if len(arguments) != 2 or number is None or " " in arguments[1]:
            return None, "it takes the number of a wildcard, and a delimiter"
        return _Function(name, [number]), ""
    given = [number for argument in arguments if (number := _number(argument.strip(" "))) is not None]
    if len(given) < len(arguments) or not _takes(name, given, version):
        return None, "its arguments are not such as it takes"
    return _Function(name, given[1:] if name in _ANYWHERE else given[:1]), ""


def _takes(name: str, given: Sequence[int], version: Version) -> bool:
    if name == "wildcard":
        return len(given) == 1
    if name not in _ANYWHERE:
        most = _INT32 if version >= (2, 11) else _INT64
        return len(given) == 2 and -most <= given[1] < most
    most = _INT32 if version >= (2, 12) else _INT64
    if name == "random":
        return len(given) == 1 and given[0] < most
    return len(given) >= (1 if version >= (2, 12) else 2) and given[0] < most


def _number(text: str) -> int | None:
    number = int(text) if _NUMBER.fullmatch(text) and len(text) < 30 else None
    return number if number is not None and -_INT64 <= number < _INT64 else None
