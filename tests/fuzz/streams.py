"""The streams of a world: one of each kind that takes a way of its own through a backup."""

from __future__ import annotations

import random

from tests.harness.api import JSON
from tests.harness.servers import version_tuple

_FILE: JSON = {"storage": "file", "retention": "limits", "discard": "old", "num_replicas": 1}
_BUCKET: JSON = {**_FILE, "allow_rollup_hdrs": True, "deny_delete": False, "discard": "new", "max_msgs_per_subject": 1}

# Nobody publishes to these; made after what they copy.
COPIES = ("MIRROR", "SOURCED")
COPIED = ("LOG", "PER", "ZIP")
QUEUES = ("QUEUE", "INTEREST")
AGED_SECONDS = 2


def configs(version: str) -> dict[str, JSON]:
    """Name → configuration of all that such a server can hold, copied streams before their copies."""
    found: dict[str, JSON] = {
        "LOG": {**_FILE, "subjects": ["log.>"]},
        "ZIP": {**_FILE, "subjects": ["zip.>"], "compression": "s2"},
        "CAP": {**_FILE, "subjects": ["cap.>"], "max_msgs": 120},
        "BYTES": {**_FILE, "subjects": ["bytes.>"], "max_bytes": 20_000},
        "PER": {**_FILE, "subjects": ["per.>"], "max_msgs_per_subject": 3},
        "KV_one": {**_BUCKET, "subjects": ["$KV.one.>"]},
        "KV_five": {**_BUCKET, "subjects": ["$KV.five.>"], "max_msgs_per_subject": 5},
        "QUEUE": {**_FILE, "subjects": ["queue.>"], "retention": "workqueue"},
        "INTEREST": {**_FILE, "subjects": ["interest.>"], "retention": "interest"},
        "MEM": {**_FILE, "subjects": ["mem.>"], "storage": "memory"},
        "SEAL": {**_FILE, "subjects": ["seal.>"]},
        "ROLL": {**_FILE, "subjects": ["roll.>"], "allow_rollup_hdrs": True},
        "MIRROR": {**_FILE, "mirror": {"name": "LOG"}},
        "SOURCED": {**_FILE, "sources": [{"name": "PER"}, {"name": "ZIP"}]},
    }
    if version_tuple(version) >= (2, 11):
        found["START"] = {**_FILE, "subjects": ["start.>"], "first_seq": 1000}  # 2.10.26 empties it at each start
        found["TTL"] = {**_FILE, "subjects": ["ttl.>"], "allow_msg_ttl": True}
        # Of these only what has `Nats-TTL: never` is left when all is at rest.
        found["AGED"] = {
            **_FILE,
            "subjects": ["aged.>"],
            "allow_msg_ttl": True,
            "max_age": AGED_SECONDS * 10**9,
            "duplicate_window": 10**9,
        }
        found["MARK"] = {
            **_BUCKET,
            "subjects": ["$KV.mark.>"],
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 3600 * 10**9,
        }
    return {name: {**config, "name": name} for name, config in found.items()}


def subject_of(name: str, chance: random.Random) -> str:
    """A subject of the stream, out of few: messages take each other's place where a limit says so."""
    match name:
        case "KV_one" | "KV_five" | "MARK":
            return f"$KV.{name.lower().removeprefix('kv_')}.k{chance.randint(0, 60)}"
        case "PER":
            return f"per.{chance.randint(0, 25)}"
        case _:
            return f"{name.lower()}.{chance.randint(0, 9)}"
