"""Backups of a server that has lost its streams do not stand for those before; a drill or backup of a part does not
stand for one of everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import CONFIG, Type, ask, backup_of, delete, fill, names, typing, url

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

EMBEDDED = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "nats-server"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(NEWEST, name="C1", config=CONFIG) as started:
        yield started


@pytest.fixture
def shop(server: NatsServer) -> Iterator[str]:
    """The URL of an account without streams."""
    yield url(server, "SHOP")
    delete(url(server, "SHOP"), *names(url(server, "SHOP")))


def test_an_empty_backup_after_a_full_one_is_incomplete_and_stands_for_nothing(
    shop: str, typed: Type, tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    where = ("-s", shop, "-r", repo)
    fill(shop, "ORDERS", 3)
    fill(shop, "EMPTY", 0)
    full = backup_of(typed("backup", *where, "--json"))
    delete(shop, "ORDERS", "EMPTY")
    quiet = typed("backup", *where, "-q")
    assert (quiet.code, quiet.out) == (3, "")
    assert f"ORDERS: it had 3 messages in backup {full}, and the server no longer has this stream" in quiet.err
    assert f"nothing is left of what backup {full} has" in quiet.err and "--allow-nothing" in quiet.err
    again = typed("backup", *where, "--json")
    assert (again.code, again.document["result"]) == (3, "partial")
    assert [one["name"] for one in again.document["skipped"]] == ["ORDERS"]

    shown = typed("show", "latest", "-r", repo, "--json")
    assert backup_of(shown) == full and "it has no stream although earlier ones have" in shown.err
    drilled = typed("drill", "-r", repo, "--nats-server", EMBEDDED, "--json")
    assert (drilled.code, backup_of(drilled)) == (0, full)
    status = typed("status", "-r", repo, "--json")
    assert status.code == 17
    assert {one["rule"] for one in status.document["breaches"]} == {"empty-backup", "incomplete-backup"}
    kept = typed("forget", "--keep-last", "1", "--prune", "--grace", "0s", "-r", repo, "--json").document["kept"]
    assert full in [one["backup"] for one in kept]
    done = typed("restore", "latest", *where, "--json")
    assert (done.code, backup_of(done)) == (0, full) and names(shop) == ["EMPTY", "ORDERS"]
    assert typed("backup", *where).code == 0 and typed("status", "-r", repo).code == 0


def test_what_comes_to_a_server_that_has_lost_its_streams_does_not_stand_for_them(
    shop: str, typed: Type, tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    where = ("-s", shop, "-r", repo)
    fill(shop, "ORDERS", 5)
    fill(shop, "USERS", 5)
    full = backup_of(typed("backup", *where, "--json"))
    delete(shop, "ORDERS", "USERS")
    fill(shop, "ORDERS", 1)
    fill(shop, "NEW", 1)
    for _ in range(2):  # the next night as well
        lost = typed("backup", *where)
        assert lost.code == 3 and f"nothing is left of what backup {full} has" in lost.out
        assert "is another stream now, with 1 message" in lost.out
    kept = typed("forget", "--keep-last", "1", "-r", repo, "--json").document["kept"]
    assert full in [one["backup"] for one in kept]
    done = typed("restore", "latest", "--if-exists", "replace", "--replace-with-part", *where, "--json")
    assert (done.code, backup_of(done)) == (0, full)
    assert typed("backup", *where).code == 0  # restored: what is as old as the backup is there
    delete(shop, "ORDERS", "USERS", "NEW")
    assert typed("backup", *where).code == 3
    # That it should be so is said once.
    assert typed("backup", *where, "--allow-nothing").code == 0 and typed("backup", *where).code == 0


def test_a_follow_of_a_server_that_loses_its_streams_ends_incomplete(shop: str, typed: Type, tmp_path: Path) -> None:
    where = ("-s", shop, "-r", tmp_path / "repo")
    fill(shop, "ORDERS", 3)
    first = typed("follow", *where, "--for", "1ms", "--json")
    assert first.code == 0
    delete(shop, "ORDERS")
    then = typed("follow", *where, "--for", "1ms", "--json")
    assert (then.code, then.document["result"]) == (3, "partial")
    assert backup_of(typed("show", "latest", "-r", tmp_path / "repo", "--json")) == first.document["newest"]


def test_a_stream_that_was_purged_is_told_with_the_backup_that_has_its_messages(
    shop: str, typed: Type, tmp_path: Path
) -> None:
    where = ("-s", shop, "-r", tmp_path / "repo")
    for name, config in (("ORDERS", {}), ("OTHER", {}), ("JOBS", {"retention": "workqueue"})):
        fill(shop, name, 3, **config)
    full = backup_of(typed("backup", *where, "--json"))
    for name in ("ORDERS", "JOBS"):
        ask(shop, f"STREAM.PURGE.{name}")
    for _ in range(2):  # the next night as well
        done = typed("backup", *where, "--json")
        assert (done.code, done.document["result"]) == (0, "complete")
        warned = {one["name"]: one["warnings"] for one in done.document["streams"]}
        (said,) = warned.pop("ORDERS")
        assert said.startswith(f"it has no messages any more, and had 3 in backup {full}, made 20")
        assert warned == {"OTHER": [], "JOBS": []}
    told = f"in this backup {said}"
    planned = typed("plan", "latest", "ORDERS", *where, "--if-exists", "replace", "--json")
    assert {one["rule"]: one["reason"] for one in planned.document["warnings"]}["emptied"] == told
    done = typed("restore", "latest", "ORDERS", *where, "--if-exists", "replace", "--json")
    assert done.code == 0 and told in done.document["streams"][0]["notes"]
    assert typed("restore", full, "ORDERS", *where, "--if-exists", "replace").code == 0
    assert "any more" not in typed("backup", *where).out


def test_a_drill_of_few_streams_does_not_count_as_one_of_all(shop: str, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    drill, status = ("drill", "-r", repo, "--nats-server", EMBEDDED), ("status", "-r", repo, "--max-drill-age", "1d")
    fill(shop, "ORDERS", 3)
    fill(shop, "PAYMENTS", 3)
    assert typed("backup", "-s", shop, "-r", repo).code == 0
    hand = backup_of(typed("backup", "ORDERS", "-s", shop, "-r", repo, "--json"))
    for words in ((hand,), ("latest", "--exclude", "PAYMENTS")):
        done = typed(drill[0], *words, *drill[1:])
        assert done.code == 0 and "it does not count as a drill of everything" in done.out
        breaches = typed(*status, "--json").document["breaches"]
        assert [one["rule"] for one in breaches] == ["drill-age"]
    done = typed(*drill, "--json")
    assert done.code == 0 and done.document["everything"] and len(done.document["streams"]) == 2
    assert typed(*status).code == 0
