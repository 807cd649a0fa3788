"""A backup opened for a job on its messages, on Spark or in this process, and the choice between the two.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.spark import SparkUse, Where, place_given, settings_of
from jsbackup.cli.output.output import format_bytes
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import WantedBackup
    from jsbackup.pipeline.messages.backup_frames import BackupFrames
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.tasks.runner import TaskRunner
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.read.broken_lists import BrokenLists
    from jsbackup.repository.repository import Repository

__all__ = [
    "LEAST_SPARK_BYTES",
    "LEAST_SPARK_LINES_BYTES",
    "OpenedJob",
    "SparkChoice",
    "check_spark_options",
    "choose_readable",
    "choose_spark",
    "job_runner",
    "names_of",
    "open_job",
    "open_with_spark",
]

# Raw bytes of messages from which `--spark auto` takes Spark, which starts in ten seconds. Measured on two cores,
# seconds for a gigabyte here and on Spark: tables of Parquet 6 and 10, statistics 7 and 13, so there only more cores
# are faster; JSON lines, which Python makes one after the other, 25 and 17.
LEAST_SPARK_BYTES = 16 << 30
LEAST_SPARK_LINES_BYTES = 2 << 30

# A thread holds about 100 MiB: an object, its messages, and what is made of them.
_MOST_THREADS = 2


# Raw bytes up to which a job on an embedded Spark is short: what its Java saves by compiling less.
_SHORT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SparkChoice:
    """Whether a job runs on Spark, and why. `is_short` as in `SparkSettings`."""

    spark: bool
    why: str
    is_short: bool = False

    def json(self, where: Where) -> JsonObject:
        """The member `spark` of documents, when the job is done."""
        return {"used": self.spark, "why": self.why, **where.work_json}

    @property
    def words(self) -> str:
        return f"runs {'on' if self.spark else 'without'} Spark: {self.why}"


def check_spark_options(where: Where) -> None:
    """Raise the errors of `settings_of`, if options of Spark are given, and UsageError if Spark must not be used."""
    if where.use is SparkUse.NEVER and where.given:
        raise UsageError(
            "--spark never contradicts the other options of Spark",
            hint="Leave out --spark-master, --spark-remote and --spark-conf.",
        )
    if where.use in (SparkUse.ALWAYS, SparkUse.REQUIRED) or where.given:
        settings_of(where)


def choose_spark(where: Where, raw_bytes: int, least_bytes: int = LEAST_SPARK_BYTES) -> SparkChoice:
    """Decide where a job on `raw_bytes` of messages runs, for which Spark is faster from `least_bytes` on."""
    is_short = raw_bytes <= _SHORT_BYTES
    if where.use is not SparkUse.AUTO:
        return SparkChoice(where.use is not SparkUse.NEVER, f"--spark {where.use}", is_short)
    if where.given:
        return SparkChoice(True, "an option of Spark is given", is_short)
    size, limit = format_bytes(raw_bytes), format_bytes(least_bytes)
    if raw_bytes < least_bytes:
        return SparkChoice(False, f"{size} of messages are less than {limit}")
    if find_spec("pyspark") is None:
        return SparkChoice(False, f"Spark, faster for {size} of messages, is not installed")
    from jsbackup.pipeline.session.java import find_java

    try:
        find_java(environment())
    except UnsupportedError as error:
        return SparkChoice(False, error.message)
    return SparkChoice(True, f"{size} of messages are {limit} or more", is_short)


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """An opened backup. `frames` are its messages on Spark, None if the job runs in this process."""

    repository: Repository
    backup: ChosenBackup
    choice: SparkChoice
    runner: TaskRunner
    frames: BackupFrames | None

    @property
    def threads(self) -> int:
        """The threads of a job in this process."""
        return _threads()


def _threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)


@contextmanager
def job_runner(choice: SparkChoice, where: Where, place: RepositoryRef, repository: Repository) -> Iterator[TaskRunner]:
    """Start Spark if it was chosen, and provide what runs tasks on the repository, which is open at `place`."""
    from jsbackup.pipeline.session.repository_ref import lent

    if not choice.spark:
        from jsbackup.pipeline.tasks.runner import InProcess

        with lent(place, repository):
            yield InProcess(_threads())
        return
    settings = replace(settings_of(where), is_short=choice.is_short)
    from jsbackup.pipeline.session.session import open_session
    from jsbackup.pipeline.tasks.tasks import OnSpark

    with open_session(settings) as session:
        yield OnSpark(session)


@contextmanager
def open_job(
    shared: Shared,
    purpose: str,
    wanted: WantedBackup,
    *,
    where: Where,
    lock_timeout: str,
    least_bytes: int = LEAST_SPARK_BYTES,
    raw_bytes: Callable[[ChosenBackup], int] | None = None,
) -> Iterator[OpenedJob]:
    """Open a backup for a job on its messages, under a lease. Errors in the command are reported before Spark starts,
    and before the job, where it runs and why, if there was a choice.

    `raw_bytes` tells how much the job will read, if that is not all of the chosen streams.
    """
    check_spark_options(where)
    from jsbackup.cli.options.latest import find_backup
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.repository.read.broken_lists import refuse_unreadable

    place = place_given(shared)
    repository = place.open()
    with reading(shared, repository, purpose, lock_timeout), ExitStack() as stack:
        manifest = find_backup(shared, repository, wanted)
        check_readable(repository)
        opened, frames = ChosenBackup(place, manifest), None
        chosen = opened.streams(names_of(wanted, manifest))
        refuse_unreadable(chosen)
        size = sum(stream.captured.bytes for stream in chosen) if raw_bytes is None else raw_bytes(opened)
        choice = choose_spark(where, size, least_bytes)
        if where.use is not SparkUse.REQUIRED:
            shared.output.note(choice.words)
        runner = stack.enter_context(job_runner(choice, where, place, repository))
        if choice.spark:
            from jsbackup.pipeline.messages.backup_frames import open_backup
            from jsbackup.pipeline.tasks.tasks import OnSpark

            assert isinstance(runner, OnSpark), "it was chosen"
            opened = frames = open_backup(runner.session, place, manifest.id)
        yield OpenedJob(repository, opened, choice, runner, frames)


@contextmanager
def open_with_spark(
    shared: Shared, purpose: str, wanted: WantedBackup, *, where: Where, lock_timeout: str
) -> Iterator[BackupFrames]:
    """Open a backup for a job that only Spark can do, as `open_job`."""
    where = replace(where, use=SparkUse.REQUIRED)
    with open_job(shared, purpose, wanted, where=where, lock_timeout=lock_timeout) as job:
        assert job.frames is not None, "it runs on Spark"
        yield job.frames


def names_of(wanted: WantedBackup, manifest: Manifest) -> tuple[str, ...]:
    """Return the names and patterns of the streams as they were typed, without those that `latest` may lack."""
    names = tuple(glob.pattern for glob in wanted.streams)
    if not wanted.as_newest:
        return names
    there = [glob for glob in wanted.streams if any(glob.matches(stream.name) for stream in manifest.streams)]
    return tuple(glob.pattern for glob in there) or names


def choose_readable(shared: Shared, backup: ChosenBackup, streams: Sequence[str]) -> tuple[Sequence[str], BrokenLists]:
    """Return the names or patterns of the chosen streams that can be read, and those whose lists are broken. Reports
    which are left out because of their format.
    """
    from jsbackup.repository.read.broken_lists import broken_lists

    for reason in backup.left_out(streams):
        shared.output.note(f"{reason}, and left out")
    chosen = backup.streams(streams)
    broken = broken_lists(chosen)
    return [stream.name for stream in chosen if stream.name not in broken] if broken else streams, broken
