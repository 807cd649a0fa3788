"""What is adapted before a server is filled to look at, and what a reader of it may do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.engine.check.drill_server import DrillServers
from jsbackup.engine.check.read_only import read_permissions
from jsbackup.engine.check.serve import adapt_to_look, stored_consumers
from jsbackup.engine.check.server_program import ServerProgram
from jsbackup.model import Fidelity
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.manifest import ConsumerBackup, Manifest, Result, Source
from jsbackup.transforms.rename import RenameOptions
from tests.harness.many import some_stream
from tests.harness.servers import BUNDLED, binary

ID = "20261121T014500Z-000001"
AWKWARD = 'a"b\\c\x01\x7fü日$'


def _consumer(name: str, **config: object) -> ConsumerBackup:
    return ConsumerBackup(name=name, config={"name": name, **config}, created=None, fidelity=Fidelity.EXACT)


def _manifest() -> Manifest:
    one = some_stream("JOBS", 1)
    consumers = (
        _consumer("durable", durable_name="durable", inactive_threshold=5 * 10**9),
        _consumer("named", inactive_threshold=5 * 10**9),
        _consumer("lasting", durable_name="lasting"),
    )
    config = {**one.config, "retention": "workqueue", "max_age": 10**9}
    one = replace(one, config=config, consumers=consumers)
    source = Source(server_version=BUNDLED)
    return Manifest(ID, "2026-11-21T01:45:00Z", "t", source, Result.COMPLETE, (one,))


def test_nothing_is_left_that_removes_messages_or_consumers() -> None:
    manifest, notes = adapt_to_look(_manifest(), RestoreOptions(), BUNDLED)
    [stream] = manifest.streams
    assert stream.config["retention"] == "limits" and "max_age" not in stream.config
    thresholds = {one.name: one.config.get("inactive_threshold") for one in stream.consumers}
    assert thresholds == {"durable": None, "named": 365 * 86_400 * 10**9, "lasting": None}
    assert notes["JOBS"] == [
        "restored with 1 instead of 3 replicas",
        "restored without max_age",
        "restored with retention limits instead of workqueue",
        "consumers restored without inactive_threshold",
    ]


def test_consumers_are_protected_under_the_name_that_the_stream_gets() -> None:
    options = RestoreOptions(renames=RenameOptions.parse([], "OLD_"))
    assert stored_consumers(_manifest(), options) == {"OLD_JOBS": ["durable", "named", "lasting"]}


@pytest.mark.nats
def test_a_server_takes_the_permissions_whatever_the_names_are(tmp_path: Path) -> None:
    denied = read_permissions({AWKWARD: [AWKWARD, "a b", "x.*", "\ud800"], "S": ["c"], ">": ["c"]})["publish"]["deny"]
    assert len(denied) == 12 and f"$JS.API.CONSUMER.DELETE.{AWKWARD}.{AWKWARD}" in denied
    assert "deny" not in read_permissions({"S": []})["publish"]
    for version in ("2.10.26", "2.15.3"):
        program = ServerProgram(binary(version), version)
        folder = tmp_path / version
        folder.mkdir()
        reads = read_permissions({AWKWARD: [AWKWARD]})
        with DrillServers(program, 1, folder, random=bytes, reads=reads) as servers:
            servers.refuse_ended()
            assert servers.login.user == "reader"
