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
from collections.abc import Iterable, Sequence
from typing import Any

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.config_files import MAX_CONFIG_BYTES, StreamConfigs, without_server_metadata
from jsbackup.exchange.declared.declared import (
    Declarations,
    DeclaredStream,
    consumer_notes,
    is_durable,
    stream_notes,
    unique_files,
    unique_labels,
)
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
    BucketKind,
    Form,
    Nested,
    Place,
    Rounded,
    as_bucket,
    is_set,
    one_of,
    read_fields,
    stream_of_bucket,
    write_fields,
)
from jsbackup.exchange.folder import Folder, printable_name
from jsbackup.exchange.new_folder import NewFolder
from jsbackup.failure import Failure
from jsbackup.model import JsonObject
from jsbackup.strict_json import read_object, write_json

__all__ = [
    "KEY_VALUE",
    "STREAM",
    "TERRAFORM_SUFFIX",
    "read_terraform_files",
    "refuse_other_syntax",
    "write_terraform_files",
]

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
    # One of six fields says where it starts.
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

# Of buckets, `ours` are the fields of their streams; see `fields.py` for the others.
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


_BEGIN = re.compile(r"[$%]\{")
_TOKEN = re.compile(r"\$\$\{|%%\{|[$%]\{")


def to_template(value: Any) -> Any:
    """Return the value with all texts, also names in objects, as templates that mean these texts."""
    if isinstance(value, str):
        return _BEGIN.sub(lambda match: match[0][0] + match[0], value)
    if isinstance(value, list):
        return [to_template(one) for one in value]
    if isinstance(value, dict):
        return {to_template(key): to_template(one) for key, one in value.items()}
    return value


def from_template(value: Any) -> Any:
    """Return the value with the texts that templates mean. Raises `ValueError` if one has an expression."""
    if isinstance(value, str):
        return _TOKEN.sub(_token, value)
    if isinstance(value, list):
        return [from_template(one) for one in value]
    if isinstance(value, dict):
        return {from_template(key): from_template(one) for key, one in value.items()}
    return value


def _token(match: re.Match[str]) -> str:
    if len(match[0]) == 2:
        raise ValueError("it has an expression, and only plain values are read")
    return match[0][1:]


TERRAFORM_SUFFIX = ".tf.json"

_TOOL = "Terraform"
_STREAM, _CONSUMER, _OURS = "jetstream_stream", "jetstream_consumer", "jetstream_"
_BUCKETS: dict[str, tuple[BucketKind, Sequence[Place]]] = {
    "jetstream_kv_bucket": (BucketKind.KEY_VALUE, KEY_VALUE),
    "jetstream_obj_bucket": (BucketKind.OBJECTS, OBJECT_STORE),
}
_FILES = {_STREAM: "stream", "jetstream_kv_bucket": "bucket", "jetstream_obj_bucket": "objects"}
_PROVIDER = {"terraform": {"required_providers": {"jetstream": {"source": "nats-io/jetstream"}}}}
_MOST_LABEL = 200
_NOT_IN_A_LABEL = re.compile(r"[^A-Za-z0-9_-]")
_IN_OTHER_SYNTAX = re.compile(rb'\bresource\s+"?jetstream_')
_WORDS = {"ack_policy": "ack_policy", "deliver": "deliver_policy"}
# The id of a stream is this and its name.
_ID = "JETSTREAM_STREAM_"
_REFERENCE = re.compile(r"\$\{jetstream_stream\.([A-Za-z_][A-Za-z0-9_-]*)\.id\}", re.ASCII)


def write_terraform_files(new: NewFolder, streams: Sequence[StreamConfigs]) -> list[DeclaredStream]:
    """Write a file for each stream, and one that names the provider. Raises the errors of `NewFolder`."""
    new.write(f"provider{TERRAFORM_SUFFIX}", _encode(_PROVIDER))
    labels = unique_labels([stream.name for stream in streams], _label, _MOST_LABEL)
    files = unique_files(labels.values(), _MOST_LABEL)
    consumer_labels = unique_labels(
        [f"{stream.name}\n{name}" for stream in streams for name in stream.consumers],
        lambda key: "--".join(map(_label, key.split("\n"))),
        _MOST_LABEL,
    )
    written = []
    for stream in streams:
        kind, resource, notes = _resource(stream.config)
        label = labels[stream.name]
        resources: JsonObject = {kind: {label: to_template(resource)}}
        for name, config in stream.consumers.items():
            found = _consumer(name, config, notes)
            if found is None:
                continue
            of: JsonObject = {"stream_id": f"${{{kind}.{label}.id}}"}
            if kind != _STREAM:  # the id of a bucket is not that of its stream
                of = {"stream_id": f"{_ID}{stream.name}", "depends_on": [f"{kind}.{label}"]}
            resources.setdefault(_CONSUMER, {})[consumer_labels[f"{stream.name}\n{name}"]] = of | to_template(found)
        new.write(f"{_FILES[kind]}-{files[label]}{TERRAFORM_SUFFIX}", _encode({"resource": resources}))
        written.append(DeclaredStream(stream.name, kind, tuple(notes)))
    return written


def _encode(document: JsonObject) -> bytes:
    return write_json(document, "a resource", indent=2) + b"\n"


def _label(name: str) -> str:
    plain = _NOT_IN_A_LABEL.sub("_", name)
    return plain if plain[:1].isalpha() or plain[:1] == "_" else f"_{plain}"


def _resource(config: JsonObject) -> tuple[str, JsonObject, list[str]]:
    """Return the type of the resource, its fields, and what is lost."""
    config = without_server_metadata(config)
    lost = _without_effect(config)
    if not lost:
        for kind, (bucket_kind, fields) in _BUCKETS.items():
            if found := as_bucket(bucket_kind, config, fields):
                return kind, {"name": found[0], **found[1]}, []
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    republish = kept.get("republish")
    if isinstance(republish, dict) and republish.get("dest") and not republish.get("src"):
        republish["src"] = ">"  # which is what it means; without it the provider drops all of it
    for path in lost:
        outer, _, inner = path.partition(".")
        if inner:
            del kept[outer][inner]
        else:
            del kept[outer]
    return _STREAM, write_fields(kept, STREAM, lost), stream_notes(_TOOL, lost)


def _without_effect(config: JsonObject) -> dict[str, str | Rounded]:
    """Return the fields that the provider has, but ignores without another one."""
    lost: dict[str, str | Rounded] = {}
    placement = config.get("placement")
    if isinstance(placement, dict) and placement.get("tags") and not placement.get("cluster"):
        lost["placement.tags"] = "it ignores them without a cluster"
    if is_set(config.get("mirror_direct")) and not config.get("mirror"):
        lost["mirror_direct"] = "it ignores it without a mirror"
    return lost


def _consumer(name: str, config: JsonObject, notes: list[str]) -> JsonObject | None:
    if not is_durable(name, config):
        notes.append(f"consumer {name} is left out: it is not durable, and {_TOOL} makes no others")
        return None
    lost: dict[str, str | Rounded] = {}
    kept = {key: value for key, value in without_server_metadata(config).items() if key != "name"}
    policy = str(kept.pop("deliver_policy", None) or "all")
    starts = {"by_start_sequence": "opt_start_seq", "by_start_time": "opt_start_time"}
    value = kept.pop(starts[policy], None) if policy in starts else True
    found = write_fields({**kept, "deliver": {policy: value}}, CONSUMER, lost)
    start = f"deliver.{policy}"
    if isinstance(lost.get(start), Rounded):
        lost[starts[policy]] = lost.pop(start)
    for field, what in (("ack_policy", kept.get("ack_policy")), (start, policy)):
        if field in lost or (what == policy and not is_set(value)):  # without it the consumer would be another one
            shown = printable_name(str(what))
            reason = f"{shown}: {lost[field]}" if lost.get(field) else shown
            notes.append(f"consumer {name} is left out: {_TOOL} has no {_WORDS[field.partition('.')[0]]} {reason}")
            return None
    notes += consumer_notes(_TOOL, name, lost)
    return found


def refuse_other_syntax(root: Folder, files: Iterable[str]) -> None:
    """Raise `UsageError` if a file in Terraform's own syntax, which is not read, has resources of the provider."""
    for file in files:
        if _IN_OTHER_SYNTAX.search(root.read(file, MAX_CONFIG_BYTES)):
            raise UsageError(
                f"{root.path_of(file)} has resources of JetStream, and only *{TERRAFORM_SUFFIX} are read",
                hint="Write them in the JSON syntax of Terraform.",
            )


def read_terraform_files(root: Folder, files: Iterable[str]) -> Declarations:
    """Return what files in `root` declare.

    Raises:
        UsageError: a file or a resource is not valid.
        StoreError: a file cannot be read.
    """
    found = Declarations()
    resources: list[tuple[str, str, str, Any]] = []
    for file in files:
        where = root.path_of(file)
        document = read_object(root.read(file, MAX_CONFIG_BYTES), where, kind=UsageError, unique_names=True)
        resources += _resources(document, where)
    names: dict[str, Any] = {}
    for _, kind, label, body in resources:
        if kind == _STREAM and isinstance(body, dict):
            names[label] = body.get("name")
    for where, kind, label, body in resources:
        place = f"{where}: {kind}.{label}"
        if isinstance(body, list) and len(body) == 1:
            body = body[0]
        try:
            _read(found, place, kind, body, names=names)
        except ValueError as error:
            raise UsageError(f"{place}: {error}") from error
        except UnsupportedError as error:
            found.failures.append(Failure(f"{kind}.{label}", error))
    return found


def _resources(document: JsonObject, where: str) -> list[tuple[str, str, str, Any]]:
    """Return the file, type, label and body of each resource of the provider."""
    found = []
    for by_kind in _objects(document.get("resource"), f"{where}: resource"):
        for kind, labelled in by_kind.items():
            if not kind.startswith(_OURS):
                continue
            for by_label in _objects(labelled, f"{where}: {kind}"):
                found += [(where, kind, printable_name(label), body) for label, body in by_label.items()]
    return found


def _objects(value: Any, where: str) -> list[JsonObject]:
    """Return the objects of what may be one, several in a list, or missing."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, dict) for one in values):
        raise UsageError(f"{where} is not an object")
    return values


def _read(found: Declarations, place: str, kind: str, body: Any, *, names: JsonObject) -> None:
    if not isinstance(body, dict):
        raise UsageError(f"{place} is not an object")
    stream = body.get("stream_id")
    others = META_ARGUMENTS | ({"stream_id"} if kind == _CONSUMER else set())
    fields = {key: value if key in others else from_template(value) for key, value in body.items()}
    if kind == _STREAM:
        found.add_stream(place, _stream(read_fields(fields, STREAM, place, others=others)))
    elif kind == _CONSUMER:
        config = _delivering(read_fields(fields, CONSUMER, place, others=others), place)
        found.add_consumer(place, _stream_of(stream, names, place), config)
    elif kind in _BUCKETS:
        bucket_kind, table = _BUCKETS[kind]
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            raise UsageError(f"{place} has no name")
        config = read_fields(fields, table, place, others=others | {"name"})
        found.add_stream(place, stream_of_bucket(bucket_kind, name, config))
    else:
        raise UnsupportedError(f"{place} is not supported: only streams, consumers and buckets are")


def _stream(config: JsonObject) -> JsonObject:
    """Return the config without what the provider ignores."""
    lost = _without_effect(config)
    if "mirror_direct" in lost:
        del config["mirror_direct"]
    if "placement.tags" in lost:
        del config["placement"]["tags"]
    if not config.get("republish", {}).get("src"):
        config.pop("republish", None)
    return {key: value for key, value in config.items() if value != {}}


def _delivering(config: JsonObject, place: str) -> JsonObject:
    given = config.pop("deliver", {})
    if len(given) != 1:
        raise UsageError(
            f"{place} has {'several fields that say' if given else 'no field that says'} where it starts",
            hint="Give one of deliver_all, deliver_last, deliver_new, deliver_last_per_subject, stream_sequence, "
            "start_time.",
        )
    ((policy, value),) = given.items()
    config["deliver_policy"] = policy
    if policy == "by_start_sequence":
        config["opt_start_seq"] = value
    elif policy == "by_start_time":
        config["opt_start_time"] = value
    return config


def _stream_of(stream: Any, names: JsonObject, place: str) -> Any:
    """Return the name of a consumer's stream out of its id, or of the resource that it refers to."""
    if not isinstance(stream, str) or not stream:
        raise UsageError(f"{place} has no stream_id")
    if reference := _REFERENCE.fullmatch(stream):
        if reference[1] not in names:
            raise UsageError(f"{place} is of jetstream_stream.{reference[1]}, which is not in these files")
        return from_template(names[reference[1]])
    plain = from_template(stream)
    if not plain.startswith(_ID):
        raise UsageError(f"{place}: stream_id does not begin with {_ID}")
    return plain.removeprefix(_ID)
