"""Buckets of which a part is restored: everything that is kept arrives, and what it is no more is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import nats
import pytest

from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(120)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


async def _fill(url: str) -> None:
    nc = await nats.connect(url)
    js = nc.jetstream()
    config = await js.create_key_value(bucket="config", history=1)
    await config.put("a", b"1")
    await config.put("b", b"1")
    await config.put("a", b"2")
    objects = await js.create_object_store("files")
    for name in ("one", "two"):
        await objects.put(name, b"x" * 300_000)
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    for number in range(3):
        await js.publish(f"orders.{number}", b"")
    await nc.close()


def _warned(document: dict[str, object], stream: str) -> dict[str, str]:
    warnings = document["warnings"]
    assert isinstance(warnings, list)
    return {one["rule"]: one["reason"] for one in warnings if one["stream"] == stream}


def test_a_part_of_a_bucket_is_not_what_it_was(
    typed: Type, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    source, target = nats_server(NEWEST), nats_server(NEWEST)
    asyncio.run(_fill(source.url))
    repo = tmp_path / "repo"
    assert typed("backup", "-s", source.url, "-r", repo).code == 0
    to = ("-s", target.url, "-r", repo)

    # At sequence 2 the bucket had a=1 and b=1; a=1 has been overwritten since.
    planned = typed("plan", "latest", "--until", "2", *to, "--json").document
    overwritten = "keeps one message of each subject: messages that were overwritten before the backup are missing"
    assert _warned(planned, "KV_config")["overwritten-since"].startswith(overwritten)
    assert "objects-in-part" in _warned(planned, "OBJ_files") and _warned(planned, "ORDERS") == {}
    done = typed("restore", "latest", "--until", "2", *to)
    assert done.code == 0 and overwritten in done.out and "cannot be opened" in done.out

    # All of it is what it is.
    whole = typed("plan", "latest", "--if-exists", "replace", *to, "--json").document
    rules = {one["rule"] for one in whole["warnings"]}
    assert not rules & {"overwritten-since", "objects-in-part"}
    # A filter takes keys out, and is what was asked for; objects have their names in no subject that people read.
    line = ("plan", "latest", "--subject", "$KV.config.a", "--subject", "$O.files.M.>", "--exclude", "ORDERS")
    some = typed(*line, "--if-exists", "replace", "--replace-with-part", *to, "--json").document
    assert "overwritten-since" not in _warned(some, "KV_config") and "objects-in-part" in _warned(some, "OBJ_files")
