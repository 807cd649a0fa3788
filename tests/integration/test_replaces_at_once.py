"""Two commands replace the same stream at the same time: neither takes the copy of the other for a leftover."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.engine.restore.remove_unfinished import at_work
from jsbackup.planning.interrupted import staged_config
from tests.engine.restores import connection_to
from tests.harness.api import call, connected
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import count, fill, names

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

REPLACE = ("--if-exists", "replace", "--replace-with-part")
NAMES = ["A", "B"]


def test_the_copy_of_a_command_at_work_stays_until_that_has_ended(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        fill(server.url, "S", 3)
        jsbackup("backup", "-r", tmp_path, "-s", server.url).ok()
        replace = ("restore", "latest", "-r", tmp_path, "-s", server.url, "--if-exists", "replace")

        async def work() -> None:
            async with at_work(connection_to(server.url)) as subject, connected(server.url) as nc:
                config = staged_config("S", "00000000", None, subject)
                await call(nc, f"STREAM.CREATE.{config['name']}", config)
                done = await asyncio.to_thread(jsbackup, *replace)
                assert done.code == 16
                assert (
                    "is being replaced by another command (S-jsbackup-00000000)" in done.document["failed"][0]["reason"]
                )

        asyncio.run(work())
        assert names(server.url) == ["S", "S-jsbackup-00000000"] and count(server.url, "S") == 3
        done = jsbackup(*replace).ok()
        assert any("removed the copy S-jsbackup-00000000" in note for note in done.document["streams"][0]["notes"])
        assert names(server.url) == ["S"] and count(server.url, "S") == 3


def test_a_clone_and_restores_at_once_lose_nothing(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    source, target = nats_server(NEWEST), nats_server(NEWEST)
    for name in NAMES:
        fill(source.url, name, 200)
        fill(target.url, name, 200)
    jsbackup("backup", "-r", tmp_path, "-s", source.url).ok()
    clone = command_line("clone", "*", "-s", source.url, "--to-server", target.url, *REPLACE)
    restore = command_line("restore", "latest", "-r", tmp_path, "-s", target.url, *REPLACE)
    for lines in [clone, restore], [restore, restore], [clone, clone]:
        running = [
            subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for line in lines
        ]
        said = [process.communicate(timeout=300)[1] for process in running]
        assert {process.returncode for process in running} <= {0, 3, 16}, said
        there = names(target.url)
        for name in NAMES:
            held = [one for one in there if one == name or one.startswith(f"{name}-jsbackup-")]
            assert held and max(count(target.url, one) for one in held) == 200, (there, said)
        jsbackup("restore", "latest", "-r", tmp_path, "-s", target.url, *REPLACE).ok()
        assert names(target.url) == NAMES
