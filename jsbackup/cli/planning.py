"""What says which streams to restore and how: arguments and options that `plan` and `restore` share.

The engine is imported when it is called: `--help` and completion load this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.command import GIVEN
from jsbackup.cli.completion import complete_backup
from jsbackup.cli.latest import Choosing, choosing_options, parse_choosing
from jsbackup.cli.reshaping import RESHAPING, rename_options, reshape_options
from jsbackup.config import parse_glob
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.engine.planned import RestoreOptions

__all__ = [
    "CONSUMERS",
    "IF_EXISTS",
    "WIRES",
    "Asked",
    "live_planning_options",
    "planning_options",
    "refuse_beside",
    "runbook_option",
    "window_option",
]

# As `engine/planned.py` has them; of the ways to send only those that one can ask for.
IF_EXISTS = ("fail", "skip", "replace")
CONSUMERS = ("all", "config", "none")
WIRES = ("auto", "v1", "v2")

_BACKUP = (
    # Not required by click: a saved plan stands in for it.
    click.argument("backup", required=False, shell_complete=complete_backup),
    click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]..."),
    choosing_options,
)
_LIVE = (click.argument("streams", nargs=-1, required=True, metavar="STREAM_OR_GLOB..."),)
_OPTIONS = (
    click.option("--exclude", multiple=True, metavar="GLOB", help="Leave these streams out."),
    click.option(
        "--if-exists",
        type=click.Choice(IF_EXISTS),
        default="fail",
        show_default=True,
        help="What to do about a stream that is there; replace keeps it until the new one is proved.",
    ),
    click.option(
        "--replace-with-part",
        is_flag=True,
        help="Let a cut, a filter or what --partial leaves replace a stream that has more, which is refused otherwise.",
    ),
    click.option("--replicas", type=click.IntRange(1, 5), help="Number of replicas at the target."),
    click.option("--storage", type=click.Choice(["file", "memory"]), help="Storage at the target."),
    click.option("--placement-cluster", metavar="NAME", help="Cluster that the target places streams in."),
    click.option(
        "--placement-tag", multiple=True, metavar="TAG", help="Tag of the servers that streams are placed on."
    ),
    click.option(
        "--set",
        "fields",
        multiple=True,
        metavar="FIELD=JSON",
        help="Any other field of a stream's configuration, such as max_age=null; times in nanoseconds.",
    ),
    click.option(
        "--consumers",
        type=click.Choice(CONSUMERS),
        default="all",
        show_default=True,
        help="all: with their state; config: starting anew; none: without.",
    ),
    click.option(
        "--wire",
        type=click.Choice(WIRES),
        default="auto",
        show_default=True,
        help="Archive format to send; auto takes the faster one that the target can take.",
    ),
    click.option(
        "--adapt",
        is_flag=True,
        help="Leave out settings that the target's release does not know, where no message that is there needs them.",
    ),
    click.option(
        "--resume-sources",
        is_flag=True,
        help="Let streams with sources go on where they had got to, although what they copied is gone from them. This "
        "sets opt_start_seq of those sources.",
    ),
    *RESHAPING,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters as they were typed. `backup` is "" where a saved plan names it, or where there is none."""

    backup: str
    streams: tuple[str, ...]
    exclude: tuple[str, ...]
    if_exists: str
    replace_with_part: bool
    replicas: int | None
    storage: str | None
    placement_cluster: str | None
    placement_tag: tuple[str, ...]
    fields: tuple[str, ...]
    consumers: str
    wire: str
    adapt: bool
    resume_sources: bool
    rename: tuple[str, ...]
    rename_prefix: str | None
    map_subject: tuple[str, ...]
    until: str | None
    since: str | None
    subject: tuple[str, ...]
    mask: tuple[str, ...]
    unmaskable: str
    mask_may_miss: bool
    allow_empty: bool
    origins: tuple[str, ...]
    tags: tuple[str, ...]

    def choosing(self) -> Choosing:
        """What says which backup `latest` is. Raises UsageError."""
        return parse_choosing(self.backup or None, self.origins or (), self.tags or ())

    def options(self) -> RestoreOptions:
        """What they come to. Raises UsageError, and click's own error if a backup has to be named and is not."""
        from jsbackup.engine.planned import Consumers, IfExists, RestoreOptions, Wire

        ctx = click.get_current_context()
        missing = [param for param in ctx.command.params if param.name == "backup" and not self.backup]
        if missing:
            raise click.MissingParameter(ctx=ctx, param=missing[0])
        return RestoreOptions(
            streams=tuple(map(parse_glob, self.streams)),
            exclude=tuple(map(parse_glob, self.exclude)),
            if_exists=IfExists(self.if_exists),
            replace_with_part=self.replace_with_part,
            wire=Wire(self.wire),
            adapt=self.adapt,
            mask_may_miss=self.mask_may_miss,
            allow_empty=self.allow_empty,
            resume_sources=self.resume_sources,
            consumers=Consumers(self.consumers),
            replicas=self.replicas,
            storage=self.storage,
            placement_cluster=self.placement_cluster,
            placement_tags=self.placement_tag,
            fields=self._overrides(),
            renames=rename_options(asdict(self)),
            reshape=reshape_options(asdict(self)),
        )

    def _overrides(self) -> dict[str, Any]:
        from jsbackup.engine.overrides import parse_override

        found: dict[str, Any] = {}
        for text in self.fields:
            name, value = parse_override(text)
            if name in found:
                raise UsageError(f"--set {name} is given twice")
            found[name] = value
        for option, name, given in (("replicas", "num_replicas", self.replicas), ("storage", "storage", self.storage)):
            if given is not None and name in found:
                raise UsageError(f"--{option} and --set {name} exclude each other")
        return found


_NAMES = [field.name for field in fields(Asked)]


Parameter = Callable[[Callable[..., int]], Callable[..., int]]


def planning_options(command: Callable[..., int]) -> Callable[..., int]:
    """BACKUP, streams and options, given to the command as `asked`."""
    return _asked(command, (*_BACKUP, *_OPTIONS))


def live_planning_options(command: Callable[..., int]) -> Callable[..., int]:
    """The same for streams that come from a server, not from a backup."""
    return _asked(command, (*_LIVE, *_OPTIONS))


def _asked(command: Callable[..., int], parameters: Sequence[Parameter]) -> Callable[..., int]:
    @wraps(command)
    def collected(**values: Any) -> int:
        asked = {name: values.pop(name, None) for name in _NAMES}
        return command(asked=Asked(**asked | {"backup": asked["backup"] or ""}), **values)

    for parameter in reversed(parameters):
        parameter(collected)
    return collected


F = TypeVar("F", bound=Callable[..., Any])


def runbook_option(text: str) -> Callable[[F], F]:
    """`--runbook`, given to the command as `runbook`; `text` is what --help says of it."""
    return click.option("--runbook", type=click.Path(path_type=Path), metavar="FILE", help=text)


window_option = click.option(
    "--window",
    metavar="BYTES",
    help="Bytes on the way, unacknowledged; by default 4MiB, or up to 16MiB where a round trip takes long.",
)


def refuse_beside(ctx: click.Context, option: str, *others: str) -> None:
    """Raise UsageError if anything was given that the file of an option says already, or one of the `others`.

    A saved plan may have been made with the profile that is named; it stands for what that says of planning.
    """
    for parameter in ctx.command.params:
        name = parameter.name or ""
        source = ctx.get_parameter_source(name)
        planned = name in _NAMES and option == "--plan" and source is ParameterSource.DEFAULT_MAP
        if name in (*_NAMES, *others) and source in GIVEN and not planned:
            # An argument that may be left out counts as typed where it is empty.
            if ctx.params[name] in (None, ()):
                continue
            typed = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.human_readable_name
            if source is ParameterSource.DEFAULT_MAP:
                typed += " of the profile"
            if name in others:
                raise UsageError(f"{typed} makes no sense with {option}", hint="Leave it out.")
            raise UsageError(
                f"{typed} makes no sense with {option}, which says it already",
                hint="Leave it out, or write another file.",
            )
