"""What expires as soon as it is restored is lost: it does not replace a live stream that has more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsbackup
from jsbackup.errors import PlanRefused
from tests.harness.api import connected, until_stored
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, Typed, ask, delete, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

SECOND_NS = 1_000_000_000
AGE = 2  # seconds
REPLACE = ("--if-exists", "replace")
CONSENT = "--replace-with-part"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[str, str]]:
    with NatsServer(NEWEST, name="C1") as one, NatsServer(NEWEST, name="C2") as other:
        yield one.url, other.url


@pytest.fixture
def servers(started: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Two servers without streams."""
    yield started
    for url in started:
        delete(url, *names(url))


def make(url: str, stream: str = "M", **config: object) -> None:
    wanted = {"name": stream, "subjects": [f"{stream.lower()}.>"], "storage": "file", **config}
    if stream in names(url):
        ask(url, f"STREAM.UPDATE.{stream}", wanted)
    else:
        ask(url, f"STREAM.CREATE.{stream}", wanted)


def publish(url: str, count: int, *, subjects: int = 1000) -> None:
    async def work() -> None:
        async with connected(url) as nc:
            for number in range(count):
                await nc.publish(f"m.{number % subjects}", b"text")
            await until_stored(nc, "m.0")

    asyncio.run(work())


def messages(url: str, stream: str = "M") -> int:
    return int(ask(url, f"STREAM.INFO.{stream}")["state"]["messages"])


def aged(url: str, repo: Path, typed: Type, count: int = 10) -> float:
    """Back up messages that live for two seconds. The stream itself keeps them from then on; return when they would
    have expired.
    """
    make(url, max_age=AGE * SECOND_NS, duplicate_window=AGE * SECOND_NS)
    publish(url, count)
    published = time.time()
    made = typed("backup", "-s", url, "-r", repo, "-q")
    assert made.code == 0, made
    make(url, duplicate_window=AGE * SECOND_NS)
    return published + AGE + 0.1


def lived(url: str, repo: Path, typed: Type, *ttls: str, count: int = 10) -> None:
    """Back up as many messages with each time to live ("" for none), then empty the stream."""
    make(url, allow_msg_ttl=True)

    async def work() -> None:
        async with connected(url) as nc:
            for ttl in ttls:
                for number in range(count):
                    await nc.publish(f"m.{number}", b"text", headers={"Nats-TTL": ttl} if ttl else None)
            await until_stored(nc, "m.0")

    asyncio.run(work())
    made = typed("backup", "-s", url, "-r", repo, "-q")
    assert made.code == 0, made
    ask(url, "STREAM.PURGE.M")


def wait(until: float) -> None:
    time.sleep(max(0.0, until - time.time()))


def rules(planned: Typed) -> list[str]:
    assert planned.code == 15, planned
    return sorted(one["rule"] for one in planned.document["refusals"])


def test_a_live_stream_is_not_replaced_by_nothing(servers: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    server, _ = servers
    repo = tmp_path / "repo"
    wait(aged(server, repo, typed))
    publish(server, 10)
    before = messages(server)
    line = ("latest", "M", *REPLACE, "-s", server, "-r", repo)
    assert rules(typed("plan", *line, "--json")) == ["part-replaces"]
    for more in ((), ("--quiet",), ("--allow-nothing",)):
        done = typed("restore", *line, *more)
        assert done.code == 15 and "older than its max_age" in done.out + done.err, (more, done)
    runbook = tmp_path / "book.toml"
    runbook.write_text('[[restore]]\nbackup = "latest"\nstreams = ["M"]\nif-exists = "replace"\n')
    assert typed("restore", "--runbook", runbook, "-s", server, "-r", repo).code == 15
    repository = jsbackup.open(repo)
    assert not jsbackup.plan(repository, server, streams="M", if_exists="replace").ok
    with pytest.raises(PlanRefused, match="older than its max_age"):
        jsbackup.restore(repository, server, streams="M", if_exists="replace")
    assert messages(server) == before >= 10

    drilled = typed("drill", "latest", "-r", repo, "--json")  # keeps them, so that they can be compared
    assert (drilled.code, drilled.document["streams"][0]["messages"]) == (0, 10)

    done = typed("restore", *line, CONSENT)
    assert done.code == 0 and "expire at once: 10 of 10 messages" in done.out, done
    assert messages(server) == 0


def test_a_stream_of_which_all_has_expired_keeps_no_other_from_its_restore(
    servers: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    server, target = servers
    repo = tmp_path / "repo"
    make(server, "LASTING")
    expired = aged(server, repo, typed)
    line = ("-s", target, "-r", repo)
    wait(expired)
    done = typed("restore", "latest", *line)
    assert done.code == 0 and "expire at once: 10 of 10 messages" in done.out, done
    assert (messages(target), messages(target, "LASTING")) == (0, 0)
    delete(target, "M")
    assert typed("restore", "latest", "M", "--set", "max_age=null", *line, "-q").code == 0
    assert messages(target) == 10


def test_what_is_left_of_a_stream_replaces_one_that_has_no_more(
    servers: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    server, target = servers
    repo = tmp_path / "repo"
    age = 6
    make(server, max_age=age * SECOND_NS, duplicate_window=SECOND_NS)
    publish(server, 10)
    time.sleep(age / 2)
    publish(server, 10)
    published = time.time()
    assert typed("backup", "-s", server, "-r", repo, "-q").code == 0
    wait(published + age / 2 + 0.2)
    line = ("latest", "M", *REPLACE, "-s", target, "-r", repo)
    make(target)
    publish(target, 11)
    planned = typed("plan", *line, "--json")
    restored = typed("restore", *line)
    publish_more = typed("restore", "latest", "M", "--rename", "M=N", "--map-subject", "m.>=>n.>", *line[4:])
    if time.time() < published + age:
        assert rules(planned) == ["part-replaces"]
        assert "would replace a stream with 11 messages by one with 10" in restored.err, restored
        assert publish_more.code == 0, publish_more
    assert (restored.code, messages(target)) == (15, 11)


def test_max_age_takes_nothing_from_a_clone_of_what_lives_now(servers: tuple[str, str], typed: Type) -> None:
    server, target = servers
    make(server, max_age=3600 * SECOND_NS)
    publish(server, 5)
    make(target)
    publish(target, 9)
    line = ("clone", "M", *REPLACE, "-s", server, "--to-server", target)
    shorter = ("--set", "max_age=1", "--set", "duplicate_window=1")
    done = typed(*line, *shorter)
    assert done.code == 15 and "in nanoseconds" in done.err and messages(target) == 9, done
    assert typed(*line, "--dry-run", *shorter).code == 15
    assert typed(*line, "-q").code == 15 and messages(target) == 9  # they are others
    assert typed(*line, CONSENT, "-q").code == 0
    assert messages(target) == 5


def test_a_max_age_in_milliseconds_is_refused_and_no_hint_makes_it_work(
    servers: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    server, target = servers
    repo = tmp_path / "repo"
    make(server)
    publish(server, 5)
    assert typed("backup", "-s", server, "-r", repo, "-q").code == 0
    time.sleep(0.7)
    publish(server, 3)
    wrong = ("--set", "max_age=604800000")
    followed = (*wrong, "--set", "duplicate_window=604800000")
    for where, more in ((server, REPLACE), (target, ())):
        line = ("restore", "latest", "M", *more, "-s", where, "-r", repo)
        for typo in (wrong, followed, (*followed, "--allow-nothing", CONSENT)):
            done = typed(*line, *typo)
            assert done.code == 15, done
            assert "A max_age without a unit is in nanoseconds, and 604800000 are 0.6048 s" in done.err
            assert "--set duplicate_window" not in done.err
    assert (messages(server), names(target)) == (8, [])
    assert typed("restore", "latest", "M", "--set", "max_age=7d", "-s", target, "-r", repo, "-q").code == 0
    assert messages(target) == 5
    assert ask(target, "STREAM.INFO.M")["config"]["max_age"] == 7 * 86_400 * SECOND_NS


def test_fewer_messages_of_a_subject_are_refused_like_fewer_messages(
    servers: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    server, target = servers
    repo = tmp_path / "repo"
    make(server)
    publish(server, 12, subjects=4)
    assert typed("backup", "-s", server, "-r", repo, "-q").code == 0
    line = ("restore", "latest", "M", "-s", target, "-r", repo)
    clone = ("clone", "M", "-s", server, "--to-server", target)
    for command in (line, ("plan", *line[1:]), clone, (*clone, "--dry-run")):
        for limit, left in ((1, 4), (2, 8)):
            done = typed(*command, "--set", f"max_msgs_per_subject={limit}")
            assert done.code == 15 and f"would keep {left} of its 12 messages" in done.out + done.err, done
    done = typed(*line, "--subject", "m.1", "--set", "max_msgs_per_subject=2")
    assert done.code == 15 and "would keep 2 of its 3 messages" in done.err, done
    assert names(target) == []
    newest: tuple[str, ...] = ("--last-per-subject", "1")
    for command, more, most, left in ((line, newest, 1, 4), (clone, (), 3, 12)):
        assert typed(*command, *more, "--set", f"max_msgs_per_subject={most}", "-q").code == 0
        assert messages(target) == left
        delete(target, "M")


def test_what_outlives_its_own_time_to_live_does_not_replace_a_live_stream(
    servers: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    server, _ = servers
    repo = tmp_path / "repo"
    lived(server, repo, typed, "1", "1500ms", "1h", "never", "")
    time.sleep(2)
    publish(server, 31)
    line = ("latest", "M", *REPLACE, "-s", server, "-r", repo)
    assert rules(typed("plan", *line, "--json")) == ["part-replaces"]
    for more in ((), ("--quiet",)):
        done = typed("restore", *line, *more)
        said = (
            "would replace a stream with 31 messages by one with 30: messages that have outlived their Nats-TTL expire "
            "at once, 20 of its 50 messages"
        )
        assert done.code == 15 and said in done.err + done.out, (more, done)
    assert "--set allow_msg_ttl=null" in typed("restore", *line).err
    cut = typed("restore", *line, "--until", "50")
    assert cut.code == 15 and "20 of its 50 messages" in cut.err, cut
    assert messages(server) == 31
    done = typed("restore", *line, CONSENT)
    assert done.code == 0 and messages(server) == 30, done
    assert typed("restore", *line, "--set", "allow_msg_ttl=null", "-q").code == 0
    assert messages(server) == 50


def test_what_outlives_its_time_to_live_is_told_where_it_replaces_no_more(
    servers: tuple[str, str], typed: Type, tmp_path: Path
) -> None:
    server, target = servers
    repo = tmp_path / "repo"
    lived(server, repo, typed, "1", "never")
    time.sleep(2)
    publish(server, 10)
    line = ("latest", "M", "-r", repo)
    planned = typed("plan", *line, *REPLACE, CONSENT, "-s", server)
    assert planned.code == 0 and "whose TTL has expired" in planned.out, planned
    assert typed("restore", *line, *REPLACE, CONSENT, "-s", server, "-q").code == 0 and messages(server) == 10
    publish(server, 1)
    done = typed("restore", *line, *REPLACE, "-s", server)
    assert done.code == 15 and messages(server) == 11, done
    assert typed("restore", *line, "-s", target, "-q").code == 0 and messages(target) == 10
