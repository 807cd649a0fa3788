"""What only stored messages tell about a restore, and the plans that know it.

A plan is a pure function (`plan.py`) of a manifest, a target and options. Its facts are read here: how far copies had
copied, what limits and times to live remove, what filters keep, and which other backups come closer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from jsbackup.errors import IntegrityError, KeyUnavailable, PlanRefused
from jsbackup.model import JsonObject
from jsbackup.planning.configs.overrides import trims
from jsbackup.planning.copies.copy_facts import CopyFacts, SourceFacts, sources_of
from jsbackup.planning.model import Action, Outlived, RestoreOptions, RestorePlan, SendAs, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.kept_messages import estimate, reshaped_messages, survey, survey_cut, with_newest
from jsbackup.planning.selection.point_in_time import find_nearest, naming_nearest
from jsbackup.planning.selection.subset import KeptStream, kept_by_bounds, segments_within
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_columns, read_stream, state_to_restore
from jsbackup.repository.repository import Repository
from jsbackup.transforms.batches import SEQUENCE, TIMESTAMP, MessageBatch
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, is_external, last_positions, source_key
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.removal import Cause, removal_of
from jsbackup.transforms.reshape import Reshape

__all__ = [
    "MOST_BYTES",
    "SUBJECT_LIMIT",
    "LimitedStreams",
    "Lived",
    "Planning",
    "find_outlived",
    "look_at_copies",
    "lowered_subject_limit",
]


# --- copy positions ---
#
# How far the copies in a backup had copied, read from its segments: backwards from the last one until all marks are
# found. Blocks: meant for a worker thread. Unreadable streams are left out, and their plans assume the worst.

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


# --- limited ---
#
# What limits remove of stored streams: counted in their messages, where bounds in the manifest do not decide.
#
# Only those segments are read that have messages on both sides of a `max_age`; of subjects, all; of times to live of
# single messages, the first ones up to a limit.
#
# Stored messages that a stream removes as soon as they are restored because of their own time to live (`Nats-TTL`), or
# publishes because their schedule is due.
#
# That is in their headers, so all segments have to be fetched; only these columns are decoded. The first ones are
# looked at, up to a limit: what is known of the others is nothing.

# Stored bytes and messages of a stream that are looked at: some seconds from S3, and some of one core.
MOST_BYTES = 512 << 20
_MOST_MESSAGES = 4_000_000

_THREADS = 3  # they wait for the store, or compute SHA-256
# What stands for a deletion: no content is lost with it.
_MARKERS = (b"\r\nNats-Marker-Reason:", b"\r\nKV-Operation: DEL\r\n", b"\r\nKV-Operation: PURGE\r\n")


def find_outlived(
    objects: Objects, entry: StreamBackup, cut: Cut, config: JsonObject, *, now_ns: int, most_bytes: int = MOST_BYTES
) -> Outlived:
    """Return how many of the messages within a cut are gone at once from a stream with this configuration. Markers of
    deleted keys are not counted.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    look = partial(_look_at, objects, cut=cut, config=config, now_ns=now_ns)
    tasks = (partial(look, ref) for ref in _first(entry, cut, most_bytes))
    with closing(in_order(tasks, _THREADS)) as outlived:
        return sum(outlived, Outlived())


def _first(entry: StreamBackup, cut: Cut, most_bytes: int) -> Iterator[SegmentRef]:
    size = messages = 0
    for ref in segments_within(entry, cut):
        if size and (size + ref.size > most_bytes or messages + ref.messages > _MOST_MESSAGES):
            return
        size, messages = size + ref.size, messages + ref.messages
        yield ref


def _look_at(objects: Objects, ref: SegmentRef, *, cut: Cut, config: JsonObject, now_ns: int) -> Outlived:
    by_ttl = expired = looked = due = 0
    ageless = {**config, "max_age": 0}

    def is_gone(stored_ns: int, block: bytes, rules: JsonObject) -> Cause | None:
        removal = removal_of(stored_ns, block, rules)
        return removal[1] if removal is not None and removal[0] <= now_ns else None

    for batch in read_columns(objects, ref, ["headers"]):
        kept: pa.RecordBatch = batch.filter(cut.rows(batch)) if cut else batch
        looked += kept.num_rows
        headers = kept.column("headers")
        if headers.null_count == len(headers) and not config.get("max_age"):
            continue
        for stored_ns, block in zip(kept.column(TIMESTAMP).to_pylist(), headers.to_pylist(), strict=True):
            cause = is_gone(stored_ns, block or b"", config)
            if cause is Cause.FIRED:
                due += 1
            elif cause is not None and not (block and any(marker in block for marker in _MARKERS)):
                expired += 1
                by_ttl += is_gone(stored_ns, block or b"", ageless) is not None
    return Outlived(by_ttl, expired, looked, due)


SUBJECT_LIMIT = "max_msgs_per_subject"
_BY_HEADERS = ("max_age", "allow_msg_ttl", "allow_msg_schedules")

Lived = tuple[str, str, str, Cut, tuple[object, ...]]
"""Name, incarnation and digest of a stream, its cut, and the settings by which it removes messages."""


def lowered_subject_limit(action: Action, options: RestoreOptions) -> int:
    """Return the `max_msgs_per_subject` that the user asked for, if the stream had a larger one, or none; else 0."""
    before, most = action.entry.config.get(SUBJECT_LIMIT) or 0, action.config.get(SUBJECT_LIMIT) or 0
    asked = SUBJECT_LIMIT in options.of_stream(action.entry.name).fields
    return most if asked and most > 0 and not 0 < before <= most else 0


@dataclass(frozen=True, slots=True)
class LimitedStreams:
    """The streams of a plan. The methods read the store: call them in a worker thread. They raise StoreError; lost
    objects and missing keys are reported when objects are checked.
    """

    objects: Objects
    target: Target
    options: RestoreOptions

    def expired(self, plan: RestorePlan, entries: Mapping[str, StreamBackup]) -> dict[str, KeptStream]:
        """Return the streams, by name, with the exact number of messages that expire, where that decides whether they
        may replace others.
        """
        found: dict[str, KeptStream] = {}
        for action in plan.actions:
            if self._is_open(action):
                entry = entries[action.entry.name]
                oldest = Cut(since=AtTime(self.target.now_ns - action.config["max_age"]))
                try:
                    left = survey_cut(self.objects, replace(entry, consumers=()), oldest).entry.captured.messages
                except (IntegrityError, KeyUnavailable):
                    continue
                count = entry.captured.messages
                found[entry.name] = KeptStream(entry, had=count, expired=count - left)
        return found

    def outlived(
        self, plan: RestorePlan, entries: Mapping[str, StreamBackup], known: dict[Lived, Outlived]
    ) -> dict[str, Outlived]:
        """Return what the headers of single messages remove, by stream, where that may decide whether it may replace
        another, and where it has schedules. `known` has what was found before.
        """
        found: dict[str, Outlived] = {}
        for action in plan.actions:
            if self._may_outlive(action):
                entry, cut = entries[action.entry.name], action.reshape.cut
                rules = tuple(action.config.get(name) for name in _BY_HEADERS)
                key = (entry.name, entry.incarnation, entry.digest.hex, cut, rules)
                try:
                    if key not in known:
                        now_ns = self.target.now_ns
                        known[key] = find_outlived(self.objects, entry, cut, action.config, now_ns=now_ns)
                except (IntegrityError, KeyUnavailable):
                    continue
                found[entry.name] = known[key]
        return found

    def _may_outlive(self, action: Action) -> bool:
        there, gone, asked = self.target.streams.get(action.name), action.expiring, action.reshape
        if not self.target.now_ns or not action.entry.segments:
            return False
        if asked.drops_by_filters or asked.masks_drop or asked.renumber:
            return False
        if action.config.get("allow_msg_schedules"):
            return True
        if there is None or not action.replaces or not action.config.get("allow_msg_ttl"):
            return False
        if self.options.replace_with_part:
            return False
        held = there.state.messages
        return held > 0 and not (gone.least and gone.of - gone.least < held)

    def _is_open(self, action: Action) -> bool:
        there, gone = self.target.streams.get(action.name), action.expiring
        if there is None or not action.replaces or action.reshape.drops or action.reshape.renumber:
            return False
        if action.config.get("allow_msg_ttl"):  # the headers decide
            return False
        return gone.least < gone.most and gone.of - gone.most < there.state.messages and not action.entry.opaque

    def against_subject_limits(self, plan: RestorePlan, entries: Mapping[str, StreamBackup]) -> Iterator[Finding]:
        """Yield refusals of a lower `max_msgs_per_subject` than subjects have messages."""
        for action in plan.actions:
            most, asked, held = lowered_subject_limit(action, self.options), action.reshape, action.entry.captured
            if not most or not held.messages or not action.counted or action.entry.opaque:
                continue
            if asked.newest is not None and (asked.newest.compact or asked.newest.count <= most):
                continue
            look = replace(asked.keeping, newest=NewestRule(most), chosen=None)
            try:
                chosen = with_newest(self.objects, entries[action.entry.name], look).chosen
            except (IntegrityError, KeyUnavailable):
                continue
            if chosen is not None and len(chosen) < held.messages:
                yield trims(action.entry.name, SUBJECT_LIMIT, len(chosen), held.messages)


# --- stored plan ---
#
# Plans for a repository: the pure plan, with facts from messages and other backups.

_NAMING = (Rule.UNTIL_AFTER_BACKUP, Rule.UNTIL_BEFORE_FIRST)


@dataclass(frozen=True, slots=True)
class Planning:
    """What the plans of one restore share. The methods read the store: call them in a worker thread."""

    repository: Repository
    target: Target
    options: RestoreOptions
    _outlived: dict[Lived, Outlived] = field(default_factory=dict, init=False)

    def plan(self, manifest: Manifest) -> RestorePlan:
        """Return the plan; its cuts are exact if their segments can be read. Raises as `plan_restore`, and
        StoreError.
        """
        plan = plan_restore(manifest, self.target, self.options)
        facts = look_at_copies(self.repository.objects, manifest, plan)
        if facts.sources:
            plan = plan_restore(manifest, self.target, self.options, copies=facts)
        if any(action.reshape.cut for action in plan.actions):
            plan = self._knowing(manifest, plan, self._estimate)
            plan = replace(plan, refusals=tuple(self._named(manifest, finding) for finding in plan.refusals))
        else:
            plan = self._knowing(manifest, plan, None)
        return replace(plan, refusals=(*plan.refusals, *self._against_unwanted(manifest, plan)))

    def counted(self, manifest: Manifest, plan: RestorePlan) -> RestorePlan:
        """Return the plan with exact numbers of what filters keep, which takes a pass over these streams; `plan` itself
        if there are none. What masks do is not looked at. Raises StoreError.
        """
        if not any(action.reshape.drops_by_filters or action.reshape.renumber for action in plan.actions):
            return plan
        return self._knowing(manifest, plan, self._count)

    def settle(self, manifest: Manifest, plan: RestorePlan, secret: bytes) -> RestorePlan:
        """Return the plan after all kept messages were transformed; `plan` itself if it has only exact cuts.

        Raises as `survey`: nothing has been sent yet.
        """

        def surveyed(entry: StreamBackup, action: Action) -> KeptStream:
            return survey(self.repository.objects, entry, action.reshape, secret)

        if all(action.counted and not replace(action.reshape, cut=Cut()) for action in plan.actions):
            return plan
        return self._knowing(manifest, plan, surveyed)

    def _against_unwanted(self, manifest: Manifest, plan: RestorePlan) -> Iterator[Finding]:
        """Refuse messages with headers that the target does not support: all messages of such streams are read."""
        entries = {entry.name: entry for entry in manifest.streams}
        for action in plan.actions:
            asked = action.reshape
            if not asked.unwanted:
                continue
            objects, entry = self.repository.objects, entries[action.entry.name]
            try:
                look = replace(with_newest(objects, entry, asked.keeping), unwanted=asked.unwanted)
                for _ in reshaped_messages(objects, entry, look, b""):
                    pass
            except PlanRefused as found:
                yield Finding(action.entry.name, Rule.STREAM_FEATURE, found.message, found.hint or "")
            except (IntegrityError, KeyUnavailable):
                pass  # as in `_estimate`

    def _knowing(
        self, manifest: Manifest, plan: RestorePlan, look: Callable[[StreamBackup, Action], KeptStream | None] | None
    ) -> RestorePlan:
        """Plan again with what `look` finds out about each stream's backup, and with what decides about limits."""
        entries = {entry.name: entry for entry in manifest.streams}
        kept: dict[str, KeptStream] = {}
        if look is not None:
            found = {one.entry.name: look(entries[one.entry.name], one) for one in plan.actions if one.reshape}
            kept = {name: one for name, one in found.items() if one is not None}
            plan = plan_restore(manifest, self.target, self.options, kept, copies=plan.copies)
        limits = LimitedStreams(self.repository.objects, self.target, self.options)
        if expired := limits.expired(plan, entries):
            kept |= expired
            plan = plan_restore(manifest, self.target, self.options, kept, copies=plan.copies)
        if outlived := limits.outlived(plan, entries, self._outlived):
            reshapes = {action.entry.name: action.reshape for action in plan.actions}
            for name, one in outlived.items():
                known = kept.get(name) or kept_by_bounds(entries[name], reshapes[name])
                kept[name] = replace(known, outlived=one)
            plan = plan_restore(manifest, self.target, self.options, kept, copies=plan.copies)
        return replace(plan, refusals=(*plan.refusals, *limits.against_subject_limits(plan, entries)))

    def _estimate(self, entry: StreamBackup, action: Action) -> KeptStream | None:
        try:
            return estimate(self.repository.objects, entry, action.reshape)
        except (IntegrityError, KeyUnavailable):
            return None  # lost objects and missing keys are reported when objects are checked

    def _count(self, entry: StreamBackup, action: Action) -> KeptStream | None:
        asked = action.reshape
        if not (asked.drops_by_filters or asked.renumber):
            return self._estimate(entry, action)
        try:
            kept = survey(self.repository.objects, entry, replace(asked.keeping, renumber=asked.renumber), b"")
        except (IntegrityError, KeyUnavailable):
            return None  # as in `_estimate`
        return replace(kept, exact=not asked.masks_drop, counted=not asked.masks)

    def _named(self, manifest: Manifest, finding: Finding) -> Finding:
        if finding.rule not in _NAMING:
            return finding
        summaries, cut = self.repository.inventory().summaries, self.options.reshape.cut
        nearest = find_nearest(manifest, finding.stream, cut, summaries, manifest_of=self.repository.manifest)
        return naming_nearest(finding, nearest)
