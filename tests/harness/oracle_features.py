"""Which features of a configuration a server of some version does not have: the oracle for what a plan must say.

Source: STREAM.CREATE and CONSUMER.CREATE sent to 2.10.26, 2.11.11, 2.12.8, 2.14.6 and 2.15.1 with each field. Up to
2.11 a server takes fields it does not know without a word and drops them; from 2.12 on it refuses them (10025,
"unknown field"); values it does not know (`prioritized`, `flow_control`) are refused by all. 2.15 brought no new field.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.api import JSON
from tests.harness.awkward_bench import V2_11, V2_12, V2_14, Version
from tests.harness.servers import version_tuple

_Uses = Callable[[JSON], object]


def _upstreams(config: JSON) -> list[JSON]:
    return [*(config.get("sources") or []), *([config["mirror"]] if config.get("mirror") else [])]


STREAM_FEATURES: dict[str, tuple[Version, _Uses]] = {
    "allow_msg_ttl": (V2_11, lambda config: config.get("allow_msg_ttl")),
    "subject_delete_marker_ttl": (V2_11, lambda config: config.get("subject_delete_marker_ttl")),
    "allow_msg_counter": (V2_12, lambda config: config.get("allow_msg_counter")),
    "allow_atomic": (V2_12, lambda config: config.get("allow_atomic")),
    "allow_msg_schedules": (V2_12, lambda config: config.get("allow_msg_schedules")),
    "persist_mode": (V2_12, lambda config: config.get("persist_mode") not in (None, "", "default")),
    "allow_batched": (V2_14, lambda config: config.get("allow_batched")),
    "consumer of a mirror or source": (V2_14, lambda config: any(one.get("consumer") for one in _upstreams(config))),
}

CONSUMER_FEATURES: dict[str, tuple[Version, _Uses]] = {
    "pause_until": (V2_11, lambda config: config.get("pause_until")),
    "priority_groups": (V2_11, lambda config: config.get("priority_groups")),
    "priority_policy prioritized": (V2_12, lambda config: config.get("priority_policy") == "prioritized"),
    "ack_policy flow_control": (V2_14, lambda config: config.get("ack_policy") == "flow_control"),
    "sourcing": (V2_14, lambda config: config.get("sourcing")),
}


def config_can_go(config: JSON, version: str) -> list[str]:
    """The features of a stream's configuration that a server of `version` lacks; empty if it can go there."""
    return _lacking(config, version, STREAM_FEATURES)


def consumer_can_go(config: JSON, version: str) -> list[str]:
    """The same for a consumer's configuration."""
    return _lacking(config, version, CONSUMER_FEATURES)


def _lacking(config: JSON, version: str, features: dict[str, tuple[Version, _Uses]]) -> list[str]:
    able = version_tuple(version)
    return [name for name, (since, uses) in features.items() if since > able and uses(config)]
