"""Servers that are set up in other ways: encryption at rest, a JetStream domain, few connections."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.awkward import keys
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer, hub_and_leaf
from tests.integration.witness import announced, back_up, filled, restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(240)]

# Deletions, limits, a queue with pending messages, a bucket: small, and most of what can go wrong.
SOME = ("GAPS", "DELETED_TAIL", "PURGED_SEQ", "EMPTIED", "PER_SUBJECT_5", "WORKQUEUE", "KV")


# Streams of several blocks on one server: what else a cipher could change is in the small ones, too. The other cipher
# of each version is in test_environments.py.
@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "cipher", "large"), [("2.11.11", "chacha", False), ("2.15.1", "aes", True)])
def test_encrypted_servers_give_and_take(
    version: str, cipher: str, large: bool, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    secret = {"key": "a key of the server's own", "cipher": cipher}
    source, plain, target = nats_server(version, **secret), nats_server(version), nats_server(version, **secret)
    before = filled(source.url, version, [key for key in keys(version) if large or not key.startswith("BIG")])
    back_up(source.url, tmp_path / "repo")
    for server in (plain, target):
        restored = restore(server.url, tmp_path / "repo")
        assert compare(before, seen(server.url), ignore=announced(restored)) == []
    target.restart()  # what was restored must also be there when the server reads it from its encrypted files again
    gone = ["SETTINGS:consumer.memory*", "SETTINGS:state.consumer_count"]  # a consumer kept in memory
    assert compare(before, seen(target.url), ignore=[*announced(restored), *gone]) == []


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.10.26", "2.11.11", "2.12.8", "2.15.1"])
def test_an_encrypted_server_gives_what_it_has_not_read_since_its_start(
    version: str, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    """Servers before 2.12 put blocks into snapshots as they are in their files, encrypted, until they read them."""
    source = nats_server(version, key="a key of the server's own", cipher="aes")
    before = filled(source.url, version, only=(*SOME, "COMPRESSED"))
    source.restart()
    back_up(source.url, tmp_path / "repo")
    source.restart()
    target, twin = nats_server(version), nats_server(version)
    restored = restore(target.url, tmp_path / "repo")
    assert compare(before, seen(target.url), ignore=announced(restored)) == []
    cloned = jsbackup("clone", "*", "-s", source.url, "--to-server", twin.url, *PATIENT).ok()
    assert cloned.document["failed"] == []
    assert compare(before, seen(twin.url), ignore=announced(restored)) == []


def test_behind_a_domain_streams_are_saved_and_restored(tmp_path: Path) -> None:
    with hub_and_leaf("2.12.8") as (hub, leaf):
        before = filled(leaf.url, "2.12.8", only=SOME, prefix="$JS.leaf.API")
        back_up(hub.url, tmp_path / "repo", "--js-domain", "leaf")
        restored = restore(leaf.url, tmp_path / "repo", "--js-domain", "hub")
        after = seen(hub.url, prefix="$JS.hub.API")
        assert compare(before, after, ignore=announced(restored)) == []


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_restore_makes_as_many_connections_as_streams_go_at_once(
    jobs: int, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    """Over a slow link each of them takes as long as a small stream."""
    source = nats_server("2.15.1")
    before = filled(source.url, "2.15.1", only=SOME)
    back_up(source.url, tmp_path / "repo")
    target = nats_server("2.15.1")
    made = target.monitor("/varz")["total_connections"]
    restored = restore(target.url, tmp_path / "repo", "--jobs", str(jobs))
    assert target.monitor("/varz")["total_connections"] - made == jobs
    assert compare(before, seen(target.url), ignore=announced(restored)) == []
