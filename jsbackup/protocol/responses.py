"""Answers of the JetStream API: a common check of type and error, and hints for errors; and the answer of a
stream to a message that was published to it.

Every answer is a JSON object with a `type`; a failure carries `error: {code, err_code, description}`, and then the type
may be that of another request (`system_response`, or `stream_create_response` for a failed restore). Codes and
texts: `server/errors.json` of nats-server, 2.10 to 2.15, where no code ever changed its meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from jsbackup.errors import ApiError, FormatError, JsBackupError, TargetConflict
from jsbackup.model import JsonObject
from jsbackup.readable import one_line
from jsbackup.strict_json import Fields, read_object

__all__ = [
    "ErrCode",
    "PubAck",
    "as_target_error",
    "decode_ack",
    "decode_response",
    "is_unknown_field",
    "lacks_peers",
    "lacks_stream",
    "may_pass",
]

TYPE_PREFIX = "io.nats.jetstream.api.v1."


class ErrCode(IntEnum):
    """JetStream's error codes that jsbackup acts on or explains."""

    RESOURCES_EXCEEDED = 10002
    CLUSTER_INCOMPLETE = 10004
    NO_PEERS = 10005
    CLUSTER_NOT_AVAILABLE = 10008
    CLUSTER_NOT_LEADER = 10009
    CLUSTER_REQUIRED = 10010
    CONSUMER_NAME_IN_USE = 10013
    INSUFFICIENT_RESOURCES = 10023
    INVALID_JSON = 10025
    MAX_CONSUMERS = 10026
    MAX_STREAMS = 10027
    MEMORY_EXCEEDED = 10028
    NO_MESSAGE_FOUND = 10037
    NOT_ENABLED_FOR_ACCOUNT = 10039
    SEQUENCE_NOT_FOUND = 10043
    STORAGE_EXCEEDED = 10047
    INVALID_CONFIG = 10052
    STREAM_LIMITS = 10053
    STREAM_MISMATCH = 10056
    STREAM_NAME_IN_USE = 10058
    STREAM_NOT_FOUND = 10059
    RESTORE_FAILED = 10062
    SNAPSHOT_FAILED = 10064
    SUBJECTS_OVERLAP = 10065
    REPLICAS_NOT_SUPPORTED = 10074
    NOT_ENABLED = 10076
    MAX_BYTES_REQUIRED = 10113
    STREAM_OFFLINE = 10118
    CONSUMER_OFFLINE = 10119
    NO_LIMITS = 10120
    MAX_ACK_PENDING = 10121
    MAX_STREAM_BYTES = 10122
    MAX_REQUEST_BATCH = 10125
    WRONG_LAST_SEQUENCE = 10071
    RESTORE_NAME_IN_USE = 10130
    CONSUMER_EXISTS = 10148
    DUPLICATE_IN_PROCESS = 10158
    WRONG_LAST_SEQUENCE_IN_FLIGHT = 10164
    STREAM_OFFLINE_REASON = 10194
    CONSUMER_OFFLINE_REASON = 10195
    API_LEVEL_REQUIRED = 10185


_FREE_THE_NAME = "Choose another name with --rename, or say with --if-exists what to do about the one that is there."
_MORE_ROOM = "Free space in the account or raise its JetStream limits, then try again."
_OFFLINE = "No server that holds it is reachable, or it needs a newer server; see the JetStream report of the cluster."

_HINTS: dict[int, str] = {
    ErrCode.RESOURCES_EXCEEDED: _MORE_ROOM,
    ErrCode.CLUSTER_INCOMPLETE: "A part of the cluster did not answer; try again.",
    ErrCode.NO_PEERS: "No set of servers fits replicas, placement and space; change --replicas or the placement.",
    ErrCode.CLUSTER_NOT_AVAILABLE: "The cluster has no meta leader right now; try again shortly.",
    ErrCode.INSUFFICIENT_RESOURCES: _MORE_ROOM,
    ErrCode.INVALID_JSON: "The server may be older than a field of this configuration.",
    ErrCode.MAX_CONSUMERS: "The account or the stream allows no more consumers.",
    ErrCode.MAX_STREAMS: "The account allows no more streams.",
    ErrCode.MEMORY_EXCEEDED: _MORE_ROOM,
    ErrCode.NOT_ENABLED_FOR_ACCOUNT: (
        "Enable JetStream for this account, or connect with another user or domain. "
        "A user of the system account reads all accounts with --all-accounts."
    ),
    ErrCode.STORAGE_EXCEEDED: _MORE_ROOM,
    ErrCode.INVALID_CONFIG: "Adjust the stream's configuration with --set.",
    ErrCode.STREAM_LIMITS: _MORE_ROOM,
    ErrCode.STREAM_NAME_IN_USE: _FREE_THE_NAME,
    ErrCode.SUBJECTS_OVERLAP: "Another stream listens to these subjects; map them with --map-subject or remove it.",
    ErrCode.REPLICAS_NOT_SUPPORTED: "This server is not in a cluster; use --replicas 1.",
    ErrCode.NOT_ENABLED: "Enable JetStream on this server, or name the domain of one that has it.",
    ErrCode.MAX_BYTES_REQUIRED: "This account insists on max_bytes; give it with --set max_bytes=N.",
    ErrCode.STREAM_OFFLINE: _OFFLINE,
    ErrCode.CONSUMER_OFFLINE: _OFFLINE,
    ErrCode.NO_LIMITS: "The account has no limits for this number of replicas; use another --replicas.",
    ErrCode.MAX_ACK_PENDING: "Raise max_ack_pending in the limits of JetStream of the server or account.",
    ErrCode.MAX_REQUEST_BATCH: "Raise max_request_batch in the limits of JetStream of the server.",
    ErrCode.MAX_STREAM_BYTES: "Lower max_bytes with --set, or raise the account's limit.",
    ErrCode.RESTORE_NAME_IN_USE: _FREE_THE_NAME,
    ErrCode.STREAM_OFFLINE_REASON: _OFFLINE,
    ErrCode.CONSUMER_OFFLINE_REASON: _OFFLINE,
    ErrCode.API_LEVEL_REQUIRED: "This server is too old for what was asked.",
}

# The same request may succeed a moment later without any intervention.
_TEMPORARY = frozenset({ErrCode.CLUSTER_INCOMPLETE, ErrCode.CLUSTER_NOT_AVAILABLE, ErrCode.CLUSTER_NOT_LEADER})

# The target's names, subjects or limits conflict with the stream.
_CONFLICTS = frozenset(
    {
        ErrCode.RESOURCES_EXCEEDED,
        ErrCode.INSUFFICIENT_RESOURCES,
        ErrCode.MAX_CONSUMERS,
        ErrCode.MAX_STREAMS,
        ErrCode.MEMORY_EXCEEDED,
        ErrCode.STORAGE_EXCEEDED,
        ErrCode.STREAM_LIMITS,
        ErrCode.STREAM_NAME_IN_USE,
        ErrCode.SUBJECTS_OVERLAP,
        ErrCode.CONSUMER_NAME_IN_USE,
        ErrCode.CONSUMER_EXISTS,
        ErrCode.MAX_BYTES_REQUIRED,
        ErrCode.MAX_STREAM_BYTES,
        ErrCode.NO_LIMITS,
        ErrCode.RESTORE_NAME_IN_USE,
    }
)


# 2.15 wraps the cause of a failed restore: "restore failed: error adding stream: subjects overlap … (10065)", code
# 10062.
_WRAPPED = re.compile(r"\(([0-9]{5})\)(?: \(10062\))?$")


def _cause(err_code: int, text: str) -> int:
    """Return the code of the cause: the error's own, or the wrapped one."""
    wrapped = _WRAPPED.search(text) if err_code == ErrCode.RESTORE_FAILED else None
    return err_code if wrapped is None else int(wrapped[1])


def decode_response(payload: bytes, expected_type: str, what: str = "answer of JetStream") -> JsonObject:
    """Return the answer's JSON object, checked to be of `expected_type` and not an error. `what` begins error messages.

    Raises ApiError for the server's own error and FormatError for an invalid answer.
    """
    answer = Fields(read_object(payload, what), what)
    error = answer.optional("error")
    if error is not None:
        code = error.number("code", default=0)
        err_code = error.number("err_code", default=0)
        description = one_line(error.text("description", "")) or "no description"
        number = f" ({err_code})" if err_code else ""
        hint = _HINTS.get(_cause(err_code, description))
        raise ApiError(f"{what}: {description}{number}", code=code, err_code=err_code, hint=hint)
    kind = answer.text("type")
    if kind != expected_type:
        raise FormatError(f"{what}: expected {expected_type}, got {one_line(kind, 80)}")
    return answer.value


def may_pass(error: ApiError) -> bool:
    """Return whether the same request may succeed a moment later."""
    return error.err_code in _TEMPORARY


def lacks_stream(error: JsBackupError) -> bool:
    """Return whether JetStream reports that there is no such stream."""
    return isinstance(error, ApiError) and error.err_code == ErrCode.STREAM_NOT_FOUND


def lacks_peers(error: ApiError) -> bool:
    """Return whether a cluster refuses because it does not know some of its servers yet.

    Text: `selectPeerError` in nats-server's jetstream_cluster.go, only used for servers without statistics.
    """
    return _cause(error.err_code, error.message) == ErrCode.NO_PEERS and "peer offline" in error.message


def is_unknown_field(error: ApiError, field: str) -> bool:
    """Return whether a server with strict JSON refused the request because of a field that it does not know."""
    return error.err_code == ErrCode.INVALID_JSON and f'unknown field "{field}"' in error.message


def as_target_error(error: ApiError) -> JsBackupError:
    """Return the error for a restore: a TargetConflict if the target conflicts, else `error`."""
    if _cause(error.err_code, error.message) not in _CONFLICTS:
        return error
    return TargetConflict(error.message, hint=error.hint).caused_by(error)


@dataclass(frozen=True, slots=True)
class PubAck:
    """`stream` has the message as `sequence`. With `duplicate` it had stored one with the same message id before."""

    stream: str
    sequence: int
    duplicate: bool


def decode_ack(payload: bytes, subject: str) -> PubAck:
    """Decode the answer to a message on `subject`. Raises ApiError if it was not stored, and FormatError."""
    what = one_line(f"answer to a message on {subject}", 200)
    answer = Fields(read_object(payload, what), what)
    if (error := answer.optional("error")) is not None:
        text = one_line(error.text("description", "")) or "no description"
        err_code = error.number("err_code", default=0)
        raise ApiError(f"{text} ({err_code})", code=error.number("code", default=0), err_code=err_code)
    return PubAck(answer.name("stream"), answer.number("seq", low=1), answer.flag("duplicate"))
