"""Declarations for Terraform and OpenTofu, with the provider nats-io/jetstream, in Terraform's JSON syntax.

    DIR/provider.tf.json           which provider is needed
    DIR/stream-<name>.tf.json      a jetstream_stream, and a jetstream_consumer for each of its consumers
    DIR/bucket-<name>.tf.json      a jetstream_kv_bucket
    DIR/objects-<name>.tf.json     a jetstream_obj_bucket

Files to read may be divided in any way. Resources of other providers are ignored.

Texts in the JSON of Terraform are templates: `${` begins an expression and `%{` a directive. Doubled, they are
themselves.

The fields of the resources of Terraform's provider nats-io/jetstream.

Read from github.com/nats-io/terraform-provider-jetstream, `jetstream/resource_*.go` and `util.go`. Durations are whole
seconds. The provider reads times back without parts of a second, and would then replace the resource at each apply,
with all it holds; so a time that has them is rounded. Defaults of the provider differ from the server's:
`allow_direct`, `max_ack_pending`, `duplicate_window`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.config_files import MAX_CONFIG_BYTES, ConfigSet, ExportedStream, StreamConfigs
from jsbackup.exchange.declared.resources import (
    BOOL,
    HISTORY,
    INTEGER,
    NOT,
    PERCENT,
    SECOND,
    SECONDS,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Nested,
    Place,
    Tool,
    add_resource,
    consumer_of,
    is_set,
    listed,
    one_of,
    resource_of,
    unique_names,
)
from jsbackup.exchange.folder import Folder, NewFolder, printable_name
from jsbackup.failure import Failure
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.strict_json import read_object, write_json

__all__ = ["TERRAFORM_SUFFIX", "read_terraform_files", "refuse_other_syntax", "write_terraform_files"]

_TRANSFORM = (Place("src", "source", TEXT, unset=""), Place("dest", "destination", TEXT))
_SOURCE = (
    Place("name", "name", TEXT),
    Place("opt_start_seq", "start_seq", INTEGER),
    Place("opt_start_time", "start_time", SECOND),
    Place("filter_subject", "filter_subject", TEXT),
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
    Place("subjects", "subjects", TEXTS),
    Place("discard", "discard", one_of(old="old", new="new"), "old"),
    Place("discard_new_per_subject", "discard_new_per_subject", BOOL),
    Place("max_msgs", "max_msgs", INTEGER, -1),
    Place("max_msgs_per_subject", "max_msgs_per_subject", INTEGER, -1),
    Place("max_bytes", "max_bytes", INTEGER, -1),
    Place("max_age", "max_age", SECONDS),
    Place("duplicate_window", "duplicate_window", SECONDS, 120, unset=0),
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
    Place("subject_delete_marker_ttl", "subject_delete_marker_ttl", SECONDS),
    Place("allow_msg_counter", "allow_msg_counter", BOOL),
    Place("allow_atomic", "allow_atomic", BOOL),
    Place("allow_msg_schedules", "allow_msg_schedules", BOOL),
    Place("first_seq", "first_seq", INTEGER),
    Place("persist_mode", "persist_mode", one_of(default="default", **{"async": "async", "": ""})),
    Place("allow_batched", "allow_batched", BOOL),
)

_POLICIES = ("none", "overflow", "pinned_client", "prioritized")
_ACKS = ("explicit", "all", "none", "flow_control")
_FLAGS = ("all", "last", "new", "last_per_subject")
_STARTS = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}

CONSUMER = (
    Place("durable_name", "durable_name", TEXT),
    Place("description", "description", TEXT),
    Place("metadata", "metadata", TEXT_MAP),
    Place("deliver_subject", "delivery_subject", TEXT),
    # One of six fields says where it starts.
    *(Place(f"deliver.{flag}", f"deliver_{flag}", BOOL) for flag in _FLAGS),
    Place("opt_start_seq", "stream_sequence", INTEGER),
    Place("opt_start_time", "start_time", SECOND),
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
    Place("backoff", "backoff", listed(SECONDS)),
    Place("priority_policy", "priority_policy", one_of(**{word: word for word in _POLICIES})),
    Place("priority_groups", "priority_groups", TEXTS),
    Place("priority_timeout", "priority_timeout", SECONDS),
)

# Of buckets, `ours` are the fields of their streams; see `resources.py` for the others.
KEY_VALUE = (
    Place("description", "description", TEXT),
    Place("storage", "storage", _STORAGE, "file"),
    Place("max_msgs_per_subject", "history", HISTORY, 5),
    Place("max_age", "ttl", SECONDS),
    Place("max_msg_size", "max_value_size", INTEGER, -1),
    Place("max_bytes", "max_bucket_size", INTEGER, -1),
    *_PLACEMENT,
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("subject_delete_marker_ttl", "limit_marker_ttl", SECONDS),
)

OBJECT_STORE = (
    Place("description", "description", TEXT),
    Place("storage", "storage", _STORAGE, "file"),
    Place("max_age", "ttl", SECONDS),
    Place("max_bytes", "max_bucket_size", INTEGER, -1),
    *_PLACEMENT,
    Place("num_replicas", "replicas", INTEGER, 1),
    Place("compression", "compression", one_of(none=False, s2=True), False),
)


def _drop_ignored(config: JsonObject) -> dict[str, str]:
    """Remove the fields that the provider ignores without another one, and return why."""
    lost = {}
    placement, republish = config.get("placement"), config.get("republish")
    if isinstance(placement, dict) and placement.get("tags") and not placement.get("cluster"):
        del placement["tags"]
        lost["placement.tags"] = "it ignores them without a cluster"
    if is_set(config.get("mirror_direct")) and not config.get("mirror"):
        del config["mirror_direct"]
        lost["mirror_direct"] = "it ignores it without a mirror"
    if isinstance(republish, dict) and any(republish.values()) and not republish.get("src"):
        del config["republish"]
        lost["republish"] = "it ignores it without a source"
    return lost


def _with_source(config: JsonObject) -> JsonObject:
    republish = config.get("republish")
    if not isinstance(republish, dict) or not republish.get("dest") or republish.get("src"):
        return config
    return {**config, "republish": {**republish, "src": ">"}}  # which is what it means


def _with_start(config: JsonObject) -> JsonObject:
    """Say in the field `deliver` where a consumer starts, or where it has no start of its own; not in the policy, which
    has no place.
    """
    policy = str(config.get("deliver_policy") or "all")
    rest = {key: value for key, value in config.items() if key != "deliver_policy"}
    given = [field for field in _STARTS.values() if is_set(config.get(field))]
    if policy in _FLAGS and not given:
        return {**rest, "deliver": {policy: True}}
    return rest if given == [_STARTS.get(policy)] else {**rest, "deliver_policy": policy}


def _with_policy(config: JsonObject) -> JsonObject:
    """Do the reverse. Raises `ValueError` unless exactly one field says where it starts."""
    rest = {key: value for key, value in config.items() if key != "deliver"}
    starts = [*config.get("deliver", ()), *(policy for policy, field in _STARTS.items() if field in config)]
    if len(starts) != 1:
        fields = ", ".join(f"deliver_{flag}" for flag in _FLAGS)
        raise ValueError(f"exactly one of {fields}, stream_sequence and start_time must say where it starts")
    return {**rest, "deliver_policy": starts[0]}


_BEGIN = re.compile(r"[$%]\{")
_TOKEN = re.compile(r"\$\$\{|%%\{|[$%]\{")


def _in_texts(pattern: re.Pattern[str], change: Callable[[re.Match[str]], str], value: Any) -> Any:
    """Return the value with what matches changed in all texts, also in names in objects."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, list):
        return [_in_texts(pattern, change, item) for item in value]
    if isinstance(value, dict):
        return {_in_texts(pattern, change, key): _in_texts(pattern, change, item) for key, item in value.items()}
    return value


def _to_template(value: Any) -> Any:
    """Return the value with all texts as templates that mean these texts."""
    return _in_texts(_BEGIN, lambda match: match[0][0] + match[0], value)


def _from_template(value: Any) -> Any:
    """Return the value with the texts that templates mean. Raises `ValueError` if one has an expression."""
    return _in_texts(_TOKEN, _meant, value)


def _meant(match: re.Match[str]) -> str:
    if len(match[0]) == 2:
        raise ValueError("it has an expression, and only plain values are read")
    return match[0][1:]


TERRAFORM_SUFFIX = ".tf.json"

_STREAM, _CONSUMER, _OURS = "jetstream_stream", "jetstream_consumer", "jetstream_"
_TERRAFORM = Tool(
    "Terraform",
    _STREAM,
    _CONSUMER,
    STREAM,
    CONSUMER,
    {"jetstream_kv_bucket": (BUCKET_STREAM, KEY_VALUE), "jetstream_obj_bucket": (OBJECT_STREAM, OBJECT_STORE)},
    bucket="name",
    stream="stream_id",
    # Of Terraform itself, and without effect on the configuration.
    others=frozenset(("//", "depends_on", "lifecycle", "provider")),
    drop_ignored=_drop_ignored,
    to_consumer=_with_start,
    from_consumer=_with_policy,
)
_FILES = {_STREAM: "stream", "jetstream_kv_bucket": "bucket", "jetstream_obj_bucket": "objects"}
_PROVIDER = {"terraform": {"required_providers": {"jetstream": {"source": "nats-io/jetstream"}}}}
_MOST_LABEL = 200
_NOT_IN_A_LABEL = re.compile(r"[^A-Za-z0-9_-]")
_IN_OTHER_SYNTAX = re.compile(rb'\bresource\s+"?jetstream_')
# The id of a stream is this and its name.
_ID = "JETSTREAM_STREAM_"
_REFERENCE = re.compile(r"\$\{jetstream_stream\.([A-Za-z_][A-Za-z0-9_-]*)\.id\}", re.ASCII)


def write_terraform_files(new: NewFolder, streams: Sequence[StreamConfigs]) -> list[ExportedStream]:
    """Write a file for each stream, and one that names the provider. Raises `UsageError`, and the errors of
    `NewFolder`.
    """
    new.write(f"provider{TERRAFORM_SUFFIX}", _encode(_PROVIDER))
    labels = unique_names([stream.name for stream in streams], _label, _MOST_LABEL)
    files = unique_names(labels.values(), str, _MOST_LABEL, ignoring_case=True)
    consumer_labels = unique_names(
        [f"{stream.name}\n{name}" for stream in streams for name in stream.consumers],
        lambda key: "--".join(map(_label, key.split("\n"))),
        _MOST_LABEL,
    )
    written = []
    for stream in streams:
        kind, _, resource, notes = resource_of(_TERRAFORM, _with_source(stream.config))
        label, consumers = labels[stream.name], {}
        of: JsonObject = {"stream_id": f"${{{kind}.{label}.id}}"}
        if kind != _STREAM:  # the id of a bucket is not that of its stream
            of = {"stream_id": f"{_ID}{stream.name}", "depends_on": [f"{kind}.{label}"]}
        for name, config in stream.consumers.items():
            fields = consumer_of(_TERRAFORM, name, config, notes)
            if fields is not None:
                consumers[consumer_labels[f"{stream.name}\n{name}"]] = of | _to_template(fields)
        resources = {kind: {label: _to_template(resource)}} | ({_CONSUMER: consumers} if consumers else {})
        new.write(f"{_FILES[kind]}-{files[label]}{TERRAFORM_SUFFIX}", _encode({"resource": resources}))
        written.append(ExportedStream(stream.name, kind, 0, tuple(notes), bool(notes)))
    return written


def _encode(document: JsonObject) -> bytes:
    return write_json(document, "a resource", indent=2) + b"\n"


def _label(name: str) -> str:
    plain = _NOT_IN_A_LABEL.sub("_", name)
    return plain if plain[:1].isalpha() or plain[:1] == "_" else f"_{plain}"


def refuse_other_syntax(root: Folder, files: Iterable[str]) -> None:
    """Raise `UsageError` if a file in Terraform's own syntax, which is not read, has resources of the provider."""
    for file in files:
        if _IN_OTHER_SYNTAX.search(root.read(file, MAX_CONFIG_BYTES)):
            raise UsageError(
                f"{root.path_of(file)} has resources of JetStream, and only *{TERRAFORM_SUFFIX} are read",
                hint="Write them in the JSON syntax of Terraform.",
            )


def read_terraform_files(root: Folder, files: Iterable[str]) -> ConfigSet:
    """Return what files in `root` declare.

    Raises:
        UsageError: a file or a resource is not valid.
        StoreError: a file cannot be read.
    """
    configs = ConfigSet()
    resources: list[tuple[str, str, str, Any]] = []
    for file in files:
        where = root.path_of(file)
        document = read_object(root.read(file, MAX_CONFIG_BYTES), where, kind=UsageError, unique_names=True)
        resources += _resources(document, where)
    streams = {label: body.get("name") for _, kind, label, body in resources if kind == _STREAM}
    for where, kind, label, body in resources:
        place = f"{where}: {kind}.{label}"
        try:
            stream = body.pop(_TERRAFORM.stream, None) if kind == _CONSUMER else None
            stream = stream and _stream_of(stream, streams)
            plain = {key: value if key in _TERRAFORM.others else _from_template(value) for key, value in body.items()}
            add_resource(_TERRAFORM, configs, place, kind=kind, body=plain, stream=stream)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error
        except UnsupportedError as error:
            configs.failures.append(Failure(f"{kind}.{label}", error))
    return configs


def _resources(document: JsonObject, where: str) -> Iterator[tuple[str, str, str, JsonObject]]:
    """Yield the file, type, label and body of each resource of the provider."""
    for by_kind in _objects(document.get("resource"), f"{where}: resource"):
        for kind, labelled in by_kind.items():
            for by_label in _objects(labelled, f"{where}: {kind}") if kind.startswith(_OURS) else ():
                for label, body in by_label.items():
                    label = printable_name(label)
                    bodies = _objects(body, f"{where}: {kind}.{label}")
                    if len(bodies) != 1:
                        raise UsageError(f"{where}: {kind}.{label} is not an object")
                    yield where, kind, label, bodies[0]


def _objects(value: Any, where: str) -> list[JsonObject]:
    """Return the objects of what may be one, several in a list, or missing."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(value, dict) for value in values):
        raise UsageError(f"{where} is not an object")
    return values


def _stream_of(stream: Any, names: JsonObject) -> Any:
    """Return the name of a consumer's stream out of its id, or of the resource that it refers to. Raises
    `ValueError`.
    """
    if reference := _REFERENCE.fullmatch(str(stream)):
        if reference[1] not in names:
            raise ValueError(f"it is of jetstream_stream.{reference[1]}, which is not in these files")
        return _from_template(names[reference[1]])
    plain = str(_from_template(stream))
    if not plain.startswith(_ID):
        raise ValueError(f"{_TERRAFORM.stream} does not begin with {_ID}")
    return plain.removeprefix(_ID)
