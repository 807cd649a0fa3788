"""Find out what masks would do before anything is sent, from a small sample.

`plan` reads small streams completely and decides as the restore will, as many as fit into a limit; of others it reads
some messages at the beginning and the end, and reports on them. It says how many messages it has read, which ones, and
how many of them cannot be masked. A clone asks its source whether there are messages of the subjects at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.engine.link.concurrency import gather_some
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import Row, rows_as_batch
from jsbackup.errors import IntegrityError, KeyUnavailable, NatsPermissionDenied, PlanRefused
from jsbackup.planning.model import Action, RestoreOptions, RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.masking import (
    SPARED,
    about_masks,
    about_nothing_kept,
    about_unseen,
    of_unmasked,
    unseen,
    what,
)
from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_stream
from jsbackup.transforms.batches import MessageBatch, keep_rows
from jsbackup.transforms.mask import Mask, MaskCount, Masks, Unmaskable
from jsbackup.transforms.reshape import ReshapeTally

__all__ = ["refuse_absent", "sample_live", "sample_stored"]

_WHOLE_BYTES = 4 << 20  # streams up to this size are read completely
_ALL_BYTES = 128 << 20  # and so are larger ones, the smallest first, while all of them together have so much
_MESSAGES = 1000  # read at either end of a longer one
_LIVE_MESSAGES = 20  # requested one by one, for each mask
_AT_ONCE = 32
_LOOKED_AT = "the {:,} examined messages"
_NO_SECRET = bytes(32)  # values are only counted
_LATER = "The restore is refused if that holds for all messages; check its path and its subjects."


@dataclass(frozen=True, slots=True)
class _Sample:
    """The result for the messages that were read; `which` says which ones, "" for all that a cut keeps."""

    came: int
    kept: int
    which: str
    masked: MaskCount = field(default_factory=MaskCount)

    @property
    def whole(self) -> bool:
        return not self.which

    @property
    def where(self) -> str:
        """The end of a sentence about a part of the messages."""
        return f" ({self.which})" if self.which else ""


def sample_stored(objects: Objects, manifest: Manifest, plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """Return the plan with what masks would do to the streams of a backup. Raises StoreError.

    Unreadable objects are reported elsewhere. What filters keep is known by now (`Planning.counted`).
    """
    if not options.reshape.masks:
        return plan
    entries = {entry.name: entry for entry in manifest.streams}
    samples: dict[str, _Sample] = {}
    refusals: list[Finding] = []
    left = _ALL_BYTES
    for size, action in sorted(_sized(plan, entries), key=lambda pair: pair[0]):
        name, left = action.entry.name, left - size
        looking = _Looking(objects, entries[name], action, whole=size <= _WHOLE_BYTES or left >= 0)
        try:
            samples[name] = looking.look()
        except PlanRefused as error:
            refusals.append(Finding(name, Rule.MASK_UNREADABLE, looking.counted(error), error.hint or ""))
        except (IntegrityError, KeyUnavailable):
            continue
    whole = [sample for sample in samples.values() if sample.whole]
    if len(whole) == len(plan.actions) and any(sample.kept for sample in whole) and not _is_aimless(plan):
        masks = unseen(options.reshape.masks.masks, [sample.masked for sample in whole])
        refusals += () if options.allow_nothing else about_unseen(masks, may_miss=False)
    return _with_samples(plan, samples, refusals)


def _sized(plan: RestorePlan, entries: Mapping[str, StreamBackup]) -> Iterator[tuple[int, Action]]:
    for action in plan.actions:
        segments = segments_within(entries[action.entry.name], action.reshape.cut)
        yield sum(ref.bytes for ref in segments), action


@dataclass(frozen=True, slots=True)
class _Looking:
    """A look at all messages of a stream that its cut keeps, or at some of them."""

    objects: Objects
    entry: StreamBackup
    action: Action
    whole: bool

    def look(self, masks: Masks | None = None) -> _Sample:
        """Raises PlanRefused if a message cannot be masked."""
        reshape, tally = self.action.reshape, ReshapeTally()
        reshape = reshape if masks is None else replace(reshape, masks=masks)
        if reshape.chosen is None:  # messages could not be read
            reshape = replace(reshape, newest=None)
        segments = segments_within(self.entry, reshape.cut)
        parts = [self._read(segments)] if self.whole else self._ends(segments)
        read = []
        for part in parts:
            before = tally.came.messages
            for _ in reshape.apply(part, stream=self.entry.name, secret=_NO_SECRET, tally=tally):
                pass
            read.append(tally.came.messages - before)
        which = "" if self.whole else self._which(read)
        return _Sample(tally.came.messages, tally.kept.messages, which, tally.masked)

    def counted(self, error: PlanRefused) -> str:
        """Return why a message cannot be masked, with the number of those that cannot, where that can be found."""
        try:
            sample = self.look(replace(self.action.reshape.masks, unmaskable=Unmaskable.KEEP))
        except (PlanRefused, IntegrityError, KeyUnavailable):
            return error.message
        of_all = f"{sample.masked.kept:,} of {_LOOKED_AT.format(sample.came)}"
        return f"{error.message}; in all, {of_all} cannot be masked{sample.where}"

    def _ends(self, segments: Sequence[SegmentRef]) -> list[Iterator[MessageBatch]]:
        """Return the first and the last messages that the cut keeps."""
        first, last = self._within(segments[:1]), self._within(segments[-1:])
        return [_head(first, _MESSAGES), _tail(last, _MESSAGES, after=_MESSAGES if len(segments) == 1 else 0)]

    def _within(self, segments: Sequence[SegmentRef]) -> Iterator[MessageBatch]:
        for batch in self._read(segments):
            yield keep_rows(batch, self.action.reshape.cut.rows(batch))

    def _read(self, segments: Sequence[SegmentRef]) -> Iterator[MessageBatch]:
        return read_stream(self.objects, replace(self.entry, segments=segments))

    def _which(self, read: Sequence[int]) -> str:
        last = f" and the last {read[1]:,}" if read[1] else ""
        whole = f"of {self.action.entry.captured.messages:,}"
        return f"the first {read[0]:,}{last} {'before filters' if self.action.reshape.drops_by_filters else whole}"


def _head(batches: Iterable[MessageBatch], most: int) -> Iterator[MessageBatch]:
    """Yield the first `most` messages."""
    for batch in batches:
        yield batch.slice(0, most)
        most -= min(most, batch.num_rows)
        if not most:
            return


def _tail(batches: Iterable[MessageBatch], most: int, *, after: int) -> Iterator[MessageBatch]:
    """Yield the last `most` messages of those that come after the first ones."""
    held: deque[MessageBatch] = deque()
    count = 0
    for batch in batches:
        rest = batch.slice(min(after, batch.num_rows))
        after -= batch.num_rows - rest.num_rows
        held.append(rest)
        count += rest.num_rows
        while count - held[0].num_rows >= most:
            count -= held.popleft().num_rows
    for number, batch in enumerate(held):
        yield batch.slice(max(0, count - most)) if number == 0 else batch


async def refuse_absent(js: JetStream, manifest: Manifest, plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """Return the plan of a clone, refused if its source has no message of the named subjects.

    Raises NatsError.
    """
    reshape, refusals = options.reshape, list(plan.refusals)
    planned = {action.entry.name for action in plan.actions}
    filled = [entry for entry in manifest.streams if entry.captured.messages and entry.name in planned]
    if reshape.filters.subject and not options.allow_nothing:
        for entry, found in zip(filled, await _of_all(filled, reshape.filters.subject, js), strict=True):
            if not found:
                refusals.append(about_nothing_kept(entry.name, entry.captured.messages, may_be_empty=False))
    if filled and not options.allow_nothing and not _is_aimless(plan):
        masks = reshape.masks.masks
        absent = [mask for mask in masks if not any(await _of_all(filled, [mask.subjects], js))]
        refusals += about_unseen(absent, may_miss=False)
    return replace(plan, refusals=tuple(refusals))


async def sample_live(js: JetStream, plan: RestorePlan) -> RestorePlan:
    """Return the plan of a clone with what masks would do to a few messages of its source; unchanged if none may be
    read.

    Raises NatsError.
    """
    samples: dict[str, _Sample] = {}
    refusals: list[Finding] = []
    for action in plan.actions:
        rows: dict[int, Row] = {}
        try:
            for mask in action.reshape.masks.masks:
                rows |= await _first_messages(js, action.entry.name, mask)
        except NatsPermissionDenied:
            return plan
        if not rows:
            continue
        tally, batch = ReshapeTally(), rows_as_batch([rows[sequence] for sequence in sorted(rows)])
        try:
            masking = replace(action.reshape, newest=None)
            for _ in masking.apply([batch], stream=action.entry.name, secret=_NO_SECRET, tally=tally):
                pass
        except PlanRefused as error:
            refusals.append(Finding(action.entry.name, Rule.MASK_UNREADABLE, error.message, error.hint or ""))
            continue
        which = f"the first {_LIVE_MESSAGES} of each mask"
        samples[action.entry.name] = _Sample(tally.came.messages, tally.kept.messages, which, tally.masked)
    return _with_samples(plan, samples, refusals)


async def _first_messages(js: JetStream, stream: str, mask: Mask) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    sequence = 1
    while len(rows) < _LIVE_MESSAGES:
        message = await js.next_message(stream, sequence, mask.subjects)
        if message is None:
            break
        sequence = message.sequence + 1
        rows[message.sequence] = Row(
            message.sequence, message.timestamp_ns, message.subject.encode(), message.headers, message.data
        )
    return rows


async def _of_all(entries: Sequence[StreamBackup], patterns: Sequence[str], js: JetStream) -> list[bool]:
    """Return for each stream whether it has a message of a matching subject."""

    async def holds(entry: StreamBackup) -> bool:
        for pattern in patterns:
            if await js.holds(entry.name, pattern):
                return True
        return False

    return await gather_some(_AT_ONCE, holds, entries)


def _is_aimless(plan: RestorePlan) -> bool:
    """Return whether it was already found that a mask's subjects match nothing."""
    return any(found.rule is Rule.MASK_AIMLESS for found in plan.refusals)


def _with_samples(plan: RestorePlan, samples: Mapping[str, _Sample], refusals: Iterable[Finding]) -> RestorePlan:
    """Return the plan with the findings of the samples."""
    found = [*plan.refusals, *refusals]

    def with_findings(action: Action) -> Action:
        sample = samples.get(action.entry.name)
        if sample is None or not sample.came or not action.entry.captured.messages:
            return action
        says = list(_whole(action, sample) if sample.whole else _part(action, sample))
        found.extend(one for one in says if one.code)
        return replace(action, warnings=(*action.warnings, *(one for one in says if not one.code)))

    stages = tuple(tuple(with_findings(action) for action in stage) for stage in plan.stages)
    return replace(plan, stages=stages, refusals=tuple(found))


def _whole(action: Action, sample: _Sample) -> Iterator[Finding]:
    if not sample.kept:
        yield about_nothing_kept(action.entry.name, sample.came, may_be_empty=action.may_be_empty)
    entry, masks = action.entry, action.reshape.masks.masks
    yield from about_masks(entry.name, entry.config, masks, sample.masked, may_miss=action.may_miss)


def _part(action: Action, sample: _Sample) -> Iterator[Finding]:
    name, looked_at, masked = action.entry.name, _LOOKED_AT.format(sample.came), sample.masked
    found: list[tuple[str, str]] = []
    if not sample.kept and masked.dropped:
        hint = "" if action.may_be_empty else "The restore is refused if that holds for all messages."
        found.append((f"none of {looked_at} would be kept", hint))
    for number, mask in enumerate(action.reshape.masks.masks):
        values, hit, seen = (count.get(number, 0) for count in (masked.values, masked.hit, masked.seen))
        if values and hit == seen:
            found.append((f"{mask} masks {what(mask, values)} in {seen:,} of {looked_at}", ""))
        elif values:
            found.append(
                (f"{mask} masks {what(mask, values)} in {hit:,} of {seen:,} that it selects of {looked_at}", "")
            )
        elif seen:
            reason = f"{mask} masks nothing in the {seen:,} that it selects of {looked_at}"
            found.append((reason, "" if action.may_miss else _LATER))
        else:
            found.append((f"{mask} selects none of {looked_at}", ""))
    if masked.unmasked:
        part = f"{masked.unmasked:,} of {looked_at} stay unmasked: no mask selects their subjects"
        found.append((of_unmasked(action.reshape.masks.masks, action.entry.config, part), ""))
    for number, becomes in ((masked.dropped, "would be left out"), (masked.kept, "would be kept")):
        if number:
            found.append((f"{number:,} of {looked_at} {becomes}: a mask cannot read them", ""))
    if masked.spared:
        found.append((f"{masked.spared:,} of {looked_at} are not masked although a mask applies: {SPARED}", ""))
    for reason, hint in found:
        yield Finding(name, Rule.SAMPLED, reason + sample.where, hint)
