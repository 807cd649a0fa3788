"""A consumer's state as the server stores it: `o.dat` in archive v1, JSON in archive v2.

`o.dat` (nats-server `server/store.go` encodeConsumerState, `server/filestore.go` decodeConsumerState; the same from
2.10 to 2.15): magic 22, version 1 or 2, then Go varints: ack floor (consumer, stream), delivered (consumer, stream),
number of pending; if not 0: base time (signed, seconds), then for each its stream sequence less the ack floor's, its
consumer sequence less the ack floor's (version 2 only), and base minus delivery time (signed, seconds; version 1: time
minus base); number of redelivered, then for each its stream sequence less the ack floor's, and its count. Differences
are modulo 2^64. Version 1 stores delivered relative to an ack floor above 1. We write version 2, as every server does.

`o.dat` only keeps delivery times of pending messages in whole seconds (rounded towards zero), so their
redelivery may come up to a second early. Keys, counts and positions are exact. JSON keeps all.

A server requires of a state in JSON (`consumerFileStore.Update`), not of `o.dat`: the ack floor is not above delivered,
and pending is above the former and not above the latter. And the ack floor must not be below the start of a new
consumer with that config, otherwise the state is silently ignored: servers before 2.14 keep a floor of 0 until the
first ack. `acceptable` adjusts a state accordingly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.archive.archive_items import MAX_SEQUENCE, MAX_U64, integer
from jsbackup.model import ConsumerState, JsonObject, PendingAck, SequencePair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["acceptable", "clamp", "decode_state", "encode_state", "state_from_json", "state_to_json"]

_MAGIC = 22
_SECOND_NS = 1_000_000_000
_WHAT = "consumer state"


def decode_state(data: Buffer) -> ConsumerState:
    """Decode `o.dat`. An empty file is the state of a consumer that was never used. Raises `FormatError`."""
    raw = bytes(data)
    if not raw:
        return ConsumerState()
    if len(raw) < 2 or raw[0] != _MAGIC or raw[1] not in (1, 2):
        raise FormatError(f"{_WHAT}: unknown format {raw[:2].hex()}")
    version = raw[1]
    numbers = _Varints(raw, 2)
    floor = SequencePair(consumer=numbers.next(), stream=numbers.next())
    delivered = SequencePair(consumer=numbers.next(), stream=numbers.next())
    if version == 1:
        delivered = SequencePair(
            consumer=delivered.consumer + max(0, floor.consumer - 1), stream=delivered.stream + max(0, floor.stream - 1)
        )
    if max(floor.stream, delivered.stream) > MAX_SEQUENCE or delivered.consumer > MAX_U64:
        raise FormatError(f"{_WHAT}: position out of range")
    pending = _pending(numbers, version, floor)
    redelivered: dict[int, int] = {}
    for _ in range(numbers.count(of=2)):
        offset, count = numbers.next(), numbers.next()
        if offset and count:  # the server ignores others
            redelivered[offset + floor.stream & MAX_U64] = count
    numbers.finish()
    return ConsumerState(delivered, floor, pending, redelivered)


def _pending(numbers: _Varints, version: int, floor: SequencePair) -> dict[int, PendingAck]:
    count = numbers.count(of=version + 1)
    base = _signed(numbers.next()) if count else 0
    pending: dict[int, PendingAck] = {}
    for _ in range(count):
        sequence = numbers.next() + floor.stream & MAX_U64
        consumer = numbers.next() + floor.consumer & MAX_U64 if version == 2 else 0
        offset = _signed(numbers.next())
        time_ns = (base - offset if version == 2 else base + offset) * _SECOND_NS
        if sequence == 0 or not -(1 << 63) <= time_ns < 1 << 63:
            raise FormatError(f"{_WHAT}: bad pending message")
        pending[sequence] = PendingAck(consumer, time_ns)
    return pending


class _Varints:
    """Reads the unsigned varints of `raw` from `at` on."""

    __slots__ = ("_at", "_raw")

    def __init__(self, raw: bytes, at: int) -> None:
        self._raw = raw
        self._at = at

    def next(self) -> int:
        raw, at = self._raw, self._at
        value = shift = 0
        while at < len(raw):
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value > MAX_U64:
                    break
                self._at = at
                return value
            shift += 7
            if shift > 63:
                break
        else:
            raise FormatError(f"{_WHAT}: cut short")
        raise FormatError(f"{_WHAT}: a number of more than 64 bits")

    def count(self, of: int) -> int:
        """Read a number of entries of `of` numbers each, checked against the remaining bytes."""
        count = self.next()
        if count * of > len(self._raw) - self._at:
            raise FormatError(f"{_WHAT}: {count} entries do not fit")
        return count

    def finish(self) -> None:
        if self._at < len(self._raw):
            raise FormatError(f"{_WHAT}: more after its end")


def _signed(zigzag: int) -> int:
    return zigzag >> 1 ^ -(zigzag & 1)


def encode_state(state: ConsumerState) -> bytes:
    """Encode `o.dat`, version 2, entries by rising sequence. Raises `FormatError` for numbers beyond 64 bits."""
    floor = state.ack_floor
    numbers = [floor.consumer, floor.stream, state.delivered.consumer, state.delivered.stream, len(state.pending)]
    if state.pending:
        seconds = {sequence: _whole_seconds(ack.timestamp_ns) for sequence, ack in state.pending.items()}
        # The server uses its clock as the base; any will do, and with the latest time all differences are small.
        base = max(seconds.values())
        numbers.append(_zigzag(base))
        for sequence, ack in sorted(state.pending.items()):
            numbers += (
                sequence - floor.stream & MAX_U64,
                ack.consumer - floor.consumer & MAX_U64,
                _zigzag(base - seconds[sequence]),
            )
    numbers.append(len(state.redelivered))
    for sequence, count in sorted(state.redelivered.items()):
        numbers += (sequence - floor.stream & MAX_U64, count)
    out = bytearray((_MAGIC, 2))
    for number in numbers:
        if not 0 <= number <= MAX_U64:
            raise FormatError(f"{_WHAT}: {number} out of range")
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


def _whole_seconds(time_ns: int) -> int:
    return time_ns // _SECOND_NS if time_ns >= 0 else -(-time_ns // _SECOND_NS)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def state_from_json(value: JsonObject) -> ConsumerState:
    """Decode a state from archive v2. Raises `FormatError` for bad names or numbers."""
    return ConsumerState(
        delivered=_pair_from_json(value, "delivered"),
        ack_floor=_pair_from_json(value, "ack_floor"),
        pending={_key(key): _ack_from_json(ack) for key, ack in _map(value, "pending")},
        redelivered={_key(key): integer({"count": count}, "count", _WHAT) for key, count in _map(value, "redelivered")},
    )


def state_to_json(state: ConsumerState) -> JsonObject:
    """Encode a state for `state_from_json`: names as Go's encoder writes them, the maps only if they are not empty."""
    value: JsonObject = {
        name: {"consumer_seq": pair.consumer, "stream_seq": pair.stream}
        for name, pair in (("delivered", state.delivered), ("ack_floor", state.ack_floor))
    }
    if state.pending:
        value["pending"] = {
            str(sequence): {"Sequence": ack.consumer, "Timestamp": ack.timestamp_ns}
            for sequence, ack in sorted(state.pending.items())
        }
    if state.redelivered:
        value["redelivered"] = {str(sequence): count for sequence, count in sorted(state.redelivered.items())}
    return value


def _pair_from_json(value: JsonObject, key: str) -> SequencePair:
    pair = _object(value, key)
    return SequencePair(
        consumer=integer(pair, "consumer_seq", _WHAT), stream=integer(pair, "stream_seq", _WHAT, MAX_SEQUENCE)
    )


def _ack_from_json(ack: object) -> PendingAck:
    if not isinstance(ack, dict):
        raise FormatError(f"{_WHAT}: bad pending message")
    time_ns = ack.get("Timestamp", 0)
    if type(time_ns) is not int or not -(1 << 63) <= time_ns < 1 << 63:
        raise FormatError(f"{_WHAT}: bad pending message")
    return PendingAck(integer(ack, "Sequence", _WHAT), time_ns)


def _map(value: JsonObject, key: str) -> Iterator[tuple[str, object]]:
    return iter(_object(value, key).items())


def _object(value: JsonObject, key: str) -> JsonObject:
    inner = value.get(key)
    if inner is None:
        return {}
    if not isinstance(inner, dict):
        raise FormatError(f"{_WHAT}: bad {key}")
    return inner


def _key(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= MAX_U64):
        raise FormatError(f"{_WHAT}: bad sequence")
    return int(text)


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


def clamp(state: ConsumerState, last_seq: int) -> ConsumerState:
    """Return the state cut at the stream's last sequence: a consumer ahead of its stream stops delivering."""
    return replace(
        state,
        delivered=SequencePair(state.delivered.consumer, min(state.delivered.stream, last_seq)),
        ack_floor=SequencePair(state.ack_floor.consumer, min(state.ack_floor.stream, last_seq)),
        pending={sequence: ack for sequence, ack in state.pending.items() if sequence <= last_seq},
        redelivered={sequence: count for sequence, count in state.redelivered.items() if sequence <= last_seq},
    )
