"""What a restore calls verified although messages are missing: each of them is excused by a fact, or it is an error.

The facts: messages that have expired by the server's clock and their headers, consumers that are there, schedules that
are due. Messages are deleted before the proof looks, as anybody else could have done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.engine.restore.run import RestoreRun
from jsbackup.engine.restore.stream_restore import StreamRestore
from tests.harness.api import JSON, call, connected
from tests.harness.servers import MINORS, NEWEST, NatsServer
from tests.trials.accounts import Type, ask, count, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

SECOND = 1_000_000_000
WITH_TTL = [version for version in MINORS if not version.startswith("2.10.")]
WITH_SCHEDULES = [version for version in WITH_TTL if not version.startswith("2.11.")]

Ends = tuple[str, str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """A source and a target of a version."""
    with NatsServer(request.param, name="C1") as source, NatsServer(request.param, name="C2") as target:
        yield source.url, target.url


def each(versions: list[str] | tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ends", versions, indirect=True)


def fill(
    url: str, config: JSON, *messages: tuple[str, dict[str, str] | None], consumers: tuple[JSON, ...] = ()
) -> None:
    async def work(nc: Client) -> None:
        name = config["name"]
        await call(nc, f"STREAM.CREATE.{name}", {"storage": "file", "retention": "limits", **config})
        for consumer in consumers:
            request = {"stream_name": name, "config": consumer}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{name}.{consumer['durable_name']}", request)
        for subject, headers in messages:
            await nc.request(subject, b"data", headers=headers, timeout=30)

    async def main() -> None:
        async with connected(url) as nc:
            await work(nc)

    asyncio.run(main())


def sequences(url: str, stream: str) -> list[int]:
    state = ask(url, f"STREAM.INFO.{stream}", {"deleted_details": True})["state"]
    return sorted({*range(state["first_seq"], state["last_seq"] + 1)} - set(state.get("deleted") or ()))


@pytest.fixture
def before_proof(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Do something to a stream, by its name, as soon as it has been restored."""

    def install(act: Callable[[str], None]) -> None:
        prove = StreamRestore._prove

        async def acting(self: Any, js: Any, supply: Any, action: Any, sent: Any) -> Any:
            await asyncio.to_thread(act, action.name)
            return await prove(self, js, supply, action, sent)

        monkeypatch.setattr(StreamRestore, "_prove", acting)

    return install


def deleting(url: str, *numbers: int) -> Callable[[str], None]:
    def act(name: str) -> None:
        for number in numbers:
            ask(url, f"STREAM.MSG.DELETE.{name}", {"seq": number})

    return act


# ------------------------------------------------------------------------------------------------------ what expires


@each(WITH_TTL)
@pytest.mark.parametrize("marks", [0, 5], ids=["plain", "marking"])
def test_messages_that_never_expire_are_restored_into_a_stream_with_max_age(
    marks: int, ends: Ends, typed: Type, tmp_path: Path
) -> None:
    """Servers remove them when they take an archive v1 that has `max_age`, unless they mark deletions."""
    source, target = ends
    never = [("n.never", {"Nats-TTL": "never"})] * 5
    config = {
        "name": "N",
        "subjects": ["n.>"],
        "max_age": 3 * SECOND,
        "allow_msg_ttl": True,
        "duplicate_window": SECOND,
    }
    if marks:
        config |= {"subject_delete_marker_ttl": marks * SECOND, "allow_rollup_hdrs": True}
    fill(source, config, *never, *([("n.plain", None)] * 3))
    repo = tmp_path / "repo"
    assert typed("backup", "-s", source, "-r", repo, "-q").code == 0
    time.sleep(3.5)
    done = typed("restore", "latest", "-s", target, "-r", repo, "--json")
    assert (done.code, done.document["streams"][0]["verified"]) == (0, True), done
    assert sequences(target, "N")[:5] == [1, 2, 3, 4, 5]
    assert ask(target, "STREAM.INFO.N")["config"]["max_age"] == 3 * SECOND
    replace = ("--if-exists", "replace", "--replace-with-part")
    replaced = typed("restore", "latest", "N", *replace, "-s", target, "-r", repo)
    assert replaced.code == 0, replaced
    assert sequences(target, "N")[:5] == [1, 2, 3, 4, 5]
    assert typed("drill", "latest", "-r", repo, "-q").code == 0
    ask(target, "STREAM.DELETE.N")
    cloned = typed("clone", "N", "-s", source, "--to-server", target)
    assert cloned.code == 0, cloned
    assert sequences(target, "N")[:5] == [1, 2, 3, 4, 5]


def test_a_plan_says_that_max_age_cannot_be_set_after_messages_that_never_expire(typed: Type, tmp_path: Path) -> None:
    few = '{user: few, password: p, permissions: {publish: {deny: "$JS.API.STREAM.UPDATE.*"}}}'
    users = f"users: [{{user: u, password: p}}, {few}]"
    with NatsServer(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}\nno_auth_user: u") as server:
        config = {"name": "N", "subjects": ["n"], "max_age": 3600 * SECOND, "allow_msg_ttl": True}
        fill(server.url, config, ("n", {"Nats-TTL": "never"}))
        repo = tmp_path / "repo"
        assert typed("backup", "-s", server.url, "-r", repo, "-q").code == 0
        ask(server.url, "STREAM.DELETE.N")
        few = f"nats://few:p@127.0.0.1:{server.port}"
        for command in ("plan", "restore"):
            done = typed(command, "latest", "-s", few, "-r", repo)
            assert done.code == 20 and "STREAM.UPDATE" in done.out + done.err, done
        assert ask(server.url, "STREAM.NAMES")["total"] == 0


@each([NEWEST])
def test_a_header_that_servers_do_not_heed_excuses_nothing(
    ends: Ends, typed: Type, tmp_path: Path, before_proof: Callable[[Callable[[str], None]], None]
) -> None:
    source, target = ends
    config = {"name": "N", "subjects": ["n"], "allow_msg_ttl": True}
    fill(source, config, ("n", {"nats-ttl": "1s"}), ("n", {"Nats-TTL": "1s"}), ("n", None))
    assert typed("backup", "-s", source, "-r", tmp_path, "-q").code == 0
    time.sleep(1.1)
    before_proof(deleting(target, 1))
    done = typed("restore", "latest", "-s", target, "-r", tmp_path)
    assert done.code == 14 and "1 missing (1)" in done.out + done.err, done


@each([WITH_TTL[0], NEWEST])
@pytest.mark.parametrize("ahead", [3600, -3600])
def test_expiry_is_judged_by_the_clock_of_the_server(
    ahead: int,
    ends: Ends,
    typed: Type,
    tmp_path: Path,
    before_proof: Callable[[Callable[[str], None]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = ends
    fill(
        source,
        {"name": "OLD", "subjects": ["o"], "max_age": 2 * SECOND, "duplicate_window": SECOND},
        *[("o", None)] * 5,
    )
    fill(source, {"name": "NEW", "subjects": ["n"], "max_age": 1800 * SECOND}, *[("n", None)] * 5)
    assert typed("backup", "-s", source, "-r", tmp_path, "-q").code == 0
    time.sleep(2.2)

    def wrong() -> int:
        return time.time_ns() + ahead * SECOND

    make = RestoreRun.__init__
    defaults = tuple(wrong if value is time.time_ns else value for value in make.__defaults__ or ())
    assert wrong in defaults
    monkeypatch.setattr(make, "__defaults__", defaults)
    assert typed("restore", "latest", "OLD", "-s", target, "-r", tmp_path).code == 0
    assert count(target, "OLD") == 0
    before_proof(deleting(target, 2))
    done = typed("restore", "latest", "NEW", "-s", target, "-r", tmp_path)
    assert done.code == 14 and "1 missing (2)" in done.out + done.err, done


# --------------------------------------------------------------------------------------------------------- consumers


@each(MINORS)
@pytest.mark.parametrize("cloned", [False, True], ids=["restore", "clone"])
def test_a_stream_of_interest_without_consumers_is_proved(
    cloned: bool,
    ends: Ends,
    typed: Type,
    tmp_path: Path,
    before_proof: Callable[[Callable[[str], None]], None],
) -> None:
    source, target = ends
    config = {"name": "I", "subjects": ["i"], "retention": "interest"}
    fill(source, config, *[("i", None)] * 10, consumers=({"durable_name": "C", "ack_policy": "explicit"},))
    line = ("clone", "I", "-s", source, "--to-server", target)
    if not cloned:
        assert typed("backup", "-s", source, "-r", tmp_path, "-q").code == 0
        line = ("restore", "latest", "-s", target, "-r", str(tmp_path))
    assert typed(*line, "--consumers", "none").code == 0
    assert sequences(target, "I") == [*range(1, 11)]
    ask(target, "STREAM.DELETE.I")
    before_proof(deleting(target, 3, 4))
    done = typed(*line, "--consumers", "none")
    assert done.code == 14 and "3" in done.out + done.err, done


# --------------------------------------------------------------------------------------------------------- schedules


@each(WITH_SCHEDULES)
def test_schedules_that_are_due_are_planned_and_fire_once_more(ends: Ends, typed: Type, tmp_path: Path) -> None:
    source, target = ends
    soon = (datetime.now(UTC) + timedelta(seconds=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = {"name": "S", "subjects": ["at.*", "out.*"], "allow_msg_schedules": True, "allow_rollup_hdrs": True}
    due = [(f"at.{n}", {"Nats-Schedule": f"@at {soon}", "Nats-Schedule-Target": f"out.{n}"}) for n in range(3)]
    later = ("at.9", {"Nats-Schedule": "@at 2099-01-01T00:00:00Z", "Nats-Schedule-Target": "out.9"})
    fill(source, config, *due, later, ("out.plain", None))
    assert typed("backup", "-s", source, "-r", tmp_path, "-q").code == 0
    time.sleep(4)
    onto = ("latest", "-s", target, "-r", tmp_path)
    planned = typed("plan", *onto)
    assert planned.code == 0 and "3 schedules are due, and published by the target at once" in planned.out, planned
    still = typed("restore", *onto, "--set", "allow_msg_schedules=null")
    assert still.code == 0, still
    time.sleep(1)
    assert sequences(target, "S") == [1, 2, 3, 4, 5]
    for more in ((), ()):
        ask(target, "STREAM.DELETE.S")
        done = typed("restore", *onto, *more)
        assert done.code == 0 and "3 schedules are due" in done.out, done
        _until(lambda: sequences(target, "S") == [4, 5, 6, 7, 8])
    replaced = typed("restore", *onto, "--if-exists", "replace", "--replace-with-part", "--json")
    assert (replaced.code, replaced.document["streams"][0]["verified"]) == (0, True), replaced
    ask(target, "STREAM.DELETE.S")
    assert typed("drill", "latest", "-r", tmp_path, "-q").code == 0


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
