"""Declarations for NACK, the controller that makes streams out of resources of Kubernetes.

    DIR/stream-<name>.yaml         a Stream, and a Consumer for each of its consumers
    DIR/keyvalue-<bucket>.yaml     a KeyValue
    DIR/objectstore-<bucket>.yaml  an ObjectStore

`kubectl apply -f DIR` takes them. Files to read may be divided in any way, and be lists, as `kubectl get -o yaml`
prints them. Resources of other groups are ignored.

Read YAML that people or kubectl wrote. Hostile input: no objects of Python, no aliases (a few bytes of them become
gigabytes), limited size and depth. A name that an object has twice is an error.

The fields of NACK's resources in `jetstream.nats.io/v1beta2`.

Read from github.com/nats-io/nack: `deploy/crds.yml` for names, types and defaults, `pkg/jetstream/apis` and
`internal/controller` for what becomes of them. Kubernetes drops fields that the definition lacks: it lacks
`republish.headers_only`, which the controller would know.

Without `maxAge` the controller's control loop takes the default of its library, which is a year, although the
definition says unlimited; so it is always written. Without `ackWait` the definition says a nanosecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.config_files import MAX_CONFIG_BYTES, ConfigSet, ExportedStream, StreamConfigs
from jsbackup.exchange.declared.resources import (
    BOOL,
    GO_DURATION,
    HISTORY,
    INTEGER,
    PERCENT,
    TEXT,
    TEXT_MAP,
    TEXTS,
    TIME,
    Form,
    Nested,
    Place,
    Tool,
    add_resource,
    consumer_of,
    listed,
    one_of,
    resource_of,
    unique_names,
)
from jsbackup.exchange.folder import Folder, NewFolder, printable_name
from jsbackup.failure import Failure
from jsbackup.formats.yaml_text import to_yaml
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM

__all__ = ["NACK_SUFFIXES", "read_nack_files", "write_nack_files"]

_TRANSFORM = (Place("src", "source", TEXT, unset=""), Place("dest", "dest", TEXT))
_PLACEMENT = (Place("cluster", "cluster", TEXT), Place("tags", "tags", TEXTS))
_SOURCE = (
    Place("name", "name", TEXT),
    Place("opt_start_seq", "optStartSeq", INTEGER),
    Place("opt_start_time", "optStartTime", TIME),
    Place("filter_subject", "filterSubject", TEXT),
    Place("external.api", "externalApiPrefix", TEXT),
    Place("external.deliver", "externalDeliverPrefix", TEXT),
    Place("subject_transforms", "subjectTransforms", Nested(_TRANSFORM, many=True)),
)
_REPUBLISH = (Place("dest", "destination", TEXT), Place("src", "source", TEXT, unset=""))
_STORAGE = one_of(file="file", memory="memory")

STREAM = (
    Place("name", "name", TEXT),
    Place("description", "description", TEXT),
    Place("subjects", "subjects", TEXTS),
    Place("retention", "retention", one_of(limits="limits", interest="interest", workqueue="workqueue"), "limits"),
    Place("max_consumers", "maxConsumers", INTEGER, -1),
    Place("max_msgs", "maxMsgs", INTEGER, -1),
    Place("max_bytes", "maxBytes", INTEGER, -1),
    Place("discard", "discard", one_of(old="old", new="new"), "old"),
    Place("discard_new_per_subject", "discardPerSubject", BOOL),
    Place("max_age", "maxAge", GO_DURATION, unset="0s"),
    Place("max_msgs_per_subject", "maxMsgsPerSubject", INTEGER),
    Place("max_msg_size", "maxMsgSize", INTEGER, -1),
    Place("storage", "storage", _STORAGE, "memory", unset="file"),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("no_ack", "noAck", BOOL),
    Place("duplicate_window", "duplicateWindow", GO_DURATION),
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
    Place("subject_delete_marker_ttl", "subjectDeleteMarkerTtl", GO_DURATION),
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

# Of buckets, `ours` are the fields of their streams; see `resources.py` for the others.
_COMPRESSED = one_of(none=False, s2=True)

KEY_VALUE = (
    Place("description", "description", TEXT),
    Place("max_msg_size", "maxValueSize", INTEGER),
    Place("max_msgs_per_subject", "history", HISTORY, 1),
    Place("max_age", "ttl", GO_DURATION),
    Place("subject_delete_marker_ttl", "limitMarkerTtl", INTEGER),
    Place("max_bytes", "maxBytes", INTEGER),
    Place("storage", "storage", _STORAGE, "file"),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("placement", "placement", Nested(_PLACEMENT)),
    Place("republish", "republish", Nested(_REPUBLISH)),
    Place("compression", "compression", _COMPRESSED, False),
)

OBJECT_STORE = (
    Place("description", "description", TEXT),
    Place("max_age", "ttl", GO_DURATION),
    Place("max_bytes", "maxBytes", INTEGER),
    Place("storage", "storage", _STORAGE, "file"),
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("placement", "placement", Nested(_PLACEMENT)),
    Place("compression", "compression", _COMPRESSED, False),
    Place("metadata", "metadata", TEXT_MAP),
)


_MAX_DEPTH = 32
_MAX_BYTES = 16 << 20


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Times stay texts, as for Kubernetes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > _MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested deeper than {_MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(names) != len(node.value):
            raise yaml.YAMLError("a name is not a text")
        if len(set(names)) != len(names):
            raise yaml.YAMLError(f"it has a name twice in line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(data: bytes, what: str) -> list[Any]:
    """Return the documents in `data`. Raises `UsageError` if it is not such YAML; `what` begins its message."""
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{what} has more than {_MAX_BYTES} bytes")
    try:
        return list(yaml.load_all(str(data, "utf-8"), Loader=_Loader))  # a safe loader
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also a number of too many digits
        mark = getattr(error, "problem_mark", None)
        at = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it has a value that cannot be read"
        if isinstance(error, yaml.YAMLError) and mark is None:
            problem = str(error).partition("\n")[0]
        raise UsageError(f"{what} is not YAML: {problem}{at}") from error


NACK_SUFFIXES = (".yaml", ".yml")

_GROUP = "jetstream.nats.io/"
_VERSION = f"{_GROUP}v1beta2"
_NACK = Tool(
    "NACK",
    "Stream",
    "Consumer",
    STREAM,
    CONSUMER,
    {"KeyValue": (BUCKET_STREAM, KEY_VALUE), "ObjectStore": (OBJECT_STREAM, OBJECT_STORE)},
    bucket="bucket",
    stream="streamName",
    # How the controller connects, and what it may do.
    others=frozenset(
        ("account", "creds", "nkey", "preventDelete", "preventUpdate", "servers", "tls", "tlsFirst", "jsDomain")
    ),
)
# Names in Kubernetes have up to 253 characters; the name of the file has some more than the resource.
_MOST_LABEL = 200
_NOT_IN_A_LABEL = re.compile(r"[^a-z0-9]+")


def write_nack_files(new: NewFolder, streams: Sequence[StreamConfigs]) -> list[ExportedStream]:
    """Write a file for each stream. Raises `UsageError`, and the errors of `NewFolder`."""
    resources = [resource_of(_NACK, stream.config) for stream in streams]
    # They need to be unique only in their kind.
    labels = {
        kind: unique_names([name for other, name, _, _ in resources if other == kind], _label, _MOST_LABEL)
        for kind, _, _, _ in resources
    }
    consumer_labels = unique_names(
        [f"{stream.name}\n{name}" for stream in streams for name in stream.consumers], _label, _MOST_LABEL
    )
    written = []
    for stream, (kind, name, spec, notes) in zip(streams, resources, strict=True):
        label = labels[kind][name]
        documents = [_document(kind, label, spec)]
        for consumer, config in stream.consumers.items():
            fields = consumer_of(_NACK, consumer, config, notes)
            if fields is None:
                continue
            if fields.get("priorityPolicy") == "pinned_client":  # without the time the controller drops it, too
                fields.setdefault("pinnedTtl", "0s")
            fields = {"streamName": stream.name, **fields}
            documents.append(_document("Consumer", consumer_labels[f"{stream.name}\n{consumer}"], fields))
        new.write(f"{kind.lower()}-{label}.yaml", "---\n".join(map(to_yaml, documents)).encode())
        written.append(ExportedStream(stream.name, kind, 0, tuple(notes), bool(notes)))
    return written


def _label(name: str) -> str:
    return _NOT_IN_A_LABEL.sub("-", name.lower()).strip("-") or "unnamed"


def _document(kind: str, label: str, spec: JsonObject) -> JsonObject:
    return {"apiVersion": _VERSION, "kind": kind, "metadata": {"name": label}, "spec": spec}


def read_nack_files(root: Folder, files: Iterable[str]) -> ConfigSet:
    """Return what files in `root` declare.

    Raises:
        UsageError: a file or a resource is not valid.
        StoreError: a file cannot be read.
    """
    configs = ConfigSet()
    for file in files:
        where = root.path_of(file)
        for document in read_yaml(root.read(file, MAX_CONFIG_BYTES), where):
            _read(configs, document, where)
    return configs


def _read(configs: ConfigSet, document: Any, where: str) -> None:
    if document is None:  # nothing but comments
        return
    if not isinstance(document, dict):
        raise UsageError(f"{where} has a document that is no resource of Kubernetes")
    version, kind, items = (document.get(key) for key in ("apiVersion", "kind", "items"))
    if isinstance(items, list) and isinstance(kind, str) and kind.endswith("List"):
        for item in items:
            _read(configs, item, where)
        return
    if not isinstance(version, str) or not version.startswith(_GROUP) or kind == "Account":
        return
    metadata, spec, kind = document.get("metadata"), document.get("spec"), printable_name(str(kind))[:40]
    label = printable_name(str(metadata.get("name") if isinstance(metadata, dict) else "without a name"))[:80]
    place = f"{where}: {kind} {label}"
    try:
        if version != _VERSION:
            raise UnsupportedError(f"{place} is not supported: it is of {printable_name(version)[:80]}")
        if not isinstance(spec, dict):
            raise UsageError(f"{place} has no spec")
        if kind in _NACK.buckets and (spec.pop("mirror", None) or spec.pop("sources", None)):
            raise UnsupportedError(f"{place} copies from another bucket, and only streams that do are supported")
        add_resource(_NACK, configs, place, kind=kind, body=spec, stream=spec.get(_NACK.stream))
    except UnsupportedError as error:
        configs.failures.append(Failure(label, error))
