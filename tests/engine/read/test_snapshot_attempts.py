"""Which errors of a snapshot lead to another attempt, and what changes with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from jsbackup.engine.read import whole_stream
from jsbackup.engine.read.snapshot_transfer import CaptureLimits
from jsbackup.engine.read.whole_stream import SnapshotAttempts
from jsbackup.errors import FormatError, JsBackupError, NatsTimeout, SnapshotBusy, TransferError
from jsbackup.formats.archive.archive import SealedBlock


class _Server:
    """Only asked for the stream."""

    async def stream(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name)


JS: Any = _Server()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_stream, "_FIRST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(whole_stream, "_BUSY_PAUSE_SECONDS", 0.0)


def _after(attempts: SnapshotAttempts, *errors: JsBackupError) -> None:
    async def main() -> None:
        for error in errors:
            await attempts.next(error)

    asyncio.run(main())


def test_each_attempt_has_less_in_flight_and_the_last_error_is_raised() -> None:
    attempts = SnapshotAttempts(JS, "ORDERS", CaptureLimits())
    _after(attempts, TransferError("broken"), NatsTimeout("silent"), FormatError("damaged"))
    assert (attempts.number, attempts.limits) == (4, CaptureLimits().reduced().reduced().reduced())
    last = TransferError("broken again")
    with pytest.raises(TransferError) as caught:
        _after(attempts, last)
    assert caught.value is last


@pytest.mark.parametrize("prefix", [None, "own.API"])
def test_a_snapshot_that_does_not_come_through_an_import_says_what_to_export(prefix: str | None) -> None:
    js: Any = SimpleNamespace(link=SimpleNamespace(connection=SimpleNamespace(js_api_prefix=prefix)))
    attempts = SnapshotAttempts(js, "ORDERS", CaptureLimits())
    with pytest.raises(NatsTimeout) as caught:
        _after(attempts, *[NatsTimeout("silent")] * 4)
    assert (caught.value.hint or "").startswith("The account that has the streams must export" if prefix else "")
    assert bool(caught.value.hint) == (prefix is not None)


def test_what_cannot_help_is_not_tried() -> None:
    with pytest.raises(TransferError, match="hopeless"):
        _after(SnapshotAttempts(JS, "ORDERS", CaptureLimits()), TransferError("hopeless", retry=False))


def test_waiting_for_another_snapshot_is_no_attempt_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = SnapshotAttempts(JS, "ORDERS", CaptureLimits())
    _after(attempts, *[SnapshotBusy("busy")] * 9)
    assert (attempts.number, attempts.limits) == (1, CaptureLimits())
    monkeypatch.setattr(whole_stream, "_BUSY_SECONDS", -1.0)
    with pytest.raises(SnapshotBusy):
        _after(SnapshotAttempts(JS, "ORDERS", CaptureLimits()), SnapshotBusy("busy"))


@pytest.mark.parametrize("stuck", [False, True])
def test_an_encrypted_block_is_no_attempt_once_all_messages_are_read(
    monkeypatch: pytest.MonkeyPatch, *, stuck: bool
) -> None:
    readings = []

    async def read_messages(_js: Any, info: Any, _advance: Any, **only: Any) -> AsyncGenerator[None, None]:
        readings.append((info.name, only))
        yield
        if stuck:
            raise TransferError("the consumer delivers nothing")

    monkeypatch.setattr(whole_stream, "read_messages", read_messages)
    attempts = SnapshotAttempts(JS, "ORDERS", CaptureLimits())
    _after(attempts, SealedBlock("encrypted"))
    assert (attempts.number, attempts.limits) == (1, CaptureLimits())
    assert readings == [("ORDERS", {"only": {"headers_only": True}})]
    _after(attempts, SealedBlock("damaged all over"))
    assert attempts.number == 2 and len(readings) == 1
