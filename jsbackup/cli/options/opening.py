"""Common parts of commands: connection, repository, the event loop, interruption.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jsbackup.cli.parsing.context import Shared
from jsbackup.config import (
    Connection,
    ConnectionReference,
    KeySecrets,
    connection_options,
    connection_reference,
    environment,
    key_secrets,
    s3_settings,
    source_connection,
    target_connection,
    target_reference,
)
from jsbackup.errors import IntegrityError, JsBackupError, KeyUnavailable, NoFolder, RepositoryNotFound, UsageError
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.model import S3Settings
from jsbackup.stores.base import Store
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.url import open_store
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.repository.crypto.access import GivenKeys
    from jsbackup.repository.crypto.new_keys import NewKeys
    from jsbackup.repository.repository import Repository

__all__ = [
    "connection_of",
    "connection_reference_of",
    "keys_of",
    "make_repository",
    "new_repository_id",
    "no_init_option",
    "not_made",
    "open_or_make_repository",
    "open_repository",
    "open_to_repair",
    "open_with_keys",
    "run_async",
    "s3_of",
    "store_at",
    "target_connection_of",
]

T = TypeVar("T")


F = TypeVar("F", bound=Callable[..., Any])


def no_init_option(command: F) -> F:
    """Add `--no-init`, passed as `no_init`."""
    return click.option(
        "--no-init", is_flag=True, help="Do not create a repository where there is none (a disk may not be mounted)."
    )(command)


def connection_of(shared: Shared) -> Connection:
    """Return the connection from options, environment and nats context; only from options if a profile names a
    server.
    """
    if shared.server_named:
        return target_connection_of(shared.server)
    return source_connection(connection_options(shared.server), environment())


def connection_reference_of(shared: Shared) -> ConnectionReference:
    """Return a reference to the connection for other processes. Raises UsageError if a secret would have to be sent."""
    options = connection_options(shared.server)
    if shared.server_named:
        return target_reference(options, environment())
    return connection_reference(options, environment())


def target_connection_of(given: Mapping[str, Any]) -> Connection:
    """Return the connection to the second server of a command, from its options with the names of the first
    server's.
    """
    return target_connection(connection_options(given), environment())


def _store(shared: Shared) -> Store:
    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    return store_at(shared.repo, shared)


def store_at(location: str, shared: Shared) -> Store:
    """Return the store at a location, which retries temporary errors."""
    store = open_store(location, s3_of(shared))
    return RetryingStore(store, sleep=time.sleep, random=random.random, clock=time.monotonic)


def s3_of(shared: Shared) -> S3Settings:
    """Return the settings for S3 from options and environment. Raises UsageError for invalid ones."""
    return s3_settings(shared.s3, environment(shared.variables))


def keys_of(shared: Shared) -> GivenKeys:
    """Return the keys from options and environment. Raises UsageError for invalid ones."""
    from jsbackup.repository.crypto.access import NO_KEYS

    secrets = key_secrets(shared.keys, environment(shared.variables))
    if secrets == KeySecrets():
        return NO_KEYS
    from jsbackup.repository.crypto.keys import read_keys

    return read_keys(secrets.writer_key, secrets.identity, secrets.passphrase, secrets.expect_signer)


def open_repository(shared: Shared) -> Repository:
    """Open the repository with the given keys."""
    return open_with_keys(shared)[0]


def open_with_keys(shared: Shared) -> tuple[Repository, GivenKeys]:
    """Open the repository; also return the given keys."""
    from jsbackup.repository.location import in_a_folder
    from jsbackup.repository.repository import Repository

    keys = keys_of(shared)
    with in_a_folder():
        return Repository.open(_store(shared), keys), keys


def open_to_repair(shared: Shared) -> tuple[Repository, GivenKeys, JsBackupError | None]:
    """As `open_with_keys`. If that is only impossible with the keys that read messages, the repository is opened
    without them, and the error is returned: a reader's key file may be what has to be repaired.
    """
    from jsbackup.repository.crypto.access import GivenKeys
    from jsbackup.repository.location import in_a_folder
    from jsbackup.repository.repository import Repository

    store, keys = _store(shared), keys_of(shared)
    with in_a_folder():
        try:
            return Repository.open(store, keys), keys, None
        except (KeyUnavailable, IntegrityError) as error:
            if not keys.reads:
                raise
            without = GivenKeys(writer=keys.writer, expect_signer=keys.expect_signer)
            return Repository.open(store, without), keys, error


def new_repository_id() -> str:
    return os.urandom(16).hex()


def make_repository(
    shared: Shared,
    repository_id: str,
    new_keys: NewKeys | None = None,
    *,
    segment_bytes: int | None = None,
    compression: Compression = ZSTD,
    making: Callable[[], None] = lambda: None,
) -> Repository:
    """Create a repository in an empty location. `new_keys` encrypts and signs it; without it, it is plain.

    `segment_bytes` is the size of its segments, raw, the usual one if it is None; `compression` is theirs. `making` is
    as in `Repository.create`.
    """
    from jsbackup.repository.repository import Repository
    from jsbackup.repository.segment_size import SEGMENT_BYTES

    return Repository.create(
        _store(shared),
        repository_id=repository_id,
        created=format_time(time.time_ns()),
        tool=TOOL,
        new_keys=new_keys,
        segment_bytes=segment_bytes or SEGMENT_BYTES,
        compression=compression,
        making=making,
    )


def open_or_make_repository(shared: Shared, *, may_make: bool = True) -> Repository:
    """Open the repository for writing. In an empty location it is created when something is stored.

    Raises KeyUnavailable without the key for writing, and RepositoryNotFound if there is none and none may be created.
    """
    from jsbackup.repository.write.late_repository import open_or_make, open_unless_vacant

    store, keys = _store(shared), keys_of(shared)
    if may_make:
        return open_or_make(
            store,
            keys,
            repository_id=new_repository_id(),
            created=format_time(time.time_ns()),
            tool=TOOL,
            making=shared.output.announce,
        )
    missing = RepositoryNotFound(f"no repository at {store.location}")
    try:
        repository = open_unless_vacant(store, keys)
    except NoFolder:
        raise not_made(missing) from None
    if repository is None:
        raise not_made(missing)
    repository.documents.ensure_writable()
    return repository


def not_made(missing: RepositoryNotFound) -> RepositoryNotFound:
    """Return the error for a missing repository that may not be created."""
    return RepositoryNotFound(
        f"{missing.message}, and --no-init forbids creating one",
        hint="See whether a disk or share is not mounted there. A new repository is made by 'jsbackup init'.",
    )


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work. Ctrl-C and SIGTERM stop it cleanly and raise Interrupted."""
    try:
        from jsbackup.cli.loop import run_loop

        return run_loop(work)
    finally:
        work.close()  # if it is interrupted before it begins, Python would warn that it was never awaited
