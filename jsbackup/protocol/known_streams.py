"""What a server said of its streams in the lists before, so that what it says again is not decoded again.

`follow` lists thousands of streams every two seconds, and few of them have changed. Of an entry of the list only what
differs in every answer is left out: the server's clock, and when it last heard from each replica.

Most entries are not even read as JSON: an answer is cut where entries begin, and an entry that begins with its
configuration and ends with the clock is looked up as it is. The bytes that are cut at cannot be within a string, where
quotes are escaped. If any part is not a JSON object by itself, the whole answer is read as usual.
"""

from __future__ import annotations

import hashlib
import marshal
import re
from dataclasses import dataclass
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.strict_json import MAX_DEPTH, read_object

__all__ = ["KnownStreams"]

# An entry is kept once the stream has been quiet for so long by the server's clock. So whoever asks whether a stream is
# quiet (`copy_reach.py`) gets the same answer from the clock of an earlier list.
_SETTLED_NS = 10_000_000_000
_DIGEST_BYTES = 16
# Of the format of `marshal`: the last in which equal values are always the same bytes.
_PLAIN = 2
# How servers write a list (nats-server, `StreamInfo` and `JSApiStreamListResponse`, 2.10 to 2.15).
_ENTRY = b'{"config":{"name":'
_STREAMS = b'"streams":['
_END = b"]}"
_CLOCK = re.compile(rb'"ts":"[0-9TZ:.+-]{1,40}"\}')
_REPLICAS = b'"replicas":['
_AGE = re.compile(rb'"active":[0-9]{1,19}(?=[,}])')
# What tells how far a stream has copied has ages, too, which count.
_COPIES = (b'"mirror":', b'"sources":')
_ABOVE = 2  # levels of JSON above an entry


@dataclass(frozen=True, slots=True)
class _Said:
    """An entry, and the digest of its bytes; `info` is what it says, if that is known."""

    key: bytes
    entry: JsonObject
    info: StreamInfo | None


class KnownStreams:
    """The streams at rest of one list, for the next one. Call `begin` before each list."""

    def __init__(self) -> None:
        self._before: dict[bytes, StreamInfo] = {}
        self._now: dict[bytes, StreamInfo] = {}

    def begin(self) -> None:
        """Forget what the last list did not have."""
        self._before, self._now = self._now, {}

    def read(self, payload: bytes, what: str) -> JsonObject:
        """Read an answer as `read_object` does. Its entries are for `info` alone."""
        parts = _cut(payload)
        if parts is None:
            return read_object(payload, what)
        head, entries = parts
        try:
            document = read_object(head, what)
            if document.get("streams") == []:
                return {**document, "streams": [self._said(entry, what) for entry in entries]}
        except FormatError:
            pass
        return read_object(payload, what)

    def info(self, entry: Any, where: str) -> StreamInfo:
        """Return what an entry of a list says: the same object as the last time if that is the same. Raises
        FormatError.
        """
        if isinstance(entry, _Said):
            return self._kept(entry.key, entry.info or stream_info(entry.entry, where))
        if not isinstance(entry, dict):
            return stream_info(entry, where)
        key = _digest(entry)
        return self._kept(key, self._known(key) or stream_info(entry, where))

    def _said(self, entry: bytes, what: str) -> _Said | JsonObject:
        key = _digest_of_bytes(entry)
        info = None if key is None else self._known(key)
        said = {} if info is not None else read_object(entry, what, max_depth=MAX_DEPTH - _ABOVE)
        return said if key is None else _Said(key, said, info)

    def _known(self, key: bytes) -> StreamInfo | None:
        return self._before.get(key) or self._now.get(key)

    def _kept(self, key: bytes, info: StreamInfo) -> StreamInfo:
        if info.now_ns - info.state.last_ns >= _SETTLED_NS:
            self._now[key] = info
        return info


def _cut(payload: bytes) -> tuple[bytes, list[bytes]] | None:
    """Return an answer without its entries, and the entries; None if it is not written as expected."""
    begin = payload.find(_STREAMS + _ENTRY) + len(_STREAMS)
    if begin < len(_STREAMS) or not payload.endswith(_END):
        return None
    first, *others = payload[begin : -len(_END)].split(b"," + _ENTRY)
    return payload[:begin] + _END, [first, *(_ENTRY + other for other in others)]


def _digest_of_bytes(entry: bytes) -> bytes | None:
    """Return a digest of all that tells one answer from another; None if it is not known which bytes those are."""
    clock = entry.rfind(b'"ts":')
    if clock < 0 or not _CLOCK.fullmatch(entry, clock) or any(name in entry for name in _COPIES):
        return None
    said = entry[:clock]
    begin = said.find(_REPLICAS)
    if begin >= 0:
        end = said.find(b"]", begin)
        said = b"".join((said[:begin], _AGE.sub(b"", said[begin:end]), said[end:]))
    return hashlib.blake2b(said, digest_size=_DIGEST_BYTES).digest()


def _digest(entry: JsonObject) -> bytes:
    """Return a digest of all that tells one answer from another."""
    said = {key: value for key, value in entry.items() if key != "ts"}
    cluster = said.get("cluster")
    if isinstance(cluster, dict) and isinstance(cluster.get("replicas"), list):
        said["cluster"] = {**cluster, "replicas": list(map(_without_age, cluster["replicas"]))}
    return hashlib.blake2b(marshal.dumps(said, _PLAIN), digest_size=_DIGEST_BYTES).digest()


def _without_age(replica: Any) -> Any:
    return {key: value for key, value in replica.items() if key != "active"} if isinstance(replica, dict) else replica
