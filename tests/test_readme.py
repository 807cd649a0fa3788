"""README and manual are true: commands run, output is what they print, snippets work, tables are complete.

How they are written: the `console` blocks, of the README and then of the pages in the order of their index, are typed
into one shell, the first to the last; what follows a command is its output. Ids, times, digests and measured values
stand for others of their kind, blanks for any blanks, `…` for anything in a line, and a line of it alone for any lines.
What fails shows its exit code with `echo $?`.
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
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from click import Option

from jsbackup import __version__
from jsbackup.cli.commands import restore
from jsbackup.cli.main import COMMANDS
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, S3_OPTIONS, SERVER_OPTIONS
from jsbackup.exit_codes import EXIT_CODES
from jsbackup.repository.crypto import age
from jsbackup.repository.layout import is_backup_id
from tests.engine.identities import Operator, creds_text
from tests.harness.api import call, connected, until_stored
from tests.harness.commands import environment, jsbackup
from tests.harness.relay import relayed
from tests.harness.s3server import S3Server
from tests.harness.servers import BUNDLED, NEWEST, VERSIONS, NatsServer
from tests.pipeline.quick_java import quick_java

# The first of the session pays for all of its commands, so one process runs them all.
pytestmark = [pytest.mark.timeout(500), pytest.mark.xdist_group("readme")]

ROOT = Path(__file__).parents[1]
MANUAL = ROOT / "jsbackup" / "manual"
INDEX = MANUAL / "index.md"
ENTRIES: dict[str, str] = dict(re.findall(r"^- \[[\w-]+\]\(([\w-]+)\.md\): (.+)$", INDEX.read_text(), re.MULTILINE))
README = (ROOT / "README.md").read_text()
PAGES = {path: path.read_text() for path in [ROOT / "README.md", INDEX, *(MANUAL / f"{name}.md" for name in ENTRIES)]}
BLOCKS: list[tuple[Path, str, str]] = [
    (path, *block)
    for path, text in PAGES.items()
    for block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
]

SOURCE, TARGET, NEW, SHARED, SYSTEM, NEW_SYSTEM = (f"nats://127.0.0.1:{port}" for port in range(4222, 4228))
S3_STORE = "http://127.0.0.1:8333"
RECIPIENT = "age1j04r9l2ccxhnp53yku0fc4m9nk62kzt2s62scve3t3hhnpk73ugsm85926"
ACCOUNTS = "accounts {\n" + "".join(
    f" {name} {{ jetstream: enabled, users: [ {{ user: {user}, password: {user}-secret }} ] }}\n"
    for name, user in (("SHOP", "shop"), ("PAY", "pay"))
)
ACCOUNTS += " SYS { users: [ { user: system, password: system-secret } ] }\n}\nsystem_account: SYS\n"
FIRST_ID = "20261121T094249Z-acd9df"  # of the first backup, as the pages have it


def blocks(kind: str, page: Path | None = None) -> list[str]:
    """Of a page, or of all."""
    return [text for path, found, text in BLOCKS if found == kind and page in (None, path)]


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

# The Python of a page is one program.
PROGRAMS = {path.stem: "\n".join(found) for path in PAGES if (found := blocks("python", path))}

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
    """What the demo fills its server with is what the pages show."""
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
        self._open = ExitStack()
        self._open.enter_context(relayed(commands / "jsbackup"))
        path = f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment(PATH=path, HOME=str(folder), LC_ALL="C.UTF-8", COLUMNS="120", **quick_java()),
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
        self._open.close()


@dataclass(frozen=True, slots=True)
class Session:
    """All commands typed in their order in `folder`: exit code and output of each."""

    folder: Path
    results: list[tuple[int, list[str]]]
    places: dict[str, str]  # what the pages have, and what stands for it here

    def told(self, text: str) -> str:
        """The text, with what is there in place of what the pages have."""
        for shown, there in self.places.items():
            text = text.replace(shown, there)
        return text


def _profiles(page: str) -> str:
    """The file of profiles that a page shows."""
    return _file_of(page, "[profiles.")


def _file_of(page: str, part: str) -> str:
    """The file that a page shows, with this part."""
    (text,) = (text for text in blocks("toml", MANUAL / f"{page}.md") if part in text)
    return text


def _write_credentials(folder: Path, old: Operator, anew: Operator) -> None:
    """What the page about accounts has of two operators: credentials of the one, seeds of the other."""
    for name in ("creds", "new-keys"):
        (folder / name).mkdir()
    for name, operator in {"system.creds": old, "new-system.creds": anew}.items():
        (folder / name).write_text(creds_text(*operator.system_user()))
    for account in old.accounts:
        (folder / "creds" / f"{account}.creds").write_text(creds_text(*old.user(account=account)))
        (folder / "new-keys" / f"{account}.nk").write_text(anew.accounts[account].seed)


async def _fill_account(url: str, stream: str, creds: Path | None = None) -> None:
    subject = stream.lower()
    async with connected(url, creds) as nc:
        await call(nc, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{subject}.>"]})
        for number in range(100):
            await nc.publish(f"{subject}.{number}", b"text")
        await until_stored(nc, f"{subject}.0")


@pytest.fixture(scope="module")
def session(demo: ModuleType, tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("readme")
    operator = age.random_identity()
    assert operator.recipient is not None
    (folder / "operator.key").write_text(f"{operator.text}\n")
    old, anew = (Operator(accounts=("shop", "pay")) for _ in range(2))
    _write_credentials(folder, old, anew)
    shell = Shell(folder)
    with (
        NatsServer(BUNDLED) as source,
        NatsServer(BUNDLED) as target,
        NatsServer(BUNDLED) as new,
        NatsServer(BUNDLED, config=ACCOUNTS) as shared,
        NatsServer(BUNDLED, config=old.config, name="old") as system,
        NatsServer(BUNDLED, config=anew.config, name="new") as new_system,
    ):
        asyncio.run(demo.fill(source.url))
        for account, stream in (("shop", "ORDERS"), ("pay", "INVOICES")):
            asyncio.run(_fill_account(shared.url.replace("://", f"://{account}:{account}-secret@"), stream))
            creds = folder / "creds" / f"{account}.creds"
            asyncio.run(_fill_account(system.url, stream, creds))
        (folder / "logins.toml").write_text(_file_of("accounts", '["*"]'))
        (folder / "config.toml").write_text(_profiles("profiles").replace(SOURCE, source.url))
        (folder / "accounts.toml").write_text(_profiles("accounts").replace(SHARED, shared.url))
        places = {SOURCE: source.url, TARGET: target.url, NEW: new.url, SHARED: shared.url, S3_STORE: s3_server.url}
        places |= {SYSTEM: system.url, NEW_SYSTEM: new_system.url}
        typed = Session(folder, [], places | {RECIPIENT: operator.recipient.label})
        for step in STEPS:
            typed.results.append(shell.type(typed.told(step.command)))
            ids = [word for line in typed.results[-1][1] for word in line.split() if is_backup_id(word)]
            if ids:
                typed.places.setdefault(FIRST_ID, ids[0])
        shell.close()
        yield typed


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
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_runs_in_the_folder_of_the_repository(session: Session, program: str) -> None:
    line = [sys.executable, "-c", session.told(program)]
    environ = environment(**quick_java())
    done = subprocess.run(line, capture_output=True, text=True, cwd=session.folder, timeout=400, env=environ)
    # A Spark that a program starts itself says what it does on stderr.
    said = "" if "SparkSession.builder" in program and "Traceback" not in done.stderr else done.stderr
    assert (done.returncode, said) == (0, "")
    assert "orders.us.0" in done.stdout


@pytest.mark.nats
@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
def test_the_permissions_are_enough(
    version: str, demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MESSAGES", 5000)
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


@pytest.mark.slow
def test_what_is_installed_works(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.egg-info")
    shutil.copytree(ROOT / "jsbackup", clone / "jsbackup", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    # What is compiled here only has to be there. All other tests run what the same compiler has optimized.
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    plain = environment(PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", HOME=str(tmp_path))
    quiet = {
        "PIP_QUIET": "1",
        "CC": str(compiler),
        "PIP_NO_COMPILE": "1",  # a thousand modules, of which few are used here
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip"),
    }
    done = subprocess.run(["sh", "-e", "-c", INSTALL], cwd=clone, capture_output=True, text=True, env=plain | quiet)
    assert done.returncode == 0, done.stderr
    pages = {path.name for path in MANUAL.iterdir()}
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
    data = ("cli/output.schema.json", "repository/manifest.schema.json", "py.typed", "html/style.css")
    templates = [path.relative_to(ROOT / "jsbackup") for path in (ROOT / "jsbackup").rglob("templates/*.*")]
    packaged = [*(f"manual/{page}" for page in pages), *templates]
    for name in (*data, "browse/page.js", *packaged):
        assert f"jsbackup/{name}" in packed
    # Spark looks for them in the folders of the path.
    program = "import pkgutil; print([one.name for one in pkgutil.iter_modules() if one.name.startswith('pyspark_')])"
    assert installed("venv/bin/python", "-c", program) == "['pyspark_jsbackup']\n"


def test_what_no_test_types_is_what_ci_runs() -> None:
    lines = {line for block in blocks("sh") if block != INSTALL for line in block.splitlines()}
    assert lines <= set((ROOT / ".ci" / "run").read_text().splitlines())
    assert {kind for _, kind, _ in BLOCKS} <= {"console", "sh", "python", "conf", "sql", "toml", ""}


def test_the_runbook_has_keys_that_are_options() -> None:
    options = {option.lstrip("-") for param in restore.COMMANDS["plan"].params for option in param.opts}
    for text in blocks("toml"):
        for entry in tomllib.loads(text).get("restore", ()):
            assert entry.keys() <= options | {"streams", "repo"}


def test_the_two_commands_are_on_the_first_screen() -> None:
    screen = "\n".join(README.splitlines()[:50])
    assert "./scripts/demo" in screen and "./scripts/test" in screen and "pip install ." in screen


def _table(page: str) -> list[list[str]]:
    """The rows of the first table of a page."""
    rows = re.search(r"^\|.*?\n(?=[^|]|$)(?!\|)", PAGES[MANUAL / f"{page}.md"], re.DOTALL | re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[0].splitlines()[2:] if line]


def test_exit_codes_are_listed() -> None:
    assert {int(code): text for code, text in _table("scripting")} == EXIT_CODES


def _told(page: str) -> tuple[set[str], set[str]]:
    """Options and variables in the first two columns of a table."""
    cells = _table(page)
    options, variables = (" ".join(row[column] for row in cells) for column in (0, 1))
    return set(re.findall(r"`(--?[\w-]+)`", options)), set(re.findall(r"`([A-Z0-9_]+)`", variables))


@pytest.mark.parametrize(("page", "options"), [("connecting", [*GLOBAL_OPTIONS, *SERVER_OPTIONS]), ("s3", S3_OPTIONS)])
def test_shared_options_and_their_variables_are_listed(page: str, options: list[Option]) -> None:
    quiet = {"--json", "-q", "--quiet", "-v", "--verbose", "--no-progress", "--log-format"}
    wanted = {opt for option in options for opt in (*option.opts, *option.secondary_opts)} - quiet
    variables = {found for o in options for found in re.findall(r"[A-Z0-9]+_[A-Z0-9_]+", o.help or "")}
    assert _told(page) == (wanted, variables)


@pytest.mark.slow
def test_options_in_commands_exist() -> None:
    """Also those in the text, which no test types."""
    known = {"--help", "--help-all", "--version"}
    helps = "".join(jsbackup_help(name) for name in COMMANDS)
    for option in set(re.findall(r"`(--[a-z][\w-]*)", "".join(PAGES.values()))):
        assert option in known or option in helps, option


def jsbackup_help(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jsbackup", name, "--help-all"],
        capture_output=True,
        text=True,
        env=environment(),
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_chapters_that_are_named_are_there(page: Path) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", PAGES[page]):
        target = page.parent / link if link else page
        assert target.is_file(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert not anchor or anchor[1:] in [_anchor(heading) for heading in headings], anchor
    for path in re.findall(r"`(jsbackup/[\w/]+/)`", PAGES[page]):
        assert (ROOT / path).is_dir(), path


def _anchor(heading: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def test_the_readme_is_short_and_leads_to_the_manual() -> None:
    assert len(README.splitlines()) <= 250
    links = set(re.findall(r"\]\(jsbackup/manual/([\w-]+)\.md", README))
    assert links == {"index", *ENTRIES}


def test_the_index_has_every_page_and_says_what_it_is_for() -> None:
    assert {path.stem for path in MANUAL.iterdir()} == {"index", *ENTRIES}
    for name, about in ENTRIES.items():
        title, blank, first = PAGES[MANUAL / f"{name}.md"].splitlines()[:3]
        assert title.startswith("# ") and blank == "" and first == about, name


def test_every_command_is_named_in_the_manual() -> None:
    text = "".join(PAGES.values())
    for name in COMMANDS:
        assert re.search(rf"(jsbackup |`){name}\b", text), name


def test_json_shown_is_json() -> None:
    for step in STEPS:
        if "--json" in shlex.split(step.command):
            json.loads("\n".join(step.output))
