"""`jsbackup object`: the files of an object store in a backup.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.commands.look.opened import complete_bucket, find_opened
from jsbackup.cli.commands.look.printing import print_bytes
from jsbackup.cli.output.new_file import check_new_file, check_no_link, write_pieces
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup
from jsbackup.cli.parsing.context import HELP_ALL, HelpGroup, Shared
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.names import OBJECT_STREAM
from jsbackup.shell import quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.buckets.object_bucket import ObjectBucket, ObjectEntry
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return complete_bucket(OBJECT_STREAM, ctx, param, incomplete)


@click.group("object", cls=HelpGroup, invoke_without_command=True, params=[HELP_ALL])
@click.pass_context
def objects(ctx: click.Context) -> None:
    """Show and get the files of an object store in a backup."""
    if ctx.invoked_subcommand is None:
        names = ", ".join(f"object {name}" for name in objects.commands)
        raise UsageError("no command given", hint=f"Commands are {names}.")


@objects.command("ls", cls=Command, chooses=True, short_help="List the object stores of a backup, or the files of one.")
@click.argument("backup", shell_complete=complete_backup)
@click.argument("bucket", required=False, shell_complete=_complete)
def ls(shared: Shared, backup: str, bucket: str | None) -> None:
    """List the files of BUCKET, or without BUCKET the object stores of the backup. Deleted files are not listed."""
    if bucket is None:
        _list_buckets(shared, find_opened(shared, backup, None)[1])
        return
    output = shared.output
    found = _open(shared, backup, bucket)[2]
    entries, unreadable = found.entries()
    if unreadable:
        output.warning(f"the descriptions of {format_count(unreadable, 'file')} cannot be read")
    document = {
        "backup": found.manifest.id,
        "bucket": found.name,
        "unreadable": unreadable,
        "objects": [
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
        ],
    }

    def text() -> None:
        if not entries:
            output.line(f"object store {found.name} has no files")
            return
        output.table(
            ["NAME", ">SIZE", "MODIFIED", "LINK TO"],
            [
                (
                    one.name,
                    "-" if one.link else format_bytes(one.size),
                    format_time(one.modified_ns),
                    str(one.link or ""),
                )
                for one in entries
            ],
        )

    output.result(document, text)


def _list_buckets(shared: Shared, manifest: Manifest) -> None:
    output = shared.output
    streams = [stream for stream in manifest.streams if stream.name.startswith(OBJECT_STREAM)]
    rows = [(stream.name.removeprefix(OBJECT_STREAM), stream.captured.bytes) for stream in streams]
    document = {"backup": manifest.id, "buckets": [{"bucket": name, "bytes": size} for name, size in rows]}

    def text() -> None:
        if rows:
            output.table(["BUCKET", ">BYTES"], [(name, format_bytes(size)) for name, size in rows])
        else:
            output.line(f"backup {manifest.id} has no object stores")

    output.result(document, text)


@objects.command("get", cls=Command, chooses=True, short_help="Get a file, byte for byte.")
@click.argument("backup", shell_complete=complete_backup)
@click.argument("bucket", shell_complete=_complete)
@click.argument("name")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path), metavar="FILE", help="Write it to this file, not stdout."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def get(
    shared: Shared,
    backup: str,
    bucket: str,
    name: str,
    *,
    file: Path | None,
    force: bool,
) -> None:
    """Get the file NAME of BUCKET, byte for byte, to stdout or into FILE.

    Size and digest are compared with those that were stored. FILE appears when that is done, or not at all. On stdout a
    mismatch is only known at the end, so check the exit code. A link is followed within the backup.
    """
    output = shared.output
    if file is None and (force or output.as_json):
        raise UsageError(f"{'--force' if force else '--json'} needs -o FILE", hint="Name the file to write.")
    if file is not None:
        check_no_link(file)
        check_new_file(file, replace=force)
    repository, manifest, found = _open(shared, backup, bucket)
    entry = found.entry(name)
    if entry.link is not None:
        found, entry = _linked(shared, repository, manifest, entry)
    if file is None:
        print_bytes(found.content(entry))
        return
    write_pieces(file, found.content(entry), replace=force)
    document = {
        "backup": manifest.id,
        "bucket": found.name,
        "name": entry.name,
        "size": entry.size,
        "digest": entry.digest,
        "file": str(file),
    }
    proof = "its digest is the one that was stored" if entry.digest else "no digest was stored with it"
    output.result(document, lambda: output.line(f"wrote {file}: {format_bytes(entry.size)}, {proof}"))


def _linked(
    shared: Shared, repository: Repository, manifest: Manifest, entry: ObjectEntry
) -> tuple[ObjectBucket, ObjectEntry]:
    """Return what a link leads to."""
    from jsbackup.look.buckets.object_bucket import ObjectBucket

    link = entry.link
    assert link is not None
    if not link.name:
        raise JsBackupError(
            f"object {entry.name} is a link to bucket {link.bucket}, not a file",
            hint=f"See {quoted_command('object ls', manifest.id, link.bucket)}.",
        )
    shared.output.note(f"{entry.name} is a link to {link}")
    found = ObjectBucket.find(repository.objects, manifest, link.bucket)
    target = found.entry(link.name)
    if target.link is not None:
        raise JsBackupError(f"object {entry.name} is a link to {link}, which is a link too")
    return found, target


def _open(shared: Shared, backup: str, bucket: str) -> tuple[Repository, Manifest, ObjectBucket]:
    from jsbackup.look.buckets.object_bucket import ObjectBucket

    stream = bucket if bucket.startswith(OBJECT_STREAM) else OBJECT_STREAM + bucket
    repository, manifest = find_opened(shared, backup, stream, reads=True)
    return repository, manifest, ObjectBucket.find(repository.objects, manifest, bucket)


COMMANDS = {"object": objects}
