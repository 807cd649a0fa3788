"""Each rule of a plan, provoked on a real server or cluster, where nothing changes; and plans that are carried out.

`ROWS` is the table: what is at the target, what is asked for, and the rule, exit code, sentence and hint that come of
it. A refusal is the restore's, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.cli.main import run
from jsbackup.errors import UnknownArchiveFormat
from jsbackup.formats.archive.archive import ArchiveDecoder
from jsbackup.planning.rules import Rule
from tests.engine.identities import Operator, creds_text
from tests.harness.api import JSON, PATIENCE_SECONDS, Refused, call, connected, create
from tests.harness.clusters import NatsCluster
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer
from tests.integration.plan_rows import BLIND, CONSUMERS, DENIED, LIMITS, ROWS, STREAMS, Row, stream_config
from tests.integration.witness import announced, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

# ------------------------------------------------------------------------------------------------ what is backed up


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        for config in STREAMS:
            wanted = {key: value for key, value in config.items() if value is not None}
            await call(nc, f"STREAM.CREATE.{config['name']}", wanted)
        for stream, consumer in CONSUMERS:
            await _consume(nc, stream, consumer)
        for name in ("FILE", "INTEREST", "TTL", "FIRST", "TAIL"):
            for number in range(5):
                await nc.request(f"{name.lower()}.{number}", b"data", timeout=PATIENCE_SECONDS)
        for sequence in (1, 5):
            await call(nc, "STREAM.MSG.DELETE.TAIL", {"seq": sequence})
        for name in ("LARGE", "MEMORY"):
            await nc.request(f"{name.lower()}.0", bytes(50_000), timeout=PATIENCE_SECONDS)


async def _consume(nc: Client, stream: str, consumer: JSON) -> None:
    request = {"stream_name": stream, "config": consumer}
    await call(nc, f"CONSUMER.DURABLE.CREATE.{stream}.{consumer['durable_name']}", request)


def _kept_as_it_came(url: str, repository: Path) -> None:
    """A backup by a tool that does not know the server's archive format yet."""

    def nothing_is_known(_decoder: ArchiveDecoder, start: bytes) -> None:
        raise UnknownArchiveFormat(start)

    with pytest.MonkeyPatch.context() as forgetting:
        forgetting.setattr(ArchiveDecoder, "_sniff", nothing_is_known)
        code = run(["backup", "FILE", "LARGE", "-s", url, "-r", str(repository), "-q", "--no-progress"])
    assert code == 3


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories: `all`; `config` without messages; `opaque`; `overlapping`; `lost` objects; `partial`."""
    folder = tmp_path_factory.mktemp("backups")
    denied = json.dumps(BLIND)
    users = f"{{ user: blind, password: p, permissions: {{ publish: {{ deny: {denied} }} }} }}"
    config = f"accounts {{ A {{ jetstream: enabled, users: [{{ user: u, password: p }}, {users}] }} }}\nno_auth_user: u"
    with NatsServer("2.15.1", config=config) as server:
        asyncio.run(_fill(server.url))
        for name, code, more in (
            ("all", 0, ()),
            ("config", 0, ("FILE", "--config-only")),
            ("partial", 3, ("FILE", "TTL", "--no-consumers")),
        ):
            url = f"nats://blind:p@127.0.0.1:{server.port}" if name == "partial" else server.url
            made = jsbackup("backup", *more, "-s", url, "-r", folder / name, *PATIENT)
            assert made.code == code, made.out
        _kept_as_it_came(server.url, folder / "opaque")
    shutil.copytree(folder / "all", folder / "lost")
    for segment in (folder / "lost").rglob("*.parquet"):
        segment.unlink()
    jsbackup(
        "export", "latest", "FILE", "TTL", "--format", "config", "--output", folder / "files", "-r", folder / "all"
    ).ok()
    (path,) = [one for one in (folder / "files").rglob("*.json") if "TTL" in one.name]
    path.write_text(path.read_text().replace("ttl.>", "file.*"))
    jsbackup("import", folder / "files", "-r", folder / "overlapping").ok()
    return folder


# ------------------------------------------------------------------------------------------------------- the targets


def _limited() -> str:
    accounts = []
    for name, limits in LIMITS.items():
        users = [f"{{ user: {name.lower()}, password: p }}"]
        if name == "OPEN":
            users += [
                f'{{ user: {user}, password: p, permissions: {{ publish: {{ deny: ["{subject}"] }} }} }}'
                for user, subject in DENIED.items()
            ]
        accounts.append(f"{name} {{ jetstream: {limits}, users: [{', '.join(users)}] }}")
    return "accounts {\n" + "\n".join(accounts) + "\n}\nno_auth_user: open\n"


@pytest.fixture(scope="module")
def targets() -> Iterator[Callable[[str], str]]:
    """`targets("2.12.8")` → a URL of a server of that name, started when it is first asked for; `user@name` too."""
    started: dict[str, NatsServer | NatsCluster] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str) -> str:
            user, _, kind = name.rpartition("@")
            if kind not in started:
                made: NatsServer | NatsCluster
                if kind == "cluster":
                    made = NatsCluster("2.12.8")
                elif kind == "small":
                    made = NatsServer("2.12.8", max_payload_bytes=2048)
                else:
                    made = NatsServer(kind, config=_limited())
                stack.enter_context(made)
                started[kind] = made
            target = started[kind]
            if isinstance(target, NatsServer) and user:
                return f"nats://{user}:p@127.0.0.1:{target.port}"
            return target.url

        yield start


# --------------------------------------------------------------------------------------------------------- the table


async def _make(url: str, row: Row) -> None:
    async with connected(url) as nc:
        for config in row.there:
            with contextlib.suppress(TimeoutError):
                await create(nc, config)
            # A cluster of a busy machine loses an answer now and then.
            await call(nc, f"STREAM.INFO.{config['name']}")
            subject = (config.get("subjects") or [""])[0].replace(">", "made").replace("*", "made")
            for _ in range(row.messages):
                await nc.request(subject, b"there", timeout=PATIENCE_SECONDS)
            for consumer in row.consumers:
                await _consume(nc, config["name"], consumer)
        if row.begun:
            config = {
                "name": "FILE",
                "subjects": ["file.>"],
                "retention": "limits",
                "storage": "file",
                "num_replicas": 1,
            }
            moment = "2026-11-21T01:45:00Z"
            state: JSON = {"messages": 0, "bytes": 0, "consumer_count": 0, "first_seq": 0, "last_seq": 0}
            request = {"config": config, "state": state | {"first_ts": moment, "last_ts": moment}}
            # A busy cluster may lose the answer. After 5 s it says that the restore is stalled; the name stays taken.
            with contextlib.suppress(Refused, TimeoutError):
                await call(nc, "STREAM.RESTORE.FILE", request)


async def _clear(url: str, names: set[str]) -> None:
    async with connected(url) as nc:
        for name in names:
            await call(nc, f"STREAM.DELETE.{name}")


@pytest.mark.by_turns
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_rule_is_told_with_its_hint_and_nothing_changes(
    row: Row, backups: Path, targets: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = targets(row.target)
    user = row.target.partition("@")[0]
    whole = targets(row.target.rpartition("@")[2]) if user in DENIED else url
    try:
        asyncio.run(_make(whole, row))
        # A name that a restore has taken is listed and not found.
        before = {} if row.begun else _seen_with(whole, {config["name"] for config in row.there})
        words = ["latest", *row.arguments.split(), "-s", url, "-r", str(backups / row.repo), *PATIENT, "--json"]
        planned = _typed(capsys, "plan", *words)
        plan = planned.document
        assert "refusals" in plan, planned.out
        found = [one for one in [*plan["refusals"], *plan["warnings"]] if one["rule"] == row.rule]
        if row.rule is Rule.SKIPPED:
            assert plan["skipped"] == [{"name": "FILE", "reason": row.reason}]
        else:
            matching = [one for one in found if row.reason in one["reason"] and row.hint in (one["hint"] or "")]
            assert matching, planned.out
        if row.rule.code:
            assert planned.code == row.rule.code == matching[0]["code"], planned.out
            refused = _typed(capsys, "restore", *words)
            assert refused.code == row.rule.code, refused.out
            assert matching[0]["reason"].partition(":")[0] in refused.document["error"]["message"], refused.out
        else:
            # A restore of a backup that lacks a stream is incomplete.
            assert planned.code == (3 if row.rule is Rule.INCOMPLETE_BACKUP else 0), planned.out
        assert row.begun or compare(before, seen(whole)) == []
    finally:
        asyncio.run(_clear(whole, {config["name"] for config in row.there} | ({"FILE"} if row.begun else set())))


def _seen_with(url: str, names: set[str]) -> dict[str, Any]:
    """What the server has, once its list has these streams: that of a busy cluster may lack them for a moment."""
    while not names <= (before := seen(url)).keys():
        time.sleep(0.1)
    return dict(before)


def _typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """In this process, which is quicker."""
    capsys.readouterr()
    code = run([*arguments, "--no-progress"])
    printed = capsys.readouterr()
    return Ran(code, json.loads(printed.out), printed.out, printed.err)


@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_tiers_of_an_account_are_told_by_name(version: str, backups: Path, tmp_path: Path) -> None:
    operator = Operator({"R1": {"streams": 1, "disk_storage": 1 << 20}})
    creds = tmp_path / "user.creds"
    creds.write_text(creds_text(*operator.user()))
    with NatsServer(version, config=operator.config) as server:
        onto = ("latest", "FILE", "LARGE", "-s", server.url, "--creds", creds, "-r", backups / "all", *PATIENT)
        for more, code, told in (
            ((), 16, {("LARGE", "max-streams", "would be stream number 2; the account's R1 max_streams is 1")}),
            (
                ("--replicas", "3"),
                15,
                {
                    (name, "no-tier", "would have 3 replicas, for which the account has no tier (it has R1)")
                    for name in ("FILE", "LARGE")
                },
            ),
        ):
            plan = jsbackup("plan", *onto, *more)
            assert plan.code == code == jsbackup("restore", *onto, *more).code
            found = {(one["stream"], one["rule"], one["reason"]) for one in plan.document["refusals"]}
            assert found >= told, plan.out
        state = server.monitor("/jsz?accounts=1&streams=1")
        assert state["streams"] == 0
        jsbackup("restore", *onto[:2], *onto[3:]).ok()
        assert server.monitor("/jsz")["streams"] == 1


# ----------------------------------------------------------------------------------------------- plans that are saved


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_a_plan_is_carried_out_if_nothing_has_changed(version: str, tmp_path: Path) -> None:
    repo, saved = tmp_path / "repo", tmp_path / "plan.json"
    with NatsServer(version) as server:
        asyncio.run(_begin(server.url))
        before = seen(server.url)
        jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
        asyncio.run(_publish(server.url, "a.late"))
        onto = ("-s", server.url, "-r", repo, *PATIENT)

        replace = ("--if-exists", "replace", "--replace-with-part")
        planned = jsbackup("plan", "latest", "A", *replace, *onto, "-o", saved).ok().document
        (action,) = planned["actions"]
        assert (action["action"], action["destroys"]["messages"], action["destroys"]["last_seq"]) == ("replace", 4, 4)
        rules = {warning["rule"]: warning["reason"] for warning in planned["warnings"]}
        assert rules["destroys-left-out"] == "lacks 1 of 4 messages at the target, which are deleted"
        changed = seen(server.url)

        # A message more than was planned to be destroyed.
        asyncio.run(_publish(server.url, "a.later"))
        later = seen(server.url)
        refused = jsbackup("restore", "--plan", saved, *onto)
        assert refused.code == 15
        assert "the target has changed since the plan was made" in refused.document["error"]["message"]
        assert "target removed A last_seq changed from 4 to 5" in refused.document["error"]["message"]
        assert "Make a new plan" in refused.document["error"]["hint"]
        assert compare(later, seen(server.url)) == [] and compare(changed, later) != []

        jsbackup("plan", "latest", "A", *replace, *onto, "-o", saved).ok()
        restored = jsbackup("restore", "--plan", saved, *onto).ok()
        assert [(one["name"], one["verified"]) for one in restored.document["streams"]] == [("A", True)]
        assert compare(before, seen(server.url), ignore=announced(restored)) == []

        # The same plan again: what it replaces is not what it was.
        refused = jsbackup("restore", "--plan", saved, *onto)
        assert refused.code == 15
        assert "target removed A last_seq changed from 5 to 3" in refused.document["error"]["message"]

    with NatsServer(version, name="other") as server:
        onto = ("-s", server.url, "-r", repo, *PATIENT)
        fields = ("--set", "max_msgs=7", "--set", "description=null", "--consumers", "config")
        planned = jsbackup("plan", "latest", *fields, *onto, "-o", saved).ok().document
        assert {
            change["field"]: (change["before"], change["after"]) for change in planned["actions"][0]["config_changes"]
        } == {
            "max_msgs": (-1, 7),
            "description": ("of a test", None),
        }
        assert seen(server.url) == {}
        # A stream has come that is in the way.
        asyncio.run(_stand_in_the_way(server.url))
        there = seen(server.url)
        refused = jsbackup("restore", "--plan", saved, *onto)
        assert refused.code == 15 and "overlaps with a.x of stream C" in refused.document["error"]["message"]
        assert compare(there, seen(server.url)) == []
        asyncio.run(_clear(server.url, {"C"}))
        restored = jsbackup("restore", "--plan", saved, *onto).ok()
        after = seen(server.url)
        assert (after["A"].config["max_msgs"], after["A"].config.get("description")) == (7, None)
        assert after["A"].messages == before["A"].messages
        assert {one["fidelity"] for stream in restored.document["streams"] for one in stream["consumers"]} == {
            "config only"
        }

    # Another release is another target.
    with NatsServer("2.14.6", name="third") as server:
        refused = jsbackup("restore", "--plan", saved, "-s", server.url, "-r", repo, *PATIENT)
        assert (
            refused.code == 15
            and f"target version changed from {version} to 2.14.6" in refused.document["error"]["message"]
        )
        assert seen(server.url) == {}


async def _begin(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.A", stream_config("A", subjects=["a.>"], description="of a test"))
        await _consume(nc, "A", {"durable_name": "one", "ack_policy": "explicit"})
        for number in range(3):
            await nc.request(f"a.{number}", b"data", timeout=PATIENCE_SECONDS)


async def _publish(url: str, subject: str) -> None:
    async with connected(url) as nc:
        await nc.request(subject, b"late", timeout=PATIENCE_SECONDS)


async def _stand_in_the_way(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.C", stream_config("C", subjects=["a.x"]))
