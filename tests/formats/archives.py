"""Writing and reading archives in tests: all at once, in pieces, with the S2 stream around them or without."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from jsbackup.formats.archive.archive import (
    ArchiveDecoder,
    ArchiveEnd,
    ArchiveV2Reader,
    ArchiveV2Writer,
    StreamMeta,
)
from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.s2 import S2Encoder
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject, PendingAck, SequencePair, StreamState
from tests.harness.batches import Message, messages_of

CONFIG: JsonObject = {"name": "ORDERS", "subjects": ["orders.>"], "storage": "file", "max_msgs": -1}
CREATED = "2026-11-21T07:55:28.679969888Z"
SECOND_NS = 1_000_000_000

CONSUMERS = (
    ArchivedConsumer(
        "pull",
        {"durable_name": "pull", "name": "pull", "ack_policy": "explicit"},
        ConsumerState(
            SequencePair(9, 20),
            SequencePair(3, 4),
            {5: PendingAck(4, 1795247728 * SECOND_NS), 20: PendingAck(9, 1795247729 * SECOND_NS)},
            {5: 3},
        ),
        CREATED,
    ),
    ArchivedConsumer("größe", {"name": "größe", "ack_policy": "none"}, ConsumerState(), CREATED),
)


class Content(NamedTuple):
    """What an archive gave."""

    meta: StreamMeta
    messages: list[Message]
    consumers: list[ArchivedConsumer]
    end: ArchiveEnd


def as_stored(messages: Iterable[Message]) -> list[Message]:
    """Servers do not tell an empty header block from none, and subjects that are UTF-8 are text."""
    return [one._replace(headers=one.headers or None, subject=_subject(one.subject)) for one in messages]


def _subject(subject: str | bytes) -> str | bytes:
    if isinstance(subject, str):
        return subject
    try:
        return subject.decode()
    except UnicodeDecodeError:
        return subject


def state_of(messages: Sequence[Message], last_seq: int | None = None, last_ns: int = 0) -> StreamState:
    """The state of a stream of these messages that ends at `last_seq`."""
    last = last_seq if last_seq is not None else messages[-1].sequence if messages else 0
    first = messages[0].sequence if messages else last + 1 if last else 0
    return StreamState(messages=len(messages), first_seq=first, last_seq=last, last_ns=last_ns)


def written(writer: ArchiveV1Writer | ArchiveV2Writer, batches: Iterable[pa.RecordBatch]) -> bytes:
    pieces = writer.begin()
    for batch in batches:
        pieces += writer.write(batch)
    return b"".join(pieces + writer.finish())


def in_s2(archive: bytes) -> bytes:
    encoder = S2Encoder()
    return b"".join([*encoder.feed(archive), *encoder.finish()])


def read(reader: ArchiveV1Reader | ArchiveV2Reader | ArchiveDecoder, pieces: Iterable[bytes]) -> Content:
    items = []
    for piece in pieces:
        items += reader.feed(piece)
    rest, end = reader.finish()
    meta, *others = items + rest
    assert isinstance(meta, StreamMeta)
    return Content(
        meta,
        as_stored(messages_of(item for item in others if isinstance(item, pa.RecordBatch))),
        [item for item in others if isinstance(item, ArchivedConsumer)],
        end,
    )
