"""The records of a damaged message block: those whose checksums prove them, and what lies between (the format:
`_kernels_py.py`).

After a damaged record the next one is where its length says, if a checksum proves one there. Then nothing inside is
taken for a record, although a payload may well contain a copy of one; unless proved records fill that place to its
end, for then the length was damaged. Otherwise the next record is looked for byte by byte. It must have a sequence
above all before it, which copies in payloads have not.

So a record is never taken from a payload, unless the length of the message around it is damaged and somebody put a
valid record of this very block with a later sequence into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from jsbackup.formats import kernels
from jsbackup.formats.kernels import MAX_RECORD_BYTES

__all__ = ["Hole", "StoredRecord", "Walk", "block_key", "headers_of", "records_of", "walk"]

_HEAD = Struct("<IQqH")
_U32 = Struct("<I")
_EMPTY_BYTES = _HEAD.size + 8
_HEADERS_BIT = 1 << 31
_ERASED, _TOMBSTONE = 1 << 63, 1 << 62
_MAX_SEQUENCE = _TOMBSTONE - 1
# A record that is looked for has at first a sequence of at most so much more than the last one.
_NEAR = 1 << 32
# How much may be hashed in vain while a record is looked for: a hostile block could cost hours.
_SEARCHED_BYTES = 4 << 30
_TRIED_BYTES = 64
_SHOWN_BYTES = 256


class StoredRecord(NamedTuple):
    """A record from byte `start` to before `stop`. A tombstone's `sequence` is that of the message that it deletes."""

    start: int
    stop: int
    sequence: int
    timestamp_ns: int
    subject: memoryview
    headers: bool
    erased: bool
    tombstone: bool


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes in which nothing is proved, between records with these sequences (0 if there is none).

    `claim` has the sequence and the subject of what seems to be one damaged record; nothing proves them.
    """

    start: int
    stop: int
    problem: str
    after_seq: int
    before_seq: int
    claim: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Walk:
    """`runs` are ranges of bytes with nothing but proved records; with the `holes` they make up the region."""

    runs: tuple[tuple[int, int], ...]
    holes: tuple[Hole, ...]
    last_seq: int


def block_key(stream: str, index: int) -> bytes:
    """Return the key of the checksums of a block's records."""
    return sha256(f"{stream}-{index}".encode("utf-8", "surrogateescape")).digest()


def records_of(region: bytes, start: int, stop: int) -> Iterator[StoredRecord]:
    """Yield the records of a run, without proving them again."""
    view = memoryview(region)
    while start < stop:
        record = _record(view, start, stop)
        assert record is not None
        yield record
        start = record.stop


def headers_of(region: bytes, record: StoredRecord) -> bytes:
    """Return the header block of a proved record, b"" if it has none."""
    if not record.headers:
        return b""
    start = record.start + _HEAD.size + len(record.subject)
    (size,) = _U32.unpack_from(region, start)
    return region[start + _U32.size : start + _U32.size + size]


def walk(region: bytes, key: bytes, after_seq: int) -> Walk:
    """Return which parts of a region of a block are records; `after_seq` is the last sequence before it."""
    return _Walker(region, key, after_seq).walk()


class _Walker:
    def __init__(self, region: bytes, key: bytes, after_seq: int) -> None:
        self._region = region
        self._view = memoryview(region)
        self._end = len(region)
        self._key = key
        self._last_seq = after_seq
        self._budget = _SEARCHED_BYTES
        self._runs: list[tuple[int, int]] = []
        self._holes: list[Hole] = []

    def walk(self) -> Walk:
        at = 0
        while at < self._end:
            start = at
            for record in self._chain(at):
                at = record.stop
                if not record.tombstone:
                    self._last_seq = max(self._last_seq, record.sequence)
            if at > start:
                self._runs.append((start, at))
            if at < self._end:
                at = self._pass_damage(at)
        return Walk(tuple(self._runs), tuple(self._holes), self._last_seq)

    def _chain(self, at: int) -> Iterator[StoredRecord]:
        """Yield the proved records from a byte on."""
        while (record := self._at(at)) is not None and self._is_proved(record):
            yield record
            at = record.stop

    def _at(self, at: int) -> StoredRecord | None:
        return _record(self._view, at, self._end)

    def _is_proved(self, record: StoredRecord) -> bool:
        body = record.start + _HEAD.size + len(record.subject)
        stop = record.stop - 8
        if record.headers:
            (size,) = _U32.unpack_from(self._view, body)
            body += _U32.size
            if not 0 < size <= stop - body:
                return False
        hasher = kernels.HighwayHash(self._key)
        hasher.update(self._view[record.start + 4 : record.start + 20])
        hasher.update(record.subject)
        hasher.update(self._view[body:stop])
        return bool(hasher.digest64() == self._view[stop : record.stop])

    # --- after damage ---

    def _pass_damage(self, at: int) -> int:
        """Note the hole that begins here, and return its end."""
        damaged = self._at(at)
        stop = None if damaged is None else self._next_by_length(damaged)
        if stop is not None:
            problem = "a record fails its checksum"
        else:
            stop, problem = self._search(at), self._what(at)
        claim = _claim(damaged) if damaged is not None and stop == damaged.stop else None
        self._holes.append(Hole(at, stop, problem, self._last_seq, self._sequence_from(stop), claim))
        return stop

    def _what(self, at: int) -> str:
        if not self._region[at:].strip(b"\0"):
            return "there are only zeros"
        return "the last record is cut short" if self._end - at < _EMPTY_BYTES else "no record begins here"

    def _next_by_length(self, damaged: StoredRecord) -> int | None:
        """Return where the record after this damaged one begins, if its length leads to one."""
        if damaged.stop != self._end and next(self._chain(damaged.stop), None) is None:
            return None
        # If the length is what was damaged, it leads to a record by chance, and there are others before.
        for candidate in self._candidates(damaged.start + 1, damaged.stop, self._last_seq + _NEAR):
            for record in self._chain(candidate.start):
                if record.stop >= damaged.stop:
                    break
            if record.stop == damaged.stop:
                return candidate.start
        return damaged.stop

    def _search(self, at: int) -> int:
        """Return where the next record begins after the damage here, or the end."""
        for highest in (self._last_seq + _NEAR, _MAX_SEQUENCE):
            for candidate in self._candidates(at + 1, self._end, highest):
                if not candidate.tombstone or self._goes_on(candidate):
                    return candidate.start
        return self._end

    def _goes_on(self, tombstone: StoredRecord) -> bool:
        """Return whether a message follows, or the end: a payload may have a copy of a tombstone."""
        for record in self._chain(tombstone.start):
            if not record.tombstone:
                return record.sequence > self._last_seq
        return record.stop == self._end

    def _candidates(self, start: int, stop: int, highest: int) -> Iterator[StoredRecord]:
        """Yield proved records that begin from `start` to before `stop`, with a sequence that may come next."""
        highest = min(highest, _MAX_SEQUENCE)
        for match in _pattern(highest).finditer(self._region, start, min(stop + _HEAD.size, self._end)):
            if self._budget < 0:
                return
            record = self._at(match.start()) if match.start() < stop else None
            if record is None or not (record.tombstone or self._last_seq < record.sequence <= highest):
                continue
            self._budget -= _TRIED_BYTES + record.stop - record.start
            if self._is_proved(record):
                yield record

    def _sequence_from(self, at: int) -> int:
        """Return the sequence of the first message from a byte on, 0 if there is none."""
        records = self._chain(at)
        return next((record.sequence for record in records if not record.tombstone and record.sequence), 0)


def _record(view: memoryview, at: int, end: int) -> StoredRecord | None:
    """Return the record that begins at a byte, by its head; None if there cannot be one."""
    if end - at < _EMPTY_BYTES:
        return None
    length, sequence, timestamp, subject = _HEAD.unpack_from(view, at)
    headers = length & _HEADERS_BIT != 0
    length &= ~_HEADERS_BIT
    if not _EMPTY_BYTES + subject + 4 * headers <= length <= min(MAX_RECORD_BYTES, end - at):
        return None
    body = at + _HEAD.size
    erased, tombstone = sequence & _ERASED != 0, sequence & _TOMBSTONE != 0
    subject_bytes = view[body : body + subject]
    return StoredRecord(at, at + length, sequence & _MAX_SEQUENCE, timestamp, subject_bytes, headers, erased, tombstone)


def _claim(record: StoredRecord) -> tuple[int, str] | None:
    if record.erased or record.tombstone or not record.sequence:
        return None
    text = bytes(record.subject[:_SHOWN_BYTES]).decode("utf-8", "replace")
    return record.sequence, "".join(letter if letter.isprintable() else "?" for letter in text)


def _pattern(highest: int) -> re.Pattern[bytes]:
    """Return the pattern of a record's length and sequence, if that is at most `highest`.

    Of a length's highest byte only two bits are used, besides the flag for headers. The highest byte of a sequence of
    up to 56 bits has flags only.
    """
    width = (highest.bit_length() + 7) // 8
    sequence = rb".{8}" if width > 7 else rb".{%d}\x00{%d}[\x00\x40\x80\xc0]" % (width, 7 - width)
    return re.compile(rb"(?s)(?=...[\x00-\x02\x80-\x82]" + sequence + rb")")
