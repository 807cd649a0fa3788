"""What a server said of its streams in the lists before, so that what it says again is not decoded again.

`follow` lists thousands of streams every two seconds, and few of them have changed. Of an entry of the list only what
differs in every answer is left out: the server's clock, and when it last heard from each replica.
"""

from __future__ import annotations

import hashlib
import marshal
from typing import Any

from jsbackup.model import JsonObject
from jsbackup.protocol.info import StreamInfo, stream_info

__all__ = ["KnownStreams"]

# An entry is kept once the stream has been quiet for so long by the server's clock. So whoever asks whether a stream is
# quiet (`copy_reach.py`) gets the same answer from the clock of an earlier list.
_SETTLED_NS = 10_000_000_000
_DIGEST_BYTES = 16
# Of the format of `marshal`: the last in which equal values are always the same bytes.
_PLAIN = 2


class KnownStreams:
    """The streams at rest of one list, for the next one. Call `begin` before each list."""

    def __init__(self) -> None:
        self._before: dict[bytes, StreamInfo] = {}
        self._now: dict[bytes, StreamInfo] = {}

    def begin(self) -> None:
        """Forget what the last list did not have."""
        self._before, self._now = self._now, {}

    def info(self, entry: Any, where: str) -> StreamInfo:
        """Return what an entry of a list says: the same object as the last time if that is the same. Raises
        FormatError.
        """
        if not isinstance(entry, dict):
            return stream_info(entry, where)
        key = _digest(entry)
        info = self._before.get(key) or self._now.get(key) or stream_info(entry, where)
        if info.now_ns - info.state.last_ns >= _SETTLED_NS:
            self._now[key] = info
        return info


def _digest(entry: JsonObject) -> bytes:
    """Return a digest of all that tells one answer from another."""
    said = {key: value for key, value in entry.items() if key != "ts"}
    cluster = said.get("cluster")
    if isinstance(cluster, dict) and isinstance(cluster.get("replicas"), list):
        said["cluster"] = {**cluster, "replicas": list(map(_without_age, cluster["replicas"]))}
    return hashlib.blake2b(marshal.dumps(said, _PLAIN), digest_size=_DIGEST_BYTES).digest()


def _without_age(replica: Any) -> Any:
    return {key: value for key, value in replica.items() if key != "active"} if isinstance(replica, dict) else replica
