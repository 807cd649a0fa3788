"""The largest sequence that a server's files can hold comes back. A backup with a larger one, as older versions have
imported them, can be restored with new sequences, and the restore says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.server_state import MAX_SEQUENCE
from tests.cli.typed import in_shell
from tests.harness.batches import Message
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.pipeline.places import keep

pytestmark = pytest.mark.nats


def _messages(*sequences: int) -> list[Message]:
    return [Message(sequence, 5, "orders.1", None, b"x") for sequence in sequences]


@pytest.mark.parametrize("wire", ["v1", "v2"])
def test_the_largest_sequence(nats_server: Callable[..., NatsServer], tmp_path: Path, wire: str) -> None:
    server = nats_server(NEWEST)
    kept = keep(tmp_path, {"S": _messages(9, MAX_SEQUENCE), "T": _messages(9, MAX_SEQUENCE + 1)})
    line = ["restore", "latest", "-s", server.url, *kept.line]
    done = jsbackup(*line, "S", wire=wire)
    assert (done.code, [one["verified"] for one in done.document["streams"]]) == (0, [True]), done
    failed = in_shell(*line, "T", wire=wire)
    assert failed.code == 14 and f"no server can have the sequence {MAX_SEQUENCE + 1} in its files" in failed.out, (
        failed
    )
    assert "--renumber" in failed.out and "--partial" not in failed.out, failed
    done = jsbackup(*line, "T", "--renumber")
    assert (done.code, [one["verified"] for one in done.document["streams"]]) == (0, [True]), done
