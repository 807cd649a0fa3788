"""Commands that create a repository or show its content: `init`, `list`, `show`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from jsbackup.cli.commands.look.opened import check_readable, find_opened
from jsbackup.cli.commands.operate.keys import encryption_options, new_keys_of, writer_key_file
from jsbackup.cli.options.key_file import new_key_file
from jsbackup.cli.options.latest import WantedBackup, find_backup
from jsbackup.cli.options.opening import make_repository, new_repository_id, open_repository
from jsbackup.cli.output.backup_report import tell_listed, tell_shown, tell_stream
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import format_bytes
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import parse_size
from jsbackup.errors import IntegrityError, UsageError
from jsbackup.exit_codes import damage, unreadable
from jsbackup.formats.compression import ZSTD, Compression

if TYPE_CHECKING:
    from jsbackup.repository.checks.verify import Problem
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@encryption_options
@click.option("--sign", is_flag=True, help="Sign backups of a repository that is not encrypted, too.")
@click.option(
    "--segment-size",
    metavar="SIZE",
    help="Messages in a stored segment, before compression: 4KiB to 256MiB (default 32MiB). It cannot be changed "
    "later.",
)
@click.option(
    "--compression",
    metavar="HOW",
    help="How segments are compressed: zstd (the default, level 1), zstd:LEVEL up to 22, or none. It cannot be changed "
    "later.",
)
def init(
    shared: Shared,
    *,
    encrypt_to: tuple[str, ...],
    passphrase: str | None,
    sign: bool,
    segment_size: str | None,
    compression: str | None,
) -> None:
    """Create a repository in an empty location and test its store.

    An encrypted repository is always signed. Its writer key is written to the new file of --writer-key. Backups need
    this key; it reads no messages. Restores need the identity of a recipient.
    """
    start_log(shared)
    segment_bytes = None if segment_size is None else _parse_segment_size(segment_size)
    how = None if compression is None else _parse_compression(compression)
    repository_id = new_repository_id()
    new_keys = new_keys_of(repository_id, encrypt_to, passphrase, sign=sign)
    file = writer_key_file(shared)
    if new_keys is None and file is not None:
        raise UsageError(
            "a writer key is for a repository that is encrypted or signed", hint="Add --encrypt-to or --sign."
        )
    if new_keys is None:
        repository = make_repository(shared, repository_id, segment_bytes=segment_bytes, compression=how or ZSTD)
    elif file is None:
        raise UsageError("there is no place for the writer key", hint="Name a new file with --writer-key FILE.")
    else:
        from jsbackup.repository.crypto.writer_key import encode_writer_key

        with new_key_file(file, encode_writer_key(new_keys.writer_key)) as use:
            repository = make_repository(
                shared, repository_id, new_keys, segment_bytes=segment_bytes, compression=how or ZSTD, making=use
            )
    output, store, descriptor = shared.output, repository.descriptor.extra["store"], repository.descriptor

    def text() -> None:
        output.line(f"made repository {repository.descriptor.id} at {repository.store.location}")
        if new_keys is not None:
            output.line(f"its writer key is in {file}; keep a copy elsewhere")
            output.line(f"root signing key {descriptor.authority} (for --expect-signer)")
        found = [(yes if store[name] else no) for name, (yes, no) in _PROBED.items()]
        output.line(f"its store {', '.join(text for text in found if text)}")
        if segment_bytes is not None:
            output.line(f"its segments take up to {format_bytes(segment_bytes)} of messages")
        if how is not None:
            output.line(f"its segments are compressed by {how}" if how.level else "its segments are not compressed")

    document = {
        "repository": descriptor.id,
        "location": repository.store.location,
        "store": store,
        "encrypted": descriptor.recipient is not None,
        "authority": descriptor.authority,
        "segment_bytes": descriptor.segment_bytes,
        "compression": str(descriptor.compression),
        "writer_key": None if new_keys is None else str(file),
    }
    output.result(document, text)


def _parse_segment_size(text: str) -> int:
    from jsbackup.repository.segment_size import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, is_segment_size

    size = parse_size(text)
    if not is_segment_size(size):
        why = "a segment is held in memory as a whole" if size > MAX_SEGMENT_BYTES else "each segment is an object"
        raise UsageError(
            f"--segment-size {text}: {why}, so sizes from {format_bytes(MIN_SEGMENT_BYTES)} to "
            f"{format_bytes(MAX_SEGMENT_BYTES)} can be chosen"
        )
    return size


def _parse_compression(text: str) -> Compression:
    try:
        return Compression.parse(text)
    except ValueError as error:
        raise UsageError(f"--compression: {error}") from error


# Result of the probe -> text if it is true, text if it is false.
_PROBED = {
    "conditional_writes": ("supports write-once", "does not support write-once (jsbackup looks before it writes)"),
    "checksums": ("rejects what was damaged in transit", ""),
    "object_lock": ("can lock objects", ""),
    "versioned": ("keeps versions (jsbackup deletes them all)", ""),
}


@click.command("list", cls=Command, chooses=True)
@click.option("--last", type=WholeNumber(1), metavar="N", help="Only the newest N of them.")
def list_backups(shared: Shared, last: int | None) -> int:
    """List the backups of a repository, oldest first: age, duration, what was added, server and account, and which
    streams were asked for.

    A backup that cannot be read or is missing is always listed, whatever you filter by, because its content is
    unknown. One that is known to be damaged is marked; `show` says what it lacks. The exit code is 14 if there is any.
    """
    from jsbackup.repository.checks.evidence import find_missing
    from jsbackup.repository.keep.damage import known_damage
    from jsbackup.repository.keep.holds import held_backups
    from jsbackup.repository.read.sources import counts

    start_log(shared)
    rules, globs = shared.choosing.tags, shared.choosing.origins
    now_ns = time.time_ns()
    repository = open_repository(shared)
    inventory, held = repository.inventory(), held_backups(repository)
    wanted = [one for one in inventory.summaries if counts(one, rules, globs)][-(last or 0) :]
    damaged, unknown = known_damage(repository, [one.id for one in wanted])
    for warning in (*inventory.warnings, *unknown):
        shared.output.note(warning)
    lost = [one.error for one in inventory.unreadable]
    removed = find_missing(repository.documents) if inventory.gaps else []
    lost += [IntegrityError(f"manifest {gap.key}: {gap.problem}") for gap in removed]
    rows = [(one, one.id in held, one.id in damaged) for one in wanted]
    tell_listed(shared.output, rows, lost, now_ns, narrowed=bool(rules or globs))
    return unreadable(lost) or damage(damaged)


@click.command(cls=Command, chooses=True)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("stream", required=False, shell_complete=complete_stream)
@click.option(
    "--subjects",
    "most_subjects",
    type=WholeNumber(1),
    metavar="N",
    help="Also the N subjects of STREAM with the most bytes. All of its messages are read for that.",
)
def show(
    shared: Shared,
    backup: str,
    stream: str | None,
    *,
    most_subjects: int | None,
) -> int:
    """Show one backup: its streams, consumers, segments, warnings. BACKUP is an id, its start, or `latest`.

    With STREAM, that one is shown, with its configuration; --json has those of its consumers, too. Sequences of
    consumers are those of the stream. Pending are messages that were delivered and not acknowledged.

    `latest` is the backup that a restore of the same would take. If the backup is known to be damaged, what it lacks is
    named, and the exit code is 14.
    """
    from jsbackup.repository.keep.holds import find_hold

    if stream is not None:
        counts = most_subjects is not None
        repository, manifest = find_opened(shared, backup, stream, reads=counts, needed=[stream])
        return _show_stream(shared, repository, manifest, stream, most_subjects=most_subjects)
    if most_subjects is not None:
        raise UsageError("--subjects is of one stream", hint="Name it after the backup.")
    start_log(shared)
    repository = open_repository(shared)
    manifest = find_backup(shared, repository, WantedBackup(backup, silent=True, in_part=True))
    hold = find_hold(repository, manifest.id)
    problems = _known_problems(shared, repository, manifest)
    tell_shown(shared.output, manifest, hold, time.time_ns(), problems=problems)
    return damage(manifest.unlisted or problems)


def _known_problems(shared: Shared, repository: Repository, manifest: Manifest) -> list[Problem]:
    from jsbackup.repository.keep.damage import known_damage, known_problems

    damaged, unknown = known_damage(repository, [manifest.id])
    for note in unknown:
        shared.output.note(note)
    return known_problems(repository, manifest) if damaged else []


def _show_stream(
    shared: Shared, repository: Repository, manifest: Manifest, name: str, *, most_subjects: int | None
) -> int:
    from jsbackup.look.stream import find_stream, with_messages
    from jsbackup.look.subject_counts import largest_subjects
    from jsbackup.repository.write.pending_acks import load_consumer

    entry = find_stream(manifest, name)
    problems = _known_problems(shared, repository, replace(manifest, streams=(entry,)))
    if any(each.pending is not None for each in entry.consumers):
        check_readable(repository)
    entry = replace(entry, consumers=tuple(load_consumer(repository.objects, each) for each in entry.consumers))
    subjects = None
    if most_subjects is not None:
        subjects = largest_subjects(repository.objects, with_messages(manifest, entry), most_subjects)
    tell_stream(shared.output, manifest, entry, subjects, problems=problems)
    return damage(problems)


COMMANDS = {"init": init, "list": list_backups, "show": show}
