"""Convert click's errors to this project's style: one sentence, and a useful hint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import click

from jsbackup.config import edits, similar
from jsbackup.errors import UsageError

__all__ = ["no_such_command", "usage_error", "value_error"]

_DELETES = {"forget", "prune", "unlock", "--prune", "--force", "--release", "--replace-with-part", "--allow-nothing"}
_LOOK = "'view' for messages, 'kv get' for keys, 'object get' for files, or 'export' for all"
_FORGET = "'forget', which removes backups"
_BACK = "'restore' for streams, or 'put-back' for messages, keys and files"
_PRUNE = "'prune', which deletes what no backup needs, or 'forget', which removes backups"
_FOLLOW = "'follow', or 'copy' for repositories"
# The names in other tools.
_OTHER_WORDS = {
    "ls": "'list'",
    "snapshots": "'list'",
    "snapshot": "'backup'",
    "create": "'backup'",
    "save": "'backup'",
    "recover": "'restore'",
    "undo": _BACK,
    "rollback": _BACK,
    "check": "'verify', or 'doctor' to check the setup",
    "info": "'show', or 'status'",
    "sync": _FOLLOW,
    "mirror": _FOLLOW,
    "migrate": "'clone', which copies from one server to another",
    "cat": _LOOK,
    "dump": _LOOK,
    "grep": "'view' or 'history', each with --grep",
    "mount": "'browse' for pages in a browser, or 'drill --keep' for a server with the backup",
    "version": "'jsbackup --version'",
    "purge": _PRUNE,
    "clean": _PRUNE,
    "cleanup": _PRUNE,
    "gc": _PRUNE,
    "rm": _FORGET,
    "remove": _FORGET,
    "delete": _FORGET,
}
_REPLACING = ("--force", "--overwrite", "--replace", "--yes", "-y")
_STREAMS, _BACKUPS = ("--stream", "--streams"), ("--backup", "--snapshot")


def no_such_command(name: str, known: Iterable[str], group: str = "") -> UsageError:
    """Return the error for a mistyped command, with similar ones. `group` is the one it would be in: `key`."""
    names = list(known)
    if group:
        hint = _did_you_mean(name, names) or f"Commands are {', '.join(f'{group} {one}' for one in names)}."
        return UsageError(f"no such command {f'{group} {name}'!r}", hint=hint)
    other = _OTHER_WORDS.get(name.lower())
    hint = f"You may want {other}: see 'jsbackup --help'." if other else _did_you_mean(name, names) or ""
    return UsageError(f"no such command {name!r}", hint=hint or "See 'jsbackup --help'.")


def usage_error(wrong: click.ClickException) -> UsageError:
    """Convert any error of click's to ours. Typed values are only repeated if click does."""
    context = wrong.ctx if isinstance(wrong, click.UsageError) else None
    hint = f"See '{context.command_path if context else 'jsbackup'} --help'."
    match wrong:
        case click.NoSuchOption(option_name=name):
            return UsageError(f"no such option {name}", hint=(_other_option(name, context) if context else "") or hint)
        case click.BadOptionUsage(option_name=name):
            takes = "takes no value" if "not take" in wrong.message else "needs a value"
            return UsageError(f"{name} {takes}", hint=hint)
        case click.MissingParameter(param=click.Parameter() as param):
            if isinstance(param.type, click.Choice):
                hint = f"Choose from {', '.join(map(str, param.type.choices))}."
            return UsageError(f"missing {param.param_type_name} {_name(param)}", hint=hint)
        case click.BadParameter(param=click.Parameter() as param):
            argument = "argument " if isinstance(param, click.Argument) else ""
            return UsageError(f"{argument}{_name(param)}: {value_error(wrong)}", hint=hint)
        case _:
            text = " ".join(wrong.format_message().split()).rstrip(".")
            if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", text):
                return UsageError(f"unexpected argument {extra[1]}", hint=hint)
            return UsageError(text[:1].lower() + text[1:], hint=hint)


def value_error(wrong: click.ClickException) -> str:
    """Return what is wrong with a value, without the name of its option."""
    text = " ".join(wrong.message.split()).rstrip(".")
    param = wrong.param if isinstance(wrong, click.BadParameter) else None
    if param is not None and isinstance(param.type, click.Choice):
        value, is_not, _ = text.partition(" is not one of ")
        return f"{value}{is_not}{', '.join(map(str, param.type.choices))}" if is_not else text
    return text


def _name(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


def _other_option(name: str, context: click.Context) -> str:
    """Return the hint for an unknown option: what it may be for this command; "" if nothing is similar."""
    params = context.command.params
    options = [option for param in params for option in param.opts if option.startswith("--")]
    if name in _REPLACING:
        if "--if-exists" in options:
            return "To replace streams that exist, give --if-exists replace."
        if name in ("--yes", "-y"):
            return "It asks nothing: leave that out."
    arguments = [param for param in params if isinstance(param, click.Argument)]
    for names, of_them in ((_STREAMS, {"stream", "streams"}), (_BACKUPS, {"backup", "backups"})):
        if name in names and any(str(one.name) in of_them for one in arguments):
            line = " ".join([context.command_path, *(one.make_metavar(context) for one in arguments)])
            return f"That is an argument, not an option: {line}."
    if name == "--dry-run" and context.info_name == "plan":
        return "'plan' changes nothing: leave it out."
    return _did_you_mean(name, options) or ""


def _did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Return a hint with similar names. One that deletes is only named for a word that is nearly the same."""
    bare = {one.removeprefix("--"): one for one in known}
    word = name.removeprefix("--")
    near = [bare[one] for one in similar(word, bare)]
    near = [one for one in near if one not in _DELETES or edits(word, one.removeprefix("--"), 1) is not None]
    if not near and len(word) > 2:
        near = [full for one, full in bare.items() if one.startswith(word) and full not in _DELETES]
    return f"Did you mean {' or '.join(near[:3])}?" if near else None
