"""YARN, as others run it: containers with long paths, which are ended when they take more memory than was asked for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.commands import environment, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import seen
from tests.pipeline.quick_java import quick_java, quick_options
from tests.pipeline.streams import digests, make_streams
from tests.pipeline.yarn import Yarn

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark-apart"), pytest.mark.timeout(700)]

# A driver of its own, with one session for all commands: arguments and results are lists of JSON.
DRIVER = """
import contextlib, io, json, os, sys
from jsbackup.cli.main import run
from jsbackup.pipeline.session.session import SparkSettings, open_session
conf, commands = json.load(sys.stdin)
results = []
with open_session(SparkSettings("yarn", conf)) as session:
    for arguments in commands:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = run(arguments)
        results.append([code, json.loads(printed.getvalue())])
    where = session.sparkContext.range(4, numSlices=4).map(lambda _: os.getcwd()).collect()
json.dump([results, where], sys.stdout)
"""


@pytest.fixture(scope="module")
def yarn() -> Iterator[Yarn]:
    with Yarn() as running:
        yield running


@pytest.mark.by_turns
@pytest.mark.nats
def test_commands_run_in_containers(yarn: Yarn, nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    source, target = nats_server(NEWEST), nats_server(NEWEST)
    asyncio.run(make_streams(source.url, 40, messages=50, size_bytes=20_000))
    alone = jsbackup("backup", "-s", source.url, "-r", tmp_path / "alone").document
    spread = ["-r", str(tmp_path / "repo"), "--spark", "yarn", "--json"]
    sql = "SELECT count(*), count(DISTINCT subject), count(DISTINCT data) > 1900 FROM messages"
    commands = [
        ["backup", "-s", source.url, *spread],
        ["verify", "--level", "data", *spread],
        ["query", "latest", sql, *spread],
        ["restore", "latest", "-s", target.url, *spread],
    ]
    conf = {
        # Nothing but the session's own settings, and small containers: two of them, on two nodes.
        "spark.yarn.jars": f"local:{yarn.jars}/*",
        "spark.yarn.am.memory": "256m",
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.extraJavaOptions": quick_options(),
        "spark.yarn.am.extraJavaOptions": quick_options(),
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([conf, commands]),
        env=environment(**quick_java(), HADOOP_CONF_DIR=str(yarn.conf_dir)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results, where = json.loads(done.stdout)
    assert [code for code, _ in results] == [0, 0, 0, 0], results
    made, verified, asked, restored = (document for _, document in results)
    assert digests(made) == digests(alone) and len(digests(made)) == 40
    assert asked["rows"] == [[2000, 200, True]], asked
    assert [stream["verified"] for stream in restored["streams"]] == [True] * 40
    assert compare(seen(source.url), seen(target.url)) == []
    assert verified
    # What it was about: paths in which no Unix socket can be made, and memory that is looked at.
    assert all("/container_" in place and len(place) > 107 for place in where)
    assert "beyond the 'PHYSICAL' memory limit" not in yarn.log
