"""`jsbackup.put_back`, and its twin for asyncio."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import jsbackup
from jsbackup.errors import IncompleteError, PlanRefused, TargetConflict, UsageError
from tests.harness.api import call, connected
from tests.harness.servers import NatsServer


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        await call(nc, "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        for number in range(10):
            await js.publish(f"s.{number % 2}", b"%d" % number)
        kv = await js.create_key_value(bucket="b")
        await kv.put("k", b"v")
        await kv.put("other", b"w")
        store = await js.create_object_store("files")
        await store.put("f", b"content")


async def _break(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        for sequence in (2, 5):
            await call(nc, "STREAM.MSG.DELETE.S", {"seq": sequence})
        kv = await js.key_value("b")
        await kv.delete("k")
        await kv.put("other", b"newer")
        await (await js.object_store("files")).delete("f")


async def _value(url: str, key: str) -> bytes | None:
    async with connected(url) as nc:
        return (await (await nc.jetstream().key_value("b")).get(key)).value


def test_it_puts_back_and_says_what_it_did(target: NatsServer, tmp_path: Path) -> None:
    url = target.url
    asyncio.run(_fill(url))
    repository = jsbackup.open(tmp_path / "repo", create=True)
    made = jsbackup.backup(url, repository)
    asyncio.run(_break(url))

    planned = jsbackup.put_back(made, url, "S", subject="s.>", dry_run=True)
    assert [one.sequence for one in planned.messages if one.action == "write"] == [2, 5]
    seen: list[jsbackup.StreamProgress] = []
    outcome = jsbackup.put_back(made, url, "S", subject="s.>", progress=seen.append)
    assert (seen[-1].stream, seen[-1].done_messages, seen[-1].finished) == ("S", 2, True)
    assert (outcome.written, outcome.stream, outcome.to, outcome.backup.id) == (2, "S", "S", made.id)
    assert [one.as_sequence for one in outcome.messages if one.action == "written"] == [11, 12]
    again = asyncio.run(jsbackup.put_back_async(repository, url, "S", sequences=[2, (4, 6)]))
    assert [(one.sequence, one.action) for one in again.messages] == [(n, "there") for n in (2, 4, 5, 6)]

    assert jsbackup.put_back(made, url, "b", key="k").written == 1
    assert asyncio.run(_value(url, "k")) == b"v"
    with pytest.raises(TargetConflict, match="newer"):
        jsbackup.put_back(made, url, "b", key=["k", "other"])
    with pytest.raises(IncompleteError) as partial:
        jsbackup.put_back(made, url, "b", key=">", partial=True)
    assert {one.name: one.action for one in partial.value.result.messages} == {"k": "there", "other": "refused"}
    assert jsbackup.put_back(made, url, "b", key="other", overwrite=True).written == 1
    assert asyncio.run(_value(url, "other")) == b"w"
    assert jsbackup.put_back(repository, url, "files", file="f").written == 1

    with pytest.raises(PlanRefused, match="no stream"):
        jsbackup.put_back(made, url, "S", subject="s.>", to="NOPE")
    for wrong in ({}, {"subject": "s.>", "key": "k"}, {"sequences": 0}, {"key": "k", "since": 5}, {"at": 3}):
        with pytest.raises(UsageError):
            jsbackup.put_back(made, url, "S", **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        jsbackup.put_back("repo", url, "S", subject="s.>")  # type: ignore[arg-type]


def test_what_the_backup_cannot_say_is_said(target: NatsServer, tmp_path: Path) -> None:
    async def fill() -> None:
        async with connected(target.url) as nc:
            kv = await nc.jetstream().create_key_value(bucket="gone")
            for key in ("kept", "lost", "lost"):
                await kv.put(key, b"v")

    asyncio.run(fill())
    made = jsbackup.backup(target.url, jsbackup.open(tmp_path / "repo", create=True))
    with pytest.raises(IncompleteError, match="cannot say what key lost") as partial:
        jsbackup.put_back(made, target.url, "gone", key=["kept", "lost"], at=2, partial=True)
    assert [(one.name, one.action) for one in partial.value.result.messages] == [("kept", "there")]


def test_two_at_once_write_nothing_twice(target: NatsServer, tmp_path: Path) -> None:
    asyncio.run(_fill(target.url))
    backup = jsbackup.backup(target.url, jsbackup.open(tmp_path / "repo", create=True))

    async def both() -> list[object]:
        async with connected(target.url) as nc:
            await call(nc, "STREAM.PURGE.S")
        calls = (jsbackup.put_back_async(backup, target.url, "S", subject=">") for _ in range(2))
        found = await asyncio.gather(*calls, return_exceptions=True)
        async with connected(target.url) as nc:
            assert (await call(nc, "STREAM.INFO.S"))["state"]["messages"] == 10
        return list(found)

    outcomes = asyncio.run(both())
    refused = [one for one in outcomes if isinstance(one, TargetConflict)]
    assert sum(one.written for one in outcomes if isinstance(one, jsbackup.PutBackOutcome)) == 10
    assert all("another command" in one.message for one in refused)
