"""Configurations alone: backed up, restored, equal, and without a message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.awkward import keys
from tests.harness.commands import jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NEWEST, NatsServer
from tests.integration.witness import STATE_FIELDS, filled, seen

pytestmark = pytest.mark.nats


# A stream without messages has nothing but its configuration to compare; consumers begin anew.
NO_MESSAGES = [
    *("state.*", "deleted", "missing", "subjects", "messages", "message.*"),
    *(f"consumer.*.{field}" for field in STATE_FIELDS),
]


def test_configurations_of_every_awkward_stream_come_back_without_messages(
    nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    source, target = nats_server(NEWEST), nats_server(NEWEST)
    before = filled(source.url, NEWEST, [key for key in keys(NEWEST) if not key.startswith("BIG")])
    backup = jsbackup("backup", "-s", source.url, "-r", tmp_path / "repo", "--config-only").ok().document
    assert {stream["archive_format"] for stream in backup["streams"]} == {"config"}
    assert {stream["messages"] for stream in backup["streams"]} == {0}
    restored = jsbackup("restore", "latest", "-s", target.url, "-r", tmp_path / "repo").ok().document
    assert all("restored without messages" in stream["notes"][0] for stream in restored["streams"])
    assert {stream["proof"] for stream in restored["streams"]} == {"full"}
    after = seen(target.url)
    copies = {name for name, stream in after.items() if stream.config.get("mirror") or stream.config.get("sources")}
    assert all(not stream.messages for name, stream in after.items() if name not in copies)
    assert compare(before, after, ignore=NO_MESSAGES) == []
