"""What a command works with, from its options: servers and accounts, repositories with their keys and leases, Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jsbackup.cli.parsing.context import Shared, gathered
from jsbackup.config import Glob, KeySecrets, environment, expand_path, key_secrets, parse_duration, s3_settings
from jsbackup.config.connection import (
    Connection,
    ConnectionReference,
    connection_options,
    connection_reference,
    source_connection,
    target_connection,
    target_reference,
)
from jsbackup.config.secrets import shown
from jsbackup.errors import (
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    NoFolder,
    RepositoryLocked,
    RepositoryNotFound,
    StoreError,
    UnsupportedError,
    UsageError,
)
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.model import S3Settings
from jsbackup.stores.base import Store
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.url import open_store
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.engine.accounts.logins import AccountChoice, LoginSources
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.session.session import SparkSettings
    from jsbackup.repository.crypto.access import GivenKeys
    from jsbackup.repository.crypto.new_keys import NewKeys
    from jsbackup.repository.keep.leases import Lease, Mode
    from jsbackup.repository.repository import Repository

__all__ = [
    "SPARK_OPTIONS",
    "AskedAccounts",
    "Where",
    "account_options",
    "connection_of",
    "connection_reference_of",
    "holder",
    "keys_of",
    "make_repository",
    "new_key_file",
    "new_repository_id",
    "no_init_option",
    "not_made",
    "open_or_make_repository",
    "open_repository",
    "open_to_repair",
    "open_with_keys",
    "place_given",
    "reading",
    "s3_of",
    "settings_of",
    "store_at",
    "target_connection_of",
    "where_asked",
    "writing",
]

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


def _location(shared: Shared) -> str:
    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    return shared.repo


def _store(shared: Shared) -> Store:
    return store_at(_location(shared), shared)


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
    from jsbackup.repository.descriptor import in_a_folder
    from jsbackup.repository.repository import Repository

    keys = keys_of(shared)
    with in_a_folder():
        return Repository.open(_store(shared), keys), keys


def open_to_repair(shared: Shared) -> tuple[Repository, GivenKeys, JsBackupError | None]:
    """As `open_with_keys`. If that is only impossible with the keys that read messages, the repository is opened
    without them, and the error is returned: a reader's key file may be what has to be repaired.
    """
    from jsbackup.repository.crypto.access import GivenKeys
    from jsbackup.repository.descriptor import in_a_folder
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
    from jsbackup.repository.objects import SEGMENT_BYTES
    from jsbackup.repository.repository import Repository

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


# --- leases ---


def holder(shared: Shared, repository: Repository, purpose: str) -> Callable[[Mode], AbstractContextManager[Lease]]:
    """Return a function that takes leases for a command; `purpose` is its name. Raises UsageError for an invalid
    --lock-timeout.

    Taking one raises RepositoryLocked and StoreError.
    """
    wait_seconds = parse_duration(shared.lock_timeout)

    def hold(mode: Mode) -> AbstractContextManager[Lease]:
        from jsbackup.engine.backup.lease_renewal import hold_lease, lease_terms

        terms = lease_terms(purpose, mode)
        return hold_lease(repository.store, terms, wait_seconds=wait_seconds, waiting=partial(_note_waiting, shared))

    return hold


def writing(shared: Shared, repository: Repository, purpose: str) -> AbstractContextManager[Lease]:
    """Hold a shared lease for writing. Raises RepositoryLocked and StoreError."""
    from jsbackup.repository.keep.leases import Mode

    return holder(shared, repository, purpose)(Mode.SHARED)


def reading(shared: Shared, repository: Repository, purpose: str) -> AbstractContextManager[None]:
    """Hold a shared lease for reading, see `hold_to_read`. Raises RepositoryLocked."""
    from jsbackup.engine.backup.lease_renewal import hold_to_read

    return hold_to_read(
        repository,
        purpose,
        wait_seconds=parse_duration(shared.lock_timeout),
        waiting=partial(_note_waiting, shared),
        note=shared.output.note,
    )


def _note_waiting(shared: Shared, error: RepositoryLocked) -> None:
    shared.output.note(f"{error.message}; waiting for up to {shared.lock_timeout}")


# --- Spark ---

SPARK_OPTIONS = [
    click.Option(["--spark"], metavar="URL", help="Run it on Spark: local, spark://host:7077, …"),
    click.Option(["--spark-conf"], multiple=True, metavar="KEY=VALUE", help="A setting: spark.driver.memory=8g."),
]


@dataclass(frozen=True, slots=True)
class Where:
    """The values of `--spark` and `--spark-conf`."""

    url: str
    conf: tuple[str, ...]

    @property
    def is_elsewhere(self) -> bool:
        """Whether other machines may do the work."""
        return not self.url.startswith("local")


def where_asked(spark: str | None, spark_conf: tuple[str, ...]) -> Where | None:
    """Return where to run; None without `--spark`. Raises UsageError as `settings_of`, before anything is opened."""
    if spark is None:
        if spark_conf:
            raise UsageError("--spark-conf makes sense with --spark only", hint="Leave it out, or add --spark local.")
        return None
    where = Where(spark, spark_conf)
    settings_of(where)
    return where


def settings_of(where: Where) -> SparkSettings:
    """Return the settings. Raises UsageError for invalid ones, UnsupportedError if Spark is not installed."""
    pairs = [text.partition("=") for text in where.conf]
    for name, equals, _ in pairs:
        if not name.startswith("spark.") or not equals:
            raise UsageError(f"not a setting of Spark: {name[:80]!r}", hint="Write it as spark.driver.memory=8g.")
    if find_spec("pyspark") is None:
        raise UnsupportedError(
            "this runs on Spark, which is not installed", hint="Install it with `pip install 'jsbackup[spark]'`."
        )
    from jsbackup.cli.output.progress import silence_spark
    from jsbackup.pipeline.session.session import SparkSettings, check_url

    check_url(where.url)
    silence_spark()
    return SparkSettings(where.url, {name: value for name, _, value in pairs})


def place_given(shared: Shared) -> RepositoryRef:
    """Return the repository of the options, for executors. Raises UsageError if there is none."""
    from jsbackup.pipeline.session.repository_ref import place_of

    return place_of(_location(shared), s3_of(shared), shared.keys, shared.variables)


# --- the file of a new writer key ---


@contextmanager
def new_key_file(path: Path, text: str) -> Iterator[Callable[[], None]]:
    """Write the key file, then run the body. It has to call what is yielded before the request that starts the use of
    the key.

    It is written first, because a repository without its key would be useless. If nothing was made, the file is
    removed; if the store failed at that request, that is unknown, and it stays. Raises UsageError if it cannot be
    written.
    """
    used = False

    def use() -> None:
        nonlocal used
        used = True

    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(
            f"the file {path} exists already, and may hold the key of another repository", hint="Choose another name."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a usable name"
        raise UsageError(f"cannot write the writer key to {shown(str(path))}: {reason}") from None
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield use
    except StoreError:
        if not used:
            path.unlink()
        raise
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise UsageError(f"cannot write the writer key to {path}: {error.strerror}") from None
    except (UsageError, UnsupportedError, IntegrityError, KeyUnavailable):
        path.unlink()
        raise


# --- all accounts of a system ---


@dataclass(frozen=True, slots=True)
class AskedAccounts:
    """The parameters as typed."""

    all_accounts: bool
    account: tuple[str, ...]
    accounts: Path | None = None
    map_account: tuple[str, ...] = ()

    def choice(self, connection: Connection) -> AccountChoice:
        """Return which accounts are meant. Raises UsageError."""
        from jsbackup.engine.accounts.logins import AccountChoice

        if not all(self.account):
            raise UsageError("the name of an account is empty", hint="Write a name, a public key, or a pattern.")
        return AccountChoice(tuple(map(Glob, self.account)), connection.js_domain)

    def sources(self, shared: Shared) -> LoginSources:
        """Read what the file names. Raises UsageError."""
        from jsbackup.config.accounts import read_accounts
        from jsbackup.engine.accounts.logins import read_sources

        if self.accounts is None:
            raise UsageError(
                "--all-accounts needs a login for each account",
                hint="Give --accounts FILE, which says where they are: 'jsbackup help accounts'.",
            )
        environ = environment()
        file = read_accounts(expand_path(str(self.accounts), environ), environ)
        if file.exposed:
            shared.output.warning(f"{file.path} can be read by others and holds secrets: chmod 600 it")
        return read_sources(file, environ)

    def connection(self, shared: Shared) -> Connection:
        """Return the connection as the system user. Raises UsageError."""
        connection = connection_of(shared)
        if connection.js_api_prefix is not None:
            raise UsageError(
                "--js-api-prefix makes no sense with --all-accounts", hint="Back that account up in a run of its own."
            )
        return connection


def _asked(**given: Any) -> AskedAccounts:
    if not given["all_accounts"] and (idle := [name for name, value in given.items() if value]):
        option = f"--{idle[0].replace('_', '-')}"
        raise UsageError(f"{option} makes no sense without --all-accounts", hint="Add it, or leave this out.")
    return AskedAccounts(**given)


def account_options(all_accounts: str, *, logins: bool = True, mapped: bool = False) -> Callable[[F], F]:
    """Add the options, passed as `accounts`; `all_accounts` is the help of the first. They are those with `logins`, and
    with `--map-account` if they are `mapped`.
    """
    options: list[Callable[[Any], Any]] = [
        click.option("--all-accounts", is_flag=True, help=all_accounts),
        click.option("--account", multiple=True, metavar="ACCOUNT", help="Only these accounts, by name, key or glob."),
    ]
    if logins:
        options.append(
            click.option(
                "--accounts",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="Their logins: 'jsbackup help accounts'.",
            )
        )
    if mapped:
        options.append(
            click.option(
                "--map-account", multiple=True, metavar="OLD=NEW", help="Restore account OLD into account NEW."
            )
        )
    return gathered("accounts", [field.name for field in fields(AskedAccounts)], _asked, options)
