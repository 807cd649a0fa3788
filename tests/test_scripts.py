"""What the scripts install is what the project declares: pip only warns of an extra that is not there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
    assert used == {"dev", "drill"}
    assert used <= set(declared)
