"""Declarations for NACK, the controller that makes streams out of resources of Kubernetes.

    DIR/stream-<name>.yaml         a Stream, and a Consumer for each of its consumers
    DIR/keyvalue-<bucket>.yaml     a KeyValue
    DIR/objectstore-<bucket>.yaml  an ObjectStore

`kubectl apply -f DIR` takes them. Files to read may be divided in any way, and be lists, as `kubectl get -o yaml`
prints them. Resources of other groups are ignored.
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
from jsbackup.exchange.declared.fields import Place, Rounded, read_fields, write_fields
from jsbackup.exchange.declared.labels import unique_labels
from jsbackup.exchange.declared.nack_fields import CONNECTION_FIELDS, CONSUMER, KEY_VALUE, OBJECT_STORE, STREAM
from jsbackup.exchange.folder import Folder, printable_name
from jsbackup.exchange.new_folder import NewFolder
from jsbackup.failure import Failure
from jsbackup.formats.yaml_text import to_yaml
from jsbackup.model import JsonObject

__all__ = ["NACK_SUFFIXES", "read_nack_files", "write_nack_files"]

NACK_SUFFIXES = (".yaml", ".yml")

_GROUP = "jetstream.nats.io/"
_VERSION = f"{_GROUP}v1beta2"
_TOOL = "NACK"
_BUCKETS: dict[str, tuple[BucketKind, Sequence[Place]]] = {
    "KeyValue": (BucketKind.KEY_VALUE, KEY_VALUE),
    "ObjectStore": (BucketKind.OBJECTS, OBJECT_STORE),
}
# Names in Kubernetes have up to 253 characters; the name of the file has some more than the resource.
_MOST_LABEL = 200
_NOT_IN_A_LABEL = re.compile(r"[^a-z0-9]+")


def write_nack_files(new: NewFolder, streams: Sequence[StreamConfigs]) -> list[DeclaredStream]:
    """Write a file for each stream. Raises the errors of `NewFolder`."""
    resources = {stream.name: _resource(stream.config) for stream in streams}
    names = {f"{kind}\n{name}": stream for stream, (kind, name, _, _) in resources.items()}
    labels = {names[key]: label for key, label in _unique_in_kind(names).items()}
    consumer_labels = unique_labels(
        [f"{stream.name}\n{name}" for stream in streams for name in stream.consumers], _label, _MOST_LABEL
    )
    written = []
    for stream in streams:
        kind, _, spec, notes = resources[stream.name]
        documents = [_document(kind, labels[stream.name], spec)]
        for name, config in stream.consumers.items():
            found = _consumer(stream.name, name, config, notes)
            if found is not None:
                documents.append(_document("Consumer", consumer_labels[f"{stream.name}\n{name}"], found))
        text = "---\n".join(map(to_yaml, documents))
        new.write(f"{kind.lower()}-{labels[stream.name]}.yaml", text.encode())
        written.append(DeclaredStream(stream.name, kind, tuple(notes)))
    return written


def _unique_in_kind(names: Iterable[str]) -> dict[str, str]:
    """Return labels of `KIND\\nNAME`: they need to be unique only in their kind."""
    by_kind: dict[str, list[str]] = {}
    for key in names:
        by_kind.setdefault(key.partition("\n")[0], []).append(key.partition("\n")[2])
    return {
        f"{kind}\n{name}": label
        for kind, found in by_kind.items()
        for name, label in unique_labels(found, _label, _MOST_LABEL).items()
    }


def _label(name: str) -> str:
    return _NOT_IN_A_LABEL.sub("-", name.lower()).strip("-") or "unnamed"


def _document(kind: str, label: str, spec: JsonObject) -> JsonObject:
    return {"apiVersion": _VERSION, "kind": kind, "metadata": {"name": label}, "spec": spec}


def _resource(config: JsonObject) -> tuple[str, str, JsonObject, list[str]]:
    """Return kind, name, spec, and what is lost."""
    config = without_server_metadata(config)
    for kind, (bucket_kind, fields) in _BUCKETS.items():
        if found := as_bucket(bucket_kind, config, fields):
            return kind, found[0], {"bucket": found[0], **found[1]}, []
    lost: dict[str, str | Rounded] = {}
    spec = write_fields(config, STREAM, lost)
    return "Stream", str(config["name"]), spec, stream_notes(_TOOL, lost)


def _consumer(stream: str, name: str, config: JsonObject, notes: list[str]) -> JsonObject | None:
    if not is_durable(name, config):
        notes.append(f"consumer {name} is left out: it is not durable, and {_TOOL} makes no others")
        return None
    lost: dict[str, str | Rounded] = {}
    plain = {key: value for key, value in without_server_metadata(config).items() if key != "name"}
    spec = write_fields(plain, CONSUMER, lost)
    for field in ("ack_policy", "deliver_policy", "opt_start_seq", "opt_start_time"):
        if field in lost:  # without it the consumer would be another one
            notes.append(
                f"consumer {name} is left out: {_TOOL} has no {field} {printable_name(str(config[field]))[:80]}"
            )
            return None
    if spec.get("priorityPolicy") == "pinned_client":  # without the time the controller drops the policy, too
        spec.setdefault("pinnedTtl", "0s")
    notes += consumer_notes(_TOOL, name, lost)
    return {"streamName": stream, **spec}


def read_nack_files(root: Folder, files: Iterable[str]) -> Declarations:
    """Return what files in `root` declare.

    Raises:
        UsageError: a file or a resource is not valid.
        StoreError: a file cannot be read.
    """
    from jsbackup.exchange.declared.yaml_reading import read_yaml

    found = Declarations()
    for file in files:
        where = root.path_of(file)
        for document in read_yaml(root.read(file, MAX_CONFIG_BYTES), where):
            _read(found, document, where)
    return found


def _read(found: Declarations, document: Any, where: str) -> None:
    if not isinstance(document, dict):
        if document is None:  # nothing but comments
            return
        raise UsageError(f"{where} has a document that is no resource of Kubernetes")
    version, kind, items = (document.get(key) for key in ("apiVersion", "kind", "items"))
    if isinstance(items, list) and isinstance(kind, str) and kind.endswith("List"):
        for item in items:
            _read(found, item, where)
        return
    if not isinstance(version, str) or not version.startswith(_GROUP) or kind == "Account":
        return
    metadata, spec = document.get("metadata"), document.get("spec")
    label = printable_name(str(metadata.get("name") if isinstance(metadata, dict) else "without a name"))[:80]
    place = f"{where}: {printable_name(str(kind))[:40]} {label}"
    if version != _VERSION or kind not in ("Stream", "Consumer", *_BUCKETS):
        error = UnsupportedError(
            f"{place} is not supported: it is of {printable_name(version)[:80]}, not of {_VERSION}"
        )
        if version == _VERSION:
            error = UnsupportedError(f"{place} is not supported: only Stream, Consumer, KeyValue and ObjectStore are")
        found.failures.append(Failure(label, error))
    elif not isinstance(spec, dict):
        raise UsageError(f"{place} has no spec")
    elif kind == "Stream":
        found.add_stream(place, read_fields(spec, STREAM, place, others=CONNECTION_FIELDS))
    elif kind == "Consumer":
        config = read_fields(spec, CONSUMER, place, others=CONNECTION_FIELDS | {"streamName"})
        found.add_consumer(place, spec.get("streamName"), config)
    else:
        bucket_kind, fields = _BUCKETS[kind]
        if spec.get("mirror") or spec.get("sources"):
            error = UnsupportedError(f"{place} copies from another bucket, and only streams that do are supported")
            found.failures.append(Failure(label, error))
            return
        config = read_fields(spec, fields, place, others=CONNECTION_FIELDS | {"bucket", "mirror", "sources"})
        found.add_stream(place, stream_of_bucket(bucket_kind, _bucket_name(spec, "bucket", place), config))


def _bucket_name(spec: JsonObject, key: str, place: str) -> str:
    """Return the name of a bucket. Raises `UsageError` if there is none."""
    name = spec.get(key)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{place} has no {key}")
    return name
