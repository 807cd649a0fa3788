"""Push metrics to a Prometheus Pushgateway: one PUT, which replaces the previous metrics of the same job.

A login in the URL is sent as HTTP basic authentication, and never shown. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import ssl
from base64 import b64encode
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from jsbackup.errors import JsBackupError, UsageError

__all__ = ["PushTarget", "parse_push_url", "push_metrics"]

_TIMEOUT_SECONDS = 10.0
_MOST_ANSWER = 2000
_JOB = "/metrics/job/jsbackup"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class PushTarget:
    """The target of a push. Its repr has no login."""

    tls: bool
    host: str
    port: int | None
    path: str
    authorization: str | None

    def __repr__(self) -> str:
        return f"PushTarget({self})"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.tls else 'http'}://{host}{port}{self.path}"


def parse_push_url(url: str) -> PushTarget:
    """Parse `http://host:9091`, or a whole path such as `…/metrics/job/backup/instance/a`. Raises UsageError."""
    hint = f"Write http://HOST:9091, which stands for http://HOST:9091{_JOB}, or the whole path."
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError("--push: not a URL", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise UsageError("--push: not the URL of a Pushgateway", hint=hint)
    path = _JOB if parts.path in ("", "/") else parts.path
    if not path.isascii() or any(ord(character) <= 32 or ord(character) == 127 for character in path):
        raise UsageError("--push: its path holds characters that a URL cannot have", hint="Percent-encode them.")
    return PushTarget(parts.scheme == "https", host, port, path, _authorization(parts))


def _authorization(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(login.encode()).decode()}"


def push_metrics(target: PushTarget, metrics: bytes) -> None:
    """Push metrics. Raises JsBackupError if they are not accepted."""
    connection = (
        http.client.HTTPSConnection(
            target.host, target.port, timeout=_TIMEOUT_SECONDS, context=ssl.create_default_context()
        )
        if target.tls
        else http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT_SECONDS)
    )
    headers = {"Content-Type": _TYPE}
    headers |= {} if target.authorization is None else {"Authorization": target.authorization}
    try:
        connection.request("PUT", target.path, metrics, headers)
        with connection.getresponse() as response:  # which may own the connection by now
            status, said = response.status, response.read(_MOST_ANSWER).decode(errors="replace")
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise JsBackupError(f"cannot push metrics to {target}: {reason.lower()[:300]}") from error
    finally:
        connection.close()
    if status not in (200, 202):
        words = " ".join(said.split())[:300]
        raise JsBackupError(
            f"cannot push metrics to {target}: it answered {status} {words}".rstrip(),
            hint="See that the URL is that of a Pushgateway, and its log.",
        )
