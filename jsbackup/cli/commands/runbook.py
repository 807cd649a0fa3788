"""`plan --runbook` and `restore --runbook`: several restores, as `engine/restore/runbook.py` carries them out.

A runbook is a TOML file, with the options of each restore:

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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import click

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import WantedBackup, make_finder
from jsbackup.cli.options.opening import connection_of, open_repository, reading, target_connection_of
from jsbackup.cli.options.restore_options import Asked, planning_options, refuse_obfuscation
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.restore_report import plan_code, plan_json, plan_text, restored_json, restored_text
from jsbackup.cli.output.result import Block, Result, Said, State, error_json, said_lines
from jsbackup.cli.parsing.command import CHOOSING_OPTIONS
from jsbackup.cli.parsing.context import (
    GLOBAL_OPTIONS,
    KEY_OPTIONS,
    S3_OPTIONS,
    SERVER_OPTIONS,
    Shared,
    given_in,
    over,
    usage_error,
)
from jsbackup.cli.parsing.typed_values import NOTES, parse_choosing
from jsbackup.cli.profiles.profiles import check_kind, option_keys, refuse_unknown
from jsbackup.config import is_reference, needs_program, read_toml
from jsbackup.config.connection import LOGIN_NAMES, Connection
from jsbackup.engine.link.source import read_source
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.engine.restore.runbook import RunbookPart, RunbookReport, preview_together, restore_together
from jsbackup.errors import JsBackupError, PlanRefused, TargetConflict, UsageError
from jsbackup.exit_codes import first_of
from jsbackup.failure import naming
from jsbackup.model import JsonObject
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.read.latest import BackupSearch
from jsbackup.repository.repository import Repository

__all__ = ["KEYS", "RunbookEntry", "plan_runbook", "read_runbook", "restore_runbook"]


def plan_runbook(shared: Shared, path: Path, mask_secret: bytes) -> Result:
    """Return all plans. The exit code is 0 if all can be carried out, else that of the refusals."""
    entries = read_runbook(path, shared)
    with _opened(entries, "plan", mask_secret) as (finders, parts):
        previews = preview_together(parts, run_loop)
    documents = [plan_json(finder, preview, None) for finder, preview in zip(finders, previews, strict=True)]
    plans = [preview.plan for preview in previews]
    refused = [plan.code for plan in plans]
    code = first_of([*refused, *map(plan_code, plans)], PlanRefused.exit_code, TargetConflict.exit_code)
    return Result({"runbook": str(path), "restores": documents}, _plans_text(entries, documents), code)


def _plans_text(entries: Sequence[RunbookEntry], documents: Sequence[JsonObject]) -> Iterator[Block]:
    for entry, document in zip(entries, documents, strict=True):
        yield _heading(entry)
        yield from plan_text(document)
    refused = [str(number) for number, document in enumerate(documents, start=1) if document["refusals"]]
    if refused:
        why = f": nothing of the runbook can be carried out, for restore {', '.join(refused)}"
        yield State("refused"), why
    else:
        yield f"all restores of the runbook can be carried out: {len(documents)}"


def restore_runbook(shared: Shared, path: Path, settings: RestoreSettings) -> Result:
    """Carry all restores out. Raises an error that blocks one of them."""
    entries = read_runbook(path, shared)
    show_progress = partial(make_progress, "restore", wanted=shared.progress)
    with _opened(entries, "restore", settings.mask_secret) as (finders, parts):
        report = restore_together(parts, settings, run_loop, show_progress)
    outcomes = [
        error_json(outcome) if isinstance(outcome, JsBackupError) else restored_json(outcome, finder)
        for finder, outcome in zip(finders, report.done, strict=False)
    ]
    left = [{"restore": part.number, "backup": part.choice.manifest.id} for part in report.left]
    document = {"runbook": str(path), "restores": outcomes, "not_begun": left}
    return Result(document, _restores_text(entries, report), report.code)


def _restores_text(entries: Sequence[RunbookEntry], report: RunbookReport) -> Iterator[Block]:
    for entry, outcome in zip(entries, report.done, strict=False):
        yield _heading(entry)
        if isinstance(outcome, JsBackupError):
            yield from said_lines([Said("failed", "", outcome.message, outcome.hint or "")])
        else:
            yield from restored_text(outcome, "restored")
    for part in report.left:
        yield f"not begun: restore {part.number}: backup {part.choice.manifest.id}"


def _heading(entry: RunbookEntry) -> str:
    return f"restore {entry.number}: {entry.backup} of {entry.shared.repo} into {entry.connection.url}"


@contextmanager
def _opened(
    entries: Sequence[RunbookEntry], purpose: str, mask_secret: bytes
) -> Iterator[tuple[list[BackupSearch], list[RunbookPart]]]:
    """Find the backups; each repository is opened once and locked against a prune. Errors name the restore."""
    opened: list[tuple[Shared, Repository]] = []
    finders, parts = [], []
    with ExitStack() as leases:
        for entry in entries:
            shared, options = entry.shared, entry.options
            with naming(f"restore {entry.number}"):
                if mask_secret or purpose == "restore":  # a plan needs no key
                    options.reshape.masks.check_secret(mask_secret)
                where = (shared.repo, shared.s3, shared.keys)
                repository = next(
                    (known for other, known in opened if (other.repo, other.s3, other.keys) == where), None
                )
                if repository is None:
                    repository = open_repository(shared)
                    leases.enter_context(reading(shared, repository, purpose))
                    opened.append((shared, repository))
                wanted = WantedBackup(entry.backup, options.streams, options.exclude, silent=True, in_part=True)
                finder = make_finder(shared, repository, wanted)
                finder.early()(run_loop(read_source(entry.connection)))
            finders.append(finder)
            parts.append(RunbookPart(entry.number, entry.connection, options, repository, finder.choice))
        yield finders, parts


# --- the file ---

_LIST = "restore"
_GROUPS = {
    "choosing": CHOOSING_OPTIONS,
    "repo": [option for option in GLOBAL_OPTIONS if option.name == "repo"],
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


@click.command(add_help_option=False)
@planning_options
def _entry(asked: Asked, **_shared: Any) -> Asked:
    return asked


_entry.params += chain(*_GROUPS.values())
KEYS = option_keys(_entry.params)
"""The options of a restore, by key."""


def read_runbook(path: Path, shared: Shared) -> list[RunbookEntry]:
    """Read the restores of a file, with defaults from `shared`. Raises UsageError, which names the restore."""
    document = read_toml(path, "runbook")
    refuse_unknown(document, [_LIST], f"runbook {path}")
    tables = document.get(_LIST)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"runbook {path} has no list of restores", hint="Write [[restore]] before each of them.")
    entries = []
    for number, table in enumerate(tables, start=1):
        with naming(f"restore {number}"):
            entries.append(_read(number, table, shared))
    return entries


def _read(number: int, table: Mapping[str, Any], shared: Shared) -> RunbookEntry:
    refuse_unknown(table, KEYS, "it")
    words = {key: _words(key, KEYS[key], value) for key, value in table.items()}
    streams, backup = words.pop("streams", []), words.pop("backup", None)
    if backup is None:
        raise UsageError("it names no backup", hint='Write backup = "latest", or an id or the start of one.')
    try:
        with _entry.make_context("restore", [*chain(*words.values()), "--", *backup, *streams]) as ctx:
            asked: Asked = _entry.invoke(ctx)
            options = asked.options()
    except click.ClickException as wrong:
        raise UsageError(usage_error(wrong).message) from None
    refuse_obfuscation(options.reshape, "a runbook")
    for note in ctx.meta.get(NOTES, ()):
        shared.output.note(f"restore {number}: {note}")
    given = {
        group: given_in(ctx, [str(option.name) for option in group_options], environment=False)
        for group, group_options in _GROUPS.items()
    }
    own = replace(
        shared,
        repo=given["repo"].get("repo", shared.repo),
        s3={**shared.s3, **given["s3"]},
        keys={**shared.keys, **given["keys"]},
        choosing=parse_choosing(**{"origins": (), "tags": ()} | given["choosing"], backups=[asked.backup]),
    )
    own, connection = _connected(own, given["server"])
    return RunbookEntry(number, asked.backup, own, connection, options)


def _connected(shared: Shared, given: Mapping[str, Any]) -> tuple[Shared, Connection]:
    """Return the effective server options and their connection."""
    if given.keys() & {"server", "context"}:
        timeout = {name: value for name, value in shared.server.items() if name == "timeout"}
        own = replace(shared, server={**timeout, **given})
        return own, target_connection_of(own.server)
    if given.keys() & LOGIN_NAMES and "@" in str(shared.server.get("server", "")):
        raise UsageError(
            "--server contains a login, but this restore logs in differently",
            hint="Name the server here too, or give --server without a login.",
        )
    own = replace(shared, server=over(shared.server, given))
    return own, connection_of(own)


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
    if key.endswith("-command") or needs_program(text) is not None:
        raise UsageError(f"{key} runs a program, which a runbook may not", hint="Give it on the command line.")
    bare = key in _BARE and not is_reference(text)
    if bare or (key == "server" and "@" in text) or text.lower().startswith("data:"):
        raise UsageError(
            f"{key} holds a secret, which a runbook may not",
            hint="Put it into a file or a variable, and write file://PATH or env://NAME; a user has a key of its own.",
        )
