"""Messages of ordinary streams on real servers, compared one by one with what was published."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.api import JSON, PATIENCE_SECONDS, headers
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.putting_back.scenes import (
    actions,
    back_up,
    delete,
    held,
    is_copy_of,
    last_sequence,
    lines,
    lose,
    make,
    of_every_kind,
    publish,
    put_back,
    run,
)

pytestmark = pytest.mark.nats

Starter = Callable[..., NatsServer]
SHORT_WINDOW = 100_000_000  # of duplicates: forgotten before the command has started


@pytest.mark.parametrize(("count", "version"), [(200, ENDS[0]), (1500, NEWEST)])  # asked for one by one; read in a row
def test_what_is_missing_comes_back_once(nats_server: Starter, tmp_path: Path, version: str, count: int) -> None:
    chance, repo = random.Random(f"{version} {count}"), tmp_path / "repo"
    server = nats_server(version)

    def all_back() -> JSON:
        return put_back(server.url, repo, "latest", "ORDERS", "--subject", ">").ok().document

    run(make(server.url, "ORDERS", duplicate_window=SHORT_WINDOW))
    run(publish(server.url, of_every_kind(chance, "ORDERS", count)))
    published = run(held(server.url, "ORDERS"))
    back_up(server.url, repo)
    gone = set(chance.sample(range(1, count + 1), count // 3))
    run(delete(server.url, "ORDERS", sorted(gone)))
    run(publish(server.url, [("orders.later", None, b"later")]))

    made = all_back()
    now = run(held(server.url, "ORDERS"))
    kept = [one for one in published if one.sequence not in gone]
    missing = [one for one in published if one.sequence in gone]
    assert now[: len(kept)] == kept
    copies = now[len(kept) + 1 :]
    assert (made["written"], made["there"]) == (len(missing), len(kept))
    assert all(is_copy_of(original, copy, "ORDERS") for original, copy in zip(missing, copies, strict=True))
    written = {row["sequence"]: row["as_sequence"] for row in made["messages"] if row["action"] == "written"}
    assert written == {one.sequence: copy.sequence for one, copy in zip(missing, copies, strict=True)}

    again = all_back()
    assert (again["written"], again["there"], again["result"]) == (0, count, "nothing to write")
    assert run(held(server.url, "ORDERS")) == now

    # A later backup has the copies, and they stay what they are.
    back_up(server.url, repo)
    run(delete(server.url, "ORDERS", [copies[0].sequence]))
    assert all_back()["written"] == 1
    assert is_copy_of(missing[0], run(held(server.url, "ORDERS"))[-1], "ORDERS")


def test_messages_are_chosen_by_all_conditions(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    lose(server.url, repo, "S", [(f"s.{'ab'[n % 2]}", None, b"%d" % n) for n in range(20)])
    for arguments, expected in (
        (["--sequence", "3-5", "--sequence", "9"], {3, 4, 5, 9}),
        (["--sequence", "3-5", "--subject", "s.a"], {3, 5}),
        (["--since", "18", "--until", "19"], {18, 19}),
        (["--subject", "s.b", "--sequence", "1-4", "--since", "3"], {4}),
        (["--payload-match", "^[0-9]$", "--exclude-subject", "s.b", "--last-per-subject", "1"], {9}),
    ):
        found = put_back(server.url, repo, "latest", "S", "--dry-run", *arguments).ok()
        assert actions(found) == dict.fromkeys(expected, "write")
    assert run(last_sequence(server.url, "S")) == 20


def test_of_messages_with_one_id_one_is_written_in_a_run(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(make(server.url, "IDS", duplicate_window=SHORT_WINDOW))
    for n in range(3):
        while "duplicate" in run(publish(server.url, [("ids.a", headers(("Nats-Msg-Id", "x")), b"same%d" % n)]))[0]:
            pass
    run(publish(server.url, [("ids.a", headers(("nats-msg-id", "x")), b"no id of a server"), ("ids.b", None, b"none")]))
    back_up(server.url, repo)
    run(delete(server.url, "IDS", range(1, 6)))
    chosen = ("latest", "IDS", "--subject", ">")
    planned = put_back(server.url, repo, *chosen, "--dry-run")
    expected = {1: "write", 2: "duplicate", 3: "duplicate", 4: "write", 5: "write"}
    assert (planned.code, actions(planned), planned.document["duplicate"]) == (3, expected, 2)
    codes = [put_back(server.url, repo, *chosen).code]
    while codes[-1] == 3:
        codes.append(put_back(server.url, repo, *chosen).code)
    assert codes[-1] == 0 and len(codes) >= 3
    data = [one.data for one in run(held(server.url, "IDS")) if one.subject == b"ids.a"]
    assert data == [b"same0", b"no id of a server", b"same1", b"same2"]


def test_a_run_that_fails_midway_says_how_far_it_came_and_the_next_one_goes_on(
    nats_server: Starter, tmp_path: Path
) -> None:
    users = '{ user: all, password: x }, { user: some, password: x, permissions: { publish: { deny: ["s.b"] } } }'
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, users: [ {users} ] }} }}")
    everything, some = (server.url.replace("//", f"//{user}:x@") for user in ("all", "some"))
    messages = [*(("s.a", None, b"%d" % n) for n in range(100)), ("s.b", None, b"b")]
    lose(everything, tmp_path / "repo", "S", messages)
    failed = put_back(some, tmp_path / "repo", "latest", "S", "--subject", ">")
    message = failed.document["error"]["message"]
    assert failed.code == 20 and "s.b" in message and "100 of 101 messages written" in message
    rest = put_back(everything, tmp_path / "repo", "latest", "S", "--subject", ">").ok()
    assert rest.document["written"] == 1 and rest.document["there"] == 100
    assert [one.data for one in run(held(everything, "S"))] == [data for _, _, data in messages]


def test_a_stream_restored_in_place_still_has_its_messages(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    run(make(server.url, "S"))
    run(publish(server.url, [("s.a", None, b"%d" % n) for n in range(50)]))
    back_up(server.url, repo)
    back = ("-s", server.url, "-r", repo)
    run(delete(server.url, "S", [3]))
    put_back(server.url, repo, "latest", "S", "--sequence", "3").ok()
    jsbackup("restore", "latest", "S", "--until", "10", "--if-exists", "replace", "--replace-with-part", *back).ok()
    made = put_back(server.url, repo, "latest", "S", "--subject", ">").ok()
    assert actions(made) == {n: "there" if n <= 10 else "written" for n in range(1, 51)}
    assert [one.data for one in run(held(server.url, "S"))] == [b"%d" % n for n in range(50)]


def test_headers_that_act_do_not_act_again(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    acting = [
        ("s.a", headers(("Nats-Expected-Last-Sequence", "0"), ("Nats-Expected-Stream", "S"), ("K", "1")), b"1"),
        ("s.b", headers(("Nats-Expected-Last-Subject-Sequence", "0"), ("K", "2")), b"2"),
        ("s.c", headers(("Nats-Rollup", "sub"), ("K", "3")), b"3"),
        ("s.d", headers(("Nats-Msg-Id", "d")), b"4"),
        ("s.d", headers(("Nats-Expected-Last-Msg-Id", "d"), ("K", "5")), b"5"),
    ]
    published = lose(server.url, repo, "S", acting, allow_rollup_hdrs=True, duplicate_window=SHORT_WINDOW)
    assert len(published) == 5
    run(publish(server.url, [(f"s.{one}", None, b"newer") for one in "abcd"]))
    put_back(server.url, repo, "latest", "S", "--subject", ">").ok()
    now = run(held(server.url, "S"))
    assert [one.data for one in now[:4]] == [b"newer"] * 4  # a rollup would have removed one
    for original, copy in zip(published, now[4:], strict=True):
        assert is_copy_of(original, copy, "S")
        names = [one.lower() for one in lines(copy.header_block)]
        assert not any(one.startswith((b"nats-rollup", b"nats-expected-last")) for one in names)


def test_ctrl_c_says_how_far_it_came_and_the_next_run_goes_on(nats_server: Starter, tmp_path: Path) -> None:
    server, repo, count = nats_server(NEWEST), tmp_path / "repo", 4000
    lose(server.url, repo, "S", [("s.a", None, b"%d" % n) for n in range(count)])
    line = command_line("put-back", "latest", "S", "--subject", ">", "-s", server.url, "-r", repo)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    while run(last_sequence(server.url, "S")) < count + 200:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130 and "messages were written" in said and "Traceback" not in said
    began = len(run(held(server.url, "S")))
    assert 200 <= began < count
    rest = put_back(server.url, repo, "latest", "S", "--subject", ">").ok().document
    assert (rest["there"], rest["written"]) == (began, count - began)
    assert [one.data for one in run(held(server.url, "S"))] == [b"%d" % n for n in range(count)]


def test_hostile_subjects_and_headers_are_shown_safely(nats_server: Starter, tmp_path: Path) -> None:
    server, repo = nats_server(NEWEST), tmp_path / "repo"
    ugly = [("s.\x1b[31m\x07", b"NATS/1.0\r\nA\x1b: \x07\r\n\r\n", b"\x00"), ("s.\u202e<b>", None, b"2")]
    plain = ("s.plain", b"NATS/1.0\r\nno colon\r\n: no name\r\n\r\n", b"3")
    published = lose(server.url, repo, "S", [*ugly, plain])
    line = command_line("put-back", "latest", "S", "--subject", ">", "-s", server.url, "-r", repo)
    shown = subprocess.run(line, capture_output=True, text=True, env=environment(), check=True).stdout
    assert "\x1b" not in shown and "\x07" not in shown and "\u202e" not in shown
    for original, copy in zip(published, run(held(server.url, "S")), strict=True):
        assert is_copy_of(original, copy, "S")
