"""Where a cluster has no room, it is said what is waited for, and the command ends."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jsbackup.errors import JsBackupError, UsageError
from jsbackup.pipeline.session import waiting
from jsbackup.pipeline.session.waiting import bounded_wait
from tests.cli.typed import in_shell
from tests.harness.batches import some_messages
from tests.harness.commands import environment
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java
from tests.pipeline.standalone import Standalone


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "_END_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_what_takes_long_is_announced_and_then_given_up(caplog: pytest.LogCaptureFixture) -> None:
    asked, ended = [], threading.Event()

    def give_up() -> None:
        """As Spark: the first attempt comes too early."""
        asked.append(1)
        if len(asked) == 1:
            raise OSError
        ended.set()

    with (
        pytest.raises(JsBackupError, match="waited 0 s for the sun, in vain") as caught,
        bounded_wait("the sun", 0.4, give_up, hint="Go on."),
    ):
        assert ended.wait(60)
        raise OSError("cancelled")
    assert caught.value.hint == "Go on." and len(asked) >= 2
    told = [record.getMessage() for record in caplog.records]
    assert len(told) >= 2 and told[0] == "waiting for the sun: 0 s, at most 0 s"


@pytest.mark.usefixtures("quick")
def test_what_ends_in_time_is_neither_announced_nor_changed(caplog: pytest.LogCaptureFixture) -> None:
    def give_up() -> None:
        raise AssertionError("it is over")

    with bounded_wait("the sun", 60, give_up, hint=""):
        pass
    for error in (UsageError("other"), KeyboardInterrupt()):
        with pytest.raises(type(error)), bounded_wait("the sun", 60, give_up, hint=""):
            raise error
    assert not caplog.records


def test_none_is_waited_for_with_a_limit_of_zero() -> None:
    ended = threading.Event()
    with pytest.raises(JsBackupError, match="in vain"), bounded_wait("the sun", 0, ended.set, hint=""):
        assert ended.wait(60)
        raise OSError


@pytest.mark.spark
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.timeout(400)
def test_a_cluster_without_room_ends_with_one_error(cluster: Standalone, tmp_path: Path) -> None:
    """A worker of 1 GB, and an executor of 8. `test_executor_watch.py` has commands for which there is room."""
    kept = keep(tmp_path / "r", {"A": some_messages(50, 100)})
    line = ["stats", "latest", *kept.line, "--spark-master", cluster.url]
    line += ["--spark-wait", "20s", "--spark-conf", "spark.executor.memory=8g"]
    began = time.monotonic()
    done = in_shell(*line, seconds=240, **quick_java())
    assert (done.code, done.out) == (1, "") and time.monotonic() - began < 200
    assert done.err.splitlines()[-3:] == [
        f"warning: waiting for an executor of {cluster.url}: 15 s, at most 20 s",
        f"error: waited 20 s for an executor of {cluster.url}, in vain",
        "hint: The cluster may have no room for one of 8g. --spark-wait waits longer; --spark-conf "
        "spark.executor.memory=SIZE and spark.executor.cores=N ask for less.",
    ]


# Opens a session with a master that does not answer, and then another one, of which nothing is left.
SILENT = """
import sys, threading
from jsbackup.errors import JsBackupError
from jsbackup.pipeline.session import session
session._JAVA_SECONDS = 0
try:
    with session.open_session(session.SparkSettings(sys.argv[1], wait_seconds=12)):
        print("open")
except JsBackupError as error:
    print(error.message)
with session.open_session(session.SparkSettings("local[1]", {"spark.driver.memory": "1g"})) as spark:
    print(spark.range(7).count())
    accumulators = spark.sparkContext._accumulatorServer
[thread.join() for thread in threading.enumerate() if thread.name == "jsbackup-accumulators"]
print(accumulators.fileno())
"""


@pytest.mark.by_turns
@pytest.mark.spark
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.timeout(300)
def test_a_master_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        line = [sys.executable, "-c", SILENT, url]
        environ = environment(**quick_java())
        done = subprocess.run(line, capture_output=True, text=True, env=environ, timeout=240)
    assert done.stdout.splitlines() == [f"waited 12 s for Spark at {url}, in vain", "7", "-1"]
    assert done.stderr == ""


@pytest.mark.parametrize("wait", ["soon", "5"])
def test_a_wait_that_is_no_duration_is_refused_before_anything_starts(tmp_path: Path, wait: str) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(50, 100)})
    done = in_shell("stats", "latest", *kept.line, "--spark-wait", wait)
    assert done.code == 2 and "duration" in done.err


def test_the_default_of_the_option_is_that_of_programs() -> None:
    from jsbackup.cli.options.spark import Where
    from jsbackup.config import parse_duration

    assert parse_duration(Where(None, ()).wait) == waiting.WAIT_SECONDS
