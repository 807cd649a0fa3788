"""Markdown as plain text: paragraphs and tables as wide as the terminal, blocks indented, links as commands to type."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

__all__ = ["plain"]

_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
_PAGE = re.compile(r"([\w-]+)\.md(?:#.*)?")
_ITEM = re.compile(r"- |\d+\. ")
_RULE = re.compile(r"\|[| :-]*-[| :-]*")  # below the header of a table
_GAP = 2  # blanks between columns


def plain(markdown: str, width: int) -> str:
    """Return the text of a page, with lines of at most `width`, except for blocks and longer words."""
    shown: list[str] = []
    paragraph: list[str] = []
    rows: list[list[str]] = []

    def end_paragraph() -> None:
        if paragraph:
            indent = "  " if _ITEM.match(paragraph[0]) else ""
            text = _LINK.sub(_as_command, " ".join(paragraph))
            shown.extend(
                textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
            )
            paragraph.clear()
        if rows:
            shown.extend(_table(rows, width))
            rows.clear()

    in_block = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            end_paragraph()
            in_block = not in_block
        elif in_block:
            shown.append(f"    {line}".rstrip())
        elif line.startswith("|"):
            if not _RULE.fullmatch(line):
                rows.append([_LINK.sub(_as_command, cell.strip()) for cell in line.strip("|").split("|")])
        elif not line or line[0] == "#":
            end_paragraph()
            shown.append(_LINK.sub(_as_command, line))
        else:
            if _ITEM.match(line):
                end_paragraph()
            paragraph.append(line.strip())
    end_paragraph()
    return "\n".join(shown) + "\n"


def _table(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the lines of a table; long cells continue in the next line."""
    columns = list(zip(*rows, strict=True))
    widths = _fit(
        [max(map(len, cells)) for cells in columns],
        [max(len(word) for cell in cells for word in [*cell.split(), ""]) for cells in columns],
        width - _GAP * (len(columns) - 1),
    )
    for number, row in enumerate(rows):
        if not any(row):
            continue
        cells = [
            textwrap.wrap(cell, room or 1, break_long_words=False, break_on_hyphens=False)
            for cell, room in zip(row, widths, strict=True)
        ]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (part.ljust(room) for part, room in zip(parts, widths, strict=True))
            yield (" " * _GAP).join(padded).rstrip()
        if number == 0:
            yield (" " * _GAP).join("-" * room for room in widths)


def _fit(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """Return widths of columns: the widest ones are narrowed until all fit, but not below their longest words."""
    widths = list(natural)
    while sum(widths) > width:
        wider = [column for column, room in enumerate(widths) if room > least[column]]
        if not wider:
            break
        widths[max(wider, key=widths.__getitem__)] -= 1
    return widths


def _as_command(link: re.Match[str]) -> str:
    page = _PAGE.fullmatch(link[2])
    return f"{link[1]} ('jsbackup help {page[1]}')" if page else link[1]
