from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from jsbackup.stores.overlay import OverlayStore
from jsbackup.stores.s3 import S3Store
from tests.harness.s3server import BUCKET, S3Server
from tests.stores.s3_bench import settings_of

_NUMBERS = itertools.count()


def _memory(folder: Path, request: pytest.FixtureRequest) -> Store:
    return MemoryStore()


def _local(folder: Path, request: pytest.FixtureRequest) -> Store:
    return LocalStore(folder / "store")


def _overlay(folder: Path, request: pytest.FixtureRequest) -> Store:
    return OverlayStore(LocalStore(folder / "store"), time.time)


def _s3(folder: Path, request: pytest.FixtureRequest) -> Store:
    server: S3Server = request.getfixturevalue("s3_server")
    return S3Store(BUCKET, f"contract/{next(_NUMBERS)}", settings_of(server.url))


FACTORIES: dict[str, Callable[[Path, pytest.FixtureRequest], Store]] = {
    "memory": _memory,
    "local": _local,
    "overlay": _overlay,
    "s3": _s3,
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the test server, and none of the developer's."""
    for name, value in S3Server.credentials().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.s3) if name == "s3" else name for name in FACTORIES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind. A new kind joins the contract by one line above."""
    yield FACTORIES[request.param](tmp_path, request)
