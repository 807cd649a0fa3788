"""Streams to be replaced: count the target's messages that the backup lacks, or that the cut or filter leaves out.

They would be lost, so the plan is refused unless the user confirms that. What a selection leaves out is counted at the
target, by its own subjects and sequences. What the backup lacks is counted by sequences, if the stream is still the one
that was backed up, or was restored from this backup: then nothing but later messages. Otherwise the stream is read and
compared with the backup, or with the source of a clone; and always where a part of the backup is lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from jsbackup.engine.link.concurrency import in_thread
from jsbackup.engine.link.jetstream import MAX_DELETED, JetStream
from jsbackup.engine.read.consume import read_messages
from jsbackup.engine.read.increment import PresentSequences
from jsbackup.engine.read.whole_stream import describe_stream
from jsbackup.engine.restore.proof import read_back
from jsbackup.errors import ApiError, FormatError, IntegrityError, KeyUnavailable, NatsPermissionDenied, PlanRefused
from jsbackup.formats.header_block import fields
from jsbackup.planning.forecast import left_out_reason
from jsbackup.planning.model import Action, LeftOut
from jsbackup.planning.plan import Decision
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.selection.subset import share_of
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.protocol.responses import lacks_stream
from jsbackup.readable import format_count
from jsbackup.repository.checks.verify import Problem
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.diff import AlongSegments, Side
from jsbackup.repository.read.segments import SegmentReader
from jsbackup.transforms.batches import DATA, HEADERS, SEQUENCE, SUBJECT, TIMESTAMP
from jsbackup.transforms.copy_positions import MARK, mark_of
from jsbackup.transforms.cut import AtSequence, Cut, Edge, KeptShare
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.follow import subjects_of
from jsbackup.transforms.reshape import Reshape

__all__ = ["count_left_out", "refuse_remains"]

_SUBJECTS = {"--subject": "subject", "--exclude-subject": "exclude_subject"}
_REMAINS = (
    "'jsbackup repair' may bring back what is lost, from a copy or from the server. Restore the rest under another "
    "name with --rename; --replace-with-part replaces the stream anyway."
)


async def count_left_out(js: JetStream, decision: Decision, held: Objects | JetStream) -> Decision:
    """Return the decision, knowing the number of messages of each replaced stream that what replaces it leaves out by
    their sequences and subjects, or lacks. `held` has the messages of the backup, or is the source of a clone.

    Nothing is changed. Raises NatsError and StoreError.
    """
    reshape, entries = decision.shapes.options.reshape, decision.entries
    counted: dict[str, LeftOut] = {}
    for action in decision.plan.actions:
        live, entry = decision.target.streams.get(action.name), entries[action.entry.name]
        if not action.replaces or live is None or not live.state.messages:
            continue
        left_out = LeftOut(0, 0, True)
        if reshape.cut or reshape.filters.by_subject:
            left_out = await _left_out(js, entry, action, live, reshape=reshape)
        if not left_out.messages and entry.archive_format.has_messages:
            left_out = await _lacking(js, action, entry, live, held=held)
        if left_out.messages:
            counted[entry.name] = left_out
    return decision.knowing(replace(decision.facts, left_out=counted)) if counted else decision


async def _lacking(
    js: JetStream, action: Action, entry: StreamBackup, live: StreamInfo, *, held: Objects | JetStream
) -> LeftOut:
    """Return how many messages of the existing stream the backup lacks: all of them, if they cannot be compared."""
    try:
        later = await _later(js, entry, live)
        if later is not None and (later.exact or later.messages):
            return later
        return await _compared(js, action, entry, live, held=held)
    except NatsPermissionDenied:
        return LeftOut(live.state.messages, live.state.messages, False)
    except (IntegrityError, KeyUnavailable):  # objects are checked elsewhere, see `refuse_remains`
        return LeftOut(0, live.state.messages, True)
    except ApiError as error:
        if not lacks_stream(error):
            raise
        return LeftOut(0, live.state.messages, True)  # another command has just deleted it


def _is_same(entry: StreamBackup, live: StreamInfo) -> bool:
    """Return whether it seems to be the stream that was backed up, or one restored from it (as `read/sources.py`)."""
    return live.created == entry.created or 0 < live.state.first_ns == entry.state.first_ns


async def _later(js: JetStream, entry: StreamBackup, live: StreamInfo) -> LeftOut | None:
    """Return how many messages came after the backup, if the stream is the one that was backed up, so that it can only
    have lost messages and got new ones; else None. The last message tells whether it has lost its end, and given its
    sequences again.
    """
    state, then = live.state, entry.state
    if not _is_same(entry, live) or entry.remarks or state.first_seq < then.first_seq:
        return None
    if state.last_seq < entry.last_seq or entry.captured.last_seq != then.last_seq:
        return None
    after = await _after(js, live, entry.last_seq)
    if state.messages - after.messages > entry.captured.messages:
        return None
    if not entry.captured.messages:
        return after
    try:
        last = await js.message(live.name, then.last_seq)
    except NatsPermissionDenied:  # it is compared, as a proof reads it
        return None
    return after if last is not None and last.timestamp_ns == then.last_ns else None


async def _after(js: JetStream, live: StreamInfo, sequence: int) -> LeftOut:
    """Return how many messages the stream has after a sequence."""
    info = await describe_stream(js, live.name)
    state, exact = info.state, info.deleted is not None or not info.state.deleted
    after = PresentSequences(state, info.deleted or ()).count(sequence + 1, state.last_seq)
    return LeftOut(after if exact else max(0, after - state.deleted), live.state.messages, exact)


async def _compared(
    js: JetStream, action: Action, entry: StreamBackup, live: StreamInfo, *, held: Objects | JetStream
) -> LeftOut:
    """Compare the whole stream with its backup, or with the source of a clone."""
    if isinstance(held, JetStream):
        lacking = await _only_at(js, live, held, entry.name, by_time=action.reshape.renumber)
        return LeftOut(lacking, live.state.messages, True)
    reader = SegmentReader(held)
    if action.alters:  # by sequence and time, which stay as they are; numbered anew, by time alone
        ours = _messages(js, await js.stream(live.name))
        lacking = await _count_lacking(ours, _stored(reader, entry), by_time=action.reshape.renumber)
        return LeftOut(lacking, live.state.messages, True)

    def sink() -> AlongSegments:
        return AlongSegments(reader, entry.segments, live.state.last_seq, Side.A, named=0)

    _, along = await read_back(js, live.name, sink, ignored)
    compared = await in_thread(along.finish)
    return LeftOut(compared.added + compared.changed, live.state.messages, True)


class _Message(NamedTuple):
    """A message as far as it is compared. One copied from the replaced stream has its sequence there, and the time of
    the copy, which is not before its own.
    """

    sequence: int
    time_ns: int
    content: object = None
    is_copy: bool = False


async def _count_lacking(
    ours: AsyncGenerator[_Message, None], theirs: AsyncGenerator[_Message, None], *, by_time: bool
) -> int:
    """Count the messages of `ours` that `theirs` lacks: by sequence and time, or `by_time` alone. Both are in order;
    copies that are not count as lacking.
    """

    def place(message: _Message) -> int:
        return message.time_ns if by_time else message.sequence

    count = 0
    async with aclosing(ours), aclosing(theirs):
        other = await anext(theirs, None)
        async for message in ours:
            while other is not None and place(other) < place(message):
                other = await anext(theirs, None)
            if other is None or place(other) != place(message):
                count += 1
            elif other.is_copy:
                count += other.time_ns < message.time_ns or other.content != message.content
            else:
                count += other.time_ns != message.time_ns
    return count


async def _stored(reader: SegmentReader, entry: StreamBackup) -> AsyncGenerator[_Message, None]:
    """Yield sequence and time of each message in the backup."""
    batches = (batch for ref in entry.segments for batch in reader.read(ref))
    while (batch := await in_thread(next, batches, None)) is not None:
        for sequence, time_ns in zip(*(batch.column(name).to_pylist() for name in (SEQUENCE, TIMESTAMP)), strict=True):
            yield _Message(sequence, time_ns)


async def _only_at(js: JetStream, live: StreamInfo, origin: JetStream, name: str, *, by_time: bool) -> int:
    """Return how many messages a stream has that the stream `name` of `origin` does not have, by sequence and time, or
    `by_time` alone, and has not copied from it as one of its `sources`, either.
    """
    try:
        copies = (await origin.stream(live.name)).created == live.created
    except ApiError as error:
        if not lacks_stream(error):
            raise
        copies = False
    copied, first = (live.name, 0) if copies else ("", live.state.first_seq)
    ours = _messages(js, await js.stream(live.name), whole=copies)
    theirs = _messages(origin, await origin.stream(name), 0 if by_time else first, whole=copies, copied=copied)
    return await _count_lacking(ours, theirs, by_time=by_time)


async def _messages(
    js: JetStream, info: StreamInfo, first: int = 0, *, whole: bool = False, copied: str = ""
) -> AsyncGenerator[_Message, None]:
    """Yield each message of a stream, in order: with its content, if it is read `whole`. Those with the mark of the
    stream `copied` are copies.
    """
    only = {} if whole else {"headers_only": True}
    async with aclosing(read_messages(js, info, ignored, first=first, only=only)) as batches:
        async for batch in batches:
            columns = (SEQUENCE, TIMESTAMP, SUBJECT, HEADERS, DATA)
            for sequence, time_ns, subject, block, data in zip(
                *(batch.column(name).to_pylist() for name in columns), strict=True
            ):
                content = (subject, _fields_kept(block), data) if whole else None
                mark = mark_of(block) if copied and block else None
                if mark is not None and mark[0][0] == copied:
                    yield _Message(mark[1], time_ns, content, is_copy=True)
                else:
                    yield _Message(sequence, time_ns, content)


def _fields_kept(block: bytes | None) -> object:
    """Return the fields of a header block that a copy keeps: all but its mark and what a publisher had expected."""
    try:
        kept = [(field.name, block[field.start : field.stop]) for field in fields(block)] if block else []
    except FormatError:
        return block
    return [field for field in kept if field[0] != MARK and not field[0].startswith(b"Nats-Expected-")]


async def refuse_remains(
    js: JetStream, decision: Decision, lost: Mapping[str, Sequence[Problem]], objects: Objects
) -> Decision:
    """Return the decision, refused where the rest of a damaged backup would replace a stream that has more of it.
    `lost` is what is lost of its streams.
    """
    refusals, entries = [], decision.entries
    for action in decision.plan.actions:
        live, name = decision.target.streams.get(action.name), action.entry.name
        if name not in lost or not action.replaces or live is None or decision.shapes.options.replace_with_part:
            continue
        try:
            lacking = await _compared(js, action, entries[name], live, held=objects)
        except NatsPermissionDenied:
            lacking = LeftOut(live.state.messages, live.state.messages, False)
        if lacking.messages:
            lost_messages = format_count(sum(problem.messages for problem in lost[name]), "message")
            reason = (
                f"{lost_messages} of it are lost in the repository, and the rest {left_out_reason(lacking, 'would be')}"
            )
            refusals.append(Finding(name, Rule.PART_REPLACES, reason, _REMAINS))
    return decision.finding(refusals)


@dataclass(frozen=True, slots=True)
class _Count:
    """How many messages are left out, or at least how many; subjects may be unknown."""

    messages: int
    exact: bool
    subjects: tuple[int, int] | None = None  # those left out, and all


async def _left_out(
    js: JetStream, entry: StreamBackup, action: Action, live: StreamInfo, *, reshape: Reshape
) -> LeftOut:
    held, counts, by = live.state.messages, [], []
    if reshape.filters.by_subject:
        counts.append(await _by_subjects(js, entry, action, reshape.filters))
        by += [option for option, name in _SUBJECTS.items() if getattr(reshape.filters, name)]
    if any(share_of(ref, reshape.cut) is not KeptShare.ALL for ref in parts_of(entry.segments)):
        counts.append(await _by_cut(js, action, live, reshape.cut))
        by += [f"--{name}" for name in reshape.cut.typed]
    counts = [count for count in counts if count.messages] or [_Count(0, True)]
    most = max(counts, key=lambda count: count.messages)
    exact = most.exact and (len(counts) == 1 or most.messages >= held)  # both may leave out the same messages, or not
    subjects = next((count.subjects for count in counts if count.subjects), None)
    removed, of = (None, None) if subjects is None else subjects
    return LeftOut(min(most.messages, held), held, exact, removed, of, " and ".join(by))


async def _by_subjects(js: JetStream, entry: StreamBackup, action: Action, filters: Filters) -> _Count:
    """Count the target's messages whose subjects are not selected."""
    info = await js.stream(action.name)
    excluded = await _of_subjects(js, entry, action, filters.exclude_subject, unknown=(">",))
    if filters.subject:
        selected = await _of_subjects(js, entry, action, filters.subject, unknown=())
        selected = {subject: count for subject, count in selected.items() if subject not in excluded}
        subjects = info.subject_count - len(selected)
        messages = max(info.state.messages - sum(selected.values()), 0)
    else:
        subjects, messages = len(excluded), sum(excluded.values())
    return _Count(messages, True, (subjects, info.subject_count) if subjects > 0 else None)


async def _of_subjects(
    js: JetStream, entry: StreamBackup, action: Action, patterns: Sequence[str], *, unknown: Sequence[str]
) -> dict[str, int]:
    """Return the subjects at the target, with their messages, that these patterns are for; of `unknown` ones where that
    is not known.
    """
    try:
        for maps in (action.reshape.maps, action.reshape.renames.subjects):
            if maps and patterns:
                patterns = maps.select(patterns, subjects_of(entry.config))
    except PlanRefused:
        patterns = unknown
    if action.reshape.obfuscation is not None:
        patterns = [action.reshape.obfuscation.names.subject(pattern) for pattern in patterns]
    counts: dict[str, int] = {}
    for pattern in patterns:
        counts |= await js.subjects(action.name, pattern)
    return counts


async def _by_cut(js: JetStream, action: Action, live: StreamInfo, cut: Cut) -> _Count:
    """Count the target's messages before and after the cut."""
    state = live.state
    try:
        since = 1 if cut.since is None else await _first_at(js, live, cut.since, behind=False)
        until = state.last_seq if cut.until is None else await _first_at(js, live, cut.until, behind=True) - 1
    except NatsPermissionDenied:  # unknown; at least the difference between the two counts
        return _Count(max(state.messages - action.entry.captured.messages, 1), False)
    before = range(state.first_seq, min(since, state.last_seq + 1))
    after = range(max(until + 1, state.first_seq), state.last_seq + 1)
    outside = len(before) + len(after)
    if not state.deleted or not outside:
        return _Count(outside, True)
    if state.deleted <= MAX_DELETED:
        info = await js.stream(action.name, deleted_details=True)
        return _Count(outside - sum(sequence in before or sequence in after for sequence in info.deleted or ()), True)
    return _Count(max(outside - state.deleted, state.messages - action.entry.captured.messages, 1), False)


async def _first_at(js: JetStream, live: StreamInfo, edge: Edge, *, behind: bool) -> int:
    """Return the first sequence at or after an edge (`behind`: after it) of a stream at the target.

    Assumes that times rise with sequences, except where clocks were set back. Raises NatsPermissionDenied.
    """
    if isinstance(edge, AtSequence):
        return edge.sequence + behind
    time_ns = edge.time_ns + behind
    low, high = live.state.first_seq, live.state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        message = await js.next_message(live.name, middle)
        if message is None or message.timestamp_ns >= time_ns:
            high = middle
        else:
            low = message.sequence + 1
    return low
