"""Streams of a backup, made without a server."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.model import JsonObject
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import store_stream
from tests.harness.batches import Message


def bucket_stream(config: JsonObject) -> StreamBackup:
    """A bucket with one key."""
    made = store_stream(Objects(MemoryStore()), "KV_b", [Message(1, 1, "$KV.b.k", None, b"v")])
    return replace(made, config={"name": "KV_b", "subjects": ["$KV.b.>"], **config})
