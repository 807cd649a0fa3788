"""The repository's settings: keys for it, for masks and of a server's store, and S3.

Keys come from a file, a command or the environment, never from the command line. Each has an option for a file, all but
the key for masks one for a command, and three variables: the secret itself, a file, a command (`JSBACKUP_WRITER_KEY`,
`…_FILE`, `…_COMMAND`). An option wins over all variables; two options, or two variables, are an error. Commands are
split as by a shell, run without one, and may ask questions on the terminal; their output is the secret. Messages never
contain a secret.

For S3 there are options, then `JSBACKUP_S3_*`, then the variables of the AWS tools. Credentials are not included: as
usual with AWS, they come from the environment, the files of the AWS configuration or the machine's role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from jsbackup.config.secrets import expand_path, output_of, read_binary_file
from jsbackup.config.values import parse_bool
from jsbackup.errors import UsageError
from jsbackup.model import S3Settings

__all__ = [
    "SSE_KINDS",
    "KeySecrets",
    "key_secrets",
    "mask_secret",
    "new_writer_key_file",
    "s3_settings",
    "secret_file",
    "server_store_keys",
]


_PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, repr=False)
class KeySecrets:
    """The given secrets, as bytes of a file; None if not given. `expect_signer` is a public key, 64 hex digits."""

    writer_key: bytes | None = None
    identity: bytes | None = None
    passphrase: bytes | None = None
    expect_signer: str | None = None


@dataclass(frozen=True, slots=True)
class _Way:
    """How one secret is given: parameters of its options, and the start of its variables."""

    what: str
    file: str
    command: str
    variable: str


_WRITER_KEY: Final = _Way("writer key", "writer_key", "writer_key_command", "JSBACKUP_WRITER_KEY")
_IDENTITY: Final = _Way("identity", "identity", "identity_command", "JSBACKUP_IDENTITY")
_MASK_KEY: Final = _Way("mask key", "mask_key_file", "", "JSBACKUP_MASK_KEY")
_STORE_KEY: Final = _Way("key of the server's store", "store_key_file", "store_key_command", "JSBACKUP_STORE_KEY")
_PASSPHRASE: Final = _Way("passphrase", "passphrase_file", "passphrase_command", "JSBACKUP_PASSPHRASE")


def key_secrets(given: Mapping[str, object], environ: Mapping[str, str]) -> KeySecrets:
    """Return the secrets from the options that were `given`, by parameter name (`writer_key` …), and the environment.
    Bytes in place of the name of a file are its content.

    Runs the commands. Raises UsageError if one cannot be read, or is given twice.
    """
    signer = given.get("expect_signer") or environ.get("JSBACKUP_EXPECT_SIGNER") or None
    if signer is not None and not _PUBLIC_KEY.fullmatch(str(signer)):
        raise UsageError(
            "the expected signer is not a public key", hint="It has 64 hex digits; `jsbackup init` prints it."
        )
    return KeySecrets(
        writer_key=_secret(_WRITER_KEY, given, environ),
        identity=_secret(_IDENTITY, given, environ),
        passphrase=_secret(_PASSPHRASE, given, environ),
        expect_signer=None if signer is None else str(signer),
    )


def mask_secret(given: Mapping[str, object], environ: Mapping[str, str]) -> bytes:
    """Return the key for hashes of masks, b"" if not given. Line ends after it are ignored. Raises UsageError."""
    return (_secret(_MASK_KEY, given, environ) or b"").rstrip(b"\r\n")


def server_store_keys(given: Mapping[str, object], environ: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the keys of a nats-server's store, of several files if it had another key before; empty if not given.

    A line end after a key is ignored. Raises UsageError.
    """
    files = given.get(_STORE_KEY.file)
    names = files if isinstance(files, tuple) and files else (None,)
    secrets = (_secret(_STORE_KEY, {**given, _STORE_KEY.file: name}, environ) for name in names)
    return tuple(key for secret in secrets if secret is not None and (key := secret.rstrip(b"\r\n")))


def new_writer_key_file(given: Mapping[str, object], environ: Mapping[str, str]) -> Path | None:
    """Return where a new writer key should be stored; None if that was not given."""
    name = given.get(_WRITER_KEY.file) or environ.get(f"{_WRITER_KEY.variable}_FILE")
    return expand_path(str(name), environ) if name else None


def secret_file(name: str, what: str, environ: Mapping[str, str]) -> bytes:
    """Return the content of a file; `~` and `$VAR` in its name are expanded. Raises UsageError."""
    return read_binary_file(expand_path(name, environ), f"{what} file")


def _secret(way: _Way, given: Mapping[str, object], environ: Mapping[str, str]) -> bytes | None:
    file, command = given.get(way.file), given.get(way.command)
    if isinstance(file, bytes):
        return file
    value, variables = None, [way.variable, f"{way.variable}_FILE", f"{way.variable}_COMMAND"]
    if not file and not command:
        value, file, command = map(environ.get, variables)
    if len([given_way for given_way in (value, file, command) if given_way]) > 1:
        hint = f"Give a file or a command, or set one of {', '.join(variables)}."
        raise UsageError(f"the {way.what} is given twice", hint=hint)
    if command:
        return output_of(str(command), way.what)
    if file:
        return secret_file(str(file), way.what, environ)
    return value.encode("utf-8", "surrogateescape") if value else None


SSE_KINDS = ("AES256", "aws:kms")

# Used if our own variables are not set.
_AWS_VARIABLES = {
    "s3_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}


def s3_settings(given: Mapping[str, object], environ: Mapping[str, str]) -> S3Settings:
    """Return the settings from the options that were `given`, by parameter name (`s3_endpoint` …), and the environment.

    Raises:
        UsageError: a value is not valid, or two of them contradict each other.
    """

    def text(name: str) -> str | None:
        option = given.get(name)
        if option is not None:
            return str(option)
        names = (f"JSBACKUP_{name.upper()}", *_AWS_VARIABLES.get(name, ()))
        return next((environ[variable] for variable in names if environ.get(variable)), None)

    path_style = given.get("s3_path_style")
    if path_style is None and (by_environment := text("s3_path_style")) is not None:
        path_style = parse_bool(by_environment)
    endpoint, ca, sse, key = map(text, ("s3_endpoint", "s3_ca", "s3_sse", "s3_sse_kms_key"))
    if sse is not None and sse not in SSE_KINDS:
        raise UsageError(f"not an encryption of S3: {sse!r}", hint=f"Choose from {', '.join(SSE_KINDS)}.")
    if key is not None and sse != "aws:kms":
        raise UsageError("a KMS key is given, but not encryption with KMS", hint="Add --s3-sse aws:kms.")
    return S3Settings(
        endpoint=None if endpoint is None else _endpoint(endpoint),
        region=text("s3_region"),
        profile=text("s3_profile"),
        path_style=None if path_style is None else bool(path_style),
        ca=None if ca is None else _authorities(ca),
        sse=sse,
        sse_kms_key=key,
        storage_class=text("s3_storage_class"),
    )


def _endpoint(url: str) -> str:
    hint = "Write it as https://host or http://host:port; credentials go into the environment."
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:  # not chained: it may contain the URL
        raise UsageError("the S3 endpoint cannot be understood", hint=hint) from None
    more = parts.username is not None or parts.password is not None or parts.query or parts.fragment
    printable = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or not printable or more:
        raise UsageError("the S3 endpoint is not an http or https URL of a host, a port and a path", hint=hint)
    return url


def _authorities(path: str) -> str:
    import ssl  # a help text need not wait for it

    path = str(Path(path).expanduser())
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise UsageError(f"no certificate authorities can be read from {path}", hint="Check --s3-ca.") from error
    return path
