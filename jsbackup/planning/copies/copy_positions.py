"""How far the copies in a backup had copied, read from its segments: backwards from the last one until all marks are
found. Blocks: meant for a worker thread. Unreadable streams are left out, and their plans assume the worst.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from jsbackup.errors import IntegrityError, KeyUnavailable
from jsbackup.model import JsonObject
from jsbackup.planning.copies.copy_facts import CopyFacts, SourceFacts, sources_of
from jsbackup.planning.model import Action, RestorePlan, SendAs
from jsbackup.planning.selection.newest_pass import with_newest
from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_stream, state_to_restore
from jsbackup.transforms.batches import SEQUENCE, MessageBatch
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, is_external, last_positions, source_key
from jsbackup.transforms.cut import AtSequence, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.reshape import Reshape

__all__ = ["look_at_copies"]

_log = logging.getLogger(__name__)

_MOST = 1_000_000  # how many messages are counted one by one


def look_at_copies(objects: Objects, manifest: Manifest, plan: RestorePlan) -> CopyFacts:
    """Return what is known about the streams with sources in a plan. Raises StoreError."""
    entries = {entry.name: entry for entry in manifest.streams}
    reshapes = {action.entry.name: action.reshape for action in plan.actions}
    found: dict[str, Mapping[SourceKey, SourceFacts]] = {}
    for action in plan.actions:
        entry = entries[action.entry.name]
        if action.wire not in (SendAs.V1, SendAs.V2) or not sources_of(entry.config):
            continue
        try:
            found[entry.name] = _facts_of(objects, entry, action, entries, reshapes=reshapes)
        except (IntegrityError, KeyUnavailable) as error:
            _log.info("stream %s: how far its sources had copied cannot be read: %s", entry.name, error.message)
    return CopyFacts(found)


@dataclass(slots=True)
class _Marks:
    """The last marks: among the messages within a cut, and among those of them that filters keep."""

    within: dict[SourceKey, CopyPosition]
    kept: dict[SourceKey, CopyPosition]
    messages: int = 0


def _facts_of(
    objects: Objects,
    entry: StreamBackup,
    action: Action,
    entries: Mapping[str, StreamBackup],
    *,
    reshapes: Mapping[str, Reshape],
) -> dict[SourceKey, SourceFacts]:
    sources = {source_key(source): source for source in sources_of(entry.config)}
    keeping = with_newest(objects, entry, action.reshape.keeping)
    marks = _last_marks(objects, entry, keeping, sources)
    end = state_to_restore(action.entry)
    if action.reshape.renumber:  # here in the sequences that the messages still have
        end = replace(end, last_seq=end_of(entry, keeping.cut))
    reported = (
        {one.key: one.sequence for one in entry.copied} if end.last_seq == state_to_restore(entry).last_seq else {}
    )
    alone = len(sources) == 1 and not entry.config.get("subjects")
    facts = {}
    for key, source in sources.items():
        left = marks.kept.get(key)
        seen = max(marks.within[key].sequence if key in marks.within else 0, reported.get(key, 0))
        at = left.sequence if left is not None else 0
        gone = end.last_seq - left.at - left.later if left is not None else end.last_seq - end.messages
        exact = key in reported or not gone or seen > at
        again: tuple[int, ...] = ()
        most: int | None = None
        origin = entries.get(source["name"])
        if (gone or seen > at) and origin is None:
            most = seen - at if exact else gone
        elif (gone or seen > at) and origin is not None and not is_external(source):
            its = with_newest(objects, origin, reshapes.get(origin.name, Reshape()).keeping)
            behind = _Behind(origin, its, source, at)
            again = behind.sequences(objects, seen if exact else None, _MOST if exact else min(gone, _MOST))
            if len(again) == _MOST:
                again, most = (), seen - at if exact else gone
            elif not exact and alone and behind.gapless and len(again) == gone:
                seen, exact = again[-1], True
        facts[key] = SourceFacts(left, max(seen, at), exact, again, most)
    return facts


def end_of(entry: StreamBackup, cut: Cut) -> int:
    """Return the last sequence of the cut stream, or a later one if the cut is in time."""
    last = state_to_restore(entry).last_seq
    return min(last, cut.until.sequence) if isinstance(cut.until, AtSequence) else last


def _last_marks(objects: Objects, entry: StreamBackup, reshape: Reshape, keys: Collection[SourceKey]) -> _Marks:
    marks = _Marks({}, {})
    for ref in reversed(segments_within(entry, reshape.cut)):
        within, kept = _Last(), _Last()
        for batch in read_stream(objects, replace(entry, segments=(ref,))):
            for rows in Reshape(reshape.cut).apply([batch], stream=entry.name):
                within.add(rows, keys)
            for rows in reshape.apply([batch], stream=entry.name):
                kept.add(rows, keys)
        for key, position in within.found.items():
            marks.within.setdefault(key, position)
        for key, position in kept.found.items():
            marks.kept.setdefault(key, replace(position, later=position.later + marks.messages))
        marks.messages += kept.messages
        if len(marks.kept) == len(keys):
            break
    return marks


class _Last:
    """The last marks of batches added in order."""

    def __init__(self) -> None:
        self.messages = 0
        self.found: dict[SourceKey, CopyPosition] = {}

    def add(self, batch: MessageBatch, keys: Collection[SourceKey]) -> None:
        if not batch.num_rows:
            return
        self.found = {key: replace(one, later=one.later + batch.num_rows) for key, one in self.found.items()}
        self.found |= last_positions(batch, keys)
        self.messages += batch.num_rows


class _Behind:
    """Messages of an origin after a sequence, as far as they are restored and the source would copy them.

    `gapless` says, after reading, whether the origin has every message there.
    """

    def __init__(self, origin: StreamBackup, reshape: Reshape, source: JsonObject, at: int) -> None:
        self._origin = origin
        self._reshape = reshape
        self._copied = Reshape(filters=_filters_of(source))
        self._at = max(at, _start_of(source) - 1)
        self.gapless = not (reshape.drops_by_filters or self._copied)

    def sequences(self, objects: Objects, last: int | None, most: int) -> tuple[int, ...]:
        """Return them up to sequence `last`, if that is known, and at most `most`."""
        found: list[int] = []
        before = self._at
        for batch in self._batches(objects):
            for sequence in batch:
                if len(found) >= most or (last is not None and sequence > last):
                    return tuple(found)
                self.gapless = self.gapless and sequence == before + 1
                before = sequence
                found.append(sequence)
        return tuple(found)

    def _batches(self, objects: Objects) -> Iterator[list[int]]:
        for ref in segments_within(self._origin, self._reshape.cut):
            if ref.last_seq <= self._at:
                continue
            batches = read_stream(objects, replace(self._origin, segments=(ref,)))
            restored = self._reshape.apply(batches, stream=self._origin.name)
            for rows in self._copied.apply(restored, stream=self._origin.name):
                yield [sequence for sequence in rows.column(SEQUENCE).to_pylist() if sequence > self._at]


def _filters_of(source: JsonObject) -> Filters:
    """Return what a source copies."""
    transforms = source.get("subject_transforms") or []
    patterns = [str(one.get("src") or ">") for one in transforms] or [str(source.get("filter_subject") or ">")]
    return Filters() if ">" in patterns else Filters.parse({"subject": patterns})


def _start_of(source: JsonObject) -> int:
    start = source.get("opt_start_seq")
    return start if isinstance(start, int) and not isinstance(start, bool) else 0
