"""Put-backs of the same messages at the same time, and others who publish meanwhile: nothing is written twice, and no
message is dropped without a word.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config.connection import Connection, ConnectionOptions, source_connection
from jsbackup.engine.link.jetstream import JetStream, connect_jetstream
from jsbackup.putting_back.chosen import ChosenMessages
from jsbackup.putting_back.model import Fate, PutBackOptions, PutBackPlan, PutBackReport, PutBackRun
from jsbackup.putting_back.plan import make_plan
from jsbackup.putting_back.run import in_turn, write_in_turn
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.transforms.filters.filters import Filters
from tests.harness.api import call
from tests.harness.commands import command_line, environment
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import (
    Messages,
    back_up,
    held,
    in_client,
    last_sequence,
    lose,
    publish,
    purge,
    put_back,
    run,
)

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]
COUNT = 1000
# Users without a right that the turn needs: they can read messages one by one, and publish.
_FEW = '"$JS.API.STREAM.INFO.*", "$JS.API.STREAM.MSG.GET.*", "p.>"'
_USERS = f"""accounts {{ A {{ jetstream: enabled, users: [
    {{ user: all, password: x }},
    {{ user: few, password: x, permissions: {{ publish: [{_FEW}], subscribe: ["_INBOX.>"] }} }}
] }} }}"""


def _connection(url: str) -> Connection:
    return source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})


@asynccontextmanager
async def _jetstream(url: str) -> AsyncIterator[JetStream]:
    async with connect_jetstream(_connection(url)) as js:
        yield js


@dataclass
class Planned:
    """A plan that was made, and can be carried out later."""

    js: JetStream
    chosen: ChosenMessages
    plan: PutBackPlan

    async def write(self) -> PutBackReport:
        unused = _connection("nats://127.0.0.1:1")  # it goes through `js`
        return await write_in_turn(self.js, self.chosen, self.plan, PutBackRun(unused, self.plan.options))


async def _planned(js: JetStream, repo: Path, stream: str, **how: Any) -> Planned:
    opened = Repository.open(LocalStore(repo))
    manifest = opened.manifest(opened.backups()[-1])
    options = PutBackOptions(stream, filters=Filters(subject=(">",)), **how)
    plan = await make_plan(js, opened.objects, manifest, options, now_ns=time.time_ns())
    assert plan.refusal() is None
    return Planned(js, ChosenMessages(opened.objects, manifest, plan.entry, options), plan)


def test_two_commands_write_nothing_twice(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lose(server.url, repo, "P", [(f"p.{n % 3}", None, b"%d" % n) for n in range(COUNT)])
    line = command_line("put-back", "latest", "P", "--subject", ">", "-s", server.url, "-r", repo, "--json")
    both = [subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment()) for _ in range(2)]
    # The second one is refused, or it comes later, when all of it is there already.
    assert sorted(one.wait(timeout=240) for one in both) in ([0, 0], [0, 16])
    assert Counter(one.data for one in run(held(server.url, "P"))) == Counter({b"%d" % n: 1 for n in range(COUNT)})


def test_while_one_writes_another_one_is_refused(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lose(server.url, repo, "P", [("p.a", None, b"1")])

    async def beside() -> None:
        async with _jetstream(server.url) as js, in_turn(js, "P"):
            found = await asyncio.to_thread(put_back, server.url, repo, "latest", "P", "--subject", ">")
            assert found.code == 16
            assert "another command is putting messages back into stream P" in found.document["error"]["message"]
            planned = await asyncio.to_thread(put_back, server.url, repo, "latest", "P", "--subject", ">", "--dry-run")
            assert planned.ok().document["write"] == 1
            # A backup does not take the mark for a consumer of the stream.
            await asyncio.to_thread(back_up, server.url, tmp_path / "other")
            [entry] = Repository.open(LocalStore(tmp_path / "other")).backups()
            assert not Repository.open(LocalStore(tmp_path / "other")).manifest(entry).streams[0].consumers
            assert not await js.next_message("P", 1)

    run(beside())
    assert put_back(server.url, repo, "latest", "P", "--subject", ">").ok().document["written"] == 1
    assert not run(in_client(server.url, lambda nc: call(nc, "CONSUMER.LIST.P")))["consumers"]


def test_a_killed_one_is_in_the_way_for_a_moment_only(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lose(server.url, repo, "P", [(f"p.{n % 3}", None, b"%d" % n) for n in range(3000)])
    line = command_line("put-back", "latest", "P", "--subject", ">", "-s", server.url, "-r", repo, "--json")
    killed = subprocess.Popen(line, stdout=subprocess.DEVNULL, env=environment())
    while run(last_sequence(server.url, "P")) == 3000:
        assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=60)
    while (found := put_back(server.url, repo, "latest", "P", "--subject", ">")).code != 0:
        assert found.code == 16, found.out
        time.sleep(4)
    assert Counter(one.data for one in run(held(server.url, "P"))) == Counter({b"%d" % n: 1 for n in range(3000)})


@pytest.mark.parametrize("user", ["all", "few"])
def test_what_was_put_back_since_the_plan_is_not_written_again(nats_server: Starter, tmp_path: Path, user: str) -> None:
    server, repo = nats_server(NEWEST, config=_USERS), tmp_path / "repo"
    everything = server.url.replace("//", "//all:x@")
    lose(everything, repo, "P", [(f"p.{n}", None, b"%d" % n) for n in range(9)])

    async def overtaken() -> PutBackReport:
        async with _jetstream(server.url.replace("//", f"//{user}:x@")) as js:
            planned = await _planned(js, repo, "P")
            assert len(planned.plan.writes) == 9
            await asyncio.to_thread(put_back, everything, repo, "latest", "P", "--sequence", "2-4")
            return await planned.write()

    report = run(overtaken())
    assert (report.code, len(report.written), len(report.twice)) == (0, 6, 0)
    assert sorted(one.data for one in run(held(everything, "P"))) == [b"%d" % n for n in range(9)]


def test_what_is_written_twice_where_no_turn_can_be_had_is_said(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST, config=_USERS), tmp_path / "repo"
    everything = server.url.replace("//", "//all:x@")
    lose(everything, repo, "P", [(f"p.{n % 7}", None, b"%d" % n) for n in range(400)])

    async def both() -> tuple[PutBackReport, ...]:
        url = server.url.replace("//", "//few:x@")
        async with _jetstream(url) as one, _jetstream(url) as other:
            plans = [await _planned(js, repo, "P") for js in (one, other)]
            return tuple(await asyncio.gather(*(planned.write() for planned in plans)))

    reports = run(both())
    there = Counter(one.data for one in run(held(everything, "P")))
    twice = {data for data, count in there.items() if count > 1}
    assert twice, "they did not run at the same time"
    said = {sequences for report in reports for sequences in report.twice}
    data = {one.sequence: one.data for one in run(held(everything, "P"))}
    assert {data[one] for sequences in said for one in sequences} == twice
    assert max(report.code for report in reports) == 3
    assert any("another command put back the same" in note for report in reports for note in report.notes)


async def _between(url: str, repo: Path, messages: Messages, **how: Any) -> PutBackReport:
    """Plan, let somebody publish, and write."""
    async with _jetstream(url) as js:
        planned = await _planned(js, repo, "P", **how)
        await publish(url, messages)
        return await planned.write()


def test_a_limited_subject_is_not_written_to_if_somebody_else_did(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lost = [(f"p.{one}", None, b"%s%d" % (one.encode(), n)) for n in range(3) for one in "ab"]
    lose(server.url, repo, "P", lost, max_msgs_per_subject=4)
    report = run(_between(server.url, repo, [("p.a", None, b"new") for _ in range(2)]))
    assert (report.code, {one.subject for one in report.of(Fate.CONFLICT)}) == (3, {"p.a"})
    assert [one.subject for one in report.written] == ["p.b"] * 3
    assert [one.data for one in run(held(server.url, "P")) if one.subject == b"p.a"] == [b"new", b"new"]
    # Now there is no room for all three of them.
    found = put_back(server.url, repo, "latest", "P", "--subject", ">")
    assert found.code == 16 and "would drop another message" in found.document["error"]["message"]


def test_what_a_busy_subject_drops_for_it_is_said(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lose(server.url, repo, "P", [("p.a", None, b"%d" % n) for n in range(10)], max_msgs_per_subject=100)
    busy = [("p.a", None, b"new") for _ in range(95)]
    report = run(_between(server.url, repo, busy[:80]))
    assert (report.code, report.dropped, report.notes) == (0, False, ())
    run(purge(server.url, "P"))
    report = run(_between(server.url, repo, busy))
    assert (len(report.written), report.code, report.dropped) == (10, 3, True)
    assert "of 1 subject, such as p.a, because others were published meanwhile" in report.notes[0]
    run(purge(server.url, "P"))
    assert run(_between(server.url, repo, busy, overwrite=True)).code == 0


def test_a_stream_that_takes_no_consumer_is_written_to(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lose(server.url, repo, "P", [("p.a", None, b"1")], max_consumers=1)
    config = {"durable_name": "c", "ack_policy": "explicit"}
    request = {"stream_name": "P", "config": config}
    run(in_client(server.url, lambda nc: call(nc, "CONSUMER.DURABLE.CREATE.P.c", request)))
    assert put_back(server.url, repo, "latest", "P", "--subject", ">").ok().document["written"] == 1
