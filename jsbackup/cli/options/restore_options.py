"""What changes streams, and which of them to restore and how: the options of `plan`, `restore` and `clone`, of which
`copy`, `export` and others have some.

The engine is imported when it is called: `--help` and completion load this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.options.backup_choice import WantedBackup, make_finder
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import GIVEN, Shared, gathered
from jsbackup.cli.parsing.typed_values import WholeNumber, understand_time
from jsbackup.config import environment, mask_secret
from jsbackup.config.secrets import expand_path
from jsbackup.errors import UsageError
from jsbackup.planning.asked import AskedChanges, AskedRestore

if TYPE_CHECKING:
    from jsbackup.planning.model import RestoreOptions
    from jsbackup.planning.saved_plan import SavedPlan
    from jsbackup.repository.read.latest import BackupSearch
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.reshape import Reshape

__all__ = [
    "CONDITIONS",
    "CONSUMERS",
    "IF_EXISTS",
    "NEWEST",
    "UNMASKABLE",
    "Asked",
    "about_messages",
    "live_planning_options",
    "mask_key_name",
    "mask_key_option",
    "planning_options",
    "refuse_given",
    "refuse_obfuscation",
    "refuse_options_beside",
    "reshaping_options",
    "runbook_option",
    "with_key_beside",
]

F = TypeVar("F", bound=Callable[..., Any])

_KEY_SUFFIX = ".keys.json"  # of the key file beside an obfuscated copy, as with the nats CLI

UNMASKABLE = ("refuse", "drop", "keep")  # as in `transforms/mask.py`

CONDITIONS = (
    click.option(
        "--exclude-subject",
        multiple=True,
        metavar="FILTER",
        help="Leave messages of these subjects out.",
    ),
    click.option(
        "--header",
        multiple=True,
        metavar="NAME[:VALUE]",
        help="Keep messages with this header only.",
    ),
    click.option(
        "--payload-match",
        multiple=True,
        metavar="REGEX",
        help="Keep messages whose payload this matches.",
    ),
)
"""The options of `Filters` except --subject."""

NEWEST = (
    click.option(
        "--last-per-subject",
        type=WholeNumber(1),
        metavar="N",
        help="Keep the newest N of each subject.",
    ),
    click.option(
        "--kv-compact",
        is_flag=True,
        help="Keep the newest revision of keys not deleted.",
    ),
)
"""The options of a `NewestRule`."""

RESHAPING = (
    click.option(
        "--rename",
        multiple=True,
        metavar="OLD=NEW",
        help="Another name; KV_old=KV_new for a bucket; '*=test_*' for all.",
    ),
    click.option(
        "--map-subject",
        multiple=True,
        metavar="'FROM=>TO'",
        help="Change subjects: 'orders.*=>old.orders.$1'.",
    ),
    click.option(
        "--until",
        metavar="TIME_OR_SEQ",
        callback=understand_time,
        help="Keep messages up to and including this moment: 'yesterday 14:02', '2h ago', or a sequence.",
    ),
    click.option(
        "--since",
        metavar="TIME_OR_SEQ",
        callback=understand_time,
        help="Keep messages from this moment or sequence on.",
    ),
    click.option(
        "--subject",
        multiple=True,
        metavar="FILTER",
        help="Keep messages of these subjects only.",
    ),
    *CONDITIONS,
    *NEWEST,
    click.option(
        "--renumber",
        is_flag=True,
        help="Number the kept messages from 1.",
    ),
    click.option(
        "--mask",
        multiple=True,
        metavar="FILTER:WHAT=HOW",
        help="Mask values: '>:$.user.email=hash', '>:header(Name)=redact', '>:payload=zero|drop'.",
    ),
    click.option(
        "--unmaskable",
        type=click.Choice(UNMASKABLE),
        default="refuse",
        show_default=True,
        help="Messages that are not JSON.",
    ),
    click.option(
        "--obfuscate",
        is_flag=True,
        help="Hash names and subjects, zero payloads.",
    ),
    click.option(
        "--obfuscation-key",
        metavar="FILE",
        help="Key file of --obfuscate, made if not there.",
    ),
    click.option(
        "--allow-nothing",
        is_flag=True,
        help="Allow what is asked for to match nothing.",
    ),
)

_MASK_KEY = click.option(
    "--mask-key-file", metavar="FILE", help="Key for hashes, also a pipe [env: JSBACKUP_MASK_KEY_FILE]."
)


def _key_name(mask_key_file: str | None) -> tuple[tuple[str, str | bytes], ...]:
    if not mask_key_file:
        return ()
    file = expand_path(mask_key_file, environment()).absolute()
    # Path.is_file() raises for a name that is too long, and for a folder that may not be looked into.
    if os.path.isfile(file) or not os.path.exists(file):  # noqa: PTH110, PTH113
        return (("mask_key_file", str(file)),)
    if click.get_current_context().params.get("spark") is not None:
        raise UsageError(
            "--mask-key-file: a pipe can be read once, and each process of Spark reads the key",
            hint="Name a file, or set JSBACKUP_MASK_KEY where they run.",
        )
    return (("mask_key_file", mask_secret({"mask_key_file": str(file)}, environment())),)


def _key(mask_key_file: str | None) -> bytes:
    return mask_secret(dict(_key_name(mask_key_file)), environment())


mask_key_option = gathered("mask_secret", ["mask_key_file"], _key, [_MASK_KEY])
"""Add the option for the key for hashes, passed as `mask_secret`; b"" if not given."""

mask_key_name = gathered("mask_key", ["mask_key_file"], _key_name, [_MASK_KEY])
"""Add the same option, passed as `mask_key`: its name and value if given, for processes that read the key. The value is
the key itself if the file is a pipe, which can be read once.
"""


def about_messages(asked: AskedChanges) -> list[str]:
    """Return the options that were given and are about messages alone."""
    others = {"rename", "map_subject", "unmaskable", "obfuscate", "obfuscation_key", "allow_nothing"}
    given = asdict(asked)
    return [
        f"--{name.replace('_', '-')}" for name in given if name not in others and given[name] not in (None, (), False)
    ]


def refuse_obfuscation(reshape: Reshape, what: str) -> None:
    """Raise UsageError if --obfuscate was given, which cannot be combined with that."""
    if reshape.obfuscation is not None:
        raise UsageError(
            f"--obfuscate is not possible with {what}",
            hint="Make an obfuscated backup with 'jsbackup copy', and use that.",
        )


reshaping_options = gathered("asked", [field.name for field in fields(AskedChanges)], AskedChanges, RESHAPING)
"""Add all options of `RESHAPING`, passed as `asked`."""


def with_key_beside(asked: AskedChanges, directory: str) -> AskedChanges:
    """Return the options with a key file beside `directory`, if they obfuscate what is written there and name none.

    Raises UsageError if that file exists.
    """
    if not asked.obfuscate or asked.obfuscation_key is not None or "://" in directory:
        return asked
    key = f"{directory.rstrip('/')}{_KEY_SUFFIX}"
    if os.path.lexists(key):
        raise UsageError(
            f"the key file {key} exists already",
            hint="Name it with --obfuscation-key to use it again, or name another one.",
        )
    return replace(asked, obfuscation_key=key)


# --- restores ---

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
    ) -> BackupSearch:
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
