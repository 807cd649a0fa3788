"""Unix sockets only where their path fits, and memory for Python workers where containers are limited."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import pytest

from jsbackup.errors import UsageError
from jsbackup.pipeline.session.worker_settings import memory_settings, socket_settings
from tests.cli.typed import in_shell
from tests.harness.batches import some_messages
from tests.pipeline.places import keep
from tests.pipeline.quick_java import quick_java

ENABLED = "spark.python.unix.domain.socket.enabled"
FOLDER = "spark.python.unix.domain.socket.dir"
OVERHEAD = "spark.executor.memoryOverhead"


def folder_of(parent: Path, length: int) -> Path:
    """A new folder whose path has so many bytes."""
    missing = length - len(str(parent)) - 1
    parts = ["x" * min(200, missing - start) for start in range(0, missing, 201)]
    made = parent.joinpath(*parts)
    made.mkdir(parents=True)
    assert len(str(made)) == length
    return made


def test_an_embedded_spark_has_its_sockets_in_our_folder_while_their_paths_fit(tmp_path: Path) -> None:
    """The longest path that is taken can be bound, and with one more byte it cannot."""
    short = Path("/tmp/jsbackup-spark-12345678")
    assert socket_settings("local[4,4]", short, {}) == {ENABLED: "true", FOLDER: str(short)}
    for length in (64, 65):
        folder = folder_of(Path("/tmp") / uuid.uuid4().hex[:8] if len(str(tmp_path)) > 50 else tmp_path, length)
        taken = socket_settings("local[4,4]", folder, {})[ENABLED] == "true"
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.bind(f"{folder}/.{uuid.uuid4()}.sock")
            except OSError as error:
                assert "path too long" in str(error) and not taken
            else:
                assert taken
        assert taken is (length == 64)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://host", "spark://host:7077"])
def test_a_cluster_has_none_unless_a_folder_of_its_nodes_is_named(tmp_path: Path, master: str) -> None:
    """The folder of a container on YARN: /hadoop/yarn/local/usercache/… has some 160 bytes."""
    assert socket_settings(master, Path("/tmp/x"), {}) == {ENABLED: "false"}
    assert socket_settings(master, Path("/tmp/x"), {FOLDER: "/var/tmp"}) == {ENABLED: "true"}
    with pytest.raises(UsageError, match="dir is too long") as caught:
        socket_settings(master, Path("/tmp/x"), {FOLDER: "/" + "x" * 100})
    assert "64 bytes" in caught.value.hint


def test_python_workers_have_memory_where_containers_are_limited() -> None:
    assert memory_settings("yarn", {}) == {OVERHEAD: "768m"}
    assert memory_settings("k8s://https://host", {"spark.executor.cores": "4"}) == {OVERHEAD: "1920m"}
    assert memory_settings("yarn", {"spark.executor.cores": "many"}) == {OVERHEAD: "768m"}
    for own in (OVERHEAD, "spark.executor.memoryOverheadFactor", "spark.executor.pyspark.memory"):
        assert memory_settings("yarn", {own: "1"}) == {}
    assert memory_settings("local[4,4]", {}) == memory_settings("spark://host:7077", {}) == {}


@pytest.mark.spark
@pytest.mark.xdist_group("spark-apart")
@pytest.mark.timeout(300)
def test_a_query_runs_although_the_folder_for_temporary_files_has_a_long_path(tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(50, 100)}, encrypted=True)
    line = ["query", "latest", "SELECT count(data) AS n FROM A", *kept.line, "--spark", "local[1]"]
    long = folder_of(tmp_path, 160)
    line += ["--spark-conf", "spark.driver.memory=1g"]
    done = in_shell(*line, seconds=240, TMPDIR=str(long), **quick_java())
    assert (done.code, done.out.split()) == (0, ["n", "50"]), done
    assert list(long.iterdir()) == []
