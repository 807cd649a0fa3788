"""Header fields that name streams and subjects, which change when these are renamed.

Fields that servers read from stored messages (nats-server `server/stream.go`, `server/scheduler.go`):

- `Nats-Stream-Source: <origin> <sequence> <filter> <destination>[ <subject>[ <identity>]]`, which says how far a stream
  with sources has copied from each (`copy_positions.py`). Origin, filter and destination must equal those of its
  config, otherwise it copies everything again. If the origin will differ from what the mark says, the mark is corrected
  (`Mend`): without the identity, or with another sequence.
- `Nats-Counter-Sources`, JSON: what a counter has received from each origin and subject, `{origin: {subject: value}}`.
- `Nats-Schedule-Target`, `Nats-Schedule-Source`, `Nats-Scheduler`: subjects of scheduled messages.

Others describe the past (`Nats-Subject`, `Nats-Expected-Last-Subject-Sequence-Subject`) and stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.errors import FormatError, PlanRefused
from jsbackup.formats.header_block import exchange
from jsbackup.model import JsonObject
from jsbackup.strict_json import read_json
from jsbackup.transforms.copy_positions import SourceKey, source_key
from jsbackup.transforms.follow import origins_of

__all__ = ["ANY_MARK", "MARK_HEADERS", "Mend", "SourceMark", "follow_headers", "mend_marks", "source_marks"]

# The start of all names of the fields below: batches without any of these need no change.
MARK_HEADERS = (b"Nats-Stream-Source", b"Nats-Counter-Sources", b"Nats-Schedule")
ANY_MARK = re.compile(b"|".join(MARK_HEADERS))

_SUBJECTS = frozenset((b"Nats-Schedule-Target", b"Nats-Schedule-Source", b"Nats-Scheduler"))


@dataclass(frozen=True, slots=True)
class Mend:
    """How the marks of a source change besides its names.

    `renewed` leaves out the identity: the origin has another time of creation, but the same messages. No mark gets a
    sequence above `most`, the end of the origin. The mark of sequence `raised[0]`, the last one, becomes `raised[1]`:
    the stream had copied up to there, and the later messages are gone.
    """

    renewed: bool = False
    most: int | None = None
    raised: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return self != Mend()

    def sequence(self, sequence: int) -> int:
        """Return the new sequence of a mark with this one."""
        if self.raised is not None and sequence == self.raised[0]:
            sequence = self.raised[1]
        return sequence if self.most is None else min(sequence, self.most)


@dataclass(frozen=True, slots=True)
class SourceMark:
    """How an origin of a stream is named in its messages: name, filter and destination, before and after.

    `mapped` says whether its subjects are mapped as ours are.
    """

    before: tuple[str, str, str]
    after: tuple[str, str, str]
    mapped: bool
    mend: Mend = field(default_factory=Mend)


def source_marks(before: JsonObject, after: JsonObject, mapped: Sequence[str]) -> tuple[SourceMark, ...]:
    """Return the marks of a stream's sources, given its config before and after; `mapped` names the streams that are
    mapped.
    """
    if not before.get("sources"):
        return ()
    pairs = zip(origins_of({"sources": before["sources"]}), origins_of({"sources": after["sources"]}), strict=True)
    return tuple(
        SourceMark(_mark(old), _mark(new), not old.get("external") and old["name"] in mapped) for old, new in pairs
    )


def mend_marks(
    config: JsonObject, marks: Sequence[SourceMark], mends: Mapping[SourceKey, Mend]
) -> tuple[SourceMark, ...]:
    """Return the marks of the stream with this config (before it changes), corrected by the keys of its sources.

    `marks` are its present ones, in the order of its sources, or none.
    """
    marks = marks or source_marks(config, config, ())
    keys = [source_key(source) for source in origins_of({"sources": config.get("sources")})]
    return tuple(replace(mark, mend=mends.get(key, mark.mend)) for mark, key in zip(marks, keys, strict=True))


def _mark(source: JsonObject) -> SourceKey:
    """Return the key without external API and consumer, which no restore changes."""
    return source_key({key: value for key, value in source.items() if key not in ("external", "consumer")})


def follow_headers(
    block: bytes, marks: Sequence[SourceMark], rename: Callable[[str], str], move: Callable[[str], str]
) -> bytes:
    """Return the header block with streams renamed and subjects mapped, or the same if it is malformed (no server reads
    it).

    Raises PlanRefused if two counters would become one.
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
        mend = next((mark.mend for mark in marks if mark.before[0] == fields[0]), Mend())
        return f"{rename(fields[0])} {_sequence(fields[1], mend)}"
    if len(fields) < 4:
        return value
    for mark in marks:
        if _is_of(fields[0], mark) and (fields[2], fields[3]) == mark.before[1:]:
            name, sequence, _, _, *rest = fields
            if rest and mark.mapped:
                rest = [move(rest[0])]
            if mark.mend.renewed:
                rest = rest[:1]
            name = mark.after[0] + name[len(mark.before[0]) :]
            return " ".join([name, _sequence(sequence, mark.mend), *mark.after[1:], *rest])
    return value


def _sequence(text: str, mend: Mend) -> str:
    return str(mend.sequence(int(text))) if mend and text.isascii() and text.isdigit() and len(text) <= 20 else text


def _is_of(origin: str, mark: SourceMark) -> bool:
    return origin == mark.before[0] or origin.startswith(mark.before[0] + ":")


def _counters(
    value: bytes, marks: Sequence[SourceMark], rename: Callable[[str], str], move: Callable[[str], str]
) -> bytes | None:
    try:
        sources = read_json(value, "a counter")
    except FormatError:
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
