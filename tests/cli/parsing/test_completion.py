"""Completion in real shells: the script loads, and the words that follow are those that a user wants."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import WIDE
from tests.cli.typed import Shop
from tests.harness.commands import environment, jsbackup
from tests.harness.relay import relayed
from tests.harness.servers import missing


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH where `jsbackup` is found, as after an installation. `test_startup.py` looks at how soon it answers."""
    folder = tmp_path_factory.mktemp("bin")
    with relayed(folder / "jsbackup"):
        yield f"{folder}{os.pathsep}{os.environ['PATH']}"


def _shell(path: str, *command: str, **extra: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(PATH=path, **extra))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


BASH = """
eval "$(_JSBACKUP_COMPLETE=bash_source jsbackup)"
complete -p jsbackup > /dev/null
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
compopt() { :; }
"$(complete -p jsbackup | sed 's/.*-F \\([^ ]*\\).*/\\1/')" jsbackup
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _bash(path: str, *words: str, **extra: str) -> list[str]:
    return _shell(path, "bash", "--norc", "-c", BASH, "bash", "jsbackup", *words, **extra)


def _cut(text: str) -> list[str]:
    """A word as bash cuts it."""
    return re.findall(r"[:=@]+|[^:=@]+", text)


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


@pytest.mark.nats
def test_bash_completes_streams_of_a_backup(path: str, shop: Shop) -> None:
    repo = ("-r", str(shop.repo))
    # A name that is more than a word to a shell is not offered: it would be typed as it is.
    assert _bash(path, "restore", "latest", *repo, "") == ["ORDERS", WIDE]
    assert _bash(path, "plan", shop.backup[:9], *repo, "O") == ["ORDERS"]
    assert _bash(path, "restore", "latest", "ORDERS", *repo, "") == [WIDE]
    assert _bash(path, "diff", "live", shop.backup, *repo, "O") == ["ORDERS"]
    assert _bash(path, "drill", "latest", *repo, "--exclude", "") == ["ORDERS", WIDE]
    assert _bash(path, "export", "latest", "O", JSBACKUP_REPO=str(shop.repo)) == ["ORDERS"]
    for line in (["restore", "2020", *repo], ["restore", "latest", "-r", "/nonexistent"], ["restore", "latest"]):
        assert _bash(path, *line, "") == []


@pytest.mark.nats
def test_bash_completes_streams_of_a_server(path: str, shop: Shop, tmp_path: Path) -> None:
    for line in (["backup"], ["follow"], ["clone"], ["backup", "--exclude"], ["status", "--live", "--exclude"]):
        assert _bash(path, *line[:1], "-s", shop.url, *line[1:], "") == ["ORDERS", WIDE]
    assert _bash(path, "backup", "O", NATS_URL=shop.url) == ["ORDERS"]
    # As it is typed in bash, which cuts words.
    assert _bash(path, "backup", "-s", *_cut(shop.url), "ORDERS", "") == [WIDE]
    assert _bash(path, "-s", *_cut(shop.url.replace("//", "//u:p@")), "backup", "OR") == ["ORDERS"]
    config = tmp_path / "config.toml"
    config.write_text(f"[profiles.shop]\nserver = '{shop.url}'\n")
    assert _bash(path, "backup", "--config", str(config), "--profile", "shop", "O") == ["ORDERS"]


@pytest.mark.nats
def test_bash_completes_contexts_of_the_nats_cli(path: str, shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    (folder / "shop.json").write_text(f'{{"url": "{shop.url}"}}')
    (folder / "shed.json").write_text("{}")
    known = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert _bash(path, "backup", "--context", "", **known) == ["shed", "shop"]
    assert _bash(path, "clone", "--to-context", "sho", **known) == ["shop"]
    assert _bash(path, "backup", "--context", "shop", "O", **known) == ["ORDERS"]
    assert _bash(path, "backup", "--context", "", XDG_CONFIG_HOME="/nonexistent") == []


@pytest.mark.nats
def test_bash_completes_tags(path: str, shop: Shop, tmp_path: Path) -> None:
    repo = str(tmp_path / "repo")
    for tags in (["kind=nightly", "evil=$(id)"], ["kind=test", "team=a-b"]):
        jsbackup("backup", "ORDERS", "-s", shop.url, "-r", repo, *(f"--tag={tag}" for tag in tags)).ok()
    assert _bash(path, "list", "-r", repo, "--tag", "") == ["kind=test", "team=a-b", "kind=nightly"]
    assert _bash(path, "backup", "-r", repo, "--tag", "kind=", "") == []  # a word of its own: there is no server
    assert _bash(path, "backup", "-r", repo, "--tag", "te") == ["team=a-b"]
    assert _bash(path, "forget", "-r", repo, "--keep-tag", "k") == ["kind=test", "kind=nightly"]
    # bash leaves there what stands before the `=`.
    assert _bash(path, "list", "-r", repo, "--tag", "kind", "=") == ["test", "nightly"]
    assert _bash(path, "list", "-r", repo, "--tag", "kind", "=", "te") == ["test"]
    assert _bash(path, "list", "-r", repo, "--tag", "=", "te") == ["team=a-b"]


def test_a_server_that_does_not_answer_keeps_nobody_waiting(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert _bash(path, "backup", "-s", f"nats://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "9s", "O") == []
        seconds = time.monotonic() - began
    began = time.monotonic()
    assert _bash(path, "verify", "--level", "d") == ["data"]
    assert seconds - (time.monotonic() - began) < 4  # what shell and Python take does not count


@pytest.mark.nats
def test_to_complete_asks_writes_and_runs_nothing(path: str, shop: Shop, tmp_path: Path) -> None:
    def there() -> list[tuple[str, int]]:
        return sorted((str(found), found.stat().st_mtime_ns) for found in shop.repo.rglob("*"))

    before, made = there(), tmp_path / "made"
    program = f"touch {made}"
    for line in (
        ["restore", "latest", "-r", str(shop.repo), "--identity-command", f"'{program}'", ""],
        ["backup", "-s", shop.url, "--password-command", f"'{program}'", ""],
        ["backup", "-s", shop.url, "-r", str(tmp_path / "new"), ""],
    ):
        assert _bash(path, *line, JSBACKUP_WRITER_KEY_COMMAND=program) == ["ORDERS", WIDE]
    assert there() == before and list(tmp_path.iterdir()) == []


@pytest.mark.nats
def test_fish_loads_the_script_and_completes(path: str, shop: Shop, tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        missing("fish is not installed")
    program = "_JSBACKUP_COMPLETE=fish_source jsbackup | source; complete -C "
    assert _shell(path, "fish", "-N", "-c", f"{program} 'jsbackup ba'", HOME=str(tmp_path))[0] == "backup"
    restore = f"jsbackup restore latest -r {shop.repo} "
    assert _shell(path, "fish", "-N", "-c", f"{program} '{restore}'", HOME=str(tmp_path)) == ["ORDERS", WIDE]
    assert _shell(path, "fish", "-N", "-c", f"{program} 'jsbackup backup -s {shop.url} OR'", HOME=str(tmp_path)) == [
        "ORDERS"
    ]


@pytest.mark.nats
def test_zsh_is_answered(path: str, shop: Shop) -> None:
    def offered(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        found = _shell(path, "jsbackup", _JSBACKUP_COMPLETE="zsh_complete", **words)
        assert found[::3] == ["plain"] * (len(found) // 3)
        return found[1::3]

    assert offered(f"jsbackup restore latest -r {shop.repo} ") == ["ORDERS", WIDE]
    assert offered(f"jsbackup backup -s {shop.url} OR") == ["ORDERS"]
    assert offered(f"jsbackup list -r {shop.repo} --tag kind=t") == ["kind=test"]
    assert offered(f"jsbackup show -r {shop.repo} ") == ["latest", shop.backup]


def test_zsh_loads_the_script(path: str, tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        missing("zsh is not installed")
    program = 'autoload -Uz compinit; compinit -u -D; eval "$(_JSBACKUP_COMPLETE=zsh_source jsbackup)"; '
    program += "echo $_comps[jsbackup]"
    assert _shell(path, "zsh", "-f", "-c", program) == ["_jsbackup_completion"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_is_printed(path: str, shell: str) -> None:
    assert f"_JSBACKUP_COMPLETE={shell}_complete" in _shell(path, "jsbackup", _JSBACKUP_COMPLETE=f"{shell}_source")


def test_an_unknown_shell_is_an_error_that_prints_nothing(path: str) -> None:
    extra = environment(PATH=path, _JSBACKUP_COMPLETE="tcsh_source")
    done = subprocess.run(["jsbackup"], capture_output=True, text=True, timeout=240, env=extra)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
