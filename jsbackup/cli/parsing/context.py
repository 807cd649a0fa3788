"""The options shared by all commands, as click objects: help texts, profiles and the manual are derived from them. And
their values from all places: before or after the command's name, in a profile, in the environment. One after the name
wins over one before it, both win over a profile, and all of them over the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from jsbackup.cli.output.output import Output
from jsbackup.cli.parsing.typed_values import Choosing, WholeNumber, check_amounts
from jsbackup.config import default_config_path, environment, expand_path, read_config, similar
from jsbackup.config.repository import SSE_KINDS
from jsbackup.errors import JsBackupError, UsageError

if TYPE_CHECKING:
    from jsbackup.cli.profiles.profiles import Profile

__all__ = [
    "COMPLETE_VARIABLE",
    "GIVEN",
    "GLOBAL_OPTIONS",
    "HELP_ALL",
    "INTERRUPTED",
    "KEY_OPTIONS",
    "OF_BACKUPS",
    "S3_OPTIONS",
    "SERVER_OPTIONS",
    "CommandContext",
    "HelpGroup",
    "LastOutput",
    "Shared",
    "contexts_of",
    "gathered",
    "given_in",
    "jobs_option",
    "merge_shared",
    "over",
    "usage_error",
    "write_options",
    "write_shared_options",
]

F = TypeVar("F", bound=Callable[..., Any])

# Set by a shell when it requests completions.
COMPLETE_VARIABLE = "_JSBACKUP_COMPLETE"

INTERRUPTED = "interrupted; what was committed before is untouched"

# Arguments that name a backup.
OF_BACKUPS = ("backup", "a", "b")

# Sources of values that someone chose: typed, or in the profile.
GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


class _Completed(click.types.StringParamType):
    """A text that shells complete as a `kind` of path. It is checked when it is opened."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type=self.kind)]


class _ProfileName(click.types.StringParamType):
    """The name of a profile. Shells complete those of the already named file, or of the default one."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        variables = environment()
        with suppress(JsBackupError):  # errors are not shown while typing
            named = ctx.params.get("config") or ctx.find_root().params.get("config")
            path = expand_path(named, variables) if named else default_config_path(variables)
            return [CompletionItem(name) for name in read_config(path).profiles if name.startswith(incomplete)]
        return []


class _ContextName(click.types.StringParamType):
    """The name of a context of the nats CLI."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from jsbackup.config.connection import context_names

        with suppress(JsBackupError):
            return [CompletionItem(name) for name in context_names(environment()) if name.startswith(incomplete)]
        return []


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
    click.Option(["-q", "--quiet"], is_flag=True, help="Print nothing if all goes well."),
    click.Option(["-v", "--verbose"], count=True, help="Log what is done, with server advisories; twice for more."),
    click.Option(["--no-progress"], is_flag=True, help="Show no progress bars."),
    click.Option(
        ["--log-format"], type=click.Choice(["text", "json"]), default="text", help="Form of log lines on stderr."
    ),
    click.Option(["--lock-timeout"], metavar="DURATION", help="Wait so long for locks of other commands (11m)."),
    click.Option(
        ["--config"],
        metavar="FILE",
        type=_FILE,
        envvar="JSBACKUP_CONFIG",
        help="The file of profiles (~/.config/jsbackup/config.toml) [env: JSBACKUP_CONFIG].",
    ),
    click.Option(
        ["--profile"],
        metavar="NAME",
        type=_ProfileName(),
        multiple=True,
        envvar="JSBACKUP_PROFILE",
        help="Take options from this profile; with several, or a glob such as 'prod-*', the command runs once for each "
        "[env: JSBACKUP_PROFILE].",
    ),
]

# Their environment is read where their values are checked: `jsbackup.config.repository`.
S3_OPTIONS: list[click.Option] = [
    click.Option(
        ["--s3-endpoint"], metavar="URL", help="URL of the S3 store; by default Amazon's [env: JSBACKUP_S3_ENDPOINT]."
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
    click.Option(
        ["--s3-sse-kms-key"], metavar="ID", help="KMS key for --s3-sse aws:kms [env: JSBACKUP_S3_SSE_KMS_KEY]."
    ),
    click.Option(
        ["--s3-storage-class"], metavar="CLASS", help="Storage class of objects [env: JSBACKUP_S3_STORAGE_CLASS]."
    ),
]

# Likewise: `jsbackup.config.repository`. None of them is a secret, which would be visible in a process list.
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
        help="Root signing key that all signatures have to come from, as 'init' and 'key list' print it [env: "
        "JSBACKUP_EXPECT_SIGNER].",
    ),
]

SERVER_OPTIONS: list[click.Option] = [
    click.Option(["-s", "--server"], metavar="URL", help="Server URLs, comma separated [env: NATS_URL]."),
    click.Option(
        ["--context"], metavar="NAME", type=_ContextName(), help="A context of the nats CLI [env: NATS_CONTEXT]."
    ),
    click.Option(["--creds"], metavar="FILE", type=_FILE, help="Credentials file [env: NATS_CREDS]."),
    click.Option(["--nkey"], metavar="FILE", type=_FILE, help="NKey seed file [env: NATS_NKEY]."),
    click.Option(["--user"], metavar="NAME", help="User name [env: NATS_USER]."),
    click.Option(["--password"], metavar="TEXT", help="Password; prefer NATS_PASSWORD."),
    click.Option(["--password-file"], metavar="FILE", type=_FILE, help="File that holds the password."),
    click.Option(["--password-command"], metavar="COMMAND", help="Command that prints the password."),
    click.Option(["--token"], metavar="TEXT", help="Token; prefer NATS_TOKEN."),
    click.Option(["--token-file"], metavar="FILE", type=_FILE, help="File that holds the token."),
    click.Option(["--token-command"], metavar="COMMAND", help="Command that prints the token."),
    click.Option(["--tlscert"], metavar="FILE", type=_FILE, help="Client certificate [env: NATS_CERT]."),
    click.Option(["--tlskey"], metavar="FILE", type=_FILE, help="Key of the client certificate [env: NATS_KEY]."),
    click.Option(["--tlsca"], metavar="FILE", type=_FILE, help="Certificate authority of the server [env: NATS_CA]."),
    click.Option(["--tlsfirst"], is_flag=True, help="TLS handshake before the server's greeting."),
    click.Option(["--js-domain"], metavar="NAME", help="JetStream domain."),
    click.Option(["--js-api-prefix"], metavar="SUBJECT", help="Prefix of the JetStream API, if imported."),
    click.Option(["--inbox-prefix"], metavar="SUBJECT", help="Prefix of reply subjects (default _INBOX)."),
    click.Option(["--timeout"], metavar="DURATION", help="How long to wait for an answer (5s) [env: NATS_TIMEOUT]."),
]

# The options in a set are alternatives: one from above replaces any of them from below.
_ALTERNATIVES: Final = tuple(
    frozenset(f"{prefix}{name}" for name in names)
    for prefix in ("", "to_")
    for names in (
        ("js_domain", "js_api_prefix"),
        ("writer_key", "writer_key_command"),
        ("identity", "identity_command"),
        ("passphrase_file", "passphrase_command"),
        ("sample", "max_bytes"),
    )
)
_PASSWORDS: Final = frozenset({"password", "password_file", "password_command"})
# Groups of which only given options count.
_GROUPS = {"server": SERVER_OPTIONS, "s3": S3_OPTIONS, "keys": KEY_OPTIONS}


@dataclass(frozen=True, slots=True)
class Shared:
    """The values of the shared options."""

    repo: str | None
    verbose: int
    progress: bool
    log_format: str
    output: Output
    lock_timeout: str = "11m"  # longer than the lease of a killed command
    server: Mapping[str, Any] = field(default_factory=dict)  # the given server options, by parameter name
    s3: Mapping[str, Any] = field(default_factory=dict)  # likewise for S3
    keys: Mapping[str, Any] = field(default_factory=dict)  # likewise for keys; none of them is a secret
    variables: str = "JSBACKUP_"  # prefix of the variables for options of the repository
    server_named: bool = False  # by a profile: the environment and the selected context are ignored
    profile: str = ""  # "" without one
    config: Path | None = None  # the file of the profile
    choosing: Choosing = field(default_factory=Choosing)  # --origin and --tag


@dataclass(slots=True)
class LastOutput:
    """How to print errors: as the command does once that is known. The root context's `obj`."""

    output: Output


class HelpGroup(click.Group):
    """A group of commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, args)
        check_amounts(ctx)
        return left

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not ctx.resilient_parsing:
            near = similar(args[0], known)
            hint = f"Did you mean {' or '.join(near)}?" if near else f"See '{ctx.command_path} --help'."
            raise UsageError(f"no such command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)


def usage_error(wrong: click.ClickException) -> UsageError:
    """Convert any error of click's to ours: one sentence, and a hint."""
    context = wrong.ctx if isinstance(wrong, click.UsageError) else None
    hint = f"See '{context.command_path if context else 'jsbackup'} --help'."
    if isinstance(wrong, click.NoSuchOption):
        hint = f"Did you mean {wrong.possibilities[0]}?" if wrong.possibilities else hint
        return UsageError(f"no such option {wrong.option_name}", hint=hint)
    text = " ".join(wrong.format_message().split()).rstrip(".")
    return UsageError(text[:1].lower() + text[1:], hint=hint)


class CommandContext(click.Context):
    """The context of a `Command`, with the values of its profile.

    `only` is the profile it is for, if several were named; `print_to` then makes its output.
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
        self.several = False  # the command runs once for each of the names
        self.config_path: Path | None = None
        self.profile: Profile | None = None
        self.from_profile: Mapping[str, Any] = {}  # by parameter name

    @property
    def table(self) -> str:
        """Return the command's name as a table of a profile: `backup`, `key.add`."""
        return ".".join(self.command_path.split()[1:])


def given_in(ctx: click.Context, names: Iterable[str], *, environment: bool) -> dict[str, Any]:
    """Return the parameters of `names` that were given in this context: in the environment, or on the command line."""
    environments = (ParameterSource.ENVIRONMENT,)
    sources = environments if environment else (ParameterSource.COMMANDLINE, ParameterSource.PROMPT)
    return {n: ctx.params[n] for n in names if n in ctx.params and ctx.get_parameter_source(n) in sources}


def contexts_of(ctx: click.Context) -> list[click.Context]:
    """Return the context and its parents, the topmost first."""
    return [ctx] if ctx.parent is None else [*contexts_of(ctx.parent), ctx]


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `below`, by parameter name, without those that contradict options `above`."""
    from jsbackup.config.connection import LOGIN_NAMES

    replaced = {name for names in _ALTERNATIVES if names & above.keys() for name in names}
    for prefix in ("", "to_"):
        login = {f"{prefix}{name}" for name in LOGIN_NAMES}
        passwords = {f"{prefix}{name}" for name in _PASSWORDS}
        given = login & above.keys()
        if given and given <= passwords:
            replaced |= login - {f"{prefix}user"}
        elif given or "@" in str(above.get(f"{prefix}server", "")):
            replaced |= login
        if f"{prefix}context" in above:  # it is a server with its login
            replaced |= {*login, f"{prefix}server"}
    return {name: value for name, value in below.items() if name not in replaced} | dict(above)


def merge_shared(ctx: click.Context) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return all global values, and for each group, `server`, `s3`, `keys`, those given.

    Precedence, lowest first: environment, profile, before the command, after it.
    """
    own = [str(option.name) for option in GLOBAL_OPTIONS]
    values: dict[str, Any] = dict.fromkeys(own)
    values.update(
        as_json=False, quiet=False, verbose=0, no_progress=False, log_format="text", lock_timeout="11m", profile=()
    )
    names = [*own, *(str(option.name) for options in _GROUPS.values() for option in options)]
    levels = contexts_of(ctx)
    given: dict[str, Any] = {}
    for level in levels:
        values.update(given_in(level, own, environment=True))
        given.update(given_in(level, names, environment=False))
    if isinstance(ctx, CommandContext) and ctx.from_profile:
        given = over(ctx.from_profile, given)
    values.update({name: given[name] for name in own if name in given})
    groups = {
        group: {str(o.name): given[str(o.name)] for o in options if str(o.name) in given}
        for group, options in _GROUPS.items()
    }
    return values, groups


jobs_option = click.option(
    "--jobs", type=WholeNumber(1, 64), metavar="N", default=4, show_default=True, help="Streams at the same time."
)


def gathered(
    into: str, names: Collection[str], make: Callable[..., object], options: Sequence[Callable[[Any], Any]]
) -> Callable[[F], F]:
    """Return a decorator that adds options, and passes what `make` returns for their values, by `names`, as `into`."""

    def decorate(command: F) -> F:
        @wraps(command)
        def run(*arguments: Any, **values: Any) -> Any:
            given = {name: values.pop(name) for name in names if name in values}
            return command(*arguments, **{into: make(**given)}, **values)

        for option in reversed(options):
            option(run)
        return cast(F, run)

    return decorate


def _print_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_ALL = "jsbackup.help_all"
HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show also options of servers, S3, keys, logs.",
)


def wants_all(ctx: click.Context) -> bool:
    """Return whether the help of this command should include the shared options."""
    return _ALL in ctx.meta


def write_options(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, params: Sequence[click.Parameter]
) -> None:
    """Write a section of a help text. Arguments are explained by the usage line and the text."""
    options = [param for param in params if isinstance(param, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26)


def write_shared_options(ctx: click.Context, formatter: click.HelpFormatter, side: str, *, server: bool = True) -> None:
    """Write the options that may also be typed on the other side, `before` or `after`, of the command."""
    for title, options in (
        ("Server options", SERVER_OPTIONS if server else []),
        ("Global options", GLOBAL_OPTIONS),
        ("S3 options, for s3://bucket/prefix", S3_OPTIONS),
        ("Keys, for encrypted or signed repositories", KEY_OPTIONS),
    ):
        write_options(ctx, formatter, f"{title} (also {side} the command)", options)
