"""A command with the shared options (`parsing/context.py`), which its function gets as one `Shared` value; and its help
besides its options: examples, exit codes, and related commands, as in a man page.

`command_help.json` has one table for all commands. Exit codes are those of the contract; an entry only explains one if
that adds to the contract's text. Every command may end with 0, 1, 2 and 130.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.notify.hooks import HOOK_OPTIONS, Hooks, run_between
from jsbackup.cli.options.opening import SPARK_OPTIONS, where_asked
from jsbackup.cli.output.output import Output
from jsbackup.cli.output.progress import start_log
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.completion import complete_tag
from jsbackup.cli.parsing.context import (
    GIVEN,
    GLOBAL_OPTIONS,
    HELP_ALL,
    KEY_OPTIONS,
    OF_BACKUPS,
    S3_OPTIONS,
    SERVER_OPTIONS,
    CommandContext,
    LastOutput,
    Shared,
    contexts_of,
    given_in,
    merge_shared,
    over,
    wants_all,
    write_options,
    write_shared_options,
)
from jsbackup.cli.parsing.typed_values import NOTES, check_amounts, parse_choosing
from jsbackup.config import ConfigFile, default_config_path, environment, expand_path, read_config
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.exit_codes import EXIT_CODES

if TYPE_CHECKING:
    from jsbackup.cli.profiles.profiles import Profile

__all__ = ["CHOOSING_OPTIONS", "Command", "command_help", "for_second", "tagged_as"]


F = TypeVar("F", bound=Callable[..., Any])

CHOOSING_OPTIONS = [
    click.Option(
        ["--origin", "origins"], multiple=True, metavar="ORIGIN", help="Only backups of this cluster or account."
    ),
    click.Option(
        ["--tag", "tags"],
        multiple=True,
        metavar="K[=V]",
        shell_complete=complete_tag,
        help="Only backups with this tag; if repeated, with all of them.",
    ),
]
"""The options of commands that choose among backups: which of them `latest` is, or which count."""


def tagged_as(help_text: str) -> Callable[[F], F]:
    """Add `--tag K=V` of a command that makes a backup, passed as `tags`."""
    return click.option("--tag", "tags", multiple=True, metavar="K=V", shell_complete=complete_tag, help=help_text)


def for_second(option: click.Option, text: str) -> click.Option:
    """Return the same option with `--to-` before its name and another help: for the second server or repository."""
    names = [f"--to-{name.removeprefix('--')}" for name in (*option.opts, *option.secondary_opts) if name[:2] == "--"]
    return click.Option(
        ["/".join(names)], metavar=option.metavar, type=option.type, is_flag=option.is_flag, default=None, help=text
    )


class Command(click.Command):
    """A command that also has the shared options and passes them to its function as `shared`.

    `needs_server` says whether the server options are allowed; otherwise giving one is a usage error. `unattended`
    commands are run by schedules: they have hooks, and may be run for several profiles, one after another, unless they
    never end (`endless`). For a command that `answers`, 1 is not a failure: its exit code is the answer. One that
    `chooses` among backups has `--origin` and `--tag`, as `shared.choosing`; one `on_spark` has `--spark`, and its
    function gets `where`. Of the options for a `second` server or repository, those that were given are passed as `to`,
    with the names that the first one's have.
    """

    context_class = CommandContext

    def __init__(
        self,
        *args: Any,
        needs_server: bool = False,
        unattended: bool = False,
        endless: bool = False,
        answers: bool = False,
        chooses: bool = False,
        on_spark: bool = False,
        second: Sequence[click.Option] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.needs_server = needs_server
        self.unattended = unattended
        self.endless = endless
        self.answers = answers
        self.chooses = chooses
        self.on_spark = on_spark
        self.second = second
        self.own_params = list(self.params)
        grouped = [*(CHOOSING_OPTIONS if chooses else []), *(SPARK_OPTIONS if on_spark else [])]
        shared = [*grouped, *GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *(HOOK_OPTIONS if unattended else [])]
        self.params = [*self.params, *shared, *(SERVER_OPTIONS if needs_server else []), *second]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        assert isinstance(ctx, CommandContext)
        try:
            # A shell completes: errors are not shown while typing.
            with suppress(JsBackupError) if ctx.resilient_parsing else nullcontext():
                self.take_profile(ctx, args)
            if ctx.several and not ctx.resilient_parsing:  # each profile has its own context
                return []
            left = super().parse_args(ctx, args)
            self._prefer_profile(ctx)
            check_amounts(ctx)
            return left
        except click.UsageError as wrong:  # click omits the source if a value is missing
            wrong.ctx = wrong.ctx or ctx
            raise

    def take_profile(self, ctx: CommandContext, args: list[str]) -> None:
        """Apply the named profile to the context. Raises UsageError for errors in it."""
        ctx.words = tuple(args)
        typed = self.make_parser(ctx).parse_args(list(args))[0]
        asks_for_help = self.get_help_option(ctx)
        if HELP_ALL.name in typed or (asks_for_help is not None and asks_for_help.name in typed):
            return
        file, names = self.named_profiles(ctx, typed)
        if file is None:
            return
        ctx.names, globbed = file.matching(names)
        # A glob is always for several, so that the form of the output does not depend on how many it matches.
        ctx.several = len(ctx.names) > 1 or (globbed and self.unattended and not self.endless)
        if ctx.several:
            if not self.unattended or self.endless:
                raise UsageError(f"'{ctx.table}' runs for one profile at a time", hint="Name one of them.")
            return
        profile = self.read_profile(ctx, file, ctx.names[0])
        if profile.problems:
            raise profile.problems[0]
        ctx.profile = profile
        ctx.from_profile = profile.values(ctx.table)
        # Options that contradict a typed one are removed; the same option is overridden anyway.
        options = {param.name for param in self.params if isinstance(param, click.Option)}
        ctx.default_map = over(ctx.from_profile, {n: value for n, value in typed.items() if n in options})

    def _prefer_profile(self, ctx: CommandContext) -> None:
        """Prefer the profile to the environment, contrary to click."""
        for param in self.params:
            name = str(param.name)
            if name in (ctx.default_map or {}) and ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
                ctx.params[name] = param.process_value(ctx, ctx.lookup_default(name))
                ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)

    def named_profiles(
        self, ctx: CommandContext, typed: Mapping[str, Any]
    ) -> tuple[ConfigFile | None, tuple[str, ...]]:
        """Return the file and the profiles of the command line or the environment. Raises UsageError if there
        are none.
        """
        asked = [option for option in GLOBAL_OPTIONS if option.name in ("config", "profile")]
        written: dict[str, Any] = {}
        for level in contexts_of(ctx)[:-1]:
            written |= given_in(level, ("config", "profile"), environment=False)
        written |= {str(option.name): typed[str(option.name)] for option in asked if option.name in typed}
        given = {str(option.name): value for option in asked if (value := option.value_from_envvar(ctx))} | written
        names = tuple(dict.fromkeys(given.get("profile") or ())) if ctx.only is None else (ctx.only,)
        if given.get("config"):
            ctx.config_path = expand_path(str(given["config"]), environment())
        elif names:
            ctx.config_path = default_config_path(environment())
        if not names:
            if "config" in written and ctx.config_path is not None:
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
        """Return a profile: the part for this command, or for the one with the `table`, or all of it."""
        from jsbackup.cli.profiles.profiles import read_profile

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

    def invoke(self, ctx: click.Context) -> Any:
        assert isinstance(ctx, CommandContext)
        if ctx.several:
            from jsbackup.cli.profiles.runs import run_each

            return run_each(self, ctx)
        values, groups = merge_shared(ctx)
        for level in () if self.needs_server else contexts_of(ctx):
            for name in given_in(level, (str(option.name) for option in SERVER_OPTIONS), environment=False):
                what = f"--{name.replace('_', '-')} makes no sense for '{self.name}', which talks to no server"
                raise UsageError(what, hint="Leave it out.")
        for option in [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS]:
            ctx.params.pop(str(option.name), None)
        shared = self._shared(ctx, values, groups)
        start_log(shared)
        for note in ctx.meta.pop(NOTES, ()):
            shared.output.note(note)
        code = self._run_unattended(ctx, shared) if self.unattended else self._call(ctx, shared)
        if code and not (self.answers and code == 1):
            shared.output.give_up_silence()
        return code

    def _run_unattended(self, ctx: CommandContext, shared: Shared) -> int:
        """Run with hooks, and with a profile not concurrently with the same command."""
        hooks = Hooks.of({str(option.name): ctx.params.pop(str(option.name)) for option in HOOK_OPTIONS})
        with ExitStack() as stack:
            about = {"JSBACKUP_COMMAND": ctx.table}
            if shared.config is not None:
                from jsbackup.cli.profiles.runs import alone

                stack.enter_context(alone(shared.config, shared.profile, ctx.table))
                about |= {"JSBACKUP_PROFILE": shared.profile, "JSBACKUP_CONFIG": str(shared.config.absolute())}
            return run_between(hooks, about, partial(self._call, ctx, shared))

    def _call(self, ctx: CommandContext, shared: Shared) -> Any:
        """Call the function. The values of groups of options stay in the context, for `refuse_given`."""
        assert self.callback is not None
        values = dict(ctx.params)
        if self.chooses:
            origins, tags = values.pop("origins"), values.pop("tags")
            backups = [] if values.get("all_backups") else [values[name] for name in OF_BACKUPS if name in values]
            shared = replace(shared, choosing=parse_choosing(origins, tags, backups))
        if self.on_spark:
            values["where"] = where_asked(values.pop("spark"), values.pop("spark_conf"))
        if self.second:
            typed = {name: values.pop(name) for name in (str(option.name) for option in self.second)}
            given = {name for name in typed if ctx.get_parameter_source(name) in GIVEN}
            values["to"] = {name.removeprefix("to_"): typed[name] for name in given}
        answer = ctx.invoke(self.callback, shared=shared, **values)
        return shared.output.show(answer) if isinstance(answer, Result) else answer

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
            # Bars would be between lines that a program reads.
            progress=not (values["no_progress"] or values["quiet"] or log_json),
            log_format=values["log_format"],
            lock_timeout=values["lock_timeout"],
            output=output,
            server=groups["server"],
            s3=groups["s3"],
            keys=groups["keys"],
            server_named=bool(ctx.from_profile.keys() & {"server", "context"}),
            profile=profile.name if profile else "",
            config=profile.path if profile else None,
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), HELP_ALL]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if (entry := _help_of(ctx)) is None:
            return
        with formatter.section("Examples"):
            for line, purpose in entry.examples.items():
                for text in (*_folded(line, formatter.width - 2), f"    {purpose}"):
                    formatter.write(f"{'':>{formatter.current_indent}}{text}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        help_option = self.get_help_option(ctx)
        write_options(ctx, formatter, "Options", [*self.own_params, *([help_option] if help_option else []), HELP_ALL])
        if wants_all(ctx):
            self.format_shared_options(ctx, formatter)
            return
        server = "-s/--server, --context, " if self.needs_server else ""
        grouped = ("--origin, --tag, " if self.chooses else "") + ("--spark, " if self.on_spark else "")
        also = f"-r/--repo, {server}{grouped}--profile, --json, -q"
        others = "servers, S3, keys and logs" if self.needs_server else "S3, keys and logs"
        formatter.write_paragraph()
        formatter.write_text(f"'{ctx.command_path} --help-all' also has {also}, and the options of {others}.")

    def format_shared_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that are the same for other commands."""
        if self.chooses:
            named = any(param.name in OF_BACKUPS for param in self.own_params)
            write_options(ctx, formatter, "Which backup is `latest`" if named else "Which backups", CHOOSING_OPTIONS)
        if self.on_spark:
            write_options(ctx, formatter, "Spark", SPARK_OPTIONS)
        write_shared_options(ctx, formatter, "before", server=self.needs_server)
        if self.unattended:
            write_options(ctx, formatter, "Hooks and notifications", HOOK_OPTIONS)
        write_options(ctx, formatter, "Options of the target", self.second)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write exit codes, those that are explained by the contract in one paragraph, and related commands."""
        if (entry := _help_of(ctx)) is None:
            return
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in sorted(entry.means.items())])
            rest = ", ".join(str(code) for code in entry.exit_codes if code not in entry.means)
            formatter.write_text(f"Also {rest}, as in 'jsbackup --help'.")
        others = [*entry.see_also, *([f"help {entry.page}"] if entry.page else [])]
        if others:
            with formatter.section("See also"):
                formatter.write_text(", ".join(f"jsbackup {other}" for other in others))


def _help_of(ctx: click.Context) -> CommandHelp | None:
    return command_help().get(ctx.table.replace(".", " ")) if isinstance(ctx, CommandContext) else None


_WORD = re.compile(r"'[^']*'|\S+")

_ALWAYS = {0, 1, 2, 130}
_READS = {10, 12, 13, 14, 21}
# Names that `codes` of an entry may have.
_GROUPS = {
    "reads": _READS,
    "writes": _READS | {11},
    "nats": {20},
    "target": {15, 16, 20},
}
# Texts that stand in several entries.
_OTHERS_AT_WORK = "another command held the exclusive lock for longer than --lock-timeout"
_TEXTS = {
    "others_at_work": _OTHERS_AT_WORK,
    "runs_already": f"{_OTHERS_AT_WORK}; or the same run of the profile is not over",
    "several": "failed, or several streams failed for different reasons",
    "no_spark": "format or feature not supported; Spark or Java is not there",
    "not_so": "nothing was made: a restore with these options would be refused",
    "collide": "nothing was made: new names or subjects collide",
}


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """`examples`: command line -> what it does. `codes`: those of the command besides the common ones and those in
    `means`. `page`: of the manual, with more.
    """

    examples: Mapping[str, str]
    codes: frozenset[int]
    means: Mapping[int, str]
    see_also: tuple[str, ...]
    page: str | None

    @property
    def exit_codes(self) -> dict[int, str]:
        """Return all possible exit codes of the command, in order, with their meaning."""
        given = {**EXIT_CODES, **self.means}
        return {code: given[code] for code in sorted(_ALWAYS.union(self.codes, self.means))}


@cache
def command_help() -> Mapping[str, CommandHelp]:
    """Return the help of each command, in the order of the table."""
    entries = json.loads((Path(__file__).parent / "command_help.json").read_text(encoding="utf-8"))
    return {name: _read(**entry) for name, entry in entries.items()}


def _read(
    *,
    examples: Mapping[str, str],
    codes: Sequence[str | int] = (),
    means: Mapping[str, str] | None = None,
    see_also: Sequence[str] = (),
    page: str | None = None,
) -> CommandHelp:
    numbers = [
        code
        for code_or_group in codes
        for code in ([code_or_group] if isinstance(code_or_group, int) else _GROUPS[code_or_group])
    ]
    texts = {int(code): text.format_map(_TEXTS) for code, text in (means or {}).items()}
    return CommandHelp(examples, frozenset(numbers), texts, tuple(see_also), page)


def _folded(line: str, width: int) -> list[str]:
    """Fold a command line to lines that a shell joins; words in quotes stay whole."""
    lines = [""]
    for word in _WORD.findall(line):
        if lines[-1] and len(f"{lines[-1]} {word} \\") > width:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines
