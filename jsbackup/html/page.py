"""Self-contained HTML pages: one file, nothing fetched, no script, light or dark as the reader prefers.

All text is escaped when it becomes part of an element; only the result is markup. Invisible characters are shown as on
a terminal, so that no name looks like another. The policy in the page's head only allows this style sheet: even
injected markup could not load or run anything.

Pages are well-formed as XML too, which is how tests read them.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from html import escape
from pathlib import Path

from jsbackup.readable import clip, printable

__all__ = ["STYLE", "Markup", "clipped", "document", "element", "join", "text"]

_MOST_SHOWN = 120

STYLE = (Path(__file__).parent / "style.css").read_text()
"""The style sheet of all pages."""

# Elements without an end tag in HTML.
_VOID = {"meta", "rect", "line", "path", "circle"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    def __html__(self) -> str:
        """Tell templates that it needs no escaping."""
        return str(self)


def text(value: str) -> Markup:
    """Escape text for HTML, including invisible characters and those that change directions."""
    return Markup(escape(printable(value)))


def clipped(value: str) -> str:
    """Return untrusted text, shortened for a page."""
    return clip(printable(value[: _MOST_SHOWN + 1]), _MOST_SHOWN)


def element(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Return an element. Children are text unless they are markup; attributes are named as in `class_` and
    `http_equiv`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value) if not isinstance(value, str) else text(value)}"'
        for key, value in attributes.items()
    )
    if name in _VOID:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(*children)}</{name}>")


def join(*parts: str) -> Markup:
    """Join parts; those that are not markup are escaped."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


def document(title: str, *body: str) -> bytes:
    """Return the whole page."""
    # The policy allows exactly these bytes.
    allowed = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        Markup(f"<style>{STYLE}</style>"),
    )
    page = element("html", head, element("body", element("main", *body)), lang="en")
    return f"<!doctype html>\n{page}\n".encode()


def _number(value: float) -> str:
    """Format with two digits after the point, a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
