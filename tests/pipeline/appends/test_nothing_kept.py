"""Streams of which an export keeps nothing: nothing is restored there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.typed import in_shell
from tests.harness.batches import some_messages
from tests.pipeline.places import keep

pytestmark = pytest.mark.slow


def test_a_filter_that_keeps_nothing_of_a_stream_is_said_as_of_a_table(tmp_path: Path) -> None:
    messages = some_messages(5, 10)
    others = [one._replace(subject="others") for one in messages]
    kept = keep(tmp_path, {"ORDERS": messages, "OTHERS": others})
    line = ["export", "latest", "--format", "parquet", "--subject", "orders.>", "--allow-nothing", *kept.line]
    done = in_shell(*line, "--output", tmp_path / "out", "--json")
    notes = {one["name"]: one["notes"] for one in done.document["streams"]}
    assert notes == {"ORDERS": [], "OTHERS": ["nothing is written: none of its 5 messages is kept"]}, done
