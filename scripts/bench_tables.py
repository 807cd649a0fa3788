"""The costs that `scripts/bench scale --save` has written, side by side: `python -m scripts.bench_tables FILE…`.

Prints a Markdown table for each quantity. A column is a repository, a row is a command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["markdown", "tables"]

Row = dict[str, Any]

QUANTITIES: dict[str, Callable[[Row], str]] = {
    "seconds": lambda row: f"{row['seconds']:.1f}",
    "processor seconds": lambda row: f"{row['processor_seconds']:.1f}",
    "requests": lambda row: f"{sum(row['requests'].values()):,}",
    "KiB read": lambda row: f"{row['read_bytes'] / 1024:,.0f}",
    "KiB written": lambda row: f"{row['written_bytes'] / 1024:,.0f}",
    "peak memory, MiB": lambda row: f"{row['peak_bytes'] / 2**20:.0f}",
}


def markdown(cells: Sequence[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def tables(rows: Sequence[Row]) -> str:
    """Return all tables. A cell without figures says why there are none, or is empty."""
    columns = list(dict.fromkeys(map(_repository, rows)))
    commands = list(dict.fromkeys(row["command"] for row in rows))
    found = {(row["command"], _repository(row)): row for row in rows}
    lines: list[str] = []
    for quantity, shown in QUANTITIES.items():
        lines += [markdown([quantity, *columns]), markdown(["---", *["---:"] * len(columns)])]
        for command in commands:
            cells = (found.get((command, column)) for column in columns)
            lines.append(markdown([command, *("" if row is None else row["failed"] or shown(row) for row in cells)]))
        lines.append("")
    return "\n".join(lines)


def _repository(row: Row) -> str:
    parts = [_short(row["segments"])]
    if row["streams"] > 1:
        parts.append(f"in {row['streams']:,} streams")
    if row["backups"] != 10:
        parts.append(f"{row['backups']:,} backups")
    return f"{'S3: ' if row['store'] == 'seaweed' else ''}{', '.join(parts)}".replace(", in", " in")


def _short(count: int) -> str:
    return f"{round(count / 1000)} k" if count >= 1000 else str(count)


if __name__ == "__main__":
    print(tables([row for file in sys.argv[1:] for row in json.loads(Path(file).read_text())["rows"]]))
