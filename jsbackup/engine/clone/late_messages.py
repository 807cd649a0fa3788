"""Messages that the target has, although the source had deleted them by the end of the reading."""

from __future__ import annotations

import asyncio

from jsbackup.engine.clone.run_digests import Ledger
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.catch_up import describe_stream
from jsbackup.engine.read.consume import Row, rows_as_batch
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.errors import ApiError, JsBackupError, NatsPermissionDenied
from jsbackup.formats.sequences import SequenceSet
from jsbackup.transforms.filters.rising import RisingSequences

__all__ = ["find_not_held", "not_held", "take_out"]

_DELETES_AT_ONCE = 64


async def find_not_held(js: JetStream, name: str, held: PresentSequences) -> SequenceSet:
    """Return the messages of the target that the source did not hold in the end."""
    info = await describe_stream(js, name)
    ours = PresentSequences(info.state, info.deleted or ())
    before = ours.within(ours.first, held.first - 1)
    return SequenceSet([*before, *(s for s in held.deleted.within(held.first, held.last) if s in ours)])


def not_held(numbers: RisingSequences, held: PresentSequences) -> SequenceSet:
    """Return the numbered messages that the source did not hold in the end, by their sequences there."""
    before = numbers.within(1, held.first - 1).array().to_pylist()
    return SequenceSet([*before, *(s for s in held.deleted.within(held.first, held.last) if s in numbers)])


async def take_out(js: JetStream, name: str, late: SequenceSet, ledger: Ledger) -> str:
    """Delete these messages from the target and from the ledger; return what prevents it, "" if nothing."""

    async def take(sequence: int) -> None:
        message = await js.message(name, sequence)
        if message is None:
            return
        await js.delete_message(name, sequence)
        row = Row(sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data)
        ledger.remove(rows_as_batch([row]))

    waiting = iter(late)
    failures: list[JsBackupError] = []

    async def work() -> None:
        try:
            for sequence in waiting:
                await take(sequence)
        except (ApiError, NatsPermissionDenied) as error:
            failures.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_DELETES_AT_ONCE, len(late))):
            group.create_task(work())
    if not failures:
        return ""
    return f"has messages that were deleted at the source while it was read: {failures[0].message}"
