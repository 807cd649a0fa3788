"""Common parts of commands on Spark: options, and a backup opened with a session.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from jsbackup.cli.options.context import Shared
from jsbackup.cli.options.leases import reading
from jsbackup.config import environment, parse_glob, s3_settings
from jsbackup.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Choosing
    from jsbackup.pipeline.messages.backup_frames import BackupFrames
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.session.session import SparkSettings
    from jsbackup.repository.read.broken_lists import BrokenLists

__all__ = [
    "Where",
    "choose_readable",
    "on_spark",
    "open_with_spark",
    "place_given",
    "require_spark",
    "settings_of",
    "spread_by_spark",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Where:
    """The values of `--spark-master`, `--spark-remote` (None if not given) and `--spark-conf`."""

    master: str | None
    conf: tuple[str, ...]
    remote: str | None = None

    @property
    def given(self) -> bool:
        return self.master is not None or self.remote is not None or bool(self.conf)


def _spark_options(says: str) -> Callable[[F], F]:
    def options(command: F) -> F:
        @click.option("--spark-master", metavar="URL", help=says)
        @click.option(
            "--spark-remote", metavar="URL", help="A Spark Connect server to run it instead: sc://host:15002."
        )
        @click.option(
            "--spark-conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="A setting of Spark, such as spark.driver.memory=8g.",
        )
        @wraps(command)
        def run(
            *arguments: Any,
            spark_master: str | None,
            spark_remote: str | None,
            spark_conf: tuple[str, ...],
            **others: Any,
        ) -> Any:
            return command(*arguments, where=Where(spark_master, spark_conf, spark_remote), **others)

        return cast(F, run)

    return options


_MASTERS = "local[N], spark://host:7077, yarn or k8s://…"

on_spark = _spark_options(f"Where Spark runs: {_MASTERS}; by default all cores of this machine.")
"""Add `--spark-master` and `--spark-conf`, passed as `where`."""

spread_by_spark = _spark_options(f"Spread the streams over executors of Spark: {_MASTERS}.")
"""Add the same options to a command that only uses Spark if they are given."""


def settings_of(where: Where) -> SparkSettings:
    """Return the settings. Raises UsageError for invalid ones, UnsupportedError if Spark is not installed."""
    if where.master is not None and where.remote is not None:
        raise UsageError("--spark-master and --spark-remote are two places", hint="Give one of them.")
    pairs = [text.partition("=") for text in where.conf]
    for name, equals, _ in pairs:
        if not name.startswith("spark.") or not equals:
            raise UsageError(f"not a setting of Spark: {name[:80]!r}", hint="Write it as spark.driver.memory=8g.")
    require_spark()
    from jsbackup.cli.output.log import silence_spark
    from jsbackup.pipeline.session.session import DEFAULT_MASTER, SparkSettings

    silence_spark()
    return SparkSettings(where.master or DEFAULT_MASTER, {name: value for name, _, value in pairs}, where.remote)


def require_spark() -> None:
    """Raise UnsupportedError if Spark is not installed."""
    if find_spec("pyspark") is None:
        raise UnsupportedError(
            "this runs on Spark, which is not installed", hint="Install it with `pip install 'jsbackup[spark]'`."
        )


def place_given(shared: Shared) -> RepositoryRef:
    """Return the repository of the options, for executors. Raises UsageError if there is none."""
    from jsbackup.pipeline.session.repository_ref import place_of

    if not shared.repo:
        raise UsageError("no repository given", hint="Name it with --repo or JSBACKUP_REPO.")
    return place_of(shared.repo, s3_settings(shared.s3, environment()), shared.keys)


@contextmanager
def open_with_spark(
    shared: Shared,
    purpose: str,
    backup: str,
    choosing: Choosing,
    *,
    streams: Sequence[str],
    where: Where,
    lock_timeout: str,
) -> Iterator[BackupFrames]:
    """Open a backup with Spark, under a lease. Errors in the command are reported before Spark starts."""
    settings = settings_of(where)
    from jsbackup.cli.options.latest import find_backup
    from jsbackup.pipeline.messages.backup_frames import open_backup
    from jsbackup.pipeline.messages.source import choose_streams
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.pipeline.session.session import open_session
    from jsbackup.repository.read.broken_lists import broken_lists, refuse_broken

    place, patterns = place_given(shared), tuple(map(parse_glob, streams))
    repository = place.open()
    with reading(shared, repository, purpose, lock_timeout):
        # Of these documents only that of `stats` names its backup.
        silent = purpose == "stats" and shared.output.as_json
        manifest = find_backup(shared, repository, backup, choosing, streams=patterns, silent=silent)
        check_readable(repository)
        chosen = choose_streams(manifest, streams)
        refuse_broken(broken_lists(chosen), of=len(chosen))
        with open_session(settings) as session:
            yield open_backup(session, place, manifest.id)


def choose_readable(shared: Shared, backup: BackupFrames, streams: Sequence[str]) -> tuple[Sequence[str], BrokenLists]:
    """Return the names or patterns of the chosen streams that can be read, and those whose lists are broken. Reports
    which are left out because of their format.
    """
    from jsbackup.repository.read.broken_lists import broken_lists

    for name in backup.left_out(streams):
        shared.output.note(f"stream {name} is of an archive format that is not known here, and left out")
    chosen = backup.streams(streams)
    broken = broken_lists(chosen)
    return [stream.name for stream in chosen if stream.name not in broken] if broken else streams, broken
