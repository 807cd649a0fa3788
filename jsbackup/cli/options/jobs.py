"""A backup opened for a job on its messages, in this process or on Spark.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.spark import Where, place_given, settings_of
from jsbackup.cli.parsing.context import Shared

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import WantedBackup
    from jsbackup.pipeline.messages.backup_frames import BackupFrames
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.tasks.runner import TaskRunner
    from jsbackup.repository.manifest import Manifest, StreamBackup
    from jsbackup.repository.read.broken_lists import BrokenLists
    from jsbackup.repository.repository import Repository

__all__ = ["OpenedJob", "choose_readable", "job_runner", "names_of", "open_job"]


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """An opened backup, and what runs tasks on it."""

    repository: Repository
    backup: ChosenBackup
    runner: TaskRunner

    def on_spark(self, streams: Sequence[StreamBackup] | None = None) -> BackupFrames:
        """Return its messages, or those of some streams, as DataFrames of the session that runs tasks."""
        from jsbackup.pipeline.messages.backup_frames import BackupFrames
        from jsbackup.pipeline.tasks.tasks import OnSpark

        assert isinstance(self.runner, OnSpark), "it was asked for"
        manifest = self.backup.manifest
        if streams is not None:
            manifest = replace(manifest, streams=tuple(streams))
        return BackupFrames(self.runner.session, self.backup.place, manifest)


@contextmanager
def job_runner(where: Where | None, place: RepositoryRef, repository: Repository) -> Iterator[TaskRunner]:
    """Provide what runs tasks on the repository, which is open at `place`: Spark, which is started, or threads."""
    from jsbackup.pipeline.session.repository_ref import lent

    with lent(place, repository):
        if where is None:
            from jsbackup.pipeline.tasks.runner import THREADS, InProcess

            yield InProcess(THREADS)
            return
        from jsbackup.pipeline.session.session import open_session
        from jsbackup.pipeline.tasks.tasks import OnSpark

        with open_session(settings_of(where)) as session:
            yield OnSpark(session)


@contextmanager
def open_job(
    shared: Shared,
    purpose: str,
    wanted: WantedBackup,
    *,
    where: Where | None,
    look: Callable[[ChosenBackup], object] = lambda backup: None,
) -> Iterator[OpenedJob]:
    """Open a backup for a job on its messages, under a lease. Errors in the command, and those of `look`, are reported
    before Spark starts.
    """
    from jsbackup.cli.options.latest import find_backup
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.repository.read.broken_lists import refuse_unreadable

    place = place_given(shared)
    repository = place.open()
    with reading(shared, repository, purpose):
        manifest = find_backup(shared, repository, wanted)
        check_readable(repository)
        opened = ChosenBackup(place, manifest)
        refuse_unreadable(opened.streams(names_of(wanted, manifest)))
        look(opened)
        with job_runner(where, place, repository) as runner:
            yield OpenedJob(repository, opened, runner)


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
