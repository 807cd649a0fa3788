"""What click says of a wrong command line, in this project's words: one sentence, and a hint that helps."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

import click

from jsbackup.errors import UsageError

__all__ = ["no_such_command", "usage_error"]

_DELETES = {"forget", "prune", "unlock", "--prune", "--force", "--release", "--replace-with-part", "--allow-empty"}
_SURELY = 0.8
# What other tools call it.
_OTHER_WORDS = {
    "get": "'restore', or 'export' for files",
    "ls": "'list'",
    "snapshots": "'list'",
    "snapshot": "'backup'",
    "create": "'backup'",
    "save": "'backup'",
    "recover": "'restore'",
    "check": "'verify', or 'doctor' for what stands in the way",
    "info": "'show', or 'status'",
    "sync": "'follow', or 'copy' for repositories",
    "mirror": "'follow', or 'copy' for repositories",
    "dump": "'export'",
    "find": "'query'",
    "rm": "'forget', which removes backups",
    "remove": "'forget', which removes backups",
    "delete": "'forget', which removes backups",
}


def no_such_command(name: str, known: Iterable[str]) -> UsageError:
    """A mistyped command, with those that come near."""
    if (other := _OTHER_WORDS.get(name.lower())) is not None:
        return UsageError(f"no such command {name!r}", hint=f"You may want {other}: see 'jsbackup --help'.")
    hint = _did_you_mean(name, _harmless(name, known)) or "See 'jsbackup --help'."
    return UsageError(f"no such command {name!r}", hint=hint)


def _harmless(name: str, known: Iterable[str]) -> list[str]:
    """What may be suggested. What deletes is meant by a word that is nearly the same, and by no other."""
    return [one for one in known if one not in _DELETES or SequenceMatcher(None, name, one).ratio() >= _SURELY]


def usage_error(wrong: click.ClickException) -> UsageError:
    """Any error of click's as ours. Values that were typed are repeated only where click does."""
    context = wrong.ctx if isinstance(wrong, click.UsageError) else None
    hint = f"See '{context.command_path if context else 'jsbackup'} --help'."
    match wrong:
        case click.NoSuchOption(option_name=name):
            known = [option for param in context.command.params for option in param.opts] if context else []
            return UsageError(f"no such option {name}", hint=_did_you_mean(name, _harmless(name, known)) or hint)
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
