"""What the benchmarks print: a row for each comparison, as a line of a table or in a JSON document."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HEAD", "Row", "Run", "line"]


_PROCESSORS = len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class Run:
    """A finished process."""

    seconds: float
    peak_bytes: int
    out: str
    busy_seconds: float = 0.0  # of processors, its own
    server_busy_seconds: float = 0.0  # and those of the server meanwhile

    def then(self, other: Run) -> Run:
        """One after the other."""
        return Run(
            self.seconds + other.seconds,
            max(self.peak_bytes, other.peak_bytes),
            self.out + other.out,
            self.busy_seconds + other.busy_seconds,
            self.server_busy_seconds + other.server_busy_seconds,
        )


@dataclass(slots=True)
class Row:
    """A line of the table. `bound` is what the ratio should be at most; `theirs` is what it is a ratio to.

    The floor is the ratio that there would be if no processor had been idle while we ran: what is left to gain without
    doing less.
    """

    case: str
    theirs: str
    bound: float | None = None
    ratios: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    server_busy: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    note: str = ""

    def add(self, ours: Run, others: Run) -> None:
        self.ratios.append(ours.seconds / others.seconds)
        self.ours.append(ours.seconds)
        self.others.append(others.seconds)
        self.busy.append(ours.busy_seconds)
        self.server_busy.append(ours.server_busy_seconds)
        self.floors.append((ours.busy_seconds + ours.server_busy_seconds) / _PROCESSORS / others.seconds)
        self.peak_bytes = max(self.peak_bytes, ours.peak_bytes)

    def document(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "against": self.theirs,
            "ratio": round(statistics.median(self.ratios), 3),
            "ratio_min": round(min(self.ratios), 3),
            "ratio_max": round(max(self.ratios), 3),
            "goal": self.bound,
            "seconds": round(statistics.median(self.ours), 3),
            "their_seconds": round(statistics.median(self.others), 3),
            "floor": round(statistics.median(self.floors), 3),
            "processor_seconds": round(statistics.median(self.busy), 3),
            "server_processor_seconds": round(statistics.median(self.server_busy), 3),
            "peak_bytes": self.peak_bytes,
            "note": self.note,
        }

    def cells(self) -> tuple[str, ...]:
        told = self.document()
        goal = "" if self.bound is None else f"{self.bound:g}"
        ratios = [f"{told[key]:.3f}" for key in ("ratio", "ratio_min", "ratio_max")]
        seconds = [f"{told[key]:.2f}" for key in ("seconds", "their_seconds")]
        busy = [f"{told[key]:.2f}" for key in ("floor", "processor_seconds", "server_processor_seconds")]
        if not told["processor_seconds"]:
            busy = ["", "", ""]
        return (self.case, self.theirs, *ratios, goal, *seconds, *busy, f"{self.peak_bytes / 2**20:.0f}", self.note)


HEAD = ("CASE", "AGAINST", "RATIO", "LEAST", "MOST", "GOAL", "SECONDS", "THEIRS", "FLOOR", "CPU", "SERVER", "MIB", "")
_WIDTHS = (-42, -22, 7, 7, 7, 5, 8, 8, 6, 6, 6, 5, -1)


def line(cells: Sequence[str]) -> str:
    aligned = (
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)
    )
    return "  ".join(aligned).rstrip()
