"""What a drill adapts, how much room it wants, and which server it takes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.config import Glob
from jsbackup.engine.check.drill import adapt_streams, needed_bytes, newest_message_ns
from jsbackup.engine.check.drill_server import DrillServers, ServerProgram, find_program
from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.model import Fidelity, JsonObject
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository.manifest import BackupResult, ConsumerBackup, Manifest, Source, StreamBackup
from tests.harness.many import some_stream
from tests.harness.servers import BUNDLED

MIB = 1 << 20


def stream(name: str, size: int = 0, **config: object) -> StreamBackup:
    made = some_stream(name, 1)
    full: JsonObject = {"name": name, "retention": "limits", "storage": "file", "num_replicas": 1, **config}
    return replace(made, config=full, captured=replace(made.captured, bytes=size))


def manifest(*streams: StreamBackup) -> Manifest:
    return Manifest("20261121T014500Z-000001", "2026-11-21T01:45:00Z", "t", Source(), BackupResult.COMPLETE, streams)


def adapted(config: dict[str, object], nodes: int = 1, version: str = "2.15.1") -> tuple[JsonObject, list[str]]:
    changed, notes = adapt_streams(manifest(stream("A", **config)), RestoreOptions(), nodes, version)
    after = changed.streams[0].config
    before = stream("A", **config).config
    differs = {key: after.get(key) for key in before if after.get(key) != before[key]}
    return differs, notes["A"]


def test_what_the_servers_have_no_place_for_is_left_out_and_told() -> None:
    assert adapted({"num_replicas": 3}) == ({"num_replicas": 1}, ["restored with 1 instead of 3 replicas"])
    assert adapted({"num_replicas": 5}, 3) == ({"num_replicas": 3}, ["restored with 3 instead of 5 replicas"])
    assert adapted({"num_replicas": 3}, 3) == ({}, [])
    assert adapted({"placement": {"tags": ["ssd"]}}, 3) == ({"placement": None}, ["restored without its placement"])
    assert adapted({"storage": "memory"}) == ({}, [])
    assert adapted({"storage": "memory"}, version="2.14.9") == ({"storage": "file"}, ["restored in file storage"])


def test_of_servers_that_stay_nothing_goes_away_by_looking() -> None:
    def consumer(name: str, **config: object) -> ConsumerBackup:
        return ConsumerBackup(name=name, config={"name": name, **config}, created=None, fidelity=Fidelity.EXACT)

    one = replace(
        stream("JOBS", retention="workqueue"),
        consumers=(
            consumer("durable", durable_name="durable", inactive_threshold=5 * 10**9),
            consumer("named", inactive_threshold=5 * 10**9),
            consumer("lasting", durable_name="lasting"),
        ),
    )
    changed, notes = adapt_streams(manifest(one), RestoreOptions(), 1, BUNDLED, stays=True)
    (kept,) = changed.streams
    assert kept.config["retention"] == "limits"
    thresholds = {each.name: each.config.get("inactive_threshold") for each in kept.consumers}
    assert thresholds == {"durable": None, "named": 365 * 86_400 * 10**9, "lasting": None}
    assert notes["JOBS"] == [
        "restored with retention limits instead of workqueue",
        "consumers restored without inactive_threshold",
    ]
    unchanged, _ = adapt_streams(manifest(one), RestoreOptions(), 1, BUNDLED)
    assert unchanged.streams == (one,)


def test_what_would_let_go_of_messages_or_make_new_ones_is_left_out_and_told() -> None:
    finite = {"max_age": 5, "allow_msg_ttl": True, "subject_delete_marker_ttl": 7, "allow_msg_schedules": True}
    differs, notes = adapted({**finite, "mirror": {"name": "B"}, "max_msgs": 10, "sealed": True})
    assert differs == dict.fromkeys(finite) and notes == [f"restored without {field}" for field in finite]
    assert adapted({"max_age": 0, "allow_msg_ttl": False}) == ({}, [])


def test_streams_that_are_not_drilled_stay_as_they_are() -> None:
    both = manifest(stream("A", max_age=5), stream("B", max_age=5))
    changed, notes = adapt_streams(both, RestoreOptions(streams=(Glob("B"),)), 1, "2.15.1")
    assert changed.streams[0] == both.streams[0] and set(notes) == {"B"}


def test_a_damaged_configuration_is_refused() -> None:
    with pytest.raises(FormatError):
        adapt_streams(manifest(stream("A", num_replicas="3")), RestoreOptions(), 1, "2.15.1")


def test_room_is_for_every_replica_and_for_what_is_arriving() -> None:
    streams = [stream("A", 10 * MIB, num_replicas=3), stream("B", 4 * MIB), stream("C", 2 * MIB, storage="memory")]
    assert needed_bytes(streams, 1, jobs=1) == (10 + 4 + 10) * MIB
    assert needed_bytes(streams, 3, jobs=2) == (30 + 4 + 10 + 4) * MIB
    assert needed_bytes([], 3, jobs=2) == 0


def test_the_newest_message_is_that_of_all_streams() -> None:
    streams = [some_stream("A", 2), some_stream("B", 1)]
    assert newest_message_ns(streams) == max(ref.max_ns for ref in streams[0].segments)
    assert newest_message_ns([]) is None


def _fake(folder: Path, said: str) -> Path:
    folder.mkdir()
    program = folder / "nats-server"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    return program


def test_the_server_is_the_one_given_or_on_the_path_or_embedded(tmp_path: Path) -> None:
    given = _fake(tmp_path / "given", "nats-server: v2.10.26")
    on_path = _fake(tmp_path / "path", "nats-server: v2.12.8")
    embedded = _fake(tmp_path / "embedded", "nats-server: v2.15.0-dev")
    search = str(on_path.parent)
    assert find_program(given, search, embedded) == ServerProgram(given, "2.10.26")
    assert find_program(None, search, embedded) == ServerProgram(on_path, "2.12.8")
    assert find_program(None, str(tmp_path), embedded) == ServerProgram(embedded, "2.15.0")
    with pytest.raises(UsageError, match="no nats-server to restore into"):
        find_program(None, "", tmp_path / "nothing")
    other = _fake(tmp_path / "other", "redis-server v7.0.0")
    with pytest.raises(UsageError, match="is not a nats-server"):
        find_program(other, search, embedded)
    with pytest.raises(UsageError, match="cannot be started"):
        find_program(tmp_path / "nothing", search, embedded)


@pytest.mark.nats
def test_a_server_that_does_not_start_says_why_without_its_password(tmp_path: Path) -> None:
    program = find_program(Path(sys.executable).parent / "nats-server", None, tmp_path)
    assert program.version == BUNDLED
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(JsBackupError, match="cannot be started in"),
        DrillServers(program, 1, tmp_path / "file", random=bytes),
    ):
        pass
    ends = _fake(tmp_path / "ends", f"[FTL] cannot start with {(b's' * 24).hex()}")
    failing = ServerProgram(ends, "2.15.1")
    with (
        pytest.raises(JsBackupError, match=r"ended: .*cannot start with …") as caught,
        DrillServers(failing, 1, tmp_path, random=lambda count: b"s" * count),
    ):
        pass
    assert (b"s" * 24).hex() not in caught.value.message
