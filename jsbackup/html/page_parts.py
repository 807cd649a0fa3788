"""Parts of pages besides charts: tables, foldable sections, figures with a title."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jsbackup.html.page import Markup, element

__all__ = ["cell", "figure", "folded", "number_cell", "table", "with_labels"]

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)


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
    made = with_labels(element("table", element("caption", caption), element("thead", element("tr", *names)), body))
    # Scrolling elements must be accessible by keyboard too.
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def with_labels(page: str) -> Markup:
    """Return markup with the header of its column at each cell of its tables, for narrow windows: there a row stands
    below the other, and each cell beside its header. Text in the markup has been escaped.
    """
    return Markup(_TABLE.sub(_labelled, page))


def _labelled(table: re.Match[str]) -> str:
    heads = _HEAD.findall(table[0])

    def row(found: re.Match[str]) -> str:
        first, *cells = re.split(r"<td\b", found[0])
        named = zip(heads, cells, strict=False)
        return first + "".join(f'<td data-label="{head}"{cell}' for head, cell in named)

    return _ROW.sub(row, table[0])


def folded(caption: str, header: Sequence[str], rows: Sequence[Sequence[Markup]]) -> Markup:
    return element("details", element("summary", "Table"), table(caption, header, rows))


def cell(content: str, class_: str = "") -> Markup:
    return element("td", content, class_=class_) if class_ else element("td", content)


def number_cell(content: str) -> Markup:
    return cell(content, "number")
