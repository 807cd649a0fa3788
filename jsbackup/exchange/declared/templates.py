"""Texts in the JSON of Terraform are templates: `${` begins an expression and `%{` a directive. Doubled, they are
themselves.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["from_template", "to_template"]

_BEGIN = re.compile(r"[$%]\{")
_TOKEN = re.compile(r"\$\$\{|%%\{|[$%]\{")


def to_template(value: Any) -> Any:
    """Return the value with all texts, also names in objects, as templates that mean these texts."""
    if isinstance(value, str):
        return _BEGIN.sub(lambda match: match[0][0] + match[0], value)
    if isinstance(value, list):
        return [to_template(one) for one in value]
    if isinstance(value, dict):
        return {to_template(key): to_template(one) for key, one in value.items()}
    return value


def from_template(value: Any) -> Any:
    """Return the value with the texts that templates mean. Raises `ValueError` if one has an expression."""
    if isinstance(value, str):
        return _TOKEN.sub(_token, value)
    if isinstance(value, list):
        return [from_template(one) for one in value]
    if isinstance(value, dict):
        return {from_template(key): from_template(one) for key, one in value.items()}
    return value


def _token(match: re.Match[str]) -> str:
    if len(match[0]) == 2:
        raise ValueError("it has an expression, and only plain values are read")
    return match[0][1:]
