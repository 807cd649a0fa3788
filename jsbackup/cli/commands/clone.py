"""`jsbackup clone`. The engine is imported when it is called: `--help` and completion load this module.

The second server has the options of the first, with the prefix `--to-`. The environment and the selected context are
ignored for them: a target must be named.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.options.opening import connection_of, run_async, target_connection_of
from jsbackup.cli.options.reshaping import mask_key_option
from jsbackup.cli.options.restore_options import Asked, live_planning_options
from jsbackup.cli.options.shared import SERVER_OPTIONS
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import GIVEN, Shared, jobs_option, write_options

if TYPE_CHECKING:
    from jsbackup.config import Connection
    from jsbackup.planning.model import RestoreOptions

__all__ = ["COMMANDS"]

_PREFIX = "to_"
_VARIABLE = re.compile(r" \[env: \w+\]")
_BETTER = re.compile(r"prefer NATS_\w+")


def _to(option: click.Option) -> click.Option:
    """Return the same option for the second server."""
    names = [f"--to-{name.removeprefix('--')}" for name in option.opts if name.startswith("--")]
    text = _BETTER.sub("prefer env://VARIABLE", _VARIABLE.sub("", option.help or ""))
    return click.Option(names, metavar=option.metavar, type=option.type, is_flag=option.is_flag, help=text)


TO_OPTIONS = [_to(option) for option in SERVER_OPTIONS]


class CloneCommand(Command):
    """A command with options for a second server; the given ones are passed as `to`, with the names of the first
    server's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, needs_server=True, **kwargs)
        self.params = [*self.params, *TO_OPTIONS]

    def invoke(self, ctx: click.Context) -> Any:
        given = {}
        for option in TO_OPTIONS:
            name = str(option.name)
            typed = ctx.get_parameter_source(name) in GIVEN
            value = ctx.params.pop(name)
            if typed:
                given[name.removeprefix(_PREFIX)] = value
        ctx.params["to"] = given
        return super().invoke(ctx)

    def format_shared_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_shared_options(ctx, formatter)
        write_options(ctx, formatter, "Options of the second server", TO_OPTIONS)


@click.command(cls=CloneCommand)
@live_planning_options
@click.option("--dry-run", is_flag=True, help="Show what would be done and what blocks it; change nothing.")
@click.option(
    "--verify",
    type=click.Choice(["full", "none"]),
    default="full",
    show_default=True,
    help="What to compare with the source afterwards. full: every message.",
)
@jobs_option
@mask_key_option
def clone(
    shared: Shared,
    to: Mapping[str, Any],
    asked: Asked,
    dry_run: bool,
    *,
    verify: str,
    jobs: int,
    mask_secret: bytes,
) -> Result:
    """Copy streams and consumers from one server straight to another, then read them back and compare: all of the
    account, or those that you name (globs are allowed).

    Nothing is stored in between. Nothing is changed unless everything you ask for can be cloned; --dry-run shows that
    before. With --if-exists replace you can repeat it: existing streams stay until their copies are proved.
    """
    from jsbackup.cli.output.restore_report import restored_result
    from jsbackup.engine.clone.clone import run_clone
    from jsbackup.engine.restore.partial_proof import ProofLevel
    from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
    from jsbackup.planning.typed_options import keeping_obfuscated

    start_log(shared)
    options = asked.options()
    options.reshape.masks.check_secret(mask_secret)
    settings = RestoreSettings(
        jobs=jobs,
        proof=ProofLevel(verify),
        mask_secret=mask_secret,
    )
    source, target = connection_of(shared), target_connection_of(to)
    if dry_run:
        return _preview(source, target, options)
    with (
        keeping_obfuscated(asked.obfuscation_key, options.reshape),
        make_progress("clone", wanted=shared.progress) as progress,
    ):
        report = run_async(run_clone(RestoreRun(target, options, settings, progress), source))
    return restored_result(report, "cloned")


def _preview(source: Connection, target: Connection, options: RestoreOptions) -> Result:
    from jsbackup.cli.output.restore_report import preview_json, preview_text
    from jsbackup.engine.clone.clone import preview_clone

    preview, described = run_async(preview_clone(source, target, options, now_ns=time.time_ns))
    origin = {
        "version": described.server_version,
        "cluster": described.cluster or None,
        "account": described.account or None,
    }
    document = {"source": origin} | preview_json(preview)
    source_text = f"from nats-server {described.server_version}, {described.cluster}, account {described.account}"
    return Result(document, preview_text(document, "cloned", source_text), preview.plan.code)


COMMANDS = {"clone": clone}
