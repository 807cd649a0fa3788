"""`jsbackup kv` and `jsbackup object`: keys of a bucket as they were at a moment, and files of an object store."""

from __future__ import annotations

import time
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.commands.look.view import find_opened, print_bytes, time_option
from jsbackup.cli.options.backup_choice import LATEST
from jsbackup.cli.output.new_file import check_new_file, check_no_link, write_pieces
from jsbackup.cli.output.result import Block, Result, TextTable, format_bytes, format_count, table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.shell import quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.buckets.bucket import KeyRevision, KeyValueBucket
    from jsbackup.look.buckets.object_bucket import ObjectBucket
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.cut import Edge

__all__ = ["COMMANDS", "bytes_json"]

_NAMED = 20  # keys in a line

F = TypeVar("F", bound=Callable[..., Any])


def _bucket_argument(prefix: str) -> Callable[[F], F]:
    """Add the argument BUCKET, of buckets whose streams begin with `prefix`."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        streams = complete_stream(ctx, param, prefix + incomplete)
        return [CompletionItem(str(stream.value).removeprefix(prefix)) for stream in streams]

    return click.argument("bucket", required=False, shell_complete=complete)


@click.command(cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@_bucket_argument(BUCKET_STREAM)
@click.argument("key", required=False)
@time_option("--at", "As of this time, duration before now, or revision; without it, as of the backup.")
def kv(
    shared: Shared,
    backup: str,
    bucket: str | None,
    key: str | None,
    *,
    at: str | None,
) -> Result:
    """Print the value that KEY of BUCKET had, byte for byte; without KEY, list the keys that had a value.

    A pattern for KEY lists those that match: * stands for one token, > at the end for all that follow. Without BUCKET,
    the buckets of the backup are listed. 'jsbackup history BUCKET --key KEY' shows the revisions of a key.

    A key that did not exist, or was deleted, is an error (exit code 1). Keys of which older revisions may be gone, so
    that the backup cannot say, are an error, or listed as unknown (3). If BACKUP is `latest`, the backups around the
    moment are asked before that: they have more.
    """
    from jsbackup.look.buckets.bucket import KeyValueBucket
    from jsbackup.transforms.cut import parse_edge

    if bucket is None:
        if at is not None:
            raise UsageError("--at needs a bucket", hint="Name the bucket.")
        return _list_buckets(find_opened(shared, backup, None)[1], BUCKET_STREAM)
    stream = bucket if bucket.startswith(BUCKET_STREAM) else BUCKET_STREAM + bucket
    needed = [bucket, BUCKET_STREAM + bucket]
    repository, manifest = find_opened(shared, backup, stream, reads=True, needed=needed)
    stored = KeyValueBucket.find(repository.objects, manifest, bucket)
    edge = None if at is None else parse_edge("--at", at, time.time_ns())
    others = repository if backup == LATEST else None
    if key is None or not {"*", ">"}.isdisjoint(key.split(".")):
        return _list_keys(shared, stored, key or ">", at=edge, others=others)
    stored, revision = _value(shared, stored, key, at=edge, others=others)
    if not shared.output.as_json:
        print_bytes([revision.value])
    document: JsonObject = {
        **_about(stored, edge),
        "key": key,
        "revision": revision.revision,
        "time": format_time(revision.timestamp_ns),
        "operation": revision.operation,
        **bytes_json("value", revision.value),
    }
    return Result(document)


def _list_keys(
    shared: Shared, bucket: KeyValueBucket, pattern: str, *, at: Edge | None, others: Repository | None
) -> Result:
    """Return the keys that match. If the backup is not certain, the backups of `others` around the moment are asked.

    Raises as `BucketSeries.keys`.
    """
    from jsbackup.look.buckets.bucket_series import find_series

    listed, asked = bucket.keys(at, pattern), [bucket.manifest.id]
    if not listed.certain and at is not None and others is not None:
        known = find_series(others, bucket, at).keys(pattern)
        shared.output.note(f"note: as known from {' and '.join(f'backup {one}' for one in known.backups)}")
        listed, asked = known.keys, list(known.backups)
    document: JsonObject = {
        **_about(bucket, at),
        "backups": asked,
        "keys": [{"key": s.key, "revision": s.revision, "time": format_time(s.timestamp_ns)} for s in listed.keys],
        "unknown": list(listed.unknown),
        "whole": listed.whole,
    }
    text: list[Block] = []
    if listed.keys:
        text.append(table(document["keys"], {"KEY": "key", ">REVISION": "revision", "TIME": "time"}))
    elif listed.certain:
        text.append(f"bucket {bucket.name} has no {'keys' if pattern == '>' else 'key that matches'}")
    if names := listed.unknown:
        more = f", and {format_count(len(names) - _NAMED, 'more key')}" if len(names) > _NAMED else ""
        text.append(f"not known, because revisions are gone: {', '.join(names[:_NAMED])}{more}")
    if not listed.whole:
        text.append("keys of which nothing is left may have been there too")
    return Result(document, text, 0 if listed.certain else IncompleteError.exit_code)


def _value(
    shared: Shared, bucket: KeyValueBucket, key: str, *, at: Edge | None, others: Repository | None
) -> tuple[KeyValueBucket, KeyRevision]:
    """Return a key's value, and the bucket that has it: that of another backup of `others`, if this one cannot say.

    Raises as `KeyValueBucket.value` and `BucketSeries.value`.
    """
    try:
        return bucket, bucket.value(key, at)
    except IncompleteError as error:
        assert at is not None, "what a backup has is known"
        if others is None:
            raise error.with_hint("With `latest` in place of the backup, those around this moment are asked.") from None
    from jsbackup.look.buckets.bucket_series import find_series

    known = find_series(others, bucket, at).value(key)
    proof = f"; as backup {known.witness} shows, it was not written until {at}" if known.witness else ""
    shared.output.note(f"note: revision {known.revision.revision} is in backup {known.bucket.manifest.id}{proof}")
    return known.bucket, known.revision


def _about(bucket: KeyValueBucket, at: Edge | None) -> JsonObject:
    return {"backup": bucket.manifest.id, "bucket": bucket.name, "at": None if at is None else str(at)}


def bytes_json(name: str, data: bytes, *, cut: bool = False) -> JsonObject:
    """Return a member of a document: text, or base64 for bytes that are not UTF-8. If they were `cut` within a
    character, the text is without it.
    """
    try:
        return {name: getincrementaldecoder("utf-8")().decode(data, not cut)}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


@click.command("object", cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@_bucket_argument(OBJECT_STREAM)
@click.argument("name", required=False)
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it to this file, not stdout."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def objects(
    shared: Shared,
    backup: str,
    bucket: str | None,
    name: str | None,
    *,
    file: Path | None,
    force: bool,
) -> Result | int:
    """Get the file NAME of BUCKET, byte for byte, to stdout or into FILE; without NAME, list the files.

    Size and digest are compared with those that were stored. FILE appears when that is done, or not at all. On stdout a
    mismatch is only known at the end, so check the exit code. A link is followed within the backup.

    Deleted files are not listed. Without BUCKET, the object stores of the backup are listed.
    """
    from jsbackup.look.buckets.object_bucket import ObjectBucket

    if name is None and (force or file is not None):
        raise UsageError(f"{'--force' if force else '-o FILE'} needs a NAME", hint="Name the file to get.")
    if name is not None and file is None and (force or shared.output.as_json):
        raise UsageError(f"{'--force' if force else '--json'} needs -o FILE", hint="Name the file to write.")
    if bucket is None:
        return _list_buckets(find_opened(shared, backup, None)[1], OBJECT_STREAM)
    if file is not None:
        check_no_link(file)
        check_new_file(file, replace=force)
    stream = bucket if bucket.startswith(OBJECT_STREAM) else OBJECT_STREAM + bucket
    repository, manifest = find_opened(shared, backup, stream, reads=True)
    stored = ObjectBucket.find(repository.objects, manifest, bucket)
    if name is None:
        return _list_files(shared, stored)
    entry = stored.entry(name)
    if (link := entry.link) is not None:
        if not link.name:
            raise JsBackupError(
                f"object {entry.name} is a link to bucket {link.bucket}, not a file",
                hint=f"See {quoted_command('object', manifest.id, link.bucket)}.",
            )
        shared.output.note(f"{entry.name} is a link to {link}")
        stored = ObjectBucket.find(repository.objects, manifest, link.bucket)
        target = stored.entry(link.name)
        if target.link is not None:
            raise JsBackupError(f"object {entry.name} is a link to {link}, which is a link too")
        entry = target
    if file is None:
        print_bytes(stored.content(entry))
        return 0
    write_pieces(file, stored.content(entry), replace=force)
    document: JsonObject = {
        "backup": manifest.id,
        "bucket": stored.name,
        "name": entry.name,
        "size": entry.size,
        "digest": entry.digest,
        "file": str(file),
    }
    proof = "its digest is the one that was stored" if entry.digest else "no digest was stored with it"
    return Result(document, [f"wrote {file}: {format_bytes(entry.size)}, {proof}"])


def _list_files(shared: Shared, bucket: ObjectBucket) -> Result:
    entries, unreadable = bucket.entries()
    if unreadable:
        shared.output.warning(f"the descriptions of {format_count(unreadable, 'file')} cannot be read")
    rows: list[JsonObject] = [
        {
            "name": one.name,
            "size": one.size,
            "chunks": one.chunks,
            "digest": one.digest,
            "modified": format_time(one.modified_ns),
            "description": one.description,
            "link": None if one.link is None else {"bucket": one.link.bucket, "name": one.link.name or None},
        }
        for one in entries
    ]
    document: JsonObject = {
        "backup": bucket.manifest.id,
        "bucket": bucket.name,
        "unreadable": unreadable,
        "objects": rows,
    }
    if not entries:
        return Result(document, [f"object store {bucket.name} has no files"])
    cells = [
        (one.name, "-" if one.link else format_bytes(one.size), format_time(one.modified_ns), str(one.link or ""))
        for one in entries
    ]
    return Result(document, [TextTable(["NAME", ">SIZE", "MODIFIED", "LINK TO"], cells)])


def _list_buckets(manifest: Manifest, prefix: str) -> Result:
    """Return the buckets of a backup, or its object stores: streams whose names begin with `prefix`."""
    of_keys = prefix == BUCKET_STREAM
    streams = [stream for stream in manifest.streams if stream.name.startswith(prefix)]
    rows = [
        {
            "bucket": stream.name.removeprefix(prefix),
            **({"revisions": stream.captured.messages} if of_keys else {}),
            "bytes": stream.captured.bytes,
        }
        for stream in streams
    ]
    document: JsonObject = {"backup": manifest.id, "buckets": rows}
    if not rows:
        return Result(document, [f"backup {manifest.id} has no {'key-value buckets' if of_keys else 'object stores'}"])
    columns = {">REVISIONS": ("revisions", format_count)} if of_keys else {}
    return Result(document, [table(rows, {"BUCKET": "bucket", **columns, ">BYTES": ("bytes", format_bytes)})])


COMMANDS = {"kv": kv, "object": objects}
