"""The states of streams and consumers, as servers write them in JSON, and cut to what a stream has.

Server source (`StreamState` and `ConsumerState` in nats-server `server/store.go`, 2.10 to 2.15): names are those of
Go's encoder, times are RFC 3339, and the maps of a consumer's state are left out if they are empty. STREAM.INFO,
snapshots, archives v2 and the folders of the nats CLI have a stream's state, archives v2 a consumer's.

A server requires of a consumer's state in JSON (`consumerFileStore.Update`), not of one in an archive v1: the ack floor
is not above delivered, and pending is above the former and not above the latter. And the ack floor must not be below
the start of a new consumer with that config, otherwise the state is silently ignored: servers before 2.14 keep a floor
of 0 until the first ack. `acceptable` adjusts a state accordingly.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from jsbackup.errors import FormatError
from jsbackup.model import ConsumerState, JsonObject, PendingAck, SequencePair, StreamState
from jsbackup.strict_json import UINT64, Fields
from jsbackup.times import format_time

__all__ = [
    "MAX_SEQUENCE",
    "acceptable",
    "clamp_state",
    "consumer_state_from_json",
    "consumer_state_to_json",
    "pair_from_json",
    "pair_to_json",
    "stream_state_from_json",
    "stream_state_to_json",
]

# The server's own limit for sequences: the two high bits are flags in its records.
MAX_SEQUENCE = (1 << 62) - 1


def stream_state_from_json(value: Fields, *, absent: int | None = None) -> StreamState:
    """Decode a stream's state. Raises FormatError, also for an absent number, unless it is to count as `absent`."""
    return StreamState(
        messages=value.number("messages", high=UINT64, default=absent),
        bytes=value.number("bytes", high=UINT64, default=absent),
        first_seq=value.number("first_seq", high=UINT64, default=absent),
        first_ns=value.time_ns("first_ts"),
        last_seq=value.number("last_seq", high=UINT64, default=absent),
        last_ns=value.time_ns("last_ts"),
        consumers=value.number("consumer_count", high=UINT64, default=absent),
        deleted=value.number("num_deleted", high=UINT64, default=0),
    )


def stream_state_to_json(state: StreamState) -> JsonObject:
    """Encode a stream's state. Every server from 2.10 on knows the fields, for strict JSON."""
    value: JsonObject = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "first_ts": format_time(state.first_ns),
        "last_seq": state.last_seq,
        "last_ts": format_time(state.last_ns),
        "consumer_count": state.consumers,
    }
    if state.deleted:
        value["num_deleted"] = state.deleted
    return value


def pair_from_json(value: Fields, high: int = UINT64, *, absent: int | None = None) -> SequencePair:
    """Decode a position of a consumer; `high` limits the sequence of its stream. Raises FormatError, also for an
    absent number, unless it is to count as `absent`.
    """
    return SequencePair(
        consumer=value.number("consumer_seq", high=UINT64, default=absent),
        stream=value.number("stream_seq", high=high, default=absent),
    )


def pair_to_json(pair: SequencePair) -> JsonObject:
    return {"consumer_seq": pair.consumer, "stream_seq": pair.stream}


def consumer_state_from_json(value: Fields) -> ConsumerState:
    """Decode a consumer's state in an archive; what is absent is 0 or empty, as for Go. Raises FormatError."""
    delivered, floor, pending, redelivered = (
        value.optional(key) or Fields({}, value.where) for key in ("delivered", "ack_floor", "pending", "redelivered")
    )
    acks = {_sequence(key, pending.where): pending.fields(key) for key in pending.value}
    return ConsumerState(
        delivered=pair_from_json(delivered, MAX_SEQUENCE, absent=0),
        ack_floor=pair_from_json(floor, MAX_SEQUENCE, absent=0),
        pending={
            sequence: PendingAck(ack.number("Sequence", default=0), ack.signed("Timestamp", 0))
            for sequence, ack in acks.items()
        },
        redelivered={
            _sequence(key, redelivered.where): redelivered.number(key, default=0) for key in redelivered.value
        },
    )


def _sequence(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= UINT64):
        raise FormatError(f"{where}: not a sequence: {text[:40]!r}")
    return int(text)


def consumer_state_to_json(state: ConsumerState) -> JsonObject:
    """Encode a consumer's state."""
    value: JsonObject = {"delivered": pair_to_json(state.delivered), "ack_floor": pair_to_json(state.ack_floor)}
    if state.pending:
        value["pending"] = {
            str(sequence): {"Sequence": ack.consumer, "Timestamp": ack.timestamp_ns}
            for sequence, ack in sorted(state.pending.items())
        }
    if state.redelivered:
        value["redelivered"] = {str(sequence): count for sequence, count in sorted(state.redelivered.items())}
    return value


def acceptable(state: ConsumerState, start_seq: int) -> ConsumerState:
    """Return the nearest state that a server accepts as JSON if the consumer would start at `start_seq`.

    Pending messages at or below the ack floor are acknowledged or deleted; those above delivered will be delivered
    anyway.
    """
    floor = replace(state.ack_floor, stream=max(state.ack_floor.stream, start_seq - 1))
    delivered = SequencePair(
        consumer=max(state.delivered.consumer, floor.consumer), stream=max(state.delivered.stream, floor.stream)
    )
    pending = {key: ack for key, ack in state.pending.items() if floor.stream < key <= delivered.stream}
    return ConsumerState(delivered, floor, pending, state.redelivered)


def clamp_state(state: ConsumerState, last_seq: int, kept: Container[int] | None = None) -> ConsumerState:
    """Return the state cut at the stream's last sequence: a consumer ahead of its stream stops delivering.

    Given `kept`, the stream has no other messages of those that are pending or redelivered, and drops their entries.
    Positions keep their meaning ("delivered up to here", "all acknowledged up to here"), since sequences dropped below
    them change nothing. If nothing is pending any more, the ack floor becomes the delivered position. Numbers of
    deliveries stay: they only ever rise.
    """
    delivered = SequencePair(state.delivered.consumer, min(state.delivered.stream, last_seq))
    floor = SequencePair(state.ack_floor.consumer, min(state.ack_floor.stream, last_seq))
    stays = {
        sequence
        for sequence in (*state.pending, *state.redelivered)
        if sequence <= last_seq and (kept is None or sequence in kept)
    }
    pending = {sequence: ack for sequence, ack in state.pending.items() if sequence in stays}
    if kept is not None and state.pending and not pending:
        floor = SequencePair(max(floor.consumer, delivered.consumer), max(floor.stream, delivered.stream))
    redelivered = {sequence: count for sequence, count in state.redelivered.items() if sequence in stays}
    return ConsumerState(delivered, floor, pending, redelivered)
