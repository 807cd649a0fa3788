"""Rows of documents: lists of values, where objects would repeat the names of their fields thousands of times."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from jsbackup.errors import FormatError
from jsbackup.repository.document import INT64_MAX

__all__ = ["DIGITS", "HEX256", "PageRow"]

HEX256 = re.compile(r"[0-9a-f]{64}")
# Those of the stored bytes in a key (`layout/`); "" if there are none.
DIGITS = re.compile(r"([0-9a-f]{8})?")


class PageRow:
    """Checked access to the values of a row, which errors call `where`."""

    def __init__(self, values: list[Any], where: str) -> None:
        self.values = values
        self._where = where

    def wrong(self, problem: str) -> NoReturn:
        raise FormatError(f"{self._where} {problem}")

    def number(self, at: int, low: int = 0, high: int = INT64_MAX) -> int:
        value = self.values[at]
        if type(value) is not int or not low <= value <= high:
            self.wrong(f"has no valid number in place {at}")
        return value

    def text(self, at: int, form: re.Pattern[str]) -> str:
        value = self.values[at]
        if not isinstance(value, str) or not form.fullmatch(value):
            self.wrong(f"has no valid text in place {at}")
        return value
