"""`pyarrow.compute`, imported when something of it is first asked for.

It makes its functions at import, which takes 40 ms of each command, and few commands need any.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    return getattr(import_module("pyarrow.compute"), name)
