"""An account of many streams: a backup asks the server and writes for what has changed, and all comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Wire, call, connected
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer
from tests.integration.test_follow import following, reaches, wait_for
from tests.integration.witness import seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

PLAIN = 120  # which a list of streams tells all about
ASKED = ("CONSUMER", "PENDING", "HOLES", "COPY", "ORIGIN", "KV_B", "QUEUE", "EMPTY_NOW")


def _configs() -> Iterator[dict[str, Any]]:
    base = {"storage": "file", "num_replicas": 1}
    for number in range(PLAIN):
        name = f"PLAIN_{number:03}"
        yield {**base, "name": name, "subjects": [f"{name}.>"], "metadata": {"number": str(number)}}
    for name in ("CONSUMER", "PENDING", "HOLES", "ORIGIN", "EMPTY_NOW", "NEVER_USED"):
        yield {**base, "name": name, "subjects": [f"{name}.>"]}
    yield {**base, "name": "QUEUE", "subjects": ["QUEUE.>"], "retention": "workqueue"}
    yield {**base, "name": "KV_B", "subjects": ["$KV.B.>"], "max_msgs_per_subject": 2, "allow_direct": True}
    yield {**base, "name": "COPY", "mirror": {"name": "ORIGIN"}}


async def _create(url: str) -> None:
    async with connected(url) as nc:
        for config in _configs():
            await call(nc, f"STREAM.CREATE.{config['name']}", config)
        for stream in ("CONSUMER", "PENDING"):
            durable = {"durable_name": "D", "ack_policy": "explicit", "deliver_policy": "all", "ack_wait": 10**12}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{stream}.D", {"stream_name": stream, "config": durable})


async def _publish(url: str, names: list[str], count: int = 3) -> None:
    wire = await Wire.open(url)
    for name in names:
        subject = "$KV.B" if name == "KV_B" else name
        for number in range(count):
            await wire.send(f"{subject}.{number}", f"{name} {number}".encode())
    await wire.replies()
    await wire.close()


async def _make(url: str) -> None:
    await _create(url)
    names = [f"PLAIN_{number:03}" for number in range(PLAIN)]
    await _publish(url, [*names, "CONSUMER", "PENDING", "HOLES", "ORIGIN", "KV_B", "QUEUE", "EMPTY_NOW"])
    async with connected(url) as nc:
        await call(nc, "STREAM.MSG.DELETE.HOLES", {"seq": 2})
        await call(nc, "STREAM.PURGE.EMPTY_NOW", {})
        while (await call(nc, "STREAM.INFO.COPY"))["state"]["messages"] < 3:
            await asyncio.sleep(0.05)


async def _change(url: str) -> None:
    await _publish(url, ["PLAIN_007", "PLAIN_060", "NEVER_USED", "KV_B", "ORIGIN", "QUEUE"], 2)
    async with connected(url) as nc:
        await call(nc, "STREAM.MSG.DELETE.PLAIN_030", {"seq": 2})
        await call(nc, "STREAM.MSG.DELETE.PLAIN_031", {"seq": 3})
        await call(nc, "STREAM.PURGE.PLAIN_032", {"seq": 3})
        await call(nc, "STREAM.DELETE.PLAIN_040")
        config = next(one for one in _configs() if one["name"] == "PLAIN_041")
        await call(nc, "STREAM.UPDATE.PLAIN_041", {**config, "metadata": {"number": "another"}})
        config = next(one for one in _configs() if one["name"] == "PLAIN_042")
        await call(nc, "STREAM.DELETE.PLAIN_042")
        await call(nc, "STREAM.CREATE.PLAIN_042", config)
        await call(nc, "STREAM.CREATE.NEW", {**config, "name": "NEW", "subjects": ["NEW.>"]})
        durable = {"durable_name": "LATE", "ack_policy": "explicit", "deliver_policy": "all"}
        await call(nc, "CONSUMER.DURABLE.CREATE.PLAIN_050.LATE", {"stream_name": "PLAIN_050", "config": durable})
        inbox = await nc.subscribe("_INBOX.pulled")
        await nc.publish("$JS.API.CONSUMER.MSG.NEXT.PENDING.D", json.dumps({"batch": 2}).encode(), inbox.subject)
        first = await inbox.next_msg(timeout=5)
        await nc.request(str(first.reply), b"+ACK", timeout=5)


def _requests(url: str) -> int:
    """How many requests the account has made to the JetStream API."""

    async def ask() -> int:
        async with connected(url) as nc:
            return int((await call(nc, "INFO"))["api"]["total"])

    return asyncio.run(ask())


def _files(repo: Path) -> set[Path]:
    return {path for path in repo.rglob("*") if path.is_file()}


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.10.26", "2.15.3"])
def test_a_backup_costs_what_has_changed_and_each_is_restored(
    version: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    repo, server = tmp_path / "repo", nats_server(version)
    asyncio.run(_make(server.url))
    expected = []

    def back_up() -> tuple[str, set[Path], int]:
        before, asked = _files(repo), _requests(server.url)
        done = jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok().document
        asked = _requests(server.url) - asked
        expected.append(seen(server.url))
        return done["backup"], {path for path in _files(repo) - before if path.parent.name != "catalog"}, asked

    jsbackup("init", "-r", repo).ok()
    first, _, asked_first = back_up()
    assert asked_first > PLAIN
    second, written, asked = back_up()
    # A few for the run, and at most five for each stream that a list does not tell all about.
    assert asked < 15 + 5 * len(ASKED)
    assert sum(path.stat().st_size for path in written) < 40_000
    manifest = json.loads((repo / "backups" / f"{second}.json").read_text())
    assert manifest["streams"] == [] and len(manifest["paged_streams"]["captures"]) <= len(ASKED)

    asyncio.run(_change(server.url))
    third, written, _ = back_up()
    assert sum(path.stat().st_size for path in written) < 80_000
    jsbackup("verify", "--level", "data", "-r", repo).ok()
    for number, backup in enumerate((first, second, third)):
        other = nats_server(version)
        jsbackup("restore", backup, "-s", other.url, "-r", repo, *PATIENT).ok()
        assert compare(expected[number], seen(other.url)) == []
        other.stop()


@pytest.mark.by_turns
def test_follow_keeps_up_with_many_streams(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    repo, server = tmp_path / "repo", nats_server("2.15.1")
    asyncio.run(_make(server.url))
    jsbackup("init", "-r", repo).ok()
    with following(repo, server.url) as follow:
        wait_for(repo, reaches("PLAIN_100", 3), follow)
        asyncio.run(_change(server.url))
        asyncio.run(_publish(server.url, ["PLAIN_100"], 50))
        wait_for(repo, reaches("PLAIN_100", 53), follow)
        code, document, said = follow.end()
        assert code == 0 and "Traceback" not in said, (document, said)
    other = nats_server("2.15.1")
    restored = jsbackup("restore", "latest", "-s", other.url, "-r", repo, *PATIENT).ok()
    assert restored.document["failed"] == []
    differences = compare(seen(server.url), seen(other.url))
    # Only a snapshot tells which messages a consumer has not acknowledged.
    assert [one for one in differences if not one.startswith("PENDING: consumer.D")] == []


@pytest.mark.by_turns
def test_a_lost_page_of_streams_costs_only_its_streams(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    repo, server = tmp_path / "repo", nats_server("2.15.3")
    asyncio.run(_make(server.url))
    jsbackup("init", "-r", repo).ok()
    backup = jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok().document["backup"]
    there = seen(server.url)
    rows = json.loads((repo / "backups" / f"{backup}.json").read_text())["paged_streams"]["pages"]
    names = sorted(stream["name"] for stream in jsbackup("show", backup, "-r", repo).ok().document["streams"])
    # Not the one with streams that others copy from.
    at, row = next((at, row) for at, row in enumerate(rows) if row[4].startswith("PLAIN") and 1 < row[5] < 60)
    first = names.index(row[4])
    lost = names[first : first + row[5]]
    assert all(name.startswith("PLAIN") for name in lost) and (at == len(rows) - 1 or rows[at + 1][4] not in lost)
    (page,) = repo.glob(f"streams/page-{row[0]}*")
    page.unlink()

    shown = jsbackup("show", backup, "-r", repo)
    assert shown.code == 14 and {one["name"] for one in shown.document["streams"]} == set(names) - set(lost)
    assert [(one["first"], one["streams"]) for one in shown.document["unlisted"]] == [(lost[0], len(lost))]
    kept = next(name for name in names if name.startswith("PLAIN") and name not in lost)
    assert f"{kept} 0" in jsbackup("view", backup, kept, "--sequence", "1", "-r", repo).ok().out
    assert jsbackup("view", backup, lost[-1], "--sequence", "1", "-r", repo).code == 14
    history = jsbackup("history", kept, "-r", repo).ok()
    assert [one["change"] for one in history.document["changes"]] == ["came"]
    history = jsbackup("history", lost[-1], "-r", repo)
    assert history.code in (2, 14) and "cannot be read" in history.err and lost[0] in history.err
    for which in ((), (backup,), ("latest",)):
        found = jsbackup("verify", *which, "-r", repo)
        assert found.code == 14, found
        assert page.name in json.dumps(found.document)

    other = nats_server("2.15.3")
    refused = jsbackup("restore", backup, lost[-1], "-s", other.url, "-r", repo, *PATIENT)
    assert refused.code == 14 and "cannot be listed" in refused.document["error"]["message"]
    jsbackup("restore", "latest", kept, "-s", other.url, "-r", repo, *PATIENT).ok()
    for chosen in (("latest",), (backup,)):
        rest = jsbackup("restore", *chosen, "--if-exists", "skip", "-s", other.url, "-r", repo, *PATIENT)
        assert rest.code == 3, rest
        assert lost[0] in json.dumps(rest.document["missing"])
    differences = compare(there, seen(other.url))
    assert differences and {one.split(":")[0] for one in differences} == set(lost), differences
    other.stop()

    # The next backup is whole.
    jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
    other = nats_server("2.15.3")
    jsbackup("restore", "latest", "-s", other.url, "-r", repo, *PATIENT).ok()
    assert compare(there, seen(other.url)) == []
