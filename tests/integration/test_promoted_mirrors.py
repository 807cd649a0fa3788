"""A mirror of a bucket that is restored as an ordinary stream: clients read its keys and files, and write them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        bucket = await js.create_key_value(bucket="src", history=5)
        await bucket.put("a.b", b"old")
        await bucket.put("a.b", b"new")
        files = await js.create_object_store("src")
        await files.put("file", b"1" * 200_000)
        for kind, messages in (("KV_", 2), ("OBJ_", 3)):
            origin = (await call(nc, f"STREAM.INFO.{kind}src"))["config"]
            config = {key: value for key, value in origin.items() if key != "subjects"}
            config |= {"name": f"{kind}mir", "mirror": {"name": f"{kind}src"}, "mirror_direct": True}
            await call(nc, f"STREAM.CREATE.{kind}mir", config)
            while (await call(nc, f"STREAM.INFO.{kind}mir"))["state"]["messages"] < messages:
                await asyncio.sleep(0.02)


async def _works(url: str, bucket: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        keys, files = await js.key_value(bucket), await js.object_store(bucket)
        assert (await keys.get("a.b")).value == b"new" and (await keys.get("a.b", revision=1)).value == b"old"
        assert await keys.update("a.b", b"newer", last=2) == 3
        assert (await keys.get("a.b")).value == b"newer"
        assert (await files.get("file")).data == b"1" * 200_000
        await files.put("other", b"2")
        assert (await files.get("other")).data == b"2"


@pytest.mark.parametrize("name", ["mir", "new"])
def test_a_promoted_mirror_of_a_bucket_is_a_bucket(typed: Type, tmp_path: Path, name: str) -> None:
    repo = ("-r", tmp_path / "repo")
    with NatsServer(NEWEST) as source, NatsServer(NEWEST) as target:
        asyncio.run(_fill(source.url))
        assert typed("init", *repo).code == 0
        assert typed("backup", "-s", source.url, *repo).code == 0
        renames = [word for kind in ("KV_", "OBJ_") for word in ("--rename", f"{kind}mir={kind}{name}")]
        line = ("latest", "*_mir", "-s", target.url, *repo, "--set", "mirror=null", *(renames if name != "mir" else []))
        planned = typed("plan", *line)
        assert planned.code == 0 and f"with the subjects $KV.{name}.>" in planned.out
        restored = typed("restore", *line)
        assert restored.code == 0, restored.err
        asyncio.run(_works(target.url, name))
