"""URLs that are asked for so that somebody notices when they no longer are (a dead man's switch).

With `/start` and `/fail` behind it as https://healthchecks.io/docs/http_api/ has it. Whoever has the URL can keep the
switch from telling, so it is a secret: messages name the host alone. No ping holds a command up for longer than some
seconds, and none makes it fail.
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
# Names are looked up and headers read without a bound of their own.
_MOST_SECONDS: Final = 40.0
_TEMPORARY: Final = frozenset({408, 425, 429, *range(500, 600)})


def check_url(url: Secret) -> None:
    """Raises UsageError for what is no URL to ping."""
    text = url.reveal()
    hint = "Write it as https://host/path."
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError:  # not chained: it may quote the URL
        raise UsageError("a ping URL cannot be understood", hint=hint) from None
    if parts.scheme not in ("http", "https") or not host or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError("a ping URL is not an http or https URL", hint=hint)
    if parts.username is not None or parts.password is not None:
        raise UsageError("a ping URL holds a login, which is not supported", hint=hint)


def below(url: Secret, word: str) -> Secret:
    """The URL with another word at the end of its path; a query stays behind it."""
    parts = urlsplit(url.reveal())
    return Secret(urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{word}", fragment="")))


def ping(url: Secret, what: str) -> None:
    """Ask for a URL, again if need be. What comes of it is logged, and no more."""
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
    """What went wrong; nothing if it was answered."""
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
        except (http.client.HTTPException, ValueError):  # they may quote the URL
            problem = "the answer is not HTTP"
    return problem


def _words_of(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else type(reason).__name__
    return text.lower()
