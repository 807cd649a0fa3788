"""Command lines for people to copy. Names in them are from servers and backups, and may be anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

__all__ = ["command_line", "quoted_command", "shell_word", "without_logins"]

_LOGIN = re.compile(r"(?<=://)[^/@\s]*@|(?<=,)[^/@,\s:]*:[^/@,\s]*@")


def command_line(command: str, *words: str, options: Iterable[tuple[str, str]] = (), names: Iterable[str] = ()) -> str:
    """Return `jsbackup COMMAND WORDS OPTIONS -- NAMES` for a shell. Words from the first on that begins with a dash
    are put after `--` too, so that none is taken for an option. The value of a flag is "".
    """
    dash = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    after = [*words[dash:], *names]
    parts = ["jsbackup", *command.split(), *words[:dash]]
    for option, value in options:
        # A value that begins with a dash would be taken for an option.
        parts += [f"{option}={value}"] if value.startswith("-") else [option, value] if value else [option]
    return " ".join(map(shell_word, [*parts, *(["--", *after] if after else [])]))


def quoted_command(command: str, *words: str, options: Iterable[tuple[str, str]] = ()) -> str:
    """Return a command line for a sentence: in single quotes, or without them if it has signs of a shell itself.

    Quotes around quotes would end those, and a shell that gets both would run what is in a name.
    """
    line = command_line(command, *words, options=options)
    return f"'{line}'" if line == line.replace("'", "").replace("\\", "") else line


def without_logins(text: str) -> str:
    """Return server URLs without user, password and token, so that they can be used with others."""
    return _LOGIN.sub("", text)


def shell_word(word: str) -> str:
    """Return a word for a shell, on one line and visible: bash and zsh read what is not as `$'…'`."""
    if word.isprintable():
        return shlex.quote(word)
    return f"$'{''.join(map(_sign, word))}'"


def _sign(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    if character.isprintable():
        return character
    try:
        data = character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        data = character.encode("utf-8", "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in data)
