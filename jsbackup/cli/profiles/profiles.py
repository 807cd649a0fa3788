"""Profiles: options of all commands from a TOML file, as if they had been typed.

The allowed keys of a table are click's options and arguments; there is no second list. A key is the long name of an
option without its dashes, or the name of an argument. A flag is true or false, a number a number, a repeatable option a
list of texts, anything else a text. A typed option wins over the profile, the profile's own tables over `[defaults]`,
and in each the table of a command over options for all commands. All of them win over the environment: a named profile
is intended, and a leftover variable in a shell must not back up one account to another's repository.

This module is loaded when a profile is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from jsbackup.cli.notify.hooks import HOOK_OPTIONS, HOOK_PREFIX, check_url
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS, over
from jsbackup.cli.parsing.typed_values import AMOUNTS, parse_origin, parse_tag_rule, parse_tags
from jsbackup.config import (
    ConfigFile,
    Secret,
    expand_path,
    expand_variables,
    hide_logins,
    is_reference,
    nearest,
    parse_glob,
)
from jsbackup.config.connection import has_login
from jsbackup.errors import UsageError

__all__ = [
    "HOOKS",
    "Profile",
    "Setting",
    "check_kind",
    "option_keys",
    "read_profile",
    "refuse_unknown",
]


HOOKS: Final = "hooks"
_NOT_HERE: Final = frozenset({"config", "profile"})  # they say where to read this
_SHARED: Final = [
    option for option in (*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS) if option.name not in _NOT_HERE
]


def _check_program(text: str) -> None:
    """Raise UsageError, without the text, if a shell could not split it."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise UsageError("it is not a command", hint="Write a program and its arguments, quoted as for a shell.")


# Options that are any text for click, and parsed later, by their metavar.
_BY_METAVAR: Final[Mapping[str, Callable[[str], object]]] = {
    **AMOUNTS,
    "GLOB": parse_glob,
    "ORIGIN": parse_origin,
    "[STREAM_OR_GLOB]...": parse_glob,
    "COMMAND": _check_program,
    "K=V": lambda text: parse_tags((text,)),
    "K[=V]": parse_tag_rule,
}

FindCommand = Callable[[str], click.Command | None]


@dataclass(frozen=True, slots=True, repr=False)
class Setting:
    """One key of the file. `table` is "" for options of all commands, else `backup`, `key.add`, `hooks` …

    `value` is that for click, `written` the one in the file.
    """

    table: str
    key: str
    parameter: click.Parameter
    value: Any
    written: Any
    of_defaults: bool

    @property
    def name(self) -> str:
        return str(self.parameter.name)

    @property
    def path(self) -> str:
        return f"{self.table}.{self.key}" if self.table else self.key

    @property
    def is_secret(self) -> bool:
        """Whether the value in the file is a secret itself, not a reference to one."""
        name = self.name.removeprefix("to_")
        if not isinstance(self.written, str):
            return False
        plain = self.written
        if "${" in plain:
            return False
        if name in ("password", "token") or name == "ping_url":
            return not is_reference(plain)
        return plain.startswith("data:") or hide_logins(plain) != plain or (name == "server" and "@" in plain)


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile combined with the defaults, and the errors in both."""

    name: str
    path: Path
    settings: tuple[Setting, ...]
    problems: tuple[UsageError, ...]
    others_read: bool

    def values(self, table: str) -> dict[str, Any]:
        """Return the values by parameter name for the command with this `table`."""
        merged: dict[str, Any] = {}
        for of_defaults in (True, False):
            for section in ("", HOOKS, table):
                layer = {s.name: s.value for s in self.settings if (s.of_defaults, s.table) == (of_defaults, section)}
                if layer.keys() & {"server", "context"}:
                    merged.pop("server", None)
                    merged.pop("context", None)
                merged = over(merged, layer)
        return merged

    @property
    def exposed(self) -> list[str]:
        """Return keys of secrets that users besides the owner of the file can read."""
        return [setting.path for setting in self.settings if setting.is_secret] if self.others_read else []


def read_profile(
    file: ConfigFile,
    name: str,
    *,
    commands: Sequence[str],
    find: FindCommand,
    only: Sequence[str] | None,
    environ: Mapping[str, str],
) -> Profile:
    """Combine a profile with the defaults. `find` returns a command by name; `only` is the only command whose tables
    are read.

    Errors are collected, not raised, except a UsageError if there is no profile of that name.
    """
    reader = _Reader(file.path, commands, find, only, environ)
    table = file.profile(name)
    reader.read(file.defaults, "defaults", of_defaults=True)
    reader.read(table, f"profile {name}", of_defaults=False)
    return Profile(name, file.path, tuple(reader.settings), tuple(reader.problems), file.others_read)


@dataclass(frozen=True, slots=True)
class _Reader:
    path: Path
    commands: Sequence[str]
    find: FindCommand
    only: Sequence[str] | None
    variables: Mapping[str, str]
    settings: list[Setting] = field(default_factory=list)
    problems: list[UsageError] = field(default_factory=list)

    def read(self, table: Mapping[str, Any], where: str, *, of_defaults: bool) -> None:
        """Read the options of all commands, the hooks, and the tables of commands."""
        keys = option_keys(_SHARED)
        for key, value in table.items():
            if key in keys:
                self._set("", key, keys[key], value, where=where, of_defaults=of_defaults)
            elif key == HOOKS:
                hooks = {name.removeprefix(HOOK_PREFIX): option for name, option in option_keys(HOOK_OPTIONS).items()}
                self._read_table(HOOKS, hooks, value, where=f"{where}: hooks", of_defaults=of_defaults)
            elif key not in self.commands:
                self._unknown(where, key, [*keys, HOOKS, *self.commands], of_all=True)
            elif self.only is None or key == self.only[0]:
                self._read_command(self.find(key), key, value, where=f"{where}: {key}", of_defaults=of_defaults)

    def _read_command(
        self, command: click.Command | None, name: str, table: Any, *, where: str, of_defaults: bool
    ) -> None:
        inner = command.commands if isinstance(command, click.Group) else {}
        params = () if command is None or inner else command.params
        keys = option_keys(parameter for parameter in params if parameter.name not in _NOT_HERE)
        self._read_table(name, keys, table, inner, where=where, of_defaults=of_defaults)

    def _read_table(
        self,
        name: str,
        keys: Mapping[str, click.Parameter],
        table: Any,
        inner: Mapping[str, click.Command] = MappingProxyType({}),
        *,
        where: str,
        of_defaults: bool,
    ) -> None:
        """Read the options in a table, and those of the commands that are tables in it."""
        if not isinstance(table, dict):
            self._problem(where, "it is not a table", None)
            return
        for key, value in table.items():
            path = f"{name}.{key}"
            if key in keys:
                self._set(name, key, keys[key], value, where=where, of_defaults=of_defaults)
            elif key not in inner:
                self._unknown(where, key, keys or inner)
            elif self.only is None or path == ".".join(self.only):
                self._read_command(inner[key], path, value, where=f"{where}: {key}", of_defaults=of_defaults)

    def _set(
        self, table: str, key: str, parameter: click.Parameter, written: Any, *, where: str, of_defaults: bool
    ) -> None:
        try:
            value = _value(key, parameter, written, self.variables)
        except click.ClickException as wrong:
            self._problem(where, f"{key}: {' '.join(wrong.message.split()).rstrip('.')}", None)
        except UsageError as wrong:
            message = wrong.message if wrong.message.startswith(f"{key} ") else f"{key}: {wrong.message}"
            self._problem(where, message, wrong.hint)
        else:
            self.settings.append(Setting(table, key, parameter, value, written, of_defaults))

    def _unknown(self, where: str, key: str, known: Collection[str], *, of_all: bool = False) -> None:
        """Report an unknown key, which may be an option of one command in the table `of_all`."""
        hint = nearest(key, known)
        commands = {name: self.find(name) for name in self.commands if of_all and key not in _NOT_HERE}
        owners = [name for name, command in commands.items() if command and key in option_keys(command.params)]
        if key in _NOT_HERE:
            hint = "Name profiles and their file on the command line or in the environment."
        elif owners:
            hint = f"It is an option of {', '.join(owners[:5])}: write it into a table of that command."
        self._problem(where, f"unknown key {key[:100]!r}", hint)

    def _problem(self, where: str, message: str, hint: str | None) -> None:
        self.problems.append(UsageError(f"{self.path}: {where}: {message}", hint=hint))


def _value(key: str, parameter: click.Parameter, written: Any, environ: Mapping[str, str]) -> Any:
    """Return the value for click. Raises UsageError and click's own error if it is not valid."""
    check_kind(key, parameter, written)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return written if f"--{key}" not in parameter.secondary_opts else not written
    if isinstance(written, list):
        value: Any = [_text(key, parameter, text, environ) for text in written]
    else:
        value = _text(key, parameter, written, environ) if isinstance(written, str) else written
    with click.Context(click.Command(key)) as ctx:
        parameter.type_cast_value(ctx, value)
    return value


def _text(key: str, parameter: click.Parameter, written: str, environ: Mapping[str, str]) -> str:
    text = expand_variables(written, environ)
    if not text:
        raise UsageError(f"{key} is empty")
    if text.startswith("~/") and parameter.metavar in ("FILE", "LOCATION"):  # no shell expands it here
        text = str(expand_path("~", environ)) + text[1:]
    if parse := _BY_METAVAR.get(parameter.metavar or ""):
        parse(text)
    name = str(parameter.name).removeprefix("to_")
    if name == "server":
        has_login(text)
    if name == "ping_url" and not is_reference(text):
        check_url(Secret(text))
    return text


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
