"""Which server release each config field needs, and how to fit a config to a target.

Read from nats-server's `StreamConfig`, `ConsumerConfig` and `jetstream_versioning.go` (2.10 to 2.15). A server older
than 2.12 ignores fields that it does not know, silently; 2.12 and newer refuse them. So a field that the target's
release lacks is left out if it has its default, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jsbackup.model import JsonObject
from jsbackup.times import ZERO_TIME

__all__ = [
    "IDENTITIES_SINCE",
    "MEMORY_SNAPSHOTS_SINCE",
    "V2_SINCE",
    "Lacking",
    "Version",
    "fit_consumer",
    "fit_stream",
    "lacking_for_consumer",
    "lacking_for_stream",
    "version_text",
]

Version = tuple[int, ...]

V2_SINCE: Version = (2, 15)
"""The first release that makes and accepts archives v2."""

MEMORY_SNAPSHOTS_SINCE: Version = (2, 15)
"""The first release that makes snapshots of streams kept in memory, and restores them."""

IDENTITIES_SINCE: Version = (2, 15)
"""The first release that gives each source of a stream an identity of its own."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """A field of a config that the target does not support, and the first release that does."""

    field: str
    since: Version

    def __str__(self) -> str:
        return f"{self.field} needs nats-server {'.'.join(map(str, self.since))}"


# An empty object is not included: it can be a setting with all its defaults.
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [])


def _set(value: Any) -> bool:
    """Return whether a value is set: not absent, false, zero, empty, nor Go's zero time."""
    return bool(value) and value != ZERO_TIME


def _beyond(*defaults: str) -> Callable[[Any], bool]:
    return lambda value: _set(value) and value not in defaults


# field -> (first release, whether the value uses the feature). Fields not listed are as old as 2.10.
_STREAM: Mapping[str, tuple[Version, Callable[[Any], bool]]] = {
    "allow_msg_ttl": ((2, 11), _set),
    "subject_delete_marker_ttl": ((2, 11), _set),
    "allow_msg_counter": ((2, 12), _set),
    "allow_atomic": ((2, 12), _set),
    "allow_msg_schedules": ((2, 12), _set),
    "persist_mode": ((2, 12), _beyond("default")),
    "allow_batched": ((2, 14), _set),
}
# Fields of a mirror or source.
_UPSTREAM: Mapping[str, tuple[Version, Callable[[Any], bool]]] = {"consumer": ((2, 14), _set)}
_CONSUMER: Mapping[str, tuple[Version, Callable[[Any], bool]]] = {
    "pause_until": ((2, 11), _set),
    "priority_groups": ((2, 11), _set),
    "priority_policy": ((2, 11), _beyond("none")),
    "priority_timeout": ((2, 11), _set),
    "sourcing": ((2, 14), _set),
}
# Newer values of old fields: (field, value) -> first release.
_CONSUMER_VALUES: Mapping[tuple[str, str], Version] = {
    ("priority_policy", "prioritized"): (2, 12),
    ("ack_policy", "flow_control"): (2, 14),
}


def _too_new(
    config: JsonObject, target: Version, table: Mapping[str, tuple[Version, Callable[[Any], bool]]]
) -> Iterator[Lacking]:
    for name, (since, used) in table.items():
        if since > target[: len(since)] and used(config.get(name)):
            yield Lacking(name, since)


def lacking_for_stream(config: JsonObject, target: Version) -> list[Lacking]:
    """Return the fields of a stream's config that a target of this version does not support."""
    found = list(_too_new(config, target, _STREAM))
    for upstream in (config.get("mirror"), *(config.get("sources") or ())):
        for lacking in _too_new(upstream, target, _UPSTREAM) if isinstance(upstream, dict) else ():
            named = Lacking(f"{lacking.field} of a mirror or source", lacking.since)
            found += [named] if named not in found else []
    return found


def lacking_for_consumer(config: JsonObject, target: Version) -> list[Lacking]:
    """Return the fields of a consumer's config that a target of this version does not support."""
    found = list(_too_new(config, target, _CONSUMER))
    for (name, value), since in _CONSUMER_VALUES.items():
        if config.get(name) == value and since > target[: len(since)] and all(f.field != name for f in found):
            found.append(Lacking(f"{name} {value}", since))
    return found


def _fit(config: JsonObject, target: Version, table: Mapping[str, tuple[Version, Callable[[Any], bool]]]) -> JsonObject:
    # Absent, false, zero and empty are the same to the server. Leaving them out keeps the request small enough for
    # servers with a message limit of a kilobyte.
    fitted = {
        k: v
        for k, v in config.items()
        if v not in _NOTHING and (k not in table or table[k][0] <= target[: len(table[k][0])])
    }
    # The server writes its own version and API level into the metadata; elsewhere they would be wrong.
    metadata = {k: v for k, v in (config.get("metadata") or {}).items() if not k.startswith("_nats.")}
    fitted.pop("metadata", None)
    if metadata:
        fitted["metadata"] = metadata
    return fitted


def fit_stream(config: JsonObject, target: Version) -> JsonObject:
    """Return the stream config for a target: without fields that it does not know, and without the server's own
    metadata.
    """
    return _fit(config, target, _STREAM)


def fit_consumer(config: JsonObject, target: Version) -> JsonObject:
    """Return the consumer config for a target, as `fit_stream`."""
    return _fit(config, target, _CONSUMER)


def version_text(version: Version) -> str:
    return "nats-server " + ".".join(map(str, version))
