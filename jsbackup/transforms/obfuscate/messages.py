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

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import FormatError
from jsbackup.formats.header_block import fields
from jsbackup.model import JsonObject
from jsbackup.names import OBJECT_STREAM
from jsbackup.strict_json import read_json, read_object
from jsbackup.transforms.batches import DATA, HEADERS, SUBJECT, MessageBatch, Subjects, with_column
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from jsbackup.transforms.object_meta import META_SUBJECTS, MOST_REPEATED, digest_of
from jsbackup.transforms.subjects import matcher

__all__ = ["ZERO", "Obfuscation", "obfuscate_headers", "obfuscate_object_info"]

ZERO = b"0"

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
        named = [(name, block[start:stop]) for name, start, stop in fields(block)]
    except FormatError:
        return _EMPTY
    named.sort(key=lambda pair: pair[0])
    lines = [b"%b: %b\r\n" % (_name(name, names), _value(name, value, names)) for name, value in named]
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
    if not isinstance(sources, dict) or not all(isinstance(counts, dict) for counts in sources.values()):
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


_TIME = re.compile(r"[-+:.0-9TZ]{10,40}", re.ASCII)

# What changes the value of a field, and raises TypeError if it is of another type; or the fields of an object.
_Shape: TypeAlias = "Callable[[ObfuscatedNames, Any], object] | Mapping[str, _Shape]"


def _text(change: Callable[[ObfuscatedNames, str], str]) -> _Shape:
    def changed(names: ObfuscatedNames, value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError
        return change(names, value)

    return changed


def _as_it_is(_: ObfuscatedNames, value: Any) -> object:
    return value


def _number(_: ObfuscatedNames, value: Any) -> object:
    if not isinstance(value, int):
        raise TypeError
    return value


def _time(_: ObfuscatedNames, value: Any) -> object:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        raise TypeError
    return value


def _bucket(names: ObfuscatedNames, name: str) -> str:
    return names.stream(OBJECT_STREAM + name)[len(OBJECT_STREAM) :] if name else ""


_STREAM_NAME, _TOKEN = _text(ObfuscatedNames.stream), _text(ObfuscatedNames.token)
_SUBJECT, _DESTINATION = _text(ObfuscatedNames.subject), _text(ObfuscatedNames.destination)
_TRANSFORM: _Shape = {"src": _SUBJECT, "dest": _DESTINATION}
_ORIGIN: _Shape = {
    "name": _STREAM_NAME,
    "filter_subject": _SUBJECT,
    "subject_transforms": _TRANSFORM,
    "external": {"api": _SUBJECT, "deliver": _SUBJECT},
    "consumer": {"name": _TOKEN, "deliver_subject": _SUBJECT},
    "opt_start_time": _as_it_is,
}
# Settings that are words, times or lists of numbers say nothing about what is stored, and stay.
_STREAM: _Shape = {
    **dict.fromkeys(("retention", "storage", "compression", "discard", "persist_mode", "consumer_limits"), _as_it_is),
    "name": _STREAM_NAME,
    "subjects": _SUBJECT,
    "mirror": _ORIGIN,
    "sources": _ORIGIN,
    "subject_transform": _TRANSFORM,
    "republish": _TRANSFORM,
}
_CONSUMER: _Shape = {
    **dict.fromkeys(("deliver_policy", "ack_policy", "replay_policy", "priority_policy", "sample_freq"), _as_it_is),
    **dict.fromkeys(("opt_start_time", "pause_until", "backoff"), _as_it_is),
    **dict.fromkeys(("name", "durable_name", "deliver_group", "priority_groups"), _TOKEN),
    **dict.fromkeys(("filter_subject", "filter_subjects", "deliver_subject"), _SUBJECT),
}
_OBJECT: _Shape = {
    "name": _TOKEN,
    "options": {"link": {"bucket": _text(_bucket), "name": _TOKEN}, "max_chunk_size": _number},
    "bucket": _text(_bucket),
    "nuid": _TOKEN,
    "size": _number,
    "mtime": _time,
    "chunks": _number,
    "digest": _as_it_is,  # another one is made
    "deleted": _number,
}


def _changed(value: Any, shape: _Shape, names: ObfuscatedNames, *, numbers: bool = True) -> Any:
    """Return a value, or each of a list. `numbers`: those in fields that are not known stay. Raises FormatError for an
    object with a damaged field, and TypeError.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [_changed(part, shape, names, numbers=numbers) for part in value]
    if not isinstance(shape, Mapping):
        return shape(names, value)
    if not isinstance(value, dict):
        raise TypeError
    changed: JsonObject = {}
    for field, part in value.items():
        if field in shape:
            try:
                changed[field] = _changed(part, shape[field], names, numbers=numbers)
            except TypeError:
                raise FormatError(f"{field} is damaged") from None
        elif numbers and (part is None or isinstance(part, bool | int | float)):
            changed[field] = part
    return changed


def obfuscate_object_info(payload: bytes, names: ObfuscatedNames) -> bytes | None:
    """Return the payload of a description; None if it is not one."""
    try:
        info = _changed(read_object(payload, "a description"), _OBJECT, names, numbers=False)
    except FormatError:
        return None
    if not info.get("name") or not info.get("bucket"):
        return None
    size = info.get("size")
    if info.pop("digest", None) and isinstance(size, int) and 0 <= size <= MOST_REPEATED:
        info["digest"] = "SHA-256=" + digest_of(ZERO, size)
    return json.dumps(info, separators=(",", ":")).encode()


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
        changed: JsonObject = _changed(config, _STREAM, self.names)
        return changed

    def consumer_config(self, config: JsonObject) -> JsonObject:
        """Return the config of a consumer. Raises FormatError if it is damaged."""
        changed: JsonObject = _changed(config, _CONSUMER, self.names)
        return changed

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
