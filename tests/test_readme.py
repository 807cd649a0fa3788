"""The README is true: its commands run, its output is what they print, its snippets work, its tables are complete.

How it is written: the `console` blocks are typed into one shell, the first to the last; what follows a command is its
output. Ids, times, digests and measured values stand for others of their kind, blanks for any blanks, `…` for
anything in a line, and a line of it alone for any lines. What fails shows its exit code with `echo $?`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from click import Option

from jsbackup import __version__
from jsbackup.cli import plan
from jsbackup.cli.command import GLOBAL_OPTIONS, S3_OPTIONS, SERVER_OPTIONS
from jsbackup.cli.main import COMMANDS, EXIT_CODES
from jsbackup.repository import age
from jsbackup.repository.layout import is_backup_id
from tests.harness.commands import environment, jsbackup
from tests.harness.s3server import S3Server
from tests.harness.servers import BUNDLED, NEWEST, VERSIONS, NatsServer

# The first of the session pays for all of its commands, so one process runs them all.
pytestmark = [pytest.mark.timeout(500), pytest.mark.xdist_group("readme")]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)

SOURCE, TARGET = "nats://127.0.0.1:4222", "nats://127.0.0.1:4223"
S3_STORE = "http://127.0.0.1:8333"
RECIPIENT = "age1j04r9l2ccxhnp53yku0fc4m9nk62kzt2s62scve3t3hhnpk73ugsm85926"
FIRST_ID = "20261121T094249Z-acd9df"  # of the first backup, as the README has it


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    output: list[str]


def _steps() -> list[Step]:
    steps: list[Step] = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], []))
        else:
            steps[-1].output.append(line)
    return steps


STEPS = _steps()

_KINDS = [
    (r"\d{8}T\d{6}Z-[0-9a-f]{6}", "<id>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "<time>"),
    (r"\b\d{4}-\d\d-\d\d\b", "<day>"),
    (r"\b\d{4}-W\d\d\b", "<week>"),
    (r"\b[0-9a-f]{64}\b", "<digest>"),
    (r"\b[\d.]+ (?:B|[KMG]iB)(?!\w)", "<size>"),
    (r"\b[\d.]+ s(?!\w)", "<seconds>"),
    (r'(?<="seconds": )[\d.]+', "<seconds>"),
]


def _canonical(line: str) -> str:
    for pattern, kind in _KINDS:
        line = re.sub(pattern, kind, line)
    return " ".join(line.split())


def _matches(expected: list[str], actual: list[str]) -> bool:
    """Whether output is as shown; `expected` without blank lines at its ends."""
    if not expected:
        return not actual
    if expected[0] == "…":
        return any(_matches(expected[1:], actual[skip:]) for skip in range(len(actual) + 1))
    if not actual:
        return False
    pattern = ".*".join(map(re.escape, _canonical(expected[0]).split("…")))
    return re.fullmatch(pattern, _canonical(actual[0])) is not None and _matches(expected[1:], actual[1:])


def _stripped(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip("\n").split("\n") if any(lines) else []


def test_output_is_compared() -> None:
    assert _matches(["a  … b", "…", "0.3 s  12 KiB"], ["a 1 b", "x", "y", "7.5 s 1.23 MiB"])
    assert _matches(["…", "end"], ["end"])
    assert _matches(["daily 2026-11-21", "weekly 2026-W47"], ["daily 2027-01-01", "weekly 2026-W53"])
    assert not _matches(["a 3 streams"], ["a 4 streams"])
    assert not _matches(["a"], ["a", "b"])
    assert not _matches(["a", "b"], ["a"])


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """What the demo fills its server with is what the README shows."""
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Shell:
    """One bash for all blocks: variables and exit codes live on from one command to the next."""

    def __init__(self, folder: Path) -> None:
        commands = folder / ".bin"
        commands.mkdir()
        (commands / "jsbackup").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jsbackup "$@"\n')
        (commands / "jsbackup").chmod(0o755)
        path = f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment(PATH=path, HOME=str(folder), LC_ALL="C.UTF-8", COLUMNS="120"),
        )

    def type(self, command: str) -> tuple[int, list[str]]:
        """Exit code and lines of output."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        # The exit code is that of the command again afterwards, for `echo $?`.
        self._bash.stdin.write(f'{command}\n__code=$?; echo; echo "<end $__code>"; (exit $__code)\n')
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if end := re.fullmatch(r"<end (\d+)>\n", line):
                return int(end[1]), _stripped(lines)
            lines.append(line.removesuffix("\n"))
        raise AssertionError(f"the shell ended at {command}:\n{lines}")

    def close(self) -> None:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.close()
        self._bash.stdout.close()
        self._bash.wait(timeout=10)


@dataclass(frozen=True, slots=True)
class Session:
    """All commands of the README typed in their order in `folder`: exit code and output of each."""

    folder: Path
    results: list[tuple[int, list[str]]]


@pytest.fixture(scope="module")
def session(demo: ModuleType, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("readme")
    operator = age.random_identity()
    assert operator.recipient is not None
    (folder / "operator.key").write_text(f"{operator.text}\n")
    (profiles,) = (text for text in blocks("toml") if "[profiles." in text)
    shell = Shell(folder)
    with NatsServer(BUNDLED) as source, NatsServer(BUNDLED) as target:
        asyncio.run(demo.fill(source.url))
        (folder / "config.toml").write_text(profiles.replace(SOURCE, source.url))
        results: list[tuple[int, list[str]]] = []
        first_id = ""
        for step in STEPS:
            command = step.command.replace(SOURCE, source.url).replace(TARGET, target.url)
            command = command.replace(S3_STORE, s3_server.url).replace(RECIPIENT, operator.recipient.label)
            results.append(shell.type(command.replace(FIRST_ID, first_id)))
            ids = [word for line in results[-1][1] for word in line.split() if is_backup_id(word)]
            first_id = first_id or next(iter(ids), "")
        shell.close()
        yield Session(folder, results)


@pytest.mark.nats
@pytest.mark.s3
@pytest.mark.parametrize("number", range(len(STEPS)), ids=[step.command for step in STEPS])
def test_a_command_prints_what_is_shown(session: Session, number: int) -> None:
    code, output = session.results[number]
    told = number + 1 < len(STEPS) and STEPS[number + 1].command == "echo $?"
    assert code == 0 or told, "\n".join(output)
    assert _matches(_stripped(STEPS[number].output), output), "\n".join(output)


@pytest.mark.nats
@pytest.mark.s3
@pytest.mark.parametrize("program", blocks("python"))
def test_a_program_runs_in_the_folder_of_the_repository(session: Session, program: str) -> None:
    first = next(word for line in session.results[0][1] for word in line.split() if is_backup_id(word))
    line = [sys.executable, "-c", program.replace(FIRST_ID, first)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=session.folder, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "orders.us.0" in done.stdout


@pytest.mark.nats
@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
def test_the_permissions_are_enough(version: str, demo: ModuleType, tmp_path: Path) -> None:
    (config,) = blocks("conf")
    admin = config.replace("users: [", "users: [\n{ user: admin, password: admin }", 1)

    with NatsServer(version, config=admin) as server:

        def url(user: str) -> str:
            return server.url.replace("://", f"://{user}@")

        asyncio.run(demo.fill(url("admin:admin")))
        login = url("backup:backup-secret")
        assert jsbackup("doctor", "--for", "backup", "-s", login).ok().document["ok"] is True
        assert jsbackup("doctor", "--for", "restore", "-s", login).code == 20
        assert jsbackup("doctor", "-s", url("restore:restore-secret")).code == 0
        backup = jsbackup("backup", "-s", login, "-r", tmp_path / "repo").ok().document
        assert {consumer["fidelity"] for stream in backup["streams"] for consumer in stream["consumers"]} == {"exact"}
        login = url("restore:restore-secret")
        line = ["restore", "latest", "-s", login, "-r", tmp_path / "repo", "--if-exists", "replace"]
        assert all(stream["verified"] for stream in jsbackup(*line).ok().document["streams"])
        assert jsbackup("backup", "-s", url("restore:restore-secret"), "-r", tmp_path / "repo").code == 0
        denied = jsbackup("restore", "latest", "-s", url("backup:backup-secret"), "-r", tmp_path / "repo")
        assert denied.code in (16, 20)


INSTALL = next(block for block in blocks("sh") if "pip" in block)


def test_what_is_installed_works(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.egg-info")
    shutil.copytree(ROOT / "jsbackup", clone / "jsbackup", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    plain = environment(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", HOME=str(tmp_path))
    quiet = {
        "PIP_QUIET": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"),
    }
    done = subprocess.run(["sh", "-e", "-c", INSTALL], cwd=clone, capture_output=True, text=True, env=plain | quiet)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(clone / "jsbackup")  # what runs from here on is what was installed

    def installed(*line: str) -> str:
        return subprocess.run(line, cwd=clone, capture_output=True, text=True, env=plain, check=True).stdout

    kernel = "compiled" if shutil.which("cc") else "python"
    for command in (["venv/bin/jsbackup"], ["venv/bin/python", "-m", "jsbackup"]):
        assert installed(*command, "--version") == f"jsbackup {__version__} ({kernel} kernel)\n"
    assert installed("venv/bin/jsbackup", "init", "-r", "repo").startswith("made repository ")
    assert installed("venv/bin/jsbackup", "verify", "-r", "repo") == "there are no backups\n"
    program = "import jsbackup; from importlib.resources import files; [print(p) for p in files(jsbackup).rglob('*')]"
    packed = installed("venv/bin/python", "-c", program)
    for name in ("cli/output.schema.json", "repository/manifest.schema.json", "py.typed"):
        assert f"jsbackup/{name}" in packed


def test_what_no_test_types_is_what_ci_runs() -> None:
    lines = {line for block in blocks("sh") if block != INSTALL for line in block.splitlines()}
    assert lines <= set((ROOT / ".ci" / "run").read_text().splitlines())
    assert {kind for kind, _ in BLOCKS} <= {"console", "sh", "python", "conf", "sql", "toml", ""}


def test_the_runbook_has_keys_that_are_options() -> None:
    options = {option.lstrip("-") for param in plan.COMMANDS["plan"].params for option in param.opts}
    for text in blocks("toml"):
        for entry in tomllib.loads(text).get("restore", ()):
            assert entry.keys() <= options | {"streams", "repo"}


def test_the_two_commands_are_on_the_first_screen() -> None:
    screen = "\n".join(README.splitlines()[:50])
    assert "./scripts/demo" in screen and "./scripts/test" in screen and "pip install ." in screen


def _table(heading: str) -> list[list[str]]:
    """The rows of the first table behind a heading of this text."""
    part = README[README.index(f"## {heading}\n") :]
    rows = re.search(r"^\|.*?\n(?=[^|]|$)(?!\|)", part, re.DOTALL | re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[0].splitlines()[2:] if line]


def test_exit_codes_are_listed() -> None:
    assert {int(code): text for code, text in _table("In scripts")} == EXIT_CODES


def _told(heading: str) -> tuple[set[str], set[str]]:
    """Options and variables in the first two columns of a table."""
    cells = _table(heading)
    options, variables = (" ".join(row[column] for row in cells) for column in (0, 1))
    return set(re.findall(r"`(--?[\w-]+)`", options)), set(re.findall(r"`([A-Z0-9_]+)`", variables))


@pytest.mark.parametrize(
    ("heading", "options"), [("Connecting", [*GLOBAL_OPTIONS, *SERVER_OPTIONS]), ("S3", S3_OPTIONS)]
)
def test_shared_options_and_their_variables_are_listed(heading: str, options: list[Option]) -> None:
    quiet = {"--json", "-q", "--quiet", "-v", "--verbose", "--no-progress", "--log-format"}
    wanted = {opt for option in options for opt in (*option.opts, *option.secondary_opts)} - quiet
    variables = {found for o in options for found in re.findall(r"[A-Z0-9]+_[A-Z0-9_]+", o.help or "")}
    assert _told(heading) == (wanted, variables)


def test_options_in_commands_exist() -> None:
    """Also those in the text, which no test types."""
    known = {"--help", "--version"}
    helps = "".join(jsbackup_help(name) for name in COMMANDS)
    for option in set(re.findall(r"`(--[a-z][\w-]*)", README)):
        assert option in known or option in helps, option


def jsbackup_help(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jsbackup", name, "--help"],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    return done.stdout


def test_files_that_are_named_are_there() -> None:
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).is_file(), path
    for path in re.findall(r"`(jsbackup/[\w/]+/)`", README):
        assert (ROOT / path).is_dir(), path
    named = re.findall(r"`(jsbackup/\w+/)`", README[README.index("## Development") :])
    packages = {f"jsbackup/{path.parent.name}/" for path in (ROOT / "jsbackup").glob("*/__init__.py")}
    assert set(named) >= packages - {"jsbackup/config/", "jsbackup/transforms/"}


def test_json_shown_is_json() -> None:
    for step in STEPS:
        if "--json" in shlex.split(step.command):
            json.loads("\n".join(step.output))
