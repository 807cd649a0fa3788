"""How configs become resources of tools that create streams and consumers, and back: what all tools have in common.

Tables say where a field of a JetStream config stands in another tool's file, and in which form. A table works both
ways. Writing collects the names of fields that have no place, or a value that does not fit, or was rounded. A field
that is zero, empty, false or Go's zero time is unset, as for the server, and needs no place. What a tool assumes for a
missing field can differ from what the server does: `absent` is the tool's default, `unset` what must be written for a
field that the config does not set.

Durations are as Go writes and reads them (`time.ParseDuration`), to and from nanoseconds, exactly.

A bucket's declaration has few fields; the client sets the others. So a stream is declared as a bucket only if a client
would set exactly what it has, and as a stream otherwise.

Names of resources in other tools have fewer characters than those in NATS, so two names may become the same. Then all
but one that fits unchanged get a part of their digest, so that a name does not depend on the order: another name would
mean another resource, and these tools delete a stream that is not declared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import Any

from jsbackup.config import nearest
from jsbackup.errors import FormatError, UnsupportedError, UsageError
from jsbackup.exchange.config_files import ConfigSet, bucket_stream, sound_name, without_server_metadata
from jsbackup.exchange.folder import printable_name
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM
from jsbackup.times import ZERO_TIME, format_time, parse_time

__all__ = [
    "BOOL",
    "GO_DURATION",
    "HISTORY",
    "INTEGER",
    "NOT",
    "PERCENT",
    "SECOND",
    "SECONDS",
    "TEXT",
    "TEXTS",
    "TEXT_MAP",
    "TIME",
    "Form",
    "Lost",
    "Nested",
    "Place",
    "Rounded",
    "Tool",
    "add_resource",
    "consumer_of",
    "format_go_duration",
    "is_set",
    "listed",
    "one_of",
    "parse_go_duration",
    "read_fields",
    "resource_of",
    "unique_names",
    "write_fields",
]

_UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_UNITS_NS |= {"m": 60 * 10**9, "h": 3600 * 10**9}
_PART = r"(\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_PART})+)", re.ASCII)
_MOST_NS = (1 << 63) - 1


def parse_go_duration(text: str) -> int:
    """Return nanoseconds; parts of one are cut off. Raises `ValueError` if Go would not read the text."""
    total = sum(int(Fraction(number) * _UNITS_NS[unit]) for number, unit in re.findall(_PART, text, re.ASCII))
    if not _DURATION.fullmatch(text) or total > _MOST_NS:
        raise ValueError(f"not a duration of Go: {text[:40]!r}")
    return -total if text[0] == "-" else total


def format_go_duration(ns: int) -> str:
    """Return the duration in hours, minutes and seconds without those that are zero; below a second in one unit."""
    if ns < 0:
        return f"-{format_go_duration(-ns)}"
    if 0 < ns < 10**9:
        unit = next(unit for unit in ("ms", "us", "ns") if ns % _UNITS_NS[unit] == 0)
        return f"{ns // _UNITS_NS[unit]}{unit}"
    seconds, fraction = divmod(ns, 10**9)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    parts = [f"{seconds // 3600}h" if seconds >= 3600 else "", f"{seconds // 60 % 60}m" if seconds // 60 % 60 else ""]
    parts.append(f"{seconds % 60}{digits}s" if seconds % 60 or digits else "")
    return "".join(parts) or "0s"


_MOST_HISTORY = 64  # versions of each key that a key-value bucket keeps
_SECOND_NS = 10**9
# More are more nanoseconds than tools and servers can hold.
_MOST_SECONDS = _MOST_NS // _SECOND_NS


@dataclass(frozen=True, slots=True)
class Rounded:
    """A `value` for the file that means a little more than the config does: `exact` became `rounded`."""

    value: Any
    exact: str
    rounded: str


Lost = dict[str, "str | Rounded"]
"""Paths of fields that cannot be written, with a reason or "", or that are rounded."""


@dataclass(frozen=True, slots=True)
class Form:
    """`write` returns a value for the file, or one that is `Rounded`, `read` one from there; both raise `ValueError`
    with what is wrong.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Nested:
    """An object of its own, or `many` in a list. In a `block` of Terraform a list of one is the same as the object."""

    fields: tuple[Place, ...]
    many: bool = False
    block: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """`ours` may be a path in the config, such as `placement.cluster`; `theirs` is a name."""

    ours: str
    theirs: str
    form: Form | Nested
    absent: Any = None
    unset: Any = None


def _a(kind: type, word: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"not {word}")
        return value

    return check


_bool, _text, _list, _object = (
    _a(bool, "true or false"),
    _a(str, "a text"),
    _a(list, "a list"),
    _a(dict, "an object"),
)


def _integer(value: Any) -> int:
    # YAML readers may make a float of a large number.
    whole = int(value) if type(value) is float and value.is_integer() else value
    if type(whole) is not int:
        raise ValueError("not a whole number")
    if not -(1 << 63) <= whole < 1 << 63:
        raise ValueError("too large a number")
    return whole


def _text_map(value: Any) -> dict[str, str]:
    return {_text(key): _text(text) for key, text in _object(value).items()}


def _time(value: Any) -> str:
    try:
        parse_time(_text(value))
    except FormatError as error:
        raise ValueError("not a time in RFC 3339") from error
    return str(value)


def _time_of_a_second(value: Any) -> str | Rounded:
    """Round down: from an earlier start, nothing is missing."""
    ns = parse_time(_time(value))
    if not ns % _SECOND_NS:
        return str(value)
    rounded = format_time(ns // _SECOND_NS * _SECOND_NS)
    return Rounded(rounded, str(value), rounded)


def _whole_seconds(value: Any) -> int | Rounded:
    """Round up: zero would mean no limit, or the default."""
    ns = _integer(value)
    if not ns % _SECOND_NS:
        return ns // _SECOND_NS
    if ns < 0:
        raise ValueError(f"{format_go_duration(ns)} is negative")
    seconds = min(-(-ns // _SECOND_NS), _MOST_SECONDS)
    return Rounded(seconds, format_go_duration(ns), format_go_duration(seconds * _SECOND_NS))


def _percent(value: Any) -> int:
    digits = _text(value).removesuffix("%")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 4 and int(digits) <= 100):
        raise ValueError("not a percentage")
    return int(digits)


def _from_percent(value: Any) -> str:
    if not 0 <= _integer(value) <= 100:
        raise ValueError("not a percentage")
    return f"{value}%" if value else ""


def _history(value: Any) -> int:
    """Clients take none for one (nats.go `jetstream/kv.go`)."""
    if not 0 <= _integer(value) <= _MOST_HISTORY:
        raise ValueError(f"not one of 1 to {_MOST_HISTORY}")
    return int(value) or 1


def listed(form: Form) -> Form:
    def write(value: Any) -> list[Any] | Rounded:
        written = [form.write(item) for item in _list(value)]
        values = [item.value if isinstance(item, Rounded) else item for item in written]
        rounded = [item for item in written if isinstance(item, Rounded)]
        if not rounded:
            return values
        return Rounded(values, ", ".join(item.exact for item in rounded), ", ".join(item.rounded for item in rounded))

    return Form(write, lambda value: [form.read(item) for item in _list(value)])


def one_of(**words: str | bool) -> Form:
    """Return a form of a choice: the server's word, and theirs."""

    def other_way(value: Any) -> str:
        for ours, theirs in words.items():
            if type(value) is type(theirs) and value == theirs:
                return ours
        raise ValueError(f"not one of {', '.join(map(str, words.values()))}")

    def write(value: Any) -> str | bool:
        if _text(value) not in words:
            raise ValueError(f"{printable_name(value)[:40]} is not one of its choices")
        return words[value]

    return Form(write, other_way)


BOOL, INTEGER, TEXT, TEXT_MAP, TIME = (Form(convert, convert) for convert in (_bool, _integer, _text, _text_map, _time))
NOT = Form(lambda value: not _bool(value), lambda value: not _bool(value))
TEXTS = listed(TEXT)
GO_DURATION = Form(
    lambda value: format_go_duration(_integer(value)), lambda value: parse_go_duration(_text(value)) if value else 0
)
HISTORY = Form(_integer, _history)
SECOND = Form(_time_of_a_second, _time)
SECONDS = Form(_whole_seconds, lambda value: _integer(_integer(value) * _SECOND_NS))
PERCENT = Form(_percent, _from_percent)


def is_set(value: Any) -> bool:
    """Return whether a value is set: not absent, false, zero, empty, nor Go's zero time."""
    return bool(value) and value != ZERO_TIME


def write_fields(config: JsonObject, fields: Collection[Place], lost: Lost, path: str = "") -> JsonObject:
    """Return the fields as in the file. `lost` gets what cannot be written, or is rounded."""
    rest, written = deepcopy(config), {}
    for field in fields:
        value, where = _take(rest, field.ours), path + field.ours
        try:
            shown = _write(value, field.form, lost, where) if is_set(value) else None
        except ValueError as error:
            lost[where], shown = str(error), None
        if isinstance(shown, Rounded):
            lost[where], shown = shown, shown.value
        if shown is None:
            shown = field.unset
        if shown is not None:
            written[field.theirs] = shown
    lost.update((where, "") for where in _left(rest, path))
    return written


def _write(value: Any, form: Form | Nested, lost: Lost, where: str) -> Any:
    if isinstance(form, Form):
        return form.write(value)
    if form.many:
        return [
            write_fields(_object(item), form.fields, lost, f"{where}[{at}].") for at, item in enumerate(_list(value))
        ]
    if not any(_left(_object(value), "")):
        return None
    return write_fields(value, form.fields, lost, f"{where}.")


def _take(config: JsonObject, path: str) -> Any:
    """Remove a field from a config, and return its value."""
    outer, _, name = path.rpartition(".")
    inner = config.get(outer) if outer else config
    return inner.pop(name, None) if isinstance(inner, dict) else None


def _left(config: JsonObject, path: str) -> Iterator[str]:
    for key, value in config.items():
        where = f"{path}{printable_name(key)}"
        if isinstance(value, dict) and key != "metadata":
            yield from _left(value, f"{where}.")
        elif is_set(value):
            yield where


def read_fields(document: Any, fields: Collection[Place], where: str, *, others: Collection[str] = ()) -> JsonObject:
    """Return the config of a file's fields, without those that are unset. `others` are names of fields that are not of
    the config. Raises `UsageError`: `where` begins its message.
    """
    if not isinstance(document, dict):
        raise UsageError(f"{where} is not an object")
    known = {field.theirs for field in fields}
    for name in document:
        if name not in known and name not in others:
            shown = printable_name(str(name))[:80]
            raise UsageError(f"{where} has an unknown field, {shown}", hint=nearest(shown, sorted(known)))
    config: JsonObject = {}
    for field in fields:
        value = document.get(field.theirs)
        if value is None and (value := field.absent) is None:
            continue
        try:
            read = _read(value, field.form, f"{where}: {field.theirs}")
        except ValueError as error:
            raise UsageError(f"{where}: {field.theirs}: {error}") from error
        if is_set(read):
            _put(config, field.ours, read)
    return config


def _read(value: Any, form: Form | Nested, where: str) -> Any:
    if isinstance(form, Form):
        return form.read(value)
    if form.many:
        # A single block of Terraform may be an object, too.
        values = [value] if form.block and isinstance(value, dict) else _list(value)
        return [read_fields(value, form.fields, where) for value in values]
    if form.block and isinstance(value, list):
        if len(value) > 1:
            raise ValueError("there may be only one")
        value = value[0] if value else {}
    return read_fields(value, form.fields, where)


def _put(config: JsonObject, path: str, value: Any) -> None:
    outer, _, name = path.rpartition(".")
    (config.setdefault(outer, {}) if outer else config)[name] = value


_BUCKET_NAME = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
# What a server sets where a config has nothing, and what it takes for the same.
_DEFAULTS: JsonObject = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "compression": "none",
    "persist_mode": "default",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "num_replicas": 1,
}


def _plain(config: JsonObject) -> JsonObject:
    """Return the config without fields that are unset or have the server's default."""
    return {key: value for key, value in config.items() if is_set(value) and _DEFAULTS.get(key) != value}


def as_bucket(prefix: str, config: JsonObject, fields: Collection[Place]) -> tuple[str, JsonObject] | None:
    """Return the bucket's name and its fields as in the file; None if the stream must be declared as a stream.

    `prefix` is the beginning of the stream's name.
    """
    name = str(config.get("name"))
    bucket = name.removeprefix(prefix)
    if not name.startswith(prefix) or not _BUCKET_NAME.fullmatch(bucket):
        return None
    given = {place.ours.partition(".")[0] for place in fields}
    plain = _plain(config)
    kept = {key: value for key, value in plain.items() if key in given}
    if _plain(bucket_stream(prefix, bucket, kept)) != plain:
        return None
    history = plain.get("max_msgs_per_subject")
    if prefix == BUCKET_STREAM and not (isinstance(history, int) and 1 <= history <= _MOST_HISTORY):
        return None
    # Said even where it is the default: files are for people.
    kept |= {key: config[key] for key in ("storage", "num_replicas") if is_set(config.get(key))}
    lost: Lost = {}
    written = write_fields(kept, fields, lost)
    return None if lost else (bucket, written)


# Without these a consumer would be another one.
_NEEDED = ("ack_policy", "deliver_policy", "opt_start_seq", "opt_start_time")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, with its kinds of resources and where their fields are.

    `buckets` has the beginning of the stream's name and the fields of each kind of bucket, whose own name is in the
    field `bucket`. `others` are fields of resources that are not of the config; of a consumer, `stream` names its
    stream. `drop_ignored` removes from a config what the tool has a field for and ignores, and returns why.
    `to_consumer` and `from_consumer` change configs for and from the table.
    """

    name: str
    stream_kind: str
    consumer_kind: str
    stream_fields: Collection[Place]
    consumer_fields: Collection[Place]
    buckets: Mapping[str, tuple[str, Collection[Place]]]
    bucket: str
    stream: str
    others: frozenset[str]
    drop_ignored: Callable[[JsonObject], dict[str, str]] = lambda config: {}
    to_consumer: Callable[[JsonObject], JsonObject] = lambda config: config
    from_consumer: Callable[[JsonObject], JsonObject] = lambda config: config


def unique_names(
    names: Iterable[str], shown: Callable[[str], str], most: int, *, ignoring_case: bool = False
) -> dict[str, str]:
    """Return how each name is shown, in at most `most` characters, with a digest where two would be the same. With
    `ignoring_case` also where they differ only in case: file systems of macOS and Windows take one file for both.

    Raises `UsageError` if two are still the same, as one has the digest of another in it.
    """
    same: Callable[[str], str] = str.lower if ignoring_case else str
    wanted = {name: shown(name) for name in names}
    alike = Counter(map(same, wanted.values()))
    unique = {}
    for name, plain in wanted.items():
        alone = alike[same(plain)] == 1 or (plain == name and not ignoring_case)
        digest = sha256(name.encode()).hexdigest()[:8]
        unique[name] = plain if alone and len(plain) <= most else f"{plain[: most - 9]}-{digest}"
    if len(set(map(same, unique.values()))) < len(unique):
        raise UsageError("two names of streams or consumers become the same in these files")
    return unique


def resource_of(tool: Tool, config: JsonObject) -> tuple[str, str, JsonObject, list[str]]:
    """Return the kind of the resource of a stream, the name of the stream or the bucket, the fields, and what is
    lost.
    """
    config = deepcopy(without_server_metadata(config))
    lost: Lost = {**tool.drop_ignored(config)}
    for kind, (prefix, fields) in tool.buckets.items():
        if not lost and (bucket := as_bucket(prefix, config, fields)):
            return kind, bucket[0], {tool.bucket: bucket[0], **bucket[1]}, []
    written = write_fields(config, tool.stream_fields, lost)
    return tool.stream_kind, str(config["name"]), written, _notes(tool, lost)


def consumer_of(tool: Tool, name: str, config: JsonObject, notes: list[str]) -> JsonObject | None:
    """Return the fields of a consumer, None if it is left out. `notes` gets what is lost."""
    if config.get("durable_name") != name:
        notes.append(f"consumer {name} is left out: it is not durable, and {tool.name} makes no others")
        return None
    lost: Lost = {}
    plain = {key: value for key, value in without_server_metadata(config).items() if key != "name"}
    plain = tool.to_consumer(plain)
    written = write_fields(plain, tool.consumer_fields, lost)
    for field in _NEEDED:
        if field in lost and not isinstance(lost[field], Rounded):
            shown = printable_name(str(plain[field]))[:80]
            notes.append(f"consumer {name} is left out: {tool.name} has no {field} {shown}")
            return None
    notes += [f"consumer {name}: {note}" for note in _notes(tool, lost)]
    return written


def _notes(tool: Tool, lost: Lost) -> list[str]:
    return [
        f"{tool.name} takes whole seconds only: {field} {reason.exact} is written as {reason.rounded}"
        if isinstance(reason, Rounded)
        else f"{tool.name} has no place for {field}{f': {reason}' if reason else ''}"
        for field, reason in lost.items()
    ]


def add_resource(tool: Tool, configs: ConfigSet, place: str, *, kind: str, body: JsonObject, stream: Any) -> None:
    """Add the config that a resource declares; `stream` is that of a consumer. `place` begins the messages of errors.

    Raises `UsageError` if it is not valid, `UnsupportedError` if it is of another kind.
    """
    if kind == tool.stream_kind:
        config = read_fields(body, tool.stream_fields, place, others=tool.others)
        tool.drop_ignored(config)
        config = {key: value for key, value in without_server_metadata(config).items() if value != {}}
        configs.add_stream(place, config)
    elif kind == tool.consumer_kind:
        fields = read_fields(body, tool.consumer_fields, place, others=tool.others | {tool.stream})
        config = without_server_metadata(tool.from_consumer(fields))
        name = config.get("durable_name")
        configs.add_consumer(place, stream, name, config | {"name": name})
    elif kind in tool.buckets:
        prefix, table = tool.buckets[kind]
        bucket = sound_name(place, body.get(tool.bucket))
        config = read_fields(body, table, place, others=tool.others | {tool.bucket})
        configs.add_stream(place, without_server_metadata(bucket_stream(prefix, bucket, config)))
    else:
        kinds = ", ".join((tool.stream_kind, tool.consumer_kind, *tool.buckets))
        raise UnsupportedError(f"{place} is not supported: only {kinds} are")
