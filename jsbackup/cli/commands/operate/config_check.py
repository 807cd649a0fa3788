"""`jsbackup config check`: report what the profiles of a file set, and all errors in it at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, format_count
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import HELP_ALL, CommandContext, HelpGroup, Shared, merge_shared
from jsbackup.config import default_config_path, environment, examine_config, expand_path, hide_logins
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.profiles.profiles import Profile, Setting

__all__ = ["COMMANDS"]

_HIDDEN = "***"


class _CheckCommand(Command):
    """Examines profiles without taking options from them."""

    def take_profile(self, ctx: CommandContext, args: list[str]) -> None:
        return

    def invoke(self, ctx: click.Context) -> Any:
        values, _ = merge_shared(ctx)
        ctx.params |= {"config_file": values["config"], "names": values["profile"]}
        return super().invoke(ctx)


@click.group("config", cls=HelpGroup, invoke_without_command=True, params=[HELP_ALL])
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show what profiles set, and what is wrong with them."""
    if ctx.invoked_subcommand is None:
        raise UsageError("no command given", hint="The command is 'config check'.")


@config.command("check", cls=_CheckCommand, short_help="Show profiles, and what is wrong with them.")
@click.pass_context
def check(ctx: click.Context, shared: Shared, config_file: str | None, names: tuple[str, ...]) -> int:
    """Show the profiles of the file, or those named with --profile: what each sets, also for single commands.

    Secrets are shown as ***, variables as they are written. All mistakes are listed at once; the exit code is then 2.
    No server, repository or secret file is opened, and no command is run.
    """
    assert isinstance(ctx, CommandContext) and isinstance(ctx.command, Command)
    environ = environment()
    path = expand_path(config_file, environ) if config_file else default_config_path(environ)
    file = examine_config(path)
    profiles, unknown = [], list(file.problems)
    for name in file.matching(names)[0] or sorted(file.profiles):
        try:
            profiles.append(ctx.command.read_profile(ctx, file, name, every_command=True))
        except UsageError as error:
            unknown.append(error)
    if not (file.profiles or unknown):
        unknown.append(UsageError(f"{path} has no profiles", hint="Write [profiles.NAME]."))
    document = _document(path, profiles, unknown)
    shared.output.result(document, lambda: _print(shared.output, document, profiles))
    return 0 if document["ok"] else UsageError.exit_code


def _document(path: Path, profiles: Sequence[Profile], unknown: Sequence[UsageError]) -> JsonObject:
    problems: list[JsonObject] = []
    for error in [*unknown, *(problem for profile in profiles for problem in profile.problems)]:
        problem = {"problem": hide_logins(error.message), "hint": error.hint}
        if problem not in problems:  # errors of the defaults appear in each profile
            problems.append(problem)
    exposed = sorted({key for profile in profiles for key in profile.exposed})
    warning = f"{path} can be read by others and holds secrets ({', '.join(exposed)}): chmod 600 it"
    return {
        "config": str(path),
        "ok": not problems,
        "profiles": [
            {"profile": one.name, "ok": not one.problems, "settings": _settings_json(one)} for one in profiles
        ],
        "problems": problems,
        "warnings": [warning] if exposed else [],
    }


def _settings_json(profile: Profile) -> list[JsonObject]:
    """Return the effective settings, in the order of the file: the profile's own, and those of the defaults it does not
    set.
    """
    own = {setting.path for setting in profile.settings if not setting.of_defaults}
    return [
        {"key": setting.path, "value": _shown(setting), "default": setting.of_defaults}
        for setting in profile.settings
        if not setting.of_defaults or setting.path not in own
    ]


def _shown(setting: Setting) -> Any:
    if setting.is_secret:
        return _HIDDEN
    return hide_logins(setting.written) if isinstance(setting.written, str) else setting.written


def _print(output: Output, document: JsonObject, profiles: Sequence[Profile]) -> None:
    output.line(f"config {document['config']}")
    for profile in document["profiles"]:
        output.line()
        output.line(f"profile {profile['profile']}")
        for one in profile["settings"]:
            value = json.dumps(one["value"], ensure_ascii=False)
            output.line(f"  {one['key']} = {value}" + ("  (of the defaults)" if one["default"] else ""))
    output.line()
    for warning in document["warnings"]:
        output.line(State("warning"), f": {warning}")
    for problem in document["problems"]:
        hint = f" ({problem['hint']})" if problem["hint"] else ""
        output.line(State("problem"), f": {problem['problem']}{hint}")
    problems = len(document["problems"])
    found = format_count(problems, "problem") if problems else "no problems"
    output.line(f"{format_count(len(profiles), 'profile')}, {found}")


COMMANDS = {"config": config}
