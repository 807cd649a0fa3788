"""The rest of a backup with lost objects: a manifest without them, for a restore of the rest.

The messages of a lost segment are treated as deleted: the stream keeps its last sequence, and begins with the first
message that is left. A consumer whose pending set is lost keeps its ack floor, so messages above it are redelivered. A
stream kept verbatim that lost a piece, and one whose manifest contradicts itself, are *beyond* salvage.

Objects are lost if they are missing, damaged, or permanently unreadable. Objects that a later attempt, another key or a
newer tool can read are not lost, but an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from jsbackup.errors import StoreError, UnsupportedError
from jsbackup.model import ConsumerState, Fidelity
from jsbackup.repository.checks.verify import Checker, Level, Problem, ProblemKind, verify_backup
from jsbackup.repository.manifest import ConsumerBackup, Manifest, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import Objects

__all__ = ["Salvage", "find_lost", "salvage"]


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
    found = []
    for problem in verify_backup(objects, manifest, Level.DATA, checker=checker):
        cause = problem.cause
        if isinstance(cause, UnsupportedError) or (isinstance(cause, StoreError) and objects.store.is_temporary(cause)):
            raise cause
        found.append(problem)
    return found


def salvage(manifest: Manifest, problems: Iterable[Problem]) -> Salvage:
    """Return the backup without the objects that `problems` report as lost."""
    by_stream: dict[str, list[Problem]] = {}
    for problem in problems:
        by_stream.setdefault(problem.stream, []).append(problem)
    lost: dict[str, tuple[Problem, ...]] = {}
    beyond: dict[str, Problem] = {}
    streams = []
    for stream in manifest.streams:
        found = by_stream.get(stream.name, [])
        worst = next((problem for problem in found if problem.kind is ProblemKind.INCONSISTENT), None)
        if found and stream.opaque:
            worst = worst or found[0]
        if worst is not None:
            beyond[stream.name] = worst
        elif found:
            lost[stream.name] = tuple(sorted(found, key=lambda problem: (not problem.messages, problem.first_seq)))
            stream = _without(stream, {problem.key for problem in found})
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
