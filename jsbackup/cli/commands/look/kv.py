"""`jsbackup kv`: keys of a bucket in a backup, as they were at a moment.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.commands.look.opened import complete_bucket, find_opened, time_option
from jsbackup.cli.commands.look.printing import print_bytes
from jsbackup.cli.options.latest import LATEST
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.output.terminal import clip
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import HELP_ALL, HelpGroup, Shared
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM
from jsbackup.shell import quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.buckets.bucket import KeyList, KeyRevision, KeyValueBucket
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.cut import Edge

__all__ = ["COMMANDS", "bytes_json", "value_preview", "whole_text"]

_SHOWN = 60  # columns of a value in a table
_NAMED = 20  # keys in a line

F = TypeVar("F", bound=Callable[..., Any])

_AT = time_option("--at", "As of this time, duration before now, or revision; without it, as of the backup.")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return complete_bucket(BUCKET_STREAM, ctx, param, incomplete)


def _of_key(command: F) -> F:
    backup = click.argument("backup", shell_complete=complete_backup)
    bucket = click.argument("bucket", shell_complete=_complete)
    return backup(bucket(click.argument("key")(_AT(command))))


@click.group("kv", cls=HelpGroup, invoke_without_command=True, params=[HELP_ALL])
@click.pass_context
def kv(ctx: click.Context) -> None:
    """Show keys of a bucket in a backup, as they were at a moment."""
    if ctx.invoked_subcommand is None:
        raise UsageError("no command given", hint=f"Commands are {', '.join(f'kv {name}' for name in kv.commands)}.")


@kv.command("ls", cls=Command, chooses=True, short_help="List the buckets of a backup, or the keys of one.")
@click.argument("backup", shell_complete=complete_backup)
@click.argument("bucket", required=False, shell_complete=_complete)
@click.argument("key", required=False)
@_AT
def ls(
    shared: Shared,
    backup: str,
    bucket: str | None,
    key: str | None,
    *,
    at: str | None,
) -> int:
    """List the keys of BUCKET that had a value, or without BUCKET the buckets of the backup.

    KEY is a pattern: * stands for one token, > at the end for all that follow. With --at, keys of which older revisions
    are gone are listed as unknown, and the exit code is 3. If BACKUP is `latest`, the backups around the moment are
    asked: they have more.
    """
    output = shared.output
    if bucket is None:
        if at is not None:
            raise UsageError("--at needs a bucket", hint="Name the bucket.")
        manifest = find_opened(shared, backup, None)[1]
        _list_buckets(shared, manifest)
        return 0
    repository, found = _open(shared, backup, bucket)
    edge, asked = _edge(at), [found.manifest.id]
    listed = found.keys(edge, key or ">")
    if not listed.certain and edge is not None and backup == LATEST:
        listed, asked = _keys_at(shared, repository, found, key or ">", at=edge)
    document = {
        **_about(found, edge),
        "backups": asked,
        "keys": [{"key": s.key, "revision": s.revision, "time": format_time(s.timestamp_ns)} for s in listed.keys],
        "unknown": list(listed.unknown),
        "whole": listed.whole,
    }

    def text() -> None:
        if listed.keys:
            rows = [(s.key, str(s.revision), format_time(s.timestamp_ns)) for s in listed.keys]
            output.table(["KEY", ">REVISION", "TIME"], rows)
        elif listed.certain:
            output.line(f"bucket {found.name} has no key that matches" if key else f"bucket {found.name} has no keys")
        for line in _unknown_lines(listed):
            output.line(line)

    output.result(document, text)
    return 0 if listed.certain else IncompleteError.exit_code


def _unknown_lines(listed: KeyList) -> Iterator[str]:
    """Yield what cannot be said about other keys."""
    names = listed.unknown
    if names:
        more = f", and {format_count(len(names) - _NAMED, 'more key')}" if len(names) > _NAMED else ""
        yield f"not known, because revisions are gone: {', '.join(names[:_NAMED])}{more}"
    if not listed.whole:
        yield "keys of which nothing is left may have been there too"


def _list_buckets(shared: Shared, manifest: Manifest) -> None:
    output = shared.output
    streams = [stream for stream in manifest.streams if stream.name.startswith(BUCKET_STREAM)]
    names = [stream.name.removeprefix(BUCKET_STREAM) for stream in streams]
    document = {
        "backup": manifest.id,
        "buckets": [
            {"bucket": name, "revisions": stream.captured.messages, "bytes": stream.captured.bytes}
            for name, stream in zip(names, streams, strict=True)
        ],
    }

    def text() -> None:
        rows = [
            (name, format_count(stream.captured.messages), format_bytes(stream.captured.bytes))
            for name, stream in zip(names, streams, strict=True)
        ]
        if rows:
            output.table(["BUCKET", ">REVISIONS", ">BYTES"], rows)
        else:
            output.line(f"backup {manifest.id} has no key-value buckets")

    output.result(document, text)


@kv.command("get", cls=Command, chooses=True, short_help="Print the value of a key, byte for byte.")
@_of_key
def get(
    shared: Shared,
    backup: str,
    bucket: str,
    key: str,
    *,
    at: str | None,
) -> None:
    """Print the value that KEY of BUCKET had, byte for byte.

    A key that did not exist, or was deleted, is an error (exit code 1). So is one whose older revisions may be gone,
    so that the backup cannot say (3). If BACKUP is `latest`, the backups around the moment are asked before that.
    """
    repository, found = _open(shared, backup, bucket)
    edge = _edge(at)
    try:
        revision = found.value(key, edge)
    except IncompleteError as error:
        assert edge is not None, "what a backup has is known"
        if backup != LATEST:
            raise error.with_hint("With `latest` in place of the backup, those around this moment are asked.") from None
        found, revision = _value_at(shared, repository, found, key, at=edge)
    if shared.output.as_json:
        shared.output.result({**_about(found, edge), "key": key, **_json(revision)}, lambda: None)
    else:
        print_bytes([revision.value])


@kv.command("history", cls=Command, chooses=True, short_help="Show the revisions of a key.")
@_of_key
def history(
    shared: Shared,
    backup: str,
    bucket: str,
    key: str,
    *,
    at: str | None,
) -> None:
    """Show the revisions of KEY in BUCKET, oldest first: values, deletes and purges.

    These are the ones that this backup has. 'jsbackup history' shows those of all backups.
    """
    output = shared.output
    edge, found = _edge(at), _open(shared, backup, bucket)[1]
    revisions = found.revisions(key, edge)
    if output.as_json:
        rows = [_json(one) for one in revisions]
        _refuse_none(found, key, rows)
        output.result({**_about(found, edge), "key": key, "revisions": rows}, lambda: None)
        return
    lines = [(str(one.revision), format_time(one.timestamp_ns), one.words, *_value_columns(one)) for one in revisions]
    _refuse_none(found, key, lines)
    output.result({}, lambda: output.table([">REVISION", "TIME", "OPERATION", ">BYTES", "VALUE"], lines))


def _value_at(
    shared: Shared, repository: Repository, bucket: KeyValueBucket, key: str, *, at: Edge
) -> tuple[KeyValueBucket, KeyRevision]:
    """Return a key's value at a moment by the backups around it, and the bucket that has it. Say which backups they
    are. Raises as `BucketSeries.value`.
    """
    from jsbackup.look.buckets.bucket_series import find_series

    found = find_series(repository, bucket, at).value(key)
    proof = f"; as backup {found.witness} shows, it was not written until {at}" if found.witness else ""
    shared.output.note(f"note: revision {found.revision.revision} is in backup {found.bucket.manifest.id}{proof}")
    return found.bucket, found.revision


def _keys_at(
    shared: Shared, repository: Repository, bucket: KeyValueBucket, pattern: str, *, at: Edge
) -> tuple[KeyList, list[str]]:
    """Return the keys at a moment by the backups around it, and the ids of these; say them too. Raises as
    `BucketSeries.keys`.
    """
    from jsbackup.look.buckets.bucket_series import find_series

    found = find_series(repository, bucket, at).keys(pattern)
    shared.output.note(f"note: as known from {' and '.join(f'backup {one}' for one in found.backups)}")
    return found.keys, list(found.backups)


def _refuse_none(found: KeyValueBucket, key: str, rows: Sequence[object]) -> None:
    if not rows:
        raise JsBackupError(
            f"bucket {found.name} has no such revision of key {key} in backup {found.manifest.id}",
            hint=f"See {quoted_command('kv ls', found.manifest.id, found.name)} for its keys.",
        )


def _open(shared: Shared, backup: str, bucket: str) -> tuple[Repository, KeyValueBucket]:
    from jsbackup.look.buckets.bucket import KeyValueBucket

    stream = bucket if bucket.startswith(BUCKET_STREAM) else BUCKET_STREAM + bucket
    needed = [bucket, BUCKET_STREAM + bucket]
    repository, manifest = find_opened(shared, backup, stream, reads=True, needed=needed)
    return repository, KeyValueBucket.find(repository.objects, manifest, bucket)


def _edge(at: str | None) -> Edge | None:
    from jsbackup.transforms.cut import parse_edge

    return None if at is None else parse_edge("--at", at, time.time_ns())


def _about(found: KeyValueBucket, edge: Edge | None) -> JsonObject:
    return {"backup": found.manifest.id, "bucket": found.name, "at": None if edge is None else str(edge)}


def _json(one: KeyRevision) -> JsonObject:
    value = bytes_json("value", one.value) if one.operation == "put" else {"value": None}
    return {
        "revision": one.revision,
        "time": format_time(one.timestamp_ns),
        "operation": one.operation,
        **({"expired": True} if one.expired else {}),
        **value,
    }


def _value_columns(one: KeyRevision) -> tuple[str, str]:
    return (str(len(one.value)), value_preview(one.value)) if one.operation == "put" else ("-", "-")


def bytes_json(name: str, data: bytes) -> JsonObject:
    """Return a member of a document: text, or base64 for bytes that are not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def whole_text(data: bytes) -> bytes:
    """Return the beginning of a text without the part of a character that it was cut in."""
    for cut in range(1, min(4, len(data) + 1)):
        if data[-cut] >= 0xC0:  # the first byte of a character of several
            try:
                data[-cut:].decode()
            except UnicodeDecodeError:
                return data[:-cut]
            break
    return data


def value_preview(data: bytes) -> str:
    """Return the start of a value for a table, not yet safe to print."""
    return clip(data[: 4 * _SHOWN].decode("utf-8", "backslashreplace"), _SHOWN)


COMMANDS = {"kv": kv}
