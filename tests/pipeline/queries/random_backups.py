"""Random backups with what is awkward for SQL, and the rows that queries of them see, in plain Python."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jsbackup.pipeline.queries.query_model import view_names
from tests.harness.batches import Message
from tests.pipeline.places import Kept, keep, segments_of

__all__ = ["EPOCH", "HEADERS", "NO_ROW", "RandomBackup", "Row", "header_map", "random_streams"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_NAMES = ["KV_a-b\"c'd", "select", "日本", "1st", "x`y", "Ünï", "OBJ_x%y", "it's"]
_SUBJECTS = [
    *("a.1", "a.2", "A.1", "a.", "a.b.c", "ü.日本", "e\u0301.x", "\U0001f600.x", "$JS.x", "null", ""),
    *("it's", 'q"uote', "back\\slash", "per%cent", "under_score", "tab\tin", "a b\n", "nul\0in", " a "),
]
HEADERS = ["X", "x", "Nats-Msg-Id", "it's", "Ü y", "none"]
_VALUES = ["1", " 1 ", "", "  ", "a:b", "\tx\t", "é", "it's", "a%b"]
_BLOCKS = [b"", b"NATS/1.0\r\n\r\n", b"NATS/1.0 503 no: one\r\n\r\n", b"no end", b":none\r\n::\r\nX", b"X:1\nX:2\r\n"]
_DOCUMENTS = [
    *({"n": 1}, {"n": 22, "s": "é"}, {"n": "it's"}, {"n": True}, {"n": None}, {"s": "x", "o": {"n": 1}}, [1], None),
    *("text", 5, {}),
]
_BORDERS_NS = [-(1 << 63), (1 << 63) - 1, 0, -1, 1, -999, -1000, -1001, 999, 1000, -86_400_000_000_000]
_STARTS_NS = [-(10**12), 0, 1_700_000_000_000_000_123, -2_000_000_000_000_000_000]
_STEPS_NS = [0, 1, 10**3, 10**9, -(10**6), 3600 * 10**9, 86_400 * 10**9]


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a query sees it; in a row that an outer join has not found, all is None."""

    stream: str | None
    sequence: int | None
    timestamp_ns: int | None
    subject: str | None
    header_block: bytes | None
    data: bytes | None

    @property
    def time(self) -> datetime | None:
        """Rounded down to microseconds, also before 1970."""
        return None if self.timestamp_ns is None else EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    @property
    def headers(self) -> dict[str, str] | None:
        return None if self.header_block is None else header_map(self.header_block)

    @property
    def text(self) -> str | None:
        return None if self.data is None else self.data.decode()

    def json_field(self, name: str) -> str | None:
        """What `get_json_object` gives of a field that is no object."""
        try:
            document = json.loads(self.text or "")
        except ValueError:
            return None
        value = document.get(name) if isinstance(document, dict) else None
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value)


NO_ROW = Row(None, None, None, None, None, None)


def header_map(block: bytes) -> dict[str, str]:
    """Of a repeated header the first value; malformed lines are skipped."""
    found: dict[str, str] = {}
    for line in block.decode().split("\r\n"):
        name, colon, value = line.partition(":")
        if name and colon:
            found.setdefault(name, value.strip(" "))
    return found


@dataclass(frozen=True, slots=True)
class RandomBackup:
    """Streams of messages. If `is_text`, all payloads are UTF-8: engines differ about `text` of others."""

    streams: dict[str, list[Message]]
    is_text: bool

    def rows(self, stream: str | None) -> list[Row]:
        """The messages of a stream, or of all."""
        return [
            Row(name, m.sequence, m.timestamp_ns, str(m.subject), m.headers, m.data)
            for name, messages in self.streams.items()
            if stream in (None, name)
            for m in messages
        ]

    def keep(self, folder: Path, segment_bytes: int, *, encrypted: bool = False) -> Kept:
        with segments_of(segment_bytes):
            return keep(folder, self.streams, encrypted=encrypted)

    def views(self, kept: Kept) -> dict[str, list[Row]]:
        """The rows of each view, by its name."""
        return {view: self.rows(stream) for view, stream in view_names(kept.manifest.streams).items()}


def random_streams(chance: random.Random, most: int) -> RandomBackup:
    """Two or three streams of up to `most` messages, and one without."""
    is_text = chance.random() < 0.5
    names = ["ORDERS", *chance.sample(_NAMES, chance.choice([1, 2]))]
    if chance.random() < 0.1:
        names.append("messages")  # hides the view of all streams
    payload = _text if is_text else _bytes
    streams = {name: _messages(chance, chance.choice([1, most // 3, most]), payload) for name in names}
    return RandomBackup(dict(sorted({**streams, "EMPTY": []}.items())), is_text)


def _messages(chance: random.Random, count: int, payload: Callable[[random.Random], bytes]) -> list[Message]:
    subjects = chance.sample(_SUBJECTS, chance.choice([1, 3, len(_SUBJECTS)]))
    sequence, now = chance.choice([0, 0, 1000, 1 << 40, 1 << 50]), chance.choice(_STARTS_NS)
    found = []
    for _ in range(count):
        sequence += chance.choice([1, 1, 1, 2, 7, 1000])
        now += chance.choice(_STEPS_NS)
        moment = chance.choice(_BORDERS_NS) if chance.random() < 0.1 else now
        found.append(Message(sequence, moment, chance.choice(subjects), _block(chance), payload(chance)))
    return found


def _block(chance: random.Random) -> bytes | None:
    if chance.random() < 0.3:
        return None
    if chance.random() < 0.3:
        return chance.choice(_BLOCKS)
    lines = [f"{chance.choice(HEADERS[:-1])}:{chance.choice(_VALUES)}" for _ in range(chance.randrange(4))]
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(["bad", "X: 1", ":none"]))
    return "\r\n".join(["NATS/1.0", *lines, "", ""]).encode()


def _text(chance: random.Random) -> bytes:
    document: Any = chance.choice(_DOCUMENTS)
    return chance.choice([json.dumps(document, ensure_ascii=False), "", "{bad", "ü"]).encode()


def _bytes(chance: random.Random) -> bytes:
    return chance.choice([b"", b"\0", b"\xff\xfe", b"a", b"{}", chance.randbytes(chance.choice([3, 60, 700]))])
