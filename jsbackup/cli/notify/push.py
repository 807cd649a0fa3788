"""Push metrics to a Prometheus Pushgateway: one PUT, which replaces the previous metrics of the same job.

A login in the URL is sent as HTTP basic authentication, and never shown. Redirects are not followed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from jsbackup.errors import JsBackupError, UsageError

if TYPE_CHECKING:
    from jsbackup.cli.notify.metrics import Metrics

__all__ = ["PushTarget", "parse_push_url", "push_metrics"]

_TIMEOUT_SECONDS = 10.0
_MOST_ANSWER = 2000
_JOB = "jsbackup"
_PATH = f"/metrics/job/{_JOB}"


@dataclass(frozen=True, slots=True)
class PushTarget:
    """The target of a push. Its repr has no login."""

    url: str
    authorization: str | None = field(repr=False)

    def __str__(self) -> str:
        return self.url

    def request(
        self, *, url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
    ) -> Callable[[], None]:
        """Handle requests of `prometheus_client`: for a whole path, without proxies, closing the answer."""
        from urllib.request import ProxyHandler, Request, build_opener

        request = Request(self.url, data, dict(headers), method=method)
        if self.authorization is not None:
            request.add_header("Authorization", self.authorization)

        def send() -> None:
            with build_opener(ProxyHandler({})).open(request, timeout=timeout):
                pass

        return send


def parse_push_url(url: str) -> PushTarget:
    """Parse `http://host:9091`, or a whole path such as `…/metrics/job/backup/instance/a`. Raises UsageError."""
    hint = f"Write http://HOST:9091, which stands for http://HOST:9091{_PATH}, or the whole path."
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError("--push: not a URL", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise UsageError("--push: not the URL of a Pushgateway", hint=hint)
    path = _PATH if parts.path in ("", "/") else parts.path
    if not path.isascii() or any(ord(character) <= 32 or ord(character) == 127 for character in path):
        raise UsageError("--push: its path holds characters that a URL cannot have", hint="Percent-encode them.")
    place = f"[{host}]" if ":" in host else host
    place += "" if port is None else f":{port}"
    return PushTarget(f"{parts.scheme}://{place}{path}", _authorization(parts))


def _authorization(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(login.encode()).decode()}"


def push_metrics(target: PushTarget, metrics: Metrics) -> None:
    """Push metrics. Raises JsBackupError if they are not accepted."""
    # Imported here, because `status --help` should not wait for them.
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError

    from prometheus_client import push_to_gateway

    try:
        push_to_gateway(target.url, _JOB, metrics, timeout=_TIMEOUT_SECONDS, handler=target.request)
    except HTTPError as error:
        with error:
            words = " ".join(error.read(_MOST_ANSWER).decode(errors="replace").split())[:300]
        raise JsBackupError(
            f"cannot push metrics to {target}: it answered {error.code} {words}".rstrip(),
            hint="See that the URL is that of a Pushgateway, and its log.",
        ) from None
    except (OSError, HTTPException, UnicodeError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
        raise JsBackupError(f"cannot push metrics to {target}: {reason.lower()[:300]}") from error
