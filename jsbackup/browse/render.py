"""What an address asks for, and the page that answers.

Anybody may type an address, so that all of it is checked; what is wrong is one sentence. On pages all text is escaped,
and what is not visible in it too, unless it is markup of our templates.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jsbackup.browse.library import Library
from jsbackup.browse.overview import overview_environment
from jsbackup.browse.payloads import payload_preview, visible
from jsbackup.config import format_bytes, hide_logins
from jsbackup.errors import UsageError
from jsbackup.look.message import MessageFilter
from jsbackup.names import BLANKS, is_subject
from jsbackup.repository.manifest import Manifest
from jsbackup.shell import quoted_command
from jsbackup.times import format_time
from jsbackup.transforms.cut import Cut, Edge, parse_edge
from jsbackup.transforms.filters.filters import Filters

__all__ = ["Pages", "Query", "address", "browse_environment", "pager", "words_of"]

_LONGEST = 4096  # the longest subject is as long
_MAX_SEQUENCE = (1 << 63) - 1
_MOST_CONFIG = 256 << 10


def address(path: str, **given: object) -> str:
    """Return an address with those of the values that are not empty. Names may have bytes that are not UTF-8."""
    query = urlencode(
        {n.rstrip("_"): str(v) for n, v in given.items() if v not in ("", None)}, errors="surrogateescape"
    )
    return f"{path}?{query}" if query else path


def pager(path: str, start: int, step: int, count: int, **kept: object) -> dict[str, str]:
    """Return the addresses of the parts of a list before and after that from `start` on, "" where it ends."""
    return {
        "earlier": address(path, **kept, start=max(0, start - step)) if start else "",
        "later": address(path, **kept, start=start + step) if start + step < count else "",
    }


def words_of(text: str) -> list[str]:
    return re.findall(f"[^{BLANKS}]+", text)


class Query:
    """The parameters of a request. All methods raise UsageError for one that is not valid."""

    def __init__(self, request: Request) -> None:
        raw: str = request.scope["query_string"].decode("latin-1")
        self._given = dict(parse_qsl(raw, keep_blank_values=True, errors="surrogateescape", max_num_fields=40))

    def text(self, name: str, default: str = "") -> str:
        value = self._given.get(name, default)
        if len(value) > _LONGEST:
            raise UsageError(f"{name} is too long")
        return value

    def line(self, name: str) -> str:
        """Return a value without surrounding blanks."""
        return self.text(name).strip()

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise UsageError(f"the address lacks {name}", hint="Go to the home page.")
        return value

    def number(self, name: str, most: int = _MAX_SEQUENCE) -> int:
        """Return a number from 0 on, 0 if it is not given."""
        typed = self.line(name).replace(",", "") or "0"
        if not typed.isascii() or not typed.isdigit() or len(typed) > 19 or int(typed) > most:
            raise UsageError(f"not a number from 0 to {most}: {typed[:40]!r}")
        return int(typed)

    def flag(self, name: str) -> bool:
        return self.text(name) not in ("", "0")

    def edge(self, name: str) -> Edge | None:
        """Return a moment or a sequence, as options take them."""
        typed = self.line(name)
        return parse_edge(name, typed, time.time_ns()) if typed else None

    def messages(self) -> MessageFilter:
        """Return which messages are wanted: the options of `view`."""
        header = self.line("header")
        cut = Cut.parse(self.line("since") or None, self.line("until") or None, time.time_ns())
        filters = Filters.parse({"subject": words_of(self.text("subject")), "header": [header] if header else []})
        return MessageFilter.of(cut, filters, self.text("grep"))


def browse_environment(**shared: object) -> Environment:
    """Return what renders the pages. `shared` is known to all of them."""
    made = overview_environment(address=address, preview=payload_preview, quoted_command=quoted_command, **shared)
    # `kept`: text whose line breaks count.
    made.filters |= {"exact": format_time, "kept": escape, "config": _config, "logins": hide_logins}
    made.tests["subject"] = is_subject
    return made


def _config(document: Any) -> Markup:
    """Return a configuration, without logins that URLs in it may have."""
    text = hide_logins(json.dumps(document, indent=2, ensure_ascii=False))
    end = f"\n… cut here, of {format_bytes(len(text))}" if len(text) > _MOST_CONFIG else ""
    return escape(visible(text[:_MOST_CONFIG]) + end)


class Pages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, templates: Environment) -> None:
        self._library = library
        self._templates = templates

    def _manifest(self, request: Request) -> Manifest:
        return self._library.manifest(request.path_params["backup"])

    def page(self, request: Request, template: str, code: int = 200, /, **values: object) -> HTMLResponse:
        nonce = request.scope["state"]["nonce"]
        return HTMLResponse(self._templates.get_template(template).render(nonce=nonce, **values), code)
