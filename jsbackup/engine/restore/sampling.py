"""Find out what masks and filters would do before anything is sent, from a small sample.

`plan` reads small streams completely and decides as the restore will; of others it reads some messages at the beginning
and the end, and reports on them. A clone asks its source whether there are messages of the subjects at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.workers import gather_some
from jsbackup.engine.read.consume import Row, rows_as_batch
from jsbackup.errors import IntegrityError, KeyUnavailable, NatsPermissionDenied, PlanRefused
from jsbackup.planning.model import Action, RestoreOptions, RestorePlan
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.masking import about_masks, about_nothing_kept, about_unseen, are_for, unseen
from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.archiving import read_stream
from jsbackup.transforms.batches import MessageBatch
from jsbackup.transforms.mask import Mask, MaskCount
from jsbackup.transforms.reshape import Reshape, ReshapeTally

__all__ = ["refuse_absent", "sample_live", "sample_stored"]

_WHOLE_BYTES = 4 << 20  # streams up to this size are read completely
_MESSAGES = 1000  # read at either end of a longer one
_LIVE_MESSAGES = 20  # requested one by one, for each mask
_AT_ONCE = 32
_NO_SECRET = bytes(32)  # values are only counted
_LATER = "The restore is refused if that holds for all messages; check its path and its subjects."


@dataclass(frozen=True, slots=True)
class _Sample:
    """The result for the messages that were read; `whole`: they are all that a cut keeps."""

    came: int
    kept: int
    whole: bool
    masked: MaskCount = field(default_factory=MaskCount)


def sample_stored(objects: Objects, manifest: Manifest, plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """Return the plan with what masks and filters would do to the streams of a backup. Raises StoreError.

    Unreadable objects are reported elsewhere.
    """
    if not (options.reshape.masks or options.reshape.subjects):
        return plan
    entries = {entry.name: entry for entry in manifest.streams}
    samples: dict[str, _Sample] = {}
    refusals: list[Finding] = []
    for action in plan.actions:
        name = action.entry.name
        try:
            samples[name] = _looked_at(objects, entries[name], action.reshape)
        except PlanRefused as error:
            refusals.append(Finding(name, Rule.MASK_UNREADABLE, error.message, error.hint or ""))
        except (IntegrityError, KeyUnavailable):
            continue
    whole = [sample for sample in samples.values() if sample.whole]
    if len(whole) == len(plan.actions) and any(sample.kept for sample in whole) and not _is_aimless(plan):
        masks = unseen(options.reshape.masks.masks, [sample.masked for sample in whole])
        refusals += () if options.mask_may_miss else about_unseen(masks, may_miss=False)
    return _with_samples(plan, samples, refusals)


def _looked_at(objects: Objects, entry: StreamBackup, reshape: Reshape) -> _Sample:
    segments = segments_within(entry, reshape.cut)
    whole = sum(ref.bytes for ref in segments) <= _WHOLE_BYTES
    tally = ReshapeTally()
    parts = [segments] if whole else [segments[:1], segments[-1:]][: len(segments)]
    for number, part in enumerate(parts, start=1):
        batches = read_stream(objects, replace(entry, segments=part))
        enough = None if whole else _MESSAGES * number
        for _ in reshape.apply(_until(batches, enough, tally), stream=entry.name, secret=_NO_SECRET, tally=tally):
            pass
    return _Sample(tally.came.messages, tally.kept.messages, whole, tally.masked)


def _until(batches: Iterable[MessageBatch], enough: int | None, tally: ReshapeTally) -> Iterator[MessageBatch]:
    """Yield the batches until `enough` messages have come, or all."""
    for batch in batches:
        if enough is None:
            yield batch
            continue
        left = enough - tally.came.messages
        yield batch.slice(0, left)
        if batch.num_rows >= left:
            return


async def refuse_absent(js: JetStream, manifest: Manifest, plan: RestorePlan, options: RestoreOptions) -> RestorePlan:
    """Return the plan of a clone, refused if its source has no message of the named subjects.

    Raises NatsError.
    """
    reshape, refusals = options.reshape, list(plan.refusals)
    filled = [entry for entry in manifest.streams if entry.captured.messages and _is_planned(plan, entry.name)]
    if reshape.subjects is not None and not options.allow_empty:
        patterns = reshape.subjects.patterns
        for entry, found in zip(filled, await _of_all(filled, patterns, js), strict=True):
            if not found:
                refusals.append(about_nothing_kept(entry.name, entry.captured.messages, may_be_empty=False))
    if filled and not options.mask_may_miss and not _is_aimless(plan):
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
            for _ in action.reshape.apply([batch], stream=action.entry.name, secret=_NO_SECRET, tally=tally):
                pass
        except PlanRefused as error:
            refusals.append(Finding(action.entry.name, Rule.MASK_UNREADABLE, error.message, error.hint or ""))
            continue
        samples[action.entry.name] = _Sample(tally.came.messages, tally.kept.messages, False, tally.masked)
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


def _is_planned(plan: RestorePlan, stream: str) -> bool:
    return any(action.entry.name == stream for action in plan.actions)


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
    name, looked_at = action.entry.name, f"the {sample.came:,} messages that were looked at"
    if not sample.kept:
        hint = "" if action.may_be_empty else "The restore is refused if that holds for all messages."
        yield Finding(name, Rule.SAMPLED, f"none of {looked_at} would be kept", hint)
    for number, mask in enumerate(action.reshape.masks.masks):
        values, seen = sample.masked.values.get(number, 0), sample.masked.seen.get(number, 0)
        if values:
            yield Finding(name, Rule.SAMPLED, f"{mask} masks {values:,} values in {seen:,} of {looked_at}")
        elif seen:
            reason = f"{mask} masks nothing in {seen:,} of {looked_at}that it selects"
            yield Finding(name, Rule.SAMPLED, reason, "" if action.may_miss else _LATER)
        else:
            yield Finding(name, Rule.SAMPLED, f"{mask} selects none of {looked_at}")
    if sample.masked.unmasked and are_for(action.reshape.masks.masks, action.entry.config):
        reason = f"{sample.masked.unmasked:,} of {looked_at} stay unmasked: no mask selects their subjects"
        yield Finding(name, Rule.SAMPLED, reason)
