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

from jsbackup.cli.output.terminal import clip, printable

__all__ = ["Markup", "clipped", "document", "element", "join", "text"]

_MOST_SHOWN = 120

# Elements without an end tag in HTML.
_VOID = {"meta", "rect", "line", "path", "circle"}


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


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
    allowed = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        Markup(f"<style>{_STYLE}</style>"),
    )
    page = element("html", head, element("body", element("main", *body)), lang="en")
    return f"<!doctype html>\n{page}\n".encode()


def _number(value: float) -> str:
    """Format with two digits after the point, a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


_STYLE = """
:root { --page: #fff; --ink: #1b1f24; --quiet: #59636e; --rule: #d5dae0; --one: #2563c9; --two: #b35900 }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171b; --ink: #e6e9ed; --quiet: #9aa4af; --rule: #353c45; --one: #6ea8fe; --two: #f0a35e }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 76rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--rule) }
h2, h3, caption, td.name { overflow-wrap: anywhere }
h3, caption { font-size: 1rem; font-weight: 600; text-align: left; margin: 0; padding: .25rem 0 }
a { color: var(--one) }
p { margin: .5rem 0; max-width: 60rem }
.quiet { color: var(--quiet) }
.charts { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)) }
.charts > * { min-width: 0 }
.charts > :only-child { max-width: 38rem }
figure { margin: 0 }
svg { display: block; width: 100%; height: auto }
svg text { fill: var(--quiet); font-size: 12px }
svg .rule { stroke: var(--rule); stroke-width: 1 }
svg .one { fill: var(--one) } svg .two { fill: var(--two) } svg .none { fill: var(--rule) }
svg text.small { font-size: 9px }
svg path { fill: none; stroke-width: 2 } svg path.one { fill: none; stroke: var(--one) }
svg path.two { fill: none; stroke: var(--two); stroke-dasharray: 6 3 }
.key { display: inline-block; width: 1.5rem; height: .5rem; margin: 0 .5rem 0 0 } .key + .key { margin-left: 1rem }
svg .hit { fill: transparent } svg g:hover > .hit { fill: var(--ink); fill-opacity: .08 }
.scroll { overflow-x: auto; margin-top: 1rem }
table { border-collapse: collapse; width: 100% }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top }
td.name { min-width: 10rem }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th, .time { white-space: nowrap }
td svg { min-width: 4rem; height: 1.25rem }
summary { cursor: pointer; color: var(--quiet); padding: .25rem 0 }
@media (max-width: 40rem) { svg text { font-size: 16px } }
@media print { details { display: none } }
"""
