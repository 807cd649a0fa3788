"""What a config needs of a server: the table agrees with the witness's, and what is sent fits the target."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.planning.configs.features import (
    Lacking,
    Version,
    fit_consumer,
    fit_stream,
    lacking_for_consumer,
    lacking_for_stream,
)
from tests.harness.oracle_features import config_can_go, consumer_can_go
from tests.harness.servers import VERSIONS

JSON = dict[str, Any]

# For each of the witness's features a config that uses it, as servers would accept and report it.
STREAM_USES: dict[str, JSON] = {
    "allow_msg_ttl": {"allow_msg_ttl": True},
    "subject_delete_marker_ttl": {"subject_delete_marker_ttl": 10**9},
    "allow_msg_counter": {"allow_msg_counter": True},
    "allow_atomic": {"allow_atomic": True},
    "allow_msg_schedules": {"allow_msg_schedules": True},
    "persist_mode": {"persist_mode": "async"},
    "allow_batched": {"allow_batched": True},
    "consumer of a mirror or source": {"sources": [{"name": "A"}, {"name": "B", "consumer": {"name": "c"}}]},
}
CONSUMER_USES: dict[str, JSON] = {
    "pause_until": {"pause_until": "2070-01-01T00:00:00Z"},
    "priority_groups": {"priority_groups": ["g"], "priority_policy": "overflow"},
    "priority_policy prioritized": {"priority_groups": ["g"], "priority_policy": "prioritized"},
    "ack_policy flow_control": {"ack_policy": "flow_control"},
    "sourcing": {"sourcing": True},
}
# Fields that are there and say nothing, as newer servers write them.
STREAM_SILENT: JSON = {
    "allow_msg_ttl": False,
    "subject_delete_marker_ttl": 0,
    "allow_msg_counter": False,
    "allow_atomic": False,
    "allow_msg_schedules": None,
    "persist_mode": "default",
    "allow_batched": False,
    "mirror": None,
    "sources": [{"name": "A", "consumer": None}],
}
CONSUMER_SILENT: JSON = {
    "pause_until": "0001-01-01T00:00:00Z",
    "priority_groups": [],
    "priority_policy": "none",
    "priority_timeout": 0,
    "ack_policy": "explicit",
    "sourcing": False,
}


def version(text: str) -> Version:
    return tuple(map(int, text.split(".")))


def merged(uses: dict[str, JSON], names: set[str]) -> JSON:
    config: JSON = {"name": "S"}
    for name in sorted(names):
        config |= uses[name]
    return config


@given(st.sets(st.sampled_from(sorted(STREAM_USES))), st.sampled_from(VERSIONS))
def test_a_stream_lacks_what_the_witness_says_it_lacks(names: set[str], target: str) -> None:
    config = merged(STREAM_USES, names)
    assert len(lacking_for_stream(config, version(target))) == len(config_can_go(config, target))


@given(st.sets(st.sampled_from(sorted(CONSUMER_USES))), st.sampled_from(VERSIONS))
def test_a_consumer_lacks_something_where_the_witness_says_so(names: set[str], target: str) -> None:
    config = merged(CONSUMER_USES, names)
    assert bool(lacking_for_consumer(config, version(target))) == bool(consumer_can_go(config, target))


@pytest.mark.parametrize("target", VERSIONS)
def test_fields_that_say_nothing_are_no_obstacle_and_are_not_sent(target: str) -> None:
    assert lacking_for_stream(STREAM_SILENT, version(target)) == []
    assert lacking_for_consumer(CONSUMER_SILENT, version(target)) == []
    unknown = set(STREAM_USES) if version(target) < (2, 11) else set()
    assert not unknown & fit_stream(STREAM_SILENT, version(target)).keys()
    assert "sourcing" not in fit_consumer(CONSUMER_SILENT, version(target))


def test_what_is_lacking_is_told_with_the_release_that_has_it() -> None:
    assert [str(one) for one in lacking_for_stream({"allow_atomic": True}, (2, 11, 11))] == [
        "allow_atomic needs nats-server 2.12"
    ]
    assert lacking_for_stream({"mirror": {"name": "A", "consumer": {"name": "c"}}}, (2, 12, 8)) == [
        Lacking("consumer of a mirror or source", (2, 14))
    ]
    assert [str(one) for one in lacking_for_consumer({"ack_policy": "flow_control"}, (2, 12, 8))] == [
        "ack_policy flow_control needs nats-server 2.14"
    ]


@given(
    st.dictionaries(
        st.sampled_from(["max_age", "sealed", "subjects", "description", "placement", "republish", "num_replicas"]),
        st.sampled_from([None, False, True, 0, 1, -1, "", "text", [], ["a"], {}, {"cluster": "c"}]),
    )
)
def test_only_what_equals_absence_in_go_is_left_out(config: JSON) -> None:
    kept = fit_stream(config, (2, 15, 1))
    assert kept == {key: value for key, value in config.items() if value or value == {}}


def test_the_servers_own_metadata_stays_behind_and_the_users_is_kept() -> None:
    config = {"metadata": {"_nats.ver": "2.15.1", "_nats.req.level": "0", "team": "a"}}
    assert fit_stream(config, (2, 12, 8)) == {"metadata": {"team": "a"}}
    assert fit_consumer({"metadata": {"_nats.ver": "2.15.1"}}, (2, 12, 8)) == {}
