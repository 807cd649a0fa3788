"""An archive of some messages, to be restored into real servers in parts or as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jsbackup.config import Connection, ConnectionOptions, source_connection
from jsbackup.formats.archive.archive import ArchiveV2Writer
from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
from jsbackup.formats.s2 import S2Encoder
from jsbackup.model import JsonObject, StreamState
from tests.harness.batches import Message, batch_of, some_messages

CONFIG: JsonObject = {"name": "ORDERS", "subjects": ["orders.>"], "retention": "limits", "storage": "file"}
# More than the three blocks that a v1 archive is cut into.
MESSAGES = some_messages(1500, 16_000)


def state_of(messages: list[Message]) -> StreamState:
    return StreamState(
        messages=len(messages), bytes=1 << 25, first_seq=messages[0].sequence, last_seq=messages[-1].sequence
    )


def archive(wire: str, config: JsonObject, pause: Callable[[], None] = lambda: None) -> Iterator[bytes]:
    """Of MESSAGES, with a pause in the middle."""
    writer: ArchiveV1Writer | ArchiveV2Writer = ArchiveV1Writer(config, None, state_of(MESSAGES))
    if wire == "v2":
        writer = ArchiveV2Writer(state_of(MESSAGES))
    encoder = S2Encoder()
    for piece in writer.begin():
        yield from encoder.feed(piece)
    for at in range(0, len(MESSAGES), 100):
        for piece in writer.write(batch_of(MESSAGES[at : at + 100])):
            yield from encoder.feed(piece)
        if at == 1000:
            pause()
    for piece in writer.finish():
        yield from encoder.feed(piece)
    yield from encoder.finish()


def connection_to(url: str) -> Connection:
    return source_connection(ConnectionOptions(server=url), {"HOME": "/nonexistent"})
