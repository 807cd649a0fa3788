"""`jsbackup key`: who can read an encrypted repository, and who signs; also used by `init`.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jsbackup.cli.options.key_file import new_key_file
from jsbackup.cli.options.opening import open_repository, open_with_keys
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.log import start_log
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import HELP_ALL, HelpGroup, Shared
from jsbackup.config import environment, new_writer_key_file, secret_file
from jsbackup.config.secrets import read_file
from jsbackup.errors import UsageError
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.repository.crypto.age import Recipient
    from jsbackup.repository.crypto.new_keys import NewKeys
    from jsbackup.repository.descriptor import Descriptor
    from jsbackup.repository.repository import Repository

__all__ = ["COMMANDS", "encryption_options", "new_keys_of", "writer_key_file"]

F = TypeVar("F", bound=Callable[..., Any])


def encryption_options(command: F) -> F:
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


def new_keys_of(
    repository_id: str, encrypt_to: tuple[str, ...], passphrase: str | None, *, sign: bool
) -> NewKeys | None:
    """Return the keys of a new repository; None for a plain one."""
    if not encrypt_to and passphrase is None and not sign:
        return None
    from jsbackup.repository.crypto.new_keys import make_new_keys

    return make_new_keys(repository_id, _recipients(encrypt_to), _passphrase(passphrase), os.urandom)


def _recipients(texts: Sequence[str]) -> list[Recipient]:
    """Return the recipients that are given, or are in a file: one a line, `#` begins a comment."""
    from jsbackup.repository.crypto.age import parse_recipient

    found = []
    for text in texts:
        if not os.path.isfile(text):  # noqa: PTH113 - Path.is_file() raises for a long SSH key
            found.append(parse_recipient(text))
            continue
        lines = [line for line in read_file(Path(text), "file of recipients").splitlines() if line.strip()]
        found += [parse_recipient(line) for line in lines if not line.lstrip().startswith("#")] or [parse_recipient("")]
    return found


def writer_key_file(shared: Shared) -> Path | None:
    """Return the file for a new writer key."""
    return new_writer_key_file(shared.keys, environment())


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
@encryption_options
def add(shared: Shared, encrypt_to: tuple[str, ...], passphrase: str | None) -> None:
    """Let others read the repository: all of it, old backups and new ones. Needs a key that reads it.

    A replica that has backups, made with `copy`, only gets the new reader with a copy while the newest backup here is
    newer than the newest one there: the next copy after the next backup. Until then, `copy` names the reader and leaves
    it out.
    """
    start_log(shared)
    if not encrypt_to and passphrase is None:
        raise UsageError("no reader was given", hint="Give --encrypt-to or --encrypt-passphrase-file.")
    from jsbackup.repository.crypto.keys import needed, put_identity, put_passphrase

    recipients = _recipients(encrypt_to)
    words = _passphrase(passphrase)
    repository = open_repository(shared)
    store, descriptor, secret = repository.store, _encrypted(repository), needed(repository.secret)
    added = [put_identity(store, descriptor.id, secret, recipient) for recipient in recipients]
    if words is not None:
        added.append(put_passphrase(store, descriptor.id, secret, words, random=os.urandom(3)))

    def text() -> None:
        for one in added:
            shared.output.line(f"added {one}")

    shared.output.result({"added": added}, text)


@key.command("list", cls=Command, short_help="List who reads and who signs.")
def list_keys(shared: Shared) -> None:
    """List who can read the repository, and who signs. Needs no key, and then trusts what the repository says."""
    start_log(shared)
    from jsbackup.repository import layout
    from jsbackup.repository.crypto.keys import list_identities, list_lost
    from jsbackup.repository.crypto.readers import AGAIN_FROM_COPY, NO_READER, examine_readers
    from jsbackup.repository.crypto.writers import load_writers

    repository = open_repository(shared)
    store, descriptor = repository.store, repository.descriptor
    identities = list_identities(store, descriptor) if descriptor.recipient else []
    lost = list_lost(store, descriptor) if descriptor.recipient else []
    gone = {layout.KEYS, *(one.key for one in lost)}
    damaged = [one for one in examine_readers(store, descriptor, repository.signers).broken if one.key not in gone]
    writers = load_writers(store, descriptor) if descriptor.authority else []
    replaced = {signer for writer in writers for signer in writer.replaces}
    readers = [
        {"key": one.id, "for": one.whom, "created": format_time(int(one.created_seconds) * 10**9)} for one in identities
    ]
    signers = [
        {"signer": one.signer, "created": one.created, "replaced": one.signer in replaced}
        for one in sorted(writers, key=lambda writer: writer.created)
    ]
    output = shared.output

    def text() -> None:
        if descriptor.authority is None:
            output.line("the repository is neither encrypted nor signed")
            return
        output.line(f"root signing key {descriptor.authority}")
        for signer in signers:
            state = "replaced" if signer["replaced"] else "signs"
            output.line(f"writer {signer['signer']}  made {str(signer['created'])[:19]}Z  {state}")
        if readers:
            output.table(["KEY", "CREATED"], [(one["key"], one["created"]) for one in readers])
        for one in lost:
            output.line(State("missing"), f": {one.key}; {AGAIN_FROM_COPY}")
        for broken in damaged:
            output.line(State("damaged"), f": {broken.problem}; {AGAIN_FROM_COPY}")
        if descriptor.recipient and not readers and not lost:
            output.line(State("missing"), f": {NO_READER}; {AGAIN_FROM_COPY}")

    output.result(
        {
            "authority": descriptor.authority,
            "readers": readers,
            "missing": [one.key for one in lost],
            "damaged": [{"key": one.key, "problem": one.problem} for one in damaged],
            "writers": signers,
        },
        text,
    )


@key.command("remove", cls=Command, short_help="Remove a reader's key.")
@click.argument("key_id", metavar="KEY")
def remove(shared: Shared, key_id: str) -> None:
    """Remove a reader's key: KEY is its id, or the start of it, as `key list` prints it.

    A reader who has used the key before may have kept what opens everything in the repository, later backups
    included. To lock someone out, create a new repository. Replicas keep the key: remove it there, too, with -r.
    """
    start_log(shared)
    from jsbackup.repository.crypto.keys import remove_identity

    repository = open_repository(shared)
    removed = remove_identity(repository.store, _encrypted(repository), key_id)

    def text() -> None:
        shared.output.line(f"removed {removed.key}")
        shared.output.line("anyone who has used it before can still read everything, also new backups: only a new")
        shared.output.line("repository locks someone out")

    shared.output.result({"removed": removed.key}, text)


@key.command("replace-writer", cls=Command, short_help="Make a new writer key in place of the old.")
@click.option("--new-writer-key", "file", required=True, metavar="FILE", help="Where to write the new writer key.")
def replace_writer_key(shared: Shared, file: str) -> None:
    """Replace a writer key that was lost or stolen. The old key can no longer sign.

    Needs a key that reads the repository; if the repository is only signed, its first writer key. Backups signed before
    stay valid. The old key still opens manifests, old ones and new ones.
    """
    start_log(shared)
    from jsbackup.repository.crypto.new_keys import replace_writer
    from jsbackup.repository.crypto.writer_key import encode_writer_key

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
    shared.output.result(
        {"signer": signer, "writer_key": file}, lambda: shared.output.line(f"{signer} signs now; its key is in {file}")
    )


def _encrypted(repository: Repository) -> Descriptor:
    if repository.descriptor.recipient is None:
        hint = "Only 'jsbackup init --encrypt-to' makes an encrypted one."
        raise UsageError("the repository is not encrypted", hint=hint)
    return repository.descriptor


COMMANDS = {"key": key}
