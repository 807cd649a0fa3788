"""The exit codes of the contract, and what several of them come to. `errors.py` says which error has which.

What ends in several parts (streams, backups, profiles, checks) has one code all the same:

    code                      when
    0                         no part failed
    a code that comes first   a part ended with it; each command says which, such as 14 of `verify` and `drill`
    3                         a part failed, and another one did not, or not wholly
    that of all               all that failed, failed with it
    1                         they failed with different ones

Where 14 is decided: `IntegrityError` and its kinds have it, wherever they end a command. Commands that find damage and
go on say so by `damage` (`verify`, `show`, `unlock`, `forget`, `copy`; `backup`, `follow` and
`import`, if a reader's key file is lost) or `unreadable` (`list`, `forget`, `history`). It comes first
(`DAMAGE`) for a drill (`engine/check/drill.py`), for several accounts (`engine/accounts/backups.py`) and for
several profiles (`cli/profiles/runs.py`). A plan that lacks an object is refused with it
(`planning/rules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError

__all__ = ["DAMAGE", "EXIT_CODES", "combined", "damage", "first_of", "unreadable"]

EXIT_CODES: dict[int, str] = {
    0: "done and proved",
    1: "failed",
    2: "usage or configuration",
    3: "incomplete, as the output says",
    10: "no repository there",
    11: "locked",
    12: "wrong or missing key",
    13: "format or feature not supported",
    14: "integrity failure found",
    15: "plan refused, or target cannot be met",
    16: "conflict at the target: names, limits, subjects",
    17: "policy breach",
    20: "NATS unreachable or not allowed",
    21: "storage unreachable or not allowed",
    130: "interrupted, state safe",
}

DAMAGE = IntegrityError.exit_code
"""Something that is stored is missing or damaged."""

_INCOMPLETE = IncompleteError.exit_code


def combined(codes: Iterable[int], *, first: Iterable[int] = (), mixed: int = JsBackupError.exit_code) -> int:
    """Return the code for parts with these codes, as in the table above; `mixed` if they failed with different ones."""
    distinct = set(codes)
    failed = distinct - {0}
    if (leading := next((code for code in first if code in failed), 0)) or not failed:
        return leading
    if distinct & {0, _INCOMPLETE}:
        return _INCOMPLETE
    return failed.pop() if len(failed) == 1 else mixed


def first_of(codes: Iterable[int], *order: int) -> int:
    """Return the code that is first in `order`, else the first one that is not 0."""
    failed = [code for code in codes if code]
    return next((code for code in order if code in failed), next(iter(failed), 0))


def damage(problems: object) -> int:
    """Return the code of a command that looks at what is stored: `DAMAGE` if it has found any, else 0."""
    return DAMAGE if problems else 0


def unreadable(errors: Iterable[JsBackupError]) -> int:
    """Return the code for what could not be read: `DAMAGE` if any of it is damaged, else that of the first error."""
    return first_of((error.exit_code for error in errors), DAMAGE)
