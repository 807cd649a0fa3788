"""A consumer's state as an archive v1 has it: `o.dat`. `server_state.py` has the JSON of an archive v2.

`o.dat` (nats-server `server/store.go` encodeConsumerState, `server/filestore.go` decodeConsumerState; the same from
2.10 to 2.15): magic 22, version 1 or 2, then Go varints: ack floor (consumer, stream), delivered (consumer, stream),
number of pending; if not 0: base time (signed, seconds), then for each its stream sequence less the ack floor's, its
consumer sequence less the ack floor's (version 2 only), and base minus delivery time (signed, seconds; version 1: time
minus base); number of redelivered, then for each its stream sequence less the ack floor's, and its count. Differences
are modulo 2^64. Version 1 stores delivered relative to an ack floor above 1. We write version 2, as every server does.

`o.dat` only keeps delivery times of pending messages in whole seconds (rounded towards zero), so their
redelivery may come up to a second early. Keys, counts and positions are exact. JSON keeps all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.errors import FormatError
from jsbackup.formats.varints import append_uvarint, unzigzag, uvarint, zigzag
from jsbackup.model import ConsumerState, PendingAck, SequencePair
from jsbackup.server_state import MAX_SEQUENCE
from jsbackup.strict_json import UINT64

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["decode_state", "encode_state"]

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
    if max(floor.stream, delivered.stream) > MAX_SEQUENCE or delivered.consumer > UINT64:
        raise FormatError(f"{_WHAT}: position out of range")
    pending = _pending(numbers, version, floor)
    redelivered: dict[int, int] = {}
    for _ in range(numbers.count(of=2)):
        offset, count = numbers.next(), numbers.next()
        if offset and count:  # the server ignores others
            redelivered[offset + floor.stream & UINT64] = count
    numbers.finish()
    return ConsumerState(delivered, floor, pending, redelivered)


def _pending(numbers: _Varints, version: int, floor: SequencePair) -> dict[int, PendingAck]:
    count = numbers.count(of=version + 1)
    base = numbers.signed() if count else 0
    pending: dict[int, PendingAck] = {}
    for _ in range(count):
        sequence = numbers.next() + floor.stream & UINT64
        consumer = numbers.next() + floor.consumer & UINT64 if version == 2 else 0
        offset = numbers.signed()
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
        value, end = uvarint(self._raw, self._at, _WHAT)
        if not end:
            raise FormatError(f"{_WHAT}: cut short")
        self._at = end
        return value

    def signed(self) -> int:
        return unzigzag(self.next())

    def count(self, of: int) -> int:
        """Read a number of entries of `of` numbers each, checked against the remaining bytes."""
        count = self.next()
        if count * of > len(self._raw) - self._at:
            raise FormatError(f"{_WHAT}: {count} entries do not fit")
        return count

    def finish(self) -> None:
        if self._at < len(self._raw):
            raise FormatError(f"{_WHAT}: more after its end")


def encode_state(state: ConsumerState) -> bytes:
    """Encode `o.dat`, version 2, entries by rising sequence. Raises `FormatError` for numbers beyond 64 bits."""
    floor = state.ack_floor
    numbers = [floor.consumer, floor.stream, state.delivered.consumer, state.delivered.stream, len(state.pending)]
    if state.pending:
        seconds = {sequence: _whole_seconds(ack.timestamp_ns) for sequence, ack in state.pending.items()}
        # The server uses its clock as the base; any will do, and with the latest time all differences are small.
        base = max(seconds.values())
        numbers.append(zigzag(base))
        for sequence, ack in sorted(state.pending.items()):
            numbers += (
                sequence - floor.stream & UINT64,
                ack.consumer - floor.consumer & UINT64,
                zigzag(base - seconds[sequence]),
            )
    numbers.append(len(state.redelivered))
    for sequence, count in sorted(state.redelivered.items()):
        numbers += (sequence - floor.stream & UINT64, count)
    out = bytearray((_MAGIC, 2))
    for number in numbers:
        if not 0 <= number <= UINT64:
            raise FormatError(f"{_WHAT}: {number} out of range")
        append_uvarint(out, number)
    return bytes(out)


def _whole_seconds(time_ns: int) -> int:
    return time_ns // _SECOND_NS if time_ns >= 0 else -(-time_ns // _SECOND_NS)
