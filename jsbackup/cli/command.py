"""Options that every command shares, wherever they stand, and the one place that turns errors into exit codes.

Global and server options may be given before or after the command's name; the one after wins. A command's function
gets them as one `Shared` value, so that no command repeats the list.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from jsbackup.cli.output import Output
from jsbackup.errors import UsageError

__all__ = ["GLOBAL_OPTIONS", "SERVER_OPTIONS", "Command", "Shared", "merge_shared", "to_server_options"]

GLOBAL_OPTIONS: list[click.Option] = [
    click.Option(
        ["-r", "--repo"],
        metavar="LOCATION",
        envvar="JSBACKUP_REPO",
        show_envvar=True,
        help="The repository: a folder or a URL.",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON document."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
    click.Option(["-v", "--verbose"], count=True, help="Log what is done, with server advisories; twice for more."),
    click.Option(["--no-progress"], is_flag=True, help="Draw no progress bars."),
    click.Option(
        ["--log-format"], type=click.Choice(["text", "json"]), default="text", help="Form of log lines on stderr."
    ),
]

SERVER_OPTIONS: list[click.Option] = [
    click.Option(["-s", "--server"], metavar="URL", help="Server URLs, comma separated [env: NATS_URL]."),
    click.Option(["--context"], metavar="NAME", help="A context of the nats CLI [env: NATS_CONTEXT]."),
    click.Option(["--creds"], metavar="FILE", help="Credentials file [env: NATS_CREDS]."),
    click.Option(["--nkey"], metavar="FILE", help="NKey seed file [env: NATS_NKEY]."),
    click.Option(["--user"], metavar="NAME", help="User name [env: NATS_USER]."),
    click.Option(["--password"], metavar="TEXT", help="Password; better given by NATS_PASSWORD."),
    click.Option(["--token"], metavar="TEXT", help="Token; better given by NATS_TOKEN."),
    click.Option(["--tlscert"], metavar="FILE", help="Client certificate [env: NATS_CERT]."),
    click.Option(["--tlskey"], metavar="FILE", help="Key of the client certificate [env: NATS_KEY]."),
    click.Option(["--tlsca"], metavar="FILE", help="Certificate authority of the server [env: NATS_CA]."),
    click.Option(["--tlsfirst"], is_flag=True, help="TLS handshake before the server's greeting."),
    click.Option(["--js-domain"], metavar="NAME", help="JetStream domain."),
    click.Option(["--js-api-prefix"], metavar="SUBJECT", help="Prefix of the JetStream API, if imported."),
    click.Option(["--inbox-prefix"], metavar="SUBJECT", help="Prefix of reply subjects (default _INBOX)."),
    click.Option(["--timeout"], metavar="DURATION", help="How long to wait for an answer (5s) [env: NATS_TIMEOUT]."),
]

_NO_SERVER = "this command does not talk to a server"


@dataclass(frozen=True, slots=True)
class Shared:
    """What the shared options said."""

    repo: str | None
    verbose: int
    progress: bool
    log_format: str
    output: Output
    server: Mapping[str, Any] = field(default_factory=dict)  # the server options that were given, by parameter name


def to_server_options() -> list[click.Option]:
    """The second set, for commands with two servers: `--to-server` and so on."""
    second = []
    for option in SERVER_OPTIONS:
        twin = copy.copy(option)
        twin.name = f"to_{option.name}"
        twin.opts = ["--to-" + next(o for o in option.opts if o.startswith("--"))[2:]]
        twin.secondary_opts = []
        second.append(twin)
    return second


def _given(ctx: click.Context, names: Sequence[str]) -> dict[str, Any]:
    """The parameters of `names` that were given in this context, not left at their default."""
    return {n: ctx.params[n] for n in names if ctx.get_parameter_source(n) not in (ParameterSource.DEFAULT, None)}


def merge_shared(ctx: click.Context) -> tuple[dict[str, Any], dict[str, Any]]:
    """Global values (all) and server values (those given), where the option after the command wins."""
    names = [str(o.name) for o in GLOBAL_OPTIONS]
    server_names = [str(o.name) for o in SERVER_OPTIONS]
    values: dict[str, Any] = {str(o.name): None for o in GLOBAL_OPTIONS}
    values.update(as_json=False, quiet=False, verbose=0, no_progress=False, log_format="text")
    server: dict[str, Any] = {}
    for level in [ctx.parent, ctx] if ctx.parent else [ctx]:
        here = [n for n in names if n in level.params]
        values.update(_given(level, here))
        server.update(_given(level, [n for n in server_names if n in level.params]))
    return values, server


class Command(click.Command):
    """A command that takes the shared options too and passes them to its function as `shared`.

    `needs_server` says whether the server options make sense; where they do not, giving one is a usage error.
    """

    def __init__(self, *args: Any, needs_server: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.needs_server = needs_server
        self.own_params = list(self.params)
        self.params = [*self.params, *GLOBAL_OPTIONS, *(SERVER_OPTIONS if needs_server else [])]

    def invoke(self, ctx: click.Context) -> Any:
        values, server = merge_shared(ctx)
        if server and not self.needs_server:
            raise UsageError(f"--{next(iter(server)).replace('_', '-')} makes no sense for '{self.name}': {_NO_SERVER}")
        for option in [*GLOBAL_OPTIONS, *SERVER_OPTIONS]:
            ctx.params.pop(str(option.name), None)
        shared = Shared(
            repo=values["repo"],
            verbose=values["verbose"],
            progress=not (values["no_progress"] or values["quiet"]),
            log_format=values["log_format"],
            output=Output(as_json=values["as_json"], quiet=values["quiet"]),
            server=server,
        )
        assert self.callback is not None
        return ctx.invoke(self.callback, shared=shared, **ctx.params)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        help_option = self.get_help_option(ctx)
        own = [*self.own_params, *([help_option] if help_option else [])]
        sections: list[tuple[str, Sequence[click.Parameter]]] = [("Options", own)]
        if self.needs_server:
            sections.append(("Server options (also before the command)", SERVER_OPTIONS))
        sections.append(("Global options (also before the command)", GLOBAL_OPTIONS))
        for title, params in sections:
            rows = [r for p in params if (r := p.get_help_record(ctx)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
