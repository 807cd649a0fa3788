"""`jsbackup help`: show a page of the manual or the help of a command, or search for words."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.output.result import PlainText, Result, table
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import similar
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

__all__ = ["COMMANDS", "plain", "read_page", "topics"]

_FOLDER = Path(__file__).parents[2] / "manual"
_ENTRY = re.compile(r"^- \[[\w-]+\]\(([\w-]+)\.md\): (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```.*\n", re.MULTILINE)
_HEADING = re.compile(r"^#+ ([A-Z].*)$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
_PAGE = re.compile(r"([\w-]+)\.md(?:#.*)?")
_ITEM = re.compile(r"- |\d+\. ")
_WITHIN = re.compile(r"(?<=[^\n])\n *+(?![\n#|]|- |\d+\. |\Z)")  # the end of a line within a paragraph
_RULE = re.compile(r"\|[| :-]*-[| :-]*")  # below the header of a table
_MOST_PADDED = 32  # of a cell
_WIDEST = 100  # wider text is hard to read


def plain(markdown: str, width: int) -> str:
    """Return the text of a page, with lines of at most `width`, except for blocks and longer words."""
    parts = enumerate(_FENCE.split(markdown))  # text and blocks by turns
    return "".join(textwrap.indent(part, "    ") if number % 2 else _prose(part, width) for number, part in parts)


def _prose(text: str, width: int) -> str:
    shown: list[str] = []
    joined = _LINK.sub(_as_command, _WITHIN.sub(" ", text))
    for in_table, lines in groupby(joined.splitlines(), key=lambda line: line.startswith("|")):
        for line in _padded(lines) if in_table else lines:
            indent = "    " if in_table else "  " if _ITEM.match(line) else ""
            wrapped = textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
            shown += wrapped or [""]
    return "".join(f"{line}\n" for line in shown)


def _padded(lines: Iterable[str]) -> list[str]:
    """Return the rows of a table, with columns as far as no cell is wide."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not _RULE.fullmatch(line)]
    widths = [min(max(map(len, cells)), _MOST_PADDED) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows if any(row)]


def _as_command(link: re.Match[str]) -> str:
    page = _PAGE.fullmatch(link[2])
    return f"{link[1]} ('jsbackup help {page[1]}')" if page else link[1]


def read_page(topic: str) -> str:
    """Return the Markdown of a page."""
    return (_FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def topics() -> dict[str, str]:
    """Return the purpose of each page, by topic."""
    return dict(_ENTRY.findall(read_page("index")))


@click.command("help", cls=Command)
@click.argument(
    "words",
    metavar="[TOPIC]",
    nargs=-1,
    shell_complete=lambda _ctx, _param, incomplete: [
        CompletionItem(name, help=about) for name, about in topics().items() if name.startswith(incomplete)
    ],
)
@click.option("--search", "searches", is_flag=True, help="List where the words are, also if they name a topic.")
@click.pass_context
def show_help(ctx: click.Context, shared: Shared, words: tuple[str, ...], searches: bool) -> Result:
    """Show a page of the manual, or find words in it.

    Without TOPIC, list the topics. TOPIC may also be a command: if no page has its name, its --help is shown.
    Any other word is searched for in all pages.
    """
    name, pages = " ".join(words), topics()
    if not words:
        rows: list[JsonObject] = [{"topic": topic, "about": about} for topic, about in pages.items()]
        hint = "'jsbackup help TOPIC' shows one; 'jsbackup help --search WORD' finds a word in all of them"
        return Result({"topics": rows}, [table(rows, {"TOPIC": "topic", "WHAT IT SAYS": "about"}), hint])
    if not searches and name in pages:
        page, width = read_page(name), min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
        return Result({"topic": name, "text": page}, [PlainText(plain(page, width), paged=True)])
    if not searches and (command := _find_command(ctx, words)) is not None:
        text = command.get_help()
        return Result({"topic": name, "text": text}, [PlainText(text, paged=True)])
    wanted = name.casefold().split()
    chapters: list[JsonObject] = []
    for topic in pages:
        _, *parts = _HEADING.split(read_page(topic))
        for heading, part in zip(parts[::2], parts[1::2], strict=True):
            if all(word in f"{heading}{part}".casefold() for word in wanted):
                chapters.append({"topic": topic, "heading": heading})
    if not chapters:
        root = ctx.find_root()
        assert isinstance(root.command, click.Group)
        near = similar(name, [*pages, *root.command.list_commands(root)])
        hint = f"Did you mean {' or '.join(near)}?" if near else "See 'jsbackup help' for all topics."
        raise UsageError(f"nothing in the manual has {name!r}", hint=hint)
    columns = {"TOPIC": "topic", "CHAPTER": "heading"}
    return Result({"words": list(words), "found": chapters}, [table(chapters, columns)])


def _find_command(ctx: click.Context, words: tuple[str, ...]) -> click.Context | None:
    """Return the context of the command with these words, such as `key add`; None if there is none."""
    context = ctx.find_root()
    for word in words:
        group = context.command
        command = group.get_command(context, word) if isinstance(group, click.Group) else None
        if command is None:
            return None
        context = command.context_class(command, info_name=word, parent=context)
    return context


COMMANDS = {"help": show_help}
