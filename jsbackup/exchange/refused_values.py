"""Values in configurations that people write and no server takes.

Only what servers of all releases refuse: a backup may hold anything else, and what is exported must be imported again.
So a `republish` without a destination is taken, as servers do, although it has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsbackup.errors import UsageError
from jsbackup.model import JsonObject
from jsbackup.names import BLANKS

__all__ = ["checked_age", "checked_pattern", "refuse_values"]

_AGES = ("max_age", "duplicate_window", "subject_delete_marker_ttl")


def checked_age(value: int) -> int:
    """Return a duration. Raises `ValueError` if it is negative."""
    if value < 0:
        raise ValueError("a negative duration")
    return value


def checked_pattern(text: str) -> str:
    """Return a subject that may have wildcards; "" means none. Raises `ValueError` if it is not one (`IsValidSubject`
    in the server's `sublist.go`).
    """
    if not set(BLANKS).isdisjoint(text):
        raise ValueError("not a subject: it has a blank")
    tokens = text.split(".")
    if text and ("" in tokens or ">" in tokens[:-1]):
        raise ValueError("not a subject: it has an empty token, or > before its end")
    return text


def refuse_values(where: str, config: JsonObject) -> None:
    """Raise `UsageError` if a stream's config has such a value. Values of other types are left to the server."""
    for field in _AGES:
        if type(config.get(field)) is int:
            _check(f"{where}: {field}", checked_age, config[field])
    for subject in _list(config.get("subjects")):
        _check_pattern(f"{where}: subjects", subject)
    for field, sources in (("mirror", [config.get("mirror")]), ("sources", _list(config.get("sources")))):
        for source in sources:
            if isinstance(source, dict):
                _check_pattern(f"{where}: {field}: filter_subject", source.get("filter_subject"))


def _check_pattern(where: str, value: Any) -> None:
    if isinstance(value, str):
        _check(where, checked_pattern, value)


def _check(where: str, check: Callable[[Any], Any], value: Any) -> None:
    try:
        check(value)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
