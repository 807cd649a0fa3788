"""Each test that runs by turns has one turn, and variants of a test have different ones."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.turns import TURNS, not_due, this_turn, turn_of_commit

_IDS = [
    *(f"tests/integration/test_a.py::test_b[{number}-x]@group" for number in range(2 * TURNS)),
    *(f"tests/trials/test_c.py::test_{name}" for name in "defghijklm"),
]


def test_each_is_due_in_one_turn() -> None:
    due = [set(_IDS) - not_due(_IDS, turn) for turn in range(TURNS)]
    assert Counter(nodeid for some in due for nodeid in some) == dict.fromkeys(_IDS, 1)
    assert all(sum("test_b" in nodeid for nodeid in some) == 2 for some in due)


def test_names_decide_and_not_the_number_of_other_tests() -> None:
    alone = [nodeid for nodeid in _IDS if "test_b" in nodeid]
    assert not_due(alone, 1) == not_due(_IDS, 1) & set(alone)


@pytest.mark.parametrize(("given", "expected"), [(None, None), ("", None), ("0", 0), (str(TURNS - 1), TURNS - 1)])
def test_the_turn_is_given(given: str | None, expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JSBACKUP_TEST_TURN", raising=False)
    if given is not None:
        monkeypatch.setenv("JSBACKUP_TEST_TURN", given)
    assert this_turn() == expected


@pytest.mark.parametrize("given", [str(TURNS), "-1", "x", "1.5"])
def test_there_are_no_other_turns(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSBACKUP_TEST_TURN", given)
    with pytest.raises(ValueError, match="below 5"):
        this_turn()


def test_the_commit_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert turn_of_commit() == 0
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    turns = []
    for number in range(6):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
        turns.append(turn_of_commit())
    assert turns[-1] == turn_of_commit()
    assert len(set(turns)) > 1 and set(turns) <= set(range(TURNS))
