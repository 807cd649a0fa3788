"""Fields of a stream's configuration that the user changes for the target.

`--set [GLOB:]FIELD=JSON` accepts any field of `StreamConfig` (nats-server 2.10 to 2.15) except the name; null leaves a
field out, so that the server's default applies. Each field has one type; a few have fixed values, which need no quotes.
Durations are nanoseconds, or numbers with a unit (`7d`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from jsbackup.config import MAY_MISS, nearest, parse_duration, parse_glob
from jsbackup.errors import FormatError, UsageError
from jsbackup.model import JsonObject
from jsbackup.planning.model import Action, RestoreOptions
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.subjects import first_overlap
from jsbackup.strict_json import read_json

__all__ = [
    "FIELDS",
    "OURS",
    "Shape",
    "against_overrides",
    "against_subjects",
    "has_shape",
    "overriding",
    "parse_override",
    "trims",
    "unitless_duration",
]


# The type of a value, the fields of an object, or a list of one element: the shape of all elements.
Shape: TypeAlias = "type | Mapping[str, Shape] | list[Shape]"

_TRANSFORM: Mapping[str, Shape] = {"src": str, "dest": str}
_UPSTREAM: Mapping[str, Shape] = {
    "name": str,
    "opt_start_seq": int,
    "opt_start_time": str,
    "filter_subject": str,
    "subject_transforms": [_TRANSFORM],
    "external": {"api": str, "deliver": str},
    "consumer": {"name": str, "deliver_subject": str},
}
_OF_TYPE: Mapping[type, str] = {
    str: "description retention storage compression discard persist_mode",
    int: "max_consumers max_msgs max_msgs_per_subject max_bytes max_age max_msg_size first_seq num_replicas "
    "duplicate_window subject_delete_marker_ttl",
    bool: "no_ack sealed deny_delete deny_purge allow_rollup_hdrs allow_direct mirror_direct discard_new_per_subject "
    "allow_atomic allow_msg_counter allow_msg_schedules allow_msg_ttl allow_batched",
}
FIELDS: Mapping[str, Shape] = {
    **{name: kind for kind, names in _OF_TYPE.items() for name in names.split()},
    "subjects": [str],
    "mirror": _UPSTREAM,
    "sources": [_UPSTREAM],
    "subject_transform": _TRANSFORM,
    "placement": {"cluster": str, "tags": [str], "preferred": str},
    "republish": {"src": str, "dest": str, "headers_only": bool},
    "consumer_limits": {"inactive_threshold": int, "max_ack_pending": int},
    "metadata": {},
}
"""The fields of a stream's configuration and their shapes."""
_NANOSECONDS = frozenset({"inactive_threshold"})
_TYPES: Mapping[type, str] = {str: "a string", int: "a whole number", bool: "true or false"}
_EXAMPLES: Mapping[type, str] = {str: '"words"', int: "1000", bool: "true", list: '["orders.>"]'}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "retention": ("limits", "interest", "workqueue"),
    "storage": ("file", "memory"),
    "compression": ("none", "s2"),
    "discard": ("old", "new"),
    "persist_mode": ("default", "async"),
}
_DURATIONS = frozenset({"max_age", "duplicate_window", "subject_delete_marker_ttl"})
_INT64 = (1 << 63) - 1
_SECOND_NS = 1_000_000_000

OURS = "jsbackup."
"""What metadata keys of jsbackup begin with. They mark half-made streams and copies, which later commands remove."""


def has_shape(value: Any, shape: Shape) -> bool:
    """Return whether a value that a server wrote, perhaps a newer one, can be read; null is the same as absent."""
    return _misshapen(value, shape, "", strict=False) is None


def _problem(field: str, value: Any) -> tuple[str, str] | None:
    """Return what is wrong with the value of a field, and a hint ("" for none); None if nothing is.

    Servers ignore an unknown name inside of an object (before 2.12), or refuse it when the restore has begun.
    """
    if value is None:
        return None
    if problem := _misshapen(value, FIELDS[field], "", strict=field != "metadata"):
        return problem
    words = _WORDS.get(field, ())
    if words and value not in words:
        return f"must be one of {', '.join(words)}", ""
    if FIELDS[field] is int and not -1 <= value <= _INT64:
        return "must be a whole number from -1 to 2^63-1", ""
    if field == "subjects" and not (value and all(value)):
        return "must be a list of subjects", ""
    for origin in value if field == "sources" else [value] if field == "mirror" else ():
        if not origin.get("name"):
            return "has no name of a stream", 'Write for example {"name": "ORDERS"}.'
    for key, text in value.items() if field == "metadata" else ():
        if key.startswith(OURS):
            return f"the key {key[:80]!r} is one that jsbackup sets itself", "Leave it out, or choose another key."
        if not isinstance(text, str):
            return f"{key[:80]} must be a string", 'Metadata have strings only, such as "1".'
    return None


def _misshapen(value: Any, shape: Shape, where: str, *, strict: bool) -> tuple[str, str] | None:
    """Return the problem of a value or a part of it, named `where`. `strict`: an object has no other fields."""
    if value is None:  # as if it were left out
        return None
    at = f"{where} " if where else ""
    if isinstance(shape, type):
        if isinstance(value, shape) and (shape is bool or not isinstance(value, bool)):
            return None
        unit = " of nanoseconds" if where.rpartition(".")[2] in _NANOSECONDS else ""
        return f"{at}must be {_TYPES[shape]}{unit}", ""
    if isinstance(shape, list):
        if not isinstance(value, list) or None in value:
            return f"{at}must be a list without null", ""
        problems = (_misshapen(part, shape[0], where, strict=strict) for part in value)
        return next(filter(None, problems), None)
    if not isinstance(value, dict):
        return f"{at}must be an object", ""
    for name, part in value.items():
        if name not in shape and strict:
            return f"{at}has no field {name[:80]!r}", nearest(name, list(shape)) or f"Fields: {', '.join(shape)}."
        inner = f"{where}.{name}" if where else name
        if name in shape and (problem := _misshapen(part, shape[name], inner, strict=strict)):
            return problem
    return None


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `max_age=3600000000000`, `max_age=1h` or `LOGS_*:storage=memory` into the field, with its glob, and its
    value. Raises UsageError.
    """
    key, equals, written = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text[:80]!r} is not FIELD=JSON", hint="Write for example --set max_msgs=1000.")
    glob, colon, field = key.rpartition(":")
    if colon:
        parse_glob(glob)
    if field not in FIELDS:
        hint = "A stream's name is not a setting." if field == "name" else f"Fields: {', '.join(sorted(FIELDS))}."
        raise UsageError(f"--set: no field {field[:80]!r} of a stream's configuration can be set", hint=hint)
    example = f"Write for example --set '{field}={_example(field)}'."
    try:
        value = read_json(written, field)
    except FormatError:
        if field in _DURATIONS:
            value = _duration_ns(field, written)
        elif written in _WORDS.get(field, ()):
            value = written
        else:
            raise UsageError(f"--set {field}: not JSON: {written[:80]!r}", hint=example) from None
    if problem := _problem(field, value):
        raise UsageError(f"--set {field}: {problem[0]}", hint=problem[1] or example)
    return key, value


def unitless_duration(text: str) -> str:
    """Return the key of `max_age=3600000000000`, a duration without a unit; "" of any other text."""
    key, _, written = text.partition("=")
    return key if key.rpartition(":")[2] in _DURATIONS and written.strip().isdecimal() else ""


def _duration_ns(field: str, written: str) -> int:
    try:
        return round(Fraction(parse_duration(written)) * _SECOND_NS)
    except UsageError:
        raise UsageError(
            f"--set {field}: neither a number of nanoseconds nor a duration: {written[:80]!r}",
            hint=f"Write for example --set {field}=7d.",
        ) from None


def _example(field: str) -> str:
    if field in _DURATIONS:
        return "7d"
    if field in _WORDS:
        return json.dumps(_WORDS[field][0])
    shape = FIELDS[field]
    return _EXAMPLES.get(shape if isinstance(shape, type) else type(shape), '{"key": "value"}')


def overriding(options: RestoreOptions) -> JsonObject:
    """Return the fields that the options change in a configuration; None: left out."""
    wanted: JsonObject = dict(options.fields)
    if "mirror" in wanted and wanted["mirror"] is None:
        wanted.setdefault("mirror_direct", None)  # which servers refuse without a mirror
    if options.replicas is not None:
        wanted.setdefault("num_replicas", options.replicas)
    return wanted


def against_subjects(action: Action, before: JsonObject, options: RestoreOptions) -> Iterator[Finding]:
    """Refuse subjects that do not overlap with those `before`, probably by mistake, unless the user confirms it.

    A stream without subjects only gets messages by copying from another stream.
    """
    old, now = before.get("subjects") or [], action.config.get("subjects") or []
    if "subjects" not in options.fields or options.allow_nothing or not old or first_overlap(now, old):
        return
    if not now and (action.config.get("mirror") or action.config.get("sources")):
        return
    have = f"the subjects {', '.join(now)}, which have" if now else "no subjects, and so"
    reason = f"would have {have} nothing in common with its subjects {', '.join(old)}"
    hint = (nearest(now[0], old) if now else None) or f"Its messages have the subjects {', '.join(old)}."
    yield Finding(action.entry.name, Rule.SUBJECTS_AIMLESS, reason, f"{hint} {MAY_MISS}")


def against_overrides(action: Action) -> Iterator[Finding]:
    """Refuse changes that contradict other fields, or the existing messages."""
    name, config, captured = action.entry.name, action.config, action.entry.captured
    changed = {change.field for change in action.changes}
    if "mirror_direct" in changed and config.get("mirror_direct") and not config.get("mirror"):
        yield Finding(
            name, Rule.SERVER_REFUSES, "would have mirror_direct, and is no mirror", "Leave mirror_direct out."
        )
    for field, held in (("max_msgs", captured.messages), ("max_bytes", captured.bytes)):
        most = config.get(field) or -1
        if field in changed and 0 < most < held and action.counted:
            yield trims(name, field, most, held, noun="messages" if field == "max_msgs" else "bytes")


def trims(name: str, field: str, left: int, held: int, *, noun: str = "messages") -> Finding:
    """Return the refusal of a limit that leaves `left` of the `held` messages or bytes of a stream."""
    return Finding(
        name,
        Rule.LIMIT_TRIMS,
        f"would keep {left} of its {held} {noun}, and so cannot be proved",
        f"Restore it with a larger {field}, and lower that afterwards.",
    )
