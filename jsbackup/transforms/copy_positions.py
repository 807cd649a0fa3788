"""How far a stream with sources has copied, as a server that opens it reads it from the messages.

Server source (nats-server `server/stream.go`, `server/filestore.go`, `server/consumer.go`, 2.10.26 to 2.15.2), also
observed on real servers:

- **The key.** A source is identified by `<name> <filter> <destination>` (`composeIName`): the name, with `:<hash of the
  API prefix>` for an external one and (from 2.14) `:C=<hash of the consumer>`; the filter, `>` for none; the
  destination, `>` without transforms. With several transforms theirs are joined by form feeds. Several sources of one
  origin differ in their filters or transforms, and therefore in their keys.
- **The mark.** Each message that was copied has `Nats-Stream-Source: <name> <sequence> <filter> <destination>
  [ <subject>[ <identity>]]` (subject from 2.12, identity from 2.15). When a server opens the stream (start, restore,
  new leader), it reads backwards from the last message: the source continues after the sequence of the first mark found
  with its key. Marks of two fields (before 2.10) belong to every source of that name. From 2.12 on only messages are
  considered whose stored subjects match the filters and destinations: if the stream has its own `subject_transform`
  beside filters, they do not match, and 2.12 and 2.14 copy everything again whenever they start it.
- **No mark.** The source begins at `opt_start_seq`; else at the later of `opt_start_time` and the stream's own last
  time; else, if the stream's first sequence is above 1, at the stream's last time; else at the first message.
- **2.15** stores key, sequence and identity beside the messages (`sources.db`), so a restart does not depend on deleted
  messages. Snapshots of neither format have that file; the restore of an archive v1 accepts it.
- **The identity** is a hash of the origin's time of creation (`stream_identity`). 2.15 sends it when it begins to copy;
  if the origin has another identity now, it ignores the mark and begins as without one. Without an identity nothing is
  compared. An origin keeps its time of creation if it is restored from an archive v1 into a single server; not from v2,
  not if the archive has none (import of v2), and not in a cluster, where the assignment's time counts.
- **Beyond the end.** If the mark is beyond the origin's end, 2.10 to 2.14 continue at that end. 2.15 waits until the
  origin has passed the mark: until then nothing published there is copied.
- **Mirrors** have no marks: they continue after their own last sequence. A mirror that is ahead of its origin also
  waits (2.15), or its sequences are set back and it overwrites messages (2.10 to 2.14).
- **Start options of mirrors** only count as long as the mirror has never had a message.
- **If an origin is missing**, the server retries after 10, 20, 30 s and so on, up to two minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from jsbackup.errors import FormatError
from jsbackup.formats.header_block import fields
from jsbackup.model import JsonObject
from jsbackup.transforms.batches import HEADERS, SEQUENCE, MessageBatch

__all__ = [
    "MARK",
    "CopyPosition",
    "SourceKey",
    "is_external",
    "last_positions",
    "mark_of",
    "read_mark",
    "source_key",
    "stream_identity",
]

MARK = b"Nats-Stream-Source"

SourceKey: TypeAlias = tuple[str, str, str]
"""Name, filter and destination, as in marks."""

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class CopyPosition:
    """The last mark of a source: the origin's `sequence` and `identity` ("" for none), and the message `at` that has
    it. `later` messages of the stream come after that one.
    """

    sequence: int
    identity: str
    at: int
    later: int = 0


def server_hash(text: str) -> str:
    """Return the text shortened as by servers (`getHash`)."""
    return "".join(_DIGITS[byte % 62] for byte in sha256(text.encode()).digest()[:8])


def stream_identity(created: str) -> str:
    """Return the identity of a stream created then (RFC 3339 in UTC, as servers write it)."""
    return server_hash(created)


def is_external(source: JsonObject) -> bool:
    """Return whether the origin is reached through another API, so that nothing is known about it here."""
    return bool(source.get("external"))


def source_key(source: JsonObject) -> SourceKey:
    """Return the key of a mirror or source of a configuration. Raises FormatError if it is damaged."""
    name = source["name"]
    external, consumer = source.get("external"), source.get("consumer")
    if isinstance(external, dict):
        name += f":{server_hash(str(external.get('api') or ''))}"
    if isinstance(consumer, dict):
        name += f":C={server_hash(str(consumer.get('name') or ''))}"
    transforms = source.get("subject_transforms")
    if not transforms:
        return name, source.get("filter_subject") or ">", ">"
    if not isinstance(transforms, list) or not all(isinstance(transform, dict) for transform in transforms):
        raise FormatError("subject_transforms are damaged")
    src, dest = ("\f".join(str(transform.get(key) or ">") for transform in transforms) for key in ("src", "dest"))
    return name, src, dest


def read_mark(value: str) -> tuple[SourceKey, int, str] | None:
    """Return key, sequence and identity of a mark; filter and destination are "" in one of two fields. None if it is
    not a mark.
    """
    parts = value.split(" ")
    if len(parts) not in (2, 4, 5, 6) or not parts[1].isascii() or not parts[1].isdigit() or len(parts[1]) > 20:
        return None
    if len(parts) == 2:
        return (parts[0], "", ""), int(parts[1]), ""
    return (parts[0], parts[2], parts[3]), int(parts[1]), parts[5] if len(parts) == 6 else ""


def last_positions(batch: MessageBatch, keys: Collection[SourceKey]) -> Mapping[SourceKey, CopyPosition]:
    """Return the last mark of each of these sources in a batch, for those that have one."""
    column, sequences = batch.column(HEADERS), batch.column(SEQUENCE)
    positions: dict[SourceKey, CopyPosition] = {}
    if column.null_count == batch.num_rows:
        return positions
    for row in range(batch.num_rows - 1, -1, -1):
        block = column[row].as_py()
        if block is None or MARK not in block or (mark := mark_of(block)) is None:
            continue
        key, sequence, identity = mark
        for source in [key] if key[1] else [source for source in keys if source[0] == key[0]]:
            if source in keys and source not in positions:
                positions[source] = CopyPosition(sequence, identity, sequences[row].as_py(), batch.num_rows - 1 - row)
        if len(positions) == len(keys):
            break
    return positions


def mark_of(block: bytes) -> tuple[SourceKey, int, str] | None:
    """Return the mark in a header block, as in `read_mark`; None if there is none."""
    try:
        value = next((block[f.start : f.stop] for f in fields(block) if f.name == MARK), None)
    except FormatError:
        return None
    return None if value is None else read_mark(value.decode("utf-8", "surrogateescape"))
