"""Declarations for Terraform and OpenTofu, with the provider nats-io/jetstream, in Terraform's JSON syntax.

    DIR/provider.tf.json           which provider is needed
    DIR/stream-<name>.tf.json      a jetstream_stream, and a jetstream_consumer for each of its consumers
    DIR/bucket-<name>.tf.json      a jetstream_kv_bucket
    DIR/objects-<name>.tf.json     a jetstream_obj_bucket

Files to read may be divided in any way. Resources of other providers are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.exchange.config_files import MAX_CONFIG_BYTES, StreamConfigs, without_server_metadata
from jsbackup.exchange.declared.bucket_streams import BucketKind, as_bucket, stream_of_bucket
from jsbackup.exchange.declared.declared import (
    Declarations,
    DeclaredStream,
    consumer_notes,
    is_durable,
    stream_notes,
)
from jsbackup.exchange.declared.fields import Place, Rounded, is_set, read_fields, write_fields
from jsbackup.exchange.declared.labels import unique_files, unique_labels
from jsbackup.exchange.declared.templates import from_template, to_template
from jsbackup.exchange.declared.terraform_fields import CONSUMER, KEY_VALUE, META_ARGUMENTS, OBJECT_STORE, STREAM
from jsbackup.exchange.folder import Folder, printable_name
from jsbackup.exchange.new_folder import NewFolder
from jsbackup.failure import Failure
from jsbackup.model import JsonObject
from jsbackup.strict_json import read_object, write_json

__all__ = ["TERRAFORM_SUFFIX", "read_terraform_files", "refuse_other_syntax", "write_terraform_files"]

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
