"""Which server release each config field needs, and how to fit a config to a target.

Read from nats-server's `StreamConfig`, `ConsumerConfig` and `jetstream_versioning.go` (2.10 to 2.15). A server older
than 2.12 ignores fields that it does not know, silently; 2.12 and newer refuse them. So a field that the target's
release lacks is left out if it has its default, and refused otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


# field -> first release. Fields not listed are as old as 2.10.
_STREAM: Mapping[str, Version] = {
    "allow_msg_ttl": (2, 11),
    "subject_delete_marker_ttl": (2, 11),
    "allow_msg_counter": (2, 12),
    "allow_atomic": (2, 12),
    "allow_msg_schedules": (2, 12),
    "persist_mode": (2, 12),
    "allow_batched": (2, 14),
}
_UPSTREAM: Mapping[str, Version] = {"consumer": (2, 14)}  # of a mirror or source
_CONSUMER: Mapping[str, Version] = {
    "pause_until": (2, 11),
    "priority_groups": (2, 11),
    "priority_policy": (2, 11),
    "priority_timeout": (2, 11),
    "sourcing": (2, 14),
}
# Words that use no feature, as an absent, false, zero or empty value does.
_DEFAULTS: Mapping[str, str] = {"persist_mode": "default", "priority_policy": "none"}
# Newer values of old fields: (field, value) -> first release.
_CONSUMER_VALUES: Mapping[tuple[str, str], Version] = {
    ("priority_policy", "prioritized"): (2, 12),
    ("ack_policy", "flow_control"): (2, 14),
}


def _too_new(config: JsonObject, target: Version, table: Mapping[str, Version]) -> Iterator[Lacking]:
    for name, since in table.items():
        value = config.get(name)
        if since > target[: len(since)] and value and value not in (ZERO_TIME, _DEFAULTS.get(name)):
            yield Lacking(name, since)


def lacking_for_stream(config: JsonObject, target: Version) -> list[Lacking]:
    """Return the fields of a stream's config that a target of this version does not support."""
    lacking = list(_too_new(config, target, _STREAM))
    for upstream in (config.get("mirror"), *(config.get("sources") or ())):
        for unknown in _too_new(upstream, target, _UPSTREAM) if isinstance(upstream, dict) else ():
            named = Lacking(f"{unknown.field} of a mirror or source", unknown.since)
            lacking += [named] if named not in lacking else []
    return lacking


def lacking_for_consumer(config: JsonObject, target: Version) -> list[Lacking]:
    """Return the fields of a consumer's config that a target of this version does not support."""
    lacking = list(_too_new(config, target, _CONSUMER))
    for (name, value), since in _CONSUMER_VALUES.items():
        if (
            config.get(name) == value
            and since > target[: len(since)]
            and all(unknown.field != name for unknown in lacking)
        ):
            lacking.append(Lacking(f"{name} {value}", since))
    return lacking


def _fit(config: JsonObject, target: Version, table: Mapping[str, Version]) -> JsonObject:
    # Absent, false, zero and empty are the same to the server. Leaving them out keeps the request small enough for
    # servers with a message limit of a kilobyte.
    fitted = {
        k: v for k, v in config.items() if v not in _NOTHING and table.get(k, ()) <= target[: len(table.get(k, ()))]
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
