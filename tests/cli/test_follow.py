"""`follow` as people type it: what it refuses at once, what it prints, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.typed import Shop, Typed

pytestmark = pytest.mark.nats

Type = Callable[..., Typed]


def test_it_says_what_it_has_done_when_its_time_is_over(shop: Shop, typed: Type, tmp_path: Path) -> None:
    done = typed(
        "follow", "ORDERS", "-s", shop.url, "-r", tmp_path / "repo", "--for", "1ms", "-v", "--log-format", "json"
    )
    assert done.code == 0
    summary, newest = done.out.splitlines()
    assert summary.startswith("1 backup of 1 stream, 1,000 new messages, ")
    assert summary.endswith("; never more than 0.0 s behind, 0 outages")
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
        (["--every", "5"], "not a duration: '5'"),
        (["--every-bytes", "much"], "not a size: 'much'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: list[str], said: str, shop: Shop, typed: Type, tmp_path: Path
) -> None:
    done = typed("follow", *arguments, "-s", shop.url, "-r", tmp_path / "repo")
    assert done.code == 2 and said in done.err


def test_without_a_server_it_ends_as_a_backup_does(typed: Type, tmp_path: Path) -> None:
    assert typed("follow", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "repo").code == 20
