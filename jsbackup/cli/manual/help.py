"""`jsbackup help`: show a page of the manual or the help of a command, or search for words."""

from __future__ import annotations

import shutil

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.manual.pages import read_page, search, topics
from jsbackup.cli.manual.plain import plain
from jsbackup.cli.output.output import Output
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared, help_of_all
from jsbackup.config import similar
from jsbackup.errors import UsageError

__all__ = ["COMMANDS"]

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
