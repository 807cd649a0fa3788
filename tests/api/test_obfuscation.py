"""Obfuscated copies in Python, as the commands make them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import jsbackup
from jsbackup.planning.obfuscation_file import read_key_file
from tests.api.shop import Shop
from tests.harness.api import call, connected
from tests.harness.servers import NatsServer

pytestmark = pytest.mark.nats


async def _streams(url: str) -> dict[str, int]:
    async with connected(url) as nc:
        listed = await call(nc, "STREAM.LIST")
        return {one["config"]["name"]: one["state"]["messages"] for one in listed["streams"] or []}


def test_a_copy_is_obfuscated_and_agrees_with_its_plan(shop: Shop, target: NatsServer, tmp_path: Path) -> None:
    backup, key = jsbackup.open(shop.folder).latest(), tmp_path / "keys.json"
    new = jsbackup.plan(backup, target.url, obfuscate=True, obfuscation_key=str(key))
    assert new.ok and not key.exists() and set(new.streams) == {"ORDERS", "KV_settings", "EMPTY"}
    done = jsbackup.restore(backup, target.url, obfuscate=True, obfuscation_key=key)
    there = asyncio.run(_streams(target.url))
    assert there == {one.as_name: one.messages for one in done.streams.values()}
    assert not {"ORDERS", "KV_settings", "EMPTY"} & there.keys()
    names = read_key_file(key)
    assert done.streams["ORDERS"].as_name == names.hashes["ORDERS"] and "settings" in names.hashes
    again = jsbackup.plan(backup, target.url, if_exists="replace", obfuscate=True, obfuscation_key=key)
    assert {name: one.as_name for name, one in again.streams.items()} == {
        name: one.as_name for name, one in done.streams.items()
    }


def test_several_at_once_share_a_key_file(shop: Shop, target: NatsServer, tmp_path: Path) -> None:
    backup, key = jsbackup.open(shop.folder).latest(), tmp_path / "keys.json"
    first = jsbackup.restore(backup, target.url, streams="EMPTY", obfuscate=True, obfuscation_key=key)

    async def both() -> list[jsbackup.RestoreOutcome]:
        return await asyncio.gather(
            *(
                jsbackup.restore_async(backup, target.url, streams=name, obfuscate=True, obfuscation_key=key)
                for name in ("ORDERS", "KV_settings")
            )
        )

    for done in (first, *asyncio.run(both())):
        for name, one in done.streams.items():
            assert read_key_file(key).hashes[name.removeprefix("KV_")] == one.as_name.removeprefix("KV_")


def test_what_is_refused_makes_no_key_file(shop: Shop, target: NatsServer, tmp_path: Path) -> None:
    backup, key = jsbackup.open(shop.folder).latest(), tmp_path / "keys.json"
    with pytest.raises(jsbackup.errors.UsageError, match="needs"):
        jsbackup.restore(backup, target.url, obfuscate=True)
    with pytest.raises(jsbackup.errors.UsageError, match="makes sense"):
        jsbackup.restore(backup, target.url, obfuscation_key=key)
    with pytest.raises(jsbackup.errors.UsageError, match="exclude each other"):
        jsbackup.restore(backup, target.url, mask="orders.>:payload=zero", obfuscate=True, obfuscation_key=key)
    with pytest.raises(jsbackup.errors.UsageError, match="NONE"):
        jsbackup.restore(backup, target.url, streams="NONE", obfuscate=True, obfuscation_key=key)
    with pytest.raises(jsbackup.errors.UsageError, match="in the repository"):
        jsbackup.restore(backup, target.url, obfuscate=True, obfuscation_key=shop.folder / "keys.json")
    assert not key.exists() and asyncio.run(_streams(target.url)) == {}
