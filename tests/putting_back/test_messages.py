"""Messages of ordinary streams on real servers, compared one by one with what was published."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import call, connected, headers
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.scenes import (
    VERSIONS,
    actions,
    back_up,
    delete,
    held,
    is_copy_of,
    last_sequence,
    lines,
    make,
    of_every_kind,
    publish,
    put_back,
    run,
)

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]
SHORT_WINDOW = 100_000_000  # of duplicates: forgotten before the command has started


@pytest.mark.by_turns
@pytest.mark.parametrize(  # asked for one by one, and read in a row
    ("count", "version"), [*((200, version) for version in VERSIONS), (1500, VERSIONS[0]), (1500, NEWEST)]
)
def test_what_is_missing_comes_back_once(nats_server: Starter, tmp_path: Path, version: str, count: int) -> None:
    chance = random.Random(f"{version} {count}")
    server = nats_server(version)
    run(make(server.url, "ORDERS", duplicate_window=SHORT_WINDOW))
    run(publish(server.url, of_every_kind(chance, "ORDERS", count)))
    published = run(held(server.url, "ORDERS"))
    assert len(published) == count
    back_up(server.url, tmp_path / "repo")
    gone = set(chance.sample(range(1, count + 1), count // 3))
    run(delete(server.url, "ORDERS", sorted(gone)))
    run(publish(server.url, [("orders.later", None, b"later")]))

    made = put_back(server.url, tmp_path / "repo", "latest", "ORDERS", "--subject", ">").ok().document
    now = run(held(server.url, "ORDERS"))
    kept = [one for one in published if one.sequence not in gone]
    assert now[: len(kept)] == kept
    copies = now[len(kept) + 1 :]
    missing = [one for one in published if one.sequence in gone]
    assert len(copies) == len(missing) == made["written"]
    for original, copy in zip(missing, copies, strict=True):
        assert is_copy_of(original, copy, "ORDERS"), (original, copy)
    assert made["there"] == len(kept)
    written = {row["sequence"]: row["as_sequence"] for row in made["messages"] if row["action"] == "written"}
    assert written == {one.sequence: copy.sequence for one, copy in zip(missing, copies, strict=True)}

    again = put_back(server.url, tmp_path / "repo", "latest", "ORDERS", "--subject", ">").ok().document
    assert (again["written"], again["there"], again["result"]) == (0, count, "nothing to write")
    assert run(held(server.url, "ORDERS")) == now

    # A later backup has the copies, and they stay what they are.
    back_up(server.url, tmp_path / "repo")
    run(delete(server.url, "ORDERS", [copies[0].sequence]))
    third = put_back(server.url, tmp_path / "repo", "latest", "ORDERS", "--subject", ">").ok().document
    assert third["written"] == 1
    assert is_copy_of(missing[0], run(held(server.url, "ORDERS"))[-1], "ORDERS")


def test_messages_are_chosen_by_all_conditions(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server(NEWEST)
    run(make(server.url, "S", subjects=["s.>"]))
    run(publish(server.url, [(f"s.{'ab'[n % 2]}", None, b"%d" % n) for n in range(20)]))
    back_up(server.url, tmp_path / "repo")

    async def purge() -> None:
        async with connected(server.url) as nc:
            await call(nc, "STREAM.PURGE.S")

    run(purge())
    cases = [
        (["--sequence", "3"], {3}),
        (["--sequence", "3-5", "--sequence", "9"], {3, 4, 5, 9}),
        (["--sequence", "3-5", "--subject", "s.a"], {3, 5}),
        (["--since", "18", "--until", "19"], {18, 19}),
        (["--subject", "s.b", "--sequence", "1-4", "--since", "3"], {4}),
    ]
    for arguments, expected in cases:
        found = put_back(server.url, tmp_path / "repo", "latest", "S", "--dry-run", *arguments).ok()
        assert actions(found) == dict.fromkeys(expected, "write")
    assert run(last_sequence(server.url, "S")) == 20


def test_a_run_that_fails_midway_says_how_far_it_came_and_the_next_one_goes_on(
    nats_server: Starter, tmp_path: Path
) -> None:
    users = '{ user: all, password: x }, { user: some, password: x, permissions: { publish: { deny: ["s.b"] } } }'
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, users: [ {users} ] }} }}")
    everything, some = (server.url.replace("//", f"//{user}:x@") for user in ("all", "some"))
    run(make(everything, "S"))
    run(publish(everything, [("s.a", None, b"%d" % n) for n in range(100)] + [("s.b", None, b"b")]))
    back_up(everything, tmp_path / "repo")
    run(delete(everything, "S", range(1, 102)))
    failed = put_back(some, tmp_path / "repo", "latest", "S", "--subject", ">")
    assert failed.code == 20
    error = failed.document["error"]
    assert "s.b" in error["message"] and "100 of 101 messages written" in error["message"]
    assert "goes on" in error["hint"]
    rest = put_back(everything, tmp_path / "repo", "latest", "S", "--subject", ">").ok()
    assert rest.document["written"] == 1 and rest.document["there"] == 100
    assert sorted(one.data for one in run(held(everything, "S"))) == sorted([b"%d" % n for n in range(100)] + [b"b"])


def test_another_stream_gets_all_of_them_once(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server(NEWEST)
    run(make(server.url, "S", subjects=["s.a"]))
    run(publish(server.url, [("s.a", None, b"%d" % n) for n in range(5)]))
    back_up(server.url, tmp_path / "repo")

    async def swap() -> None:
        async with connected(server.url) as nc:
            await call(nc, "STREAM.DELETE.S")
            await call(nc, "STREAM.CREATE.T", {"name": "T", "subjects": ["s.>"]})

    run(swap())
    for written in (5, 0):
        made = put_back(server.url, tmp_path / "repo", "latest", "S", "--subject", ">", "--to", "T").ok()
        assert made.document["written"] == written
    assert [one.data for one in run(held(server.url, "T"))] == [b"%d" % n for n in range(5)]


def test_a_stream_restored_in_place_still_has_its_messages(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server(NEWEST)
    run(make(server.url, "S"))
    run(publish(server.url, [("s.a", None, b"%d" % n) for n in range(50)]))
    back_up(server.url, tmp_path / "repo")
    back = ("-s", server.url, "-r", tmp_path / "repo")
    run(delete(server.url, "S", [3]))
    put_back(server.url, tmp_path / "repo", "latest", "S", "--sequence", "3").ok()
    jsbackup("restore", "latest", "S", "--until", "10", "--if-exists", "replace", "--replace-with-part", *back).ok()
    made = put_back(server.url, tmp_path / "repo", "latest", "S", "--subject", ">").ok()
    assert actions(made) == {n: "there" if n <= 10 else "written" for n in range(1, 51)}
    assert [one.data for one in run(held(server.url, "S"))] == [b"%d" % n for n in range(50)]


@pytest.mark.parametrize("version", VERSIONS)
def test_headers_that_act_do_not_act_again(nats_server: Starter, tmp_path: Path, version: str) -> None:
    server = nats_server(version)
    run(make(server.url, "S", allow_rollup_hdrs=True, duplicate_window=SHORT_WINDOW))
    acks = run(
        publish(
            server.url,
            [
                ("s.a", headers(("Nats-Expected-Last-Sequence", "0"), ("Nats-Expected-Stream", "S"), ("K", "1")), b"1"),
                ("s.b", headers(("Nats-Expected-Last-Subject-Sequence", "0"), ("K", "2")), b"2"),
                ("s.c", headers(("Nats-Rollup", "sub"), ("K", "3")), b"3"),
                ("s.d", headers(("Nats-Msg-Id", "d")), b"4"),
                ("s.d", headers(("Nats-Expected-Last-Msg-Id", "d"), ("K", "5")), b"5"),
            ],
        )
    )
    assert all("error" not in ack for ack in acks)
    published = run(held(server.url, "S"))
    back_up(server.url, tmp_path / "repo")
    run(delete(server.url, "S", range(1, 6)))
    run(publish(server.url, [(f"s.{one}", None, b"newer") for one in "abcd"]))
    put_back(server.url, tmp_path / "repo", "latest", "S", "--subject", ">").ok()
    now = run(held(server.url, "S"))
    assert [one.data for one in now[:4]] == [b"newer"] * 4  # a rollup would have removed one
    for original, copy in zip(published, now[4:], strict=True):
        assert is_copy_of(original, copy, "S")
        assert not any(
            one.lower().startswith((b"nats-rollup", b"nats-expected-last")) for one in lines(copy.header_block)
        )


@pytest.mark.by_turns
def test_ctrl_c_says_how_far_it_came_and_the_next_run_goes_on(nats_server: Starter, tmp_path: Path) -> None:
    server, count = nats_server(NEWEST), 12_000
    run(make(server.url, "S"))
    run(publish(server.url, [("s.a", None, b"%d" % n) for n in range(count)]))
    back_up(server.url, tmp_path / "repo")

    async def purge() -> None:
        async with connected(server.url) as nc:
            await call(nc, "STREAM.PURGE.S")

    run(purge())
    line = command_line("put-back", "latest", "S", "--subject", ">", "-s", server.url, "-r", tmp_path / "repo")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    while run(last_sequence(server.url, "S")) < count + 500:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "messages were written" in said and "Traceback" not in said
    began = len(run(held(server.url, "S")))
    assert 500 <= began < count
    rest = put_back(server.url, tmp_path / "repo", "latest", "S", "--subject", ">").ok().document
    assert (rest["there"], rest["written"]) == (began, count - began)
    assert [one.data for one in run(held(server.url, "S"))] == [b"%d" % n for n in range(count)]


def test_hostile_subjects_and_headers_are_shown_safely(nats_server: Starter, tmp_path: Path) -> None:
    server = nats_server(NEWEST)
    run(make(server.url, "S"))
    ugly = [("s.\x1b[31m\x07", b"NATS/1.0\r\nA\x1b: \x07\r\n\r\n", b"\x00"), ("s.\u202e<b>", None, b"2")]
    run(publish(server.url, [*ugly, ("s.plain", b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\n", b"3")]))
    published = run(held(server.url, "S"))
    back_up(server.url, tmp_path / "repo")
    run(delete(server.url, "S", [1, 2, 3]))
    line = command_line("put-back", "latest", "S", "--subject", ">", "-s", server.url, "-r", tmp_path / "repo")
    shown = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True).stdout
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
    for original, copy in zip(published, run(held(server.url, "S")), strict=True):
        assert is_copy_of(original, copy, "S")
