"""What was verified when: records that let runs which check a part each come round to everything.

A record is a document `verified/<id>.json`, or `verified/<id>-damaged.json` of what is damaged. Its rows are of objects
(the ids of `object_id.py`, joined, in base64) that were found the same at the same moment: sound, or damaged, by which
level. For each object only the newest counts.
200,000 objects take 3.2 MB at one level.

    {"at": RFC 3339, "level": "objects" | "data", "sound": true | false, "objects": base64}

A run reads all records there are (one, but for runs side by side), adds what it found, puts a new one and deletes those
that it has read. Runs at the same time are harmless: the next one finds two records and makes one of them.

Records are hints about what to check first, and never more than that. One that is damaged says nothing, so its objects
are checked again; a moment that is yet to come, or from before the object was stored, counts as never. What is said to
be damaged is checked in every run. In a signed repository records are signed; in a plain one, whoever can write records
can as well write backups.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Protocol

from jsbackup.errors import (
    IntegrityError,
    KeyUnavailable,
    ObjectNotFound,
    StoreError,
    UnsupportedError,
)
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.checks.damaged import (
    MAX_RECORD_BYTES,
    MOST_RECORDS,
    RECORD_FEATURES,
    RECORD_VERSION,
    objects_of,
)
from jsbackup.repository.checks.verify import Level, Stocked, Verifier
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.repository.documents import Documents
from jsbackup.times import format_time

__all__ = [
    "RECENT_DAYS",
    "AtMost",
    "Coverage",
    "Findings",
    "Percent",
    "Portion",
    "add_run",
    "choose",
    "cover",
    "read_findings",
    "remember",
    "remember_damaged",
]

_log = logging.getLogger(__name__)

RECENT_DAYS = 31

_NS = 1_000_000_000
_DAY_SECONDS = 86_400

# Beyond, the oldest are forgotten, and checked again: 64 TiB of full segments, 32 MB of JSON if at both levels.
_MOST_OBJECTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Findings:
    """Objects by level, with the moment of the newest check there (Unix seconds). Level manifest has none."""

    sound: Mapping[Level, dict[bytes, int]] = field(default_factory=lambda: _by_level())
    damaged: Mapping[Level, dict[bytes, int]] = field(default_factory=lambda: _by_level())

    def add(self, level: Level, objects: Iterable[bytes], at_seconds: int, *, sound: bool) -> None:
        found = (self.sound if sound else self.damaged)[level]
        for name in objects:
            found[name] = max(at_seconds, found.get(name, 0))

    def verified_seconds(self, name: bytes, stocked: Stocked, level: Level) -> int | None:
        """When the object was last found sound, at `level` or a deeper one; None for never."""
        modified = stocked.modified_seconds
        at = max(self.sound[one].get(name, 0) for one in _and_deeper(level))
        return at if at and modified is not None and modified <= at else None

    def is_damaged(self, name: bytes) -> bool:
        """Whether it was found damaged, and never sound since by the same level or a deeper one."""
        return any(
            name in self.damaged[level]
            and all(self.sound[one].get(name, 0) <= self.damaged[level][name] for one in _and_deeper(level))
            for level in _LEVELS
        )


_LEVELS = (Level.OBJECTS, Level.DATA)


def _by_level() -> dict[Level, dict[bytes, int]]:
    return {level: {} for level in _LEVELS}


def _and_deeper(level: Level) -> tuple[Level, ...]:
    return _LEVELS[_LEVELS.index(level) :]


# --- which part ---


class Portion(Protocol):
    """How much of a repository one run checks."""

    def is_full(self, taken_bytes: int, next_bytes: int, total_bytes: int) -> bool:
        """Whether the next object is too much."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """So many bytes, but one object in any case."""

    bytes: int

    def is_full(self, taken_bytes: int, next_bytes: int, total_bytes: int) -> bool:
        return taken_bytes > 0 and taken_bytes + next_bytes > self.bytes


@dataclass(frozen=True, slots=True)
class Percent:
    """So many percent of all bytes, rounded up to a whole object: 4 are everything in 25 runs."""

    percent: float

    def is_full(self, taken_bytes: int, next_bytes: int, total_bytes: int) -> bool:
        return taken_bytes * 100 >= total_bytes * self.percent


def choose(stock: Mapping[bytes, Stocked], findings: Findings, level: Level, portion: Portion) -> frozenset[bytes]:
    """What to check now: what was never verified, then what was verified longest ago. The same for the same findings.

    What was found damaged comes on top, and does not keep the run from the rest, however much it is.
    """
    there = {name: stocked for name, stocked in stock.items() if stocked.modified_seconds is not None}
    total = sum(stocked.size for stocked in there.values())
    chosen = {name for name in there if findings.is_damaged(name)}
    taken = 0
    order = sorted(
        (findings.verified_seconds(name, stocked, level) or 0, name)
        for name, stocked in there.items()
        if name not in chosen
    )
    for _, name in order:
        if portion.is_full(taken, there[name].size, total):
            break
        chosen.add(name)
        taken += there[name].size
    return frozenset(chosen)


# --- how far it has come ---


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what there is was verified when, at one level. `oldest_seconds` (Unix time) is of what was."""

    objects: int
    bytes: int
    checked_objects: int  # in this run
    checked_bytes: int
    recent_bytes: int  # verified within RECENT_DAYS
    never_bytes: int  # never verified, or damaged
    oldest_seconds: int | None


def cover(verifier: Verifier, findings: Findings, now_seconds: int) -> Coverage:
    """The coverage of what `verifier` has in stock; `findings` include its own."""
    stock, level = verifier.stock, verifier.level
    damaged = {name for name in verifier.damaged if stock[name].modified_seconds is not None}
    checked = verifier.sound | damaged
    oldest: int | None = None
    recent = never = 0
    for name, stocked in stock.items():
        # What this run found counts in any case: by the clock of the store the object may be newer than our now.
        at = now_seconds if name in verifier.sound else findings.verified_seconds(name, stocked, level)
        if at is None or findings.is_damaged(name):
            never += stocked.size
            continue
        oldest = at if oldest is None else min(at, oldest)
        recent += stocked.size if now_seconds - at <= RECENT_DAYS * _DAY_SECONDS else 0
    return Coverage(
        objects=len(stock),
        bytes=sum(stocked.size for stocked in stock.values()),
        checked_objects=len(checked),
        checked_bytes=sum(stock[name].size for name in checked),
        recent_bytes=recent,
        never_bytes=never,
        oldest_seconds=oldest,
    )


# --- records ---


def read_findings(documents: Documents, now_seconds: int) -> Findings:
    """What all records together say. Raises `StoreError` if the store does not answer."""
    return _read(documents, now_seconds)[0]


def remember(
    documents: Documents,
    verifier: Verifier,
    *,
    everything: bool,
    now_seconds: int,
    tool: str,
    random: Callable[[int], bytes],
) -> Findings:
    """Add what a run has found to what is recorded; gives both together. `random` gives so many random bytes.

    `everything` says that the run took stock of all backups: what none of them names is forgotten.

    Raises:
        KeyUnavailable: documents are signed here, and the key that signs was not given.
        StoreError: nothing can be put.
    """
    findings, read = _read(documents, now_seconds)
    add_run(findings, verifier, now_seconds)
    rows = _rows(findings, verifier.stock.keys() if everything else None)
    name = random(8).hex()
    for key, some in (
        (layout.verified_key(name, damaged=True), [row for row in rows if not row[2]]),
        (layout.verified_key(name), [row for row in rows if row[2]]),
    ):
        if some:
            documents.put(key, _encode(some, now_seconds, tool, key))
    try:
        for old in read:
            documents.delete(old)
    except StoreError as error:  # not allowed, or locked: they say nothing wrong
        _log.info("an old record of verified objects was not removed: %s", error.message)
    return findings


def remember_damaged(
    documents: Documents, objects: Collection[bytes], *, now_seconds: int, tool: str, random: Callable[[int], bytes]
) -> None:
    """Record what a command that reads objects has found damaged. Arguments and errors as of `remember`."""
    key = layout.verified_key(random(8).hex(), damaged=True)
    documents.put(key, _encode([(now_seconds, Level.OBJECTS, False, sorted(objects))], now_seconds, tool, key))


def add_run(findings: Findings, verifier: Verifier, now_seconds: int) -> None:
    """Add what a run has found; nothing for level manifest."""
    if verifier.level is not Level.MANIFEST:
        findings.add(verifier.level, verifier.sound, now_seconds, sound=True)
        # What is missing needs no record: every run notices.
        damaged = (name for name in verifier.damaged if verifier.stock[name].modified_seconds is not None)
        findings.add(verifier.level, damaged, now_seconds, sound=False)


def _read(documents: Documents, now_seconds: int) -> tuple[Findings, list[str]]:
    """The findings, and the records that need not be kept once those are written again."""
    findings = Findings()
    read: list[str] = []
    infos = (info for info in documents.list(layout.VERIFIED) if layout.kind_of(info.key) is layout.ObjectKind.VERIFIED)
    for info in nlargest(MOST_RECORDS, infos, key=lambda info: info.modified_seconds):
        try:
            rows = _decode(documents.get(info.key, MAX_RECORD_BYTES), info.key)
        except (ObjectNotFound, KeyUnavailable, UnsupportedError):  # replaced; or for others to read
            continue
        except IntegrityError:
            rows = []
        for at_seconds, level, sound, objects in rows:
            if at_seconds <= now_seconds:
                findings.add(level, objects, at_seconds, sound=sound)
        read.append(info.key)
    return findings, read


_Row = tuple[int, Level, bool, Collection[bytes]]


def _rows(findings: Findings, only: Collection[bytes] | None) -> list[_Row]:
    """What is worth keeping, as rows, newest first."""
    rows: dict[tuple[int, Level, bool], list[bytes]] = {}
    for level in _LEVELS:
        for name, at in findings.damaged[level].items():
            if findings.is_damaged(name) and (only is None or name in only):
                rows.setdefault((at, level, False), []).append(name)
        for name, at in findings.sound[level].items():
            deeper = max((findings.sound[one].get(name, 0) for one in _and_deeper(level)[1:]), default=0)
            if at > deeper and (only is None or name in only):
                rows.setdefault((at, level, True), []).append(name)
    kept: list[_Row] = []
    room = _MOST_OBJECTS
    # Those that are damaged first: they are what must not be forgotten.
    for key in sorted(rows, key=lambda row: (not row[2], row[0], row[1]), reverse=True):
        objects = sorted(rows[key])[: max(room, 0)]
        room -= len(objects)
        if objects:
            kept.append((*key, objects))
    return kept


def _encode(rows: Iterable[_Row], now_seconds: int, tool: str, what: str) -> bytes:
    document: JsonObject = {
        "format": RECORD_VERSION,
        "required_features": [],
        "created": format_time(now_seconds * _NS),
        "tool": tool,
        "found": [
            {
                "at": format_time(at * _NS),
                "level": level,
                "sound": sound,
                "objects": base64.b64encode(b"".join(objects)).decode(),
            }
            for at, level, sound, objects in rows
        ],
    }
    return encode_document(document, what)


def _decode(data: bytes, what: str) -> list[_Row]:
    """Raises `FormatError` if it is damaged, `UnsupportedError` if it takes a later tool."""
    fields = decode_document(data, what)
    fields.version(RECORD_VERSION, RECORD_FEATURES)
    rows: list[_Row] = []
    for row in fields.each("found"):
        level = row.choice("level", Level)
        if level not in _LEVELS:
            row.wrong("level", "objects or data")
        at = row.time_ns("at") // _NS
        rows.append((at, level, row.boolean("sound"), objects_of(row)))
    return rows
