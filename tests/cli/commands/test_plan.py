"""`plan` as people read it, what it saves, and how `restore --plan` is told from a restore by options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.typed import Shop, Typed
from tests.harness.servers import NEWEST, NatsServer

pytestmark = pytest.mark.nats

Type = Callable[..., Typed]


def test_a_plan_is_read_by_people(
    typed: Type, shop: Shop, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    target = nats_server(NEWEST)
    saved = tmp_path / "plan.json"
    line = ["plan", "latest", "-r", shop.repo, "-s", target.url]
    done = typed(*line, "--set", "max_msgs=5000", "--set", "description=null", "-o", saved)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split()[:4] == ["STREAM", "AS", "ACTION", "STEP"]
    for start in (
        "times: ORDERS: 20",
        "sent as v1: ORDERS: faster into a file stream",
        "changed: ORDERS: max_msgs: -1 → 5000",
        "consumer: ORDERS: billing: exact; no redelivery",
        f"backup {shop.backup}: the latest, complete, made 20",
        f"3 streams can be restored into nats-server {NEWEST} in about ",
        f"saved: {saved}",
    ):
        assert any(one.startswith(start) for one in lines), (start, done.out)
    assert "description" not in done.out  # it had none
    assert "\x1b" not in done.out and "\u202e" not in done.out

    restored = typed("restore", "--plan", saved, "-r", shop.repo, "-s", target.url)
    assert restored.code == 0 and "restored 3 streams" in restored.out


def test_a_refused_plan_is_told_whole_and_not_saved(typed: Type, shop: Shop, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    done = typed("plan", "latest", "-r", shop.repo, "-s", shop.url, "--replicas", "3", "-o", saved)
    assert done.code == 15
    lines = done.out.splitlines()
    hint = "Choose --if-exists skip (also after an interrupted restore) or replace, or restore beside it with --rename."
    assert lines.count(f"hint: {hint}") == 3
    assert "refused: ORDERS: exists at the target" in lines
    assert "refused: ORDERS: has 3 replicas, the target is a single server" in lines
    assert lines[-1].startswith("refused: nothing can be restored into nats-server") and "for 6 reasons" in lines[-1]
    assert "the plan was not saved, since it is refused" in done.err
    assert not saved.exists()
    skipping = typed("plan", "latest", "-r", shop.repo, "-s", shop.url, "--if-exists", "skip")
    assert (skipping.code, skipping.out.count("skipped: ")) == (0, 3)
    assert "nothing is left to be restored" in skipping.out


def test_a_replacement_says_what_it_destroys(typed: Type, shop: Shop) -> None:
    done = typed("plan", "latest", "ORDERS", "-r", shop.repo, "-s", shop.url, "--if-exists", "replace")
    assert done.code == 0
    assert "will be deleted: ORDERS: the existing stream, 1,000 messages up to sequence 1000, made 20" in done.out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("restore latest --plan FILE", "BACKUP makes no sense with --plan"),
        ("restore --plan FILE --replicas 1", "--replicas makes no sense with --plan"),
        ("restore --plan FILE --set max_age=1", "--set makes no sense with --plan"),
        ("restore --plan FILE --if-exists fail", "--if-exists makes no sense with --plan"),
        ("restore --plan FILE --partial", "--partial makes no sense with --plan"),
        ("restore --plan FILE", "cannot read the plan"),
        ("plan latest --set x=1", "no field 'x'"),
        ("plan latest --set max_age=1 --set max_age=2", "--set max_age is given twice"),
        ("plan latest --replicas 1 --set num_replicas=3", "--replicas and --set num_replicas exclude each other"),
        ("plan latest --replicas 1 --set num_replicas=3", "--replicas and --set num_replicas exclude each other"),
        ("plan", "missing argument '[BACKUP]'"),
        ("plan latest NOSUCH", "has no stream NOSUCH"),
    ],
)
def test_what_makes_no_sense_is_a_mistake_of_usage(
    typed: Type, shop: Shop, tmp_path: Path, line: str, told: str
) -> None:
    words = [str(tmp_path / "none.json") if word == "FILE" else word for word in line.split()]
    refused = typed(*words, "-r", shop.repo, "-s", shop.url, "--json")
    assert refused.code == 2
    assert told in refused.document["error"]["message"]
