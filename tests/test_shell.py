"""Command lines of hints: what is in a name is never run, and never an option."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from jsbackup.shell import command_line, quoted_command, shell_word

NAMES = [
    "$(touch x)",
    "`touch x`",
    "a'; touch x; '",
    "-o",
    "--force",
    "a b",
    "!!",
    "#",
    "\\",
    "a\nb",
    "\x1b[2J",
    "\u202e",
    "ü",
]


def test_options_come_first_then_dashes_then_names() -> None:
    assert command_line("kv", "ID", "b", options=[("--at", "3")]) == "jsbackup kv ID b --at 3"
    assert command_line("kv", "ID", "-b", "k", options=[("--at", "-3")]) == "jsbackup kv ID --at=-3 -- -b k"
    assert command_line("restore", "ID", options=[("-r", "a b")], names=["A"]) == "jsbackup restore ID -r 'a b' -- A"


@pytest.mark.parametrize("name", NAMES)
def test_a_pasted_hint_runs_nothing_but_its_command(tmp_path: Path, name: str) -> None:
    (tmp_path / "jsbackup").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > said\n')
    (tmp_path / "jsbackup").chmod(0o700)
    shown = quoted_command("view", "ID", name)
    assert shown.isprintable()
    subprocess.run(["bash", "-c", f"PATH={tmp_path}:$PATH; {shown}"], cwd=tmp_path, capture_output=True, timeout=30)
    if shown.startswith("'"):
        assert shlex.split(shown) == [f"jsbackup view ID {'-- ' if name.startswith('-') else ''}{name}"]
    else:
        said = (tmp_path / "said").read_bytes().decode().split("\0")
        assert [one for one in said if one != "--"] == ["view", "ID", name, ""]
    assert not (tmp_path / "x").exists()


def test_bytes_that_are_no_text_stay_these_bytes() -> None:
    assert shell_word("\udcff\ud800") == "$'\\xff\\xed\\xa0\\x80'"
