"""Quick commands stay quick: whoever asks for help, the version or a completion does not wait for Arrow and NATS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup import __version__
from jsbackup.cli.main import COMMANDS
from jsbackup.formats import kernels
from scripts.bench_load import fill, request
from tests.cli.typed import Typed, in_shell
from tests.harness.commands import environment
from tests.harness.servers import NEWEST, NatsServer

HEAVY = {
    "pyarrow",
    "nats",
    "tqdm",
    "asyncio",
    "ssl",
    "cryptography",
    "zstandard",
    "cramjam",
    "boto3",
    "pyspark",
    "tomllib",
    "urllib.request",
    "jinja2",
    "jsbackup.cli.profiles.profiles",
    "jsbackup.engine",
    "jsbackup.repository",
    "jsbackup.pipeline",
}
# What every use of some commands needs: their modules import it, so `COMMAND --help` waits for it, too.
STORED = {"jsbackup.repository", "pyarrow", "ssl", "zstandard"}
# nats-py imports aiohttp where it is installed; only URLs of the kind ws:// take it.
_WITHOUT = "import sys; sys.modules['aiohttp'] = None; "
_IMPORTED = "print('', *(name for name, module in sys.modules.items() if module is not None))"
PROGRAM = f"{_WITHOUT}from jsbackup.cli.main import run; code = run(sys.argv[1:]); {_IMPORTED}; sys.exit(code)"


def _imported(*line: str, **extra: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line], capture_output=True, text=True, timeout=60, env=environment(**extra)
    )
    assert "Traceback" not in done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.slow
@pytest.mark.parametrize("line", ["--help", "--version", "bakcup", "help", "backup --jobs 0"])
def test_nothing_heavy_is_imported(line: str) -> None:
    imported = _imported(*line.split())
    assert "click" in imported
    assert HEAVY & imported == set()


@pytest.mark.slow
@pytest.mark.parametrize("line", [*(f"{name} --help" for name in COMMANDS), "help restore", "help drill"])
def test_the_help_of_a_command_waits_for_neither_servers_nor_spark(line: str) -> None:
    imported = _imported(*line.split())
    assert "click" in imported
    assert (HEAVY - STORED) & imported == set()


@pytest.mark.parametrize("words", ["jsbackup ba", "jsbackup backup --ex", "jsbackup restore --if-exists s"])
def test_completion_is_quick_too(words: str) -> None:
    extra = {"COMP_WORDS": words.replace(" ", "\n"), "COMP_CWORD": str(words.count(" "))}
    imported = _imported(_JSBACKUP_COMPLETE="bash_complete", **extra)
    assert "click" in imported and HEAVY & imported == set()


def test_the_package_itself_imports_nothing_heavy() -> None:
    program = "import sys, jsbackup; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not (HEAVY | {"jsbackup.api", "jsbackup.config", "click"}) & set(done.stdout.split())


def test_reading_backups_waits_for_neither_servers_nor_spark() -> None:
    program = "import sys, jsbackup; jsbackup.open, jsbackup.Backup; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.split())
    assert "jsbackup.repository.repository" in imported
    assert not {"nats", "boto3", "pyspark", "jsbackup.engine.link.connection", "jsbackup.cli"} & imported


OTHERS = {"boto3", "prometheus_client", "pyspark", "pyarrow.compute", "urllib.request"}


@pytest.mark.parametrize(
    ("module", "needed", "others"),
    [
        (
            "jsbackup.engine.backup.backup",
            "jsbackup.engine.read.snapshot_transfer",
            {
                "jsbackup.planning.plan",
                "jsbackup.repository.keep.prune",
                "jsbackup.repository.keep.retention",
                "jsbackup.repository.read.latest",
                "jsbackup.formats.archive.archive_v1_writer",
                "jsbackup.transforms.mask",
            },
        ),
        (
            "jsbackup.engine.restore.restore",
            "jsbackup.planning.plan",
            {
                "jsbackup.engine.backup.stream_backup",
                "jsbackup.planning.saved_plan",
                "jsbackup.transforms.json_path",
                "jsbackup.repository.keep.prune",
                "jsbackup.repository.keep.retention",
            },
        ),
    ],
)
def test_neither_a_backup_nor_a_restore_waits_for_what_only_the_other_needs(
    module: str, needed: str, others: set[str]
) -> None:
    program = f"{_WITHOUT}import {module}; {_IMPORTED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = set(done.stdout.split())
    assert needed in imported
    assert not imported & (OTHERS | others)


# What a small backup or restore of a plain repository in a folder imports, apart from jsbackup. numpy is not installed
# with it; Arrow imports it if it is there. Each one more takes 5 to 40 ms of every start.
NEEDED = {"click", "cramjam", "google_crc32c", "nats", "numpy", "pyarrow", "zstandard"}
SPARED = {
    "pyarrow.compute",
    "pyarrow.dataset",
    "urllib.request",
    "http.client",
    "tomllib",
    "multiprocessing",
    "unittest",
    "jsbackup.cli.profiles.profiles",
    "jsbackup.config.accounts",
    "jsbackup.engine.read.salvage",
    "jsbackup.formats.archive.archive_v1_reader",
    "jsbackup.repository.crypto.keys",
    "jsbackup.repository.crypto.opening",
    "jsbackup.repository.keep.prune",
    "jsbackup.repository.keep.retention",
    "jsbackup.stores.s3",
}
SPARED_BY_BACKUPS = {"jsbackup.cli.options.restore_options", "jsbackup.formats.server_store.records"}


@pytest.mark.nats
def test_a_whole_backup_and_restore_import_no_more_than_they_need(tmp_path: Path) -> None:
    repo = str(tmp_path / "repo")
    with NatsServer(NEWEST) as server, NatsServer(NEWEST) as target:
        request(server.url, "STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders"]})
        fill(server.url, lambda _: "orders", lambda number: b"%d" % number, range(10))
        for line in (
            ("backup", "-s", server.url, "-r", repo),
            ("backup", "-s", server.url, "-r", repo),
            ("restore", "latest", "-s", target.url, "-r", repo),
        ):
            imported = _imported(*line)
            assert {_installed(name) for name in imported} - {None} <= NEEDED
            assert not (SPARED | (SPARED_BY_BACKUPS if line[0] == "backup" else set())) & imported


def _installed(module: str) -> str | None:
    """The package from outside that a module belongs to; None of those of Python, jsbackup and Cython."""
    top = module.partition(".")[0]
    return None if top in sys.stdlib_module_names or top.startswith(("_", "cython", "jsbackup")) else top


def test_the_version_says_which_kernel_runs(typed: Callable[..., Typed]) -> None:
    done = typed("--version")
    assert (done.code, done.out, done.err) == (0, f"jsbackup {__version__} ({kernels.active()} kernel)\n", "")
    assert in_shell("--version").out == done.out
