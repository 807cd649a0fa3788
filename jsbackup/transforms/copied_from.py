"""Header fields that name streams and subjects, which follow when those get other names.

What servers read again from stored messages (nats-server `server/stream.go`, `server/scheduler.go`):

- `Nats-Stream-Source: <origin> <sequence> <filter> <destination>[ <subject>[ <identity>]]`, by which a stream that has
  sources knows, when it starts, up to where it has copied from each. Origin (the name, and behind a colon what tells
  external ones apart), filter and destination are those of its config: were they to differ, it would copy all again.
  Before 2.10: `<origin> <sequence>`. The identity (from 2.15) is a hash of when the origin was made: were that another,
  it would copy all again too, so it is left out where the origin is made anew with it. Without it nobody asks.
- `Nats-Counter-Sources`, JSON: what a counter has got from each origin and subject, `{origin: {subject: value}}`.
- `Nats-Schedule-Target`, `Nats-Schedule-Source`, `Nats-Scheduler`: subjects of scheduled messages.

Others tell of the past (`Nats-Subject`, `Nats-Expected-Last-Subject-Sequence-Subject`) and stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jsbackup.errors import FormatError, PlanRefused
from jsbackup.model import JsonObject
from jsbackup.transforms.follow import origins_of
from jsbackup.transforms.header_block import exchange

__all__ = ["MARKS", "SourceMark", "follow_headers", "source_marks"]

# What all names of the fields below begin with: batches without any of these have nothing to follow.
MARKS = (b"Nats-Stream-Source", b"Nats-Counter-Sources", b"Nats-Schedule")

_SUBJECTS = frozenset((b"Nats-Schedule-Target", b"Nats-Schedule-Source", b"Nats-Scheduler"))


@dataclass(frozen=True, slots=True)
class SourceMark:
    """How one origin of a stream is known in its messages: name, filter and destination, before and after.

    `mapped` says whether its subjects are mapped as ours are.
    """

    before: tuple[str, str, str]
    after: tuple[str, str, str]
    mapped: bool

    def to_json(self) -> JsonObject:
        return {"before": list(self.before), "after": list(self.after), "mapped": self.mapped}

    @classmethod
    def from_json(cls, value: object) -> SourceMark:
        """The opposite of `to_json`. Raises FormatError."""
        if not isinstance(value, dict) or value.keys() != {"before", "after", "mapped"}:
            raise FormatError("not a mark of a source")
        for side in (value["before"], value["after"]):
            if not isinstance(side, list) or len(side) != 3 or not all(isinstance(text, str) for text in side):
                raise FormatError("not a mark of a source")
        if not isinstance(value["mapped"], bool):
            raise FormatError("not a mark of a source")
        return cls(tuple(value["before"]), tuple(value["after"]), value["mapped"])


def source_marks(before: JsonObject, after: JsonObject, mapped: Sequence[str]) -> tuple[SourceMark, ...]:
    """The marks of a stream's sources, given its config before and after; `mapped` names streams that are mapped."""
    if not before.get("sources"):
        return ()
    pairs = zip(origins_of({"sources": before["sources"]}), origins_of({"sources": after["sources"]}), strict=True)
    return tuple(
        SourceMark(_mark(old), _mark(new), not old.get("external") and old["name"] in mapped) for old, new in pairs
    )


def _mark(source: JsonObject) -> tuple[str, str, str]:
    """As the server composes it (`composeIName`)."""
    transforms = source.get("subject_transforms")
    if not transforms:
        return source["name"], source.get("filter_subject") or ">", ">"
    if not isinstance(transforms, list) or not all(isinstance(transform, dict) for transform in transforms):
        raise FormatError("subject_transforms are damaged")
    src, dest = ("\f".join(str(transform.get(key) or ">") for transform in transforms) for key in ("src", "dest"))
    return source["name"], src, dest


def follow_headers(
    block: bytes, marks: Sequence[SourceMark], rename: Callable[[str], str], move: Callable[[str], str]
) -> bytes:
    """The header block with streams renamed and subjects moved. One that is not well-formed stays: no server reads it.

    Raises PlanRefused where two counters would become one.
    """

    def change(name: bytes, value: bytes) -> bytes | None:
        if name in _SUBJECTS:
            changed = move(_text(value))
        elif name == b"Nats-Stream-Source":
            changed = _source(_text(value), marks, rename, move)
        elif name == b"Nats-Counter-Sources":
            return _counters(value, marks, rename, move)
        else:
            return None
        return changed.encode("utf-8", "surrogateescape")

    try:
        return exchange(block, change)
    except FormatError:
        return block


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _source(value: str, marks: Sequence[SourceMark], rename: Callable[[str], str], move: Callable[[str], str]) -> str:
    fields = value.split(" ")
    if len(fields) == 2:
        return f"{rename(fields[0])} {fields[1]}"
    if len(fields) < 4:
        return value
    for mark in marks:
        if _is_of(fields[0], mark) and (fields[2], fields[3]) == mark.before[1:]:
            name, sequence, _, _, *rest = fields
            if rest and mark.mapped:
                rest = [move(rest[0])]
            return " ".join([mark.after[0] + name[len(mark.before[0]) :], sequence, *mark.after[1:], *rest])
    return value


def _is_of(origin: str, mark: SourceMark) -> bool:
    return origin == mark.before[0] or origin.startswith(mark.before[0] + ":")


def _counters(
    value: bytes, marks: Sequence[SourceMark], rename: Callable[[str], str], move: Callable[[str], str]
) -> bytes | None:
    try:
        sources = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(sources, dict) or not all(isinstance(counts, dict) for counts in sources.values()):
        return None
    changed: dict[str, dict[str, object]] = {}
    for origin, counts in sources.items():
        mark = next((mark for mark in marks if _is_of(origin, mark)), None)
        name = origin if mark is None else mark.after[0] + origin[len(mark.before[0]) :]
        into = changed.setdefault(name, {})
        for subject, count in counts.items():
            moved = move(subject) if mark is not None and mark.mapped else subject
            if moved in into:
                raise PlanRefused(f"two counters would become one: {name[:80]} {moved[:80]}")
            into[moved] = count
    if changed == sources:
        return None
    return json.dumps(changed, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
