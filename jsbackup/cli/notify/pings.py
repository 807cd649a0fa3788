"""Ping URLs, so that missing pings are noticed (a dead man's switch).

With `/start` and `/fail` appended as in https://healthchecks.io/docs/http_api/. Anybody with the URL can keep the
switch from firing, so it is a secret: messages only contain the host. Pings delay a command by some seconds at most,
and never make it fail.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from jsbackup import __version__
from jsbackup.config import Secret
from jsbackup.errors import UsageError

__all__ = ["below", "check_url", "ping"]

_log = logging.getLogger(__name__)

_TRIES: Final = 3
_PAUSE_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 10.0
# Looking up names and reading headers have no timeout of their own.
_MOST_SECONDS: Final = 40.0
_TEMPORARY: Final = frozenset({408, 425, 429, *range(500, 600)})


def check_url(url: Secret) -> None:
    """Raise UsageError if this is not a URL to ping."""
    text = url.reveal()
    hint = "Write it as https://host/path."
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError:  # not chained: it may contain the URL
        raise UsageError("a ping URL cannot be understood", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError("a ping URL is not an http or https URL", hint=hint)
    if parts.username is not None or parts.password is not None:
        raise UsageError("a ping URL holds a login, which is not supported", hint=hint)


def below(url: Secret, word: str) -> Secret:
    """Return the URL with another word at the end of its path; a query stays after it."""
    parts = urlsplit(url.reveal())
    return Secret(urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{word}", fragment="")))


def ping(url: Secret, what: str) -> None:
    """Request a URL, with retries. The result is only logged."""
    said: list[str] = []
    asking = threading.Thread(target=lambda: said.append(_ask(url)), name=f"ping {what}", daemon=True)
    asking.start()
    asking.join(_MOST_SECONDS)
    problem = said[0] if said else f"no answer within {_MOST_SECONDS:g} s"
    host = urlsplit(url.reveal()).hostname
    if problem:
        _log.warning("the ping for %s at %s failed: %s", what, host, problem)
    else:
        _log.info("pinged %s for %s", host, what)


def _ask(url: Secret) -> str:
    """Return what went wrong; "" if it was answered."""
    request = urllib.request.Request(url.reveal(), headers={"User-Agent": f"jsbackup/{__version__}"})
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_SECONDS * attempt)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS):
                return ""
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"answered with {error.code}"
            if error.code not in _TEMPORARY:
                return problem
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            problem = _words_of(reason)
        except (http.client.HTTPException, ValueError):  # they may contain the URL
            problem = "the answer is not HTTP"
    return problem


def _words_of(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
    return text.lower()
