"""Backups of streams that are at work, and restores into subjects that are published to meanwhile.

What a backup of a moving stream has to hold cannot be one state; but each message can be judged by when it was there:
what was there all the time is in the backup, what was gone before is not, and what is there is what was published.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.harness.api import JSON, connected
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.filling import fill
from tests.harness.oracle_drain import drain
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.harness.stored_files import segment_files
from tests.integration.traffic import Ledger, NotTaken, Traffic, insist
from tests.integration.witness import back_up, restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

BACKUPS = 2


@dataclass(frozen=True, slots=True)
class Taken:
    """One backup with the moments before and after it."""

    ran: Ran
    begin: int
    end: int


async def _back_up_live(url: str, repository: Path, seed: int) -> tuple[list[Taken], dict[str, Ledger]]:
    async with connected(url) as nc:
        traffic = Traffic(nc, random.Random(seed))
        await traffic.begin()
        taken = []
        for _ in range(BACKUPS):
            begin = await traffic.moment()
            ran = await asyncio.to_thread(jsbackup, "backup", "-s", url, "-r", repository, *PATIENT)
            taken.append(Taken(ran, begin, await traffic.moment()))
        await traffic.end()
        return taken, traffic.ledgers


Stored = dict[int, tuple[str, bytes]]


def _stored(repository: Path, backup: str) -> dict[str, Stored]:
    """Stream → sequence → subject and data, read from the files as anybody can read them."""
    manifest: JSON = json.loads((repository / "backups" / f"{backup}.json").read_text())
    streams: dict[str, Stored] = {}
    for stream in manifest["streams"]:
        messages: Stored = {}
        for file in segment_files(repository, stream):
            columns = pq.read_table(file).to_pydict()
            rows = zip(columns["sequence"], columns["subject"], columns["data"], strict=True)
            messages |= {sequence: (subject, data) for sequence, subject, data in rows}
        streams[stream["name"]] = messages
    return streams


def _judge(name: str, ledger: Ledger, stored: Stored, taken: Taken) -> list[str]:
    """What is wrong with what was stored of a stream."""
    published = {sequence: (entry.subject, entry.data) for sequence, entry in ledger.entries.items()}
    wrong = [
        f"{name} {sequence}: was not published so" for sequence in stored if stored[sequence] != published[sequence]
    ]
    wrong += [
        f"{name} {sequence}: is missing" for sequence in sorted(ledger.lasting(taken.begin, taken.end) - stored.keys())
    ]
    return wrong + [
        f"{name} {sequence}: was gone already" for sequence in sorted(ledger.gone(taken.begin) & stored.keys())
    ]


def back_up_live_and_restore(source: str, target: str, directory: Path, seed: int) -> None:
    """The whole test, for any seed."""
    repository = directory / "repo"
    with NatsServer(source) as origin:
        all_taken, ledgers = asyncio.run(_back_up_live(origin.url, repository, seed))
    for taken in all_taken:
        assert (taken.ran.ok().document["result"], taken.ran.document["skipped"]) == ("complete", [])
        stored = _stored(repository, taken.ran.document["backup"])
        assert stored.keys() == ledgers.keys()
        for name, ledger in ledgers.items():
            # The backup would prove little if nothing had happened meanwhile.
            assert ledger.written(taken.begin, taken.end) > 0
            assert name == "PLAIN" or ledger.taken(taken.begin, taken.end) > 0
            assert _judge(name, ledger, stored[name], taken) == []
    jsbackup("verify", "-r", repository, "--level", "data").ok()
    with NatsServer(target) as server:
        restore(server.url, repository)
        after = seen(server.url)
        for name in ledgers:
            held = {message.sequence: (message.subject.decode(), message.data) for message in after[name].messages}
            lost = stored[name].keys() - held.keys()
            assert held == {sequence: stored[name][sequence] for sequence in stored[name].keys() - lost}
            # A queue lets go of what its consumer had acknowledged, and of nothing else.
            assert not lost & ledgers[name].lasting(taken.begin, taken.end)
            assert name == "QUEUE" or not lost
        assert asyncio.run(_still_to_come(server.url)) >= ledgers["QUEUE"].lasting(taken.begin, taken.end)


async def _still_to_come(url: str) -> set[int]:
    async with connected(url) as nc:
        return set(await drain(nc, "QUEUE", "worker"))


@pytest.mark.parametrize(("source", "target"), [ENDS, ENDS[::-1]])
def test_a_backup_of_streams_at_work_holds_what_was_there_and_nothing_that_was_gone(
    source: str, target: str, tmp_path: Path
) -> None:
    back_up_live_and_restore(source, target, tmp_path, seed=1)


# ---------------------------------------------------------------------- publishers at work while a stream is restored


async def _restore_while_publishing(url: str, repository: Path) -> tuple[Ran, dict[int, tuple[str, bytes]]]:
    """A restore, and what was published from the moment that the stream was there until the restore had ended."""
    published: dict[int, tuple[str, bytes]] = {}
    async with connected(url) as nc:
        running = asyncio.create_task(
            asyncio.to_thread(jsbackup, "restore", "latest", "-s", url, "-r", repository, *PATIENT)
        )
        number = 0
        while not running.done():
            subject, data = f"gaps.{number % 5}", f"foreign {number}".encode()
            try:
                published[await insist(nc, subject, data, running.done)] = (subject, data)
            except NotTaken:
                break
            number += 1
            # Fast enough to be in the way, and few enough to be read back one by one.
            await asyncio.sleep(0.01)
        return await running, published


def test_a_restored_bucket_is_proved_while_others_overwrite_it(tmp_path: Path) -> None:
    """Each write removes what was restored of its subject."""
    limits: JSON = {"max_msgs_per_subject": 1, "subjects": ["gaps.>"], "storage": "file", "retention": "limits"}
    with NatsServer(NEWEST) as origin:
        # Enough that others come in between, on a busy machine too.
        asyncio.run(fill(origin.url, "KV", [b"x" * 2000] * 4000, subject="gaps.{}", **limits))
        before = seen(origin.url)["KV"]
        back_up(origin.url, tmp_path / "repo")
    with NatsServer(NEWEST) as server:
        ran, published = asyncio.run(_restore_while_publishing(server.url, tmp_path / "repo"))
        after = seen(server.url)["KV"].messages
    (restored,) = ran.ok().document["streams"]
    assert published and restored["verified"]
    overwritten = {subject for subject, _data in published.values()}
    latest = {subject: sequence for sequence, (subject, _data) in sorted(published.items())}
    expected = [one for one in before.messages if one.subject.decode() not in overwritten]
    assert list(after[: len(expected)]) == expected
    assert {one.sequence: one.data for one in after[len(expected) :]} == {
        sequence: published[sequence][1] for sequence in latest.values()
    }
    # More were overwritten after the proof than before.
    assert len(expected) <= restored["messages"] <= len(before.messages)
