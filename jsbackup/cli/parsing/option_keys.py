"""Options and arguments as keys of a TOML table, checked by click's definitions.

A key is the long name of an option without its dashes, or the name of an argument. A flag is true or false, a number a
number, a repeatable option a list of texts, anything else a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from jsbackup.config import nearest
from jsbackup.errors import UsageError

__all__ = ["check_kind", "option_keys", "refuse_unknown"]


def option_keys(parameters: Iterable[click.Parameter]) -> dict[str, click.Parameter]:
    """Return the parameters by key. An option with an opposite (`--a/--b`) has a key for each."""
    keys: dict[str, click.Parameter] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            names = (*parameter.opts, *parameter.secondary_opts)
            keys |= {name.removeprefix("--"): parameter for name in names if name.startswith("--")}
        else:
            keys[str(parameter.name)] = parameter
    return keys


def refuse_unknown(table: Iterable[str], known: Mapping[str, Any] | list[str], what: str) -> None:
    """Raise UsageError for the first unknown key, with the most similar known one."""
    for key in table:
        if key not in known:
            raise UsageError(f"{what} has the unknown key {key[:100]!r}", hint=nearest(key, list(known)))


def check_kind(key: str, parameter: click.Parameter, value: Any) -> None:
    """Raise UsageError if a value has the wrong type for the parameter, is empty, or could not be typed."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        _check(key, "true or false", isinstance(value, bool))
    elif isinstance(parameter.type, click.types.FloatParamType):
        _check(key, "a number", isinstance(value, int | float) and not isinstance(value, bool))
    elif isinstance(parameter.type, click.types.IntParamType):
        # Hexadecimal allows more digits than Python prints.
        _check(key, "a number", isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63)
    else:
        several = parameter.nargs == -1 or parameter.multiple
        kind = "a list of texts" if several else "a text"
        _check(key, kind, isinstance(value, list) is several)
        for text in value if several else [value]:
            _check(key, kind, isinstance(text, str))
            if not text or "\0" in text:
                raise UsageError(f"{key} is empty" if not text else f"{key} holds a NUL character")


def _check(key: str, kind: str, right: bool) -> None:
    if not right:
        raise UsageError(f"{key} has to be {kind}")
