"""Colour: for states and headings, on a terminal, and nowhere else. Foreign text never colours anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jsbackup.cli.output.result import _COLOURS, State, paint
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.cli.conftest import EVIL
from tests.cli.typed import Shop, in_shell, in_terminal
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup

_COLOUR = re.compile(r"\x1b\[(\d+)m([^\x1b]*)\x1b\[0m")
_NAMES = {"31": "red", "33": "yellow", "32": "green", "1": "bold"}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository of two backups, the second of which is damaged."""
    repository: Repository = make_repository(LocalStore(tmp_path / "repo"))
    store_backup(repository, FIRST)
    before = set((tmp_path / "repo").glob("segments/*/*"))
    store_backup(repository, SECOND, count=80)
    for segment in set((tmp_path / "repo").glob("segments/*/*")) - before:
        segment.unlink()
    return tmp_path / "repo"


def _seen(*arguments: str | Path, **extra: str) -> tuple[int, str, list[tuple[str, str]]]:
    """Exit code, what a terminal shows of stdout and stderr, and what of it is coloured."""
    done = in_terminal(*arguments, out_too=True, **{"NO_COLOR": "", **extra})
    coloured = [(_NAMES[number], text) for number, text in _COLOUR.findall(done.err)]
    return done.code, _COLOUR.sub(r"\2", done.err).replace("\r\n", "\n"), coloured


def test_states_are_coloured_and_headings_bold(repo: Path) -> None:
    code, text, coloured = _seen("verify", "--no-progress", "-r", repo)
    assert (code, coloured) == (14, [("green", "ok"), ("red", "DAMAGED")])
    code, listed, coloured = _seen("list", "-r", repo)
    assert coloured[0][0] == "bold" and coloured[0][1].startswith("BACKUP ")
    assert coloured[1:] == [("green", "complete"), ("red", "damaged, complete")]
    code, wrong, coloured = _seen("list", "-r", repo / "none")
    assert (code, coloured) == (10, [("red", "error")]) and wrong.startswith("error: ")
    # Without colour it is the same, byte for byte.
    assert in_shell("verify", "--no-progress", "-r", repo).out.splitlines()[:-1] == text.splitlines()[:-1]  # a time
    assert in_shell("list", "-r", repo).out == listed
    assert in_shell("list", "-r", repo / "none").err == wrong


def test_quiet_gives_up_its_silence_in_colour(repo: Path) -> None:
    code, _, coloured = _seen("verify", "-q", "-r", repo)
    assert (code, coloured) == (14, [("green", "ok"), ("red", "DAMAGED")])
    assert _seen("verify", "-q", "--log-format", "json", "-r", repo)[2] == []


def test_whoever_wants_no_colour_gets_none(repo: Path) -> None:
    for line in (["verify", "--no-progress", "-r", repo], ["list", "-r", repo / "none"]):
        for extra in (
            {"NO_COLOR": "1"},
            {"NO_COLOR": "0"},
            {"TERM": "dumb", "NO_COLOR": ""},
            {"TERM": "", "NO_COLOR": ""},
        ):
            done = in_terminal(*line, out_too=True, **extra)
            assert "\x1b" not in done.err, (line, extra)
        assert "\x1b[" in in_terminal(*line, out_too=True, NO_COLOR="").err


def test_neither_pipes_nor_files_nor_json_have_colours(repo: Path) -> None:
    for line in (["verify", "-r", repo], ["list", "-r", repo], ["list", "-r", repo / "none"]):
        done = in_shell(*line, TERM="xterm")
        assert "\x1b" not in done.out + done.err
    half = in_terminal("verify", "--no-progress", "-r", repo, NO_COLOR="")  # only stderr is a terminal
    assert "\x1b" not in half.out and "DAMAGED" in half.out
    assert "\x1b" not in in_terminal("verify", "--no-progress", "-r", repo, "--json", out_too=True, NO_COLOR="").err


@pytest.mark.nats
def test_names_stay_escaped(shop: Shop) -> None:
    code, text, coloured = _seen("show", "latest", "-r", shop.repo)
    assert code == 0 and "evil\\x1b[31mred" in text and EVIL not in text
    assert {what for what, _ in coloured} == {"bold", "green"}


def test_only_states_of_ours_are_painted() -> None:
    assert paint("failed") == "failed" and paint(State("a name")) == "a name"
    assert paint(State("complete, held")) == "\x1b[32mcomplete, held\x1b[0m"
    assert all(paint(State(word)) != word for word in _COLOURS)
