"""The options shared by all commands, as click objects: help texts, profiles and the manual are derived from them."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem

from jsbackup.config import default_config_path, environment, expand_path, read_config
from jsbackup.config.connection import context_names
from jsbackup.config.repository import SSE_KINDS
from jsbackup.errors import JsBackupError

__all__ = ["GLOBAL_OPTIONS", "KEY_OPTIONS", "S3_OPTIONS", "SERVER_OPTIONS"]


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
