"""A cluster of one worker for tests of what commands do where there are no executors."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.harness.servers import missing
from tests.pipeline.standalone import Standalone


@pytest.fixture(scope="session")
def standing_cluster() -> Iterator[Standalone]:
    if find_spec("pyspark") is None:
        missing("pyspark is not installed: pip install 'jsbackup[spark]'")
    with Standalone({}, workers=1) as running:
        yield running


@pytest.fixture
def cluster(standing_cluster: Standalone) -> Standalone:
    """With its worker, which tests may kill."""
    standing_cluster.revive_all()
    return standing_cluster
