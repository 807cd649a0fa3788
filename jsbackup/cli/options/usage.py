"""Convert click's errors to this project's style: one sentence, and a useful hint."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

import click

from jsbackup.errors import UsageError

__all__ = ["no_such_command", "usage_error"]

_DELETES = {"forget", "prune", "unlock", "--prune", "--force", "--release", "--replace-with-part", "--allow-empty"}
_SURELY = 0.8
# The names in other tools.
_OTHER_WORDS = {
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
    "dump": "'get' for one message, 'view' for several, or 'export' for files",
    "grep": "'view' or 'find', each with --grep",
    "rm": "'forget', which removes backups",
    "remove": "'forget', which removes backups",
    "delete": "'forget', which removes backups",
}


def no_such_command(name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a mistyped command, with similar ones."""
    if (other := _OTHER_WORDS.get(name.lower())) is not None:
        return UsageError(f"no such command {name!r}", hint=f"You may want {other}: see 'jsbackup --help'.")
    hint = _did_you_mean(name, _harmless(name, known)) or "See 'jsbackup --help'."
    return UsageError(f"no such command {name!r}", hint=hint)


def _harmless(name: str, known: Iterable[str]) -> list[str]:
    """Return names to suggest. Commands that delete are only suggested for a word that is nearly the same."""
    return [one for one in known if one not in _DELETES or SequenceMatcher(None, name, one).ratio() >= _SURELY]


def usage_error(wrong: click.ClickException) -> UsageError:
    """Convert any error of click's to ours. Typed values are only repeated if click does."""
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
