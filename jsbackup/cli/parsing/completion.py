"""Completion in shells, by click: `eval "$(_JSBACKUP_COMPLETE=bash_source jsbackup)"`; and of words by look-ups.

A look-up has a timeout, fails silently, and runs no programs for secrets. Names with special characters of shells are
not offered, because they would not be quoted.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    shell_complete,
    split_arg_string,
)

from jsbackup.cli.options.opening import connection_of, open_repository, store_at
from jsbackup.cli.output.output import Output
from jsbackup.cli.parsing.context import COMPLETE_VARIABLE, OF_BACKUPS, CommandContext, Shared, merge_shared
from jsbackup.config import environment, environment_with

__all__ = ["answer_shell", "complete_backup", "complete_stream", "complete_tag"]

_Look = Callable[[], Iterable[str]]

_SECONDS = 1.5  # about two, including the start
_WORD = re.compile(r"[\w./=@%+:][\w./=@%+:-]*")
_CUT = re.compile(r"\n([:=@]+)(?:\n(?=.))?")  # where bash splits words
_LATEST, _LIVE = "latest", "live"


def complete_backup(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete `latest`, and the ids of the backups in the repository of the command line or the environment."""

    from jsbackup.repository.repository import Repository

    def look() -> Iterable[str]:
        shared = _shared(ctx)
        if shared.repo:
            yield from reversed(Repository.open(store_at(shared.repo, shared)).backups())

    return _offer([_LATEST, *_look_up(look)], incomplete)


def complete_stream(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete streams: of the named backup, or the newest; of the server if the command has one and no backup."""
    backups = [ctx.params[name] or _LATEST for name in OF_BACKUPS if name in ctx.params]
    has_server = getattr(ctx.command, "needs_server", False)
    stored = next((backup for backup in backups if backup != _LIVE), None if has_server else _LATEST)
    names = _look_up(_live_streams(ctx) if stored is None else _stored_streams(ctx, stored))
    typed = ctx.params.get(str(param.name)) or ()
    return _offer((name for name in names if name not in typed), incomplete)


def complete_tag(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete tags of the backups in the repository, newest first."""

    import jsbackup.repository.repository  # noqa: F401

    def look() -> Iterable[str]:
        for summary in reversed(open_repository(_shared(ctx)).inventory().summaries):
            yield from (f"{key}={value}" for key, value in summary.tags.items())

    return _offer(dict.fromkeys(_look_up(look)), incomplete)


def _offer(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete) and _WORD.fullmatch(word)]


def _look_up(look: _Look) -> list[str]:
    """Return what is found in time; imports are done before. Errors are not shown while typing."""
    names: list[str] = []

    def run() -> None:
        with suppress(Exception):
            names.extend(look())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return names.copy()


def _shared(ctx: click.Context) -> Shared:
    """Return the shared options of the line so far, without programs that would have to be run."""
    values, groups = merge_shared(ctx)
    given: dict[str, dict[str, Any]] = {
        group: {name: value for name, value in options.items() if not name.endswith("_command")}
        for group, options in groups.items()
    }
    return Shared(
        repo=values["repo"],
        verbose=0,
        progress=False,
        log_format="text",
        output=Output(quiet=True),
        server_named=isinstance(ctx, CommandContext) and bool(ctx.from_profile.keys() & {"server", "context"}),
        server=given["server"],
        s3=given["s3"],
        keys=given["keys"],
    )


def _stored_streams(ctx: click.Context, backup: str) -> _Look:
    import jsbackup.repository.repository  # noqa: F401

    def look() -> Iterable[str]:
        repository = open_repository(_shared(ctx))
        backup_id = repository.backups()[-1] if backup == _LATEST else repository.resolve(backup)
        return [stream.name for stream in repository.manifest(backup_id).streams]

    return look


def _live_streams(ctx: click.Context) -> _Look:
    import asyncio

    from jsbackup.engine.link.jetstream import connect_jetstream

    async def names() -> list[str]:
        async with connect_jetstream(connection_of(_shared(ctx)), name="jsbackup completion") as js:
            return sorted((await js.stream_names()).entries)

    return lambda: asyncio.run(names())


class _JoiningBash(BashComplete):
    """Rejoins words that bash splits at `:`, `=` and `@`, as in `nats://host:4222` and `K=V`."""

    _start = ""  # of the completed word, which bash does not replace

    def get_completion_args(self) -> tuple[list[str], str]:
        asked = environment()
        parts = asked["COMP_WORDS"].split("\n")[: int(asked["COMP_CWORD"]) + 1]
        *words, last = _CUT.sub(r"\1", "\n".join(parts)).split("\n")
        self._start = last[: max(map(last.rfind, ":=@")) + 1]
        return split_arg_string("\n".join(words))[1:], "".join(split_arg_string(last))

    def format_completion(self, item: CompletionItem[Any]) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._start)}"


def answer_shell(group: click.Group, instruction: str) -> int:
    """Print the script for a shell, or answer it; return the exit code. Never prompts, and prints no messages."""
    with suppress(OSError):  # programs that open the terminal by its name find none
        os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 2):
        os.dup2(nowhere, descriptor)
    add_completion_class(_JoiningBash)
    programs = [name for name in environment() if name.startswith("JSBACKUP_") and name.endswith("_COMMAND")]
    with environment_with(dict.fromkeys(programs, "")):
        return shell_complete(group, {}, "jsbackup", COMPLETE_VARIABLE, instruction)
