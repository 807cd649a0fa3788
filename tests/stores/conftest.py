from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.retry import RetryingStore


def _memory(folder: Path) -> Store:
    return MemoryStore()


def _local(folder: Path) -> Store:
    return LocalStore(folder / "store")


def _retrying(folder: Path) -> Store:
    return RetryingStore(LocalStore(folder / "store"), sleep=lambda seconds: None)


FACTORIES: dict[str, Callable[[Path], Store]] = {"memory": _memory, "local": _local, "retrying": _retrying}


@pytest.fixture(params=list(FACTORIES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind. A new kind joins the contract by one line above."""
    yield FACTORIES[request.param](tmp_path)
