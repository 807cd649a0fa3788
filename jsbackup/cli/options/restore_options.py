"""Which streams to restore and how: the common arguments and options of `plan` and `restore`.

The engine is imported when it is called: `--help` and completion load this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.options.latest import Finder, WantedBackup, make_finder
from jsbackup.cli.options.reshaping import RESHAPING
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import GIVEN, Shared, gathered
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.errors import UsageError
from jsbackup.planning.asked import AskedRestore

if TYPE_CHECKING:
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.planning.saved_plan import SavedPlan
    from jsbackup.repository.repository import Repository

__all__ = [
    "CONSUMERS",
    "IF_EXISTS",
    "Asked",
    "live_planning_options",
    "planning_options",
    "refuse_given",
    "refuse_options_beside",
    "runbook_option",
]

# As in `planning/model.py`.
IF_EXISTS = ("fail", "skip", "replace")
CONSUMERS = ("all", "config", "none")

# Not required by click: a saved plan may replace it.
_BACKUP = click.argument("backup", required=False, shell_complete=complete_backup)
_OPTIONS = (
    click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream),
    click.option(
        "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
    ),
    click.option(
        "--if-exists",
        type=click.Choice(IF_EXISTS),
        default="fail",
        show_default=True,
        help="For streams that exist.",
    ),
    click.option(
        "--replace-with-part",
        is_flag=True,
        help="Replace although messages will be lost.",
    ),
    click.option("--replicas", type=WholeNumber(1, 5), metavar="N", help="Number of replicas at the target."),
    click.option(
        "--set",
        "fields",
        multiple=True,
        metavar="[GLOB:]FIELD=JSON",
        help="A field of configurations: max_age=7d, 'LOGS_*:storage=memory', max_age=null.",
    ),
    click.option(
        "--consumers",
        type=click.Choice(CONSUMERS),
        default="all",
        show_default=True,
        help="With state, config only, or none.",
    ),
    click.option(
        "--adapt",
        is_flag=True,
        help="Leave out settings unknown to the target.",
    ),
    click.option(
        "--resume-sources",
        is_flag=True,
        help="Set opt_start_seq of sources to where they were.",
    ),
    *RESHAPING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(AskedRestore):
    """The parameters as typed. `backup` is "" if a saved plan names it, or if there is none."""

    backup: str = ""

    def finder(
        self, shared: Shared, repository: Repository, options: RestoreOptions, saved: SavedPlan | None, *, silent: bool
    ) -> Finder:
        """Return the finder of the backup named here, or by a saved plan. Raises UsageError."""
        from jsbackup.planning.selection.chosen_streams import needed_by

        backup = WantedBackup(
            self.backup if saved is None else saved.backup,
            options.streams,
            options.exclude,
            silent=silent,
            in_part=True,
            needed=needed_by(options),
        )
        return make_finder(shared, repository, backup)

    def options(self) -> RestoreOptions:
        """Return the parsed options. Raises UsageError, and click's own error if a required backup is not named."""
        from jsbackup.planning.typed_options import restore_options

        ctx = click.get_current_context()
        missing = [param for param in ctx.command.params if param.name == "backup" and not self.backup]
        if missing:
            raise click.MissingParameter(ctx=ctx, param=missing[0])
        return restore_options(self)


_NAMES = [field.name for field in fields(Asked)]
_PLANNED = frozenset({*_NAMES, "origins", "tags"})


def _asked(**given: Any) -> Asked:
    return Asked(**given | {"backup": given.get("backup") or ""})


planning_options = gathered("asked", _NAMES, _asked, (_BACKUP, *_OPTIONS))
"""Add BACKUP, streams and options, passed as `asked`."""

live_planning_options = gathered("asked", _NAMES, _asked, _OPTIONS)
"""Add the same for streams from a server instead of a backup."""

F = TypeVar("F", bound=Callable[..., Any])


def runbook_option(text: str) -> Callable[[F], F]:
    """Add `--runbook`, passed as `runbook`; `text` is its text in --help."""
    return click.option("--runbook", type=click.Path(path_type=Path), metavar="FILE", help=text)


def refuse_given(ctx: click.Context, option: str, *others: str) -> None:
    """Raise UsageError if one of the `others` was given, which cannot be combined with this option."""
    _refuse(ctx, option, others, frozenset())


def refuse_options_beside(ctx: click.Context, option: str, *others: str) -> None:
    """Raise UsageError if anything was given that is already in the file of an option, or one of the `others`.

    A saved plan may have been made with the named profile, and replaces its options for planning.
    """
    _refuse(ctx, option, others, _PLANNED)


def _refuse(ctx: click.Context, option: str, others: Collection[str], in_file: Collection[str]) -> None:
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        of_profile = source is ParameterSource.DEFAULT_MAP
        # An optional argument counts as typed if it is empty.
        if name not in (*in_file, *others) or source not in GIVEN or ctx.params.get(name) in (None, (), False):
            continue
        if name in in_file and of_profile and option == "--plan":
            continue
        typed = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
        typed += " of the profile" if of_profile else ""
        if name in others:
            raise UsageError(f"{typed} makes no sense with {option}", hint="Leave it out.")
        raise UsageError(
            f"{typed} makes no sense with {option}, which says it already", hint="Leave it out, or write another file."
        )
