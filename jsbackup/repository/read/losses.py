"""What is lost of a backup: of salvaged streams, of lists of segments, of objects; and a restore of the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from jsbackup.errors import IntegrityError, StoreError, UnsupportedError
from jsbackup.model import ConsumerState, Fidelity
from jsbackup.readable import in_short
from jsbackup.repository.checks.verify import Checker, Level, Problem, ProblemKind, verify_backup
from jsbackup.repository.manifest import ConsumerBackup, Losses, LostSpan, Manifest, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import BrokenPage

__all__ = [
    "HOW_TO_LIST",
    "BrokenLists",
    "Salvage",
    "about_losses",
    "broken_lists",
    "describe_losses",
    "find_lost",
    "refuse_broken",
    "refuse_unlisted",
    "refuse_unreadable",
    "salvage",
]


# --- losses ---
#
# What is lost of a salvaged stream, in sentences: the same in every command.

_MOST_SPANS = 10
_MOST_SUBJECTS = 10


def describe_losses(lost: Losses) -> Iterator[str]:
    """Yield sentences with the sequences, and the subjects as far as they are known."""
    certain = [span for span in lost.spans if span.certain]
    if certain:
        count = sum(span.messages or 0 for span in certain)
        lead = f"{_messages(count)} {'is' if count == 1 else 'are'}"
        yield f"{lead} lost: {_sequences(certain)}{_subjects(lost)}"
    doubtful = [span for span in lost.spans if not span.certain and span.messages is not None]
    if doubtful:
        count = sum(span.messages or 0 for span in doubtful)
        yield f"up to {_messages(count)} may be lost, unless they had been deleted: {_sequences(doubtful)}"
    for span in lost.spans:
        if span.messages is None:
            yield f"what was stored from sequence {span.first_seq} on, if anything was, is lost"


def about_losses(lost: Losses) -> str:
    """Return half a sentence: how much is lost; "" if nothing is."""
    certain = sum(span.messages or 0 for span in lost.spans if span.certain)
    doubtful = sum(span.messages or 0 for span in lost.spans if not span.certain)
    parts = [f"{_messages(certain)} that it had"] if certain else []
    parts += [f"up to {doubtful:,} that it may have had"] if doubtful else []
    if not parts and lost.spans:
        parts = ["what was stored at its end, if anything was"]
    return " and ".join(parts)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


def _sequences(spans: list[LostSpan]) -> str:
    shown = ", ".join(map(_span, spans[:_MOST_SPANS]))
    more = len(spans) - _MOST_SPANS
    plural = len(spans) > 1 or spans[0].first_seq != spans[0].last_seq
    return f"sequence{'s' if plural else ''} {shown}" + (f" and {more:,} more ranges" if more > 0 else "")


def _span(span: LostSpan) -> str:
    if span.last_seq is None or span.last_seq == span.first_seq:
        text = str(span.first_seq)
    else:
        text = f"{span.first_seq} to {span.last_seq}"
        if span.messages is not None and span.messages != span.last_seq - span.first_seq + 1:
            text += f" ({span.messages:,} of them)"
    return text


def _subjects(lost: Losses) -> str:
    known = [f"{subject} ({count:,})" for subject, count in lost.subjects.items()]
    if not known:
        seen = dict.fromkeys(subject for span in lost.spans if span.certain for subject in span.subjects)
        known = [f"{subject}, as it seems" for subject in seen]
    if not known:
        return ""
    return f"; subject{'s' if len(known) > 1 else ''} {in_short(known, most=_MOST_SUBJECTS)}"


# --- broken lists ---
#
# Streams whose list of segments cannot be read whole, because a page is missing or damaged, and streams that a
# damaged page lists. What works on several streams goes on without them, and names them.

BrokenLists: TypeAlias = Mapping[str, IntegrityError | StoreError | UnsupportedError]

HOW_TO_LIST = "Restore it from another backup, or its list from a copy of the repository with 'jsbackup repair --from'."
_MOST_SEGMENTS = 10_000
_HINT = "See 'jsbackup verify' for all that is lost. 'jsbackup repair' restores pages from a copy of the repository."


def broken_lists(streams: Iterable[StreamBackup]) -> BrokenLists:
    """Return these streams by name, each with the error of its first such page. Reads all pages of `streams`.

    Raises KeyUnavailable.
    """
    broken_streams: dict[str, IntegrityError | StoreError | UnsupportedError] = {}
    for stream in streams:
        broken = next((part for part in stream.walk() if isinstance(part, BrokenPage)), None)
        if broken is not None:
            page, error = broken.page, broken.error
            broken_streams[stream.name] = error.with_message(
                f"stream {stream.name} cannot be read: the list of its segments for sequences {page.first_seq} to "
                f"{page.last_seq} is broken: {error.message}"
            ).with_hint(_HINT)
    return broken_streams


def refuse_broken(broken: BrokenLists, *, of: int) -> None:
    """Raise the error of the first of the streams if all are broken; `of` is how many there are."""
    if broken and len(broken) == of:
        raise next(iter(broken.values()))


def refuse_unreadable(streams: Sequence[StreamBackup]) -> None:
    """Raise the error of the first of the streams if the lists of all are broken. Long lists are not looked through:
    what reads them tells it, and perhaps reads only a part.
    """
    # Measured: 8 s of a processor for 300,000 segments.
    if sum(len(stream.segments) for stream in streams) <= _MOST_SEGMENTS:
        refuse_broken(broken_lists(streams), of=len(streams))


def refuse_unlisted(manifest: Manifest, pattern: str) -> None:
    """Raise IntegrityError if a stream that was not found may be one of those that cannot be listed."""
    if manifest.unlisted:
        lost = manifest.unlisted[0]
        raise IntegrityError(
            f"backup {manifest.id} may have {pattern} among those that cannot be listed, such as {lost.words}: "
            f"{lost.reason}",
            hint=HOW_TO_LIST,
        )


# --- salvage ---
#
# The rest of a backup with lost objects: a manifest without them, for a restore of the rest.
#
# The messages of a lost segment are treated as deleted: the stream keeps its last sequence, and begins with the first
# message that is left. A consumer whose pending set is lost keeps its ack floor, so messages above it are redelivered.
# A stream kept verbatim that lost a piece, and one whose manifest contradicts itself, are *beyond* salvage.
#
# Objects are lost if they are missing, damaged, or permanently unreadable. Objects that a later attempt, another key or
# a newer tool can read are not lost, but an error.


@dataclass(frozen=True, slots=True)
class Salvage:
    """`manifest` has all streams, without the lost objects. `lost` and `beyond` are by stream, disjoint.

    The problems of a stream are in order of sequences; objects without messages come last.
    """

    manifest: Manifest
    lost: Mapping[str, tuple[Problem, ...]]
    beyond: Mapping[str, Problem]


def find_lost(objects: Objects, manifest: Manifest, checker: Checker | None = None) -> list[Problem]:
    """Return everything that is lost. Reads and decodes the whole backup, or has `checker` do so.

    Raises:
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        UnsupportedError: an object needs a newer tool.
        StoreError: the store does not answer, at least for now.
    """
    lost = []
    for problem in verify_backup(objects, manifest, Level.DATA, checker=checker):
        cause = problem.cause
        if isinstance(cause, UnsupportedError) or (isinstance(cause, StoreError) and objects.store.is_temporary(cause)):
            raise cause
        lost.append(problem)
    return lost


def salvage(manifest: Manifest, problems: Iterable[Problem]) -> Salvage:
    """Return the backup without the objects that `problems` report as lost."""
    by_stream: dict[str, list[Problem]] = {}
    for problem in problems:
        by_stream.setdefault(problem.stream, []).append(problem)
    lost: dict[str, tuple[Problem, ...]] = {}
    beyond: dict[str, Problem] = {}
    streams = []
    for stream in manifest.streams:
        broken = by_stream.get(stream.name, [])
        worst = next((problem for problem in broken if problem.kind is ProblemKind.INCONSISTENT), None)
        if broken and stream.opaque:
            worst = worst or broken[0]
        if worst is not None:
            beyond[stream.name] = worst
        elif broken:
            lost[stream.name] = tuple(sorted(broken, key=lambda problem: (not problem.messages, problem.first_seq)))
            stream = _without(stream, {problem.key for problem in broken})
        streams.append(stream)
    return Salvage(replace(manifest, streams=tuple(streams)), lost, beyond)


def _without(stream: StreamBackup, keys: Collection[str]) -> StreamBackup:
    segments = tuple(ref for ref in stream.walk() if isinstance(ref, SegmentRef) and ref.key not in keys)
    total, captured = total_of(segments), stream.captured
    left = replace(
        captured,
        messages=total.messages,
        bytes=total.bytes,
        first_seq=total.first_seq,
        last_seq=total.last_seq,
    )
    # The reported state may be older than the capture, after whose end the stream has to continue.
    state = replace(stream.state, last_seq=max(stream.state.last_seq, captured.last_seq))
    return replace(
        stream,
        segments=segments,
        captured=left,
        digest=total.digest,
        state=state,
        consumers=tuple(_known(consumer, keys) for consumer in stream.consumers),
    )


def _known(consumer: ConsumerBackup, keys: Collection[str]) -> ConsumerBackup:
    """Return a consumer without its pending set if that is lost."""
    if consumer.pending is None or consumer.pending.key not in keys or consumer.state is None:
        return consumer
    floor = consumer.state.ack_floor
    return replace(
        consumer,
        state=ConsumerState(delivered=floor, ack_floor=floor),
        pending=None,
        fidelity=Fidelity.FLOOR,
        reason="its pending acknowledgements are lost; messages above its ack floor are redelivered",
    )
