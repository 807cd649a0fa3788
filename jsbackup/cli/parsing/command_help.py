"""The help of a command besides its options: examples, exit codes, and related commands, as in a man page.

`command_help.json` has one table for all commands. Exit codes are those of the contract; an entry only explains one if
that adds to the contract's text. Every command may end with 0, 1, 2 and 130.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click

from jsbackup.exit_codes import EXIT_CODES

__all__ = ["command_help", "write_end", "write_examples"]

_WORD = re.compile(r"'[^']*'|\S+")

_ALWAYS = {0, 1, 2, 130}
_READS = {10, 12, 13, 14, 21}
# Names that `codes` of an entry may have.
_GROUPS = {
    "reads": _READS,
    "writes": _READS | {11},
    "nats": {20},
    "target": {15, 16, 20},
}
# Texts that stand in several entries.
_OTHERS_AT_WORK = "another command held the exclusive lock for longer than --lock-timeout"
_TEXTS = {
    "others_at_work": _OTHERS_AT_WORK,
    "runs_already": f"{_OTHERS_AT_WORK}; or the same run of the profile is not over",
    "several": "failed, or several streams failed for different reasons",
    "no_spark": "format or feature not supported; Spark or Java is not there",
    "not_so": "nothing was made: a restore with these options would be refused",
    "collide": "nothing was made: new names or subjects collide",
}


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """`examples`: command line -> what it does. `codes`: those of the command besides the common ones and those in
    `means`. `page`: of the manual, with more.
    """

    examples: Mapping[str, str]
    codes: frozenset[int]
    means: Mapping[int, str]
    see_also: tuple[str, ...]
    page: str | None

    @property
    def exit_codes(self) -> dict[int, str]:
        """Return all possible exit codes of the command, in order, with their meaning."""
        given = {**EXIT_CODES, **self.means}
        return {code: given[code] for code in sorted(_ALWAYS.union(self.codes, self.means))}


@cache
def command_help() -> Mapping[str, CommandHelp]:
    """Return the help of each command, in the order of the table."""
    entries = json.loads((Path(__file__).parent / "command_help.json").read_text(encoding="utf-8"))
    return {name: _read(**entry) for name, entry in entries.items()}


def _read(
    *,
    examples: Mapping[str, str],
    codes: Sequence[str | int] = (),
    means: Mapping[str, str] | None = None,
    see_also: Sequence[str] = (),
    page: str | None = None,
) -> CommandHelp:
    numbers = [code for one in codes for code in ([one] if isinstance(one, int) else _GROUPS[one])]
    texts = {int(code): text.format_map(_TEXTS) for code, text in (means or {}).items()}
    return CommandHelp(examples, frozenset(numbers), texts, tuple(see_also), page)


def write_examples(formatter: click.HelpFormatter, examples: Mapping[str, str]) -> None:
    """Write command lines to copy, each with what it does."""
    with formatter.section("Examples"):
        for line, purpose in examples.items():
            for text in (*_folded(line, formatter.width - 2), f"    {purpose}"):
                formatter.write(f"{'':>{formatter.current_indent}}{text}\n")


def write_end(formatter: click.HelpFormatter, name: str) -> None:
    """Write exit codes, those that are explained by the contract in one paragraph, and related commands."""
    entry = command_help()[name]
    with formatter.section("Exit codes"):
        formatter.write_dl([(str(code), text) for code, text in sorted(entry.means.items())])
        rest = ", ".join(str(code) for code in entry.exit_codes if code not in entry.means)
        formatter.write_text(f"Also {rest}, as in 'jsbackup --help'.")
    others = [*entry.see_also, *([f"help {entry.page}"] if entry.page else [])]
    if others:
        with formatter.section("See also"):
            formatter.write_text(", ".join(f"jsbackup {other}" for other in others))


def _folded(line: str, width: int) -> list[str]:
    """Fold a command line to lines that a shell joins; words in quotes stay whole."""
    lines = [""]
    for word in _WORD.findall(line):
        if lines[-1] and len(f"{lines[-1]} {word} \\") > width:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines
