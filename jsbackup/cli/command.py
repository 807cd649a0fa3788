"""Options that every command shares, wherever they stand.

Global and server options may be given before or after the command's name; the one after wins, both win over a profile,
and all of it over the environment. A command's function gets them as one `Shared` value, so that no command repeats the
list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from jsbackup.cli.hooks import HOOK_OPTIONS
from jsbackup.cli.manual import MANUAL, write_page
from jsbackup.cli.options import GLOBAL_OPTIONS, KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS
from jsbackup.cli.output import Output
from jsbackup.config import ConfigFile, default_config_path, environment, expand_path, read_config
from jsbackup.errors import JsBackupError, UsageError

if TYPE_CHECKING:
    from jsbackup.cli.profiles import Profile

__all__ = [
    "GIVEN",
    "GLOBAL_OPTIONS",
    "INTERRUPTED",
    "KEY_OPTIONS",
    "S3_OPTIONS",
    "SERVER_OPTIONS",
    "Command",
    "CommandContext",
    "LastOutput",
    "Shared",
    "jobs_option",
    "merge_shared",
    "write_options",
]

INTERRUPTED = "interrupted; what was committed before is untouched"

# Where the value of a parameter comes from if somebody chose it: it was typed, or stands in the profile.
GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


# Groups of which only those count that were given.
_GROUPS = {"server": SERVER_OPTIONS, "s3": S3_OPTIONS, "keys": KEY_OPTIONS}


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared options said."""

    repo: str | None
    verbose: int
    progress: bool
    log_format: str
    output: Output
    server: Mapping[str, Any] = field(default_factory=dict)  # the server options that were given, by parameter name
    s3: Mapping[str, Any] = field(default_factory=dict)  # so with those for S3
    keys: Mapping[str, Any] = field(default_factory=dict)  # and with those for keys; there is no secret among them
    variables: str = "JSBACKUP_"  # how the variables begin that stand in for options of the repository
    server_named: bool = False  # by a profile: nothing of the environment and no selected context is added
    profile: str = ""  # "" without one
    config: Path | None = None  # the file of the profile


@dataclass(slots=True)
class LastOutput:
    """How to print what goes wrong: as the command has it once that is known. The root context's `obj`."""

    output: Output


class CommandContext(click.Context):
    """The context of a `Command`, with what its profile says.

    `only` is the one profile it is for, where several were named; `print_to` makes its output in that case.
    """

    def __init__(
        self,
        *args: Any,
        only: str | None = None,
        print_to: Callable[[Output], Output] = lambda output: output,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.only = only
        self.print_to = print_to
        self.words: tuple[str, ...] = ()
        self.names: tuple[str, ...] = ()
        self.config_path: Path | None = None
        self.profile: Profile | None = None
        self.from_profile: Mapping[str, Any] = {}  # by parameter name

    @property
    def table(self) -> str:
        """The command's name as a table of a profile has it: `backup`, `key.add`."""
        level = self.parent
        names: list[str] = []
        while level is not None and level.parent is not None:
            names.insert(0, str(level.info_name))
            level = level.parent
        return ".".join([*names, str(self.info_name)])


def _given(ctx: click.Context, names: Iterable[str], *, environment: bool) -> dict[str, Any]:
    """The parameters of `names` that were given in this context: by the environment, or on the command line."""
    environments = (ParameterSource.ENVIRONMENT,)
    sources = environments if environment else (ParameterSource.COMMANDLINE, ParameterSource.PROMPT)
    return {n: ctx.params[n] for n in names if n in ctx.params and ctx.get_parameter_source(n) in sources}


def _levels(ctx: click.Context) -> list[click.Context]:
    """The context and those above it, the topmost first."""
    levels = [ctx]
    while levels[0].parent is not None:
        levels.insert(0, levels[0].parent)
    return levels


def merge_shared(ctx: click.Context) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Global values (all), and for each group, `server`, `s3`, `keys`, those given.

    Environment, then the profile, then before the command, then after it.
    """
    values: dict[str, Any] = {str(o.name): None for o in GLOBAL_OPTIONS}
    values.update(as_json=False, quiet=False, verbose=0, no_progress=False, log_format="text", profile=())
    own = [str(option.name) for option in GLOBAL_OPTIONS]
    levels = _levels(ctx)
    for level in levels:
        values.update(_given(level, own, environment=True))
    given: dict[str, Any] = {}
    for level in levels:
        names = [*own, *(str(option.name) for options in _GROUPS.values() for option in options)]
        given.update(_given(level, names, environment=False))
    if isinstance(ctx, CommandContext) and ctx.from_profile:
        from jsbackup.cli.profiles import over

        given = over(ctx.from_profile, given)
    values.update({name: given[name] for name in own if name in given})
    groups = {
        group: {str(o.name): given[str(o.name)] for o in options if str(o.name) in given}
        for group, options in _GROUPS.items()
    }
    return values, groups


class Command(click.Command):
    """A command that takes the shared options too and passes them to its function as `shared`.

    `needs_server` says whether the server options make sense; where they do not, giving one is a usage error.
    `unattended` commands are what schedules run: they have hooks, and may be run for several profiles, one after
    another, unless they never end (`endless`). Of a command that `answers`, 1 is no failure: its exit code is what was
    asked for.
    """

    context_class = CommandContext

    def __init__(
        self,
        *args: Any,
        needs_server: bool = False,
        unattended: bool = False,
        endless: bool = False,
        answers: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.needs_server = needs_server
        self.unattended = unattended
        self.endless = endless
        self.answers = answers
        self.own_params = list(self.params)
        shared = [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *(HOOK_OPTIONS if unattended else [])]
        self.params = [*self.params, *shared, *(SERVER_OPTIONS if needs_server else [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        assert isinstance(ctx, CommandContext)
        try:
            # A shell completes: nobody looks at errors while they type.
            with suppress(JsBackupError) if ctx.resilient_parsing else nullcontext():
                self.take_profile(ctx, args)
            if len(ctx.names) > 1 and not ctx.resilient_parsing:  # each of them has a context of its own
                return []
            left = super().parse_args(ctx, args)
            self._prefer_profile(ctx)
            return left
        except click.NoSuchOption as unknown:
            if not self.needs_server and any(unknown.option_name in option.opts for option in SERVER_OPTIONS):
                raise self._no_server(unknown.option_name) from None
            raise

    def take_profile(self, ctx: CommandContext, args: list[str]) -> None:
        """Give the context what the named profile says. Raises UsageError for what is wrong with it."""
        ctx.words = tuple(args)
        typed = self.make_parser(ctx).parse_args(list(args))[0]
        asks_for_help = self.get_help_option(ctx)
        if asks_for_help is not None and asks_for_help.name in typed:
            return
        file, ctx.names = self.named_profiles(ctx, typed)
        if file is None:
            return
        if len(ctx.names) > 1:
            if not self.unattended or self.endless:
                raise UsageError(f"'{ctx.table}' runs for one profile at a time", hint="Name one of them.")
            return
        profile = self.read_profile(ctx, file, ctx.names[0])
        if profile.problems:
            first, more = profile.problems[0], len(profile.problems) - 1
            hint = f"{first.hint or ''} There are {more} more problems: see 'jsbackup config check'.".strip()
            raise UsageError(first.message, hint=hint if more else first.hint)
        ctx.profile = profile
        ctx.from_profile = profile.values(ctx.table)
        from jsbackup.cli.profiles import over

        # What contradicts a typed option goes; what is typed wins by itself.
        options = {param.name for param in self.params if isinstance(param, click.Option)}
        ctx.default_map = over(ctx.from_profile, {n: value for n, value in typed.items() if n in options})

    def _prefer_profile(self, ctx: CommandContext) -> None:
        """To the environment, which click prefers."""
        for param in self.params:
            name = str(param.name)
            if name in (ctx.default_map or {}) and ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
                ctx.params[name] = param.process_value(ctx, ctx.lookup_default(name))
                ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)

    def named_profiles(
        self, ctx: CommandContext, typed: Mapping[str, Any]
    ) -> tuple[ConfigFile | None, tuple[str, ...]]:
        """The file and the profiles that the command line names, else the environment. UsageError if there is none."""
        above = _levels(ctx)[:-1]
        given: dict[str, Any] = {}
        for option in GLOBAL_OPTIONS:
            if option.name in ("config", "profile") and (value := option.value_from_envvar(ctx)):
                given[option.name] = value
        for level in above:
            given.update(_given(level, ("config", "profile"), environment=False))
        chosen = any(_given(level, ("config",), environment=False) for level in above) or "config" in typed
        given.update({name: typed[name] for name in ("config", "profile") if name in typed})
        names = tuple(dict.fromkeys(given.get("profile") or ()))
        if ctx.only is not None:
            names = (ctx.only,)
        if given.get("config"):
            ctx.config_path = expand_path(str(given["config"]), environment())
        elif names:
            ctx.config_path = default_config_path(environment())
            if not ctx.config_path.exists():
                raise UsageError(
                    f"there is no profile {names[0]!r}: {ctx.config_path} is not there",
                    hint="Write that file, or name another one with --config.",
                )
        if not names:
            if chosen and ctx.config_path is not None:
                known = ", ".join(sorted(read_config(ctx.config_path).profiles))
                raise UsageError("--config was given without --profile", hint=f"Profiles there: {known or 'none'}.")
            return None, ()
        assert ctx.config_path is not None
        return read_config(ctx.config_path), names

    def read_profile(
        self,
        ctx: CommandContext,
        file: ConfigFile,
        name: str,
        *,
        table: Sequence[str] = (),
        every_command: bool = False,
    ) -> Profile:
        """A profile, as far as it concerns this command, or the one whose `table` is named, or all of it."""
        from jsbackup.cli.profiles import read_profile

        root = ctx.find_root()
        assert isinstance(root.command, click.Group)
        return read_profile(
            file,
            name,
            commands=root.command.list_commands(root),
            find=partial(root.command.get_command, root),
            only=None if every_command else (table or ctx.table.split(".")),
            environ=environment(),
        )

    def _no_server(self, option: str) -> UsageError:
        return UsageError(f"{option} makes no sense for '{self.name}', which talks to no server", hint="Leave it out.")

    def invoke(self, ctx: click.Context) -> Any:
        assert isinstance(ctx, CommandContext)
        if len(ctx.names) > 1:
            from jsbackup.cli.several import run_each

            return run_each(self, ctx)
        values, groups = merge_shared(ctx)
        for level in () if self.needs_server else _levels(ctx):
            for name in _given(level, (str(option.name) for option in SERVER_OPTIONS), environment=False):
                raise self._no_server("--" + name.replace("_", "-"))
        for option in [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS]:
            ctx.params.pop(str(option.name), None)
        shared = self._shared(ctx, values, groups)
        code = self._run(ctx, shared)
        if code and not (self.answers and code == 1):
            shared.output.give_up_silence()
        return code

    def _run(self, ctx: CommandContext, shared: Shared) -> Any:
        assert self.callback is not None
        if not self.unattended:
            return ctx.invoke(self.callback, shared=shared, **ctx.params)
        hooks = {str(option.name): ctx.params.pop(str(option.name)) for option in HOOK_OPTIONS}
        work = partial(ctx.invoke, self.callback, shared=shared, **ctx.params)
        return _run_unattended(ctx.table, shared, hooks, work)

    def _shared(
        self, ctx: CommandContext, values: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]
    ) -> Shared:
        log_json = values["log_format"] == "json"
        profile = ctx.profile
        labels = {"profile": profile.name} if profile else {}
        output = ctx.print_to(
            Output(as_json=values["as_json"], quiet=values["quiet"], log_json=log_json, labels=labels)
        )
        root = ctx.find_root()
        if isinstance(root.obj, LastOutput) and ctx.only is None:
            root.obj.output = output
        if profile is not None and profile.exposed:
            output.warning(
                f"{profile.path} can be read by others and holds secrets ({', '.join(profile.exposed)}): chmod 600 it"
            )
        return Shared(
            repo=values["repo"],
            verbose=values["verbose"],
            # Bars would stand between lines that a program reads.
            progress=not (values["no_progress"] or values["quiet"] or log_json),
            log_format=values["log_format"],
            output=output,
            server=groups["server"],
            s3=groups["s3"],
            keys=groups["keys"],
            server_named=bool(ctx.from_profile.keys() & {"server", "context"}),
            profile=profile.name if profile else "",
            config=profile.path if profile else None,
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        help_option = self.get_help_option(ctx)
        write_options(ctx, formatter, "Options", [*self.own_params, *([help_option] if help_option else [])])
        if self.needs_server:
            write_options(ctx, formatter, "Server options (also before the command)", SERVER_OPTIONS)
        write_options(ctx, formatter, "Global options (also before the command)", GLOBAL_OPTIONS)
        write_options(ctx, formatter, "S3 options, for s3://bucket/prefix (also before the command)", S3_OPTIONS)
        write_options(
            ctx, formatter, "Keys, for encrypted or signed repositories (also before the command)", KEY_OPTIONS
        )
        if self.unattended:
            write_options(ctx, formatter, "Hooks: who is told", HOOK_OPTIONS)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if isinstance(ctx, CommandContext) and (page := MANUAL.get(ctx.table.replace(".", " "))) is not None:
            write_page(formatter, page)


def _run_unattended(command: str, shared: Shared, given: Mapping[str, Any], work: Callable[[], Any]) -> int:
    """With its hooks, and with a profile not while the same is running."""
    from jsbackup.cli.hooks import Hooks, Occasion, run_between
    from jsbackup.cli.log import start_log

    start_log(shared)
    hooks = Hooks.of(given)
    with ExitStack() as stack:
        if shared.profile and shared.config is not None:
            from jsbackup.cli.overlap import alone

            stack.enter_context(alone(shared.config, shared.profile, command))
        occasion = Occasion(command, shared.profile, str(shared.config.absolute()) if shared.config else "")
        return run_between(hooks, occasion, work)


jobs_option = click.option(
    "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Streams at the same time."
)


def write_options(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Sequence[click.Parameter]
) -> None:
    """A section of a help text. Arguments are told by the usage line and the text."""
    options = [param for param in params if isinstance(param, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
