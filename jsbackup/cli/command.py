"""Options that every command shares, wherever they stand.

Global and server options may be given before or after the command's name; the one after wins, and both win over the
environment. A command's function gets them as one `Shared` value, so that no command repeats the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from jsbackup.cli.output import Output
from jsbackup.config.s3 import SSE_KINDS
from jsbackup.errors import UsageError

__all__ = [
    "GLOBAL_OPTIONS",
    "INTERRUPTED",
    "KEY_OPTIONS",
    "S3_OPTIONS",
    "SERVER_OPTIONS",
    "Command",
    "Shared",
    "merge_shared",
    "write_options",
]

INTERRUPTED = "interrupted; what was committed before is untouched"


class _Completed(click.types.StringParamType):
    """A text that shells complete as a `kind` of path. What is wrong with it is for whoever opens it to say."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self.kind)]


_FILE, _FOLDER = _Completed("file"), _Completed("dir")

GLOBAL_OPTIONS: list[click.Option] = [
    click.Option(
        ["-r", "--repo"],
        metavar="LOCATION",
        type=_FOLDER,
        envvar="JSBACKUP_REPO",
        help="The repository: a folder or a URL [env: JSBACKUP_REPO].",
    ),
    click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON document."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
    click.Option(["-v", "--verbose"], count=True, help="Log what is done, with server advisories; twice for more."),
    click.Option(["--no-progress"], is_flag=True, help="Draw no progress bars."),
    click.Option(
        ["--log-format"], type=click.Choice(["text", "json"]), default="text", help="Form of log lines on stderr."
    ),
]

# Their environment is read where their values are checked: `jsbackup.config.s3`.
S3_OPTIONS: list[click.Option] = [
    click.Option(
        ["--s3-endpoint"], metavar="URL", help="The store, if it is not Amazon's [env: JSBACKUP_S3_ENDPOINT]."
    ),
    click.Option(["--s3-region"], metavar="NAME", help="Region of the bucket [env: JSBACKUP_S3_REGION]."),
    click.Option(["--s3-profile"], metavar="NAME", help="Profile of the AWS configuration [env: JSBACKUP_S3_PROFILE]."),
    click.Option(
        ["--s3-path-style/--s3-virtual-style"],
        default=None,
        help="Bucket in the path (the default with --s3-endpoint) or in the host [env: JSBACKUP_S3_PATH_STYLE].",
    ),
    click.Option(
        ["--s3-ca"], metavar="FILE", type=_FILE, help="Certificate authority of the store [env: JSBACKUP_S3_CA]."
    ),
    click.Option(
        ["--s3-sse"],
        type=click.Choice(SSE_KINDS),
        help="Let the store encrypt what is stored [env: JSBACKUP_S3_SSE].",
    ),
    click.Option(["--s3-sse-kms-key"], metavar="ID", help="The KMS key for that [env: JSBACKUP_S3_SSE_KMS_KEY]."),
    click.Option(
        ["--s3-storage-class"], metavar="CLASS", help="Storage class of objects [env: JSBACKUP_S3_STORAGE_CLASS]."
    ),
]

# So with these: `jsbackup.config.keys`. None of them takes a secret, which would show in a process list.
KEY_OPTIONS: list[click.Option] = [
    click.Option(
        ["--writer-key"],
        metavar="FILE",
        type=_FILE,
        help="Key for backups, lists and checks [env: JSBACKUP_WRITER_KEY_FILE, or JSBACKUP_WRITER_KEY itself].",
    ),
    click.Option(
        ["--writer-key-command"],
        metavar="COMMAND",
        help="Command that prints the writer key [env: JSBACKUP_WRITER_KEY_COMMAND].",
    ),
    click.Option(
        ["--identity"],
        metavar="FILE",
        type=_FILE,
        help="age identities or an SSH key that read messages [env: JSBACKUP_IDENTITY_FILE, or JSBACKUP_IDENTITY "
        "itself].",
    ),
    click.Option(
        ["--identity-command"],
        metavar="COMMAND",
        help="Command that prints the identities [env: JSBACKUP_IDENTITY_COMMAND].",
    ),
    click.Option(
        ["--passphrase-file"],
        metavar="FILE",
        type=_FILE,
        help="Passphrase that reads messages, or opens the identity file [env: JSBACKUP_PASSPHRASE_FILE, or "
        "JSBACKUP_PASSPHRASE itself].",
    ),
    click.Option(
        ["--passphrase-command"],
        metavar="COMMAND",
        help="Command that prints the passphrase [env: JSBACKUP_PASSPHRASE_COMMAND].",
    ),
    click.Option(
        ["--expect-signer"],
        metavar="KEY",
        help="Public key, as 'init' and 'key list' print it, that has to stand behind all signatures "
        "[env: JSBACKUP_EXPECT_SIGNER].",
    ),
]

SERVER_OPTIONS: list[click.Option] = [
    click.Option(["-s", "--server"], metavar="URL", help="Server URLs, comma separated [env: NATS_URL]."),
    click.Option(["--context"], metavar="NAME", help="A context of the nats CLI [env: NATS_CONTEXT]."),
    click.Option(["--creds"], metavar="FILE", type=_FILE, help="Credentials file [env: NATS_CREDS]."),
    click.Option(["--nkey"], metavar="FILE", type=_FILE, help="NKey seed file [env: NATS_NKEY]."),
    click.Option(["--user"], metavar="NAME", help="User name [env: NATS_USER]."),
    click.Option(["--password"], metavar="TEXT", help="Password; better given by NATS_PASSWORD."),
    click.Option(["--token"], metavar="TEXT", help="Token; better given by NATS_TOKEN."),
    click.Option(["--tlscert"], metavar="FILE", type=_FILE, help="Client certificate [env: NATS_CERT]."),
    click.Option(["--tlskey"], metavar="FILE", type=_FILE, help="Key of the client certificate [env: NATS_KEY]."),
    click.Option(["--tlsca"], metavar="FILE", type=_FILE, help="Certificate authority of the server [env: NATS_CA]."),
    click.Option(["--tlsfirst"], is_flag=True, help="TLS handshake before the server's greeting."),
    click.Option(["--js-domain"], metavar="NAME", help="JetStream domain."),
    click.Option(["--js-api-prefix"], metavar="SUBJECT", help="Prefix of the JetStream API, if imported."),
    click.Option(["--inbox-prefix"], metavar="SUBJECT", help="Prefix of reply subjects (default _INBOX)."),
    click.Option(["--timeout"], metavar="DURATION", help="How long to wait for an answer (5s) [env: NATS_TIMEOUT]."),
]


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


def _given(ctx: click.Context, names: Sequence[str], *, environment: bool) -> dict[str, Any]:
    """The parameters of `names` that were given in this context: by the environment, or on the command line."""
    environments = (ParameterSource.ENVIRONMENT,)
    sources = environments if environment else (ParameterSource.COMMANDLINE, ParameterSource.PROMPT)
    return {n: ctx.params[n] for n in names if n in ctx.params and ctx.get_parameter_source(n) in sources}


def merge_shared(ctx: click.Context) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Global values (all), and for each group, `server`, `s3`, `keys`, those given.

    Environment, then before the command, then after it.
    """
    values: dict[str, Any] = {str(o.name): None for o in GLOBAL_OPTIONS}
    values.update(as_json=False, quiet=False, verbose=0, no_progress=False, log_format="text")
    groups: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    levels = [ctx]
    while levels[0].parent is not None:
        levels.insert(0, levels[0].parent)
    for environment in (True, False):
        for level in levels:
            values.update(_given(level, [str(o.name) for o in GLOBAL_OPTIONS], environment=environment))
            for group, options in _GROUPS.items():
                groups[group].update(_given(level, [str(o.name) for o in options], environment=environment))
    return values, groups


class Command(click.Command):
    """A command that takes the shared options too and passes them to its function as `shared`.

    `needs_server` says whether the server options make sense; where they do not, giving one is a usage error.
    """

    def __init__(self, *args: Any, needs_server: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.needs_server = needs_server
        self.own_params = list(self.params)
        shared = [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS]
        self.params = [*self.params, *shared, *(SERVER_OPTIONS if needs_server else [])]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as unknown:
            if not self.needs_server and any(unknown.option_name in option.opts for option in SERVER_OPTIONS):
                raise self._no_server(unknown.option_name) from None
            raise

    def _no_server(self, option: str) -> UsageError:
        return UsageError(f"{option} makes no sense for '{self.name}', which talks to no server", hint="Leave it out.")

    def invoke(self, ctx: click.Context) -> Any:
        values, groups = merge_shared(ctx)
        if groups["server"] and not self.needs_server:
            raise self._no_server("--" + next(iter(groups["server"])).replace("_", "-"))
        for option in [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS]:
            ctx.params.pop(str(option.name), None)
        log_json = values["log_format"] == "json"
        shared = Shared(
            repo=values["repo"],
            verbose=values["verbose"],
            # Bars would stand between lines that a program reads.
            progress=not (values["no_progress"] or values["quiet"] or log_json),
            log_format=values["log_format"],
            output=Output(as_json=values["as_json"], quiet=values["quiet"], log_json=log_json),
            server=groups["server"],
            s3=groups["s3"],
            keys=groups["keys"],
        )
        assert self.callback is not None
        return ctx.invoke(self.callback, shared=shared, **ctx.params)

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


def write_options(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Sequence[click.Parameter]
) -> None:
    """A section of a help text. Arguments are told by the usage line and the text."""
    options = [param for param in params if isinstance(param, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
