"""Expressions for header blocks in the column `headers`, without Python."""

from __future__ import annotations

from typing import Final

__all__ = ["HEADER_MAP"]

_LINES: Final = r"filter(split(try_validate_utf8(cast(headers AS string)), '\r\n'), line -> instr(line, ':') > 1)"
_NAME: Final = "substring_index(line, ':', 1)"
_PAIR: Final = f"map({_NAME}, trim(substr(line, instr(line, ':') + 1, length(line))))"
_ADDED: Final = f"if(map_contains_key(found, {_NAME}), found, map_concat(found, {_PAIR}))"

HEADER_MAP: Final = f"aggregate({_LINES}, cast(map() AS map<string, string>), (found, line) -> {_ADDED})"
"""In Spark's SQL, the block in the column `headers` as `map<string,string>`; a repeated header has its first value, as
in NATS clients. Names keep their case. Null without a block; malformed lines are skipped.
"""
