"""Something that goes wrong in a store: once, at its first, second, … operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jsbackup.errors import StoreError
from jsbackup.stores.local import LocalStore

__all__ = ["Fault"]

_WRITES = ("put", "delete")
_READS = ("get", "get_range", "head", "list")


@dataclass(slots=True)
class Fault:
    """At the operation with this number, from 0 on, a store fails. `is_late`: it has written before. `is_hard`: Ctrl-C
    comes then, which nothing passes over.
    """

    number: int
    is_late: bool = False
    is_hard: bool = False
    happened: str = field(default="", compare=False)

    @contextmanager
    def in_stores_of(self, folder: Path, *, but: Path) -> Iterator[None]:
        """In the stores that are folders below one, except those below another."""
        left = self.number
        with pytest.MonkeyPatch.context() as patch:
            for name in (*_WRITES, *_READS):
                patch.setattr(LocalStore, name, self._failing(name, folder, but))
            yield
        self.number = left

    def _failing(self, name: str, folder: Path, but: Path) -> Callable[..., Any]:
        operation = getattr(LocalStore, name)

        def run(store: LocalStore, *arguments: Any) -> Any:
            root = Path(store.location)
            if self.happened or not root.is_relative_to(folder) or root.is_relative_to(but):
                return operation(store, *arguments)
            if self.number:
                self.number -= 1
                return operation(store, *arguments)
            self.happened = f"{name}({', '.join(str(one)[:60] for one in arguments[:1])})"
            if self.is_late and name in _WRITES:
                operation(store, *arguments)
            raise KeyboardInterrupt if self.is_hard else StoreError("a disk has failed")

        return run
