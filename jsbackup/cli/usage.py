"""What click says of a wrong command line, in this project's words: one sentence, and a hint that helps."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from jsbackup.errors import UsageError

__all__ = ["no_such_command", "usage_error"]


def no_such_command(name: str, known: Iterable[str]) -> UsageError:
    """A mistyped command, with those that come near."""
    return UsageError(f"no such command {name!r}", hint=_did_you_mean(name, known) or "See 'jsbackup --help'.")


def usage_error(wrong: click.ClickException) -> UsageError:
    """Any error of click's as ours. Values that were typed are repeated only where click does."""
    context = wrong.ctx if isinstance(wrong, click.UsageError) else None
    hint = f"See '{context.command_path if context else 'jsbackup'} --help'."
    match wrong:
        case click.NoSuchOption(option_name=name):
            known = [option for param in context.command.params for option in param.opts] if context else []
            return UsageError(f"no such option {name}", hint=_did_you_mean(name, known) or hint)
        case click.MissingParameter(param=click.Parameter() as param):
            what = param.opts[0] if param.param_type_name == "option" else param.human_readable_name
            if isinstance(param.type, click.Choice):
                hint = f"Choose from {', '.join(map(str, param.type.choices))}."
            return UsageError(f"missing {param.param_type_name} {what}", hint=hint)
        case _:
            text = " ".join(wrong.format_message().split()).rstrip(".")
            return UsageError(text[:1].lower() + text[1:], hint=hint)


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    near = get_close_matches(name, list(known), n=3)
    return f"Did you mean {' or '.join(near)}?" if near else None
