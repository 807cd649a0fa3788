"""Configurations of streams and consumers with hashed names.

Limits, retention and all other settings that name nothing stay. Texts that describe or place something (description,
metadata, placement) go, and so does every field that is not known here and is not a number or a truth value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.transforms.obfuscate.names import ObfuscatedNames

__all__ = ["obfuscate_consumer_config", "obfuscate_stream_config"]

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
