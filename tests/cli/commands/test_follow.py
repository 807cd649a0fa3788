"""`follow` as people type it: what it refuses at once, what it prints, and when it ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.screen import Screen
from tests.cli.typed import Shop, Typed, in_terminal
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.test_follow_restarts import make, publish

pytestmark = pytest.mark.nats

Type = Callable[..., Typed]


def test_it_says_what_it_has_done_when_its_time_is_over(shop: Shop, typed: Type, tmp_path: Path) -> None:
    done = typed(
        "follow", "ORDERS", "-s", shop.url, "-r", tmp_path / "repo", "--for", "1ms", "-v", "--log-format", "json"
    )
    assert done.code == 0
    summary, newest = done.out.splitlines()
    assert summary.startswith("1 backup of 1 stream, 1,000 new messages, ")
    assert re.search(r"; never more than [0-9.]+ s behind, 0 outages$", summary)
    (told,) = [line for line in done.log if "backup" in line]
    assert newest == f"newest: {told['backup']}, complete"
    assert told["level"] == "info" and told["messages"] == 1000 and told["result"] == "complete"
    again = typed("follow", "ORDERS", "-s", shop.url, "-r", tmp_path / "repo", "--for", "1ms", "--json")
    assert again.document["messages"] == again.document["stored_bytes_added"] == 0
    (listed,) = json.loads(typed("list", "--last", "1", "-r", tmp_path / "repo", "--json").out)["backups"]
    assert listed["tags"] == {"follow": "true"} and listed["messages"] == 1000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["NOT_THERE"], "no stream matches NOT_THERE"),
        (["--for", "0"], "--for 0 would follow nothing"),
        (["--every", "5"], "--every: not a duration: '5'"),
        (["--every", "0s"], "--every 0s is less than 500ms"),
        (["--every-bytes", "much"], "--every-bytes: not a size: 'much'"),
        (["--every-bytes", "64"], "--every-bytes 64 is less than 1.00 MiB"),
        (["--at-least-every", "0"], "--at-least-every 0 is less than 1s"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: list[str], said: str, shop: Shop, typed: Type, tmp_path: Path
) -> None:
    done = typed("follow", *arguments, "-s", shop.url, "-r", tmp_path / "repo")
    assert done.code == 2 and said in done.err


def test_without_a_server_it_ends_as_a_backup_does(typed: Type, tmp_path: Path) -> None:
    assert typed("follow", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "repo").code == 20


_LIVE = re.compile(r"\rfollow (\d+) streams?: (\d+) s behind, last backup (\d+) s ago, (.*?); (.*?), .*? stored")


def test_on_a_terminal_one_line_says_how_it_stands(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    server = nats_server(NEWEST)
    asyncio.run(make(server.url, "A", "B"))
    asyncio.run(publish(server.url, "A.1", "B.1", "B.2"))

    def go_on(_process: int) -> None:
        server.kill()
        server.start()
        asyncio.run(publish(server.url, "A.2", "A.3"))

    line = ("follow", "-s", server.url, "-r", tmp_path / "repo", "--for", "9s")
    done = in_terminal(*line, when_drawn=("3 messages", go_on))
    assert done.code == 0, done
    drawn = _LIVE.findall(done.err)
    assert 3 <= len(drawn) <= 16, done.err  # once a second, and again below each line of the log
    assert {streams for streams, *_ in drawn} == {"2"}
    assert drawn[0][-2:] == ("0 outages", "3 messages") and drawn[-1][-1] == "5 messages", done.err
    assert drawn[-1][-2] != "0 outages"
    # What is logged stands above it, whole, and nothing of the line stays.
    screen = Screen()
    screen.feed(done.err)
    making, *lost = screen.lines
    assert making.endswith(": creating one") and lost and all(line.startswith("warning: ") for line in lost)
    assert done.out.splitlines()[0].endswith(drawn[-1][-2])


@pytest.mark.parametrize("option", ["-q", "--json", "--no-progress", "--log-format=json"])
def test_who_wants_no_line_gets_none(option: str, shop: Shop, tmp_path: Path) -> None:
    done = in_terminal("follow", "ORDERS", option, "-s", shop.url, "-r", tmp_path / "repo", "--for", "1s")
    assert done.code == 0 and "\r" not in done.err.replace("\r\n", "") and "behind" not in done.err


def test_a_narrow_terminal_has_the_most_important(shop: Shop, tmp_path: Path) -> None:
    line = ("follow", "ORDERS", "-s", shop.url, "-r", tmp_path / "repo", "--for", "4s")
    done = in_terminal(*line, columns=40)
    drawn = done.err.split("\r")
    assert any(re.fullmatch(r"follow 1 stream: \d s behind, last b[acku]+…", text) for text in drawn), drawn
