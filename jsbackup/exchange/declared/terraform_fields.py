"""The fields of the resources of Terraform's provider nats-io/jetstream.

Read from github.com/nats-io/terraform-provider-jetstream, `jetstream/resource_*.go` and `util.go`. Durations are whole
seconds. The provider reads times back without parts of a second, and would then replace the resource at each apply,
with all it holds; so a time that has them is rounded. Defaults of the provider differ from the server's:
`allow_direct`, `max_ack_pending`, `duplicate_window`.
"""

from __future__ import annotations

from jsbackup.exchange.declared.fields import (
    AGE_SECONDS,
    BOOL,
    HISTORY,
    INTEGER,
    NOT,
    PATTERN,
    PATTERNS,
    PERCENT,
    SECOND,
    SECONDS,
    SECONDS_LIST,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Form,
    Nested,
    Place,
    one_of,
)

__all__ = ["CONSUMER", "KEY_VALUE", "META_ARGUMENTS", "OBJECT_STORE", "STREAM"]

# Of Terraform itself, and without effect on the configuration.
META_ARGUMENTS = frozenset(("//", "depends_on", "lifecycle", "provider"))

_TRANSFORM = (Place("src", "source", TEXT, unset=""), Place("dest", "destination", TEXT))
_SOURCE = (
    Place("name", "name", TEXT),
    Place("opt_start_seq", "start_seq", INTEGER),
    Place("opt_start_time", "start_time", SECOND),
    Place("filter_subject", "filter_subject", PATTERN),
    Place("subject_transforms", "subject_transform", Nested(_TRANSFORM, many=True, block=True)),
    Place(
        "external",
        "external",
        Nested((Place("api", "api", TEXT), Place("deliver", "deliver", TEXT)), block=True),
    ),
    Place(
        "consumer",
        "consumer",
        Nested(
            (Place("name", "name", TEXT), Place("deliver_subject", "deliver_subject", TEXT, unset="")),
            block=True,
        ),
    ),
)
_STORAGE = one_of(file="file", memory="memory")
_PLACEMENT = (
    Place("placement.cluster", "placement_cluster", TEXT),
    Place("placement.tags", "placement_tags", TEXTS),
)

STREAM = (
    Place("name", "name", TEXT),
    Place("description", "description", TEXT),
    Place("metadata", "metadata", TEXT_MAP),
    Place("subjects", "subjects", PATTERNS),
    Place("discard", "discard", one_of(old="old", new="new"), "old"),
    Place("discard_new_per_subject", "discard_new_per_subject", BOOL),
    Place("max_msgs", "max_msgs", INTEGER, -1),
    Place("max_msgs_per_subject", "max_msgs_per_subject", INTEGER, -1),
    Place("max_bytes", "max_bytes", INTEGER, -1),
    Place("max_age", "max_age", AGE_SECONDS),
    Place("duplicate_window", "duplicate_window", AGE_SECONDS, 120, unset=0),
    Place("max_msg_size", "max_msg_size", INTEGER, -1),
    Place("storage", "storage", _STORAGE, "file"),
    Place("no_ack", "ack", NOT, True),
    Place("retention", "retention", one_of(limits="limits", interest="interest", workqueue="workqueue"), "limits"),
    Place("compression", "compression", one_of(none="none", s2="s2"), "none"),
    Place("max_consumers", "max_consumers", INTEGER, -1),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("deny_delete", "deny_delete", BOOL),
    Place("deny_purge", "deny_purge", BOOL),
    Place("allow_rollup_hdrs", "allow_rollup_hdrs", BOOL),
    Place("allow_direct", "allow_direct", BOOL, True, unset=False),
    Place("mirror_direct", "mirror_direct", BOOL),
    *_PLACEMENT,
    Place("placement.preferred", "placement_preferred", TEXT),
    Place("subject_transform", "subject_transform", Nested(_TRANSFORM, block=True)),
    Place("mirror", "mirror", Nested(_SOURCE, block=True)),
    Place("sources", "source", Nested(_SOURCE, many=True, block=True)),
    Place("republish.src", "republish_source", TEXT),
    Place("republish.dest", "republish_destination", TEXT),
    Place("republish.headers_only", "republish_headers_only", BOOL),
    Place("consumer_limits.max_ack_pending", "max_ack_pending", INTEGER),
    Place("consumer_limits.inactive_threshold", "inactive_threshold", SECONDS),
    Place("allow_msg_ttl", "allow_msg_ttl", BOOL),
    Place("subject_delete_marker_ttl", "subject_delete_marker_ttl", AGE_SECONDS),
    Place("allow_msg_counter", "allow_msg_counter", BOOL),
    Place("allow_atomic", "allow_atomic", BOOL),
    Place("allow_msg_schedules", "allow_msg_schedules", BOOL),
    Place("first_seq", "first_seq", INTEGER),
    Place("persist_mode", "persist_mode", one_of(default="default", **{"async": "async", "": ""})),
    Place("allow_batched", "allow_batched", BOOL),
)

_POLICIES = ("none", "overflow", "pinned_client", "prioritized")
_ACKS = ("explicit", "all", "none", "flow_control")
_TRUE = Form(lambda value: value, lambda value: BOOL.read(value))

CONSUMER = (
    Place("durable_name", "durable_name", TEXT),
    Place("description", "description", TEXT),
    Place("metadata", "metadata", TEXT_MAP),
    Place("deliver_subject", "delivery_subject", TEXT),
    # One of six fields says where it starts; see `terraform.py`.
    Place("deliver.all", "deliver_all", _TRUE),
    Place("deliver.last", "deliver_last", _TRUE),
    Place("deliver.new", "deliver_new", _TRUE),
    Place("deliver.last_per_subject", "deliver_last_per_subject", _TRUE),
    Place("deliver.by_start_sequence", "stream_sequence", INTEGER),
    Place("deliver.by_start_time", "start_time", SECOND),
    Place("deliver_group", "delivery_group", TEXT),
    Place("ack_policy", "ack_policy", one_of(**{word: word for word in _ACKS}), "explicit"),
    Place("ack_wait", "ack_wait", SECONDS, 30, unset=0),
    Place("max_deliver", "max_delivery", INTEGER, -1),
    Place("filter_subject", "filter_subject", TEXT),
    Place("filter_subjects", "filter_subjects", TEXTS),
    Place("replay_policy", "replay_policy", one_of(instant="instant", original="original"), "instant"),
    Place("sample_freq", "sample_freq", PERCENT),
    Place("rate_limit_bps", "ratelimit", INTEGER),
    Place("max_ack_pending", "max_ack_pending", INTEGER, 20000, unset=0),
    Place("idle_heartbeat", "heartbeat", SECONDS),
    Place("flow_control", "flow_control", BOOL),
    Place("max_waiting", "max_waiting", INTEGER),
    Place("headers_only", "headers_only", BOOL),
    Place("max_batch", "max_batch", INTEGER),
    Place("max_expires", "max_expires", SECONDS),
    Place("max_bytes", "max_bytes", INTEGER),
    Place("inactive_threshold", "inactive_threshold", SECONDS),
    Place("num_replicas", "replicas", INTEGER),
    Place("mem_storage", "memory", BOOL),
    Place("backoff", "backoff", SECONDS_LIST),
    Place("priority_policy", "priority_policy", one_of(**{word: word for word in _POLICIES})),
    Place("priority_groups", "priority_groups", TEXTS),
    Place("priority_timeout", "priority_timeout", SECONDS),
)

# Of buckets, `ours` are the fields of their streams; see `bucket_streams.py` for the others.
KEY_VALUE = (
    Place("description", "description", TEXT),
    Place("storage", "storage", _STORAGE, "file"),
    Place("max_msgs_per_subject", "history", HISTORY, 5),
    Place("max_age", "ttl", AGE_SECONDS),
    Place("max_msg_size", "max_value_size", INTEGER, -1),
    Place("max_bytes", "max_bucket_size", INTEGER, -1),
    *_PLACEMENT,
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("subject_delete_marker_ttl", "limit_marker_ttl", AGE_SECONDS),
)

OBJECT_STORE = (
    Place("description", "description", TEXT),
    Place("storage", "storage", _STORAGE, "file"),
    Place("max_age", "ttl", AGE_SECONDS),
    Place("max_bytes", "max_bucket_size", INTEGER, -1),
    *_PLACEMENT,
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("compression", "compression", one_of(none=False, s2=True), False),
)
