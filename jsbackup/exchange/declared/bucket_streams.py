"""The streams of key-value buckets and object stores, as clients make them (nats.go `jetstream/kv.go`, `object.go`).

A bucket's declaration has few fields; the client sets the others. So a stream is declared as a bucket only if a client
would set exactly what it has, and as a stream otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

from jsbackup.exchange.declared.fields import MOST_HISTORY, Place, Rounded, is_set, write_fields
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM

__all__ = ["BucketKind", "as_bucket", "plain_stream", "stream_of_bucket"]

_BUCKET_NAME = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)
_WINDOW_NS = 120 * 10**9
# What a server sets where a config has nothing, and what it takes for the same.
_DEFAULTS: JsonObject = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "compression": "none",
    "persist_mode": "default",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "num_replicas": 1,
}


class BucketKind(Enum):
    """The value is the beginning of the stream's name."""

    KEY_VALUE = BUCKET_STREAM
    OBJECTS = OBJECT_STREAM


def plain_stream(config: JsonObject) -> JsonObject:
    """Return the config without fields that are unset or have the server's default."""
    return {key: value for key, value in config.items() if is_set(value) and _DEFAULTS.get(key) != value}


def as_bucket(kind: BucketKind, config: JsonObject, fields: Collection[Place]) -> tuple[str, JsonObject] | None:
    """Return the bucket's name and its fields as in the file; None if the stream must be declared as a stream."""
    name = str(config.get("name"))
    bucket = name.removeprefix(kind.value)
    if not name.startswith(kind.value) or not _BUCKET_NAME.fullmatch(bucket):
        return None
    plain = plain_stream(config)
    implied = plain_stream(_implied(kind, bucket, config))
    if any(plain.get(key) != value for key, value in implied.items()):
        return None
    if kind is BucketKind.KEY_VALUE:
        history = config.get("max_msgs_per_subject")
        if not isinstance(history, int) or not 1 <= history <= MOST_HISTORY:
            return None
    lost: dict[str, str | Rounded] = {}
    kept = {key: value for key, value in plain.items() if key not in implied}
    # Said even where it is the default: files are for people.
    kept |= {key: config[key] for key in ("storage", "num_replicas") if is_set(config.get(key))}
    written = write_fields(kept, fields, lost)
    return None if lost else (bucket, written)


def stream_of_bucket(kind: BucketKind, bucket: str, config: JsonObject) -> JsonObject:
    """Return the whole config of a bucket's stream. `config` are the fields that its declaration has."""
    return {**config, **_implied(kind, bucket, config)}


def _implied(kind: BucketKind, bucket: str, config: JsonObject) -> JsonObject:
    age = config.get("max_age") or 0
    implied: JsonObject = {
        "name": f"{kind.value}{bucket}",
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "duplicate_window": min(age, _WINDOW_NS) if isinstance(age, int) and age > 0 else _WINDOW_NS,
    }
    if kind is BucketKind.OBJECTS:
        return implied | {"subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]}
    implied |= {"subjects": [f"$KV.{bucket}.>"], "deny_delete": True}
    if config.get("subject_delete_marker_ttl"):
        implied["allow_msg_ttl"] = True
    return implied
