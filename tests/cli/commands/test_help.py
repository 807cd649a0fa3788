"""`jsbackup help`: its topics are the pages that there are, and any other word is found or explained."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable
from importlib.resources import files

import pytest

from jsbackup.cli.commands.help import plain
from jsbackup.cli.main import COMMANDS
from tests.cli.typed import Typed
from tests.harness.commands import command_line, environment

Type = Callable[..., Typed]

PAGES = sorted(path.name.removesuffix(".md") for path in files("jsbackup").joinpath("manual").iterdir())


def test_without_a_word_it_lists_every_page(typed: Type) -> None:
    done = typed("help")
    assert (done.code, done.err) == (0, "")
    listed = {line.split()[0] for line in done.out.splitlines()[1:-1]}
    assert listed == set(PAGES) - {"index"}
    document = typed("help", "--json").document
    assert {topic["topic"] for topic in document["topics"]} == listed


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"index"}))
def test_a_page_is_shown_as_plain_text(typed: Type, page: str) -> None:
    done = typed("help", page)
    text = typed("help", page, "--json").document["text"]
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == text.splitlines()[0] and "](" not in done.out and "```" not in done.out
    if "console\n" in text:
        assert "\n    $ jsbackup " in done.out
    # Nothing is lost but the targets of links, the marks of blocks and tables, and the ends of lines.
    words = set(re.sub(r"\[([^]]*)\]\([^)\s]*\)", r"\1", text).split())
    assert sum(word not in done.out for word in words) <= 12


@pytest.mark.parametrize("page", ["backup", "restore", "recipes", "retention", "operate", "s3", "compatibility"])
def test_lines_fit_a_narrow_terminal_but_for_blocks(typed: Type, page: str) -> None:
    lines = typed("help", page).out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("    ")) <= 80


def test_rows_of_a_table_have_columns_and_are_wrapped() -> None:
    head = "| option | what it does |\n| --- | --- |\n"
    rows = "| `--a` | one two three four |\n| `--bcd` | [five](backup.md) |\n"
    assert plain(head + rows, 26).splitlines() == [
        "option   what it does",
        "`--a`    one two three",
        "    four",
        "`--bcd`  five ('jsbackup",
        "    help backup')",
    ]
    assert plain("| | |\n| --- | --- |\n| a | much-too-long |\n", 5) == "a\n    much-too-long\n"


def test_a_command_without_a_page_has_its_help_shown(typed: Type) -> None:
    for line in ("drill", "key add", "key"):
        done = typed("help", *line.split())
        assert done == typed(*line.split(), "--help")
        assert done.out.startswith(f"Usage: jsbackup {line} ")
    assert all(typed("help", name).code == 0 for name in COMMANDS)
    # A page has the name rather than the command.
    assert typed("help", "backup").out.startswith("# ")


def test_other_words_are_found(typed: Type) -> None:
    done = typed("help", "object", "LOCK")
    assert (done.code, done.err) == (0, "")
    assert ["s3", "Object", "lock"] in [line.split() for line in done.out.splitlines()]
    assert typed("help", "restore", "--search").out.startswith("TOPIC")
    for words, line in (
        ("docker", ["profiles", "Schedules"]),
        ("store folder", ["salvage", "From", "the", "files", "alone"]),
        ("lost cluster server-store", ["recipes", "A", "lost", "cluster"]),
    ):
        assert line in [row.split() for row in typed("help", "--search", words).out.splitlines()], words
    found = typed("help", "--search", "ransom", "--json").document
    assert found["words"] == ["ransom"] and {"topic": "recipes", "heading": "Ransom"} in found["found"]


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("retetnion", "nothing in the manual has 'retetnion'", "Did you mean retention?"),
        ("verfiy", "nothing in the manual has 'verfiy'", "Did you mean verify?"),
        ("xyzzy", "nothing in the manual has 'xyzzy'", "See 'jsbackup help' for all topics."),
    ],
)
def test_an_unknown_word_is_a_usage_error_with_what_comes_near(typed: Type, words: str, said: str, hint: str) -> None:
    assert typed("help", words) == Typed(2, "", f"error: {said}\nhint: {hint}\n")


def _in_terminal(*arguments: str) -> str:
    """What a terminal shows where stdout is one."""
    terminal, side = pty.openpty()
    variables = environment(TERM="xterm", PAGER="sed -e s/^/paged:/")
    process = subprocess.Popen(command_line(*arguments), stdin=side, stdout=side, stderr=side, env=variables)
    os.close(side)
    shown = b""
    try:
        while data := os.read(terminal, 1 << 16):
            shown += data
    except OSError:  # Linux: the other side of the terminal is closed
        pass
    finally:
        os.close(terminal)
    assert process.wait(timeout=60) == 0
    return shown.decode()


def test_on_a_terminal_a_page_goes_through_the_pager() -> None:
    assert _in_terminal("help", "latest").startswith("paged:# What `latest` is")
    assert _in_terminal("help", "drill").startswith("paged:Usage: jsbackup drill ")
    assert "paged:" not in _in_terminal("help", "latest", "--json")
