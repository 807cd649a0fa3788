"""What was verified when: records that let partial runs cover everything in time.

A record is a document `verified/<id>.json`, or `verified/<id>-damaged.json` for damaged objects. A row lists objects
(ids of `refs.py`, joined, in base64) that had the same result at the same time: sound or damaged, at which level. For
damaged ones that is the least deep level that finds it.
Only the newest result of an object counts. 200,000 objects take 3.2 MB at one level.

    {"at": RFC 3339, "level": "objects" | "data", "sound": true | false, "objects": base64, "folder": of damaged ones}

A run reads all records (one, unless runs overlapped), adds its results, puts a new record and deletes those that it has
read. Overlapping runs are harmless: the next one finds two records and merges them.

Records are only hints about what to check first. A damaged record is ignored, so its objects are checked again; a time
in the future, or before the object was stored, counts as never. Objects recorded as damaged are checked in every run.
In a signed repository records are signed; in a plain one, anybody who can write records can also write backups.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple, Protocol

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
    "choose_portion",
    "cover",
    "read_findings",
    "remember",
    "remember_damaged",
]

_log = logging.getLogger(__name__)

RECENT_DAYS = 31

_NS = 1_000_000_000
_DAY_SECONDS = 86_400

# Beyond this the oldest are dropped, and checked again: 64 TiB of full segments, 32 MB of JSON if at both levels.
_MOST_OBJECTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Findings:
    """Objects by level, with the time of their newest check (Unix seconds). There are none for level manifest.

    `folders` are those of damaged objects, as far as they are recorded.
    """

    sound: Mapping[Level, dict[bytes, int]] = field(default_factory=lambda: _by_level())
    damaged: Mapping[Level, dict[bytes, int]] = field(default_factory=lambda: _by_level())
    folders: dict[bytes, str] = field(default_factory=dict)

    def add_sound(self, level: Level, objects: Iterable[bytes], at_seconds: int) -> None:
        _add(self.sound[level], objects, at_seconds)

    def add_damaged(self, level: Level, objects: Mapping[bytes, str], at_seconds: int) -> None:
        """Add objects with their folders; "" for one that is not known."""
        _add(self.damaged[level], objects, at_seconds)
        self.folders.update((name, folder) for name, folder in objects.items() if folder)

    def forget_damage(self, level: Level, objects: Iterable[bytes]) -> None:
        """Forget that objects, which have just been found sound at `level`, were found damaged at it or a less deep
        one. Times are in seconds, and of two results in the same second the graver one counts otherwise.
        """
        for name in objects:
            for one in _LEVELS[: _LEVELS.index(level) + 1]:
                self.damaged[one].pop(name, None)

    def verified_seconds(self, name: bytes, stocked: Stocked, level: Level) -> int | None:
        """Return when the object was last found sound, at `level` or a deeper one; None if never."""
        modified = stocked.modified_seconds
        at = max(self.sound[one].get(name, 0) for one in _and_deeper(level))
        return at if at and modified is not None and modified <= at else None

    def is_damaged(self, name: bytes) -> bool:
        """Return whether it was found damaged, and not sound since at the same level or a deeper one."""
        return any(
            name in self.damaged[level]
            and all(self.sound[one].get(name, 0) <= self.damaged[level][name] for one in _and_deeper(level))
            for level in _LEVELS
        )


_LEVELS = (Level.OBJECTS, Level.DATA)


def _add(found: dict[bytes, int], objects: Iterable[bytes], at_seconds: int) -> None:
    for name in objects:
        found[name] = max(at_seconds, found.get(name, 0))


def _by_level() -> dict[Level, dict[bytes, int]]:
    return {level: {} for level in _LEVELS}


def _and_deeper(level: Level) -> tuple[Level, ...]:
    return _LEVELS[_LEVELS.index(level) :]


# --- which part to check ---


class Portion(Protocol):
    """How much of a repository one run checks."""

    def is_full(self, taken_bytes: int, next_bytes: int, total_bytes: int) -> bool:
        """Return whether the next object is too much."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """This many bytes, but at least one object."""

    bytes: int

    def is_full(self, taken_bytes: int, next_bytes: int, total_bytes: int) -> bool:
        return taken_bytes > 0 and taken_bytes + next_bytes > self.bytes


@dataclass(frozen=True, slots=True)
class Percent:
    """This percentage of all bytes, rounded up to a whole object: with 4, 25 runs cover everything."""

    percent: float

    def is_full(self, taken_bytes: int, next_bytes: int, total_bytes: int) -> bool:
        return taken_bytes * 100 >= total_bytes * self.percent


def choose_portion(
    stock: Mapping[bytes, Stocked], findings: Findings, level: Level, portion: Portion
) -> frozenset[bytes]:
    """Choose what to check: what was never verified, then what was verified longest ago. Deterministic.

    Objects found damaged are added on top and do not count against the portion.
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


# --- coverage ---


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was verified, at one level. `oldest_seconds` (Unix time) is the oldest check that counts."""

    objects: int
    bytes: int
    checked_objects: int  # in this run
    checked_bytes: int
    recent_bytes: int  # verified within RECENT_DAYS
    never_bytes: int  # never verified, or damaged
    oldest_seconds: int | None


def cover(verifier: Verifier, findings: Findings, now_seconds: int) -> Coverage:
    """Return the coverage of the objects known to `verifier`; `findings` include its own."""
    stock, level = verifier.stock, verifier.level
    damaged = {name for name in verifier.damaged if stock[name].modified_seconds is not None}
    checked = verifier.sound | damaged
    oldest: int | None = None
    recent = never = 0
    for name, stocked in stock.items():
        # Results of this run always count: by the store's clock an object may be newer than our time.
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
    """Return the findings of all records. Raises `StoreError` if the store does not answer."""
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
    """Add the results of a run to the records, and return all findings. `random` returns that many random bytes.

    `everything`: the run looked at all backups, so objects that none of them names are dropped.

    Raises:
        KeyUnavailable: documents are signed, and the key that signs was not given.
        StoreError: nothing can be put.
    """
    findings, read = _read(documents, now_seconds)
    add_run(findings, verifier, now_seconds)
    rows = _rows(findings, verifier.stock.keys() if everything else None)
    name = random(8).hex()
    for key, some in (
        (layout.verified_key(name, damaged=True), [row for row in rows if not row.sound]),
        (layout.verified_key(name), [row for row in rows if row.sound]),
    ):
        if some:
            documents.put(key, _encode(some, now_seconds, tool, key))
    try:
        for old in read:
            documents.delete(old)
    except StoreError as error:  # not allowed, or locked: old records do no harm
        _log.info("an old record of verified objects was not removed: %s", error.message)
    return findings


def remember_damaged(
    documents: Documents, objects: Mapping[bytes, str], *, now_seconds: int, tool: str, random: Callable[[int], bytes]
) -> None:
    """Record objects, with their folders, that a command which reads objects found damaged. Other arguments and errors
    as in `remember`.
    """
    key = layout.verified_key(random(8).hex(), damaged=True)
    found = Findings()
    found.add_damaged(Level.OBJECTS, objects, now_seconds)
    documents.put(key, _encode(_rows(found, None), now_seconds, tool, key))


def add_run(findings: Findings, verifier: Verifier, now_seconds: int) -> None:
    """Add the results of a run; nothing for level manifest."""
    if verifier.level is not Level.MANIFEST:
        findings.add_sound(verifier.level, verifier.sound, now_seconds)
        findings.forget_damage(verifier.level, verifier.sound)
        # At the level that finds it, so that a later run at that level can find it repaired.
        for level in _LEVELS:
            damaged = verifier.damaged_at(level)
            # Missing objects need no record: every run notices them.
            there = {n: at for n, at in damaged.items() if verifier.stock[n].modified_seconds is not None}
            findings.add_damaged(level, there, now_seconds)


def _read(documents: Documents, now_seconds: int) -> tuple[Findings, list[str]]:
    """Return the findings, and the keys of the records that can be deleted once the findings are written again."""
    findings = Findings()
    read: list[str] = []
    infos = (info for info in documents.list(layout.VERIFIED) if layout.kind_of(info.key) is layout.ObjectKind.VERIFIED)
    for info in nlargest(MOST_RECORDS, infos, key=lambda info: info.modified_seconds):
        try:
            rows = _decode(documents.get(info.key, MAX_RECORD_BYTES), info.key)
        except (ObjectNotFound, KeyUnavailable, UnsupportedError):  # replaced meanwhile, or not readable with our keys
            continue
        except IntegrityError:
            rows = []
        for row in rows:
            if row.at_seconds > now_seconds:
                continue
            if row.sound:
                findings.add_sound(row.level, row.objects, row.at_seconds)
            else:
                findings.add_damaged(row.level, dict.fromkeys(row.objects, row.folder), row.at_seconds)
        read.append(info.key)
    return findings, read


class _Row(NamedTuple):
    """Objects that had the same result at the same time. Sorts as it is kept, if there is not room for all."""

    at_seconds: int
    level: Level
    sound: bool
    folder: str
    objects: Collection[bytes] = ()


def _rows(findings: Findings, only: Collection[bytes] | None) -> list[_Row]:
    """Return the rows worth keeping, newest first."""
    rows: dict[_Row, list[bytes]] = {}
    for level in _LEVELS:
        for name, at in findings.damaged[level].items():
            if findings.is_damaged(name) and (only is None or name in only):
                rows.setdefault(_Row(at, level, False, findings.folders.get(name, "")), []).append(name)
        for name, at in findings.sound[level].items():
            deeper = max((findings.sound[one].get(name, 0) for one in _and_deeper(level)[1:]), default=0)
            if at > deeper and (only is None or name in only):
                rows.setdefault(_Row(at, level, True, ""), []).append(name)
    kept: list[_Row] = []
    room = _MOST_OBJECTS
    # Damaged objects first: they must not be dropped.
    for row in sorted(rows, key=lambda one: (not one.sound, one.at_seconds, one.level, one.folder), reverse=True):
        objects = sorted(rows[row])[: max(room, 0)]
        room -= len(objects)
        if objects:
            kept.append(row._replace(objects=objects))
    return kept


def _encode(rows: Iterable[_Row], now_seconds: int, tool: str, what: str) -> bytes:
    document: JsonObject = {
        "format": RECORD_VERSION,
        "required_features": [],
        "created": format_time(now_seconds * _NS),
        "tool": tool,
        "found": [
            {
                "at": format_time(row.at_seconds * _NS),
                "level": row.level,
                "sound": row.sound,
                "objects": base64.b64encode(b"".join(row.objects)).decode(),
                **({"folder": row.folder} if row.folder else {}),
            }
            for row in rows
        ],
    }
    return encode_document(document, what)


def _decode(data: bytes, what: str) -> list[_Row]:
    """Decode a record. Raises `FormatError` if it is damaged, `UnsupportedError` if it needs a later tool."""
    fields = decode_document(data, what)
    fields.version(RECORD_VERSION, RECORD_FEATURES)
    rows: list[_Row] = []
    for row in fields.each("found"):
        level = row.choice("level", Level)
        if level not in _LEVELS:
            row.wrong("level", "objects or data")
        at = row.time_ns("at") // _NS
        rows.append(_Row(at, level, row.boolean("sound"), row.optional_text("folder") or "", objects_of(row)))
    return rows
