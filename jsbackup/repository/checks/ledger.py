"""What checks came to, as the repository records it: what was verified when and what is damaged, so that partial runs
cover everything in time and backups do not build on damage; and the outcome of each verify, drill and restore.

All of these are documents, so signed and encrypted where manifests are. They are hints: one that cannot be read is
passed over. Only `forget`, which deletes, insists on knowing what is damaged (`keep/damage.py`).
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from jsbackup.errors import (
    FormatError,
    IntegrityError,
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
    "MOST_RUNS",
    "RECENT_DAYS",
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
    "read_damaged",
    "read_findings",
    "read_runs",
    "record_run",
    "remember",
    "remember_damaged",
]

_log = logging.getLogger(__name__)

_FORMAT_VERSION = 1

Random = Callable[[int], bytes]
"""Returns that many random bytes."""


def _put(documents: Documents, key: str, body: JsonObject, tool: str) -> None:
    frame: JsonObject = {"format": _FORMAT_VERSION, "required_features": [], "tool": tool}
    documents.put(key, encode_document({**frame, **body}, key))


def _get(documents: Documents, key: str, most_bytes: int) -> DocumentFields:
    fields = decode_document(documents.get(key, most_bytes), key)
    fields.version(_FORMAT_VERSION, frozenset())
    return fields


# --- objects ---
#
# What was verified when, and what was found damaged.
#
# A record is a document `verified/<id>.json`, or `verified/<id>-damaged.json` for damaged objects: apart, so that a
# backup reads nothing here while all objects are sound. A row lists objects (ids of `objects.py`, joined, in base64)
# that had the same result at the same time: sound or damaged, at which level. For damaged ones that is the least deep
# level that finds it, and their folder is named: streams in others go on as if nothing were damaged. 200,000 objects
# take 3.2 MB at one level.
#
#     {"at": RFC 3339, "level": "objects" | "data", "sound": true | false, "objects": base64, "folder": of damaged ones}
#
# A run reads all records (one of each kind, unless runs overlapped), adds its results, puts new records and deletes
# those that it has read. Overlapping runs are harmless: the next one finds more records and merges them.
#
# A damaged record is ignored, so its objects are checked again; a time in the future, or before the object was stored,
# counts as never. Objects recorded as damaged are checked in every run. In a plain repository, anybody who can write
# records can also write backups.

RECENT_DAYS = 31
MAX_RECORD_BYTES = 64 << 20
# Limits how much a hostile store can make us read.
MOST_RECORDS = 100

_MOST_TRIES = 5
_NS = 1_000_000_000
_DAY_SECONDS = 86_400

# Beyond this the oldest are dropped, and checked again: 64 TiB of full segments, 32 MB of JSON if at both levels.
_MOST_OBJECTS = 1_000_000

_LEVELS = (Level.OBJECTS, Level.DATA)


class Damage(NamedTuple):
    """When an object was last found damaged (Unix seconds), the least deep level that finds it, and its folder."""

    at_seconds: int
    level: Level
    folder: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Objects by level, with the time of their newest check (Unix seconds), and damaged ones. There are none for level
    manifest.
    """

    sound: Mapping[Level, dict[bytes, int]] = field(default_factory=lambda: {level: {} for level in _LEVELS})
    damaged: dict[bytes, Damage] = field(default_factory=dict)

    def add_sound(self, level: Level, objects: Iterable[bytes], at_seconds: int) -> None:
        times = self.sound[level]
        for name in objects:
            times[name] = max(at_seconds, times.get(name, 0))

    def add_damaged(self, level: Level, objects: Mapping[bytes, str], at_seconds: int) -> None:
        """Add objects with their folders. One that was found damaged at two levels is sound only by the deeper one."""
        for name, folder in objects.items():
            damage = self.damaged.get(name, Damage(at_seconds, level, folder))
            deeper = max(level, damage.level, key=_LEVELS.index)
            self.damaged[name] = Damage(max(at_seconds, damage.at_seconds), deeper, folder)

    def forget_damage(self, level: Level, objects: Iterable[bytes]) -> None:
        """Forget that objects, which have just been found sound at `level`, were found damaged at it or a less deep
        one. Times are in seconds, and of two results in the same second the graver one counts otherwise.
        """
        for name in objects:
            if name in self.damaged and level in _and_deeper(self.damaged[name].level):
                del self.damaged[name]

    def verified_seconds(self, name: bytes, stocked: Stocked, level: Level) -> int | None:
        """Return when the object was last found sound, at `level` or a deeper one; None if never."""
        modified, at = stocked.modified_seconds, self._sound_seconds(name, level)
        return at if at and modified is not None and modified <= at else None

    def is_damaged(self, name: bytes) -> bool:
        """Return whether it was found damaged, and not sound since at the same level or a deeper one."""
        damage = self.damaged.get(name)
        return damage is not None and self._sound_seconds(name, damage.level) <= damage.at_seconds

    def _sound_seconds(self, name: bytes, level: Level) -> int:
        return max(self.sound[deeper].get(name, 0) for deeper in _and_deeper(level))


def _and_deeper(level: Level) -> tuple[Level, ...]:
    return _LEVELS[_LEVELS.index(level) :]


def read_damaged(documents: Documents) -> Mapping[bytes, str]:
    """Return the ids of objects (`objects.py`) that were found damaged, and not sound since, with the folder of each.

    Raises nothing: without it, a backup goes on as if nothing were damaged.
    """
    try:
        return _damage(documents, lenient=True)
    except StoreError as error:
        _log.warning("the list of damaged objects cannot be read: %s", error.message)
        return {}


def damage_on_record(documents: Documents) -> Mapping[bytes, str]:
    """Return the same as `read_damaged`, for commands that delete: what cannot be read is an error.

    Raises:
        IntegrityError, UnsupportedError: a record is damaged, or needs a newer tool.
        KeyUnavailable: it cannot be read without a key that was not given.
        StoreError: the store does not answer.
    """
    try:
        return _damage(documents, lenient=False)
    except IntegrityError as error:
        raise error.with_more_hint("'jsbackup verify' writes the list of damaged objects anew.") from error


def _damage(documents: Documents, *, lenient: bool) -> Mapping[bytes, str]:
    for _ in range(_MOST_TRIES):
        recorded = _record_keys(documents, MOST_RECORDS if lenient else None)
        keys = [key for key in recorded if layout.is_damage_record(key)]
        try:
            rows = [row for key in keys for row in _rows_of(documents, key, lenient=lenient)]
        except ObjectNotFound:  # a run of `verify` has replaced it
            continue
        return {name: row.folder for row in rows for name in row.objects}
    return {}


def _record_keys(documents: Documents, most: int | None = MOST_RECORDS) -> list[str]:
    """Return the keys of the newest records; None: of all."""
    infos = [info for info in documents.list(layout.VERIFIED) if layout.kind_of(info.key) is layout.ObjectKind.VERIFIED]
    newest = sorted(infos, key=lambda info: info.modified_seconds, reverse=True)
    return [info.key for info in newest[:most]]


class _Row(NamedTuple):
    """Objects that had the same result at the same time."""

    at_seconds: int
    level: Level
    sound: bool
    folder: str
    objects: Collection[bytes] = ()


def _rows_of(documents: Documents, key: str, *, lenient: bool) -> list[_Row]:
    """Return the rows of a record; if `lenient`, none of one that cannot be read."""
    try:
        return [_row(fields) for fields in _get(documents, key, MAX_RECORD_BYTES).each("found")]
    except (IntegrityError, KeyUnavailable, UnsupportedError, StoreError) as error:
        if not lenient or isinstance(error, ObjectNotFound):
            raise
        _log.info("ignored: %s", error.naming(key))
        return []


def _row(fields: DocumentFields) -> _Row:
    level, sound = fields.choice("level", Level), fields.boolean("sound")
    if level not in _LEVELS:
        fields.wrong("level", "objects or data")
    try:
        joined = base64.b64decode(fields.text("objects"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"{fields.where}: objects is not base64") from error
    if len(joined) % ID_BYTES:
        fields.wrong("objects", f"ids of {ID_BYTES} bytes")
    objects = [joined[place : place + ID_BYTES] for place in range(0, len(joined), ID_BYTES)]
    return _Row(fields.time_ns("at") // _NS, level, sound, "" if sound else fields.text("folder"), objects)


def read_findings(documents: Documents, now_seconds: int) -> Findings:
    """Return the findings of all records. Raises `StoreError` if the store does not answer."""
    return _read_findings(documents, now_seconds)[0]


def _read_findings(documents: Documents, now_seconds: int) -> tuple[Findings, list[str]]:
    """Return the findings, and the keys of the records that can be deleted once the findings are written again."""
    findings = Findings()
    merged: list[str] = []
    for key in _record_keys(documents):
        try:
            rows = _rows_of(documents, key, lenient=False)
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
        merged.append(key)
    return findings, merged


def remember(
    documents: Documents, verifier: Verifier, *, everything: bool, now_seconds: int, tool: str, random: Random
) -> Findings:
    """Add the results of a run to the records, and return all findings.

    `everything`: the run looked at all backups, so objects that none of them names are dropped.

    Raises:
        KeyUnavailable: documents are signed, and the key that signs was not given.
        StoreError: nothing can be put.
    """
    findings, merged = _read_findings(documents, now_seconds)
    add_run(findings, verifier, now_seconds)
    rows = _worth_keeping(findings, verifier.stock.keys() if everything else None)
    name = random(8).hex()
    for sound in (False, True):
        if some := [row for row in rows if row.sound is sound]:
            _put_rows(documents, layout.verified_key(name, damaged=not sound), some, now_seconds=now_seconds, tool=tool)
    _delete(documents, merged)
    return findings


def remember_damaged(
    documents: Documents, objects: Mapping[bytes, str], *, now_seconds: int, tool: str, random: Random
) -> None:
    """Record objects, with their folders, that a command which reads objects found damaged. Raises KeyUnavailable and
    StoreError.
    """
    findings = Findings()
    findings.add_damaged(Level.OBJECTS, objects, now_seconds)
    rows = _worth_keeping(findings, None)
    key = layout.verified_key(random(8).hex(), damaged=True)
    _put_rows(documents, key, rows, now_seconds=now_seconds, tool=tool)


def add_run(findings: Findings, verifier: Verifier, now_seconds: int) -> None:
    """Add the results of a run; nothing for level manifest."""
    if verifier.level is Level.MANIFEST:
        return
    findings.add_sound(verifier.level, verifier.sound, now_seconds)
    findings.forget_damage(verifier.level, verifier.sound)
    # At the level that finds it, so that a later run at that level can find it repaired.
    for level in _LEVELS:
        damaged = verifier.damaged_at(level)
        # Missing objects need no record: every run notices them.
        stored = {name: at for name, at in damaged.items() if verifier.stock[name].modified_seconds is not None}
        findings.add_damaged(level, stored, now_seconds)


def _worth_keeping(findings: Findings, only: Set[bytes] | None) -> list[_Row]:
    """Return the rows to write, damaged objects first, the newest before others."""
    rows: dict[_Row, list[bytes]] = {}
    for name, damage in findings.damaged.items():
        if findings.is_damaged(name):
            rows.setdefault(_Row(damage.at_seconds, damage.level, False, damage.folder), []).append(name)
    for name, at in findings.sound[Level.DATA].items():
        rows.setdefault(_Row(at, Level.DATA, True, ""), []).append(name)
    for name, at in findings.sound[Level.OBJECTS].items():
        if at > findings.sound[Level.DATA].get(name, 0):
            rows.setdefault(_Row(at, Level.OBJECTS, True, ""), []).append(name)
    kept: list[_Row] = []
    room = _MOST_OBJECTS
    # Damaged objects must not be dropped.
    for row in sorted(rows, key=lambda row: (not row.sound, row), reverse=True):
        names = sorted(rows[row] if only is None else only & set(rows[row]))[:room]
        room -= len(names)
        if names:
            kept.append(row._replace(objects=names))
    return kept


def _put_rows(documents: Documents, key: str, rows: Iterable[_Row], *, now_seconds: int, tool: str) -> None:
    row_list = [
        {
            "at": format_time(row.at_seconds * _NS),
            "level": row.level,
            "sound": row.sound,
            "objects": base64.b64encode(b"".join(row.objects)).decode(),
            **({} if row.sound else {"folder": row.folder}),
        }
        for row in rows
    ]
    _put(documents, key, {"created": format_time(now_seconds * _NS), "found": row_list}, tool)


def _delete(documents: Documents, keys: Iterable[str]) -> None:
    try:
        for key in keys:
            documents.delete(key)
    except StoreError as error:  # not allowed, or locked: old records do no harm
        _log.info("an old record of checks was not removed: %s", error.message)


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
    dated = {name: stocked for name, stocked in stock.items() if stocked.modified_seconds is not None}
    total = sum(stocked.size for stocked in dated.values())
    chosen = {name for name in dated if findings.is_damaged(name)}
    taken = 0
    order = sorted(
        (findings.verified_seconds(name, stocked, level) or 0, name)
        for name, stocked in dated.items()
        if name not in chosen
    )
    for _, name in order:
        if portion.is_full(taken, dated[name].size, total):
            break
        chosen.add(name)
        taken += dated[name].size
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


# --- runs ---
#
# The outcome of each run of `verify` and of each drill, so that `status` can ask for new ones; and restores of earlier
# states, so that the next backup does not take messages for lost that they took back.
#
#     receipts/verify-<time>-<6 digits>.json
#     receipts/drill-<time>-<6 digits>.json
#     receipts/restore-<time>-<6 digits>.json, put before any stream is replaced, and again at the end if some were not
#
# Each has the fields of its class below. They are for people and monitoring, and tell `forget` which backups to look at
# (`keep/damage.py`). The newest of each kind are kept; putting one deletes the others.

# More than a year of nightly runs. All of them stay small: a drill of 1,000 streams takes 150 KB.
MOST_RUNS = 400
_MAX_BYTES = 16 << 20
MOST_NAMED = 1_000
_MAX_NODES = 99
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

    kind: ClassVar = "verify"

    @classmethod
    def of(cls, fields: DocumentFields) -> VerifyOutcome:
        return cls(
            **_moments(fields),
            level=fields.choice("level", Level),
            everything=fields.boolean("everything"),
            part=fields.boolean("part"),
            backups=fields.number("backups"),
            problems=fields.number("problems"),
            chosen=_backups(fields, "chosen"),
            damaged=_backups(fields, "damaged"),
        )


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

    kind: ClassVar = "drill"

    @classmethod
    def of(cls, fields: DocumentFields) -> DrillOutcome:
        return cls(
            **_moments(fields),
            code=fields.number("code", 0, 255),
            backup=_backup(fields, "backup", fields.text("backup")),
            backup_created=_moment(fields, "backup_created"),
            error=fields.text("error"),
            newest_message=None if fields.get("newest_message") is None else _moment(fields, "newest_message"),
            server=fields.text("server"),
            nodes=fields.number("nodes", 1, _MAX_NODES),
            everything=fields.boolean("everything"),
            restored=fields.number("restored"),
            messages=fields.number("messages"),
            streams=tuple(map(_stream_of, fields.each("streams"))),
            failed=tuple(FailedStream(row.text("name"), row.text("reason")) for row in fields.each("failed")),
            origin=None if fields.get("origin") is None else _origin(fields.fields("origin")),
        )

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

    kind: ClassVar = "restore"

    @classmethod
    def of(cls, fields: DocumentFields) -> RestoreNote:
        return cls(
            **_moments(fields),
            backup=_backup(fields, "backup", fields.text("backup")),
            origin=_origin(fields.fields("origin")),
            streams=fields.texts("streams"),
        )


Outcome = TypeVar("Outcome", VerifyOutcome, DrillOutcome, RestoreNote)


def record_run(
    documents: Documents, outcome: VerifyOutcome | DrillOutcome | RestoreNote, tool: str, random: Random
) -> str:
    """Record an outcome, and return the key of the record. `tool` is name and version.

    Raises:
        KeyUnavailable: documents are signed, and the key that signs was not given.
        StoreError: it cannot be stored.
    """
    match outcome:
        case VerifyOutcome():
            outcome = replace(outcome, chosen=outcome.chosen[:MOST_NAMED], damaged=outcome.damaged[:MOST_NAMED])
        case DrillOutcome():
            longest = sorted(outcome.streams, key=lambda stream: -stream.seconds)
            outcome = replace(outcome, streams=tuple(longest[:MOST_NAMED]), failed=outcome.failed[:MOST_NAMED])
    key = layout.outcome_key(outcome.kind, parse_time(outcome.begun), random(3))
    _put(documents, key, asdict(outcome), tool)
    _delete(documents, _run_keys(documents, outcome.kind)[MOST_RUNS:])
    return key


def _run_keys(documents: Documents, kind: str) -> list[str]:
    """Return the keys, newest first."""
    infos = documents.list(layout.outcome_prefix(kind))
    return sorted((i.key for i in infos if layout.kind_of(i.key) is layout.ObjectKind.CHECK), reverse=True)


def read_runs(kind: type[Outcome], documents: Documents, most: int) -> list[Outcome]:
    """Return the newest outcomes of a kind, newest first. Raises `StoreError` if the store does not answer."""
    tasks = [partial(_read_run, kind, documents, key) for key in _run_keys(documents, kind.kind)[:most]]
    outcomes = [outcome for outcome in in_order(tasks, _THREADS) if outcome is not None]
    # Keys only have the second.
    return sorted(outcomes, key=lambda outcome: parse_time(outcome.begun), reverse=True)


def _read_run(kind: type[Outcome], documents: Documents, key: str) -> Outcome | None:
    try:
        return kind.of(_get(documents, key, _MAX_BYTES))
    except ObjectNotFound:  # newer ones have replaced it
        return None
    except (IntegrityError, KeyUnavailable, UnsupportedError) as error:
        _log.warning("ignored: %s", error.naming(key))
        return None


def _moments(fields: DocumentFields) -> dict[str, Any]:
    return {"begun": _moment(fields, "begun"), "ended": _moment(fields, "ended"), "ok": fields.boolean("ok")}


def _origin(fields: DocumentFields) -> Origin:
    texts = ("cluster", "account", "domain", "api_prefix", "login", "account_name")
    return Origin(*(fields.text(key) for key in texts))


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
