"""Tests that take long run by turns: at each commit a fifth of them, beside all others.

They are marked `by_turns`: what takes more than two seconds of a processor, with all its variants. Each variant has its
turn. The hash of the commit decides which turn it is, so that a run can be repeated (`scripts/test` asks git): a test
may miss several commits in a row. `./scripts/test thorough` runs all at once. A run that names its tests leaves nothing
out either.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterable

__all__ = ["TURNS", "not_due", "this_turn", "turn_of_commit"]

TURNS = 5


def this_turn() -> int | None:
    """The number of the turn (from 0), or None where all tests are to run: JSBACKUP_TEST_TURN, which scripts/test sets.

    Raises ValueError if that is no number below `TURNS`.
    """
    given = os.environ.get("JSBACKUP_TEST_TURN", "")
    if given == "":
        return None
    if not given.isdecimal() or int(given) >= TURNS:
        raise ValueError(f"JSBACKUP_TEST_TURN is a number below {TURNS}, not {given!r}")
    return int(given)


def turn_of_commit() -> int:
    """The turn of what is checked out in the current folder; 0 where git does not know."""
    try:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(asked.stdout[:8], 16) % TURNS


def not_due(nodeids: Iterable[str], turn: int) -> set[str]:
    """Return those of `nodeids`, in the order in which they were collected, that another turn runs.

    Functions begin at turns that their names decide, and their variants follow one another.
    """
    seen: Counter[str] = Counter()
    found = set()
    for nodeid in nodeids:
        function = nodeid.partition("@")[0].partition("[")[0]
        if (zlib.crc32(function.encode()) + seen[function]) % TURNS != turn:
            found.add(nodeid)
        seen[function] += 1
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{turn_of_commit()}\n")
