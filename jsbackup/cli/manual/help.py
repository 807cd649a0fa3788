"""`jsbackup help`: show a page of the manual or the help of a command, or search for words."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.output.output import Output
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared, help_of_all
from jsbackup.config import similar
from jsbackup.errors import UsageError

__all__ = ["COMMANDS", "Section", "plain", "read_page", "search", "topics"]

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


_OPTIONS = "options"  # those that commands share
_WIDEST = 100  # wider text is hard to read


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=about) for name, about in topics().items() if name.startswith(incomplete)]


@click.command("help", cls=Command)
@click.argument("words", metavar="[TOPIC]", nargs=-1, shell_complete=_complete)
@click.option("--search", "searches", is_flag=True, help="List where the words are, also if they name a topic.")
@click.pass_context
def show_help(ctx: click.Context, shared: Shared, words: tuple[str, ...], searches: bool) -> None:
    """Show a page of the manual, or find words in it.

    Without TOPIC, list the topics. TOPIC may also be a command: if no page has its name, its --help is shown.
    'options' are those that commands share. Any other word is searched for in all pages.
    """
    output, name = shared.output, " ".join(words)
    if searches and not words:
        raise UsageError("no word to look for", hint="Type one or more after --search.")
    if not words:
        output.result(
            {"topics": [{"topic": topic, "about": about} for topic, about in topics().items()]},
            lambda: _list_topics(output),
        )
    elif not searches and name in topics():
        page = read_page(name)
        output.result({"topic": name, "text": page}, lambda: output.paged(plain(page, _width())))
    elif not searches and name == _OPTIONS:
        text = help_of_all(ctx.find_root())
        output.result({"topic": name, "text": text}, lambda: output.paged(text))
    elif not searches and (command := _find_command(ctx, words)) is not None:
        text = command.get_help()
        output.result({"topic": name, "text": text}, lambda: output.paged(text))
    else:
        _find(ctx, output, words)


def _list_topics(output: Output) -> None:
    output.table(["TOPIC", "WHAT IT SAYS"], topics().items())
    output.line("'jsbackup help options' lists the options that commands share")
    output.line("'jsbackup help TOPIC' shows one; 'jsbackup help --search WORD' finds a word in all of them")


def _find_command(ctx: click.Context, words: tuple[str, ...]) -> click.Context | None:
    """Return the context of the command with these words, such as `key add`; None if there is none."""
    found = ctx.find_root()
    for word in words:
        command = found.command
        inner = command.get_command(found, word) if isinstance(command, click.Group) else None
        if inner is None:
            return None
        found = inner.context_class(inner, info_name=word, parent=found)
    return found


def _find(ctx: click.Context, output: Output, words: tuple[str, ...]) -> None:
    found = search(words)
    if not found:
        root = ctx.find_root()
        assert isinstance(root.command, click.Group)
        near = similar(" ".join(words), [*topics(), *root.command.list_commands(root)])
        hint = f"Did you mean {' or '.join(near)}?" if near else "See 'jsbackup help' for all topics."
        raise UsageError(f"nothing in the manual has {' '.join(words)!r}", hint=hint)
    document = {"words": list(words), "found": [{"topic": one.topic, "heading": one.heading} for one in found]}
    output.result(document, lambda: output.table(["TOPIC", "CHAPTER"], [(one.topic, one.heading) for one in found]))


def _width() -> int:
    return min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)


COMMANDS = {"help": show_help}
