"""Batches of messages with hashed subjects and header values, and payloads of zeros.

Each distinct subject and header block of a batch is looked at once. A payload becomes as many characters `0` as it had
bytes, as with the nats CLI, except the value of a counter, which stays, and the description of a file in an object
store. Sequences and times stay.

Memory: one more batch.

Configurations of streams and consumers with hashed names.

Limits, retention and all other settings that name nothing stay. Texts that describe or place something (description,
metadata, placement) go, and so does every field that is not known here and is not a number or a truth value.

The description of a file in an object store, for a file whose content has become zeros (the character `0`).

Its message (nats.go `object.go` ObjectInfo, ADR-20) names the file, its bucket and its chunks, has the digest of the
content, and may have a description, metadata and headers. The result has hashed names, the digest of as many zeros, and
the numbers and times; nothing else.

Header blocks with hashed values. Names of fields stay, but not texts that cannot be such names.

Values that servers and clients act on stay (`_KEPT`): operations, numbers, lifetimes, times of schedules. Subjects in
fields are hashed token by token, streams as in configurations; any other value is hashed as a whole. Fields are sorted
by name, as the nats CLI writes them. What is not a field, such as a status text, goes; of a malformed block nothing
stays.

Two fields keep their form, which the nats CLI hashes as a whole: a server reads from `Nats-Stream-Source` how far a
stream has copied, and from `Nats-Counter-Sources` what a counter has received.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import FormatError
from jsbackup.formats.header_block import fields
from jsbackup.model import JsonObject
from jsbackup.names import OBJECT_STREAM
from jsbackup.strict_json import read_json, read_object
from jsbackup.transforms.batches import DATA, HEADERS, SUBJECT, MessageBatch, Subjects, with_column
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from jsbackup.transforms.object_meta import META_SUBJECTS
from jsbackup.transforms.subjects import matcher

__all__ = ["ZERO", "Obfuscation", "digest_of_zeros", "obfuscate_headers", "obfuscate_object_info"]

_SUBJECTS = frozenset(
    (
        b"nats-expected-last-subject-sequence-subject",
        b"nats-schedule-target",
        b"nats-schedule-source",
        b"nats-scheduler",
        b"nats-subject",
    )
)
_EMPTY = b"NATS/1.0\r\n\r\n"
_WHOLE = re.compile(r"-?\d{1,200}", re.ASCII)

_NAME = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]*")  # what HTTP allows

_TIME_WORD = rb"[-+:.0-9TZ]{10,40}"
_DURATION = rb"(?:[0-9.]{1,20}(?:ns|us|\xc2\xb5s|\xce\xbcs|ms|s|m|h)){1,8}"
_LIFETIME = rb"never|\d{1,20}|" + _DURATION
_MONTHS_AND_DAYS = rb"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat"
_CRON = rb"%b(?: %b){4,5}" % ((rb"(?:[-0-9*,/?]|%b){1,40}" % _MONTHS_AND_DAYS,) * 2)
_EACH = rb"@(?:yearly|annually|monthly|weekly|daily|midnight|hourly)"
_SCHEDULE = rb"@at %b|@every %b|%b|%b" % (_TIME_WORD, _DURATION, _EACH, _CRON)
_AREAS = (
    rb"Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Brazil|Canada|Chile|Etc|Europe|Indian|Mexico|Pacific|US"
)
_ZONES = (
    rb"Local|UTC|UCT|GMT[-+]?0?|Zulu|Universal|Greenwich|WET|CET|MET|EET|EST|MST|HST|EST5EDT|CST6CDT|MST7MDT|PST8PDT|Cuba|"
    rb"Egypt|Eire|GB|GB-Eire|Hongkong|Iceland|Iran|Israel|Jamaica|Japan|Kwajalein|Libya|NZ|NZ-CHAT|Navajo|PRC|Poland|"
    rb"Portugal|ROC|ROK|Singapore|Turkey|W-SU"
)
# Fields whose values stay, and what these are: a stream without schedules, say, also stores any other text in them.
_KEPT = {
    name: re.compile(values, re.IGNORECASE)
    for name, values in {
        b"kv-operation": rb"PUT|DEL|PURGE",
        b"nats-marker-reason": rb"MaxAge|Purge|Remove",
        b"nats-ttl": _LIFETIME,
        b"nats-rollup": rb"sub|all",
        b"nats-expected-last-subject-sequence": rb"\d{1,20}",
        b"nats-schedule": _SCHEDULE,
        b"nats-schedule-ttl": _LIFETIME,
        b"nats-schedule-time-zone": rb"(?:%b)(?:/[-+A-Za-z0-9_]{1,30}){1,2}|%b" % (_AREAS, _ZONES),
        b"nats-schedule-rollup": rb"sub|all",
        b"nats-schedule-next": rb"purge|" + _TIME_WORD,
        b"nats-incr": rb"[-+]?\d{1,4096}",
    }.items()
}


def obfuscate_headers(block: bytes, names: ObfuscatedNames) -> bytes:
    """Return the block of a message."""
    try:
        found = [(name, block[start:stop]) for name, start, stop in fields(block)]
    except FormatError:
        return _EMPTY
    found.sort(key=lambda one: one[0])
    lines = [b"%b: %b\r\n" % (_name(name, names), _value(name, value, names)) for name, value in found]
    return b"".join([b"NATS/1.0\r\n", *lines, b"\r\n"])


def _name(name: bytes, names: ObfuscatedNames) -> bytes:
    if _NAME.fullmatch(name):
        return name
    return names.token(name.decode("utf-8", "surrogateescape")).encode()


def _value(name: bytes, value: bytes, names: ObfuscatedNames) -> bytes:
    lower, text = name.lower(), value.decode("utf-8", "surrogateescape")
    if lower in _KEPT and _KEPT[lower].fullmatch(value):
        return value
    if lower in _SUBJECTS:
        return names.subject(text).encode()
    if lower == b"nats-stream":
        return names.stream(text).encode()
    if lower == b"nats-stream-source":
        return _source(text, names).encode()
    if lower == b"nats-counter-sources":
        return _counters(value, names)
    return names.token(text).encode()


def _origin_name(name: str, names: ObfuscatedNames) -> str:
    """Return an origin as a mark names it: a stream, and hashes of the way to it after colons."""
    stream, *way = name.split(":")
    return ":".join([names.stream(stream), *map(names.token, way)])


def _source(text: str, names: ObfuscatedNames) -> str:
    """Return `<origin> <sequence>[ <filter> <destination>[ <subject>[ <identity>]]]`, see `copy_positions.py`."""
    parts = text.split(" ")
    if not 2 <= len(parts) <= 6 or not _WHOLE.fullmatch(parts[1]):
        return names.token(text)
    changed = [_origin_name(parts[0], names), parts[1]]
    for at, part in enumerate(parts[2:]):
        if at < 2:  # those of several transforms are joined by form feeds
            changed.append("\f".join(map(names.destination if at else names.subject, part.split("\f"))))
        else:
            changed.append(names.subject(part) if at == 2 else _identity(part, names))
    return " ".join(changed)


def _identity(text: str, names: ObfuscatedNames) -> str:
    """Return the hash of a time of creation, which says nothing else."""
    return text if re.fullmatch(r"[0-9A-Za-z]{8}", text) else names.token(text)


def _counters(value: bytes, names: ObfuscatedNames) -> bytes:
    try:
        sources = read_json(value, "a counter")
    except FormatError:
        sources = None
    if not isinstance(sources, dict) or not all(isinstance(one, dict) for one in sources.values()):
        return names.token(value.decode("utf-8", "surrogateescape")).encode()
    changed = {
        _origin_name(origin, names): {names.subject(subject): _count(count, names) for subject, count in counts.items()}
        for origin, counts in sources.items()
    }
    return json.dumps(changed, separators=(",", ":")).encode()


def _count(count: object, names: ObfuscatedNames) -> object:
    if isinstance(count, int) or (isinstance(count, str) and _WHOLE.fullmatch(count)):
        return count
    return names.token(str(count))


ZERO = b"0"
_STEP = 16 << 20
# A larger size is more likely damaged: no digest is made for it, which would take minutes.
_MOST_BYTES = 64 << 30
_TIME = re.compile(r"[-+:.0-9TZ]{10,40}", re.ASCII)


def obfuscate_object_info(payload: bytes, names: ObfuscatedNames) -> bytes | None:
    """Return the payload of a description; None if it is not one."""
    try:
        info = read_object(payload, "a description")
    except FormatError:
        return None
    if not isinstance(info.get("name"), str) or not isinstance(info.get("bucket"), str):
        return None
    out: JsonObject = {"name": names.object(info["name"])}
    if options := _options(info.get("options"), names):
        out["options"] = options
    out["bucket"] = _bucket(info["bucket"], names)
    if isinstance(nuid := info.get("nuid"), str):
        out["nuid"] = names.token(nuid)
    size = info.get("size")
    for field in ("size", "mtime", "chunks"):
        value = info.get(field)
        if _is_count(value) or (field == "mtime" and isinstance(value, str) and _TIME.fullmatch(value)):
            out[field] = value
    if isinstance(info.get("digest"), str) and info["digest"] and type(size) is int and 0 <= size <= _MOST_BYTES:
        out["digest"] = "SHA-256=" + digest_of_zeros(size)
    if isinstance(info.get("deleted"), bool):
        out["deleted"] = info["deleted"]
    return json.dumps(out, separators=(",", ":")).encode()


def _options(options: Any, names: ObfuscatedNames) -> JsonObject:
    if not isinstance(options, dict):
        return {}
    out: JsonObject = {}
    link = options.get("link")
    if isinstance(link, dict):
        out["link"] = {"bucket": _bucket(str(link.get("bucket") or ""), names)}
        if isinstance(link.get("name"), str):
            out["link"]["name"] = names.object(link["name"])
    if _is_count(options.get("max_chunk_size")):
        out["max_chunk_size"] = options["max_chunk_size"]
    return out


def _bucket(name: str, names: ObfuscatedNames) -> str:
    return names.stream(OBJECT_STREAM + name)[len(OBJECT_STREAM) :] if name else ""


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


@lru_cache(maxsize=4096)
def digest_of_zeros(size: int) -> str:
    """Return SHA-256 of so many characters `0`, in base64 as clients write it."""
    digest, step = hashlib.sha256(), ZERO * min(size, _STEP)
    for _ in range(size // _STEP):
        digest.update(step)
    digest.update(step[: size % _STEP])
    return urlsafe_b64encode(digest.digest()).decode()


# Settings that are words, times or lists of numbers, and say nothing about what is stored.
_PLAIN_OF_STREAM = frozenset(("retention", "storage", "compression", "discard", "persist_mode", "consumer_limits"))
_PLAIN_OF_CONSUMER = frozenset(
    ("deliver_policy", "ack_policy", "replay_policy", "priority_policy", "sample_freq", "opt_start_time", "backoff")
) | {"pause_until"}
_PLAIN_OF_ORIGIN = frozenset(("opt_start_time",))

_Change = Callable[[Any], Any]


def obfuscate_stream_config(config: JsonObject, names: ObfuscatedNames) -> JsonObject:
    """Return the config of a stream. Raises FormatError if a field that names something is damaged."""
    origin = _objects(lambda one: _origin(one, names))
    return _changed(
        config,
        _PLAIN_OF_STREAM,
        {
            "name": _texts(names.stream),
            "subjects": _texts(names.subject),
            "mirror": origin,
            "sources": origin,
            "subject_transform": _objects(lambda one: _transform(one, names)),
            "republish": _objects(lambda one: _transform(one, names)),
        },
    )


def obfuscate_consumer_config(config: JsonObject, names: ObfuscatedNames) -> JsonObject:
    """Return the config of a consumer. Raises FormatError as `obfuscate_stream_config`."""
    token, subject = _texts(names.token), _texts(names.subject)
    return _changed(
        config,
        _PLAIN_OF_CONSUMER,
        {
            "name": token,
            "durable_name": token,
            "filter_subject": subject,
            "filter_subjects": subject,
            "deliver_subject": subject,
            "deliver_group": token,
            "priority_groups": token,
        },
    )


def _origin(origin: JsonObject, names: ObfuscatedNames) -> JsonObject:
    subject = _texts(names.subject)
    external = {"api": subject, "deliver": subject}
    consumer = {"name": _texts(names.token), "deliver_subject": subject}
    return _changed(
        origin,
        _PLAIN_OF_ORIGIN,
        {
            "name": _texts(names.stream),
            "filter_subject": subject,
            "subject_transforms": _objects(lambda one: _transform(one, names)),
            "external": _objects(lambda one: _changed(one, frozenset(), external)),
            "consumer": _objects(lambda one: _changed(one, frozenset(), consumer)),
        },
    )


def _transform(transform: JsonObject, names: ObfuscatedNames) -> JsonObject:
    return _changed(transform, frozenset(), {"src": _texts(names.subject), "dest": _texts(names.destination)})


def _changed(config: JsonObject, plain: frozenset[str], changes: dict[str, _Change]) -> JsonObject:
    changed: JsonObject = {}
    for field, value in config.items():
        if field in changes:
            try:
                changed[field] = changes[field](value)
            except TypeError:
                raise FormatError(f"{field} is damaged") from None
        elif field in plain or value is None or isinstance(value, bool | int | float):
            changed[field] = value
    return changed


def _texts(change: Callable[[str], str]) -> _Change:
    """Return what changes a text, or each of a list."""
    return _each(str, change)


def _objects(change: Callable[[JsonObject], JsonObject]) -> _Change:
    """Return what changes an object, or each of a list."""
    return _each(dict, change)


def _each(kind: type, change: _Change) -> _Change:
    def changed(value: object) -> object:
        if value is None:
            return None
        if isinstance(value, list):
            return [changed(one) for one in value]
        if not isinstance(value, kind):
            raise TypeError
        return change(value)

    return changed


# All that the payload of a counter is (nats-server `server/stream.go`).
_COUNTER = re.compile(rb'\{\s*"val"\s*:\s*"[-+]?\d{1,4096}"\s*\}')


@dataclass(frozen=True, slots=True)
class Obfuscation:
    """What becomes of one stream, or of any; `counts` says that its messages are values of counters."""

    names: ObfuscatedNames
    counts: bool = False

    def of_stream(self, config: JsonObject) -> Obfuscation:
        """Return the value for the stream with that config."""
        return Obfuscation(self.names, config.get("allow_msg_counter") is True)

    def stream_config(self, config: JsonObject) -> JsonObject:
        """Return the config of a stream. Raises FormatError if it is damaged."""
        return obfuscate_stream_config(config, self.names)

    def consumer_config(self, config: JsonObject) -> JsonObject:
        """Return the config of a consumer. Raises FormatError if it is damaged."""
        return obfuscate_consumer_config(config, self.names)

    def apply(self, batch: MessageBatch) -> MessageBatch:
        """Return the changed messages."""
        subjects = Subjects(batch)
        batch = with_column(batch, DATA, self._payloads(batch, subjects))
        headers = batch.column(HEADERS)
        if headers.null_count < batch.num_rows:
            batch = with_column(batch, HEADERS, self._headers(headers))
        return with_column(batch, SUBJECT, subjects.translated(self.names.subject))

    def _headers(self, column: pa.Array) -> pa.Array:
        encoded = column.dictionary_encode()
        blocks = [obfuscate_headers(block, self.names) for block in encoded.dictionary.to_pylist()]
        return pa.array(blocks, column.type).take(encoded.indices)

    def _payloads(self, batch: MessageBatch, subjects: Subjects) -> pa.Array:
        column, meta = batch.column(DATA), matcher(META_SUBJECTS)
        zeros = _zeros(column)
        described = subjects.rows(lambda subject: subject.startswith("$O.") and meta.fullmatch(subject) is not None)
        counting = self._counting(batch)
        if not described.true_count and not counting.true_count:
            return zeros
        changed = zeros.to_pylist()
        for at, (describes, counts) in enumerate(zip(described.to_pylist(), counting.to_pylist(), strict=True)):
            if counts and _COUNTER.fullmatch(payload := column[at].as_py()):
                changed[at] = payload
            elif describes:
                changed[at] = obfuscate_object_info(column[at].as_py(), self.names) or changed[at]
        return pa.array(changed, column.type)

    def _counting(self, batch: MessageBatch) -> pa.BooleanArray:
        """Return for each row whether it may be the value of a counter; a mirror has such too."""
        if self.counts:
            return pa.array([True] * batch.num_rows, pa.bool_())
        return pc.fill_null(pc.match_substring(batch.column(HEADERS), b"\r\nNats-Incr:"), False)


def _zeros(column: pa.Array) -> pa.Array:
    """Return as many characters `0` in each row as it has bytes, with the same offsets."""
    validity, offsets, values = column.buffers()
    zeros = pa.py_buffer(ZERO * (0 if values is None else values.size))
    return pa.Array.from_buffers(column.type, len(column), [validity, offsets, zeros], offset=column.offset)
