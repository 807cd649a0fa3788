"""The results of masks and selections, and whether they are plausible.

A mask with a misspelt path masks nothing, so data that it should hide would be copied; a misspelt filter keeps nothing.
Both are refusals, unless the user confirms them.

A mask is checked stream by stream, by the messages that it applies to: those with its subjects and a payload that can
be masked. One that applied to no message of any stream is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from jsbackup.model import JsonObject
from jsbackup.planning.rules import Finding, Rule
from jsbackup.transforms.follow import subjects_of
from jsbackup.transforms.mask import Mask, MaskCount
from jsbackup.transforms.subjects import overlaps

__all__ = ["about_masks", "about_nothing_kept", "about_unseen", "are_for", "unseen"]

_LOOK = "Look at its path and its spelling; with --mask-may-miss a mask may mask nothing."
_SUBJECTS = "Look at its subjects; with --mask-may-miss a mask may mask nothing."
_EMPTY = "Look at what is to be kept; with --allow-empty it is restored without messages."


def about_masks(
    stream: str, config: JsonObject, masks: Sequence[Mask], count: MaskCount, *, may_miss: bool
) -> Iterator[Finding]:
    """Yield findings on the effect of masks on the messages of a stream with this config, after all were read."""
    for number, mask in enumerate(masks):
        values, seen = count.values.get(number, 0), count.seen.get(number, 0)
        if values:
            yield Finding(
                stream, Rule.MASKED, f"{values:,} values are masked by {mask}, which is for {seen:,} messages"
            )
        elif seen and may_miss:
            reason = f"nothing is masked by {mask} in the {seen:,} messages that it is for"
            yield Finding(stream, Rule.MASKED_NOTHING, reason)
        elif seen:
            reason = f"has {seen:,} messages that --mask {mask} is for, and it masks nothing in them"
            yield Finding(stream, Rule.MASK_MISSED, reason, _LOOK)
    if count.unmasked and are_for(masks, config):
        yield Finding(
            stream, Rule.UNMASKED, f"{count.unmasked:,} messages are as they were: no mask is for their subjects"
        )
    if count.dropped:
        yield Finding(stream, Rule.UNMASKABLE, f"{count.dropped:,} messages that cannot be masked are left out")
    if count.kept:
        yield Finding(stream, Rule.UNMASKABLE, f"{count.kept:,} messages are kept that some mask cannot read")


def are_for(masks: Sequence[Mask], config: JsonObject) -> bool:
    """Return whether one of the masks may apply to messages of a stream with this config."""
    return any(overlaps(mask.subjects, pattern) for mask in masks for pattern in subjects_of(config))


def unseen(masks: Sequence[Mask], counts: Iterable[MaskCount]) -> list[Mask]:
    """Return the masks that applied to no message of any stream."""
    found = list(counts)
    return [
        mask for number, mask in enumerate(masks) if not any(count.seen.get(number) or count.dropped for count in found)
    ]


def about_unseen(masks: Iterable[Mask], *, may_miss: bool) -> Iterator[Finding]:
    """Yield findings on such masks."""
    for mask in masks:
        reason = f"--mask {mask}: no message that is kept is one that it could mask"
        yield Finding("", Rule.MASKED_NOTHING if may_miss else Rule.MASK_MISSED, reason, "" if may_miss else _SUBJECTS)


def about_nothing_kept(stream: str, had: int, *, may_be_empty: bool) -> Finding:
    """Return the finding for a selection that keeps none of the `had` messages of a stream."""
    if may_be_empty:
        return Finding(stream, Rule.NOTHING_KEPT, f"none of its {had:,} messages is kept: it will be empty")
    return Finding(stream, Rule.KEEPS_NOTHING, f"would keep none of its {had:,} messages", _EMPTY)
