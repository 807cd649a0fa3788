"""The backup that a command works on: found for its argument BACKUP, which is an id, the start of one, or `latest`
(`repository/read/latest.py`), and opened for a job on its messages, in this process or on Spark. And what the named
profile says about other backups: which streams they have, which of them `forget` keeps.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import click

from jsbackup.cli.options.opening import Where, place_given, reading, settings_of
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import CommandContext, Shared
from jsbackup.cli.parsing.typed_values import parse_tag_rule
from jsbackup.config import Glob, parse_duration, read_config
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.profiles.profiles import Profile
    from jsbackup.pipeline.messages.backup_frames import BackupFrames
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import RepositoryRef
    from jsbackup.pipeline.tasks.runner import TaskRunner
    from jsbackup.repository.keep.retention import Policy
    from jsbackup.repository.manifest import Manifest, Selection, StreamBackup
    from jsbackup.repository.manifest_json import Needed
    from jsbackup.repository.read.latest import BackupSearch
    from jsbackup.repository.read.losses import BrokenLists
    from jsbackup.repository.repository import Repository

__all__ = [
    "LATEST",
    "OpenedJob",
    "WantedBackup",
    "choose_readable",
    "find_backup",
    "find_ids",
    "job_runner",
    "make_finder",
    "notes_json",
    "open_job",
    "policy_in_use",
]

LATEST = "latest"  # as in `repository/layout.py`


@dataclass(frozen=True, slots=True)
class WantedBackup:
    """The backup that a command works on: what was typed for it, and which streams it must have.

    `silent`: the result of the command says which backup it is. Unless `all_needed`, named streams may be in other
    backups; `as_newest`, that some of them were deleted does not lead to an older one. A manifest is read `in_part` if
    so asked, and for the `needed` streams (`repository/manifest_json.py`).
    """

    text: str
    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    silent: bool = False
    all_needed: bool = True
    as_newest: bool = False
    in_part: bool = False
    needed: Needed = ()


def make_finder(shared: Shared, repository: Repository, backup: WantedBackup) -> BackupSearch:
    """Return a search that considers `--origin` and `--tag`, and what the named profile backs up, and reports which
    backup it is and what else there is.
    """
    from jsbackup.repository.read.latest import BackupSearch, Wanted

    choosing = shared.choosing
    wanted = Wanted(
        streams=backup.streams,
        exclude=backup.exclude,
        all_needed=backup.all_needed,
        as_newest=backup.as_newest,
        origins=choosing.origins,
        tags=choosing.tags,
        choosable=choosing.given,
        profile=shared.profile,
        usual=_usual(shared) if backup.text == LATEST and shared.profile else None,
    )
    report = partial(_report, shared, silent=backup.silent)
    return BackupSearch(repository, backup.text, wanted, in_part=backup.in_part, needed=backup.needed, report=report)


def _report(shared: Shared, search: BackupSearch, *, silent: bool) -> None:
    from jsbackup.repository.origin import origin_of

    manifest, output = search.choice.manifest, shared.output
    if search.is_latest and not silent:
        of_it = f", of {origin_of(manifest.source).words}" if manifest.source.imported is None else ""
        output.note(f"latest is {manifest.id}, {manifest.result}, made {manifest.created[:19]}Z{of_it}")
    for note in search.choice.notes:
        output.note(f"note: {note}")


def find_backup(shared: Shared, repository: Repository, backup: WantedBackup) -> Manifest:
    """Return the backup for a command without a server. Raises the errors of `Repository.choose`."""
    return make_finder(shared, repository, backup)()


def notes_json(finder: BackupSearch) -> JsonObject:
    """Return the part of a document about the backup: how it was chosen, and what is in other backups."""
    choice = finder.choice
    return {
        "notes": list(choice.notes),
        "elsewhere": [
            {"stream": other.stream, "backup": other.backup, "created": other.created} for other in choice.elsewhere
        ],
    }


def find_ids(shared: Shared, repository: Repository, texts: Sequence[str], *, newest: bool = False) -> list[str]:
    """Return the ids of named backups. Raises the errors of `Repository.choose`.

    With `newest`, `latest` must also be the newest backup of all: UsageError otherwise.
    """
    ids = {text: repository.resolve(text) for text in dict.fromkeys(texts) if text != LATEST}
    if LATEST in texts:
        finder = make_finder(shared, repository, WantedBackup(LATEST, in_part=True))
        ids[LATEST] = finder().id
        last = repository.backups()[-1]
        if newest and ids[LATEST] != last:
            raise UsageError(
                f"'latest' would be {ids[LATEST]}, but {last} is newer",
                hint="Name the backup that you mean by its id.",
            )
    return [ids[text] for text in texts]


def _usual(shared: Shared) -> Selection | None:
    """Return what a backup with the profile selects, from the file. None if that cannot be read."""
    from jsbackup.repository.manifest import Selection

    profile = _profile(click.get_current_context(), shared, "backup")
    if profile is None or profile.problems:
        return None
    values = profile.values("backup")
    streams, exclude = (tuple(map(str, values.get(name) or ())) for name in ("streams", "exclude"))
    return Selection(streams, exclude)


def _profile(ctx: click.Context, shared: Shared, command: str) -> Profile | None:
    """Return what the profile of the running command says about another one. None without a profile."""
    if not isinstance(ctx, CommandContext) or not isinstance(ctx.command, Command):
        return None
    if shared.config is None or not shared.profile:
        return None
    return ctx.command.read_profile(ctx, read_config(shared.config), shared.profile, table=[command])


def policy_in_use(ctx: click.Context, shared: Shared) -> Policy | None:
    """Return what `forget` keeps by the profile that a command runs with; None without one, and if it does not say.

    Raises UsageError for a wrong value.
    """
    from jsbackup.repository.keep.retention import Policy

    profile = _profile(ctx, shared, "forget")
    if profile is None:
        return None
    if profile.problems:
        raise profile.problems[0]
    values = profile.values("forget")
    within = values.get("keep_within")

    def number(name: str) -> int:
        return int(values.get(f"keep_{name}") or 0)

    policy = Policy(
        last=number("last"),
        hourly=number("hourly"),
        daily=number("daily"),
        weekly=number("weekly"),
        monthly=number("monthly"),
        yearly=number("yearly"),
        within_seconds=parse_duration(str(within)) if within else 0,
        tags=tuple(parse_tag_rule(str(tag)) for tag in values.get("tags") or ()),
    )
    return None if policy.is_empty else policy


# --- jobs ---


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
    from jsbackup.pipeline.messages.chosen import ChosenBackup
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.repository.read.losses import refuse_unreadable

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
    matching = [glob for glob in wanted.streams if any(glob.matches(stream.name) for stream in manifest.streams)]
    return tuple(glob.pattern for glob in matching) or names


def choose_readable(shared: Shared, backup: ChosenBackup, streams: Sequence[str]) -> tuple[Sequence[str], BrokenLists]:
    """Return the names or patterns of the chosen streams that can be read, and those whose lists are broken. Reports
    which are left out because of their format.
    """
    from jsbackup.repository.read.losses import broken_lists

    for reason in backup.left_out(streams):
        shared.output.note(f"{reason}, and left out")
    chosen = backup.streams(streams)
    broken = broken_lists(chosen)
    return [stream.name for stream in chosen if stream.name not in broken] if broken else streams, broken
