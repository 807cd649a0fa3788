"""Numbers, durations and sizes that are typed: checked before the command begins. An error names the option.

Click describes the range of a number in help texts and errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import click
from click.core import ParameterSource

from jsbackup.cli.options.tagging import parse_lock_end
from jsbackup.config import parse_duration, parse_size
from jsbackup.errors import UsageError

__all__ = ["AMOUNTS", "Percentage", "WholeNumber", "check_amounts"]

# Options that are any text for click, by their metavar.
AMOUNTS: Final[Mapping[str, Callable[[str], object]]] = {
    "DURATION": parse_duration,
    "BYTES": parse_size,
    "SIZE": parse_size,
    "DURATION|TIME": parse_lock_end,
}
_TYPED = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


class WholeNumber(click.IntRange):
    """A whole number from `low` to `high`, or of any size."""

    name = "whole number"

    def __init__(self, low: int, high: int | None = None) -> None:
        super().__init__(low, high)

    def _describe_range(self) -> str:
        return f"{self.min} or more" if self.max is None else f"{self.min} to {self.max}"


class Percentage(click.FloatRange):
    """A number above 0, up to 100."""

    name = "number"

    def __init__(self) -> None:
        super().__init__(0, 100, min_open=True)

    def _describe_range(self) -> str:
        return "above 0, up to 100"


def check_amounts(ctx: click.Context) -> None:
    """Raise UsageError for an option of this context that is not such an amount. Profiles check theirs."""
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
