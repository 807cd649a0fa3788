"""Check durations and sizes that are typed, before the command begins: an error names the option."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import click
from click.core import ParameterSource

from jsbackup.cli.options.tagging import parse_lock_end
from jsbackup.config import parse_duration, parse_size
from jsbackup.errors import UsageError

__all__ = ["AMOUNTS", "check_amounts"]

# Options that are any text for click, by their metavar.
AMOUNTS: Final[Mapping[str, Callable[[str], object]]] = {
    "DURATION": parse_duration,
    "BYTES": parse_size,
    "SIZE": parse_size,
    "DURATION|TIME": parse_lock_end,
}
_TYPED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def check_amounts(ctx: click.Context) -> None:
    """Raise UsageError for an option of this context that is no such amount. (Those of profiles are checked there.)"""
    if ctx.resilient_parsing:
        return
    for param in ctx.command.params:
        name = str(param.name)
        parse, value = AMOUNTS.get(param.metavar or ""), ctx.params.get(name)
        if parse is None or not isinstance(value, str) or ctx.get_parameter_source(name) not in _TYPED:
            continue
        try:
            parse(value)
        except UsageError as error:
            raise error.with_message(f"{param.opts[0]}: {error.message}") from None
