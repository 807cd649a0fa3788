"""A pattern or a name that matches nothing is mistyped: it is refused where data would be lost, leaked or misplaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.api import call, connected
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, delete, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

EXCLUDE = ("--exclude", "ORDRES")
MEANT = "--allow-nothing"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[NatsServer, NatsServer]]:
    with NatsServer(NEWEST, name="C1") as source, NatsServer(NEWEST, name="C2") as target:
        asyncio.run(_fill(source.url))
        yield source, target


@pytest.fixture
def pair(started: tuple[NatsServer, NatsServer]) -> Iterator[tuple[str, str]]:
    """A server with two streams and a copy of one, and an empty one."""
    source, target = (server.url for server in started)
    yield source, target
    delete(target, *names(target))


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        for config in (
            {"name": "ORDERS", "subjects": ["orders.>"]},
            {"name": "USERS", "subjects": ["users.>"]},
            {"name": "COPY", "sources": [{"name": "ORDERS"}]},
        ):
            await nc.request(f"$JS.API.STREAM.CREATE.{config['name']}", json.dumps(config).encode(), timeout=20)
        for number in range(5):
            for subject in ("orders.eu", "users.eu"):
                await nc.request(f"{subject}.{number}", b"{}", timeout=20)
        # On a busy machine the copy takes a while.
        while (await call(nc, "STREAM.INFO.COPY", {}))["state"]["messages"] < 5:
            await asyncio.sleep(0.05)


def test_what_excludes_no_stream_is_refused(pair: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    source, target = pair
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", source, *repo, "-q").code == 0
    to, onto = ("-s", source, "--to-server", target), ("-s", target, *repo)
    for exclude in (EXCLUDE, ("--exclude", "Order"), ("--exclude", "USERS", "--exclude", "ORDRES*")):
        for line in (
            ("plan", "latest", *onto),
            ("restore", "latest", *onto),
            ("clone", "*", *to),
            ("clone", "*", "--dry-run", *to),
        ):
            done = typed(*line, *exclude)
            assert done.code == 2 and f"error: --exclude {exclude[-1]}: " in done.err, done
            assert "no such stream\nhint: Did you mean ORDERS? With --allow-nothing" in done.err
    book = tmp_path / "book.toml"
    book.write_text('[[restore]]\nbackup = "latest"\nexclude = ["ORDRES"]\n')
    for command in ("plan", "restore"):
        done = typed(command, "--runbook", book, *onto)
        assert done.code == 2 and "error: restore 1: --exclude ORDRES: " in done.err
    assert names(target) == []
    saved = tmp_path / "plan.json"
    assert typed("plan", "latest", *EXCLUDE, MEANT, "--consumers", "none", "-o", saved, *onto, "-q").code == 0
    assert typed("restore", "--plan", saved, *onto, "-q").code == 0
    replace = ("--if-exists", "replace")
    assert typed("clone", "ORDERS", *EXCLUDE, MEANT, *replace, *to, "-q").code == 0
    assert typed("clone", "*", "--exclude", "ORDERS", *replace, *to, "-q").code == 0


def test_a_job_goes_on_when_what_it_excludes_is_gone(pair: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    source, target = pair
    repo = ("-r", tmp_path / "repo")
    said = "--exclude ORDRES matches no stream (Did you mean ORDERS?)"
    done = typed("backup", *EXCLUDE, "-s", source, *repo)
    assert done.code == 0 and f"warning: {said}\n" in done.out
    done = typed("backup", *EXCLUDE, "-s", source, *repo, "--json")
    assert done.code == 0 and done.document["notes"] == [said] and len(done.document["streams"]) == 3
    done = typed("follow", *EXCLUDE, "--for", "1s", "-s", source, *repo)
    assert done.code == 0 and done.err.count(said) == 1
    # What the backup itself leaves out by this pattern may be left out of its restore too: profiles do so.
    assert typed("plan", "latest", *EXCLUDE, "-s", target, *repo).code == 0
    done = typed("drill", "latest", "--exclude", "GONE", *repo)
    assert done.code == 0 and "has no such stream" in done.err


def test_maps_and_filters_of_no_subject_are_refused(pair: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    source, target = pair
    repo = ("-r", tmp_path / "repo")
    assert typed("backup", "-s", source, *repo, "-q").code == 0
    to, onto = ("-s", source, "--to-server", target), ("-s", target, *repo)
    for option, pattern, rule in (
        ("--map-subject", "ordrs.>=>x.>", "map-aimless"),
        ("--subject", "ordrs.>", "subject-aimless"),
    ):
        # Beside one that matches, and where copies may have any subject but come from a stream that is known.
        for other in ((), (option, pattern.replace("ordrs", "users"))):
            for line in (("plan", "latest", *onto), ("clone", "*", "--dry-run", *to)):
                done = typed(*line, option, pattern, *other, "--json")
                assert done.code == 15
                found = [one for one in done.document["refusals"] if one["rule"] == rule]
                assert [one["stream"] for one in found] == [""]
                assert f"{option} {pattern}: no stream of the restore has such subjects" in found[0]["reason"]
                assert found[0]["hint"] == "Did you mean orders.>? With --allow-nothing it may match nothing."
            for command in (("restore", "latest", *onto), ("clone", "*", *to)):
                done = typed(*command, option, pattern, *other)
                assert done.code == 15 and "has such subjects" in done.err
    assert names(target) == []
    mapped = ("--map-subject", "ordrs.>=>x.>", MEANT)
    assert typed("restore", "latest", *mapped, *onto, "-q").code == 0
    assert typed("plan", "latest", "--map-subject", ">=>x.>", "--if-exists", "replace", *onto, "-q").code == 0
    done = typed("plan", "latest", "--rename", "ORDRS=NEW", *onto)
    assert done.code == 2 and "hint: Did you mean ORDERS?" in done.err
    done = typed("plan", "latest", "ORDRS*", "USERS", "--if-exists", "replace", *onto)
    assert done.code == 2 and "ORDRS*" in done.err and "Did you mean" in done.err


def test_tags_that_no_backup_has_keep_nothing(pair: tuple[str, str], typed: Type, tmp_path: Path) -> None:
    source, _ = pair
    repo = ("-r", tmp_path / "repo")
    for number in range(2):
        assert typed("backup", "--tag", f"why=release{number}", "-s", source, *repo, "-q").code == 0
    done = typed("forget", "--keep-tag", "why=relase", *repo)
    assert done.code == 2 and "no backup has the tag why=relase, so the policy would keep nothing" in done.err
    done = typed("forget", "--keep-tag", "why=relase", "--keep-last", "1", "--dry-run", *repo)
    assert done.code == 0 and "--keep-tag why=relase: no backup has this tag" in done.err
    done = typed("forget", "--keep-tag", "why", *repo)
    assert done.code == 0 and "removed 0 backups" in done.out
