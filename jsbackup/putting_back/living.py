"""What the target has already: messages that are still there, and those that were put back before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.workers import gather_some
from jsbackup.engine.read.consume import read_messages
from jsbackup.look.message import LookedUp, messages_in, subject_text
from jsbackup.model import JsonObject
from jsbackup.progress import ignored
from jsbackup.protocol.info import StoredMessage, StreamInfo
from jsbackup.putting_back.candidates import ChosenMessage, content_of
from jsbackup.putting_back.headers import origin_in

__all__ = ["Arrivals", "arrivals_at", "count_subjects_at", "last_messages_at", "still_there"]

# Up to so many messages are asked for one by one; more are read in a row.
_ONE_BY_ONE = 1000
_AT_ONCE = 64


async def still_there(
    js: JetStream, info: StreamInfo, chosen: Mapping[int, ChosenMessage], filters: Sequence[str]
) -> set[int]:
    """Return the sequences at which the target has the same message: subject, headers, payload, and time."""
    first, last = info.state.first_seq, info.state.last_seq
    within = [one for sequence, one in chosen.items() if info.state.messages and first <= sequence <= last]
    if len(within) <= _ONE_BY_ONE:
        found = await gather_some(_AT_ONCE, partial(_at_its_sequence, js, info.name), within)
        return {one.sequence for one, message in zip(within, found, strict=True) if _is_same(one, message)}
    same: set[int] = set()
    first, last = min(one.sequence for one in within), max(one.sequence for one in within)
    reading = read_messages(js, info, ignored, first=first, last=last, only=_only(filters))
    async with aclosing(reading) as batches:
        async for batch in batches:
            for message in messages_in(batch):
                one = chosen.get(message.sequence)
                if one is not None and _is_same(one, message):
                    same.add(one.sequence)
    return same


async def _at_its_sequence(js: JetStream, stream: str, one: ChosenMessage) -> StoredMessage | None:
    return await js.message(stream, one.sequence)


def _is_same(one: ChosenMessage, message: StoredMessage | LookedUp | None) -> bool:
    if message is None or message.timestamp_ns != one.timestamp_ns:
        return False
    return content_of(message.subject, message.headers, message.data) == one.content


@dataclass(slots=True)
class Arrivals:
    """Messages of a stream. `origins`: what they were put back from, with the sequences that they have. `subjects`: how
    many there are of each subject that was asked for.
    """

    origins: dict[tuple[str, int, int], list[int]] = field(default_factory=dict)
    subjects: dict[str, int] = field(default_factory=dict)


async def arrivals_at(
    js: JetStream, info: StreamInfo, first: int, filters: Sequence[str], *, counted: Collection[str] = ()
) -> Arrivals:
    """Read the target's messages from the sequence `first` on, and count those with a subject in `counted`. Payloads
    are not read, if the server allows a consumer.
    """
    found = Arrivals()
    if not info.state.messages or first > info.state.last_seq:
        return found
    reading = read_messages(js, info, ignored, first=max(first, 1), only={**_only(filters), "headers_only": True})
    async with aclosing(reading) as batches:
        async for batch in batches:
            headers, subjects = batch.column("headers"), batch.column("subject")
            for row, sequence in enumerate(batch.column("sequence").to_pylist()):
                if (origin := origin_in(headers[row].as_py())) is not None:
                    found.origins.setdefault(origin.message, []).append(sequence)
                if counted and (subject := subject_text(subjects[row].as_py())) in counted:
                    found.subjects[subject] = found.subjects.get(subject, 0) + 1
    return found


def _only(filters: Sequence[str]) -> JsonObject:
    return {"filter_subjects": list(filters)} if filters else {}


async def count_subjects_at(js: JetStream, stream: str, subjects: Collection[str]) -> dict[str, int]:
    """Return how many messages of each subject the stream has."""
    asked = list(subjects)
    found = await gather_some(_AT_ONCE, partial(js.subjects, stream), asked)
    return {subject: counts.get(subject, 0) for subject, counts in zip(asked, found, strict=True)}


async def last_messages_at(js: JetStream, stream: str, subjects: Sequence[str]) -> list[StoredMessage | None]:
    """Return the last message of each subject."""
    return await gather_some(_AT_ONCE, partial(js.last_message, stream), subjects)
