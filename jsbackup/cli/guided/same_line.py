"""The command line that does without questions what was asked for, quoted for a shell, and without secrets."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from jsbackup.shell import without_logins

__all__ = ["same_line"]

_SECRETS = ("--password", "--token")
_LEFT_OUT = ("--dry-run",)


def same_line(typed: Sequence[str], options: Iterable[tuple[str, str]], words: Sequence[str]) -> tuple[str, bool]:
    """Return what was `typed` after the program's name, with more `options` ("" for the value of a flag) and `words`;
    and whether a secret was left out.
    """
    kept: list[str] = []
    hidden = False
    rest = iter(typed)
    for word in rest:
        name, equals, _ = word.partition("=")
        if name in _SECRETS:
            hidden = True
            if not equals:
                next(rest, None)
        elif name not in _LEFT_OUT and word != "--":
            kept.append(word)
    for option, value in options:
        # A value that begins with a dash would be taken for an option.
        kept += [f"{option}={value}"] if value.startswith("-") else [option, value] if value else [option]
    shown = [without_logins(word) for word in kept]
    hidden = hidden or shown != kept
    dashes = ["--"] if any(word.startswith("-") for word in words) else []
    return shlex.join(["jsbackup", *shown, *dashes, *words]), hidden
