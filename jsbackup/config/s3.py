"""Settings for S3: options, then `JSBACKUP_S3_*`, then the variables of the AWS tools.

Credentials are not included: as usual with AWS, they come from the environment, the files of the AWS configuration or
the machine's role, and never from the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from jsbackup.config.values import parse_bool
from jsbackup.errors import UsageError
from jsbackup.model import S3Settings

__all__ = ["SSE_KINDS", "s3_settings"]

SSE_KINDS = ("AES256", "aws:kms")

_PREFIX = "JSBACKUP_"
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
        names = (_PREFIX + name.upper(), *_AWS_VARIABLES.get(name, ()))
        return next((environ[variable] for variable in names if environ.get(variable)), None)

    path_style = given.get("s3_path_style")
    if path_style is None and (by_environment := text("s3_path_style")) is not None:
        path_style = parse_bool(by_environment)
    sse, key = text("s3_sse"), text("s3_sse_kms_key")
    if sse is not None and sse not in SSE_KINDS:
        raise UsageError(f"not an encryption of S3: {sse!r}", hint=f"Choose from {', '.join(SSE_KINDS)}.")
    if key is not None and sse != "aws:kms":
        raise UsageError("a KMS key is given, but not encryption with KMS", hint="Add --s3-sse aws:kms.")
    return S3Settings(
        endpoint=_endpoint(text("s3_endpoint")),
        region=text("s3_region"),
        profile=text("s3_profile"),
        path_style=None if path_style is None else bool(path_style),
        ca=_authorities(text("s3_ca")),
        sse=sse,
        sse_kms_key=key,
        storage_class=text("s3_storage_class"),
    )


def _endpoint(url: str | None) -> str | None:
    if url is None:
        return None
    hint = "Write it as https://host or http://host:port; credentials go into the environment."
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:  # not chained: it may contain the URL
        raise UsageError("the S3 endpoint cannot be understood", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("the S3 endpoint is not an http or https URL", hint=hint)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise UsageError("the S3 endpoint has more than a host, a port and a path", hint=hint)
    return url


def _authorities(path: str | None) -> str | None:
    if path is None:
        return None
    import ssl  # a help text need not wait for it

    path = str(Path(path).expanduser())
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise UsageError(f"no certificate authorities can be read from {path}", hint="Check --s3-ca.") from error
    return path
