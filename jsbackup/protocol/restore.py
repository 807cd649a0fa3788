"""The restore dialogue, seen by the client: a request, a subject for chunks, a window of them, an end with an answer.

Theory of operation (server source: read in `processStreamRestore` of nats-server's `jetstream_api.go`, 2.10.26 to
2.15):

- The answer to the request (`stream_restore_response`) names the subject for chunks:
  `$JS.SNAPSHOT.RESTORE.<stream>.<id>`.
- Each chunk needs its own reply subject. An empty reply acknowledges it. Several chunks may be in flight: they are
  processed in order, from one connection.
- An empty chunk is the end. Its reply is a `stream_create_response`, on every version, with the stream that now exists
  or with the error. It cannot keep a slow restore alive: the server silently gives up after five seconds without a
  chunk, and from then on there is no listener on the subject (status 503).
- A failure shows in the reply to a chunk or to the end, depending on the server's version: up to 2.12.5 everything is
  staged, so it comes at the end, except for a full disk (a plain `-ERR …` text) and limits; from 2.12.6 to 2.14 the
  reply to the next chunk has it, and later chunks have no listener; 2.15 continues to acknowledge and reports it at the
  end.
- Measured: names, limits of the account and the config as such are checked before the answer; subjects that overlap
  with another stream, and replicas where there is no cluster, only at the end, after all has been sent. 2.15 wraps
  those errors ("restore failed: … (10065)", code 10062).
- Measured: in a cluster the restore is begun by the server that should lead the stream. If another one is elected
  (a busy cluster, up to 2.15), that one makes an empty stream and answers the request with a `stream_create_response`.
- Measured: 2.12.6 to 2.14 read a v1 archive up to the end of its tar and no further. A frame behind that, in the same
  chunk or a later one, makes the restore an error ("read/write on closed pipe") although the stream is there and
  complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NoReturn

from jsbackup.errors import ApiError, FormatError, JsBackupError, TransferError, UsageError
from jsbackup.model import JsonObject, StreamState
from jsbackup.names import check_name, check_subject, is_subject
from jsbackup.protocol import api
from jsbackup.protocol.dialogue import (
    LEAST_WINDOW_BYTES,
    ChunkAcknowledged,
    ChunkSent,
    Dialogue,
    EndSent,
    Event,
    Message,
    Publish,
    RestoreAccepted,
    RestoreAnswered,
    RestoreDone,
    TransferFailed,
)
from jsbackup.protocol.headers import NO_RESPONDERS, HeaderStatus, parse_status
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.protocol.responses import TYPE_PREFIX, as_target_error, decode_response
from jsbackup.readable import one_line
from jsbackup.strict_json import Fields, read_object

__all__ = ["RestoreSender", "RestoreState", "chunk_limit"]

# Measured: half of that takes 5-10 % more CPU on both sides, twice as much gains nothing.
RESTORE_CHUNK_BYTES = 256 * 1024

_ACCEPTED_TOKENS = ["$JS", "SNAPSHOT", "RESTORE"]
_STORAGE_FAILURE = b"-ERR"


class RestoreState(Enum):
    """The state of the dialogue."""

    REQUESTED = "the answer is missing"
    OPEN = "chunks may be sent"
    ENDING = "the end was sent"
    ANSWERED = "the stream exists, acknowledgements are missing"
    DONE = "the stream exists and every chunk was taken"
    FAILED = "broken for good"


TRANSITIONS: Mapping[tuple[RestoreState, type[Event]], RestoreState] = {
    (RestoreState.REQUESTED, RestoreAccepted): RestoreState.OPEN,
    (RestoreState.REQUESTED, TransferFailed): RestoreState.FAILED,
    (RestoreState.OPEN, ChunkSent): RestoreState.OPEN,
    (RestoreState.OPEN, ChunkAcknowledged): RestoreState.OPEN,
    (RestoreState.OPEN, EndSent): RestoreState.ENDING,
    (RestoreState.OPEN, TransferFailed): RestoreState.FAILED,
    (RestoreState.ENDING, ChunkAcknowledged): RestoreState.ENDING,
    (RestoreState.ENDING, RestoreAnswered): RestoreState.ANSWERED,
    (RestoreState.ENDING, RestoreDone): RestoreState.DONE,
    (RestoreState.ENDING, TransferFailed): RestoreState.FAILED,
    (RestoreState.ANSWERED, ChunkAcknowledged): RestoreState.ANSWERED,
    (RestoreState.ANSWERED, RestoreDone): RestoreState.DONE,
    (RestoreState.ANSWERED, TransferFailed): RestoreState.FAILED,
    (RestoreState.DONE, TransferFailed): RestoreState.FAILED,
}


def chunk_limit(max_payload_bytes: int) -> int:
    """Return the largest chunk for a server with this `max_payload`, from its INFO: at most the default."""
    return max(1, min(RESTORE_CHUNK_BYTES, max_payload_bytes))


class RestoreSender(Dialogue[RestoreState]):
    """Sends one archive to be restored as the stream that `config` names. `state` is that of the archive.

    `room` bytes may be sent now; a chunk may always be sent while none is in flight.
    """

    def __init__(
        self,
        config: JsonObject,
        state: StreamState,
        *,
        max_chunk: int = RESTORE_CHUNK_BYTES,
        window_size: int = LEAST_WINDOW_BYTES,
    ) -> None:
        name = config.get("name")
        self.stream = check_name("stream", name if isinstance(name, str) else "")
        super().__init__(f"restore of {one_line(self.stream)}", TRANSITIONS, RestoreState.REQUESTED, RestoreState.DONE)
        if max_chunk < 1 or window_size < 1:
            raise UsageError(f"{self.what}: chunks of {max_chunk} bytes in a window of {window_size}")
        self.config = config
        self.stream_state = state
        self.max_chunk = max_chunk
        self.window_size = window_size
        self.deliver_subject: str | None = None
        self.chunks_sent = 0
        self.bytes_sent = 0
        self.bytes_acknowledged = 0
        self._unacked: dict[str, int] = {}  # reply subject → size
        self._end_reply: str | None = None
        self._answer: RestoreDone | None = None

    @property
    def unacked_bytes(self) -> int:
        return self.bytes_sent - self.bytes_acknowledged

    @property
    def room(self) -> int:
        """The size of the largest chunk that may be sent now, in bytes; 0 if none may."""
        if self.state is not RestoreState.OPEN:
            return 0
        free = self.window_size - self.unacked_bytes if self._unacked else self.max_chunk
        return max(0, min(free, self.max_chunk))

    def request(self, prefix: api.ApiPrefix) -> api.Request:
        """Return the request that starts it. After its answer the first chunk has to arrive within five seconds."""
        return api.stream_restore(prefix, self.config, self.stream_state)

    def refusal(self, payload: bytes) -> ApiError | None:
        """Return the error in an answer to the request, if it is one. Until the answer is received the request may be
        repeated.
        """
        try:
            decode_response(payload, f"{TYPE_PREFIX}stream_restore_response", self.what)
        except ApiError as error:
            return error
        except FormatError:
            pass
        return None

    def receive_response(self, payload: bytes) -> list[Event]:
        """Receive the answer to the request. Raises TargetConflict if the target conflicts, ApiError for other
        refusals.
        """
        self._check_failure()
        if self._only_created(payload):
            self._breach("the cluster made an empty stream instead of beginning the restore")
        answer = self._decode(payload, "stream_restore_response")
        try:
            subject = Fields(answer, self.what).text("deliver_subject")
        except FormatError as error:
            self._fail(error)
        tokens = subject.split(".")
        if tokens[:-1] != [*_ACCEPTED_TOKENS, self.stream] or not is_subject(subject):
            self._breach(f"the server wants chunks on {subject[:200]!r}")
        accepted = RestoreAccepted()
        self._advance(accepted)
        self.deliver_subject = subject
        return [accepted]

    def send(self, chunk: bytes, reply_subject: str) -> None:
        """Queue a chunk; `reply_subject` is only for it. Raises UsageError if it is empty or larger than `room`."""
        subject = self._open_subject(reply_subject)
        size = len(chunk)
        if not 0 < size <= self.room:
            raise UsageError(f"{self.what}: a chunk of {size} bytes where 1 to {self.room} may be sent")
        self._advance(ChunkSent())
        self._unacked[reply_subject] = size
        self.chunks_sent += 1
        self.bytes_sent += size
        self._outgoing.append(Publish(subject, reply_subject, chunk))

    def finish(self, reply_subject: str) -> None:
        """Queue the end, after all chunks. The answer takes as long as the server needs to store what is staged."""
        subject = self._open_subject(reply_subject)
        if not self.chunks_sent:
            raise UsageError(f"{self.what}: an archive without a byte")
        self._advance(EndSent())
        self._end_reply = reply_subject
        self._outgoing.append(Publish(subject, reply_subject))

    def receive(self, message: Message) -> list[Event]:
        """Receive a reply to a chunk or to the end. Raises the error that made the restore fail."""
        self._check_failure()
        try:
            status = parse_status(message.headers)
        except FormatError as error:
            self._fail(error)
        if status is not None:
            self._given_up(status)
        if message.subject == self._end_reply and self._answer is None:
            return self._answered(message.data)
        if message.data:
            self._chunk_failed(message.data)
        size = self._unacked.pop(message.subject, None)
        if size is None:
            self._breach(f"a reply to nothing that was sent, on {message.subject[:200]!r}")
        acknowledged = ChunkAcknowledged()
        self._advance(acknowledged)
        self.bytes_acknowledged += size
        return [acknowledged, *self._finished()]

    def _open_subject(self, reply_subject: str) -> str:
        self._check_failure()
        if self.state is not RestoreState.OPEN or self.deliver_subject is None:
            raise UsageError(f"{self.what}: nothing can be sent in state {self.state.name}")
        if check_subject("reply subject", reply_subject) in self._unacked:
            raise UsageError(f"{self.what}: reply subject {reply_subject} is in use")
        return self.deliver_subject

    def _only_created(self, payload: bytes) -> bool:
        try:
            answer = read_object(payload, self.what)
        except FormatError:
            return False
        return answer.get("type") == f"{TYPE_PREFIX}stream_create_response" and "error" not in answer

    def _answered(self, payload: bytes) -> list[Event]:
        answer = self._decode(payload, "stream_create_response")
        try:
            info = self._restored(answer)
        except FormatError as error:
            self._fail(error)
        self._answer = RestoreDone(info)
        if self._unacked:
            self._advance(RestoreAnswered())
        return self._finished()

    def _restored(self, answer: JsonObject) -> StreamInfo:
        info = stream_info(answer, self.what)
        if info.name != self.stream:
            raise FormatError(f"{self.what}: the answer is about {info.name}")
        return info

    def _finished(self) -> list[Event]:
        if self._answer is None or self._unacked:
            return []
        self._advance(self._answer)
        return [self._answer]

    def _decode(self, payload: bytes, response_type: str) -> JsonObject:
        try:
            return decode_response(payload, f"{TYPE_PREFIX}{response_type}", self.what)
        except ApiError as error:
            self._fail(as_target_error(error))
        except FormatError as error:
            self._fail(error)

    def _chunk_failed(self, payload: bytes) -> NoReturn:
        if payload.startswith(_STORAGE_FAILURE):
            text = one_line(payload[:1000].decode("utf-8", "replace"))
            self._breach(f"the server could not store a chunk: {text}")
        self._decode(payload, "stream_create_response")
        self._breach("an answer before the end")

    def _given_up(self, status: HeaderStatus) -> NoReturn:
        failure: JsBackupError
        if status.code == NO_RESPONDERS:
            failure = TransferError(
                f"{self.what}: the server gave up and takes no more chunks",
                hint="It waits five seconds for a chunk. The next attempt has to find the stream's name free.",
            )
        else:
            failure = TransferError(f"{self.what}: the server answered a chunk with status {status}")
        self._fail(failure)
