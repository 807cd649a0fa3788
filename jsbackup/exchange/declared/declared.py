"""What all tools have in common that create streams and consumers: how a config becomes a resource, and back.

Names of resources in other tools have fewer characters than those in NATS, so two names may become the same. Then all
but one that fits unchanged get a part of their digest, so that a name does not depend on the order: another name would
mean another resource, and these tools delete a stream that is not declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.config_files import ConfigSet, bucket_stream, sound_name, without_server_metadata
from jsbackup.exchange.declared.fields import Lost, Place, Rounded, as_bucket, read_fields, write_fields
from jsbackup.exchange.folder import printable_name
from jsbackup.model import JsonObject

__all__ = ["Tool", "add_resource", "consumer_of", "resource_of", "unique_names"]

# Without these a consumer would be another one.
_NEEDED = ("ack_policy", "deliver_policy", "opt_start_seq", "opt_start_time")


def _same(config: JsonObject) -> JsonObject:
    return config


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, with its kinds of resources and where their fields are, see `fields.py`.

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
    to_consumer: Callable[[JsonObject], JsonObject] = _same
    from_consumer: Callable[[JsonObject], JsonObject] = _same


def unique_names(
    names: Iterable[str], shown: Callable[[str], str], most: int, *, ignoring_case: bool = False
) -> dict[str, str]:
    """Return how each name is shown, in at most `most` characters, with a digest where two would be the same. With
    `ignoring_case` also where they differ only in case: file systems of macOS and Windows take one file for both.

    Raises `UsageError` if two are the same all the same: somebody wants it.
    """
    wanted = {name: shown(name) for name in names}
    alike = Counter(plain.lower() if ignoring_case else plain for plain in wanted.values())
    unique = {}
    for name, plain in wanted.items():
        alone = alike[plain.lower()] == 1 if ignoring_case else alike[plain] == 1 or plain == name
        digest = sha256(name.encode()).hexdigest()[:8]
        unique[name] = plain if alone and len(plain) <= most else f"{plain[: most - 9]}-{digest}"
    if len(set(unique.values())) < len(unique):
        raise UsageError("two of the names become the same", hint="Export these streams one by one.")
    return unique


def resource_of(tool: Tool, config: JsonObject) -> tuple[str, str, JsonObject, list[str]]:
    """Return the kind of the resource of a stream, the name of the stream or the bucket, the fields, and what is
    lost.
    """
    config = deepcopy(without_server_metadata(config))
    lost: Lost = {**tool.drop_ignored(config)}
    for kind, (prefix, fields) in tool.buckets.items():
        if not lost and (found := as_bucket(prefix, config, fields)):
            return kind, found[0], {tool.bucket: found[0], **found[1]}, []
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


def add_resource(tool: Tool, found: ConfigSet, place: str, kind: str, body: JsonObject, stream: Any = None) -> None:
    """Add the config that a resource declares; `stream` is that of a consumer. `place` begins the messages of errors.

    Raises `UsageError` if it is not valid, `UnsupportedError` if it is of another kind.
    """
    if kind == tool.stream_kind:
        config = read_fields(body, tool.stream_fields, place, others=tool.others)
        tool.drop_ignored(config)
        config = {key: value for key, value in without_server_metadata(config).items() if value != {}}
        found.add_stream(place, config)
    elif kind == tool.consumer_kind:
        fields = read_fields(body, tool.consumer_fields, place, others=tool.others | {tool.stream})
        config = without_server_metadata(tool.from_consumer(fields))
        name = config.get("durable_name")
        found.add_consumer(place, stream, name, config | {"name": name})
    elif kind in tool.buckets:
        prefix, table = tool.buckets[kind]
        bucket = sound_name(place, body.get(tool.bucket))
        config = read_fields(body, table, place, others=tool.others | {tool.bucket})
        found.add_stream(place, without_server_metadata(bucket_stream(prefix, bucket, config)))
    else:
        kinds = ", ".join((tool.stream_kind, tool.consumer_kind, *tool.buckets))
        raise UnsupportedError(f"{place} is not supported: only {kinds} are")
