"""`doctor`: each thing that can be missing is told on its own line, with its fix; and nothing is changed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jsbackup.engine.check.doctor import grants_for
from jsbackup.repository.checks.doctor import Purpose
from jsbackup.repository.crypto import age
from tests.cli.test_json import check
from tests.cli.typed import Shop, Typed
from tests.harness.api import call, connected
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import NEWEST, VERSIONS, NatsServer

Type = Callable[..., Typed]
Found = dict[tuple[str, str | None], dict[str, Any]]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("JSBACKUP_"):
            monkeypatch.delenv(name)


def examine(typed: Type, *line: str | Path, code: int = 0) -> Found:
    """The lines by name and what they are about. Whatever is not ok has a fix, a sentence."""
    done = typed("doctor", *line, "--json")
    document = check("doctor", done)
    assert done.code == code, done.out
    assert document["ok"] is (code == 0)
    for one in document["checks"]:
        assert (one["fix"] is None) == (one["result"] == "ok"), one
        assert one["fix"] is None or (one["fix"][0] in "'`" or one["fix"][0].isupper()), one
        assert (one["code"] is not None) == (one["result"] == "problem"), one
    return {(one["check"], one["about"]): one for one in document["checks"]}


def results(found: Found) -> dict[str, str]:
    """The result of each line that is not ok, by its name."""
    return {about or name: one["result"] for (name, about), one in found.items() if one["result"] != "ok"}


def tree(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_size) for path in folder.rglob("*"))


@pytest.mark.nats
def test_where_all_is_well_every_line_is_ok_and_nothing_is_left(shop: Shop, typed: Type, tmp_path: Path) -> None:
    before, streams = tree(shop.repo), typed("diff", "latest", "live", "-s", shop.url, "-r", shop.repo).out
    found = examine(typed, "-s", shop.url, "-r", shop.repo)
    assert results(found) == {}
    assert f"nats-server {NEWEST}" in found["server", None]["found"]
    assert "account $G" in found["server", None]["found"]
    assert "streams: 3" in found["jetstream", None]["found"]
    assert found["streams", None]["found"] == "3 streams answer"
    assert found["backups", None]["found"].endswith("(complete)")
    assert "plain, format 1" in found["repository", None]["found"]
    assert tree(shop.repo) == before
    assert typed("diff", "latest", "live", "-s", shop.url, "-r", shop.repo).out == streams
    told = typed("doctor", "-s", shop.url, "-r", shop.repo)
    assert told.out.splitlines()[-1].endswith(" ok, 0 warnings, 0 problems, 0 not tried") and "fix:" not in told.out
    # A location with nothing in it stays one.
    empty = tmp_path / "repo"
    assert results(examine(typed, "-s", shop.url, "-r", empty, "--for", "backup"))["writable"] == "not tried"
    assert not empty.exists()
    found = examine(typed, "-s", shop.url, "-r", empty, "--for", "restore", code=10)
    assert found["repository", None]["result"] == "problem"
    assert examine(typed, "-s", shop.url, "-r", empty)["repository", None]["result"] == "warning"
    assert examine(typed, "-s", shop.url)["repository", None]["result"] == "not tried"


GRANTS = {one.grant: one for one in grants_for("$JS.API", Purpose.ALL, reads_by_message=True)}


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
def test_each_permission_that_is_denied_is_named(version: str, typed: Type, tmp_path: Path) -> None:
    users = "\n".join(
        f"{{ user: u{number}, password: p, permissions: {{ publish: {{ deny: [{json.dumps(grant)}] }} }} }}"
        for number, grant in enumerate(GRANTS)
    )
    deaf = '{ user: deaf, password: p, permissions: { subscribe: "_MINE.>" } }'
    blind = '{ user: blind, password: p, permissions: { publish: { deny: ["$JS.API.STREAM.*"] } } }'
    mute = '{ user: mute, password: p, permissions: { publish: { deny: ["$JS.API.>"] } } }'
    uninformed = '{ user: uninformed, password: p, permissions: { publish: { deny: ["$JS.API.CONSUMER.INFO.*.*"] } } }'
    everybody = "{ user: admin, password: p }"
    users = "\n".join([everybody, deaf, blind, mute, uninformed, users])
    config = f"accounts {{ A {{ jetstream: enabled, users: [\n{users}\n] }} }}"

    async def fill(url: str) -> None:
        async with connected(url) as nc:
            memory = {"name": "M", "subjects": ["m"], "storage": "memory", "retention": "limits", "num_replicas": 1}
            await call(nc, "STREAM.CREATE.M", memory)

    with NatsServer(version, config=config) as server:

        def url(user: str) -> str:
            return server.url.replace("://", f"://{user}:p@")

        asyncio.run(fill(url("admin")))
        known = (
            set(GRANTS)
            if version < "2.15"
            else {g.grant for g in grants_for("$JS.API", Purpose.ALL, reads_by_message=False)}
        )
        assert results(examine(typed, "-s", url("admin"))) == {"repository": "not tried"}
        for number, (grant, one) in enumerate(GRANTS.items()):
            code = 20 if grant in known and not one.spare else 0
            found = examine(typed, "-s", url(f"u{number}"), code=code)
            wrong = results(found)
            expected = {grant: "problem" if code else "warning"} if grant in known else {}
            assert wrong == {"repository": "not tried", **expected}
            if expected:
                assert found["permission", grant]["fix"] == f"Allow the user to publish to {grant}."
        found = examine(typed, "-s", url("deaf"), code=20)
        assert found["server", None]["result"] == "problem" and "_INBOX" in found["server", None]["found"]
        assert examine(typed, "-s", url("deaf"), "--inbox-prefix", "_MINE.d")["replies", "_MINE.d.>"]["result"] == "ok"
        wrong = results(examine(typed, "-s", url("blind"), code=20))
        assert wrong["$JS.API.STREAM.LIST"] == wrong["$JS.API.STREAM.NAMES"] == wrong["streams"] == "problem"
        assert results(examine(typed, "-s", url("mute"), code=20))["jetstream"] == "problem"
        # What serves for backups alone need not be allowed to restore.
        restoring = list(GRANTS).index("$JS.API.STREAM.RESTORE.*")
        assert results(examine(typed, "-s", url(f"u{restoring}"), "--for", "backup")) == {"repository": "not tried"}
        # To follow streams takes more than to back them up.
        assert results(examine(typed, "-s", url("uninformed"))) == {"repository": "not tried"}
        wrong = results(examine(typed, "-s", url("uninformed"), "--for", "follow", code=20))
        assert wrong == {"repository": "not tried", "$JS.API.CONSUMER.INFO.*.*": "problem"}
        assert results(examine(typed, "-s", url("admin"), "--for", "follow")) == {"repository": "not tried"}
        assert "jsbackup-doctor" not in json.dumps(server.monitor("/jsz?streams=1&accounts=1"))
        assert "Invalid JetStream request" not in server.log


@pytest.mark.nats
def test_what_cannot_be_asked_is_not_tried_and_the_rest_is(shop: Shop, typed: Type, tmp_path: Path) -> None:
    nowhere = "nats://127.0.0.1:1"
    found = examine(typed, "-s", nowhere, "-r", shop.repo, code=20)
    assert found["server", None]["found"] == f"cannot connect to {nowhere}: connection refused"
    assert found["permission", None]["result"] == found["server-clock", None]["result"] == "not tried"
    assert found["writable", None]["result"] == found["leases", None]["result"] == "ok"
    found = examine(typed, "-s", nowhere, "-r", tmp_path / "no" / "repo", code=1)  # problems of two kinds
    assert found["space", None]["code"] == 21
    found = examine(typed, "--context", "none", "-r", "ftp://x", code=1)
    assert (found["server", None]["code"], found["repository", None]["code"]) == (2, 13)
    told = typed("doctor", "-s", nowhere, "-r", shop.repo)
    assert "fix: server: Check that a nats-server runs there" in told.out and " 1 problem, " in told.out
    with NatsServer(NEWEST, jetstream=False) as server:
        found = examine(typed, "-s", server.url, "-r", shop.repo, code=20)
        assert found["jetstream", None]["result"] == "problem" and "--js-domain" in found["jetstream", None]["fix"]
        assert found["server", None]["result"] == found["writable", None]["result"] == "ok"


@pytest.mark.nats
def test_keys_have_to_fit_what_they_are_for(shop: Shop, typed: Type, tmp_path: Path) -> None:
    me = age.age_identity(bytes(32))
    assert me.recipient is not None
    (tmp_path / "me").write_text(f"{me.text}\n")
    (tmp_path / "other").write_text(f"{age.age_identity(bytes([1]) * 32).text}\n")
    repo, writer, identity = tmp_path / "repo", tmp_path / "writer", ("--identity", tmp_path / "me")
    assert typed("init", "-r", repo, "--encrypt-to", me.recipient.label, "--writer-key", writer).code == 0
    line = ("-s", shop.url, "-r", repo)
    found = examine(typed, *line, code=12)
    assert found["keys", "writer key"]["code"] == found["keys", "identity"]["code"] == 12
    assert "encrypted and signed" in found["repository", None]["found"]
    assert results(examine(typed, *line, "--writer-key", writer, "--for", "backup")) == {}
    assert results(examine(typed, *line, "--writer-key", writer, code=12)) == {"identity": "problem"}
    assert results(examine(typed, *line, "--writer-key", writer, *identity)) == {}
    wrong = examine(typed, *line, "--identity", tmp_path / "other", code=12)
    assert wrong["keys", None]["result"] == "problem" and wrong["writable", None]["result"] == "ok"
    gone = examine(typed, *line, "--identity", tmp_path / "gone", code=2)
    assert gone["keys", None]["result"] == "problem"
    # A key for what is not encrypted is as wrong.
    assert examine(typed, "-s", shop.url, "-r", shop.repo, *identity, code=2)["keys", None]["result"] == "problem"


@pytest.mark.nats
@pytest.mark.s3
def test_a_bucket_is_looked_at_and_left_as_it_was(
    shop: Shop, typed: Type, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    client = s3_server.client

    def listing() -> Any:
        return client.list_objects_v2(Bucket=BUCKET, Prefix="doctor/").get("Contents", [])

    repo = f"s3://{BUCKET}/doctor"
    line = ("-s", shop.url, "-r", repo)
    assert results(examine(typed, *line, "--for", "backup"))["writable"] == "not tried"
    assert listing() == []
    assert typed("init", "-r", repo).code == 0
    before = listing()
    found = examine(typed, *line)
    assert results(found) == {} and ("space", None) not in found
    assert listing() == before
    found = examine(typed, *line, "--s3-endpoint", "http://127.0.0.1:1", code=21)
    assert found["repository", None]["code"] == 21
