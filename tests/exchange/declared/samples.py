"""Configs with every field that servers up to 2.15 have, each set to something."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SECOND = 10**9

SOURCE: dict[str, Any] = {
    "name": "ORIGIN",
    "opt_start_seq": 7,
    "opt_start_time": "2026-01-02T03:04:05Z",
    "filter_subject": "a.>",
    "external": {"api": "$JS.hub.API", "deliver": "d"},
    "subject_transforms": [{"src": "a.*", "dest": "b.{{wildcard(1)}}"}],
}
STREAM: dict[str, Any] = {
    "name": "EVERY_field",
    "description": "all ${of} it: %{yes}",
    "subjects": ["a.>", "b"],
    "retention": "workqueue",
    "max_consumers": 3,
    "max_msgs": 10,
    "max_bytes": 1 << 40,
    "max_age": 36 * 3600 * SECOND,
    "max_msgs_per_subject": 4,
    "max_msg_size": 1000,
    "discard": "new",
    "discard_new_per_subject": True,
    "storage": "memory",
    "num_replicas": 3,
    "no_ack": True,
    "duplicate_window": 90 * SECOND,
    "placement": {"cluster": "east", "tags": ["ssd"]},
    "mirror": SOURCE,
    "sources": [SOURCE, {"name": "SECOND"}],
    "deny_delete": True,
    "deny_purge": True,
    "allow_rollup_hdrs": True,
    "compression": "s2",
    "first_seq": 100,
    "subject_transform": {"src": "x.*", "dest": "y.{{wildcard(1)}}"},
    "republish": {"src": "p.>", "dest": "q.>"},
    "allow_direct": True,
    "mirror_direct": True,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 60 * SECOND,
    "allow_msg_counter": True,
    "allow_atomic": True,
    "allow_msg_schedules": True,
    "persist_mode": "async",
    "consumer_limits": {"inactive_threshold": 5 * SECOND, "max_ack_pending": 9},
    "metadata": {"owner": "tests", "a${b}": "", "yes": "1e3"},
}
CONSUMER: dict[str, Any] = {
    "name": "every",
    "durable_name": "every",
    "description": "d",
    "deliver_policy": "by_start_sequence",
    "opt_start_seq": 5,
    "deliver_subject": "to.me",
    "deliver_group": "g",
    "ack_policy": "explicit",
    "ack_wait": 20 * SECOND,
    "max_deliver": 4,
    "backoff": [SECOND, 3 * SECOND],
    "filter_subject": "a.b",
    "filter_subjects": ["a.c", "a.d"],
    "replay_policy": "original",
    "sample_freq": "30%",
    "rate_limit_bps": 1 << 30,
    "max_ack_pending": 77,
    "max_waiting": 12,
    "flow_control": True,
    "headers_only": True,
    "idle_heartbeat": 5 * SECOND,
    "max_batch": 6,
    "max_expires": 8 * SECOND,
    "max_bytes": 4096,
    "inactive_threshold": 300 * SECOND,
    "priority_policy": "pinned_client",
    "priority_timeout": 60 * SECOND,
    "priority_groups": ["jobs"],
    "num_replicas": 1,
    "mem_storage": True,
    "metadata": {"owner": "tests"},
}
# Fields of servers that one tool or both cannot express, and those of servers to come.
OTHER_STREAM: dict[str, Any] = {"sealed": True, "allow_batched": True, "new_in_2_99": {"deep": 1}}
OTHER_CONSUMER: dict[str, Any] = {"pause_until": "2070-01-01T00:00:00Z", "sourcing": True, "new_in_2_99": "x"}

BUCKET: dict[str, Any] = {
    "name": "KV_settings",
    "subjects": ["$KV.settings.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": 4096,
    "max_age": 3600 * SECOND,
    "max_msgs_per_subject": 5,
    "max_msg_size": 100,
    "discard": "new",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND,
    "allow_direct": True,
    "deny_delete": True,
    "allow_rollup_hdrs": True,
    "mirror_direct": False,
    "sealed": False,
    "deny_purge": False,
    "consumer_limits": {},
}
OBJECTS: dict[str, Any] = {
    "name": "OBJ_reports",
    "subjects": ["$O.reports.C.>", "$O.reports.M.>"],
    "discard": "new",
    "storage": "file",
    "num_replicas": 1,
    "max_bytes": -1,
    "duplicate_window": 120 * SECOND,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
}

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
_SECONDS = st.integers(1, 10**9).map(lambda seconds: seconds * SECOND)
_OF: dict[str, st.SearchStrategy[Any]] = {
    "description": _TEXT | st.sampled_from(["${", "$${", "%%{x}", "yes", "1e3", "- a: |", "\x85\u2028\ufeff"]),
    "metadata": st.dictionaries(_TEXT, st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=1),
    "max_age": _SECONDS,
    "ack_wait": _SECONDS,
    "max_bytes": st.integers(1, (1 << 63) - 1),
    "first_seq": st.integers(1, (1 << 63) - 1),
}


def some_of(config: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of its fields, with these or drawn values; always its names and policies."""
    kept = {key: st.just(value) for key, value in config.items() if key in ("name", "durable_name", "ack_policy")}
    kept |= {"max_deliver": st.just(4)} if "durable_name" in config else {"retention": st.just("limits")}
    drawn = {key: _OF.get(key, st.just(value)) for key, value in config.items() if key not in kept}
    return st.fixed_dictionaries(kept, optional=drawn)


JUNK = ["null", "[]", "{}", "1", "true", '"', ":", "\n- ", "&a ", "*a", "!!binary x", "${x}", "%{", "1e999", ".nan"]
# What no server sends.
ODD = st.sampled_from(
    [
        None,
        True,
        1.5,
        1 << 64,
        "",
        "x",
        "\x00",
        [],
        [1],
        ["a", None],
        {},
        {"a": 1},
        {"name": 1},
        [[]],
        [{}],
        [{"a": {}}],
    ]
)
