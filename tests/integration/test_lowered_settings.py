"""Settings that a server accepts by an update of a stream only: such streams come back whole, or nothing is changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import JSON
from tests.harness.filling import publish
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.integration.test_excused import SECOND, each, fill, sequences
from tests.trials.accounts import Type, ask, names, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

Ends = tuple[str, str]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


def update(url: str, config: JSON) -> None:
    """Update a stream's configuration."""
    info = ask(url, f"STREAM.INFO.{config['name']}")
    ask(url, f"STREAM.UPDATE.{config['name']}", {**info["config"], **config})


def push(*names: str) -> tuple[JSON, ...]:
    return tuple({"durable_name": name, "ack_policy": "explicit", "deliver_subject": f"cy.to.{name}"} for name in names)


def restore_and_compare(typed: Type, ends: Ends, tmp_path: Path, name: str, *more: str) -> None:
    """Restore a stream into the target, replace it there, and clone it again: it is the same each time."""
    source, target = ends
    repo = ("-r", tmp_path / "repo")
    before = ask(source, f"STREAM.INFO.{name}")
    assert typed("init", *repo).code == 0
    assert typed("backup", "-s", source, *repo).code == 0
    for line in (
        ("restore", "latest", "-s", target, *repo, *more),
        ("restore", "latest", "-s", target, *repo, "--if-exists", "replace", *more),
        ("clone", name, "-s", source, "--to-server", target, "--if-exists", "replace", *more),
    ):
        done = typed(*line)
        assert done.code == 0, (line, done.err)
        after = ask(target, f"STREAM.INFO.{name}")
        ours, theirs = ({**info["config"]} for info in (before, after))
        for config in (ours, theirs):
            assert not [key for key in config.pop("metadata", {}) if key.startswith("jsbackup")]
        assert ours == theirs
        assert after["state"]["consumer_count"] == before["state"]["consumer_count"]
        assert sequences(source, name) == sequences(target, name)


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Any:
    """A source and a target of a version."""
    with NatsServer(request.param, name="C1") as source, NatsServer(request.param, name="C2") as target:
        yield source.url, target.url


@each(ENDS)
def test_subjects_to_which_a_consumer_delivers(ends: Ends, typed: Type, tmp_path: Path) -> None:
    fill(ends[0], {"name": "CY", "subjects": ["cy.a"]}, ("cy.a", None), ("cy.a", None), consumers=push("x"))
    update(ends[0], {"name": "CY", "subjects": ["cy.a", "cy.to.>"]})
    restore_and_compare(typed, ends, tmp_path, "CY")


@pytest.mark.parametrize(("ends", "storage"), [(ENDS[0], "file"), (NEWEST, "memory")], indirect=["ends"])
def test_messages_that_are_larger_than_the_largest(ends: Ends, typed: Type, tmp_path: Path, storage: str) -> None:
    fill(ends[0], {"name": "BIG", "subjects": ["big"], "storage": storage})
    asyncio.run(publish(ends[0], "big", [b"x" * 10_000] * 3))
    update(ends[0], {"name": "BIG", "max_msg_size": 1000})
    restore_and_compare(typed, ends, tmp_path, "BIG")


@each([NEWEST])
def test_what_only_the_target_knows_refuses_all_before_anything_is_changed(
    typed: Type, tmp_path: Path, ends: Ends
) -> None:
    repo = ("-r", tmp_path / "repo")
    config = f'jetstream {{ store_dir: "{tmp_path}/js", limits: {{ duplicate_window: 60s }} }}'
    with NatsServer(NEWEST, jetstream=False, config=config) as target:
        fill(ends[0], {"name": "LONG", "subjects": ["long"], "duplicate_window": 120 * SECOND}, ("long", None))
        fill(ends[0], {"name": "SHORT", "subjects": ["short"], "duplicate_window": SECOND}, ("short", None))
        assert typed("init", *repo).code == 0
        assert typed("backup", "-s", ends[0], *repo).code == 0
        for line in (
            ("restore", "latest", "-s", target.url, *repo),
            ("clone", "*", "-s", ends[0], "--to-server", target.url),
        ):
            done = typed(*line)
            assert done.code == 15 and "LONG: the target refuses its configuration" in done.err, done.err
            assert not names(target.url)
        assert typed("restore", "latest", "SHORT", "-s", target.url, *repo).code == 0
        fill(target.url, {"name": "LONG", "subjects": ["long"], "duplicate_window": SECOND}, ("long", None))
        done = typed(
            "restore", "latest", "LONG", "-s", target.url, *repo, "--if-exists", "replace", "--replace-with-part"
        )
        assert done.code == 15 and names(target.url) == ["LONG", "SHORT"]
