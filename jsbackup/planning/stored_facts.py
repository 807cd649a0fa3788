"""The facts about a restore that only stored messages tell: how far copies had copied, what limits and times to live
remove, what cuts, filters and masks keep.

`first_decision` reads little: cuts, copies, headers where they decide. `counted` reads all messages that are filtered
or masked. A preview and a restore call both, in this order; the restore transforms every message, a preview tries masks
on a part of large streams.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from jsbackup.errors import IntegrityError, KeyUnavailable, PlanRefused
from jsbackup.model import JsonObject
from jsbackup.planning.configs.overrides import trims
from jsbackup.planning.copies.copy_facts import CopyFacts, SourceFacts, sources_of
from jsbackup.planning.forecast import find_expiring
from jsbackup.planning.model import Action, Expiring, LeftOut, Outlived, RestoreOptions, SendAs, Target
from jsbackup.planning.plan import Decision, Facts, Shape, Shapes, judge, shape
from jsbackup.planning.preflight import LOST
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.chosen_streams import without_broken_lists
from jsbackup.planning.selection.kept_messages import estimate, survey, survey_cut, with_newest
from jsbackup.planning.selection.masking import about_sample
from jsbackup.planning.selection.subset import KeptStream, segments_within
from jsbackup.readable import format_count
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_columns, read_stream, state_to_restore
from jsbackup.transforms.batches import SEQUENCE, TIMESTAMP, MessageBatch, keep_rows
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, is_external, last_positions, source_key
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.mask import Masks, Unmaskable
from jsbackup.transforms.removal import Cause, removal_of
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = [
    "MOST_BYTES",
    "NO_SECRET",
    "SUBJECT_LIMIT",
    "counted",
    "find_outlived",
    "first_decision",
    "lowered_subject_limit",
]


# --- copy positions ---
#
# How far the copies in a backup had copied, read from its segments: backwards from the last one until all marks are
# found. Blocks: meant for a worker thread. Unreadable streams are left out, and their plans assume the worst.

_log = logging.getLogger(__name__)

NO_SECRET = bytes(32)
"""For a preview, in which masked values are only counted."""

_WHOLE_BYTES = 4 << 20  # streams up to this size are masked completely by a preview
_ALL_BYTES = 128 << 20  # and so are larger ones, the smallest first, while all of them together have so much
_MESSAGES = 1000  # of larger ones, so many at the beginning of the first and the last segment

_MOST = 1_000_000  # how many messages are counted one by one


def _look_at_copies(objects: Objects, shapes: Shapes) -> CopyFacts:
    """Return what is known about the streams with sources. Raises StoreError."""
    entries = {entry.name: entry for entry in shapes.manifest.streams}
    reshapes = {stream.entry.name: stream.reshaped.messages for stream in shapes.streams}
    known: dict[str, Mapping[SourceKey, SourceFacts]] = {}
    for stream in shapes.streams:
        if stream.wire not in (SendAs.V1, SendAs.V2) or not sources_of(stream.entry.config):
            continue
        try:
            known[stream.entry.name] = _facts_of(objects, stream, entries, reshapes=reshapes)
        except (IntegrityError, KeyUnavailable) as error:
            _log.info("stream %s: how far its sources had copied cannot be read: %s", stream.entry.name, error.message)
    return CopyFacts(known)


@dataclass(slots=True)
class _Marks:
    """The last marks: among the messages within a cut, and among those of them that filters keep."""

    within: dict[SourceKey, CopyPosition]
    kept: dict[SourceKey, CopyPosition]
    messages: int = 0


def _facts_of(
    objects: Objects, copy: Shape, entries: Mapping[str, StreamBackup], *, reshapes: Mapping[str, Reshape]
) -> dict[SourceKey, SourceFacts]:
    entry = copy.entry
    sources = {source_key(source): source for source in sources_of(entry.config)}
    keeping = with_newest(objects, entry, copy.reshaped.messages.keeping)
    marks = _last_marks(objects, entry, keeping, sources)
    end = state_to_restore(Facts().kept_of(copy).entry)
    if copy.reshaped.messages.renumber:  # here in the sequences that the messages still have
        end = replace(end, last_seq=end_of(entry, keeping.cut))
    reported = (
        {position.key: position.sequence for position in entry.copied}
        if end.last_seq == state_to_restore(entry).last_seq
        else {}
    )
    alone = len(sources) == 1 and not entry.config.get("subjects")
    facts = {}
    for key, source in sources.items():
        left = marks.kept.get(key)
        seen = max(marks.within[key].sequence if key in marks.within else 0, reported.get(key, 0))
        at = left.sequence if left is not None else 0
        removed = end.last_seq - left.at - left.later if left is not None else end.last_seq - end.messages
        exact = key in reported or not removed or seen > at
        again: tuple[int, ...] = ()
        most: int | None = None
        origin = entries.get(source["name"])
        if (removed or seen > at) and origin is None:
            most = seen - at if exact else removed
        elif (removed or seen > at) and origin is not None and not is_external(source):
            its = with_newest(objects, origin, reshapes.get(origin.name, Reshape()).keeping)
            behind = _Behind(origin, its, source, at)
            again = behind.sequences(objects, seen if exact else None, _MOST if exact else min(removed, _MOST))
            if len(again) == _MOST:
                again, most = (), seen - at if exact else removed
            elif not exact and alone and behind.gapless and len(again) == removed:
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
        self.found = {
            key: replace(position, later=position.later + batch.num_rows) for key, position in self.found.items()
        }
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
        sequences: list[int] = []
        before = self._at
        for batch in self._batches(objects):
            for sequence in batch:
                if len(sequences) >= most or (last is not None and sequence > last):
                    return tuple(sequences)
                self.gapless = self.gapless and sequence == before + 1
                before = sequence
                sequences.append(sequence)
        return tuple(sequences)

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
    patterns = [str(transform.get("src") or ">") for transform in transforms] or [
        str(source.get("filter_subject") or ">")
    ]
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
    tasks = (partial(look, ref) for ref in _first_segments(entry, cut, most_bytes))
    with closing(in_order(tasks, _THREADS)) as outlived:
        return sum(outlived, Outlived())


def _first_segments(entry: StreamBackup, cut: Cut, most_bytes: int) -> Iterator[SegmentRef]:
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


def lowered_subject_limit(action: Action, options: RestoreOptions) -> int:
    """Return the `max_msgs_per_subject` that the user asked for, if the stream had a larger one, or none; else 0."""
    before, most = action.entry.config.get(SUBJECT_LIMIT) or 0, action.config.get(SUBJECT_LIMIT) or 0
    asked = SUBJECT_LIMIT in options.of_stream(action.entry.name).fields
    return most if asked and most > 0 and not 0 < before <= most else 0


def _expired(objects: Objects, stream: Shape, kept: KeptStream, target: Target) -> int | None:
    """Return the exact number of messages that expire, where that decides whether a stream may replace another."""
    live, asked, expiring = target.streams.get(stream.name), stream.reshaped.messages, _expiring(stream, kept, target)
    if live is None or not stream.replaces or asked.drops or asked.renumber or stream.entry.opaque:
        return None
    if stream.config.get("allow_msg_ttl"):  # the headers decide
        return None
    if not (expiring.least < expiring.most and expiring.of - expiring.most < live.state.messages):
        return None
    oldest = Cut(since=AtTime(target.now_ns - stream.config["max_age"]))
    left = survey_cut(objects, replace(stream.entry, consumers=()), oldest).entry.captured.messages
    return stream.entry.captured.messages - left


def _outlived(objects: Objects, stream: Shape, kept: KeptStream, target: Target) -> Outlived | None:
    """Return what the headers of single messages remove, where that may decide whether a stream may replace another,
    and where it has schedules.
    """
    live, asked, config = target.streams.get(stream.name), stream.reshaped.messages, stream.config
    if not target.now_ns or not kept.entry.segments or asked.drops_by_filters or asked.masks_drop or asked.renumber:
        return None
    if not config.get("allow_msg_schedules"):
        if live is None or not stream.replaces or not config.get("allow_msg_ttl") or stream.options.replace_with_part:
            return None
        held, expiring = live.state.messages, _expiring(stream, kept, target)
        if not held or (expiring.least and expiring.of - expiring.least < held):
            return None
    return find_outlived(objects, stream.entry, asked.cut, config, now_ns=target.now_ns)


def _expiring(stream: Shape, kept: KeptStream, target: Target) -> Expiring:
    return find_expiring(kept, stream.config, target.now_ns)


# --- the decision ---


def first_decision(
    objects: Objects,
    manifest: Manifest,
    target: Target,
    options: RestoreOptions,
    *,
    left_out: Mapping[str, LeftOut] | None = None,
) -> Decision:
    """Decide before messages are counted: cuts are exact if their segments can be read. Streams whose lists of segments
    are broken are refused, unless all are. `left_out` is known already.

    Raises the errors of `shape`; IntegrityError and StoreError.
    """
    try:
        return _first(objects, shape(manifest, target, options), left_out or {})
    except IntegrityError:
        manifest, options, broken = without_broken_lists(manifest, options)
        if not broken:
            raise
        decision = _first(objects, shape(manifest, target, options), left_out or {})
        return decision.finding(Finding(name, Rule.OBJECT_LOST, e.message, LOST) for name, e in broken.items())


def _first(objects: Objects, shapes: Shapes, left_out: Mapping[str, LeftOut]) -> Decision:
    target = shapes.target
    facts = Facts(copies=_look_at_copies(objects, shapes), left_out=left_out, early=True)
    kept: dict[str, KeptStream] = {}
    expired: dict[str, int] = {}
    outlived: dict[str, Outlived] = {}
    for stream in shapes.streams:
        name = stream.entry.name
        with _unreadable_later():
            if stream.reshaped.messages.cut:
                kept[name] = estimate(objects, stream.entry, stream.reshaped.messages)
        known = kept.get(name) or facts.kept_of(stream)
        with _unreadable_later():
            if (count := _expired(objects, stream, known, target)) is not None:
                expired[name] = count
            if (outlived_by := _outlived(objects, stream, known, target)) is not None:
                outlived[name] = outlived_by
    facts = replace(facts, kept=kept, expired=expired, outlived=outlived)
    return Decision(shapes, facts, judge(shapes, facts))


def _unreadable_later() -> AbstractContextManager[None]:
    """Ignore lost objects and missing keys: they are reported when objects are checked."""
    return suppress(IntegrityError, KeyUnavailable)


def counted(objects: Objects, decision: Decision, secret: bytes | None = None) -> Decision:
    """Return the decision with exact numbers, which takes a pass over the streams that are filtered or changed.

    With the `secret` of a restore every message is transformed as it will be. Without one, as in a preview, those are
    read that filters, masks and unsupported headers decide about; of large streams masks are tried on some.

    Raises StoreError; with a secret also IntegrityError and KeyUnavailable.
    """
    entries, kept, more = decision.entries, dict(decision.facts.kept), list[Finding]()
    changed = [action for action in decision.plan.actions if action.reshape]
    left = _ALL_BYTES
    for size, action in sorted(((_bytes(entries, action), action) for action in changed), key=lambda pair: pair[0]):
        name, asked, left = action.entry.name, action.reshape, left - size
        entry, masks = entries[name], asked.masks
        whole = secret is not None or not masks or size <= _WHOLE_BYTES or left >= 0
        if secret is None:
            asked = replace(asked.keeping, renumber=asked.renumber, unwanted=asked.unwanted)
            asked = replace(asked, masks=masks if whole else Masks())
        try:
            if replace(asked, cut=Cut()) or (secret is not None and name not in kept):
                kept[name] = survey(objects, entry, asked, NO_SECRET if secret is None else secret)
            if not whole and masks:
                more += _sampled(objects, entry, action, kept.get(name))
                if name in kept:
                    kept[name] = replace(kept[name], exact=not action.reshape.masks_drop, counted=False)
        except PlanRefused as error:
            rule = Rule.MASK_UNREADABLE if masks else Rule.STREAM_FEATURE
            more.append(Finding(name, rule, _unmaskable(objects, entry, asked, error), error.hint or ""))
        except (IntegrityError, KeyUnavailable):
            if secret is not None:  # else objects are checked later
                raise
    if changed:
        findings = (*decision.facts.findings, *more)
        decision = decision.knowing(replace(decision.facts, kept=kept, findings=findings, early=False))
    return decision.finding(_against_subject_limits(objects, decision, entries))


def _bytes(entries: Mapping[str, StreamBackup], action: Action) -> int:
    try:
        return sum(ref.bytes for ref in segments_within(entries[action.entry.name], action.reshape.cut))
    except IntegrityError:  # of a list, which is reported when objects are checked
        return 0


def _unmaskable(objects: Objects, entry: StreamBackup, asked: Reshape, error: PlanRefused) -> str:
    """Return why a message cannot be masked, with the number of those that cannot, where that can be found."""
    if not asked.masks:
        return error.message
    keeping = replace(asked, masks=replace(asked.masks, unmaskable=Unmaskable.KEEP))
    try:
        kept = survey(objects, entry, keeping, NO_SECRET)
    except (PlanRefused, IntegrityError, KeyUnavailable):
        return error.message
    of = kept.entry.captured.messages
    return f"{error.message}; in all, {kept.masked.kept:,} of {format_count(of, 'message')} cannot be masked"


def _sampled(objects: Objects, entry: StreamBackup, action: Action, kept: KeptStream | None) -> Iterator[Finding]:
    """Yield what masks do to the first messages of the first and the last segment."""
    chosen = None if kept is None else kept.chosen
    reshape = replace(action.reshape, chosen=chosen, newest=action.reshape.newest if chosen is not None else None)
    segments, tally = segments_within(entry, reshape.cut), ReshapeTally()
    for ref in (*segments[:1], *segments[1:][-1:]):
        batches = _head(read_stream(objects, replace(entry, segments=(ref,))), reshape.cut)
        for _ in reshape.apply(batches, stream=entry.name, secret=NO_SECRET, tally=tally):
            pass
    of = format_count(entry.captured.messages, "message")
    yield from about_sample(action, tally, f"in a sample of {tally.came.messages:,} of {of}")


def _head(batches: Iterable[MessageBatch], cut: Cut) -> Iterator[MessageBatch]:
    """Yield the first messages within a cut."""
    most = _MESSAGES
    for batch in batches:
        within = keep_rows(batch, cut.rows(batch)).slice(0, most)
        yield within
        most -= within.num_rows
        if not most:
            return


def _against_subject_limits(
    objects: Objects, decision: Decision, entries: Mapping[str, StreamBackup]
) -> Iterator[Finding]:
    """Yield refusals of a lower `max_msgs_per_subject` than subjects have messages."""
    for action in decision.plan.actions:
        most = lowered_subject_limit(action, decision.shapes.options)
        asked, held = action.reshape, action.entry.captured.messages
        if not most or not held or not action.counted or action.entry.opaque:
            continue
        if asked.newest is not None and (asked.newest.compact or asked.newest.count <= most):
            continue
        look = replace(asked.keeping, newest=NewestRule(most), chosen=None)
        with _unreadable_later():
            chosen = with_newest(objects, entries[action.entry.name], look).chosen
            if chosen is not None and len(chosen) < held:
                yield trims(action.entry.name, SUBJECT_LIMIT, len(chosen), held)
