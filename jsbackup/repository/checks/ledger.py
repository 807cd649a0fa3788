"""What checks came to, as the repository records it: what was verified when and what is damaged, so that partial runs
cover everything in time and backups do not build on damage; and the outcome of each verify, drill and restore.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from typing import NamedTuple, Protocol, TypeVar

from jsbackup.errors import (
    FormatError,
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    ObjectNotFound,
    StoreError,
    UnsupportedError,
)
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.verify import Level, Stocked, Verifier
from jsbackup.repository.document import DocumentFields, Documents, decode_document, encode_document
from jsbackup.repository.objects import ID_BYTES
from jsbackup.repository.origin import Origin
from jsbackup.times import format_time, parse_time

__all__ = [
    "MAX_RECORD_BYTES",
    "MOST_NAMED",
    "MOST_RECORDS",
    "RECENT_DAYS",
    "RECORD_FEATURES",
    "RECORD_VERSION",
    "AtMost",
    "Coverage",
    "DrillOutcome",
    "DrilledStream",
    "FailedStream",
    "Findings",
    "Percent",
    "Portion",
    "RestoreNote",
    "VerifyOutcome",
    "add_run",
    "choose_portion",
    "cover",
    "damage_on_record",
    "note_restore",
    "objects_of",
    "put_drill",
    "put_verify",
    "read_damaged",
    "read_drills",
    "read_findings",
    "read_restores",
    "read_verifies",
    "remember",
    "remember_damaged",
]


# --- damaged ---
#
# Which objects the last `verify` found damaged, so that backups do not build on them.
#
# Like all records of what was verified this is a hint: with it, a backup stores again what may be
# intact; without it, a backup goes on as if nothing were damaged. Only `forget`, which deletes, insists on it
# (`keep/damage.py`). Damaged objects have a record of their own, so that a backup reads nothing here while all objects
# are sound. It says in which folders they are: other streams go on as if nothing were damaged.

_log = logging.getLogger(__name__)

RECORD_VERSION = 1
RECORD_FEATURES: frozenset[str] = frozenset()
MAX_RECORD_BYTES = 64 << 20
# Limits how much a hostile store can make us read.
MOST_RECORDS = 100
_MOST_TRIES = 5


def read_damaged(documents: Documents, known: dict[str, Mapping[bytes, str]] | None = None) -> Mapping[bytes, str]:
    """Return the ids of objects (`objects.py`) that were found damaged, and not sound since, with the folder of each.

    The folder is "" if an older version did not record it. Raises nothing.

    `known` holds the content of records that were read before, by key: records never change.
    """
    known = {} if known is None else known
    try:
        infos = [info for info in documents.list(layout.VERIFIED) if layout.is_damage_record(info.key)]
        return {
            name: folder
            for info in nlargest(MOST_RECORDS, infos, key=lambda info: info.modified_seconds)
            for name, folder in _damaged_in(documents, info.key, known).items()
        }
    except JsBackupError as error:
        _log.warning("the list of damaged objects cannot be read: %s", error.message)
        return {}


def _damaged_in(documents: Documents, key: str, known: dict[str, Mapping[bytes, str]]) -> Mapping[bytes, str]:
    if key not in known:
        try:
            known[key] = _damage_of(documents, key)
        except JsBackupError as error:  # another run has replaced it, or it cannot be read
            _log.info("ignored: %s", error.naming(key))
    return known.get(key, {})


def damage_on_record(documents: Documents) -> Mapping[bytes, str]:
    """Return the same as `read_damaged`, for commands that delete: what cannot be read is an error.

    Raises:
        IntegrityError, UnsupportedError: a record is damaged, or needs a newer tool.
        KeyUnavailable: it cannot be read without a key that was not given.
        StoreError: the store does not answer.
    """
    for _ in range(_MOST_TRIES):
        keys = [info.key for info in documents.list(layout.VERIFIED) if layout.is_damage_record(info.key)]
        try:
            return {name: folder for key in keys for name, folder in _damage_of(documents, key).items()}
        except ObjectNotFound:  # a run of `verify` has replaced it
            continue
        except IntegrityError as error:
            raise error.with_more_hint("'jsbackup verify' writes the list of damaged objects anew.") from error
    return {}


def _damage_of(documents: Documents, key: str) -> Mapping[bytes, str]:
    fields = decode_document(documents.get(key, MAX_RECORD_BYTES), key)
    fields.version(RECORD_VERSION, RECORD_FEATURES)
    rows = [row for row in fields.each("found") if not row.boolean("sound")]
    return {name: row.optional_text("folder") or "" for row in rows for name in objects_of(row)}


def objects_of(row: DocumentFields) -> Collection[bytes]:
    """Return the ids of the objects in a row of a record. Raises FormatError."""
    try:
        joined = base64.b64decode(row.text("objects"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"{row.where}: objects is not base64") from error
    if len(joined) % ID_BYTES:
        row.wrong("objects", f"ids of {ID_BYTES} bytes")
    return [joined[place : place + ID_BYTES] for place in range(0, len(joined), ID_BYTES)]


# --- verified ---
#
# What was verified when: records that let partial runs cover everything in time.
#
# A record is a document `verified/<id>.json`, or `verified/<id>-damaged.json` for damaged objects. A row lists objects
# (ids of `objects.py`, joined, in base64) that had the same result at the same time: sound or damaged, at which level.
# For damaged ones that is the least deep level that finds it. Only the newest result of an object counts. 200,000
# objects take 3.2 MB at one level.
#
#     {"at": RFC 3339, "level": "objects" | "data", "sound": true | false, "objects": base64, "folder": of damaged ones}
#
# A run reads all records (one, unless runs overlapped), adds its results, puts a new record and deletes those that it
# has read. Overlapping runs are harmless: the next one finds two records and merges them.
#
# Records are only hints about what to check first. A damaged record is ignored, so its objects are checked again; a
# time in the future, or before the object was stored, counts as never. Objects recorded as damaged are checked in every
# run. In a signed repository records are signed; in a plain one, anybody who can write records can also write backups.

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


# --- outcomes ---
#
# The outcome of each run of `verify` and of each drill, so that `status` can ask for new ones; and restores of earlier
# states, so that the next backup does not take messages for lost that they took back.
#
#     receipts/verify-<time>-<6 digits>.json
#         {"begun", "ended": RFC 3339, "ok", "level", "everything", "part": true | false, "backups": how many,
#          "chosen": ids, "damaged": ids, "problems": how many}
#     receipts/drill-<time>-<6 digits>.json
#         {"begun", "ended", "ok", "code": exit code, "error", "backup", "backup_created", "newest_message", "server",
#          "nodes", "everything", "restored": how many streams, "messages",
#          "origin": {"cluster", "account", "domain", "api_prefix", "login"},
#          "streams": [{"name", "messages", "bytes", "verified", "seconds"}], "failed": [{"name", "reason"}]}
#     receipts/restore-<time>-<6 digits>.json, put before any stream is replaced, and again at the end if some were not
#         {"begun", "ended", "ok", "backup", "origin": the target, as above, "streams": names at the target}
#
# They are documents, so signed and encrypted where manifests are. They are for people and monitoring, and tell `forget`
# which backups to look at (`keep/damage.py`). One that cannot be read is skipped. The newest of each kind are kept;
# putting one deletes the others.

_FORMAT_VERSION = 1

# More than a year of nightly runs. All of them stay small: a drill of 1,000 streams takes 150 KB.
_MOST_KEPT = 400
_MAX_BYTES = 16 << 20
_MOST_STREAMS = 1_000
MOST_NAMED = 1_000
_MAX_NODES = 99
_ORIGIN = ("cluster", "account", "domain", "api_prefix", "login")
_THREADS = 8


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """A run of `verify`. `everything`: no backup was named, so all were checked. `part`: only a part of their objects
    was read.

    `chosen` are the backups that were named, `damaged` those with problems (at most the first thousand of each).
    `problems` also counts problems of the repository itself.
    """

    begun: str
    ended: str
    ok: bool
    level: Level
    everything: bool
    part: bool
    backups: int
    problems: int
    chosen: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DrilledStream:
    """A stream that a drill has restored. `bytes` counts its messages, as in a manifest."""

    name: str
    messages: int
    bytes: int
    verified: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class FailedStream:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class DrillOutcome:
    """A drill. `code` is its exit code, `error` why it failed as a whole. Fields are empty if the drill ended before
    them.

    `everything`: all streams of the source were restored, as far as its backups know them. `origin` is that source;
    None if it was not recorded, and for an import.

    `restored` streams have `messages` in all; `streams` are the thousand that took longest.

    `newest_message` is the time of the newest message in the backup, or None. `server` is the version of the server
    that it was restored into.
    """

    begun: str
    ended: str
    ok: bool
    code: int
    backup: str
    backup_created: str
    error: str = ""
    newest_message: str | None = None
    server: str = ""
    nodes: int = 1
    everything: bool = True
    restored: int = 0
    messages: int = 0
    streams: tuple[DrilledStream, ...] = ()
    failed: tuple[FailedStream, ...] = ()
    origin: Origin | None = None

    @property
    def seconds(self) -> float:
        return (parse_time(self.ended) - parse_time(self.begun)) / 1e9


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """A restore of `streams` (their names at the target, `origin`) to a state that is not their newest in the
    repository.
    """

    begun: str
    ended: str
    ok: bool
    backup: str
    origin: Origin
    streams: tuple[str, ...]


Random = Callable[[int], bytes]


def put_verify(documents: Documents, outcome: VerifyOutcome, tool: str, random: Random) -> None:
    """Record an outcome. `tool` is name and version, `random` returns that many random bytes.

    Raises:
        KeyUnavailable: documents are signed, and the key that signs was not given.
        StoreError: it cannot be stored.
    """
    body: JsonObject = {
        "level": outcome.level,
        "everything": outcome.everything,
        "part": outcome.part,
        "backups": outcome.backups,
        "problems": outcome.problems,
        "chosen": list(outcome.chosen[:MOST_NAMED]),
        "damaged": list(outcome.damaged[:MOST_NAMED]),
    }
    _put(documents, "verify", outcome, body, tool=tool, random=random)


def put_drill(documents: Documents, outcome: DrillOutcome, tool: str, random: Random) -> None:
    """Record an outcome. Parameters and errors as in `put_verify`."""
    body: JsonObject = {
        "code": outcome.code,
        "error": outcome.error,
        "backup": outcome.backup,
        "backup_created": outcome.backup_created,
        "newest_message": outcome.newest_message,
        "server": outcome.server,
        "nodes": outcome.nodes,
        "everything": outcome.everything,
        "restored": outcome.restored,
        "messages": outcome.messages,
        "streams": [
            {"name": s.name, "messages": s.messages, "bytes": s.bytes, "verified": s.verified}
            | {"seconds": round(s.seconds, 3)}
            for s in sorted(outcome.streams, key=lambda one: -one.seconds)[:_MOST_STREAMS]
        ],
        "failed": [{"name": one.name, "reason": one.reason} for one in outcome.failed[:_MOST_STREAMS]],
        **({} if outcome.origin is None else {"origin": _origin_json(outcome.origin)}),
    }
    _put(documents, "drill", outcome, body, tool=tool, random=random)


def note_restore(documents: Documents, note: RestoreNote, tool: str, random: Random, *, instead_of: str = "") -> str:
    """Record a restore, and return the key of the record; `instead_of` is that of an earlier one. Parameters and errors
    as in `put_verify`.
    """
    body: JsonObject = {"backup": note.backup, "streams": list(note.streams), "origin": _origin_json(note.origin)}
    key = _put(documents, "restore", note, body, tool=tool, random=random)
    if instead_of:
        documents.delete(instead_of)
    return key


def _origin_json(origin: Origin) -> JsonObject:
    return {key: getattr(origin, key) for key in _ORIGIN}


def _put(
    documents: Documents,
    kind: str,
    outcome: VerifyOutcome | DrillOutcome | RestoreNote,
    body: JsonObject,
    *,
    tool: str,
    random: Random,
) -> str:
    key = layout.outcome_key(kind, parse_time(outcome.begun), random(3))
    frame: JsonObject = {"format": _FORMAT_VERSION, "required_features": [], "tool": tool}
    moments: JsonObject = {"begun": outcome.begun, "ended": outcome.ended, "ok": outcome.ok}
    documents.put(key, encode_document({**frame, **moments, **body}, key))
    try:
        for old in _keys(documents, kind)[_MOST_KEPT:]:
            documents.delete(old)
    except StoreError as error:  # not allowed, or locked: the next run tries again
        _log.info("results of old checks were not removed: %s", error.message)
    return key


def read_verifies(documents: Documents, most: int) -> list[VerifyOutcome]:
    """Return the newest outcomes, newest first. Raises `StoreError` if the store does not answer."""
    return _read_outcomes(documents, "verify", most, _verify_of)


def read_drills(documents: Documents, most: int) -> list[DrillOutcome]:
    """Return the newest outcomes of drills, newest first. Raises as `read_verifies`."""
    return _read_outcomes(documents, "drill", most, _drill_of)


def read_restores(documents: Documents) -> list[RestoreNote]:
    """Return the recorded restores, newest first. Raises as `read_verifies`."""
    return _read_outcomes(documents, "restore", _MOST_KEPT, _restore_of)


def _keys(documents: Documents, kind: str) -> list[str]:
    """Return the keys, newest first."""
    infos = documents.list(layout.outcome_prefix(kind))
    return sorted((i.key for i in infos if layout.kind_of(i.key) is layout.ObjectKind.CHECK), reverse=True)


T = TypeVar("T", VerifyOutcome, DrillOutcome, RestoreNote)


def _read_outcomes(documents: Documents, kind: str, most: int, decode: Callable[[DocumentFields], T]) -> list[T]:
    tasks = [partial(_read_one, documents, key, decode) for key in _keys(documents, kind)[:most]]
    found = [one for one in in_order(tasks, _THREADS) if one is not None]
    # Keys only have the second.
    return sorted(found, key=lambda one: parse_time(one.begun), reverse=True)


def _read_one(documents: Documents, key: str, decode: Callable[[DocumentFields], T]) -> T | None:
    try:
        fields = decode_document(documents.get(key, _MAX_BYTES), key)
        fields.version(_FORMAT_VERSION, frozenset())
        return decode(fields)
    except ObjectNotFound:  # newer ones have replaced it
        return None
    except (IntegrityError, KeyUnavailable, UnsupportedError) as error:
        _log.warning("ignored: %s", error.naming(key))
        return None


def _verify_of(fields: DocumentFields) -> VerifyOutcome:
    return VerifyOutcome(
        begun=_moment(fields, "begun"),
        ended=_moment(fields, "ended"),
        ok=fields.boolean("ok"),
        level=fields.choice("level", Level),
        everything=fields.boolean("everything"),
        part=fields.boolean("part"),
        backups=fields.number("backups"),
        problems=fields.number("problems"),
        chosen=_backups(fields, "chosen"),
        damaged=_backups(fields, "damaged"),
    )


def _drill_of(fields: DocumentFields) -> DrillOutcome:
    newest = fields.get("newest_message")
    return DrillOutcome(
        begun=_moment(fields, "begun"),
        ended=_moment(fields, "ended"),
        ok=fields.boolean("ok"),
        code=fields.number("code", 0, 255),
        backup=_backup(fields, "backup", fields.text("backup")),
        backup_created=_moment(fields, "backup_created"),
        error=fields.text("error"),
        newest_message=None if newest is None else _moment(fields, "newest_message"),
        server=fields.text("server"),
        nodes=fields.number("nodes", 1, _MAX_NODES),
        everything=fields.boolean("everything"),
        restored=fields.number("restored"),
        messages=fields.number("messages"),
        streams=tuple(_stream_of(one) for one in fields.each("streams")),
        failed=tuple(FailedStream(one.text("name"), one.text("reason")) for one in fields.each("failed")),
        origin=_origin(fields.optional("origin")),
    )


def _restore_of(fields: DocumentFields) -> RestoreNote:
    origin = _origin(fields.fields("origin"))
    assert origin is not None
    return RestoreNote(
        begun=_moment(fields, "begun"),
        ended=_moment(fields, "ended"),
        ok=fields.boolean("ok"),
        backup=_backup(fields, "backup", fields.text("backup")),
        origin=origin,
        streams=fields.texts("streams"),
    )


def _origin(fields: DocumentFields | None) -> Origin | None:
    return None if fields is None else Origin(*(fields.text(key) for key in _ORIGIN))


def _stream_of(fields: DocumentFields) -> DrilledStream:
    seconds = fields.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
        fields.wrong("seconds", "a number of seconds")
    return DrilledStream(
        fields.text("name"),
        fields.number("messages"),
        fields.number("bytes"),
        fields.boolean("verified"),
        float(seconds),
    )


def _moment(fields: DocumentFields, key: str) -> str:
    """Return the time in RFC 3339, UTC, whatever zone it was written in."""
    return format_time(fields.time_ns(key))


def _backups(fields: DocumentFields, key: str) -> tuple[str, ...]:
    return tuple(_backup(fields, key, text) for text in fields.texts(key))


def _backup(fields: DocumentFields, key: str, text: str) -> str:
    if not layout.is_backup_id(text):
        fields.wrong(key, "a backup id")
    return text
