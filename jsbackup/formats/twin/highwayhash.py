"""HighwayHash (github.com/google/highwayhash, `highwayhash/hh_portable.h`): 64 and 256 bit, lanes little endian."""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING

from jsbackup.formats.column_reader import bytes_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HighwayHash"]

_U64 = (1 << 64) - 1
_M32 = 0xFFFFFFFF
_LANES = Struct("<4Q")
_INIT0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_INIT1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
# The permutation of the bytes of a pair of lanes; spreads the bits that a multiplication mixed well.
_ZIPPER_PAIR = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
_zipper = itemgetter(*_ZIPPER_PAIR, *(i + 16 for i in _ZIPPER_PAIR))
_State = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int]


def _initial(key: bytes) -> _State:
    k = _LANES.unpack(key)
    v0 = [a ^ b for a, b in zip(_INIT0, k, strict=True)]
    v1 = [a ^ (b >> 32 | (b & _M32) << 32) for a, b in zip(_INIT1, k, strict=True)]
    return (*v0, *v1, *_INIT0, *_INIT1)


def _absorb(state: _State, data: memoryview | bytearray | bytes) -> _State:
    """Mix in whole packets of 32 bytes. Unrolled over the four lanes, which is twice as fast."""
    a0, a1, a2, a3, b0, b1, b2, b3, m0, m1, m2, m3, n0, n1, n2, n3 = state
    pack, unpack, zipper, mask, low = _LANES.pack, _LANES.unpack, _zipper, _U64, _M32
    for d0, d1, d2, d3 in _LANES.iter_unpack(data):
        b0 = (b0 + d0 + m0) & mask
        b1 = (b1 + d1 + m1) & mask
        b2 = (b2 + d2 + m2) & mask
        b3 = (b3 + d3 + m3) & mask
        m0 ^= (b0 & low) * (a0 >> 32)
        m1 ^= (b1 & low) * (a1 >> 32)
        m2 ^= (b2 & low) * (a2 >> 32)
        m3 ^= (b3 & low) * (a3 >> 32)
        a0 = (a0 + n0) & mask
        a1 = (a1 + n1) & mask
        a2 = (a2 + n2) & mask
        a3 = (a3 + n3) & mask
        n0 ^= (a0 & low) * (b0 >> 32)
        n1 ^= (a1 & low) * (b1 >> 32)
        n2 ^= (a2 & low) * (b2 >> 32)
        n3 ^= (a3 & low) * (b3 >> 32)
        z0, z1, z2, z3 = unpack(bytes(zipper(pack(b0, b1, b2, b3))))
        a0 = (a0 + z0) & mask
        a1 = (a1 + z1) & mask
        a2 = (a2 + z2) & mask
        a3 = (a3 + z3) & mask
        z0, z1, z2, z3 = unpack(bytes(zipper(pack(a0, a1, a2, a3))))
        b0 = (b0 + z0) & mask
        b1 = (b1 + z1) & mask
        b2 = (b2 + z2) & mask
        b3 = (b3 + z3) & mask
    return (a0, a1, a2, a3, b0, b1, b2, b3, m0, m1, m2, m3, n0, n1, n2, n3)


def _absorb_rest(state: _State, rest: bytes) -> _State:
    """Mix in the last 1 to 31 bytes, spread over one packet together with their number."""
    n = len(rest)
    both = n << 32 | n

    def turn(word: int) -> int:
        return (word << n | word >> 32 - n) & _M32

    v0 = [(v + both) & _U64 for v in state[:4]]
    v1 = [turn(v >> 32) << 32 | turn(v & _M32) for v in state[4:8]]
    packet = bytearray(32)
    odd = n & 3
    whole = n - odd
    packet[:whole] = rest[:whole]
    if n >= 16:
        packet[28:] = rest[-4:]
    elif odd:
        packet[16:19] = bytes((rest[whole], rest[whole + (odd >> 1)], rest[n - 1]))
    mixed: _State = (*v0, *v1, *state[8:])  # type: ignore[assignment]
    return _absorb(mixed, packet)


def _permute(state: _State, rounds: int) -> _State:
    for _ in range(rounds):
        turned = (state[2], state[3], state[0], state[1])
        state = _absorb(state, _LANES.pack(*((v >> 32 | (v & _M32) << 32) for v in turned)))
    return state


def _reduce(x0: int, x1: int, x2: int, x3: int) -> tuple[int, int]:
    """Reduce 256 bits modulo x^128 + x^2 + x over GF(2)."""
    high = x2 | (x3 & 0x3FFFFFFFFFFFFFFF) << 64
    value = (x0 | x1 << 64) ^ high << 1 ^ high << 2
    return value & _U64, value >> 64 & _U64


class HighwayHash:
    """HighwayHash with a 32-byte key. More data may follow after a digest."""

    __slots__ = ("_rest", "_state")

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError("a HighwayHash key has 32 bytes")
        self._state = _initial(key)
        self._rest = b""

    def update(self, data: Buffer) -> None:
        view = bytes_of(data)
        if self._rest:
            need = 32 - len(self._rest)
            if len(view) < need:
                self._rest += view
                return
            self._state = _absorb(self._state, self._rest + view[:need])
            view = view[need:]
        whole = len(view) & ~31
        if whole:
            self._state = _absorb(self._state, view[:whole])
        self._rest = bytes(view[whole:])

    def _last(self) -> _State:
        return _absorb_rest(self._state, self._rest) if self._rest else self._state

    def digest64(self) -> bytes:
        state = _permute(self._last(), 4)
        return ((state[0] + state[4] + state[8] + state[12]) & _U64).to_bytes(8, "little")

    def digest256(self) -> bytes:
        s = _permute(self._last(), 10)
        v0 = [(s[i] + s[i + 8]) & _U64 for i in range(4)]
        v1 = [(s[i + 4] + s[i + 12]) & _U64 for i in range(4)]
        return _LANES.pack(*_reduce(v0[0], v0[1], v1[0], v1[1]), *_reduce(v0[2], v0[3], v1[2], v1[3]))
