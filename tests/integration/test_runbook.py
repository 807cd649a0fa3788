"""A runbook for two accounts of one server and two repositories: all of it, nothing of it, and a failure midway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jsbackup.cli.main import run
from tests.cli.test_json import CLOSED
from tests.harness.filling import fill
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import ask, delete

pytestmark = pytest.mark.nats

ACCOUNTS = """accounts {
  SHOP { jetstream: { max_file: 100MB, max_streams: 3 }, users: [ { user: shop, password: p } ] }
  BANK { jetstream: enabled, users: [ { user: bank, password: p } ] }
}
"""
COUNTS = {"shop": 40, "bank": 70}


def _as(server: NatsServer, user: str) -> str:
    return f"nats://{user}:p@127.0.0.1:{server.port}"


async def _fill(server: NatsServer) -> None:
    for user, messages in COUNTS.items():
        for name in ("ORDERS", "LOG"):  # the same names and subjects in both accounts
            await fill(_as(server, user), name, messages)


def _streams(server: NatsServer, user: str) -> dict[str, int]:
    """How many messages each stream has."""
    listed = ask(_as(server, user), "STREAM.LIST").get("streams") or []
    return {one["config"]["name"]: one["state"]["messages"] for one in listed}


def _clear(server: NatsServer) -> None:
    for user in COUNTS:
        delete(_as(server, user), *_streams(server, user))


@pytest.fixture
def tool(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """Runs the tool in this process; exit code, and JSON where it was asked for."""
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("RUNBOOK_PASSWORD", "p")

    def call_it(*line: str | Path) -> tuple[int, Any]:
        capsys.readouterr()
        code = run([str(word) for word in line])
        out = capsys.readouterr().out
        return code, json.loads(out) if "--json" in line else out

    return call_it


def _checked(name: str, document: Any) -> Any:
    jsonschema.Draft202012Validator({**CLOSED, "$ref": f"#/$defs/{name}"}).validate(document)
    return document


def test_a_runbook_is_carried_out_whole_or_not_begun(
    tool: Callable[..., tuple[int, Any]],
    nats_server: Callable[..., NatsServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = nats_server(NEWEST, config=ACCOUNTS)
    asyncio.run(_fill(server))
    for user in COUNTS:
        assert tool("backup", "-s", _as(server, user), "-r", tmp_path / user, "--json")[0] == 0
    _clear(server)
    book = tmp_path / "book.toml"
    # The server and one repository are as on the command line; each restore logs in by itself.
    line = ("--runbook", book, "-s", f"127.0.0.1:{server.port}", "-r", tmp_path / "shop")

    def written(*, shop: str = "", bank: str = "", more: str = "") -> None:
        login = 'password = "env://RUNBOOK_PASSWORD"'
        book.write_text(
            f'[[restore]]\nbackup = "latest"\nuser = "shop"\n{login}\n{shop}\n'
            f'[[restore]]\nbackup = "20"\nrepo = "{tmp_path / "bank"}"\nuser = "bank"\n{login}\n{bank}\n{more}'
        )

    def refused(code: int, *told: str) -> None:
        """Both commands say so, and nothing is changed in either account."""
        before = [_streams(server, user) for user in COUNTS]
        planned, document = tool("plan", *line, "--json")
        assert planned == code
        assert any(one["refusals"] for one in _checked("plan_runbook", document)["restores"])
        restored, document = tool("restore", *line, "--json")
        assert restored == code
        message = document["error"]["message"]
        assert all(one in message for one in told), message
        assert [_streams(server, user) for user in COUNTS] == before

    # A refusal in the second.
    written(bank="replicas = 3")
    refused(15, "restore 2: nothing was restored", "has 3 replicas")
    # What only together cannot be: subjects, the limit of an account.
    again = '[[restore]]\nbackup = "latest"\nuser = "shop"\npassword = "env://RUNBOOK_PASSWORD"\n'
    written(more=again + 'rename = ["*=old_*"]\nstreams = ["ORDERS"]')
    refused(16, "restore 3: ", "its subject orders.> overlaps with orders.> of stream ORDERS of restore 1")
    written(more=again + 'rename = ["*=old_*"]\nmap-subject = ["*.>=>old.$1.>"]')
    refused(16, "restore 3: ", "max_streams is 3")

    # Success: names and subjects that would overlap in one account.
    written(bank='streams = ["ORDERS"]\nrename = ["ORDERS=KEPT"]\nuntil = "50"')
    code, document = tool("plan", *line, "--json")
    assert code == 0
    plans = _checked("plan_runbook", document)["restores"]
    assert [[action["as"] for action in plan["actions"]] for plan in plans] == [["LOG", "ORDERS"], ["KEPT"]]
    assert not _streams(server, "shop") and not _streams(server, "bank")
    code, document = tool("restore", *line, "--json")
    done = _checked("restore_runbook", document)
    assert (code, done["not_begun"]) == (0, [])
    assert [
        [(one["as"], one["messages"], one["verified"]) for one in part["streams"]] for part in done["restores"]
    ] == [
        [("LOG", 40, True), ("ORDERS", 40, True)],
        [("KEPT", 50, True)],
    ]
    assert _streams(server, "shop") == {"LOG": 40, "ORDERS": 40} and _streams(server, "bank") == {"KEPT": 50}
    refused(16, "restore 1: nothing was restored")

    # A failure midway: a stream of the second comes into being while the first is restored.
    _clear(server)
    from jsbackup.engine.restore import runbook

    carry_out = runbook.carry_out_restore

    async def meddle(*arguments: Any, **named: Any) -> Any:
        report = await carry_out(*arguments, **named)
        await fill(_as(server, "bank"), "LOG", 0)
        return report

    written(more=again + 'rename = ["*=old_*"]\nmap-subject = ["*.>=>old.$1.>"]\nstreams = ["LOG"]')
    with monkeypatch.context() as patched:
        patched.setattr(runbook, "carry_out_restore", meddle)
        code, document = tool("restore", *line, "--json")
    done = _checked("restore_runbook", document)
    assert code == 3
    assert [one["restore"] for one in done["not_begun"]] == [3]
    first, second = done["restores"]
    assert {one["as"] for one in first["streams"]} == {"LOG", "ORDERS"}
    assert second["error"]["code"] == 16 and "stream LOG: exists at the target" in second["error"]["message"]
    assert _streams(server, "shop") == {"LOG": 40, "ORDERS": 40} and _streams(server, "bank") == {"LOG": 0}

    # A rerun goes on from there.
    delete(_as(server, "bank"), "LOG")
    written(shop='if-exists = "skip"')
    code, text = tool("restore", *line)
    assert code == 0, text
    assert "restored 0 streams, 0 failed, 2 skipped" in text and "restored 2 streams, 0 failed, 0 skipped" in text
    assert _streams(server, "bank") == {"LOG": 70, "ORDERS": 70}
