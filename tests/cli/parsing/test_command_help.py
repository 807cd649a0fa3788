"""What helps end with: examples that are command lines, exit codes of the contract, commands that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from jsbackup.cli.commands.help import read_page, topics
from jsbackup.cli.main import COMMANDS, cli
from jsbackup.cli.parsing.command import Command, command_help
from jsbackup.exit_codes import EXIT_CODES
from tests.cli.typed import Typed


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    ctx = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", one) for inner, one in command.commands.items())
        else:
            yield name, command


COMMAND_HELP = command_help()
EXAMPLES = [(name, line) for name, told in COMMAND_HELP.items() for line in told.examples]


def test_every_command_is_explained() -> None:
    commands = dict(_commands())
    assert commands.keys() == COMMAND_HELP.keys()
    for name, command in commands.items():
        assert isinstance(command, Command)
        codes = COMMAND_HELP[name].exit_codes
        assert not command.needs_server or 20 in codes, name
        assert not command.unattended or "same run" in codes[11], name
    for told in COMMAND_HELP.values():
        assert told.examples and told.exit_codes.keys() <= EXIT_CODES.keys()
        assert {0, 2, 130} <= told.exit_codes.keys()
        assert set(told.see_also) <= set(COMMAND_HELP)


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_is_a_command_line(name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[profiles.shop]\nrepo = "/r"\n[profiles.reports]\nrepo = "/r"\n')
    monkeypatch.setenv("JSBACKUP_CONFIG", str(config))
    program, *words = shlex.split(line)
    words = words[: words.index(">")] if ">" in words else words
    assert program == "jsbackup" and " ".join(words[: len(name.split())]) == name
    ran = []
    with cli.make_context("jsbackup", words) as ctx:
        command: click.Command = cli
        rest = words
        while isinstance(command, click.Group):
            found = command.get_command(ctx, rest[0])
            assert found is not None
            command, rest = found, rest[1:]
            if isinstance(command, click.Group):
                ctx = click.Context(command, parent=ctx, info_name=command.name)
        assert isinstance(command, Command)
        if "--config" in rest:
            rest = [word if word != "./config.toml" else str(config) for word in rest]
        # Parsed to the end, with types and the profile; that it was not run is the business of other tests.
        with command.make_context(name.split()[-1], list(rest), parent=ctx) as inner:
            ran.append(inner.command.name)
    assert ran == [command.name]


@pytest.mark.parametrize("name", sorted(COMMAND_HELP))
def test_help_ends_as_a_man_page_does(name: str, typed: Callable[..., Typed]) -> None:
    done = typed(*name.split(), "--help")
    told = COMMAND_HELP[name]
    assert done.code == 0
    end = done.out[done.out.index("\nExamples:") :]
    for line in told.examples:
        assert f"\n  {line}\n" in end.replace(" \\\n      ", " ")  # to be copied
    codes = end[end.index("\nExit codes:") :].split("\nSee also:")[0]
    shown = [int(line.split()[0]) for line in codes.splitlines() if line[2:3].isdigit()]
    assert shown == sorted(told.means)
    others = re.findall(r"\d+", " ".join(codes[codes.index("\n  Also") :].split()))
    assert sorted([*shown, *map(int, others)]) == list(told.exit_codes)
    for other in told.see_also:
        assert f"jsbackup {other}" in " ".join(end.split())
    if name != "help":
        assert f"jsbackup help {told.page}" in " ".join(end.split())


def test_every_command_leads_to_a_page_that_names_it() -> None:
    pages = {name: told.page for name, told in COMMAND_HELP.items() if told.page}
    assert pages.keys() == COMMAND_HELP.keys() - {"help"}
    for name, page in pages.items():
        assert page in topics()
        assert re.search(rf"(jsbackup |`){name}\b", read_page(page)), (name, page)
