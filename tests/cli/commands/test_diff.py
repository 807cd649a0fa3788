"""`diff` as it is typed, between backups in a folder and against a server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.model import ConsumerState, SequencePair
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import CREATED, FIRST, SECOND, make_repository, store_stream
from tests.harness.batches import some_messages

Type = Callable[..., Typed]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Two backups: ORDERS is another in the second, SAME is not, OLD is in the first alone."""
    store = LocalStore(tmp_path / "repo")
    repository = make_repository(store)
    messages = some_messages(50, 100)
    orders = store_stream(repository.objects, "ORDERS", messages)
    same = store_stream(repository.objects, "SAME", messages[:9])
    old = store_stream(repository.objects, "OLD", messages[:9])
    changed = [m._replace(data=b"\x1b[31m", subject="evil.\x1b[31m") if m is messages[20] else m for m in messages[1:]]
    later = store_stream(repository.objects, "ORDERS", [*changed, *some_messages(3, 9, first=1000)])
    small, _large = orders.consumers
    small = replace(small, state=ConsumerState(SequencePair(9, 8), SequencePair(4, 4)), config={"ack_wait": 5})
    new = replace(later, config={"name": "ORDERS", "max_age": 5}, consumers=(small,))
    first = Manifest(FIRST, CREATED, "jsbackup tests", Source("2.15.1"), BackupResult.COMPLETE, (orders, same, old))
    repository.commit(first)
    repository.commit(replace(first, id=SECOND, streams=(new, same)))
    return tmp_path / "repo"


def test_equal_backups_are_told_in_a_line(typed: Type, repo: Path) -> None:
    done = typed("diff", FIRST, FIRST, "-r", repo)
    assert (done.code, done.out) == (0, f"from {FIRST} to {FIRST}: 3 streams equal, 0 different\n")
    document = check("diff", typed("diff", FIRST, "latest", "SAME", "-r", repo, "--json"))
    assert document["equal"] is True and [s["stream"] for s in document["streams"]] == ["SAME"]


def test_what_differs_is_told(typed: Type, repo: Path) -> None:
    done = typed("diff", FIRST, SECOND, "-r", repo, "--json", "--messages", "2")
    document = check("diff", done)
    assert (done.code, document["equal"], document["a"], document["b"]) == (1, False, FIRST, SECOND)
    old, orders, same = document["streams"]
    assert (old["only_in"], old["removed"], same["equal"]) == ("a", 9, True)
    assert (orders["added"], orders["removed"], orders["changed"]) == (3, 1, 1)
    assert [one["change"] for one in orders["ranges"]] == ["removed", "changed", "added"]
    assert [one["what"] for one in orders["messages"]] == [[], ["subject", "payload"], [], []]
    assert orders["config_changes"] == [{"field": "max_age", "from": None, "to": 5}]
    large, small = orders["consumer_changes"]
    assert (large["consumer"], large["change"]) == ("large", "removed")
    assert [one["field"] for one in small["config_changes"]] == ["ack_wait", "durable_name"]
    assert {"field": "delivered.stream_seq", "from": 0, "to": 8} in small["state_changes"]

    text = typed("diff", SECOND, FIRST, "-r", repo)
    lines = text.out.splitlines()
    assert text.code == 1 and "\x1b" not in text.out
    assert lines[2].split() == ["ORDERS", "1", "3", "1", "1", "2"]
    assert lines[-1] == f"from {SECOND} to {FIRST}: 1 stream equal, 2 different"
    assert typed("diff", FIRST, SECOND, "--exclude", "O*", "-r", repo).code == 0


def test_damage_is_14_and_the_rest_is_compared(typed: Type, repo: Path) -> None:
    line = ("diff", FIRST, SECOND, "-r", repo)
    for segment in repo.glob("segments/ORDERS-*/*.parquet"):
        segment.chmod(0o600)
        segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    done = typed(*line, "--json")
    document = check("diff", done)
    assert done.code == 14 and [one["name"] for one in document["failed"]] == ["ORDERS"]
    assert {one["stream"] for one in document["streams"]} == {"OLD", "SAME"} and document["equal"] is False
    for segment in repo.glob("segments/ORDERS-*/*.parquet"):
        segment.unlink()
    assert "is missing" in typed(*line).out
    (repo / "backups" / f"{SECOND}.json").write_text("{}")
    assert typed(*line).code == 14


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("diff", 2, "missing argument 'A'"),
        ("diff live live -r REPO", 2, "both sides are live"),
        (f"diff {FIRST} {SECOND} -r REPO -s nats://x", 2, "server options make no sense"),
        (f"diff {FIRST} latest ORDRES -r REPO", 2, "hint: Did you mean ORDERS?"),
        (f"diff {FIRST} live -r REPO -s nats://127.0.0.1:1", 20, "127.0.0.1:1"),
        (f"diff {FIRST} {SECOND} -r NOWHERE", 10, "no repository at"),
    ],
)
def test_what_makes_no_sense_is_refused(
    typed: Type, repo: Path, tmp_path: Path, line: str, code: int, said: str
) -> None:
    words = [
        str(repo) if word == "REPO" else str(tmp_path / word) if word == "NOWHERE" else word for word in line.split()
    ]
    done = typed(*words)
    assert done.code == code and said in done.err
