"""Header blocks with hashed values. Names of fields stay, but not texts that cannot be such names.

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

from jsbackup.errors import FormatError
from jsbackup.strict_json import read_json
from jsbackup.transforms.header_block import fields
from jsbackup.transforms.obfuscate.names import ObfuscatedNames

__all__ = ["obfuscate_headers"]

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

_TIME = rb"[-+:.0-9TZ]{10,40}"
_DURATION = rb"(?:[0-9.]{1,20}(?:ns|us|\xc2\xb5s|\xce\xbcs|ms|s|m|h)){1,8}"
_LIFETIME = rb"never|\d{1,20}|" + _DURATION
_MONTHS_AND_DAYS = rb"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|sun|mon|tue|wed|thu|fri|sat"
_CRON = rb"%b(?: %b){4,5}" % ((rb"(?:[-0-9*,/?]|%b){1,40}" % _MONTHS_AND_DAYS,) * 2)
_EACH = rb"@(?:yearly|annually|monthly|weekly|daily|midnight|hourly)"
_SCHEDULE = rb"@at %b|@every %b|%b|%b" % (_TIME, _DURATION, _EACH, _CRON)
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
        b"nats-schedule-next": rb"purge|" + _TIME,
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


def _origin(name: str, names: ObfuscatedNames) -> str:
    """Return an origin as a mark names it: a stream, and hashes of the way to it after colons."""
    stream, *way = name.split(":")
    return ":".join([names.stream(stream), *map(names.token, way)])


def _source(text: str, names: ObfuscatedNames) -> str:
    """Return `<origin> <sequence>[ <filter> <destination>[ <subject>[ <identity>]]]`, see `copy_positions.py`."""
    parts = text.split(" ")
    if not 2 <= len(parts) <= 6 or not _WHOLE.fullmatch(parts[1]):
        return names.token(text)
    changed = [_origin(parts[0], names), parts[1]]
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
        _origin(origin, names): {names.subject(subject): _count(count, names) for subject, count in counts.items()}
        for origin, counts in sources.items()
    }
    return json.dumps(changed, separators=(",", ":")).encode()


def _count(count: object, names: ObfuscatedNames) -> object:
    if isinstance(count, int) or (isinstance(count, str) and _WHOLE.fullmatch(count)):
        return count
    return names.token(str(count))
