"""Durations as Go writes and reads them (`time.ParseDuration`), to and from nanoseconds, exactly."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["format_go_duration", "parse_go_duration"]

_UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_UNITS_NS["h"] = 3600 * 10**9
_PART = re.compile(r"(\d{0,20}(?:\.\d{0,20})?)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_MOST_NS = (1 << 63) - 1


def parse_go_duration(text: str) -> int:
    """Return nanoseconds; parts of one are cut off. Raises `ValueError` if Go would not read the text."""
    wrong = ValueError(f"not a duration of Go: {text[:40]!r}")
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or not part[1].strip("."):
            raise wrong
        total += int(Fraction(f"0{part[1]}0" if "." in part[1] else part[1]) * _UNITS_NS[part[2]])
        at = part.end()
    if not at or total > _MOST_NS:
        raise wrong
    return -total if text[0] == "-" else total


def format_go_duration(ns: int) -> str:
    """Return the duration in hours, minutes and seconds without those that are zero; below a second in one unit."""
    if ns < 0:
        return f"-{format_go_duration(-ns)}"
    if 0 < ns < 10**9:
        unit = next(unit for unit in ("ms", "us", "ns") if ns % _UNITS_NS[unit] == 0)
        return f"{ns // _UNITS_NS[unit]}{unit}"
    seconds, fraction = divmod(ns, 10**9)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    parts = [f"{seconds // 3600}h" if seconds >= 3600 else "", f"{seconds // 60 % 60}m" if seconds // 60 % 60 else ""]
    parts.append(f"{seconds % 60}{digits}s" if seconds % 60 or digits else "")
    return "".join(parts) or "0s"
