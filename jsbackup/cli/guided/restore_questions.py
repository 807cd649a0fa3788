"""Ask what to restore: repository, backup, streams, moment, server. Each answer is checked before the next question."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.guided.questions import Questions
from jsbackup.cli.options.opening import connection_of, open_repository
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import format_bytes, format_count, format_time
from jsbackup.cli.output.terminal import clip
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_times import as_rfc3339
from jsbackup.config import environment, nearest, parse_glob
from jsbackup.config.contexts import context_names
from jsbackup.errors import Interrupted, JsBackupError, KeyUnavailable, UsageError
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.times import parse_time

if TYPE_CHECKING:
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository
    from jsbackup.repository.summary import BackupSummary

__all__ = ["ask_backup", "ask_moment", "ask_repository", "ask_server", "ask_streams"]

_BACKUPS = 10
_STREAMS = 40
_NAME_COLUMNS = 60
_ALL = ("all", "*")
_END = ("end", "all")


def ask_repository(questions: Questions, shared: Shared) -> tuple[Shared, Repository]:
    """Open the repository that is set, or that is named now. Raises Interrupted, and KeyUnavailable."""
    if shared.repo:
        return shared, open_repository(shared)
    while True:
        text = questions.ask("Repository (a folder, or s3://bucket/prefix)")
        if not text:
            continue
        try:
            named = replace(shared, repo=text if "://" in text else str(Path(text).expanduser()))
            return named, open_repository(named)
        except (Interrupted, KeyUnavailable):
            raise
        except (JsBackupError, RuntimeError) as error:  # the latter: ~NAME of nobody
            questions.wrong(error if isinstance(error, JsBackupError) else UsageError(str(error)))


def ask_backup(questions: Questions, repository: Repository) -> Manifest:
    """Return the manifest of the chosen backup. Raises as `Repository.choose` if there is none."""
    inventory = repository.inventory()
    for warning in inventory.warnings:
        questions.output.note(warning)
    newest_first = list(reversed(inventory.summaries))
    if not newest_first:
        return repository.choose("latest").manifest  # raises
    offered = newest_first[:_BACKUPS]
    usual = next((one for one in newest_first if _is_whole(one)), newest_first[0])
    _show_backups(questions, offered, len(newest_first))
    while True:
        ids = [one.id for one in newest_first]
        text = questions.ask("Backup (number, or id)", usual.id, ids)
        number = int(text) if text.isdecimal() and len(text) <= len(str(_BACKUPS)) else 0
        try:
            if text == "latest":
                text = usual.id
            elif 1 <= number <= len(offered):
                text = offered[number - 1].id
            return repository.manifest(repository.resolve(text))
        except (Interrupted, KeyUnavailable):
            raise
        except JsBackupError as error:
            questions.wrong(error)


def _is_whole(summary: BackupSummary) -> bool:
    return summary.result == "complete" and not summary.selection.config_only


def _show_backups(questions: Questions, offered: Sequence[BackupSummary], of: int) -> None:
    questions.output.table(
        [">#", "BACKUP", "MADE", "RESULT", ">STREAMS", ">MESSAGES", ">BYTES", "SOURCE"],
        [
            (
                str(number),
                one.id,
                format_time(parse_time(one.created)),
                State(f"{one.result}, configurations only" if one.selection.config_only else one.result),
                str(one.streams),
                format_count(one.messages),
                format_bytes(one.bytes),
                one.imported or "/".join(filter(None, (one.cluster, one.account_name or one.account))),
            )
            for number, one in enumerate(offered, start=1)
        ],
    )
    if of > len(offered):
        questions.output.line(f"These are the newest of {of}; see 'jsbackup list' for the others.")


def ask_streams(questions: Questions, manifest: Manifest) -> tuple[str, ...]:
    """Return the chosen names and globs; none for all streams."""
    streams = sorted(manifest.streams, key=lambda one: one.name)
    names = [one.name for one in streams]
    questions.output.table(
        ["STREAM", ">MESSAGES", ">BYTES", "LAST MESSAGE"],
        [
            (
                clip(one.name, _NAME_COLUMNS),
                format_count(one.captured.messages),
                format_bytes(one.captured.bytes),
                _last(one.state.last_ns),
            )
            for one in streams[:_STREAMS]
        ],
    )
    if len(streams) > _STREAMS:
        questions.output.line(f"… and {format_count(len(streams) - _STREAMS, 'more stream')}")
    while True:
        text = questions.ask("Streams (names or globs, separated by spaces)", "all", names)
        words = tuple(dict.fromkeys(text.replace(",", " ").split()))
        if not words or words in [(one,) for one in _ALL]:
            return ()
        try:
            for word in words:
                _check_stream(word, names, manifest)
        except UsageError as error:
            questions.wrong(error)
            continue
        return words


def _last(ns: int) -> str:
    return format_time(ns) if ns > 0 else "-"


def _check_stream(word: str, names: list[str], manifest: Manifest) -> None:
    """Raise UsageError if no stream of the backup is meant."""
    glob = parse_glob(word)
    if any(glob.matches(name) for name in names):
        return
    bucket = next((name for name in (BUCKET_STREAM + word, OBJECT_STREAM + word) if name in names), None)
    hint = f"Did you mean {bucket}?" if bucket else nearest(word, names)
    raise UsageError(f"backup {manifest.id} has no stream {word}", hint=hint)


def ask_moment(questions: Questions) -> str | None:
    """Return the value for --until, None for the end of the backup. What depends on the present is made absolute."""
    while True:
        text = questions.ask("Moment (such as 'yesterday 14:02', '2h ago', or a sequence)", "end of the backup")
        if text == "end of the backup" or text.lower() in _END:
            return None
        try:
            moment = _moment(text)
        except UsageError as error:
            questions.wrong(error.with_message(error.message.removeprefix("--until: ")))
            continue
        meaning = f"sequence {int(moment):,} of each stream" if moment.isdecimal() else moment
        questions.output.line(f"up to and including {meaning}")
        return moment


def _moment(text: str) -> str:
    from jsbackup.transforms.cut import Cut

    now = datetime.now().astimezone()
    moment = text if text.isdecimal() else as_rfc3339(text, now)
    if moment is None:
        with suppress(UsageError):  # a duration, as --until takes it
            moment = as_rfc3339(f"{text} ago", now)
    moment = moment or text
    Cut.parse(None, moment, time.time_ns())
    return moment


def ask_server(questions: Questions, shared: Shared) -> tuple[Shared, list[tuple[str, str]]]:
    """Return the options with the server that is named now, and the options to type for it."""
    names: list[str] = []
    usual, typed = "", []
    with suppress(JsBackupError):
        names = context_names(environment())
    with suppress(JsBackupError):
        connection = connection_of(shared)
        usual, context = connection.url, connection.context
        if context:
            usual += f", context {context}"
            typed = [("--context", context)]
        if not context or environment().get("NATS_URL"):
            typed.append(("-s", connection.url))
    offered = f"; contexts: {', '.join(names)}" if 0 < len(names) <= _BACKUPS else ""
    while True:
        text = questions.ask(f"Server (URL, or a context of the nats CLI{offered})", usual, names)
        if text == usual and usual:
            return shared, typed
        try:
            option, value = _server(text, names)
            chosen = replace(shared, server={**shared.server, option.strip("-"): value})
            connection_of(chosen)
            return chosen, [(option, value)]
        except JsBackupError as error:
            questions.wrong(error)


def _server(text: str, names: list[str]) -> tuple[str, str]:
    """Return the option that names this server, and its value."""
    if text in names:
        if environment().get("NATS_URL"):
            raise UsageError(
                f"NATS_URL is set, and wins over the server of context {text}",
                hint="Name the server by its URL, or end this and unset NATS_URL.",
            )
        return "--context", text
    if any(mark in text for mark in "./:") or text == "localhost":
        return "--server", text
    hint = nearest(text, names) or "A URL is like nats://127.0.0.1:4222."
    raise UsageError(f"{text!r} is neither a URL nor a context of the nats CLI", hint=hint)
