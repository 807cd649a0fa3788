"""Decode the S2 stream of a snapshot to messages, for all server versions; and make one that servers restore.

Servers up to 2.14 send and accept v1 (`archive_v1_reader.py`, `archive_v1_writer.py`); those from 2.15 on send v2 and
accept both. Only the first decoded bytes show which one it is: eight bytes of magic for v2, a tar header (512 bytes,
checksum included) of `meta.inf` for v1, which may be that of the PAX records before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError, JsBackupError, UnknownArchiveFormat
from jsbackup.formats import kernels
from jsbackup.formats.archive.archive_items import (
    ITEM_BYTES,
    ArchiveEnd,
    ArchiveItem,
    ArchiveReader,
    IndexState,
    LateDeletions,
    SealedBlock,
    StreamMeta,
    asset_name_is_sound,
    late_deletions,
    refuse_too_large,
)
from jsbackup.formats.archive.tar import TAR_BLOCK_BYTES, header_name
from jsbackup.formats.batch import batch_from_columns, columns_from_batch
from jsbackup.formats.s2 import S2Decoder, S2Encoder
from jsbackup.formats.varints import append_uvarint, uvarint
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.server_state import (
    MAX_SEQUENCE,
    acceptable,
    consumer_state_from_json,
    consumer_state_to_json,
    stream_state_from_json,
    stream_state_to_json,
)
from jsbackup.strict_json import Fields, read_object, write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader
    from jsbackup.formats.archive.archive_v1_writer import ArchiveV1Writer
    from jsbackup.formats.digest import MessageBatch
    from jsbackup.formats.sequences import SequenceSet

__all__ = [
    "ArchiveDecoder",
    "ArchiveEnd",
    "ArchiveItem",
    "ArchiveV2Reader",
    "ArchiveV2Writer",
    "IndexState",
    "LateDeletions",
    "SealedBlock",
    "StreamMeta",
    "archive_batches",
    "late_deletions",
]

MAGIC = b"NATSARC1"

_MAX_STATE_BYTES = 16 << 20
_MAX_CONSUMER_BYTES = 64 << 20
_MAX_NAME_BYTES = 0xFFFF
_END = bytes(5)


class ArchiveDecoder:
    """Takes an S2 stream in pieces of any size and yields the items of its archive, see `archive_items.py`.

    `first_seq` (from the state in the answer to the snapshot request) and `deleted` (from stream info before that)
    allow omitting deleted messages of v1 archives at once. `lenient` is as for `ArchiveV1Reader`. Raises `FormatError`
    for anything that is not proved, `UnknownArchiveFormat` or `UnsupportedError` for what a newer tool might read;
    further calls raise the same error.
    """

    def __init__(self, first_seq: int = 0, deleted: SequenceSet | None = None, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self._first_seq = first_seq
        self._deleted = deleted
        self._s2 = S2Decoder()
        self._start = b""  # the first bytes, until they are enough to recognize the format
        self._reader: ArchiveReader | None = None
        self._v1: ArchiveV1Reader | None = None  # the same, where it is one
        self._refusal: JsBackupError | None = None

    def feed(self, chunk: Buffer) -> Iterator[ArchiveItem]:
        """Yield the items that are complete with `chunk`, lazily: iterate to the end before the next call."""
        if self._refusal is not None:
            raise self._refusal
        return self._items(self._s2.feed(chunk))

    def finish(self) -> tuple[list[ArchiveItem], ArchiveEnd]:
        """Return the last items, and the end, once the whole stream has been fed."""
        if self._refusal is not None:
            raise self._refusal
        self._s2.finish()
        if self._reader is None:
            raise FormatError(f"archive: cut short after {len(self._start)} bytes")
        return self._reader.finish()

    @property
    def flaws(self) -> Sequence[str]:
        """What a lenient reader left out."""
        return () if self._v1 is None else self._v1.flaws

    def _items(self, blocks: Iterator[bytes]) -> Iterator[ArchiveItem]:
        try:
            for block in blocks:
                if self._reader is None:
                    block = self._start + block
                    self._reader = self._sniff(block)
                    if self._reader is None:
                        self._start = block
                        continue
                yield from self._reader.feed(block)
        except JsBackupError as error:
            self._refusal = error
            raise

    def _sniff(self, start: bytes) -> ArchiveReader | None:
        """Return the reader for an archive with this beginning; None if it is too short."""
        if start[: len(MAGIC)] == MAGIC[: len(start)]:
            return ArchiveV2Reader() if len(start) >= len(MAGIC) else None
        if len(start) < TAR_BLOCK_BYTES:
            return None
        name = header_name(start[:TAR_BLOCK_BYTES]) or ""
        if name.rpartition("/")[2] not in ("meta.inf", "errors.txt"):
            raise UnknownArchiveFormat(start)
        # With what it needs it takes longer to import than all other formats, and servers from 2.15 on send no v1.
        from jsbackup.formats.archive.archive_v1_reader import ArchiveV1Reader

        self._v1 = ArchiveV1Reader(self._first_seq, self._deleted, lenient=self._lenient)
        return self._v1


def archive_batches(
    batches: Iterable[MessageBatch],
    writer: ArchiveV1Writer | ArchiveV2Writer,
    advance: Callable[[int, int], None],
    encoder: S2Encoder | None = None,
) -> Iterator[bytes]:
    """Yield the archive that `writer` makes of these messages, in the frames of a new `encoder`.

    Raises FormatError, and the errors of `batches`.
    """
    encoder = encoder or S2Encoder()
    for piece in writer.begin():
        yield from encoder.feed(piece)
    for batch in batches:
        for piece in writer.write(batch):
            yield from encoder.feed(piece)
        advance(batch.nbytes, batch.num_rows)
    for piece in writer.finish():
        yield from encoder.feed(piece)
    yield from encoder.finish()


# --- v2 ---
#
# Archive v2, message by message: reader and writer.
#
# nats-server `server/archive/archive.go` (the container) and `server/stream_backup.go` (what is in it). After the magic
# `NATSARC1` come entries (their encoding: `_kernels_py.py`), names without a sequence first:
#
#     state.json          the stream's state; its consumer_count is the number of entries that follow
#     consumers/<name>    JSON: `{"config": {…}, "state": {…}}`, see `server_state.py`
#     <subject>           a message, sequences rising
#                         all fields zero: the end; without it the archive was cut short
#
# What the server makes of `state.json` when it restores: the stream starts at `first_seq` (an empty one at that
# sequence, too) and ends at `last_seq` even if that message is gone; `bytes` are reserved before anything is stored and
# may be refused, so they should not be too many (too few are corrected); times and counts do not matter. Each consumer
# needs config and state. Consumers come before messages, so one whose config says that it starts anywhere but at the
# first message would start wrong without a state: these are created by the API after the restore. Messages whose TTL
# has passed are skipped, and messages above the server's `max_payload` make the restore fail.


class ArchiveV2Reader:
    """Takes a decoded archive, including its magic, in pieces of any size; yields `StreamMeta`, consumers, batches.

    See `ArchiveReader`. Raises `FormatError`.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._at = 0
        self._enough = len(MAGIC)  # bytes that must be there before another try makes sense
        self._started = False
        self._state: StreamState | None = None
        self._consumers_due = 0
        self._messages = self._last_given = 0
        self._ended = False

    def feed(self, data: Buffer) -> Iterator[ArchiveItem]:
        """Yield the items that are complete with `data`; messages are collected to batches."""
        self._buffer += data
        return self._items(ITEM_BYTES)

    def finish(self) -> tuple[list[ArchiveItem], ArchiveEnd]:
        """Return the last items and the end. Raises `FormatError` if the archive is incomplete."""
        self._enough = 0
        items = list(self._items(0))
        if not self._ended or self._state is None:
            raise FormatError("archive v2: cut short")
        last_seq = max(self._state.last_seq, self._last_given)
        return items, ArchiveEnd("v2", self._messages, last_seq)

    def _items(self, least: int) -> Iterator[ArchiveItem]:
        """Decode while there are `least` bytes of messages, or a complete entry of another kind."""
        while len(self._buffer) - self._at >= self._enough:
            if not self._started:
                if not self._buffer.startswith(MAGIC):
                    break
                self._started, self._at, self._enough = True, len(MAGIC), 0
            elif self._state is None or self._consumers_due:
                entry = self._entry()
                if entry is None:
                    break
                yield self._stream_meta(*entry) if self._state is None else self._consumer(*entry)
            elif self._ended or len(self._buffer) - self._at < least or (batch := self._batch()) is None:
                break
            else:
                yield batch
        del self._buffer[: self._at]
        self._at = 0
        if self._ended and self._buffer:
            raise FormatError("archive v2: more after its end")

    def _batch(self) -> pa.RecordBatch | None:
        columns, at = kernels.decode_entries(self._buffer, self._at, ITEM_BYTES)
        if columns.count == 0:
            self._look_at_entry()
            return None
        sequences = memoryview(columns.sequences).cast("B").cast("q")
        if sequences[0] <= self._last_given or sequences[-1] > MAX_SEQUENCE:
            raise FormatError(f"archive v2: sequence {sequences[0]} after {self._last_given}")
        self._at, self._enough = at, 0
        self._messages += columns.count
        self._last_given = sequences[-1]
        return batch_from_columns(columns)

    def _look_at_entry(self) -> None:
        """Handle the end, or an incomplete message, whose rest has to be awaited."""
        head = self._head()
        if head is None:
            return
        name, time, sequence, headers, payload, cursor = head
        if sequence:
            self._enough = cursor + name + headers + payload - self._at
        elif name or time or headers or payload:
            raise FormatError("archive v2: an entry without a sequence among messages")
        else:
            self._at, self._ended = cursor, True

    def _entry(self) -> tuple[str, bytes] | None:
        """Return the next entry that is not a message; None if it is incomplete."""
        head = self._head()
        if head is None:
            return None
        name_size, _, sequence, headers, payload, cursor = head
        most = _MAX_STATE_BYTES if self._state is None else _MAX_CONSUMER_BYTES
        if sequence or headers or name_size > _MAX_NAME_BYTES or payload > most:
            raise FormatError(f"archive v2: {'a consumer' if self._state else 'state.json'} is missing")
        end = cursor + name_size + payload
        if end > len(self._buffer):
            self._enough = end - self._at
            return None
        self._at, self._enough = end, 0
        try:
            name = self._buffer[cursor : cursor + name_size].decode()
        except UnicodeDecodeError as error:
            raise FormatError("archive v2: a name is not UTF-8") from error
        return name, bytes(self._buffer[cursor + name_size : end])

    def _head(self) -> tuple[int, int, int, int, int, int] | None:
        """Return an entry's five numbers and the start of its name; None if they are incomplete."""
        numbers: list[int] = []
        cursor = self._at
        for _ in range(5):
            value, cursor = uvarint(self._buffer, cursor, "archive v2")
            if not cursor:
                return None
            numbers.append(value)
        name, time, sequence, headers, payload = numbers
        return name, time, sequence, headers, payload, cursor

    def _stream_meta(self, name: str, content: bytes) -> StreamMeta:
        if name != "state.json":
            raise FormatError("archive v2: state.json is missing")
        what = "archive v2: state.json"
        self._state = stream_state_from_json(Fields(read_object(content, what), what), absent=0)
        if self._state.last_seq > MAX_SEQUENCE or self._state.first_seq > MAX_SEQUENCE + 1:
            raise FormatError("archive v2: state.json: sequence out of range")
        self._consumers_due = self._state.consumers
        return StreamMeta(state=self._state)

    def _consumer(self, path: str, content: bytes) -> ArchivedConsumer:
        folder, _, name = path.partition("/")
        if folder != "consumers" or not asset_name_is_sound(name):
            raise FormatError("archive v2: a consumer is missing")
        what = f"archive v2: consumer {name}"
        value = Fields(read_object(content, what), what)
        self._consumers_due -= 1
        return ArchivedConsumer(name, value.object("config"), consumer_state_from_json(value.fields("state")))


class ArchiveV2Writer:
    """Encodes batches as an archive: `begin`, `write` for each batch, `finish`, in that order.

    Of `state`, `first_seq`, `last_seq` and `bytes` matter, see above; messages lie between the two sequences, unless
    `extend` announces later ones. Every consumer needs a state. All errors are `FormatError`.
    """

    def __init__(self, state: StreamState, consumers: Iterable[ArchivedConsumer] = ()) -> None:
        self._state = state
        self._consumers = tuple(consumers)
        self._last_seq = 0
        self._end_seq = state.last_seq
        refuse_too_large(state.last_seq, "archive v2: ")
        if not 0 <= state.first_seq <= state.last_seq + 1 or state.last_seq < 0:
            raise FormatError(f"archive v2: bad sequences {state.first_seq} to {state.last_seq}")
        for consumer in self._consumers:
            if not asset_name_is_sound(consumer.name):
                raise FormatError("archive v2: bad consumer name")
            if consumer.state is None:
                raise FormatError(f"archive v2: consumer {consumer.name} has no state")

    def begin(self) -> list[bytes]:
        state = {**stream_state_to_json(self._state), "consumer_count": len(self._consumers)}
        out = [MAGIC, _json_entry("state.json", state)]
        for consumer in self._consumers:
            if consumer.state is not None:
                value = {
                    "config": {**consumer.config, "name": consumer.name},
                    "state": consumer_state_to_json(acceptable(consumer.state, self._start_seq(consumer))),
                }
                out.append(_json_entry(f"consumers/{consumer.name}", value))
        return out

    def extend(self, last_seq: int) -> None:
        """Allow messages up to this sequence. Servers accept them although they exceed the state in `begin` (2.15)."""
        refuse_too_large(last_seq, "archive v2: ")
        self._end_seq = max(self._end_seq, last_seq)

    def write(self, batch: pa.RecordBatch) -> list[bytes]:
        if batch.num_rows == 0:
            return []
        columns = columns_from_batch(batch)
        sequences = memoryview(columns.sequences).cast("B").cast("q")
        first = max(self._last_seq + 1, self._state.first_seq)
        if not first <= sequences[0] <= sequences[-1] <= self._end_seq:
            raise FormatError(f"archive v2: sequences {sequences[0]} to {sequences[-1]} are out of order or range")
        self._last_seq = sequences[-1]
        return [kernels.encode_entries(columns)[0]]

    def finish(self) -> list[bytes]:
        return [_END]

    def _start_seq(self, consumer: ArchivedConsumer) -> int:
        """Return where the server lets the consumer start before it reads its state: the stream is empty then."""
        wanted = consumer.config.get("opt_start_seq")
        return max(self._state.first_seq, 1, wanted if isinstance(wanted, int) else 0)


def _json_entry(name: str, value: JsonObject) -> bytes:
    content = write_json(value, f"archive v2: {name}", ascii_only=True)
    encoded = name.encode()
    head = bytearray()
    for number in (len(encoded), 0, 0, 0, len(content)):
        append_uvarint(head, number)
    return bytes(head) + encoded + content
