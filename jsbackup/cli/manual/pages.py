"""The pages of the manual, and search in them. `index.md` lists them in order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Section", "read_page", "search", "topics"]

_FOLDER = Path(__file__).parents[2] / "manual"
_ENTRY = re.compile(r"^- \[[\w-]+\]\(([\w-]+)\.md\): (.+)$", re.MULTILINE)
_ALSO = {"directory": "folder"}
_HEADING = re.compile(r"^#+ (.*)$")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading of a page, with the text up to the next one."""

    topic: str
    heading: str
    text: str


def read_page(topic: str) -> str:
    """Return the Markdown of a page."""
    return (_FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def topics() -> dict[str, str]:
    """Return the purpose of each page, by topic."""
    return dict(_ENTRY.findall(read_page("index")))


def search(words: Sequence[str]) -> list[Section]:
    """Return the sections that contain all of the words, ignoring case, or what the manual says in their place."""
    wanted = [(word, _ALSO.get(word, word)) for word in " ".join(words).casefold().split()]
    sections = (section for topic in topics() for section in _sections(topic))
    return [
        section for section in sections if all(any(form in section.text.casefold() for form in word) for word in wanted)
    ]


def _sections(topic: str) -> Iterator[Section]:
    heading, lines, in_block = "", list[str](), False
    for line in read_page(topic).splitlines():
        if line.startswith("```"):
            in_block = not in_block
        if not in_block and (found := _HEADING.match(line)):
            if lines:
                yield Section(topic, heading, "\n".join(lines))
            heading, lines = found[1], []
        lines.append(line)
    yield Section(topic, heading, "\n".join(lines))
