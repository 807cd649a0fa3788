"""A runbook: several restores in one TOML file, each with the options of a restore.

    [[restore]]
    backup = "latest"                   # an id, the start of one, or latest
    repo = "s3://backups/shop"
    server = "nats://127.0.0.1:4222"
    creds = "~/shop.creds"
    streams = ["ORDERS"]
    rename = ["ORDERS=ORDERS_before"]
    if-exists = "skip"
    replicas = 3

A key is the long name of an option without its dashes, or `backup`, `streams`; its type follows from click's option: a
list of texts if it is repeatable, a number, true or false, else a text. Options for the repository, its keys and the
server default to those of the command line; a restore that names `server` or `context` only inherits the timeout, and
ignores the environment, like the target of a clone. Secrets are in files or variables (`env://NAME`), and nothing in a
runbook runs a program.

What takes long to import is imported when it is called: `--help` and completion load this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from jsbackup.cli.options.opening import connection_of, target_connection_of
from jsbackup.cli.options.restore_options import Asked, planning_options
from jsbackup.cli.parsing.command import CHOOSING_OPTIONS
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS, Shared, usage_error
from jsbackup.cli.parsing.typed_values import NOTES, parse_choosing
from jsbackup.cli.profiles.profiles import check_kind, option_keys, refuse_unknown
from jsbackup.config import LOGIN_NAMES, is_reference, needs_program, read_toml
from jsbackup.errors import UsageError
from jsbackup.failure import naming

if TYPE_CHECKING:
    from jsbackup.config import Connection
    from jsbackup.planning.model import RestoreOptions

__all__ = ["RunbookEntry", "naming_restore", "read_runbook"]

MAX_RESTORES: Final = 1000

_LIST = "restore"
_REPO = next(option for option in GLOBAL_OPTIONS if option.name == "repo")
_GROUPS = {
    "choosing": CHOOSING_OPTIONS,
    "repo": [_REPO],
    "s3": S3_OPTIONS,
    "keys": KEY_OPTIONS,
    "server": SERVER_OPTIONS,
}
_BARE = ("password", "token")  # options that may be a secret themselves


@dataclass(frozen=True, slots=True)
class RunbookEntry:
    """One restore, counted from 1. `shared` and `connection` are its own."""

    number: int
    backup: str
    shared: Shared
    connection: Connection
    options: RestoreOptions


class _EntryCommand(click.Command):
    """The options of one restore. Given shared options are passed as `given`, by groups and names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *(option for options in _GROUPS.values() for option in options)]

    def invoke(self, ctx: click.Context) -> Any:
        given: dict[str, dict[str, Any]] = {}
        for group, options in _GROUPS.items():
            values = {str(option.name): ctx.params.pop(str(option.name)) for option in options}
            typed = (name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE)
            given[group] = {name: values[name] for name in typed}
        assert self.callback is not None
        return ctx.invoke(self.callback, given=given, **ctx.params)


@click.command(cls=_EntryCommand, add_help_option=False)
@planning_options
def _entry(**values: Any) -> Any:
    return values["asked"].options(), values


def read_runbook(path: Path, shared: Shared) -> list[RunbookEntry]:
    """Read the restores of a file, with defaults from `shared`. Raises UsageError, which names the restore."""
    found = read_toml(path, "runbook")
    refuse_unknown(found, [_LIST], f"runbook {path}")
    tables = found.get(_LIST)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"runbook {path} has no list of restores", hint="Write [[restore]] before each of them.")
    if len(tables) > MAX_RESTORES:
        raise UsageError(f"runbook {path} has {len(tables)} restores, more than {MAX_RESTORES}")
    entries = []
    for number, table in enumerate(tables, start=1):
        with naming_restore(number):
            entries.append(_read(number, table, shared))
    return entries


@contextmanager
def naming_restore(number: int) -> Iterator[None]:
    """Add to errors raised inside, also to click's, which restore of a runbook they are about."""
    with naming(f"restore {number}"):
        try:
            yield
        except click.ClickException as wrong:
            raise UsageError(usage_error(wrong).message) from None


def _read(number: int, table: Mapping[str, Any], shared: Shared) -> RunbookEntry:
    keys = _keys()
    refuse_unknown(table, keys, "it")
    options, streams = [], []
    for key, value in table.items():
        parameter = keys[key]
        words = _words(key, parameter, value)
        if isinstance(parameter, click.Option):
            options += words
        else:
            streams += words if key == "streams" else []
    backup = table.get("backup")
    if backup is None:
        raise UsageError("it names no backup", hint='Write backup = "latest", or an id or the start of one.')
    ctx = _entry.make_context("restore", [*options, "--", str(backup), *streams])
    with ctx:
        chosen, values = _entry.invoke(ctx)
    for note in ctx.meta.get(NOTES, ()):
        shared.output.note(f"restore {number}: {note}")
    asked: Asked = values["asked"]
    given: dict[str, dict[str, Any]] = values["given"]
    own = replace(
        shared,
        repo=given["repo"].get("repo", shared.repo),
        s3={**shared.s3, **given["s3"]},
        keys={**shared.keys, **given["keys"]},
        choosing=parse_choosing(**{"origins": (), "tags": ()} | given["choosing"], backups=[asked.backup]),
    )
    own, connection = _connected(own, given["server"])
    return RunbookEntry(number, asked.backup, own, connection, chosen)


def _connected(shared: Shared, given: Mapping[str, Any]) -> tuple[Shared, Connection]:
    """Return the effective server options and their connection."""
    if given.keys() & {"server", "context"}:
        timeout = {name: value for name, value in shared.server.items() if name == "timeout"}
        own = replace(shared, server={**timeout, **given})
        return own, target_connection_of(own.server)
    left = dict(shared.server)
    if given.keys() & LOGIN_NAMES:
        left = {name: value for name, value in left.items() if name not in LOGIN_NAMES}
        if "@" in str(left.get("server", "")):
            raise UsageError(
                "--server contains a login, but this restore logs in differently",
                hint="Name the server here too, or give --server without a login.",
            )
    own = replace(shared, server={**left, **given})
    return own, connection_of(own)


def _keys() -> dict[str, click.Parameter]:
    """Return the allowed options of a restore, by key."""
    return option_keys(_entry.params)


def _words(key: str, parameter: click.Parameter, value: Any) -> list[str]:
    """Return the value as typed on the command line. Raises UsageError if it has the wrong type, or is not allowed."""
    check_kind(key, parameter, value)
    if isinstance(parameter, click.Option) and parameter.is_flag:
        opposite = [name for name in (*parameter.opts, *parameter.secondary_opts) if name != f"--{key}"]
        return [f"--{key}"] if value else opposite
    values = value if isinstance(value, list) else [value]
    for text in values:
        _check_text(key, str(text))
    return [f"--{key}={text}" for text in values] if isinstance(parameter, click.Option) else values


def _check_text(key: str, text: str) -> None:
    """Raise UsageError for programs and secrets, without their text."""
    if key.endswith("-command"):
        raise UsageError(f"{key} runs a program, which a runbook may not", hint="Give it on the command line.")
    program = needs_program(text)
    if program is not None:
        raise UsageError(
            f"{key} is an {program}:// reference, which runs a program, and a runbook may not",
            hint="Give it on the command line, or in a context of the nats CLI.",
        )
    bare = key in _BARE and not is_reference(text)
    if bare or (key == "server" and "@" in text) or text.lower().startswith("data:"):
        raise UsageError(
            f"{key} holds a secret, which a runbook may not",
            hint="Put it into a file or a variable, and write file://PATH or env://NAME; a user has a key of its own.",
        )
