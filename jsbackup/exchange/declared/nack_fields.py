"""The fields of NACK's resources in `jetstream.nats.io/v1beta2`.

Read from github.com/nats-io/nack: `deploy/crds.yml` for names, types and defaults, `pkg/jetstream/apis` and
`internal/controller` for what becomes of them. Kubernetes drops fields that the definition lacks: it lacks
`republish.headers_only`, which the controller would know.

Without `maxAge` the controller's control loop takes the default of its library, which is a year, although the
definition says unlimited; so it is always written. Without `ackWait` the definition says a nanosecond.
"""

from __future__ import annotations

from jsbackup.exchange.declared.fields import (
    AGE,
    AGE_NANOSECONDS,
    BOOL,
    GO_DURATION,
    HISTORY,
    INTEGER,
    PATTERN,
    PATTERNS,
    PERCENT,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TIME,
    Form,
    Nested,
    Place,
    listed,
    one_of,
)

__all__ = ["CONNECTION_FIELDS", "CONSUMER", "KEY_VALUE", "OBJECT_STORE", "STREAM"]

# How the controller connects, and what it may do.
CONNECTION_FIELDS = frozenset(
    ("account", "creds", "nkey", "preventDelete", "preventUpdate", "servers", "tls", "tlsFirst", "jsDomain")
)

_TRANSFORM = (Place("src", "source", TEXT, unset=""), Place("dest", "dest", TEXT))
_PLACEMENT = (Place("cluster", "cluster", TEXT), Place("tags", "tags", TEXTS))
_SOURCE = (
    Place("name", "name", TEXT),
    Place("opt_start_seq", "optStartSeq", INTEGER),
    Place("opt_start_time", "optStartTime", TIME),
    Place("filter_subject", "filterSubject", PATTERN),
    Place("external.api", "externalApiPrefix", TEXT),
    Place("external.deliver", "externalDeliverPrefix", TEXT),
    Place("subject_transforms", "subjectTransforms", Nested(_TRANSFORM, many=True)),
)
_REPUBLISH = (Place("dest", "destination", TEXT), Place("src", "source", TEXT, unset=""))
_STORAGE = one_of(file="file", memory="memory")

STREAM = (
    Place("name", "name", TEXT),
    Place("description", "description", TEXT),
    Place("subjects", "subjects", PATTERNS),
    Place("retention", "retention", one_of(limits="limits", interest="interest", workqueue="workqueue"), "limits"),
    Place("max_consumers", "maxConsumers", INTEGER, -1),
    Place("max_msgs", "maxMsgs", INTEGER, -1),
    Place("max_bytes", "maxBytes", INTEGER, -1),
    Place("discard", "discard", one_of(old="old", new="new"), "old"),
    Place("discard_new_per_subject", "discardPerSubject", BOOL),
    Place("max_age", "maxAge", AGE, unset="0s"),
    Place("max_msgs_per_subject", "maxMsgsPerSubject", INTEGER),
    Place("max_msg_size", "maxMsgSize", INTEGER, -1),
    Place("storage", "storage", _STORAGE, "memory", unset="file"),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("no_ack", "noAck", BOOL),
    Place("duplicate_window", "duplicateWindow", AGE),
    Place("placement", "placement", Nested(_PLACEMENT)),
    Place("mirror", "mirror", Nested(_SOURCE)),
    Place("sources", "sources", Nested(_SOURCE, many=True)),
    Place("sealed", "sealed", BOOL),
    Place("deny_delete", "denyDelete", BOOL),
    Place("deny_purge", "denyPurge", BOOL),
    Place("allow_rollup_hdrs", "allowRollup", BOOL),
    Place("compression", "compression", one_of(none="none", s2="s2", **{"": ""})),
    Place("first_seq", "firstSequence", INTEGER),
    Place("subject_transform", "subjectTransform", Nested(_TRANSFORM)),
    Place("republish", "republish", Nested(_REPUBLISH)),
    Place("allow_direct", "allowDirect", BOOL),
    Place("mirror_direct", "mirrorDirect", BOOL),
    Place("allow_msg_ttl", "allowMsgTtl", BOOL),
    Place("subject_delete_marker_ttl", "subjectDeleteMarkerTtl", AGE),
    Place("allow_msg_counter", "allowMsgCounter", BOOL),
    Place("allow_atomic", "allowAtomicPublish", BOOL),
    Place("allow_msg_schedules", "allowMsgSchedules", BOOL),
    Place("persist_mode", "persistMode", one_of(default="default", **{"async": "async", "": ""})),
    Place(
        "consumer_limits",
        "consumerLimits",
        Nested(
            (
                Place("inactive_threshold", "inactiveThreshold", GO_DURATION),
                Place("max_ack_pending", "maxAckPending", INTEGER),
            )
        ),
    ),
    Place("metadata", "metadata", TEXT_MAP),
)

_DELIVER = one_of(
    all="all",
    last="last",
    new="new",
    by_start_sequence="byStartSequence",
    by_start_time="byStartTime",
    last_per_subject="lastPerSubject",
)
# As text: "30" and "30%" are the same.
_SAMPLED = Form(lambda value: f"{PERCENT.write(value)}%", lambda value: PERCENT.read(PERCENT.write(value or "0")))

CONSUMER = (
    Place("durable_name", "durableName", TEXT),
    Place("description", "description", TEXT),
    Place("deliver_policy", "deliverPolicy", _DELIVER, "all"),
    Place("opt_start_seq", "optStartSeq", INTEGER),
    Place("opt_start_time", "optStartTime", TIME),
    Place("deliver_subject", "deliverSubject", TEXT),
    Place("deliver_group", "deliverGroup", TEXT),
    Place("ack_policy", "ackPolicy", one_of(none="none", all="all", explicit="explicit"), "none"),
    Place("ack_wait", "ackWait", GO_DURATION, "1ns", unset="0s"),
    Place("max_deliver", "maxDeliver", INTEGER),
    Place("backoff", "backoff", listed(GO_DURATION)),
    Place("filter_subject", "filterSubject", TEXT),
    Place("filter_subjects", "filterSubjects", TEXTS),
    Place("replay_policy", "replayPolicy", one_of(instant="instant", original="original"), "instant"),
    Place("sample_freq", "sampleFreq", _SAMPLED),
    Place("rate_limit_bps", "rateLimitBps", INTEGER),
    Place("max_ack_pending", "maxAckPending", INTEGER),
    Place("max_waiting", "maxWaiting", INTEGER),
    Place("flow_control", "flowControl", BOOL),
    Place("headers_only", "headersOnly", BOOL),
    Place("idle_heartbeat", "heartbeatInterval", GO_DURATION),
    Place("max_batch", "maxRequestBatch", INTEGER),
    Place("max_expires", "maxRequestExpires", GO_DURATION),
    Place("max_bytes", "maxRequestMaxBytes", INTEGER),
    Place("inactive_threshold", "inactiveThreshold", GO_DURATION),
    Place("pause_until", "pauseUntil", Form(TIME.write, lambda value: TIME.read(value) if value else "")),
    Place(
        "priority_policy",
        "priorityPolicy",
        one_of(none="none", overflow="overflow", pinned_client="pinned_client", prioritized="prioritized", **{"": ""}),
    ),
    Place("priority_timeout", "pinnedTtl", GO_DURATION),
    Place("priority_groups", "priorityGroups", TEXTS),
    Place("num_replicas", "replicas", INTEGER),
    Place("mem_storage", "memStorage", BOOL),
    Place("metadata", "metadata", TEXT_MAP),
)

# Of buckets, `ours` are the fields of their streams; see `bucket_streams.py` for the others.
_COMPRESSED = one_of(none=False, s2=True)

KEY_VALUE = (
    Place("description", "description", TEXT),
    Place("max_msg_size", "maxValueSize", INTEGER),
    Place("max_msgs_per_subject", "history", HISTORY, 1),
    Place("max_age", "ttl", AGE),
    Place("subject_delete_marker_ttl", "limitMarkerTtl", AGE_NANOSECONDS),
    Place("max_bytes", "maxBytes", INTEGER),
    Place("storage", "storage", _STORAGE, "file"),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("placement", "placement", Nested(_PLACEMENT)),
    Place("republish", "republish", Nested(_REPUBLISH)),
    Place("compression", "compression", _COMPRESSED, False),
)

OBJECT_STORE = (
    Place("description", "description", TEXT),
    Place("max_age", "ttl", AGE),
    Place("max_bytes", "maxBytes", INTEGER),
    Place("storage", "storage", _STORAGE, "file"),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("placement", "placement", Nested(_PLACEMENT)),
    Place("compression", "compression", _COMPRESSED, False),
    Place("metadata", "metadata", TEXT_MAP),
)
