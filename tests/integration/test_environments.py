"""Targets that differ: encrypted stores, small messages, streams that are there already, unknown archives."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jsbackup.cli.main import run
from jsbackup.errors import UnknownArchiveFormat
from jsbackup.formats.archive.archive import ArchiveDecoder
from tests.harness.api import JSON, PATIENCE_SECONDS, call, connected
from tests.harness.awkward import LARGE, keys
from tests.harness.clusters import NatsCluster
from tests.harness.commands import Ran, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer, Port, wait_until
from tests.integration.witness import STATE_FIELDS, announced, back_up, fidelities, filled, restore, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Start = Callable[..., NatsServer]
KEY = "a key for the disk, not for the wire"


def _ask(url: str, subject: str, request: JSON | None = None) -> JSON:
    async def run_it() -> JSON:
        async with connected(url) as nc:
            return await call(nc, subject, request)

    return asyncio.run(run_it())


def _insist(url: str, subject: str, request: JSON) -> None:
    """The same for what may be asked twice: a cluster of a busy machine loses a request now and then (measured:
    2.15)."""

    async def run_it() -> None:
        async with connected(url) as nc, asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await call(nc, subject, request)
                        return

    asyncio.run(run_it())


def _publish(url: str, subject: str, data: bytes) -> None:
    async def run_it() -> None:
        async with connected(url) as nc:
            await nc.request(subject, data, timeout=PATIENCE_SECONDS)

    asyncio.run(run_it())


# ---------------------------------------------------------------------------------- encrypted stores, small messages


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("source", "source_cipher", "target", "target_cipher"),
    [("2.10.26", "aes", "2.15.1", "chacha"), ("2.15.1", "chacha", "2.14.6", "aes")],
)
def test_stores_encrypted_at_rest_are_backed_up_and_restored_to(
    source: str, source_cipher: str, target: str, target_cipher: str, nats_server: Start, tmp_path: Path
) -> None:
    streams = ("GAPS", "COMPRESSED", "PULL", "WORKQUEUE", "KV", "TTL", "DELETED_TAIL", "EMPTIED", "UNICODE")
    origin = nats_server(source, key=KEY, cipher=source_cipher)
    before = filled(origin.url, source, streams)
    assert not any(b"gaps.0" in block.read_bytes() for block in origin.store_directory.rglob("*.blk"))
    back_up(origin.url, tmp_path / "repo")
    server = nats_server(target, key=KEY, cipher=target_cipher)
    restored = restore(server.url, tmp_path / "repo")
    assert not any(b"gaps.0" in block.read_bytes() for block in server.store_directory.rglob("*.blk"))
    assert compare(before, seen(server.url), ignore=announced(restored)) == []
    # Also what is on the disk, in the eyes of the server.
    server.restart()
    ignore = [*announced(restored), "state.first_ts"] if source == "2.10.26" else announced(restored)
    assert compare(before, seen(server.url), ignore=ignore) == []


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "limit"), [("2.10.26", 1024), ("2.12.8", 4096), ("2.15.1", 1024)])
def test_a_server_that_takes_small_messages_only_is_backed_up_and_restored_to(
    version: str, limit: int, nats_server: Start, tmp_path: Path
) -> None:
    streams = ("GAPS", "PULL", "WORKQUEUE", "INTEREST")
    origin = nats_server(version, max_payload_bytes=limit)
    before = filled(origin.url, version, streams)
    back_up(origin.url, tmp_path / "repo")
    server = nats_server(version, max_payload_bytes=limit)
    restore(server.url, tmp_path / "repo")
    assert compare(before, seen(server.url)) == []


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.10.26", "2.15.1"])
def test_an_account_that_may_send_small_messages_only_is_restored_to(
    version: str, nats_server: Start, tmp_path: Path
) -> None:
    origin = nats_server(version)
    before = filled(origin.url, version, ["GAPS", "COMPRESSED", "PULL"])
    back_up(origin.url, tmp_path / "repo")
    config = (
        "accounts { SMALL { jetstream: enabled, limits { max_payload: 2048 }, users: [ { user: u, password: p } ] } }"
    )
    server = nats_server(version, config=config)
    url = f"nats://u:p@127.0.0.1:{server.port}"
    restore(url, tmp_path / "repo")
    assert compare(before, seen(url)) == []
    back_up(url, tmp_path / "again")


# ---------------------------------------------------------------------------------------- what is at the target already


@pytest.mark.by_turns
@pytest.mark.parametrize("version", ["2.10.26", "2.15.1"])
def test_streams_that_are_there_are_refused_left_alone_or_replaced_as_one_says(
    version: str, nats_server: Start, tmp_path: Path
) -> None:
    server = nats_server(version)
    # Large ones are read seven times here, and are refused or replaced as others are.
    before = filled(server.url, version, [key for key in keys(version) if key not in LARGE])
    back_up(server.url, tmp_path / "repo")
    _ask(server.url, "STREAM.PURGE.GAPS")
    _ask(server.url, "STREAM.DELETE.WORKQUEUE")
    _publish(server.url, "pull.late", b"after the backup")
    changed = seen(server.url)
    arguments = ("restore", "latest", "-s", server.url, "-r", tmp_path / "repo")

    refused = jsbackup(*arguments)
    assert refused.code == 16
    assert (
        "GAPS: exists at the target" in refused.document["error"]["message"]
        or "more" in (refused.document["error"]["message"])
    )
    assert compare(changed, seen(server.url)) == []

    skipped = jsbackup(*arguments, "--if-exists", "skip").ok()
    assert [stream["name"] for stream in skipped.document["streams"]] == ["WORKQUEUE"]
    assert {stream["name"] for stream in skipped.document["skipped"]} == before.keys() - {"WORKQUEUE"}
    assert compare({**changed, "WORKQUEUE": before["WORKQUEUE"]}, seen(server.url)) == []

    replaced = restore(server.url, tmp_path / "repo", "--if-exists", "replace", "--replace-with-part")
    after = seen(server.url)
    assert [name for name in after if "-jsbackup-" in name] == []
    ignore = [*announced(replaced), "FIRST_SEQ:config.first_seq"]
    if version == "2.10.26":
        ignore.append("state.first_ts")
    assert compare(before, after, ignore=ignore) == []


def test_a_stream_whose_replacement_fails_stays_as_it_was(nats_server: Start, tmp_path: Path) -> None:
    origin = nats_server("2.12.8")
    filled(origin.url, "2.12.8", ["GAPS"])
    back_up(origin.url, tmp_path / "repo")
    # What the server itself has room for is in no account's limits, so that no plan can know.
    server = nats_server("2.12.8", max_file_bytes=1024)
    _ask(server.url, "STREAM.CREATE.GAPS", {"name": "GAPS", "subjects": ["gaps.*"]})
    _publish(server.url, "gaps.new", b"small enough")
    before = seen(server.url)
    failed = jsbackup(
        "restore", "latest", "-s", server.url, "-r", tmp_path / "repo", "--if-exists", "replace", "--replace-with-part"
    )
    assert failed.code != 0 and "insufficient storage resources" in failed.document["failed"][0]["reason"]
    assert compare(before, seen(server.url)) == []


def test_a_stream_is_not_replaced_by_a_configuration_alone(nats_server: Start, tmp_path: Path) -> None:
    server = nats_server("2.15.1")
    before = filled(server.url, "2.15.1", ["GAPS", "EMPTIED"])
    jsbackup("backup", "--config-only", "-s", server.url, "-r", tmp_path / "repo").ok()
    arguments = ("restore", "latest", "-s", server.url, "-r", tmp_path / "repo", "--if-exists", "replace")
    refused = jsbackup(*arguments)
    assert refused.code == 15
    message = refused.document["error"]["message"]
    assert "GAPS: is backed up without messages and would replace a stream that has 110" in message
    assert "EMPTIED" not in message
    assert compare(before, seen(server.url)) == []
    jsbackup(*arguments, "EMPTIED").ok()


def test_leftovers_of_an_interrupted_restore_are_taken_for_what_they_are(nats_server: Start, tmp_path: Path) -> None:
    server = nats_server("2.15.1")
    before = filled(server.url, "2.15.1", ["GAPS"])
    back_up(server.url, tmp_path / "repo")
    _ask(server.url, "STREAM.DELETE.GAPS")
    # A restore was killed in the middle of it, another one in the middle of a replacement.
    half = {"name": "GAPS", "subjects": ["gaps.>"], "metadata": {"jsbackup.restoring": "20261121T014500Z-000001"}}
    _ask(server.url, "STREAM.CREATE.GAPS", half)
    copy = {"name": "GAPS-jsbackup-0123abcd", "subjects": ["jsbackup.staged.0123abcd"]}
    _ask(server.url, f"STREAM.CREATE.{copy['name']}", copy)
    restored = restore(server.url, tmp_path / "repo")
    (stream,) = restored.document["streams"]
    assert [note for note in stream["notes"] if note.startswith("removed the copy GAPS-jsbackup-0123abcd")]
    assert compare(before, seen(server.url)) == []


def test_subjects_that_another_stream_has_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with NatsServer("2.12.8") as origin:
        filled(origin.url, "2.12.8", ["GAPS", "KV"])
        back_up(origin.url, tmp_path / "repo")
    with NatsServer("2.15.1") as server:
        _is_refused_for_overlap(server.url, tmp_path / "repo")
    # Here the server would not notice: two streams would listen to the same subjects from then on.
    with NatsCluster("2.15.1") as cluster:
        _is_refused_for_overlap(cluster.url, tmp_path / "repo")


def _is_refused_for_overlap(url: str, repository: Path) -> None:
    _insist(url, "STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["x", "gaps.*.y"], "num_replicas": 1})
    other = seen(url)
    refused = jsbackup("restore", "latest", "-s", url, "-r", repository)
    assert refused.code == 16
    message = refused.document["error"]["message"]
    assert "stream GAPS: its subject gaps.> overlaps with gaps.*.y of stream OTHER at the target" in message
    assert compare(other, seen(url)) == []
    restored = restore(url, repository, "--exclude", "GAPS")
    assert [stream["name"] for stream in restored.document["streams"]] == ["KV_history"]


def test_a_name_that_a_failed_restore_holds_in_a_cluster_is_freed_when_one_says_so(tmp_path: Path) -> None:
    with NatsCluster("2.12.8") as cluster:
        before = filled(cluster.url, "2.12.8", ["GAPS"], replicas=3)
        back_up(cluster.url, tmp_path / "repo")
        _ask(cluster.url, "STREAM.DELETE.GAPS")
        # A restore that nobody goes on with: its client was killed.
        config = {"name": "GAPS", "subjects": ["gaps.>"], "retention": "limits", "storage": "file", "num_replicas": 1}
        moment = "2026-11-21T01:45:00Z"
        state: JSON = {"messages": 0, "bytes": 0, "consumer_count": 0}
        state |= {"first_seq": 0, "last_seq": 0, "first_ts": moment, "last_ts": moment}
        _ask(cluster.url, "STREAM.RESTORE.GAPS", {"config": config, "state": state})
        refused = jsbackup("restore", "latest", "-s", cluster.url, "-r", tmp_path / "repo")
        assert refused.code == 16
        assert "GAPS: has a name that another restore uses" in refused.document["error"]["message"]
        skipped = jsbackup("restore", "latest", "-s", cluster.url, "-r", tmp_path / "repo", "--if-exists", "skip").ok()
        assert [stream["name"] for stream in skipped.document["skipped"]] == ["GAPS"]
        restore(cluster.url, tmp_path / "repo", "--if-exists", "replace")
        assert compare(before, seen(cluster.url)) == []


# ------------------------------------------------------------------------------------------------- what one asks for


def test_what_cannot_be_meant_is_a_usage_error_and_changes_nothing(nats_server: Start, tmp_path: Path) -> None:
    origin = nats_server("2.14.6")
    filled(origin.url, "2.14.6", ["GAPS", "KV"])
    back = ("-s", origin.url, "-r", tmp_path / "repo")
    assert jsbackup("backup", *back, "NOTHING*").code == 2
    back_up(origin.url, tmp_path / "repo")
    server = nats_server("2.14.6")
    onto = ("-s", server.url, "-r", tmp_path / "repo")
    for arguments, code, text in (
        (("latest", *onto, "GAPS", "NOTHING*"), 2, "has no stream NOTHING*"),
        (("latest", *onto, "gaps.>"), 2, "no stream can be named"),
        (("20200101", *onto), 2, "20200101"),
        (("latest", *onto, "--set", "storage=memory"), 15, "kept in memory"),
        (("latest", *onto, "--set", "GAP?:storage=memory"), 15, "GAPS: is kept in memory"),
        (("latest", *onto, "--set", "GAP:storage=memory"), 2, "no stream to restore is GAP"),
    ):
        refused = jsbackup("restore", *arguments)
        assert (refused.code, text in refused.document["error"]["message"]) == (code, True), refused.out
    assert seen(server.url) == {}


def test_streams_are_chosen_by_names_and_globs(nats_server: Start, tmp_path: Path) -> None:
    origin = nats_server("2.12.8")
    before = filled(origin.url, "2.12.8", ["GAPS", "KV", "KV_TTL", "PULL", "EMPTIED"])
    backup = jsbackup(
        "backup", "-s", origin.url, "-r", tmp_path / "repo", "KV_*", "GAPS", "PULL", "--exclude", "*ttl"
    ).ok()
    assert [stream["name"] for stream in backup.document["streams"]] == ["GAPS", "KV_history", "PULL"]
    server = nats_server("2.12.8")
    restored = restore(server.url, tmp_path / "repo", "*", "--exclude", "KV_*", "--exclude", "NONE", "--allow-nothing")
    assert [stream["name"] for stream in restored.document["streams"]] == ["GAPS", "PULL"]
    assert compare({name: before[name] for name in ("GAPS", "PULL")}, seen(server.url)) == []


@pytest.mark.parametrize("version", ["2.10.26", "2.15.1"])
def test_consumers_come_with_their_state_anew_or_not_at_all(version: str, nats_server: Start, tmp_path: Path) -> None:
    origin = nats_server(version)
    before = filled(origin.url, version, ["PULL", "INTEREST", "WORKQUEUE"])
    back_up(origin.url, tmp_path / "repo")
    for choice, ignore in (
        ("none", ["consumer.*", "state.consumer_count"]),
        ("config", [f"consumer.*.{field}" for field in STATE_FIELDS]),
    ):
        server = nats_server(version)
        restored = restore(server.url, tmp_path / "repo", "--consumers", choice)
        after = seen(server.url)
        assert compare(before, after, ignore=ignore) == []
        told = [fidelity for stream in fidelities(restored).values() for fidelity in stream.values()]
        there = [info for stream in after.values() for info in stream.consumers.values()]
        assert len(told) == len(there) == (0 if choice == "none" else 15)
        assert set(told) <= {"config only"}
        assert {info["delivered"]["consumer_seq"] for info in there} <= {0}


# ------------------------------------------------------------------------------------------ archives of an unknown kind


def _back_up_opaque(
    url: str, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ran:
    """A backup by a tool that does not know the server's archive format yet: in this process, so that it can forget."""

    def nothing_is_known(_decoder: ArchiveDecoder, start: bytes) -> None:
        raise UnknownArchiveFormat(start)

    with monkeypatch.context() as forgetting:
        forgetting.setattr(ArchiveDecoder, "_sniff", nothing_is_known)
        code = run(["backup", "-s", url, "-r", str(repository), "--json", "--no-progress"])
    printed = capsys.readouterr()
    document: dict[str, Any] = json.loads(printed.out)
    return Ran(code, document, printed.out, printed.err)


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("version", "older", "newer"), [("2.12.8", "2.11.11", "2.15.1"), ("2.15.1", "2.14.6", "2.15.1")]
)
def test_an_archive_of_an_unknown_format_is_kept_as_it_is_and_restored_to_the_same_kind_of_server(
    version: str,
    older: str,
    newer: str,
    nats_server: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository = tmp_path / "repo"
    origin = nats_server(version)
    # WORKQUEUE is not among them: 2.15 does not take over all that its own archive says of a consumer.
    before = filled(origin.url, version, ["GAPS", "PULL", "COMPRESSED", "KV", "PAYLOADS"])
    backup = _back_up_opaque(origin.url, repository, monkeypatch, capsys)
    assert backup.code == 3
    assert (backup.document["result"], backup.document["skipped"]) == ("partial", [])
    for stream in backup.document["streams"]:
        assert stream["archive_format"] == "opaque"
        assert any(
            "stored in the server's format, not decoded and not verified" in warning for warning in stream["warnings"]
        )
    jsbackup("verify", "-r", repository, "--level", "objects").ok()

    refusing = nats_server(older)
    refused = jsbackup("restore", "latest", "-s", refusing.url, "-r", repository)
    assert refused.code == 15
    kind = version.rpartition(".")[0]
    assert f"is stored undecoded, as it came from nats-server {kind}, the target is nats-server {older}" in refused.out
    assert seen(refusing.url) == {}

    for target in dict.fromkeys((version, newer)):
        server = nats_server(target)
        for options in (("--consumers", "none"), ("--consumers", "config")):
            refused = jsbackup("restore", "latest", "-s", server.url, "-r", repository, *options)
            assert (refused.code, "is stored undecoded" in refused.out) == (15, True)
        restored = jsbackup("restore", "latest", "-s", server.url, "-r", repository)
        assert restored.code == 3
        for stream in restored.document["streams"]:
            assert (stream["wire"], stream["verified"]) == ("opaque", False)
            held = len(before[stream["name"]].messages)
            assert any(f"the server reports {held} of {held} messages" in note for note in stream["notes"])
        assert compare(before, seen(server.url)) == []
        # What cannot be proved replaces nothing.
        kept = jsbackup("restore", "latest", "-s", server.url, "-r", repository, "--if-exists", "replace")
        assert (kept.code, "cannot be verified before it replaces" in kept.out) == (15, True)
        assert compare(before, seen(server.url)) == []


def test_a_port_where_nobody_listens_is_told_at_once(tmp_path: Path) -> None:
    port = Port()
    try:
        refused = jsbackup(
            "backup", "-s", f"nats://127.0.0.1:{port.number}", "-r", tmp_path / "repo", "--timeout", "10m"
        )
    finally:
        port.release()
    assert refused.code == 20


@pytest.mark.parametrize(("storage", "wire"), [("file", "auto"), ("file", "v2"), ("memory", "auto")])
def test_a_stream_restored_with_what_it_copies_from_does_not_copy_it_again(
    storage: str, wire: str, nats_server: Start, tmp_path: Path
) -> None:
    server = nats_server("2.15.1")
    for name, more in (("ORIGIN", {"subjects": ["origin.>"]}), ("COPY", {"sources": [{"name": "ORIGIN"}]})):
        _ask(server.url, f"STREAM.CREATE.{name}", {"name": name, "storage": storage, **more})
    for number in range(5):
        _publish(server.url, "origin.x", b"%d" % number)

    def copied() -> list[str]:
        messages = _ask(server.url, "STREAM.INFO.COPY")["state"]["messages"]
        return [_ask(server.url, "STREAM.MSG.GET.COPY", {"seq": n + 1})["message"]["data"] for n in range(messages)]

    wait_until(lambda: len(copied()) == 5, "all to be copied", server)
    back_up(server.url, tmp_path / "repo")
    before = copied()
    for name in ("COPY", "ORIGIN"):
        _ask(server.url, f"STREAM.DELETE.{name}")
    notes = restore(server.url, tmp_path / "repo", wire=wire).document["streams"][0]["notes"]
    assert any("would be copied again" in note for note in notes) == (wire == "v2" or storage == "memory")
    # One more comes through, behind whatever would be copied again.
    _publish(server.url, "origin.x", b"new")
    wait_until(lambda: copied()[-1] == base64.b64encode(b"new").decode(), "the new message to be copied", server)
    assert copied()[:-1] == before
