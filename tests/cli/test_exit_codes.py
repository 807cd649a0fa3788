"""Real commands end with the exit codes of the contract, and say it in one sentence or in one JSON object."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import Shop, Typed, in_shell
from tests.harness.commands import command_line, environment
from tests.harness.servers import NEWEST, NatsServer, Port

pytestmark = pytest.mark.nats

Type = Callable[..., Typed]
Line = list[str | Path]


def _both(typed: Type, line: Line, code: int, message: str, **extra: str) -> None:
    """The command fails with `code`, as text on stderr and with --json on stdout."""
    plain = typed(*line, **extra)
    assert (plain.code, plain.out) == (code, ""), plain
    (said,) = [text for text in plain.err.splitlines() if text.startswith("error: ")]
    assert message in said and not said.endswith(".")
    asides = ("error: ", "hint: ", "note: ", "no repository at ", "latest is ", "warning: stream ")
    assert all(text.startswith(asides) for text in plain.err.splitlines())
    told = typed(*line, "--json", **extra)
    assert told.code == code
    assert told.document["error"]["code"] == code
    assert message in told.document["error"]["message"]
    assert "error: " not in told.err and "Traceback" not in told.err + plain.err


def _copy(shop: Shop, to: Path) -> Path:
    shutil.copytree(shop.repo, to)
    return to


def _spoil(repo: Path) -> Path:
    """Flip a byte of a segment of ORDERS."""
    segment = next(repo.glob("segments/ORDERS-*/*.parquet"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.chmod(0o600)
    segment.write_bytes(data)
    return segment


def test_nothing_to_complain_about_is_0(shop: Shop, typed: Type) -> None:
    for line in (["list"], ["show", "latest"], ["verify", "--level", "data"], ["verify", shop.backup]):
        done = typed(*line, "-r", shop.repo)
        assert (done.code, done.err) == (0, "")
        assert shop.backup in done.out


def test_no_repository_is_10(typed: Type, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "letter.txt").write_text("dear")
    for place in (tmp_path / "nothing", tmp_path / "else"):
        for line in (["list"], ["show", "latest"], ["verify"], ["restore", "latest", "-s", "nats://127.0.0.1:1"]):
            _both(typed, [*line, "-r", place], 10, f"no repository at {place}")
    assert not (tmp_path / "nothing").exists()


def test_a_backup_that_is_not_there_is_2(shop: Shop, typed: Type) -> None:
    _both(typed, ["show", "2001", "-r", shop.repo], 2, "2001")
    _both(typed, ["verify", "20010101T000000Z-000000", "-r", shop.repo], 2, "no backup 20010101T000000Z-000000")


def test_a_location_of_an_unknown_kind_is_13(typed: Type) -> None:
    _both(typed, ["list", "-r", "gs://bucket/prefix"], 13, "no store for locations that start with gs:")


def test_damage_is_14(shop: Shop, typed: Type, tmp_path: Path) -> None:
    repo = _copy(shop, tmp_path / "repo")
    segment = _spoil(repo)
    plain = typed("verify", "latest", "-r", repo)
    assert plain.code == 14 and "DAMAGED" in plain.out and segment.name in plain.out
    told = typed("verify", "latest", "-r", repo, "--json")
    assert told.code == 14 and told.document["ok"] is False
    assert [problem["messages"] for problem in told.document["problems"]] == [1000]
    restore: Line = ["restore", "latest", "ORDERS", "-r", repo, "-s", shop.url, "--if-exists", "replace"]
    _both(typed, restore, 14, "nothing was restored: stream ORDERS")
    (repo / "backups" / f"{shop.backup}.json").write_text("{}")
    listed = typed("list", "-r", repo, "--json")
    assert listed.code == 14 and listed.document["backups"] == [] and len(listed.document["damaged"]) == 1
    _both(typed, ["show", "latest", "-r", repo], 14, "")


def test_a_plan_that_cannot_be_met_is_15(shop: Shop, typed: Type) -> None:
    line: Line = ["restore", "latest", "ORDERS", "-r", shop.repo, "-s", shop.url]
    _both(typed, [*line, "--replicas", "3", "--if-exists", "replace"], 15, "has 3 replicas")


def test_a_conflict_at_the_target_is_16(shop: Shop, typed: Type) -> None:
    line: Line = ["restore", "latest", "-r", shop.repo, "-s", shop.url]
    _both(typed, line, 16, "exists at the target")


def test_a_stream_that_is_not_there_is_2(shop: Shop, typed: Type, tmp_path: Path) -> None:
    _both(typed, ["backup", "ORDERZ", "-r", tmp_path / "new", "-s", shop.url], 2, "no stream matches ORDERZ")
    _both(typed, ["restore", "latest", "ORDERZ", "-r", shop.repo, "-s", shop.url], 2, "has no stream ORDERZ")


def test_a_server_that_is_not_there_is_20(shop: Shop, typed: Type) -> None:
    port = Port()
    try:
        line: Line = ["backup", "-r", shop.repo, "-s", f"nats://127.0.0.1:{port.number}"]
        _both(typed, line, 20, f"cannot connect to nats://127.0.0.1:{port.number}: connection refused")
    finally:
        port.release()


@pytest.fixture
def guarded(nats_server: Callable[..., NatsServer]) -> Iterator[NatsServer]:
    users = "A { users: [{user: a, password: right}], jetstream: enabled }, B { users: [{user: b, password: b}] }"
    yield nats_server(NEWEST, config=f"accounts {{ {users} }}")


def test_not_being_let_in_is_20(shop: Shop, typed: Type, guarded: NatsServer) -> None:
    line: Line = ["backup", "-r", shop.repo, "-s", guarded.url]
    _both(typed, line, 20, "authorization violation")
    _both(typed, [*line, "--user", "a", "--password", "wrong"], 20, "authorization violation")
    _both(typed, [*line, "--user", "b", "--password", "b"], 20, "JetStream not enabled for account")


def test_a_server_without_jetstream_is_20(shop: Shop, typed: Type, nats_server: Callable[..., NatsServer]) -> None:
    server = nats_server(NEWEST, jetstream=False)
    _both(typed, ["backup", "-r", shop.repo, "-s", server.url], 20, "nothing answers on $JS.API.INFO")
    _both(typed, ["restore", "latest", "-r", shop.repo, "-s", server.url], 20, "nothing answers on")


def test_a_place_that_cannot_be_written_is_21(shop: Shop, typed: Type, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "repo"):
        _both(typed, ["init", "-r", place], 21, str(place))
        _both(typed, ["backup", "-r", place, "-s", shop.url], 21, str(place))


@pytest.mark.by_turns
def test_a_folder_without_permission_is_21(shop: Shop, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)

    def unprivileged(*line: Any, **extra: str) -> Typed:
        # Without its capabilities root too has to keep to the permissions of a folder.
        drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
        command = [*drop, *command_line(*line)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment(**extra))
        return Typed(done.returncode, done.stdout, done.stderr)

    _both(unprivileged, ["init", "-r", closed], 21, "permission denied")
    _both(unprivileged, ["backup", "-r", closed / "repo", "-s", shop.url], 21, "permission denied")
    secret = _copy(shop, tmp_path / "repo")
    (secret / "jsbackup.json").chmod(0)
    _both(unprivileged, ["list", "-r", secret], 21, "permission denied")


def test_what_is_missing_makes_3(shop: Shop, typed: Type, tmp_path: Path) -> None:
    """Two folders of the nats CLI, one of them damaged."""
    exported = tmp_path / "exported"
    assert (
        typed("export", "latest", "ORDERS", "注文*", "-r", shop.repo, "--format", "nats-cli", "--output", exported).code
        == 0
    )
    archive = next((exported / "ORDERS").glob("*.s2"))
    archive.write_bytes(archive.read_bytes()[:-20])
    told = typed("import", exported, "-r", tmp_path / "new", "--json")
    assert told.code == 3
    assert (told.document["result"], [one["name"] for one in told.document["skipped"]]) == ("partial", ["ORDERS"])
    plain = typed("import", exported, "-r", tmp_path / "new")
    assert plain.code == 3 and "failed: ORDERS: " in plain.out and "is partial" in plain.out


def test_a_full_disk_under_the_output_is_no_success(shop: Shop) -> None:
    with Path("/dev/full").open("wb") as full:
        line = command_line("list", "-r", shop.repo)
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), timeout=240)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: no space left on device\n"


def test_the_console_script_and_the_module_are_the_same(shop: Shop, tmp_path: Path) -> None:
    done = in_shell("list", "-r", str(tmp_path / "none"))
    assert (done.code, done.out) == (10, "")
    assert done.err.startswith(f"error: no repository at {tmp_path}/none\nhint: ")
