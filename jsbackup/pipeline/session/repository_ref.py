"""Location and keys of a repository as a value that is sent to executors.

It contains no secrets: keys are named by their options (files, commands), and the environment, including the
credentials of S3, is read on the executors. A local run inherits it; on a cluster the nodes need it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jsbackup.config import KeySecrets, environment, key_secrets
from jsbackup.config.secrets import expand_path
from jsbackup.errors import KeyUnavailable, StoreError
from jsbackup.model import S3Settings
from jsbackup.repository.crypto.access import NEEDS_IDENTITY, NO_KEYS
from jsbackup.repository.crypto.keys import read_keys
from jsbackup.repository.descriptor import in_a_folder
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.retry import RetryingStore
from jsbackup.stores.url import check_spelling, open_store

__all__ = [
    "RepositoryRef",
    "check_readable",
    "find_readable",
    "lent",
    "open_backup_at",
    "opened",
    "opened_same",
    "place_of",
]

_FILE_OPTIONS = ("writer_key", "identity", "passphrase_file")

# Repositories that one worker process keeps open: it serves one job, with one or two of them.
_OPEN = 4


@dataclass(frozen=True, slots=True)
class RepositoryRef:
    """An absolute location. `keys` are the given options for keys, by parameter name; `variables` is the prefix of the
    variables that name others.
    """

    location: str
    s3: S3Settings = field(default_factory=S3Settings)
    keys: tuple[tuple[str, str], ...] = ()
    variables: str = "JSBACKUP_"

    def open(self) -> Repository:
        """Open the repository. Raises the errors of `Repository.open`, and UsageError for wrong keys."""
        secrets = key_secrets(dict(self.keys), environment(self.variables))
        keys = NO_KEYS
        if secrets != KeySecrets():
            keys = read_keys(secrets.writer_key, secrets.identity, secrets.passphrase, secrets.expect_signer)
        with in_a_folder():
            return Repository.open(self.store(), keys)

    @property
    def folder(self) -> str | None:
        """The folder of the repository; None if it is not in a folder."""
        store = open_store(self.location, self.s3)
        return store.location if isinstance(store, LocalStore) else None

    def store(self) -> Store:
        """Return just the store, which retries temporary errors."""
        return RetryingStore(
            open_store(self.location, self.s3), sleep=time.sleep, random=random.random, clock=time.monotonic
        )


def place_of(location: str, s3: S3Settings, keys: Mapping[str, object], variables: str = "JSBACKUP_") -> RepositoryRef:
    """Return the place given by options. Relative paths are resolved here. Raises UsageError as in `check_spelling`."""
    check_spelling(location)
    if "://" not in location:
        location = str(Path(location).absolute())
    named = {name: str(value) for name, value in keys.items() if value is not None}
    for name in _FILE_OPTIONS:
        if name in named:
            named[name] = str(expand_path(named[name], environment()).absolute())
    return RepositoryRef(location, s3, tuple(sorted(named.items())), variables)


def opened(place: RepositoryRef) -> Repository:
    """Return the repository for a task: the one that is lent, else it is opened, once in each process."""
    return next(reversed(_lent.get(place, ())), None) or _opened(place)


@contextmanager
def lent(place: RepositoryRef, repository: Repository) -> Iterator[None]:
    """Let tasks that run in this process use the open repository of `place`. Several threads may do so at once."""
    repositories = _lent.setdefault(place, [])
    repositories.append(repository)
    try:
        yield
    finally:
        repositories.remove(repository)


_lent: dict[RepositoryRef, list[Repository]] = {}


@lru_cache(_OPEN)
def _opened(place: RepositoryRef) -> Repository:
    return place.open()


def opened_same(place: RepositoryRef, repository_id: str) -> Repository:
    """As `opened`; raises StoreError if it is not the driver's repository."""
    repository = opened(place)
    if repository.descriptor.id != repository_id:
        raise StoreError(
            f"an executor finds another repository at {place.location} than this machine",
            hint="A folder has to be shared by all of them.",
        )
    return repository


def open_backup_at(place: RepositoryRef, backup: str) -> tuple[Repository, Manifest]:
    """Return the repository and one backup of it (an id, the start of one, or `latest`), whose messages can be read.

    Raises:
        UsageError: there is no such backup.
        KeyUnavailable: the repository is encrypted, and no key that reads messages was given.
        RepositoryNotFound, IntegrityError, StoreError: as in `Repository.open`.
    """
    repository = place.open()
    return repository, find_readable(repository, backup)


def find_readable(repository: Repository, backup: str) -> Manifest:
    """Return a backup of an open repository, as in `open_backup_at`."""
    manifest = repository.find(backup)
    check_readable(repository)
    return manifest


def check_readable(repository: Repository) -> None:
    """Raise KeyUnavailable if messages are encrypted, and no key that reads them was given."""
    if repository.objects.sealing.suffix and repository.secret is None:
        raise KeyUnavailable("the messages are encrypted, and no key that reads them was given", hint=NEEDS_IDENTITY)
