"""Whole commands against a repository in a real S3 server."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from jsbackup.stores.local import LocalStore
from tests.harness.api import Wire
from tests.harness.backups import make_repository, store_backup
from tests.harness.commands import jsbackup
from tests.harness.filling import fill, publish
from tests.harness.s3peer import Answer, Fault, S3Peer, Trouble
from tests.harness.s3server import BUCKET, LOCKED_BUCKET, S3Server
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.s3]

Starter = Callable[..., NatsServer]
_NUMBERS = itertools.count()


@pytest.fixture
def location() -> str:
    return f"s3://{BUCKET}/commands/{next(_NUMBERS)}"


LARGE = [random.Random(40).randbytes(32 << 10)] * 40
BAD_MOMENTS = [
    Answer(503, "SlowDown"),
    Answer(500, "InternalError"),
    Fault.RESET_BEFORE,
    Fault.RESET_AFTER,
    Fault.ERROR_AFTER,
]


def test_a_store_with_bad_moments_loses_nothing(
    nats_server: Starter, s3_server: S3Server, location: str, tmp_path: Path
) -> None:
    server, target = nats_server(NEWEST), nats_server(NEWEST)
    asyncio.run(fill(server.url, "ORDERS", LARGE))
    moments = itertools.cycle(BAD_MOMENTS)
    with S3Peer(s3_server.port) as peer:
        at = s3_server.environment | {"JSBACKUP_REPO": location, "JSBACKUP_S3_ENDPOINT": peer.url}

        def run(*line: str | Path, **troubles: Trouble) -> Wire:
            """With one bad moment for each kind of request, and further ones."""
            for number, kind in enumerate(("LIST", "GET", "DELETE", "PUT")):
                peer.meet(next(moments), kind, after=number)
            for kind, trouble in troubles.items():
                peer.meet(trouble, kind, after=5)
            return jsbackup(*line, **at).ok().document

        first = run("backup", "-s", server.url)
        asyncio.run(publish(server.url, "orders.{}", LARGE[:10]))
        second = run("backup", "-s", server.url)
        run("copy", "--to-repo", tmp_path / "copy", GET=Fault.FLIP)
        forgotten = run("forget", "--keep-last", "1", "--prune", "--grace", "0")
        assert [one["backup"] for one in forgotten["removed"]] == [first["backup"]]
        assert all(one["ok"] for one in run("verify", "--level", "data", GET=Fault.TRUNCATE)["backups"])
        restored = run("restore", "latest", "-s", target.url)
    assert [one["digest"] for one in restored["streams"]] == [one["digest"] for one in second["streams"]]
    assert second["streams"][0]["messages"] == 50 and first["streams"][0]["messages"] == 40
    below = location.removeprefix(f"s3://{BUCKET}/")
    shown = jsbackup("show", "latest", **s3_server.environment, JSBACKUP_REPO=location).ok().document
    named = {one["key"] for one in shown["streams"][0]["objects"]}
    assert {key.removeprefix(f"{below}/") for key in s3_server.keys(f"{below}/segments/")} == named
    assert s3_server.keys(f"{below}/locks/") == []
    copied = jsbackup("verify", "--level", "data", "-r", tmp_path / "copy").ok().document
    assert [one["backup"] for one in copied["backups"]] == [first["backup"], second["backup"]]


def test_a_locked_backup_outlives_whoever_wants_it_gone(
    nats_server: Starter, s3_server: S3Server, tmp_path: Path
) -> None:
    server = nats_server(NEWEST)
    asyncio.run(fill(server.url, "ORDERS", LARGE))
    where = f"s3://{LOCKED_BUCKET}/locked/{os.getpid()}"
    at = s3_server.environment | {"JSBACKUP_REPO": where}
    made = jsbackup("backup", "-s", server.url, "--lock-until", "1d", **at).ok().document
    below = where.removeprefix(f"s3://{LOCKED_BUCKET}/")
    stored = s3_server.keys(f"{below}/", LOCKED_BUCKET)
    for key in stored:
        if "/locks/" in key or "/catalog/" in key:
            continue
        versions = s3_server.client.list_object_versions(Bucket=LOCKED_BUCKET, Prefix=key)["Versions"]
        with pytest.raises(ClientError, match="AccessDenied"):
            s3_server.client.delete_object(Bucket=LOCKED_BUCKET, Key=key, VersionId=versions[0]["VersionId"])
    assert jsbackup("verify", made["backup"], "--level", "data", **at).ok().document["ok"]
    assert jsbackup("backup", "-s", server.url, "--lock-until", "2020-01-01T00:00:00Z", **at).code == 2
    plain = jsbackup("backup", "-s", server.url, "--lock-until", "1d", "-r", f"s3://{BUCKET}/plain/{os.getpid()}", **at)
    assert plain.code == 13 and "has no object lock" in plain.document["error"]["message"]


def test_no_repository_is_made_below_the_prefix_of_another_one(
    s3_server: S3Server, location: str, tmp_path: Path
) -> None:
    """Before, `prune` of the outer one took what the inner one stored for its own lists."""
    at, inner = s3_server.environment, f"{location}/pruning"
    jsbackup("init", "-r", location, **at).ok()
    store_backup(make_repository(LocalStore(tmp_path / "local")))
    below = location.removeprefix(f"s3://{BUCKET}/") + "/"
    before = s3_server.keys(below)
    at |= {name.replace("JSBACKUP_", "JSBACKUP_TO_"): value for name, value in at.items()}
    copying = ("copy", "-r", tmp_path / "local", "--to-repo", inner)
    for line in (("init", "-r", inner), ("init", "-r", f"{location}/deep/er"), copying):
        refused = jsbackup(*line, **at)
        assert refused.code == 2 and f"is inside of the repository {location}" in refused.document["error"]["message"]
    assert s3_server.keys(below) == before
    jsbackup("init", "-r", f"{location}-beside", **at).ok()
