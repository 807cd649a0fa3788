"""Self-contained HTML pages: one file, nothing fetched, no script, light or dark as the reader prefers.

Templates extend `templates/page.html`, and make tables, tiles and charts by the macros of `templates/elements.html`.
All text is escaped when it is written; only markup made by templates stays markup. Invisible characters are shown as on
a terminal, so that no name looks like another. The policy in the page's head only allows this style sheet: even
injected markup could not load or run anything.

Pages are well-formed as XML too, which is how tests read them.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from jsbackup.config import format_bytes
from jsbackup.readable import clip, format_count, format_seconds, printable

__all__ = ["STYLE", "environment"]

_HERE = Path(__file__).parent

STYLE = (_HERE / "style.css").read_text()
"""The style sheet of all pages."""

# The policy allows exactly these bytes.
_STYLE_HASH = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"


def environment(*folders: Path, **shared: object) -> Environment:
    """Return what renders the templates of these folders. `shared` is known to all of them."""
    made = Environment(
        loader=FileSystemLoader([*folders, _HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "bytes": format_bytes,
        "count": format_count,
        "seconds": format_seconds,
        "time": _time,
        "moment": _moment,
        "clip": _clip,
        "labelled": _labelled,
    }
    made.globals |= {"style": Markup(STYLE), "policy": _POLICY, **shared}
    return made


def _shown(value: object) -> object:
    return value if hasattr(value, "__html__") else printable(str(value))


def _clip(text: object, columns: int = 120) -> str:
    return clip(printable(str(text)[: 4 * columns]), columns)


def _time(ns: int) -> str:
    """Format a time in UTC for people; `-` for none."""
    return f"{datetime.fromtimestamp(ns // 10**9, UTC):%Y-%m-%d %H:%M:%S} Z" if ns else "-"


def _moment(text: str) -> str:
    """Return RFC 3339 without fractions of a second, for people."""
    return text[:19].replace("T", " ") + " Z" if text else "-"


def _labelled(rows: Markup, header: Sequence[str]) -> Markup:
    """Return rows of a table with the header of its column at each cell, for narrow windows: there a row stands below
    the other, and each cell beside its header. Text in the markup has been escaped.
    """
    names = cycle([escape(printable(name.removeprefix(">"))) for name in header])
    return Markup(re.sub(r"<td\b", lambda _: f'<td data-label="{next(names)}"', rows))
