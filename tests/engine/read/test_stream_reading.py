"""What is asked before and after a stream is read whole, of a server that answers from a script."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.read import whole_stream
from jsbackup.engine.read.snapshot_transfer import Capture, CaptureLimits
from jsbackup.engine.read.whole_stream import WholeReading, WholeSource, check_count, read_whole
from jsbackup.errors import IntegrityError
from jsbackup.formats.archive.archive import ArchiveEnd
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from tests.planning.test_plan import existing

THEN = StreamState(messages=10, first_seq=1, last_seq=12, deleted=2)


class Server:
    """The answers about a stream. `asked` is how often, and whether for deleted sequences."""

    def __init__(self, version: tuple[int, ...], state: StreamState, deleted: tuple[int, ...] = ()) -> None:
        self.link = SimpleNamespace(server_version=version)
        self.info: StreamInfo = replace(existing("S"), state=state)
        self.deleted = deleted
        self.asked: list[bool] = []

    async def stream(self, _name: str, *, deleted_details: bool = False) -> StreamInfo:
        self.asked.append(deleted_details)
        return replace(self.info, deleted=self.deleted if deleted_details else None)


def snapshot(
    server: Server, monkeypatch: pytest.MonkeyPatch, taken: Capture, *, exact: bool = True
) -> tuple[dict[str, Any], WholeReading]:
    """Take a snapshot that comes to `taken`; returns with what it was requested, and the result."""
    requested: dict[str, Any] = {}

    async def capture(_js: object, _stream: str, _sink: object, **how: Any) -> Capture:
        requested.update(how)
        return taken

    monkeypatch.setattr(whole_stream, "capture_snapshot", capture)
    source = WholeSource(cast(JetStream, server), "S", consumers=True, check=True, exact=exact)
    whole = asyncio.run(read_whole(source, server.info, cast(Any, None), CaptureLimits(), by_messages=False))
    assert (whole.capture, whole.messages, whole.archive_format) == (
        taken,
        taken.messages,
        taken.end and taken.end.format,
    )
    return requested, whole


def capture_of(archive: str, messages: int, last_seq: int = 12) -> Capture:
    end = cast(ArchiveEnd, SimpleNamespace(format=archive, last_seq=last_seq))
    return Capture({}, THEN, messages=messages, end=end)


def test_an_older_server_is_asked_for_deleted_sequences_unless_there_are_none_or_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version, deleted, asks in (
        ((2, 12, 8), 2, True),
        ((2, 12, 8), 0, False),
        ((2, 12, 8), MAX_DELETED + 1, False),
        ((2, 15, 1), 2, False),
    ):
        server = Server(version, replace(THEN, deleted=deleted), (3, 4))
        how, _ = snapshot(server, monkeypatch, capture_of("v1", 10))
        assert (list(how["deleted"]), server.asked) == (([3, 4], [True]) if asks else ([], []))
        assert (how["consumers"], how["check"]) == (True, True)


def test_a_snapshot_v2_is_counted_and_a_v1_is_left_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server((2, 15, 1), THEN)
    snapshot(server, monkeypatch, capture_of("v2", 10))
    assert server.asked == []  # as many as reported
    snapshot(server, monkeypatch, capture_of("v1", 9))
    with pytest.raises(IntegrityError, match="has 9 messages, the server reports 10"):
        snapshot(server, monkeypatch, capture_of("v2", 9))
    snapshot(server, monkeypatch, capture_of("v2", 9), exact=False)


def test_another_count_is_no_damage_if_the_stream_has_changed_since() -> None:
    server = Server((2, 15, 1), replace(THEN, messages=9))
    asyncio.run(check_count(cast(JetStream, server), "S", THEN, 9))
    server.info = replace(server.info, state=THEN)
    with pytest.raises(IntegrityError):
        asyncio.run(check_count(cast(JetStream, server), "S", THEN, 9))


def test_an_archive_may_end_after_the_state_that_was_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server((2, 12, 8), replace(THEN, deleted=0))
    for last_seq, reached in ((15, 15), (11, THEN.last_seq)):
        _, whole = snapshot(server, monkeypatch, capture_of("v1", 10, last_seq=last_seq))
        assert whole.reached == replace(THEN, last_seq=reached)
