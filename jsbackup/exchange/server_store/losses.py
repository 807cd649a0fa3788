"""What is lost of a stream in a damaged store: exactly, as far as `index.db` tells.

With an index as new as the blocks, every message that it has and that was not found is lost. An older one may still
have messages that were deleted after it was written; then a message that is not found in an intact block was removed by
a limit, if the stream has any, and one of a damaged or missing block may have been. What was stored after it was
written, or without any index, is known by the gaps at damaged records only: the messages between the sequences before
and after them may have been there. And if the last block is missing, only consumers may tell: by what they have got.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jsbackup.exchange.server_store.store_consumers import StoreConsumers
from jsbackup.exchange.server_store.survey import StoreSurvey
from jsbackup.formats.archive.index_db import IndexBlock
from jsbackup.formats.server_store.store_index import StoreIndex
from jsbackup.repository.manifest import LostSpan

__all__ = ["find_losses", "lost_subjects"]

# A block that lost more ranges than this is described by one span, from the first to the last.
_MOST_RANGES = 100
_MOST_SUBJECTS = 1000


def find_losses(survey: StoreSurvey, consumers: StoreConsumers) -> tuple[LostSpan, ...]:
    """Return the spans that are lost, in order of sequences. What `consumers` have got was there."""
    spans: list[LostSpan] = []
    after = 0
    if survey.index is not None:
        after = survey.index.state.last_seq
        for block in survey.index.blocks:
            spans += _of_block(survey, survey.index, block)
    spans += (
        LostSpan(sequence, sequence, 1, True, f"msgs/{number}.blk is damaged")
        for sequence, number in survey.doubtful.items()
        if sequence > after and sequence not in survey.buried
    )
    spans += _at_holes(survey, after)
    spans += _between_blocks(survey, after)
    if _lost_its_end(survey) and all(span.last_seq is not None for span in spans):
        assert survey.index is not None
        first, number = max(after, survey.last_seq) + 1, survey.index.last_block
        spans.append(LostSpan(first, None, None, False, _cause(survey, number)))
    if survey.index is None and not survey.blocks:
        spans.append(LostSpan(1, None, None, False, "there are neither blocks nor an index.db"))
    elif not survey.fresh and all(span.last_seq is not None for span in spans):
        last, (got, name) = max(after, survey.last_seq), consumers.got
        if got > last:
            cause = f"obs/{name}/o.dat: consumer {name} had got messages up to sequence {got}"
            spans.append(LostSpan(last + 1, None, None, False, cause))
    return tuple(sorted(spans, key=lambda span: span.first_seq))


def lost_subjects(survey: StoreSurvey, read: Mapping[bytes, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return of how many messages each subject lost, and of how many it has too many: a subject was damaged.

    `read` has the number of messages of each subject that were read. Empty if that is not known exactly.
    """
    index = survey.index
    if index is None or index.subjects is None or not survey.fresh:
        return {}, {}
    lost = ((subject, total - read.get(subject, 0)) for subject, total in index.subjects.items())
    fewer = sorted(((subject, count) for subject, count in lost if count > 0), key=lambda one: (-one[1], one[0]))
    more = ((subject, count - index.subjects.get(subject, 0)) for subject, count in read.items())
    return (
        {_text(subject): count for subject, count in fewer[:_MOST_SUBJECTS]},
        {_text(subject): count for subject, count in more if count > 0},
    )


def _text(subject: bytes) -> str:
    return subject.decode("utf-8", "backslashreplace")


def _of_block(survey: StoreSurvey, index: StoreIndex, block: IndexBlock) -> list[LostSpan]:
    cut = block.number == index.last_block and _lost_its_end(survey)
    if not survey.fresh and not cut and block.number in survey.intact and survey.limited:
        return []
    missing = list(_missing(survey, index, block))
    if not missing:
        return []
    cause = _cause(survey, block.number)
    if not survey.fresh and block.number in survey.intact:
        cause = f"msgs/{block.number}.blk {'is cut short' if cut else 'lacks them: deleted since, or lost'}"
    if len(missing) > _MOST_RANGES:
        count = sum(last - first + 1 for first, last in missing)
        return [LostSpan(missing[0][0], missing[-1][1], count, survey.fresh, cause)]
    return [
        LostSpan(first, last, last - first + 1, survey.fresh, cause, _claimed(survey, block.number, first, last))
        for first, last in missing
    ]


def _lost_its_end(survey: StoreSurvey) -> bool:
    """Return whether the record that was the last one for the index is gone, and the last block with it, or its end."""
    index = survey.index
    if index is None or survey.fresh or survey.has_last_record:
        return False
    return max(survey.blocks, default=0) <= index.last_block and bool(index.last_block)


def _missing(survey: StoreSurvey, index: StoreIndex, block: IndexBlock) -> Iterator[tuple[int, int]]:
    """Yield the ranges of sequences that the index has in a block and that were not found."""
    for first, last in index.alive(block):
        at, there = first, survey.found.within(first, last)
        for found in [*there, last + 1] if len(there) <= last - first else ():
            if found > at:
                yield from _without_buried(survey, at, found - 1)
            at = found + 1


def _without_buried(survey: StoreSurvey, first: int, last: int) -> Iterator[tuple[int, int]]:
    at = first
    for gone in [*survey.buried.within(first, last), last + 1]:
        if gone > at:
            yield at, gone - 1
        at = gone + 1


def _cause(survey: StoreSurvey, number: int) -> str:
    flaws = [flaw for flaw in survey.flaws if flaw.block == number]
    if any(flaw.path.endswith(".key") for flaw in flaws):
        return next(f"{flaw.path} {flaw.problem}" for flaw in flaws if flaw.path.endswith(".key"))
    if number not in survey.blocks:
        return f"msgs/{number}.blk is missing"
    return f"msgs/{number}.blk {'is damaged' if flaws else 'lacks them'}"


def _claimed(survey: StoreSurvey, number: int, first: int, last: int) -> tuple[str, ...]:
    """Return the subjects of damaged records that seem to be of these messages."""
    claims = (one.hole.claim for one in survey.holes if one.block == number and one.hole.claim is not None)
    return tuple(dict.fromkeys(subject for sequence, subject in claims if first <= sequence <= last))


# --- what no index tells ---


def _at_holes(survey: StoreSurvey, after: int) -> Iterator[LostSpan]:
    for one in survey.holes:
        hole = one.hole
        first = max(hole.after_seq, after) + 1
        last = one.before_seq - 1 if one.before_seq else None
        cause = f"msgs/{one.block}.blk is damaged"
        if last is None:
            if not survey.fresh:
                yield LostSpan(first, None, None, False, cause)
            continue
        most = sum(stop - start + 1 for start, stop in _without_buried(survey, first, last))
        if most > 0:
            subjects = _claimed(survey, one.block, first, last)
            yield LostSpan(first, last, min(most, 1) if hole.claim else most, False, cause, subjects)


def _between_blocks(survey: StoreSurvey, after: int) -> Iterator[LostSpan]:
    """Yield the sequences before the first block, and between blocks whose numbers do not follow each other, where no
    index tells why. What limits remove is at the beginning.
    """
    known = survey.index.last_block if survey.index is not None else 0
    first_of_all = min((first for first, _ in survey.ends.values()), default=0)
    if survey.index is None and not survey.limited and survey.blocks[:1] > [1] and first_of_all > 1:
        gone = first_of_all - 1
        yield LostSpan(1, gone, gone, False, "msgs/1.blk is not there: deleted, or lost")
    for before, number in zip(survey.blocks, survey.blocks[1:], strict=False):
        absent = max(before, known) + 1
        ends = survey.ends.get(before), survey.ends.get(number)
        if absent >= number or ends[0] is None or ends[1] is None:
            continue
        first, last = max(ends[0][1], after) + 1, ends[1][0] - 1
        most = sum(stop - start + 1 for start, stop in _without_buried(survey, first, last)) if first <= last else 0
        if most:
            yield LostSpan(first, last, most, False, f"msgs/{absent}.blk is not there: deleted, or lost")
