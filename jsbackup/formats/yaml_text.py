"""Encode JSON-like values as YAML: maps and lists in blocks, texts in double quotes as in JSON, which is valid YAML.

Texts of several lines are literal blocks. Nothing else is supported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["to_yaml", "yaml_scalar"]

_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*", re.ASCII)
# Words that older YAML parsers treat as booleans or null.
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def to_yaml(value: Mapping[str, Any]) -> str:
    return "\n".join([*_lines(value), ""])


def _lines(value: Any) -> Iterable[str]:
    if value and isinstance(value, Mapping):
        return _map(value)
    if value and isinstance(value, list):
        return _list(value)
    return [yaml_scalar(value)]


def _map(value: Mapping[str, Any]) -> Iterator[str]:
    for key, inner in value.items():
        plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS
        name = key if plain else yaml_scalar(key)
        if inner and isinstance(inner, Mapping | list):
            yield f"{name}:"
            yield from _indented(_lines(inner))
        elif isinstance(inner, str) and _is_block(inner):
            yield f"{name}: |"
            yield from _indented(inner.removesuffix("\n").split("\n"))
        else:
            yield f"{name}: {yaml_scalar(inner)}"


def _list(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        first, *more = _lines(value)
        yield f"- {first}"
        yield from _indented(more)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else "" for line in lines)


def yaml_scalar(value: Any) -> str:
    """Return a text, number or boolean on one line."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in text)


def _is_block(text: str) -> bool:
    """Return whether a literal block preserves the text: only printable characters, and every line is ended."""
    lines = text.split("\n")
    return (
        len(lines) > 2
        and lines[-1] == ""
        and lines[-2] != ""
        and lines[0][:1].strip() != ""
        and all(map(str.isprintable, lines))
    )
