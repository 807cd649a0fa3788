"""What commands say of backups and streams is true: why one is not used, what a drill covered, what was skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api import connected
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.trials.accounts import Type, ask, backup_of, delete, fill, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[NatsServer]:
    with NatsServer(NEWEST, name="C1") as server:
        yield server


@pytest.fixture
def server(started: NatsServer) -> Iterator[str]:
    """The URL of a server without streams."""
    yield started.url
    delete(started.url, *names(started.url))


def _bucket(where: str, name: str, keys: int) -> None:
    fill(where, f"KV_{name}", keys, subjects=[f"KV_{name}.*", f"$KV.{name}.>"], max_msgs_per_subject=1)


def test_a_recreated_stream_is_not_said_to_be_lacking(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    _bucket(server, "rc", 3)
    first = backup_of(typed("backup", *where, "--json"))
    delete(server, "KV_rc")
    _bucket(server, "rc", 1)
    done = typed("backup", *where, "--json")
    assert done.code == 3
    later = backup_of(done)
    done = typed("kv", "latest", "rc", "-r", tmp_path / "repo")
    assert done.code == 0
    assert (
        f"{later} is newer but not used: it is partial, in KV_rc: it had 3 messages in backup {first}, and is "
        "another stream now, with 1 message" in done.err
    )
    assert "lacks" not in done.err


def test_a_deleted_stream_is_named_with_the_reason(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", server, "-r", tmp_path / "repo")
    _bucket(server, "rc", 3)
    first = backup_of(typed("backup", *where, "--json"))
    delete(server, "KV_rc")
    fill(server, "NEW", 1)
    done = typed("backup", *where, "--json")
    assert done.code == 3
    done = typed("kv", "latest", "rc", "-r", tmp_path / "repo")
    assert done.code == 0
    assert (
        f"it is partial, in KV_rc: it had 3 messages in backup {first}, and the server no longer has this stream"
        in done.err
    )
    assert typed("backup", "--allow-nothing", *where, "-q").code == 0
    done = typed("kv", "latest", "rc", "-r", tmp_path / "repo")
    assert done.code == 0 and "is newer but not used: it has no stream KV_rc" in done.err


def test_status_says_what_a_drill_covered(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-r", tmp_path / "repo")
    for stream in ("A", "B"):
        fill(server, stream, 3)
    assert typed("backup", "-s", server, *where, "-q").code == 0
    assert typed("drill", "latest", "A", *where, "-q").code == 0
    [line] = [one for one in typed("status", *where).out.splitlines() if one.startswith("drill ")]
    assert line.endswith(", only in part: A (1 stream, 3 messages)") and "restored and proved in" in line
    page = tmp_path / "page.html"
    assert typed("status", "--html", page, *where).code == 0
    assert "restored and proved, in part" in page.read_text(encoding="utf-8")
    assert typed("drill", *where, "-q").code == 0
    [line] = [one for one in typed("status", *where).out.splitlines() if one.startswith("drill ")]
    assert line.endswith(" s (2 streams, 6 messages)") and "part" not in line


def test_a_key_that_has_expired_is_not_said_to_be_purged(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-r", tmp_path / "repo")
    ttl = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 8 * 10**9}
    fill(server, "KV_b", 0, subjects=["$KV.b.>"], max_msgs_per_subject=5, allow_rollup_hdrs=True, **ttl)

    async def put() -> None:
        async with connected(server) as nc:
            await nc.jetstream().publish("$KV.b.k", b"value", headers={"Nats-TTL": "8s"})
            await nc.jetstream().publish("$KV.b.p", b"value")
            await nc.jetstream().publish("$KV.b.p", b"", headers={"KV-Operation": "PURGE"})

    asyncio.run(put())
    wait_until(lambda: ask(server, "STREAM.INFO.KV_b")["state"]["last_seq"] == 4, "the marker")
    assert typed("backup", "-s", server, *where, "-q").code == 0
    done = typed("kv", "latest", "b", "k", *where)
    assert done.code == 1 and ": it has expired, as revision 4 of " in done.err and "purge" not in done.err
    assert "is a purge" in typed("kv", "latest", "b", "p", *where).err
    done = typed("history", "b", "--key", "k", *where)
    assert done.code == 0 and "expired" in done.out and "purge" not in done.out
    done = typed("history", "KV_b", "--key", "k", *where, "--json")
    [row] = done.document["messages"]
    assert (row["operation"], row["expired"]) == ("purge", True)


def test_the_last_sequence_is_that_of_the_stream(server: str, typed: Type, tmp_path: Path) -> None:
    where = ("-r", tmp_path / "repo")
    fill(server, "S", 5)
    ask(server, "STREAM.MSG.DELETE.S", {"seq": 5})
    ask(server, "STREAM.MSG.DELETE.S", {"seq": 4})
    fill(server, "EMPTIED", 3)
    ask(server, "STREAM.PURGE.EMPTIED", {})
    made = typed("backup", "-s", server, *where)
    shown = typed("show", "latest", *where)
    for done, columns in ((made, slice(4, 6)), (shown, slice(6, 8))):
        rows = {
            line.split()[0]: line.split()[columns] for line in done.out.splitlines() if line.startswith(("S ", "E"))
        }
        assert rows == {"S": ["1", "5"], "EMPTIED": ["0", "3"]}, done.out
    found = {one["name"]: one for one in typed("show", "latest", *where, "--json").document["streams"]}
    assert [found["S"][name] for name in ("first_seq", "last_seq", "stream_last_seq")] == [1, 3, 5]
    assert [found["EMPTIED"][name] for name in ("first_seq", "last_seq", "stream_last_seq")] == [0, 0, 3]
