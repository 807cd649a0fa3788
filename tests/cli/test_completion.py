"""Completion in real shells: the script loads, and the words that follow are those that a user wants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.typed import Shop, Typed
from tests.harness.commands import environment
from tests.harness.servers import missing

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH where `jsbackup` is found, as after an installation."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "jsbackup"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jsbackup "$@"\n')
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _shell(path: str, *command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(PATH=path))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


BASH = """
source <(jsbackup completion bash)
complete -p jsbackup > /dev/null
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
compopt() { :; }
"$(complete -p jsbackup | sed 's/.*-F \\([^ ]*\\).*/\\1/')" jsbackup
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _bash(path: str, *words: str) -> list[str]:
    return _shell(path, "bash", "--norc", "-c", BASH, "bash", "jsbackup", *words)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ba"], ["backup"]),
        (["res"], ["restore"]),
        (["backup", "--exc"], ["--exclude"]),
        (["restore", "--if-exists", ""], ["fail", "skip", "replace"]),
        (["verify", "--level", "d"], ["data"]),
        (["--log-format", "j"], ["json"]),
        (["list", "--cre"], []),  # it talks to no server
        (["completion", ""], list(SHELLS)),
    ],
)
def test_bash_completes_commands_options_and_values(path: str, words: list[str], offered: list[str]) -> None:
    assert _bash(path, *words) == offered


@pytest.mark.nats
def test_bash_completes_backups(path: str, shop: Shop) -> None:
    assert _bash(path, "show", "-r", str(shop.repo), "") == ["latest", shop.backup]
    assert _bash(path, "-r", str(shop.repo), "verify", shop.backup[:4]) == [shop.backup]
    assert _bash(path, "show", "-r", "/nonexistent", "") == ["latest"]
    assert _bash(path, "diff", "latest", "-r", str(shop.repo), "") == ["live", "latest", shop.backup]
    assert _bash(path, "diff", "li") == ["live"]


@pytest.mark.nats
def test_bash_completes_profiles_and_what_they_lead_to(path: str, shop: Shop, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"[profiles.shop]\nrepo = '{shop.repo}'\n[profiles.shed]\nrpo = 'x'\n[profiles.a]\n")
    assert _bash(path, "--config", str(config), "list", "--profile", "sh") == ["shop", "shed"]
    assert _bash(path, "list", "--config", str(config), "--profile", "") == ["shop", "shed", "a"]
    assert _bash(path, "list", "--config", "/nonexistent", "--profile", "") == []
    line = ["show", "--config", str(config), "--profile"]
    assert _bash(path, *line, "shop", "") == ["latest", shop.backup]
    assert _bash(path, *line, "shed", "") == ["latest"]


def test_fish_loads_the_script_and_completes(path: str) -> None:
    if shutil.which("fish") is None:
        missing("fish is not installed")
    program = "jsbackup completion fish | source; complete -C 'jsbackup ba'"
    assert _shell(path, "fish", "-N", "-c", program)[0] == "backup"


def test_zsh_loads_the_script(path: str, tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        missing("zsh is not installed")
    program = "autoload -Uz compinit; compinit -u -D; source <(jsbackup completion zsh); echo $_comps[jsbackup]"
    assert _shell(path, "zsh", "-f", "-c", program) == ["_jsbackup_completion"]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_is_printed_and_is_in_the_document(typed: Callable[..., Typed], shell: str) -> None:
    plain = typed("completion", shell)
    assert (plain.code, plain.err) == (0, "") and "_JSBACKUP_COMPLETE" in plain.out
    told = typed("completion", shell, "--json").document
    assert told["shell"] == shell and told["script"].strip() == plain.out.strip()
