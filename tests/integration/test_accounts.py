"""Users who may do little, accounts beside each other, JetStream behind a domain or in another account."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.oracle import compare
from tests.harness.oracle_features import config_can_go
from tests.harness.servers import NatsServer, hub_and_leaf
from tests.integration.witness import announced, filled, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

# As the manual lists them.
BACKUP = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.INFO.*.*",
    "$JS.API.STREAM.SNAPSHOT.*",
    "$JS.SNAPSHOT.ACK.>",
)
RESTORE = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.RESTORE.*",
    "$JS.SNAPSHOT.RESTORE.*.*",
)
PROVE = ("$JS.API.STREAM.SNAPSHOT.*", "$JS.SNAPSHOT.ACK.>")
MORE = (
    "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.UPDATE.*",
    "$JS.API.STREAM.DELETE.*",
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.DELETE.*.*",
)
# Listing and asking for one are as good as each other.
_DISPENSABLE = ("$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.CONSUMER.NAMES.*", "$JS.API.CONSUMER.INFO.*.*")
STREAMS = ("GAPS", "PULL", "WORKQUEUE", "INTEREST", "KV")
# None of these tests waits for an answer that cannot come: the command would be killed before this has passed.
PATIENCE = ("--timeout", "10m")
INBOX = "_INBOX_own"


def _user(name: str, allowed: Iterable[str]) -> str:
    publish = json.dumps(list(allowed))
    return (
        f"{{ user: {name}, password: p, permissions: "
        f'{{ publish: {{ allow: {publish} }}, subscribe: {{ allow: ["{INBOX}.>"] }} }} }}'
    )


def _accounts(*users: str) -> str:
    """Account APP with an administrator and `users`, and account OTHER beside it."""
    listed = "\n".join(["{ user: admin, password: p }", *users])
    return (
        f"accounts {{\n APP {{ jetstream: enabled, users: [\n{listed}\n] }}\n"
        " OTHER { jetstream: enabled, users: [ { user: other, password: p } ] }\n}\n"
    )


def _as(server: NatsServer, user: str) -> str:
    return f"nats://{user}:p@127.0.0.1:{server.port}"


def _run(server: NatsServer, user: str, *arguments: str | Path, wire: str = "auto") -> Ran:
    """A command of a user whose replies come to an inbox of its own."""
    command, *rest = arguments
    line = (command, "-s", server.url, "--inbox-prefix", INBOX, *rest)
    return jsbackup(*line, wire=wire, NATS_USER=user, NATS_PASSWORD="p")


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.10.26", "2.12.8", "2.15.1"])
def test_users_with_the_fewest_permissions_back_up_and_restore(version: str, tmp_path: Path) -> None:
    users = [_user("backup", BACKUP), _user("restore", RESTORE), _user("prove", (*RESTORE, *PROVE))]
    repository = tmp_path / "repo"
    with NatsServer(version, config=_accounts(*users)) as server:
        before = filled(_as(server, "admin"), version, STREAMS)
        backup = _run(server, "backup", "backup", "-v", "-r", repository, *PATIENCE).ok()
    assert "no server advisories" in backup.err
    assert "does not allow subscribing" in backup.err
    assert {stream["name"] for stream in backup.document["streams"]} == before.keys()

    with NatsServer(version, config=_accounts(*users)) as server:
        restored = _run(server, "restore", "restore", "latest", "-r", repository, *PATIENCE)
        # All is there, and only the proof is missing: the output says so.
        assert restored.code == 3
        for stream in restored.document["streams"]:
            assert not stream["verified"]
            (note,) = [note for note in stream["notes"] if note.startswith("not verified")]
            held = stream["messages"]
            assert note.startswith(f"not verified: the server reports {held} of {held} messages: ")
            assert f"does not allow publishing to $JS.API.STREAM.SNAPSHOT.{stream['name']}" in note
        assert compare(before, seen(_as(server, "admin"))) == []

    with NatsServer(version, config=_accounts(*users)) as server:
        _run(server, "restore", "restore", "latest", "-r", repository, "--verify", "none", *PATIENCE).ok()
        assert compare(before, seen(_as(server, "admin"))) == []

    with NatsServer(version, config=_accounts(*users)) as server:
        restored = _run(server, "prove", "restore", "latest", "-r", repository, *PATIENCE).ok()
        assert all(stream["verified"] for stream in restored.document["streams"])
        assert compare(before, seen(_as(server, "admin"))) == []


def test_a_restore_by_archive_v2_needs_no_more(tmp_path: Path) -> None:
    users = [_user("prove", (*RESTORE, *PROVE))]
    with NatsServer("2.15.1", config=_accounts(*users)) as origin:
        before = filled(_as(origin, "admin"), "2.15.1", STREAMS)
        _run(origin, "admin", "backup", "-r", tmp_path / "repo").ok()
    with NatsServer("2.15.1", config=_accounts(*users)) as server:
        _run(server, "prove", "restore", "latest", "-r", tmp_path / "repo", *PATIENCE, wire="v2").ok()
        # Such a state is only taken over with its floor right below the first message.
        ignore = ["WORKQUEUE:consumer.high.ack_floor"]
        assert compare(before, seen(_as(server, "admin")), ignore=ignore) == []


def test_replacing_a_stream_needs_more_and_says_so_before_it_changes_anything(tmp_path: Path) -> None:
    users = [
        _user("prove", (*RESTORE, *PROVE)),
        _user("full", (*RESTORE, *PROVE, *MORE)),
        _user("blind", RESTORE + MORE),
    ]
    replace = ("restore", "latest", "-r", tmp_path / "repo", "--if-exists", "replace", *PATIENCE)
    with NatsServer("2.12.8", config=_accounts(*users)) as server:
        before = filled(_as(server, "admin"), "2.12.8", STREAMS)
        _run(server, "admin", "backup", "-r", tmp_path / "repo").ok()
        refused = _run(server, "prove", *replace)
        assert refused.code == 20
        assert "does not allow publishing to $JS.API.STREAM.DELETE." in refused.document["error"]["message"]
        assert compare(before, seen(_as(server, "admin"))) == []

        refused = _run(server, "blind", *replace)
        assert refused.code == 15
        assert "which this user may not read" in refused.document["error"]["message"]
        assert compare(before, seen(_as(server, "admin"))) == []

        asyncio.run(_purge(_as(server, "admin"), "GAPS"))
        _run(server, "full", *replace).ok()
        assert compare(before, seen(_as(server, "admin"))) == []


async def _purge(url: str, stream: str) -> None:
    async with connected(url) as nc:
        await call(nc, f"STREAM.PURGE.{stream}")


@pytest.fixture(scope="module")
def small_backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("small") / "repo"
    with NatsServer("2.12.8") as server:
        filled(server.url, "2.12.8", ["GAPS"])
        jsbackup("backup", "-s", server.url, "-r", repository).ok()
    return repository


# A stream that fits into the server's window (8 MiB) arrives whole without the right to acknowledge, or the denial
# comes first: either is right, so that one subject is left to tests/engine/link/test_link.py.
@pytest.mark.by_turns
@pytest.mark.parametrize("lacking", [subject for subject in BACKUP if not subject.startswith("$JS.SNAPSHOT.ACK")])
def test_each_permission_that_a_backup_lacks_is_named_at_once(lacking: str, tmp_path: Path) -> None:
    user = _user("backup", [subject for subject in BACKUP if subject != lacking])
    with NatsServer("2.15.1", config=_accounts(user)) as server:
        filled(_as(server, "admin"), "2.15.1", ["PAYLOADS"])
        ran = _run(server, "backup", "backup", "-r", tmp_path / "repo", *PATIENCE)
    _is_named(ran, lacking)


@pytest.mark.parametrize("lacking", RESTORE)
def test_each_permission_that_a_restore_lacks_is_named_at_once(lacking: str, small_backup: Path) -> None:
    user = _user("restore", [subject for subject in (*RESTORE, *PROVE) if subject != lacking])
    with NatsServer("2.12.8", config=_accounts(user)) as server:
        ran = _run(server, "restore", "restore", "latest", "-r", small_backup, *PATIENCE)
        if ran.code:
            assert seen(_as(server, "admin")) == {}
    _is_named(ran, lacking)


def _is_named(ran: Ran, lacking: str) -> None:
    """What a user lacks is named, unless the command can do without it."""
    if lacking in _DISPENSABLE and ran.code == 0:
        return
    assert ran.code == 20, ran.out
    # nats-py hands the server's words on in lower case.
    assert f"does not allow publishing to {lacking.rstrip('*>.')}".lower() in json.dumps(ran.document).lower()


# ------------------------------------------------------------------------------------------------ accounts and domains


def test_accounts_beside_each_other_are_not_touched(tmp_path: Path) -> None:
    with NatsServer("2.15.1", config=_accounts()) as server:
        ours = filled(_as(server, "admin"), "2.15.1", ["GAPS", "KV"])
        theirs = filled(_as(server, "other"), "2.15.1", ["GAPS", "PULL"])
        backup = _run(server, "admin", "backup", "-r", tmp_path / "repo").ok()
        assert {stream["name"] for stream in backup.document["streams"]} == ours.keys()
        # The same subjects in another account are other subjects.
        taken = _run(server, "other", "restore", "latest", "-r", tmp_path / "repo")
        assert taken.code == 16
        _run(server, "other", "restore", "latest", "-r", tmp_path / "repo", "--if-exists", "skip").ok()
        assert compare(ours, seen(_as(server, "admin"))) == []
        both = {**theirs, "KV_history": ours["KV_history"]}
        assert compare(both, seen(_as(server, "other"))) == []


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("hub_version", "leaf_version"), [("2.15.1", "2.12.8"), ("2.10.26", "2.15.1"), ("2.11.11", "2.11.11")]
)
def test_domains_are_backed_up_and_restored_from_the_other_side(
    hub_version: str, leaf_version: str, tmp_path: Path
) -> None:
    streams = ("GAPS", "PULL", "KV", "TTL")
    with hub_and_leaf(hub_version, leaf_version=leaf_version) as (hub, leaf):
        before = filled(leaf.url, leaf_version, streams)
        away = ("-r", tmp_path / "repo", "-s", hub.url, "--js-domain", "leaf")
        backup = jsbackup("backup", *away).ok()
        assert {stream["name"] for stream in backup.document["streams"]} == before.keys()
        # Nothing is there yet, and what the hub cannot hold is refused, though the server one is connected to could.
        lacking = [name for name in before if config_can_go(before[name].config, hub_version)]
        back = ("restore", "latest", "-r", tmp_path / "repo", "-s", leaf.url, "--js-domain", "hub")
        if lacking:
            refused = jsbackup(*back)
            assert refused.code == 15
            assert f"the target is nats-server {hub_version.rpartition('.')[0]}" in refused.document["error"]["message"]
        jsbackup(*back, *(text for name in lacking for text in ("--exclude", name))).ok()
        found = seen(hub.url)
        assert compare({name: one for name, one in before.items() if name not in lacking}, found) == []
        replaced = jsbackup("restore", "latest", *away, "--if-exists", "replace").ok()
        assert compare(before, seen(leaf.url), ignore=announced(replaced)) == []
        refused = jsbackup("restore", "latest", *away, "--if-exists", "replace", "--replicas", "3")
        assert refused.code == 15
        assert "the target is a single server" in refused.document["error"]["message"]


IMPORTED = f"""accounts {{
  JS {{
    jetstream: enabled
    users: [ {{ user: admin, password: p }} ]
    exports: [
      {{ service: "$JS.API.>" }}
      {{ service: "$JS.SNAPSHOT.>" }}
      {{ stream: "{INBOX}.>" }}
    ]
  }}
  OPS {{
    users: [ {{ user: ops, password: p }} ]
    imports: [
      {{ service: {{ account: JS, subject: "$JS.API.>" }}, to: "JS.main.API.>" }}
      {{ service: {{ account: JS, subject: "$JS.SNAPSHOT.>" }} }}
      {{ stream: {{ account: JS, subject: "{INBOX}.>" }} }}
    ]
  }}
}}
"""


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.10.26", "2.14.6", "2.15.1"])
def test_an_imported_api_serves_for_a_backup_and_tells_why_it_does_not_for_a_restore(
    version: str, tmp_path: Path
) -> None:
    imported = ("-r", tmp_path / "repo", "--js-api-prefix", "JS.main.API")
    with NatsServer(version, config=IMPORTED) as server:
        before = filled(_as(server, "admin"), version, ["GAPS", "PULL", "PAYLOADS"])
        examine = ("doctor", "--for", "backup", "--js-api-prefix", "JS.main.API", "-s", _as(server, "ops"))
        jsbackup(*examine, "--inbox-prefix", INBOX).ok()
        unheard = jsbackup(*examine, "--timeout", "2s")
        (replies,) = (one for one in unheard.document["checks"] if one["check"] == "replies")
        assert (unheard.code, replies["result"]) == (20, "problem") and "must export" in replies["fix"]
        _run(server, "ops", "backup", *imported).ok()
        _run(server, "ops", "backup", "--config-only", *imported).ok()
    backups = jsbackup("list", "-r", tmp_path / "repo").ok().document["backups"]
    with NatsServer(version, config=IMPORTED) as server:
        # Nothing but the configuration: no chunk has to pass the import.
        _run(server, "ops", "restore", backups[-1]["backup"], *imported).ok()
        assert seen(_as(server, "admin")).keys() == before.keys()
    if version != "2.10.26":  # which does not even answer a chunk that came through an import
        with NatsServer(version, config=IMPORTED) as server:
            broken = jsbackup(
                "restore", backups[0]["backup"], *imported, "-s", _as(server, "ops"), "--inbox-prefix", INBOX
            )
            assert broken.code in (14, 20)
            assert seen(_as(server, "admin")) == {}
            command = command_line("restore", backups[0]["backup"], *imported, "-s", _as(server, "ops"))
            plain = subprocess.run(
                [*command, "--inbox-prefix", INBOX], capture_output=True, text=True, env=environment()
            )
            assert "must not pass a service import" in plain.stdout
    with NatsServer(version, config=IMPORTED) as server:
        _run(server, "admin", "restore", backups[0]["backup"], "-r", tmp_path / "repo").ok()
        assert compare(before, seen(_as(server, "admin"))) == []
