"""`jsbackup init` and `jsbackup key`: create a repository, and manage who reads an encrypted one, and who signs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import click

from jsbackup.cli.options.opening import (
    make_repository,
    new_key_file,
    new_repository_id,
    open_repository,
    open_with_keys,
)
from jsbackup.cli.output.result import Block, Result, State, format_bytes, table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import HELP_ALL, HelpGroup, Shared
from jsbackup.config import environment, new_writer_key_file, parse_size, secret_file
from jsbackup.config.secrets import read_file
from jsbackup.errors import UsageError
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.crypto.age import Recipient, parse_recipient
from jsbackup.repository.crypto.keys import add_readers, needed, reader_id, remove_reader
from jsbackup.repository.crypto.new_keys import make_new_keys, replace_writer
from jsbackup.repository.crypto.readers import AGAIN_FROM_COPY, NOT_LISTED, examine_readers
from jsbackup.repository.crypto.signing import encode_writer_key, load_writers
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.objects import MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, is_segment_size
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time

__all__ = ["COMMANDS"]

F = TypeVar("F", bound=Callable[..., Any])


def _encryption_options(command: F) -> F:
    """Add `--encrypt-to` and `--encrypt-passphrase-file`, passed as `encrypt_to` and `passphrase`."""
    to = click.option(
        "--encrypt-to",
        multiple=True,
        metavar="RECIPIENT",
        help="Let this age recipient (age1…) or SSH public key read it, or those in this file, one a line; repeatable.",
    )
    passphrase = click.option(
        "--encrypt-passphrase-file",
        "passphrase",
        metavar="FILE",
        help="Let anybody with the passphrase in FILE read it.",
    )
    return to(passphrase(command))


@click.command(cls=Command)
@_encryption_options
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
) -> Result:
    """Create a repository in an empty location and test its store.

    An encrypted repository is always signed. Its writer key is written to the new file of --writer-key. Backups need
    this key; it reads no messages. Restores need the identity of a recipient.
    """
    segment_bytes = None if segment_size is None else parse_size(segment_size)
    if segment_bytes is not None and not is_segment_size(segment_bytes):
        sizes = f"{format_bytes(MIN_SEGMENT_BYTES)} to {format_bytes(MAX_SEGMENT_BYTES)}"
        raise UsageError(f"--segment-size {segment_size}: a segment is an object, held in memory: {sizes}")
    try:
        how = None if compression is None else Compression.parse(compression)
    except ValueError as error:
        raise UsageError(f"--compression: {error}") from error
    repository_id, new_keys = new_repository_id(), None
    written: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    file = new_writer_key_file(shared.keys, environment())
    if encrypt_to or passphrase is not None or sign:
        new_keys = make_new_keys(repository_id, _recipients(encrypt_to), _passphrase(passphrase), os.urandom)
        if file is None:
            raise UsageError("there is no place for the writer key", hint="Name a new file with --writer-key FILE.")
        written = new_key_file(file, encode_writer_key(new_keys.writer_key))
    elif file is not None:
        raise UsageError(
            "a writer key is for a repository that is encrypted or signed", hint="Add --encrypt-to or --sign."
        )
    with written as use:
        repository = make_repository(
            shared, repository_id, new_keys, segment_bytes=segment_bytes, compression=how or ZSTD, making=use
        )
    store, descriptor = repository.descriptor.extra["store"], repository.descriptor
    probed = [yes if store[name] else no for name, (yes, no) in _PROBED.items()]
    lines = [f"made repository {descriptor.id} at {repository.store.location}"]
    if new_keys is not None:
        lines.append(f"its writer key is in {file}; keep a copy elsewhere")
        lines.append(f"root signing key {descriptor.authority} (for --expect-signer)")
    lines.append(f"its store {', '.join(filter(None, probed))}")
    if segment_bytes is not None:
        lines.append(f"its segments take up to {format_bytes(segment_bytes)} of messages")
    if how is not None:
        lines.append(f"its segments are compressed by {how}" if how.level else "its segments are not compressed")
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
    return Result(document, lines)


# Result of the probe -> text if it is true, text if it is false.
_PROBED = {
    "conditional_writes": ("supports write-once", "does not support write-once (jsbackup looks before it writes)"),
    "checksums": ("rejects what was damaged in transit", ""),
    "object_lock": ("can lock objects", ""),
    "versioned": ("keeps versions (jsbackup deletes them all)", ""),
}


def _recipients(texts: Sequence[str]) -> list[Recipient]:
    """Return the recipients that are given, or are in a file: one a line, `#` begins a comment."""
    recipients = []
    for text in texts:
        if not os.path.isfile(text):  # noqa: PTH113 - Path.is_file() raises for a long SSH key
            recipients.append(parse_recipient(text))
            continue
        lines = [line for line in read_file(Path(text), "file of recipients").splitlines() if line.strip()]
        recipients += [parse_recipient(line) for line in lines if not line.lstrip().startswith("#")] or [
            parse_recipient("")
        ]
    return recipients


def _passphrase(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        passphrase = secret_file(file, "passphrase", environment()).decode().rstrip("\r\n")
    except UnicodeDecodeError:  # not chained: it contains the secret
        raise UsageError("the passphrase is not text") from None
    if not passphrase:
        raise UsageError("the passphrase is empty")
    return passphrase


@click.group("key", cls=HelpGroup, invoke_without_command=True, params=[HELP_ALL])
@click.pass_context
def key(ctx: click.Context) -> None:
    """Manage who reads an encrypted repository, and who signs in it."""
    if ctx.invoked_subcommand is None:
        raise UsageError("no command given", hint=f"Commands are {', '.join(f'key {name}' for name in key.commands)}.")


@key.command("add", cls=Command, short_help="Let others read the repository, too.")
@_encryption_options
def add(shared: Shared, encrypt_to: tuple[str, ...], passphrase: str | None) -> Result:
    """Let others read the repository: all of it, old backups and new ones. Needs a key that reads it.

    The next `copy` into a replica lets them read that, too.
    """
    if not encrypt_to and passphrase is None:
        raise UsageError("no reader was given", hint="Give --encrypt-to or --encrypt-passphrase-file.")
    recipients = _recipients(encrypt_to)
    words = _passphrase(passphrase)
    repository = open_repository(shared)
    descriptor, secret = _encrypted(repository), needed(repository.secret)
    passphrase_named = None if words is None else (words, os.urandom(3))
    added = add_readers(repository.store, descriptor, secret, recipients, passphrase=passphrase_named)
    return Result({"added": added}, [f"added {each}" for each in added])


@key.command("list", cls=Command, short_help="List who reads and who signs.")
def list_keys(shared: Shared) -> Result:
    """List who can read the repository, and who signs. Needs no key, and then trusts what the repository says."""
    repository = open_repository(shared)
    store, descriptor = repository.store, repository.descriptor
    known = examine_readers(store, descriptor)
    problems = [(reader.key, reader.problem) for reader in known.broken if reader.key not in known.missing]
    unlisted = [(key, f"{key} {NOT_LISTED}") for key in known.unlisted]
    writers = load_writers(store, descriptor) if descriptor.authority else []
    replaced = {signer for writer in writers for signer in writer.replaces}
    readers = [
        {
            "key": reader_id(key),
            "for": layout.reader_of(key, descriptor.id),
            "created": format_time(int(created_seconds) * 10**9),
        }
        for key, created_seconds in sorted(known.stored.items())
    ]
    signers = [
        {"signer": each.signer, "created": each.created, "replaced": each.signer in replaced}
        for each in sorted(writers, key=lambda writer: writer.created)
    ]
    document = {
        "authority": descriptor.authority,
        "readers": readers,
        "missing": known.missing,
        "damaged": [{"key": key, "problem": problem} for key, problem in (*problems, *unlisted)],
        "writers": signers,
    }
    lines = [(State("missing"), f": {key}; {AGAIN_FROM_COPY}") for key in known.missing]
    lines += [(State("damaged"), f": {problem}; {AGAIN_FROM_COPY}") for _, problem in problems]
    lines += [(State("warning"), f": {problem}") for _, problem in unlisted]
    return Result(document, [*_keys_text(document), *lines])


def _keys_text(document: JsonObject) -> Iterator[Block]:
    if document["authority"] is None:
        yield "the repository is neither encrypted nor signed"
        return
    yield f"root signing key {document['authority']}"
    for writer in document["writers"]:
        state = "replaced" if writer["replaced"] else "signs"
        yield f"writer {writer['signer']}  made {writer['created'][:19]}Z  {state}"
    if document["readers"]:
        yield table(document["readers"], {"KEY": "key", "CREATED": "created"})


@key.command("remove", cls=Command, short_help="Remove a reader's key.")
@click.argument("key_id", metavar="KEY")
def remove(shared: Shared, key_id: str) -> Result:
    """Remove a reader's key: KEY is its id, or the start of it, as `key list` prints it. Needs a key that reads the
    repository.

    A reader who has used the key before may have kept what opens everything in the repository, later backups
    included. To lock someone out, create a new repository. Replicas keep the key: remove it there, too, with -r.
    """
    repository = open_repository(shared)
    removed = remove_reader(repository.store, _encrypted(repository), repository.secret, key_id)
    lines = [
        f"removed {removed}",
        "anyone who has used it before can still read everything, also new backups: only a new",
        "repository locks someone out",
    ]
    return Result({"removed": removed}, lines)


@key.command("replace-writer", cls=Command, short_help="Make a new writer key in place of the old.")
@click.option("--new-writer-key", "file", required=True, metavar="FILE", help="Where to write the new writer key.")
def replace_writer_key(shared: Shared, file: str) -> Result:
    """Replace a writer key that was lost or stolen. The old key can no longer sign.

    Needs a key that reads the repository; if the repository is only signed, its first writer key. Backups signed before
    stay valid. The old key still opens manifests, old ones and new ones.
    """
    repository, given = open_with_keys(shared)
    created = format_time(time.time_ns())
    new, enthrone = replace_writer(
        repository.store,
        repository.descriptor,
        repository.documents,
        repository.secret,
        writer_key=given.writer,
        created=created,
        random=os.urandom,
    )
    with new_key_file(Path(file), encode_writer_key(new)) as use:
        use()
        enthrone()
    signer = new.signatory.public
    return Result({"signer": signer, "writer_key": file}, [f"{signer} signs now; its key is in {file}"])


def _encrypted(repository: Repository) -> Descriptor:
    if repository.descriptor.recipient is None:
        hint = "Only 'jsbackup init --encrypt-to' makes an encrypted one."
        raise UsageError("the repository is not encrypted", hint=hint)
    return repository.descriptor


COMMANDS = {"init": init, "key": key}
