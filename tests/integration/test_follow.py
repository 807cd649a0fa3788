"""Following streams: whatever happens to server, cluster, store and the command itself, the newest backup catches up
with what is there, and names every message once."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.repository.manifest import Manifest
from jsbackup.repository.read.segments import read_stream
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import JSON, PATIENCE_SECONDS, call, connected, until_stored
from tests.harness.clusters import NatsCluster
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.oracle import ObservedStream, observe
from tests.harness.servers import NatsServer, wait_until
from tests.integration.traffic import insist

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

CONFIGS: dict[str, JSON] = {
    "PLAIN": {},
    "KV": {"max_msgs_per_subject": 1},
    "LIMITED": {"max_msgs": 120},
    "MEMORY": {"storage": "memory"},
    "QUEUE": {"retention": "workqueue"},
}


class Following:
    """The command in a process of its own."""

    def __init__(self, repo: Path, url: str, *arguments: str) -> None:
        line = command_line(
            "follow", *arguments, "-r", repo, "-s", url, "--every", "500ms", "--timeout", "60s", "--json"
        )
        self.process = subprocess.Popen(
            line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self, with_signal: signal.Signals = signal.SIGTERM) -> tuple[int, dict[str, Any], str]:
        """Exit code, document, and what stood on stderr."""
        self.process.send_signal(with_signal)
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, json.loads(out) if out else {}, err


@contextmanager
def following(repo: Path, url: str, *arguments: str) -> Iterator[Following]:
    one = Following(repo, url, *arguments)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.kill()


_newest: dict[Path, tuple[set[str], Manifest]] = {}


def newest(repo: Path) -> Manifest | None:
    """It is read once: who waits for another one asks a hundred times a second."""
    if not (repo / "backups").exists():
        return None
    names = {path.name for path in (repo / "backups").iterdir()}
    if repo in _newest and _newest[repo][0] == names:
        return _newest[repo][1]
    repository = Repository.open(LocalStore(repo))
    backups = repository.backups()
    if not backups:
        return None
    found = repository.manifest(backups[-1])
    if all(name.startswith(found.id) or name < found.id for name in names):
        _newest[repo] = names, found
    return found


def wait_for(repo: Path, what: Callable[[Manifest], bool], process: Following) -> None:
    """Until the newest backup is such a one."""

    def there() -> bool:
        assert process.process.poll() is None, process.process.communicate()
        manifest = newest(repo)
        return manifest is not None and what(manifest)

    wait_until(there, "a backup that has it", seconds=PATIENCE_SECONDS)


def reaches(name: str, sequence: int) -> Callable[[Manifest], bool]:
    return lambda manifest: any(one.name == name and one.state.last_seq >= sequence for one in manifest.streams)


async def _publish(url: str, count: int, seed: int) -> dict[str, int]:
    """So many messages into each stream; the last sequence of each."""
    chance = random.Random(seed)
    last: dict[str, int] = {}
    until = time.monotonic() + PATIENCE_SECONDS

    def given_up() -> bool:
        return time.monotonic() > until

    async with connected(url) as nc:
        for begin in range(0, count, 25):
            for name in CONFIGS:
                asked = [
                    insist(nc, f"{name}.{(begin + at) % 40}", chance.randbytes(chance.choice((0, 30, 3000))), given_up)
                    for at in range(25)
                ]
                last[name] = max(await asyncio.gather(*asked))
    return last


async def _ask(url: str, subject: str, request: JSON | None = None) -> JSON:
    async with connected(url) as nc:
        return await call(nc, subject, request)


async def _make(url: str, replicas: int = 1) -> None:
    async with connected(url) as nc:
        for name, config in CONFIGS.items():
            body = {"name": name, "subjects": [f"{name}.>"], "num_replicas": replicas, **config}
            await call(nc, f"STREAM.CREATE.{name}", body)
        consumer = {"stream_name": "PLAIN", "config": {"durable_name": "some", "ack_policy": "explicit"}}
        await call(nc, "CONSUMER.DURABLE.CREATE.PLAIN.some", consumer)


async def _seen(url: str) -> dict[str, ObservedStream]:
    async with connected(url) as nc:
        return await observe(nc)


def assert_has_all(repo: Path, url: str) -> None:
    """The newest backup has what the server has: every message once, exactly as another reader sees it."""
    there = asyncio.run(_seen(url))
    repository = Repository.open(LocalStore(repo))
    manifest = newest(repo)
    assert manifest is not None and {one.name for one in manifest.streams} == set(there)
    for stream in manifest.streams:
        stored = [
            (row["sequence"], row["timestamp_ns"], row["subject"].encode(), row["data"])
            for batch in read_stream(repository.objects, stream)
            for row in batch.to_pylist()
        ]
        assert stored == [(one.sequence, one.time_ns, one.subject, one.data) for one in there[stream.name].messages]
        assert {one.name for one in stream.consumers} == set(there[stream.name].consumers)


def test_killed_and_started_again_it_has_every_message_once(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    server, repo = nats_server("2.14.6"), tmp_path / "repo"
    asyncio.run(_make(server.url))
    with following(repo, server.url) as first:
        last = asyncio.run(_publish(server.url, 100, 1))
        wait_for(repo, reaches("PLAIN", last["PLAIN"]), first)
        last = asyncio.run(_publish(server.url, 50, 2))
        wait_for(repo, reaches("PLAIN", last["PLAIN"]), first)
        # What others do meanwhile goes on beside it.
        jsbackup("backup", "QUEUE", "-r", repo, "-s", server.url).ok()
        jsbackup("forget", "--keep-last", "1", "--prune", "--grace", "0s", "-r", repo).ok()
        asyncio.run(_publish(server.url, 50, 3))
        first.kill()
    asyncio.run(_publish(server.url, 50, 8))
    asyncio.run(_ask(server.url, "STREAM.MSG.DELETE.PLAIN", {"seq": 20}))
    asyncio.run(_ask(server.url, "STREAM.PURGE.MEMORY", {"keep": 7}))
    with following(repo, server.url) as second:
        last = asyncio.run(_publish(server.url, 50, 4))
        wait_for(repo, reaches("PLAIN", last["PLAIN"]), second)
        # A server that is restarted, without what it had in memory; streams that are purged, made anew and new.
        server.restart()
        memory = {"name": "MEMORY", "subjects": ["MEMORY.>"], "storage": "memory"}
        asyncio.run(_ask(server.url, "STREAM.CREATE.MEMORY", memory))
        asyncio.run(_ask(server.url, "STREAM.PURGE.LIMITED"))
        asyncio.run(_ask(server.url, "STREAM.DELETE.KV"))
        asyncio.run(_ask(server.url, "STREAM.CREATE.KV", {"name": "KV", "subjects": ["KV.>"]}))
        asyncio.run(_ask(server.url, "STREAM.CREATE.NEW", {"name": "NEW", "subjects": ["NEW"]}))
        last = asyncio.run(_publish(server.url, 50, 6))
        wait_for(repo, reaches("PLAIN", last["PLAIN"]), second)
        wait_for(repo, lambda manifest: any(stream.name == "NEW" for stream in manifest.streams), second)
        asyncio.run(_publish(server.url, 25, 7))
        code, document, err = second.end()
    assert code == 0, (document, err)
    assert document["result"] == "complete" and document["streams"] == 6 and document["failed"] == []
    assert_has_all(repo, server.url)
    assert jsbackup("verify", "--level", "data", "-r", repo).code == 0


def test_a_cluster_that_elects_other_leaders_is_followed(
    nats_cluster: Callable[..., NatsCluster], tmp_path: Path
) -> None:
    cluster, repo = nats_cluster("2.14.6"), tmp_path / "repo"
    asyncio.run(_make(cluster.url, 3))
    with following(repo, ",".join(cluster.urls)) as one:
        last = asyncio.run(_publish(cluster.url, 50, 1))
        wait_for(repo, reaches("PLAIN", last["PLAIN"]), one)
        for name in CONFIGS:
            asyncio.run(_ask(cluster.url, f"STREAM.LEADER.STEPDOWN.{name}"))
            cluster.wait_current(name)
        last = asyncio.run(_publish(cluster.url, 50, 2))
        wait_for(repo, reaches("PLAIN", last["PLAIN"]), one)
        for name in CONFIGS:
            cluster.wait_current(name)
        code, document, err = one.end(signal.SIGINT)
    assert code == 0 and document["result"] == "complete", err
    assert_has_all(repo, cluster.url)


@pytest.mark.by_turns
def test_an_account_of_many_streams_is_followed_whole(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    """Of most of them the server's list says all but the consumers: each has one of ours, some get others."""
    server, repo = nats_server("2.15.3"), tmp_path / "repo"
    names = [f"M{number:02}" for number in range(80)]

    async def make() -> None:
        async with connected(server.url) as nc:
            for name in [*names, "ONE"]:
                await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})

    async def publish(what: str) -> None:
        async with connected(server.url) as nc:
            for number in range(3):
                await asyncio.gather(*(insist(nc, f"{name}.{number}", what.encode(), lambda: False) for name in names))

    async def publish_one() -> None:
        async with connected(server.url) as nc:
            for number in range(4):
                await insist(nc, f"ONE.{number}", b"one", lambda: False)

    async def change() -> None:
        async with connected(server.url) as nc:
            for name in names[:10]:  # beside ours
                config = {"stream_name": name, "config": {"durable_name": "theirs", "ack_policy": "explicit"}}
                await call(nc, f"CONSUMER.DURABLE.CREATE.{name}.theirs", config)
            for name in names[10:15]:
                await call(nc, f"STREAM.MSG.DELETE.{name}", {"seq": 2})
            await call(nc, f"STREAM.PURGE.{names[15]}", {"filter": f"{names[15]}.1"})
            await call(nc, f"STREAM.DELETE.{names[16]}")
            await call(nc, f"STREAM.CREATE.{names[16]}", {"name": names[16], "subjects": [f"{names[16]}.>"]})

    asyncio.run(make())
    asyncio.run(publish("before"))
    with following(repo, server.url) as one:
        wait_for(repo, lambda manifest: True, one)
        asyncio.run(publish_one())
        wait_for(repo, reaches("ONE", 4), one)
        stored = json.loads(max((repo / "backups").iterdir()).read_bytes())
        assert [entry["stream"] for entry in stored["paged_streams"]["captures"]] == ["ONE"]  # the others rest
        asyncio.run(publish("with a consumer of ours from now on"))
        wait_for(repo, lambda manifest: all(stream.state.last_seq == 6 for stream in manifest.streams[:-1]), one)
        asyncio.run(change())
        asyncio.run(publish("beside consumers of others"))
        wait_for(repo, reaches(names[-1], 9), one)
        # In place of what is followed, with the same sequences: it has lost the consumer of ours.
        earlier = Repository.open(LocalStore(repo)).backups()[0]
        jsbackup(
            "restore", earlier, names[20], "-r", repo, "-s", server.url, "--if-exists", "replace", "--replace-with-part"
        ).ok()
        asyncio.run(publish("at the end"))
        wait_for(repo, reaches(names[-1], 12), one)
        wait_for(repo, lambda manifest: manifest.streams[20].state.last_seq == 6, one)  # believed after ten seconds
        asyncio.run(publish("after it was"))
        wait_for(repo, reaches(names[-1], 15), one)
        code, document, err = one.end()
    assert code == 0, (document, err)
    assert (document["result"], document["failed"]) == ("complete", [])
    assert_has_all(repo, server.url)


def test_the_last_backup_has_a_stream_that_was_made_just_before(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    server, repo = nats_server("2.15.3"), tmp_path / "repo"
    asyncio.run(_make(server.url))

    async def make_late() -> None:
        async with connected(server.url) as nc:
            await call(nc, "STREAM.CREATE.LATE", {"name": "LATE", "subjects": ["late.>"]})
            await nc.publish("late.1", b"x")
            await until_stored(nc, "late.1")

    with following(repo, server.url) as one:
        wait_for_rest(repo, one)
        asyncio.run(make_late())
        code, document, err = one.end()
    assert (code, document["result"]) == (0, "complete"), err
    assert_has_all(repo, server.url)


def wait_for_rest(repo: Path, process: Following) -> None:
    """Until it has stored nothing for two seconds: it has a lease while it does."""
    wait_for(repo, lambda manifest: True, process)
    seen: list[tuple[float, list[Path]]] = [(time.monotonic(), [])]

    def rests() -> bool:
        there = sorted(path for path in repo.rglob("*") if path.is_file())
        if there != seen[-1][1]:
            seen.append((time.monotonic(), there))
        return time.monotonic() - seen[-1][0] > 2

    wait_until(rests, "two seconds without a change", seconds=PATIENCE_SECONDS)


def test_what_takes_the_place_of_the_repository_gets_no_backup(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    """As the empty folder below a disk that is unmounted. It goes on once the repository is there again."""
    server, repo, away = nats_server("2.15.3"), tmp_path / "repo", tmp_path / "away"
    asyncio.run(_make(server.url))
    with following(repo, server.url) as one:
        wait_for_rest(repo, one)
        before = len(list((repo / "backups").iterdir()))
        repo.rename(away)
        repo.mkdir()
        asyncio.run(_publish(server.url, 20, 1))
        assert one.process.stderr is not None
        told = ""
        while "trying again until it works" not in told:
            told = one.process.stderr.readline()
            assert told, "it ended"
        assert f"no repository at {repo}" in told
        repo.rmdir()  # it is empty
        away.rename(repo)
        wait_until(lambda: len(list((repo / "backups").iterdir())) > before, "another backup", seconds=PATIENCE_SECONDS)
        code, document, err = one.end()
    assert (code, document["result"], document["outages"]) == (0, "complete", 1), err
    assert_has_all(repo, server.url)


def test_it_fails_where_the_repository_stays_away(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    server, repo = nats_server("2.15.3"), tmp_path / "repo"
    asyncio.run(_make(server.url))
    with following(repo, server.url) as one:
        wait_for_rest(repo, one)
        repo.rename(tmp_path / "away")
        asyncio.run(_publish(server.url, 20, 1))
        assert one.process.stderr is not None
        while "trying again" not in (told := one.process.stderr.readline()):
            assert told, "it ended"
        code, _, err = one.end()
    assert code == 10, err
    assert not repo.exists()


def test_a_consumer_is_kept_where_that_of_follow_is_deleted(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    """As by someone who tidies up: then one consumer is left, as where nobody has one but we."""
    server, repo = nats_server("2.15.3"), tmp_path / "repo"
    names = [f"M{number:02}" for number in range(70)]
    first, other = names[:2]

    async def make() -> None:
        async with connected(server.url) as nc:
            for name in names:
                await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
            config = {"stream_name": first, "config": {"durable_name": "theirs", "ack_policy": "explicit"}}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{first}.theirs", config)

    async def publish(name: str) -> None:
        async with connected(server.url) as nc:
            await insist(nc, f"{name}.x", b"x", lambda: False)

    async def consumers() -> list[str]:
        async with connected(server.url) as nc:
            return [str(name) for name in (await call(nc, f"CONSUMER.NAMES.{first}"))["consumers"]]

    async def delete_ours() -> None:
        async with connected(server.url) as nc:
            for name in await consumers():
                if name != "theirs":
                    await call(nc, f"CONSUMER.DELETE.{first}.{name}")

    asyncio.run(make())
    with following(repo, server.url) as one:
        wait_for(repo, lambda manifest: True, one)
        asyncio.run(publish(first))
        wait_for(repo, reaches(first, 1), one)
        asyncio.run(publish(first))
        wait_for(repo, reaches(first, 2), one)
        wait_until(lambda: len(asyncio.run(consumers())) == 2, "a consumer of ours", seconds=PATIENCE_SECONDS)
        asyncio.run(delete_ours())
        for number in range(1, 5):
            asyncio.run(publish(other))
            wait_for(repo, reaches(other, number), one)
        code, document, err = one.end()
    assert (code, document["result"]) == (0, "complete"), err
    repository = Repository.open(LocalStore(repo))
    for backup in repository.backups():
        (stream,) = [stream for stream in repository.manifest(backup).streams if stream.name == first]
        assert [consumer.name for consumer in stream.consumers] == ["theirs"], backup


@pytest.mark.by_turns
def test_streams_that_come_and_go_leave_none_out(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    """One before the others is deleted and one behind them is made, so that lists of them move and keep their length.
    What is gone is missed by no backup.
    """
    server, repo = nats_server("2.10.26"), tmp_path / "repo"
    resting = [f"M{number:03}" for number in range(400)]
    early = [f"A{number:03}" for number in range(300)]

    async def make(nc: Client, *names: str) -> None:
        for name in names:
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "memory"})

    async def begin() -> None:
        async with connected(server.url) as nc:
            await make(nc, *resting, *early)

    async def churn(until: Callable[[], bool]) -> None:
        async with connected(server.url) as nc:
            for number, name in enumerate(early):
                await asyncio.gather(call(nc, f"STREAM.DELETE.{name}"), make(nc, f"Z{number:03}"))
                await asyncio.sleep(0.02)
                if number > 100 and until():
                    return

    asyncio.run(begin())
    with following(repo, server.url) as one:
        wait_for(repo, lambda manifest: True, one)
        backup = subprocess.Popen(
            command_line("backup", "-r", repo, "-s", server.url, "--json"),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        asyncio.run(churn(lambda: backup.poll() is not None))
        out, err = backup.communicate(timeout=PATIENCE_SECONDS)
        code, document, said = one.end()
    assert (code, document["failed"]) == (0, []), (document, said)
    assert backup.returncode == 0, (out, err)
    opened = Repository.open(LocalStore(repo))
    backups = opened.backups()
    assert len(backups) > 3
    for name in backups:
        manifest = opened.manifest(name)
        assert {stream.name for stream in manifest.streams} >= {*resting}, name
        assert (manifest.result, manifest.skipped) == ("complete", ()), name


USERS = """
accounts { A { jetstream: enabled, users: [
  { user: admin, password: secret }
  { user: backup, password: secret, permissions: { subscribe: ["_INBOX.>"], publish: ["$JS.API.INFO",
    "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*", "$JS.API.CONSUMER.LIST.*", "$JS.API.STREAM.SNAPSHOT.*",
    "$JS.SNAPSHOT.ACK.>"] } }
] } }
"""


def test_without_the_permission_to_read_on_it_ends(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    server = nats_server("2.14.6", config=USERS)
    admin, backup = (server.url.replace("://", f"://{user}:secret@") for user in ("admin", "backup"))
    asyncio.run(_make(admin))
    asyncio.run(_publish(admin, 25, 1))
    with following(tmp_path / "repo", backup, "PLAIN") as one:
        wait_for(tmp_path / "repo", lambda manifest: True, one)
        asyncio.run(_publish(admin, 25, 2))
        out, _ = one.process.communicate(timeout=PATIENCE_SECONDS)
    error = json.loads(out)["error"]
    assert error["code"] == one.process.returncode == 20 and "$JS.API.CONSUMER.CREATE.PLAIN" in error["message"]
