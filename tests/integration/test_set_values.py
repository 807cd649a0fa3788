"""Values of `--set` that a server does not accept: the plan knows them, so nothing is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jsbackup
from jsbackup.planning.configs.overrides import parse_override
from tests.harness.api import call, connected
from tests.harness.filling import publish
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, ask, delete, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

BASE = {"name": "E", "subjects": ["e.>"], "storage": "file"}
CONSUMERS: list[dict[str, Any]] = [
    {"durable_name": "a", "ack_policy": "explicit", "inactive_threshold": 60_000_000_000, "max_ack_pending": 1000},
    {"durable_name": "b", "ack_policy": "explicit", "filter_subject": "e.1"},
]
REFUSED = [
    "max_age=50ms --set duplicate_window=50ms",
    'retention="workqueue"',
    'mirror={"name":"Q"}',
    'consumer_limits={"inactive_threshold":5000000000}',
    'consumer_limits={"max_ack_pending":10}',
    "max_consumers=1",
    "deny_purge=true --set allow_rollup_hdrs=true",
    'subjects=["e.>","$JS.API.>"]',
    'allow_msg_counter=true --set discard="new"',
    'persist_mode="async" --set storage="memory"',
    'metadata={"k":"' + "x" * 140_000 + '"}',
]
ACCEPTED = [
    "max_age=1h",
    'retention="interest"',
    'consumer_limits={"inactive_threshold":60000000000}',
    "max_consumers=2",
    'discard_new_per_subject=true --set discard="new" --set max_msgs_per_subject=100',
    'republish={"src":">","dest":">"} --set subject_transform={"src":"e.>","dest":"t.>"}',
]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[str]:
    with NatsServer(NEWEST) as server:
        yield server.url


@pytest.fixture(scope="module")
def backed_up(started: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    async def work() -> None:
        async with connected(started) as nc:
            await call(nc, "STREAM.CREATE.E", BASE)
            for config in CONSUMERS:
                request = {"stream_name": "E", "config": config}
                await call(nc, f"CONSUMER.DURABLE.CREATE.E.{config['durable_name']}", request)
            await publish(nc, "e.{}", 20)

    asyncio.run(work())
    repo = tmp_path_factory.mktemp("set") / "repo"

    jsbackup.backup(started, jsbackup.open(repo, create=True))
    delete(started, "E")
    return repo


def sets(text: str) -> list[str]:
    return [word for one in text.split(" --set ") for word in ("--set", one)]


def create(url: str, text: str) -> bool:
    """Return whether the server makes such a stream with its consumers, apart from any restore."""
    fields = dict(parse_override(one) for one in text.split(" --set "))

    async def work() -> bool:
        async with connected(url) as nc:
            made = json.loads((await nc.request("$JS.API.STREAM.CREATE.E", json.dumps(BASE | fields).encode())).data)
            answers = [made]
            for config in CONSUMERS if "error" not in made else ():
                subject = f"$JS.API.CONSUMER.DURABLE.CREATE.E.{config['durable_name']}"
                body = json.dumps({"stream_name": "E", "config": config}).encode()
                answers.append(json.loads((await nc.request(subject, body)).data))
            return not any("error" in answer for answer in answers)

    try:
        return asyncio.run(work())
    finally:
        delete(url, *names(url))


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_a_plan_refuses_what_the_server_does_not_accept(text: str, started: str, backed_up: Path, typed: Type) -> None:
    assert not create(started, text)
    line = ("latest", "E", "-s", started, "-r", backed_up, *sets(text))
    planned = typed("plan", *line, "--json")
    assert planned.code == 15, planned
    # What would remove messages is refused before the target is asked.
    assert {"server-refuses", "limit-trims"} & {one["rule"] for one in planned.document["refusals"]}
    restored = typed("restore", *line)
    assert (restored.code, names(started)) == (15, []), restored


@pytest.mark.parametrize("text", ACCEPTED, ids=lambda text: text[:60])
def test_a_plan_lets_through_what_the_server_accepts(text: str, started: str, backed_up: Path, typed: Type) -> None:
    assert create(started, text)
    line = ("latest", "E", "-s", started, "-r", backed_up, *sets(text))
    try:
        assert typed("plan", *line, "-q").code == 0
        restored = typed("restore", *line, "-q")
        assert restored.code == 0, restored
        assert ask(started, "STREAM.INFO.E")["state"]["messages"] >= 20
    finally:
        delete(started, *names(started))


def test_the_mark_of_a_half_made_stream_is_set_by_no_option(started: str, backed_up: Path, typed: Type) -> None:
    mark = ("--set", 'metadata={"jsbackup.restoring":"x"}')
    to = ("-s", started, "-r", backed_up)
    assert typed("restore", "latest", "E", *to, *mark).code == 2
    assert typed("clone", "E", "-s", started, "--to-server", started, "--rename", "E=F", *mark).code == 2
    assert names(started) == []


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("subject_delete_marker_ttl=1s --set deny_purge=true", ["deny_purge", "allow_rollup_hdrs", "allow_msg_ttl"]),
        ("allow_msg_schedules=true --set deny_purge=true", ["deny_purge", "allow_rollup_hdrs"]),
        ("subject_delete_marker_ttl=1s --set allow_rollup_hdrs=true", ["allow_rollup_hdrs", "allow_msg_ttl"]),
        ('metadata={"_nats.mine":"1"}', ["metadata"]),
        ('metadata={"_nats.mine":"1","mine":"2"}', ["metadata"]),
    ],
)
def test_a_plan_says_what_the_server_makes_of_it(
    text: str, fields: list[str], started: str, backed_up: Path, typed: Type
) -> None:
    line = ("latest", "E", "-s", started, "-r", backed_up, *sets(text))
    try:
        planned = typed("plan", *line, "--json")
        changes = {one["field"]: one["after"] for one in planned.document["actions"][0]["config_changes"]}
        restored = typed("restore", *line, "-q")
        assert (planned.code, restored.code) == (0, 0), restored
        config = ask(started, "STREAM.INFO.E")["config"]
        metadata = {key: one for key, one in config.get("metadata", {}).items() if not key.startswith("_nats.")}
        there = {**config, "metadata": metadata}
        assert [(field, changes.get(field) or None) for field in fields] == [
            (field, there[field] or None) for field in fields
        ]
    finally:
        delete(started, *names(started))
