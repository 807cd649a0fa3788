"""The snapshot dialogue, seen by the client: a request, its answer, chunks with acknowledgements, a proved end.

Theory of operation (server source: read in `streamSnapshot` of nats-server's `jetstream_api.go`, 2.10.26 to 2.15):

- The answer and the chunks use two subjects, so chunks, and even the end, may arrive before the answer.
- A chunk with a reply subject `$JS.SNAPSHOT.ACK.<stream>.<id>.<length>.<index>` is full: `index` counts from 1 without
  a hole, `length` is that of its data, `id` is the same throughout. Servers up to 2.12.4 call any read a full chunk, so
  those may be shorter than the chunk size, even empty. Names have no dots, so the subject always has seven tokens.
- The last chunk may be short; it has no reply subject, and only the end may follow it.
- The end is an empty message: without a status (all fitted in one short chunk) or with 204 it is a success. 408 means
  that the server saw no interest or no acknowledgement in time; 500 that it failed, with the reason, or on a good
  snapshot with none (a rare race of 2.12.5 to 2.14.5). Up to 2.10 and from 2.12.5 to 2.14.5 a failure can end with 204
  as well: the archive inside has to be checked to its own end.
- An acknowledgement is only flow control: `release` sends it when the chunk has left memory. Never twice: servers up to
  2.12.4 add up the lengths in the subjects.
- The server waits five seconds for acknowledgements (two up to 2.12.4), and two for interest in the deliver subject.
  Subscribe first, and to the exact subject: a subscription with a wildcard delivers, but does not count as interest, so
  that each snapshot begins with those two seconds (measured: 2.00 s against 4 ms, all versions).
- From 2.12.5 on its window is the requested one; before, 8 MiB, and up to twice that if the receiver was fast for a
  while (it accumulates credit).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import NoReturn

from jsbackup.errors import (
    ApiError,
    FormatError,
    IntegrityError,
    JsBackupError,
    SnapshotBusy,
    TransferError,
    UnsupportedError,
    UsageError,
)
from jsbackup.names import check_name, check_subject
from jsbackup.protocol import api
from jsbackup.protocol.dialogue import (
    ChunkReceived,
    Dialogue,
    Event,
    LastChunkReceived,
    Message,
    Publish,
    SnapshotEnded,
    SnapshotStarted,
    TransferFailed,
)
from jsbackup.protocol.headers import HeaderStatus, parse_status
from jsbackup.protocol.responses import TYPE_PREFIX, ErrCode, decode_response
from jsbackup.readable import one_line
from jsbackup.server_state import stream_state_from_json
from jsbackup.strict_json import Fields

__all__ = ["DEFAULT_WINDOW_BYTES", "SNAPSHOT_CHUNK_BYTES", "SnapshotReceiver", "SnapshotState"]

# The server's own defaults and limits. Servers up to 2.12.4 do not apply them, so it is done here for all.
SNAPSHOT_CHUNK_BYTES = 128 * 1024
DEFAULT_WINDOW_BYTES = 8 * 1024 * 1024
MIN_BYTES = 1024
MAX_CHUNK_BYTES = 1024 * 1024
MAX_WINDOW_BYTES = 32 * 1024 * 1024
# The most that servers up to 2.12.4 may have in flight, whatever was requested: their window, and credit for another.
OLD_WINDOW_BYTES = 2 * DEFAULT_WINDOW_BYTES

_SUCCESS = 204
_ACK_TOKENS = ("$JS", "SNAPSHOT", "ACK")
_NUMBER = re.compile(r"[0-9]{1,18}")


class SnapshotState(Enum):
    """The state of the dialogue. `EARLY…` states wait for the answer."""

    REQUESTED = "nothing has arrived"
    EARLY = "full chunks arrive, the answer is missing"
    EARLY_TAIL = "the short last chunk arrived, the answer is missing"
    EARLY_END = "the end arrived, the answer is missing"
    STREAMING = "the answer arrived, full chunks may come"
    TAIL = "the short last chunk arrived, the end is missing"
    DONE = "all arrived"
    FAILED = "broken for good"


TRANSITIONS: Mapping[tuple[SnapshotState, type[Event]], SnapshotState] = {
    (SnapshotState.REQUESTED, SnapshotStarted): SnapshotState.STREAMING,
    (SnapshotState.REQUESTED, ChunkReceived): SnapshotState.EARLY,
    (SnapshotState.REQUESTED, LastChunkReceived): SnapshotState.EARLY_TAIL,
    (SnapshotState.REQUESTED, TransferFailed): SnapshotState.FAILED,
    (SnapshotState.EARLY, SnapshotStarted): SnapshotState.STREAMING,
    (SnapshotState.EARLY, ChunkReceived): SnapshotState.EARLY,
    (SnapshotState.EARLY, LastChunkReceived): SnapshotState.EARLY_TAIL,
    (SnapshotState.EARLY, SnapshotEnded): SnapshotState.EARLY_END,
    (SnapshotState.EARLY, TransferFailed): SnapshotState.FAILED,
    (SnapshotState.EARLY_TAIL, SnapshotStarted): SnapshotState.TAIL,
    (SnapshotState.EARLY_TAIL, SnapshotEnded): SnapshotState.EARLY_END,
    (SnapshotState.EARLY_TAIL, TransferFailed): SnapshotState.FAILED,
    (SnapshotState.EARLY_END, SnapshotStarted): SnapshotState.DONE,
    (SnapshotState.EARLY_END, TransferFailed): SnapshotState.FAILED,
    (SnapshotState.STREAMING, ChunkReceived): SnapshotState.STREAMING,
    (SnapshotState.STREAMING, LastChunkReceived): SnapshotState.TAIL,
    (SnapshotState.STREAMING, SnapshotEnded): SnapshotState.DONE,
    (SnapshotState.STREAMING, TransferFailed): SnapshotState.FAILED,
    (SnapshotState.TAIL, SnapshotEnded): SnapshotState.DONE,
    (SnapshotState.TAIL, TransferFailed): SnapshotState.FAILED,
    (SnapshotState.DONE, TransferFailed): SnapshotState.FAILED,
}


class SnapshotReceiver(Dialogue[SnapshotState]):
    """Receives one snapshot of `stream` on `deliver_subject`, an inbox for this snapshot only.

    Sizes are limited as by the server. `window_size` None leaves the choice to the server, and is the only value that
    servers before 2.12.5 accept (see `api.stream_snapshot`). The driver's memory is limited: beyond `flow_limit_bytes`
    unreleased bytes the dialogue fails, since no server sends more.
    """

    def __init__(
        self,
        stream: str,
        deliver_subject: str,
        *,
        chunk_size: int = SNAPSHOT_CHUNK_BYTES,
        window_size: int | None = DEFAULT_WINDOW_BYTES,
        include_consumers: bool = True,
        check: bool = False,
    ) -> None:
        super().__init__(f"snapshot of {one_line(stream)}", TRANSITIONS, SnapshotState.REQUESTED, SnapshotState.DONE)
        self.stream = check_name("stream", stream)
        self.deliver_subject = check_subject("deliver subject", deliver_subject)
        self.chunk_size = min(max(MIN_BYTES, chunk_size), MAX_CHUNK_BYTES)
        self.window_size = None if window_size is None else min(max(self.chunk_size, window_size), MAX_WINDOW_BYTES)
        self.flow_limit_bytes = max(self.window_size or 0, OLD_WINDOW_BYTES) + 2 * self.chunk_size
        self.include_consumers = include_consumers
        self.check = check
        self.chunks_received = 0
        self.bytes_received = 0
        self.unacked_bytes = 0
        self._unreleased: dict[int, int] = {}  # index → size; the driver has the data
        self._transfer_id: str | None = None

    def request(self, prefix: api.ApiPrefix) -> api.Request:
        """Return the request that starts it. Subscribe to `deliver_subject` before sending it."""
        return api.stream_snapshot(
            prefix,
            self.stream,
            self.deliver_subject,
            chunk_size=self.chunk_size,
            window_size=self.window_size,
            include_consumers=self.include_consumers,
            check=self.check,
        )

    def receive_response(self, payload: bytes) -> list[Event]:
        """Receive the answer to the request: SnapshotStarted, and SnapshotEnded if everything else has arrived.

        Raises SnapshotBusy while another snapshot of the stream is running, UnsupportedError if the server cannot
        snapshot this stream, IntegrityError if its check found damage, ApiError for any other refusal.
        """
        self._check_failure()
        try:
            started = self._decode_started(payload)
        except ApiError as error:
            self._refused(error)
        except FormatError as error:
            self._fail(error)
        self._advance(started)
        return [started, SnapshotEnded()] if self.done else [started]

    def receive(self, message: Message) -> list[Event]:
        """Receive a message on the deliver subject. Raises TransferError if it ends the transfer or violates the
        protocol.
        """
        self._check_failure()
        try:
            status = parse_status(message.headers)
        except FormatError as error:
            self._fail(error)
        if status is not None and status.code != _SUCCESS:
            self._ended_badly(status)
        if message.data or message.reply:
            if status is not None:
                self._breach(f"status {status} beside data")
            return [self._chunk(message.reply or None, message.data)]
        if not self.bytes_received:
            self._breach("ended before its first byte")
        ended = SnapshotEnded()
        self._advance(ended)
        return [ended] if self.done else []

    def release(self, chunk: ChunkReceived) -> None:
        """Note that `chunk` has left memory, and queue its acknowledgement. Raises UsageError if it was already
        released.
        """
        self._check_failure()
        size = self._unreleased.pop(chunk.index, None)
        if size is None:
            raise UsageError(f"{self.what}: chunk {chunk.index} is not there to be released")
        self.unacked_bytes -= size
        if chunk.ack_subject is not None and not self.done:
            self._outgoing.append(Publish(chunk.ack_subject))

    def _chunk(self, reply: str | None, data: bytes) -> ChunkReceived:
        size, index = len(data), self.chunks_received + 1
        if size > self.chunk_size:
            self._breach(f"chunk {index} has {size} bytes, more than the {self.chunk_size} asked for")
        chunk: ChunkReceived
        if reply is None:
            chunk = LastChunkReceived(index, data, None)
        else:
            self._check_ack_subject(reply, size, index)
            chunk = ChunkReceived(index, data, reply)
        self._advance(chunk)
        if self.unacked_bytes + size > self.flow_limit_bytes:
            self._breach(f"more than {self.flow_limit_bytes} bytes sent without waiting for acknowledgements")
        self._unreleased[index] = size
        self.chunks_received = index
        self.bytes_received += size
        self.unacked_bytes += size
        return chunk

    def _check_ack_subject(self, subject: str, size: int, index: int) -> None:
        tokens = subject.split(".")
        numbers = tokens[5:]
        if (
            len(tokens) != 7
            or (*tokens[:3],) != _ACK_TOKENS
            or tokens[3] != self.stream
            or not tokens[4]
            or not all(_NUMBER.fullmatch(token) for token in numbers)
        ):
            self._breach(f"chunk {index} wants its acknowledgement on {subject[:200]!r}")
        if self._transfer_id is None:
            self._transfer_id = tokens[4]
        if tokens[4] != self._transfer_id:
            self._breach(f"chunk {index} belongs to another snapshot")
        if int(numbers[1]) != index:
            self._breach(f"expected chunk {index}, got {numbers[1]}")
        if int(numbers[0]) != size:
            self._breach(f"chunk {index} has {size} bytes of {numbers[0]}")

    def _decode_started(self, payload: bytes) -> SnapshotStarted:
        answer = Fields(decode_response(payload, f"{TYPE_PREFIX}stream_snapshot_response", self.what), self.what)
        config = answer.fields("config")
        if config.name("name") != self.stream:
            raise FormatError(f"{self.what}: the answer is about {config.name('name')}")
        return SnapshotStarted(config.value, stream_state_from_json(answer.fields("state")))

    def _refused(self, error: ApiError) -> NoReturn:
        # The server has one code for all of these, and the error texts of its store, unchanged from 2.10 to 2.14.
        failure = _refusal(self.what, error)
        self._fail(failure if failure is error else failure.caused_by(error))

    def _ended_badly(self, status: HeaderStatus) -> NoReturn:
        error = TransferError(f"{self.what}: the server ended it with status {status}")
        self._fail(error.with_facts(status=status.code))


def _refusal(what: str, error: ApiError) -> JsBackupError:
    if error.err_code != ErrCode.SNAPSHOT_FAILED:
        return error
    if "snapshot in progress" in error.message:
        return SnapshotBusy(
            f"{what}: another snapshot of this stream is running",
            hint="Servers before 2.15 make one snapshot of a stream at a time; it is tried again.",
        )
    if "no impl" in error.message:
        return UnsupportedError(
            f"{what}: this server cannot make snapshots of streams kept in memory",
            hint="Servers from 2.15 on can; on older ones the messages are read by a consumer.",
        )
    if "snapshot check detected" in error.message:
        return IntegrityError(
            error.message,
            hint="The server's own store is damaged; what is there can still be saved without --check. Servers before "
            "2.14 refuse snapshots of this stream, and deletions in it, after this, until they are restarted.",
        )
    return error
