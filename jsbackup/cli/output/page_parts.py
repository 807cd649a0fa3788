"""Parts of pages besides charts: tables, foldable sections, figures with a title."""

from __future__ import annotations

from collections.abc import Sequence

from jsbackup.cli.output.page import Markup, element

__all__ = ["cell", "figure", "folded", "number_cell", "table"]


def figure(title: str, *drawn: Markup) -> Markup:
    return element("figure", element("figcaption", element("h3", title)), *drawn)


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Markup]]) -> Markup:
    """Return a table; `>` at the start of a header means numbers."""
    names = [
        element("th", name[1:], scope="col", class_="number")
        if name.startswith(">")
        else element("th", name, scope="col")
        for name in header
    ]
    body = element("tbody", *(element("tr", *row) for row in rows))
    made = element("table", element("caption", caption), element("thead", element("tr", *names)), body)
    # Scrolling elements must be accessible by keyboard too.
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def folded(caption: str, header: Sequence[str], rows: Sequence[Sequence[Markup]]) -> Markup:
    return element("details", element("summary", "Table"), table(caption, header, rows))


def cell(content: str, class_: str = "") -> Markup:
    return element("td", content, class_=class_) if class_ else element("td", content)


def number_cell(content: str) -> Markup:
    return cell(content, "number")
