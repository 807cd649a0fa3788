"""What an address asks for. Anybody may type it, so that all of it is checked; what is wrong is one sentence."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from jsbackup.errors import UsageError
from jsbackup.look.message_filter import MessageFilter
from jsbackup.names import BLANKS
from jsbackup.transforms.cut import Cut, Edge, parse_edge
from jsbackup.transforms.filters.filters import Filters

__all__ = ["Query", "address"]

_LONGEST = 4096  # the longest subject is as long
_MAX_SEQUENCE = (1 << 63) - 1


def address(path: str, **given: object) -> str:
    """Return an address with those of the values that are not empty. Names may have bytes that are not UTF-8."""
    query = urlencode(
        {n.rstrip("_"): str(v) for n, v in given.items() if v not in ("", None)}, errors="surrogateescape"
    )
    return f"{path}?{query}" if query else path


class Query:
    """The parameters of a request. All methods raise UsageError for one that is not valid."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    @classmethod
    def of(cls, request: Request) -> Query:
        raw = request.scope["query_string"].decode("latin-1")
        return cls(dict(parse_qsl(raw, keep_blank_values=True, errors="surrogateescape", max_num_fields=40)))

    def text(self, name: str, default: str = "") -> str:
        found = self._given.get(name, default)
        if len(found) > _LONGEST:
            raise UsageError(f"{name} is too long")
        return found

    def line(self, name: str) -> str:
        """Return a value without surrounding blanks."""
        return self.text(name).strip()

    def needed(self, name: str) -> str:
        found = self.text(name)
        if not found:
            raise UsageError(f"the address lacks {name}", hint="Go to the home page.")
        return found

    def number(self, name: str, most: int = _MAX_SEQUENCE) -> int:
        """Return a number from 0 on, 0 if it is not given."""
        found = self.line(name).replace(",", "")
        if not found:
            return 0
        if not found.isascii() or not found.isdigit() or len(found) > 19 or int(found) > most:
            raise UsageError(f"not a number from 0 to {most}: {found[:40]!r}")
        return int(found)

    def flag(self, name: str) -> bool:
        return self.text(name) not in ("", "0")

    def edge(self, name: str) -> Edge | None:
        """Return a moment or a sequence, as options take them."""
        found = self.line(name)
        return parse_edge(name, found, time.time_ns()) if found else None

    def messages(self) -> MessageFilter:
        """Return which messages are wanted: the options of `view`."""
        subject, header = self.text("subject"), self.line("header")
        cut = Cut.parse(self.line("since") or None, self.line("until") or None, time.time_ns())
        filters = Filters.parse({"subject": re.findall(f"[^{BLANKS}]+", subject), "header": [header] if header else []})
        return MessageFilter.of(cut, filters, self.text("grep"))
