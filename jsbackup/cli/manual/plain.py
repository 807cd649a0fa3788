"""Markdown as plain text for a terminal: paragraphs in its width, blocks indented, links as commands to type."""

from __future__ import annotations

import re
import textwrap

__all__ = ["plain"]

_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
_PAGE = re.compile(r"([\w-]+)\.md(?:#.*)?")
_ITEM = re.compile(r"- |\d+\. ")


def plain(markdown: str, width: int) -> str:
    """The text of a page, with lines of at most `width` but for tables and blocks."""
    shown: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        if paragraph:
            indent = "  " if _ITEM.match(paragraph[0]) else ""
            text = _LINK.sub(_as_command, " ".join(paragraph))
            shown.extend(
                textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
            )
            paragraph.clear()

    in_block = False
    for line in markdown.splitlines():
        if line.startswith("```"):
            end_paragraph()
            in_block = not in_block
        elif in_block:
            shown.append(f"    {line}".rstrip())
        elif not line or line[0] in "#|":
            end_paragraph()
            shown.append(_LINK.sub(_as_command, line))
        else:
            if _ITEM.match(line):
                end_paragraph()
            paragraph.append(line.strip())
    end_paragraph()
    return "\n".join(shown) + "\n"


def _as_command(link: re.Match[str]) -> str:
    page = _PAGE.fullmatch(link[2])
    return f"{link[1]} ('jsbackup help {page[1]}')" if page else link[1]
