"""Find the backup for the argument BACKUP of commands: an id, the start of one, or `latest`
(`repository/read/latest.py`).

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import CommandContext, Shared
from jsbackup.config import Glob, read_config
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.repository.manifest import Manifest, Selection, Source
    from jsbackup.repository.read.latest import Choice
    from jsbackup.repository.read.needed import Needed
    from jsbackup.repository.read.search import BackupSearch
    from jsbackup.repository.repository import Repository

__all__ = [
    "LATEST",
    "Finder",
    "WantedBackup",
    "find_backup",
    "find_ids",
    "make_finder",
    "notes_json",
]

LATEST = "latest"  # as in `repository/layout/`


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the backup of a command (`repository/read/search.py`), and reports which it is and what else there is.

    It may be called from a worker thread, with the connected source, or without.
    """

    shared: Shared
    search: BackupSearch
    silent: bool = False  # the result of the command says which backup it is

    def __call__(self, source: Source | None = None) -> Manifest:
        """Find the backup. Raises the errors of `Repository.choose`."""
        from jsbackup.repository.origin import origin_of

        manifest, output = self.search(source), self.shared.output
        if self.search.is_latest and not self.silent:
            of_it = f", of {origin_of(manifest.source).words}" if "imported" not in manifest.source.extra else ""
            output.note(f"latest is {manifest.id}, {manifest.result}, made {manifest.created[:19]}Z{of_it}")
        for note in self.choice.notes:
            output.note(f"note: {note}")
        return manifest

    def early(self) -> Finder:
        """Return itself, to be called with the source. A backup named by its id is looked up now, with the same
        errors.
        """
        if not self.search.is_latest:
            self()
        return self

    @property
    def choice(self) -> Choice:
        """The backup that was found, and what was found out about others."""
        return self.search.choice


@dataclass(frozen=True, slots=True)
class WantedBackup:
    """The backup that a command works on: what was typed for it, and which streams it must have.

    `silent`: the result of the command says which backup it is. Unless `all_needed`, named streams may be in other
    backups; `as_newest`, that some of them were deleted does not lead to an older one. A manifest is read `in_part` if
    so asked, and for the `needed` streams (`repository/read/needed.py`).
    """

    text: str
    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    silent: bool = False
    all_needed: bool = True
    as_newest: bool = False
    in_part: bool = False
    needed: Needed = ()


def make_finder(shared: Shared, repository: Repository, backup: WantedBackup) -> Finder:
    """Return a `Finder`, which considers `--origin` and `--tag`, and what the named profile backs up."""
    from jsbackup.repository.read.search import BackupSearch
    from jsbackup.repository.read.sources import Wanted

    choosing = shared.choosing
    wanted = Wanted(
        streams=backup.streams,
        exclude=backup.exclude,
        all_needed=backup.all_needed and not backup.as_newest,
        as_newest=backup.as_newest,
        origins=choosing.origins,
        tags=choosing.tags,
        choosable=choosing.given,
        profile=shared.profile,
        usual=_usual(shared) if backup.text == LATEST and shared.profile else None,
    )
    search = BackupSearch(repository, backup.text, wanted, in_part=backup.in_part, needed=backup.needed)
    return Finder(shared, search, backup.silent)


def find_backup(shared: Shared, repository: Repository, backup: WantedBackup) -> Manifest:
    """Return the backup for a command without a server. Raises the errors of `Repository.choose`."""
    return make_finder(shared, repository, backup)()


def notes_json(finder: Finder) -> JsonObject:
    """Return the part of a document about the backup: how it was chosen, and what is in other backups."""
    choice = finder.choice
    return {
        "notes": list(choice.notes),
        "elsewhere": [{"stream": one.stream, "backup": one.backup, "created": one.created} for one in choice.elsewhere],
    }


def find_ids(shared: Shared, repository: Repository, texts: Sequence[str], *, newest: bool = False) -> list[str]:
    """Return the ids of named backups. Raises the errors of `Repository.choose`.

    With `newest`, `latest` must also be the newest backup of all: UsageError otherwise.
    """
    found = {text: repository.resolve(text) for text in dict.fromkeys(texts) if text != LATEST}
    if LATEST in texts:
        finder = make_finder(shared, repository, WantedBackup(LATEST, in_part=True))
        found[LATEST] = finder().id
        last = repository.backups()[-1]
        if newest and found[LATEST] != last:
            raise UsageError(
                f"'latest' would be {found[LATEST]}, but {last} is newer",
                hint="Name the backup that you mean by its id.",
            )
    return [found[text] for text in texts]


def _usual(shared: Shared) -> Selection | None:
    """Return what a backup with the profile selects, from the file. None if that cannot be read."""
    from jsbackup.repository.manifest import Selection

    ctx = click.get_current_context()
    if not isinstance(ctx, CommandContext) or not isinstance(ctx.command, Command) or shared.config is None:
        return None
    profile = ctx.command.read_profile(ctx, read_config(shared.config), shared.profile, table=["backup"])
    values = profile.values("backup")
    if profile.problems:
        return None
    streams, exclude = (tuple(map(str, values.get(name) or ())) for name in ("streams", "exclude"))
    return Selection(streams, exclude)
