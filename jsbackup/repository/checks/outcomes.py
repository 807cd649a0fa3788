"""The outcome of each run of `verify` and of each drill, so that `status` can ask for new ones; and restores of earlier
states, so that the next backup does not take messages for lost that they took back.

    receipts/verify-<time>-<6 digits>.json
        {"begun", "ended": RFC 3339, "ok", "level", "everything", "part": true | false, "backups": how many,
         "chosen": ids, "damaged": ids, "problems": how many}
    receipts/drill-<time>-<6 digits>.json
        {"begun", "ended", "ok", "code": exit code, "error", "backup", "backup_created", "newest_message", "server",
         "nodes", "everything", "restored": how many streams, "messages",
         "origin": {"cluster", "account", "domain", "api_prefix", "login"},
         "streams": [{"name", "messages", "bytes", "verified", "seconds"}], "failed": [{"name", "reason"}]}
    receipts/restore-<time>-<6 digits>.json, put before any stream is replaced, and again at the end if some were not
        {"begun", "ended", "ok", "backup", "origin": the target, as above, "streams": names at the target}

They are documents, so signed and encrypted where manifests are. They are for people and monitoring, and tell `forget`
which backups to look at (`keep/damage.py`). One that cannot be read is skipped. The newest of each kind are kept;
putting one deletes the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from jsbackup.errors import IntegrityError, KeyUnavailable, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.document import DocumentFields, decode_document, encode_document
from jsbackup.repository.documents import Documents
from jsbackup.repository.origin import Origin
from jsbackup.times import format_time, parse_time

__all__ = [
    "MOST_NAMED",
    "DrillOutcome",
    "DrilledStream",
    "FailedStream",
    "RestoreNote",
    "VerifyOutcome",
    "note_restore",
    "put_drill",
    "put_verify",
    "read_drills",
    "read_restores",
    "read_verifies",
]

_log = logging.getLogger(__name__)

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
    return _read(documents, "verify", most, _verify_of)


def read_drills(documents: Documents, most: int) -> list[DrillOutcome]:
    """Return the newest outcomes of drills, newest first. Raises as `read_verifies`."""
    return _read(documents, "drill", most, _drill_of)


def read_restores(documents: Documents) -> list[RestoreNote]:
    """Return the recorded restores, newest first. Raises as `read_verifies`."""
    return _read(documents, "restore", _MOST_KEPT, _restore_of)


def _keys(documents: Documents, kind: str) -> list[str]:
    """Return the keys, newest first."""
    infos = documents.list(layout.outcome_prefix(kind))
    return sorted((i.key for i in infos if layout.kind_of(i.key) is layout.ObjectKind.CHECK), reverse=True)


T = TypeVar("T", VerifyOutcome, DrillOutcome, RestoreNote)


def _read(documents: Documents, kind: str, most: int, decode: Callable[[DocumentFields], T]) -> list[T]:
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
        origin=_origin(fields.optional_fields("origin")),
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
