"""What servers say of themselves and their streams, as `doctor` tells it. (Permissions: the test of the command.)"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jsbackup.config.connection import ConnectionOptions, source_connection
from jsbackup.engine.check.doctor import examine_server
from jsbackup.model import Check, Verdict
from jsbackup.repository.checks.doctor import Purpose
from jsbackup.times import parse_time
from tests.harness.peer import Heard, ScriptedPeer

JSON = dict[str, Any]
TIME = "2026-11-21T10:00:00Z"
TYPE = "io.nats.jetstream.api.v1."
FREE = {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1}


def _stream(name: str, leader: str = "a", **replica: Any) -> JSON:
    replicas = [{"name": "b", "current": True, **replica}]
    return {
        "config": {"name": name, "storage": "file"},
        "created": TIME,
        "state": {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0},
        "cluster": {"name": "c", "leader": leader, "replicas": replicas},
        "ts": TIME,
    }


def _examine(
    version: str = "2.15.1", *streams: JSON, limits: JSON = FREE, later: float = 0, **listed: Any
) -> list[Check]:
    usage = {"memory": 0, "storage": 95, "streams": len(streams), "consumers": 0, "limits": {**FREE, **limits}}
    total = len(streams) + sum(len(names) for names in listed.values())
    listing = {"total": total, "offset": 0, "limit": 256, "streams": list(streams), **listed}
    answers = {
        "INFO": {"type": f"{TYPE}account_info_response", **usage, "api": {"level": 5}},
        "STREAM.LIST": {"type": f"{TYPE}stream_list_response", **listing},
    }

    async def main() -> list[Check]:
        async with ScriptedPeer(version=version, cluster="c") as peer:
            for subject, document in answers.items():
                # What tries a permission is no request.
                peer.always(f"$JS.API.{subject}", lambda heard, said=document: None if heard.data == b"!" else said)
            for one in streams:
                info = {"type": f"{TYPE}stream_info_response", **one}
                peer.always(f"$JS.API.STREAM.INFO.{one['config']['name']}", lambda heard, said=info: said)
            peer.always("$SYS.REQ.USER.INFO", lambda heard: {"server": {"time": TIME}, "data": {"account": "A"}})
            connection = source_connection(ConnectionOptions(server=peer.url), {})
            return await examine_server(connection, Purpose.ALL, lambda: parse_time(TIME) + int(later * 1e9))

    return asyncio.run(main())


def _named(name: str, checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.name == name]


@pytest.mark.parametrize(
    ("version", "verdict", "code"),
    [
        ("2.9.25", "problem", 13),
        ("2.10.0", "ok", 0),
        ("2.15.0-dev", "ok", 0),
        ("2.16.0", "warning", 0),
        ("3.0.0", "warning", 0),
    ],
)
def test_versions_that_are_not_known_are_told(version: str, verdict: str, code: int) -> None:
    (server,) = _named("server", _examine(version))
    assert (server.verdict, server.code) == (verdict, code) and f"nats-server {version}" in server.found


def test_streams_that_cannot_be_read_are_named_by_what_they_lack() -> None:
    few = [_stream("FINE"), _stream("HEADLESS", leader=""), _stream("BEHIND", current=False)]
    lost = _stream("LOST")
    lost["state"]["lost"] = {"msgs": [1, 2], "bytes": 20}
    found = _named("streams", _examine("2.15.1", *few, lost, missing=[f"GONE{n}" for n in range(7)]))
    assert [(check.verdict, check.found) for check in found] == [
        ("problem", "do not answer: GONE0, GONE1, GONE2, GONE3, GONE4 and 2 more"),
        ("problem", "have no leader: HEADLESS"),
        ("warning", "have lost messages on the server's disk: LOST"),
        ("warning", "have replicas that are behind or offline: BEHIND"),
    ]
    assert {check.code for check in found} == {20, 0} and all(check.fix for check in found)


def test_limits_that_are_nearly_reached_are_told() -> None:
    (fine,) = _named("limits", _examine(limits={"max_storage": 106}))
    assert (fine.verdict, fine.found) == (Verdict.OK, "95 of 106 bytes in files")
    (full,) = _named("limits", _examine(limits={"max_storage": 105, "max_streams": 4}))
    assert full.verdict is Verdict.WARNING and full.found.endswith("95 of 105 bytes in files, 0 of 4 streams")


@pytest.mark.parametrize("streams", [(), (_stream("S"),)])
def test_the_clock_is_compared_with_and_without_streams(streams: tuple[JSON, ...]) -> None:
    for later, verdict in ((0, "ok"), (-60, "warning"), (3600, "problem")):
        (clock,) = _named("server-clock", _examine("2.15.1", *streams, later=later))
        assert clock.verdict == verdict, clock
        assert later == 0 or ("behind" if later > 0 else "ahead of") in clock.found


def test_a_server_that_stops_answering_is_not_asked_for_everything() -> None:
    async def main() -> list[Check]:
        async with ScriptedPeer() as peer:

            def silent(heard: Heard) -> None:
                peer.stall()

            peer.always("$JS.API.INFO", silent)
            connection = source_connection(ConnectionOptions(server=peer.url, timeout="200ms"), {})
            return await examine_server(connection, Purpose.ALL, lambda: parse_time(TIME))

    found = asyncio.run(main())
    first, *others = [check.verdict for check in _named("permission", found)]
    assert first == "problem" and set(others) == {"not tried"}
    assert {check.verdict for check in found} <= {"problem", "not tried"}
