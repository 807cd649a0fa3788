"""`pyarrow.compute`, imported on first use.

Importing it creates its functions, which takes 40 ms, and few commands need any.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    return getattr(import_module("pyarrow.compute"), name)
