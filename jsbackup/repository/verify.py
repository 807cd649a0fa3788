"""Is a backup what its manifest says? Three levels, each with all of the ones before.

    manifest   the manifest agrees with itself; every object it names is there, with its size (one listing per stream)
    objects    the SHA-256 of every object
    data       every message decoded: count, sequences, digests; every pending set and opaque piece opened

Fails closed: what cannot be checked is a problem, not a pass. Only a store that cannot even be listed raises. Problems
come one by one, each with the object and the sequences that are lost with it; the rest of the backup is not affected.

`check_manifest` and `check_segment` are plain functions of what they are given and can run as tasks elsewhere.
Header blocks are compared by the digest only, not judged: servers take any bytes for one, and a backup keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import pairwise

from jsbackup.errors import IntegrityError, JsBackupError, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.progress import NullProgress, Progress
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest, ObjectRef, OpaqueRef, SegmentRef, StreamBackup, total_of
from jsbackup.repository.objects import Objects
from jsbackup.repository.opaque import read_piece
from jsbackup.repository.pending import decode_pending
from jsbackup.repository.segments import SegmentReader

__all__ = ["Level", "Problem", "ProblemKind", "check_manifest", "check_segment", "verify_backup"]

AnyRef = SegmentRef | ObjectRef | OpaqueRef

_THREADS = 2


class Level(StrEnum):
    MANIFEST = "manifest"
    OBJECTS = "objects"
    DATA = "data"


class ProblemKind(StrEnum):
    MISSING = "missing"
    UNREADABLE = "unreadable"  # the store's fault, perhaps for now only
    DAMAGED = "damaged"
    INCONSISTENT = "inconsistent"  # the manifest contradicts itself


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where. `first_seq` to `last_seq` (0 if none) are lost, `messages` in number.

    `key` is the object's; for a manifest that contradicts itself, the manifest's. `cause` is what was raised,
    if anything was.
    """

    kind: ProblemKind
    stream: str
    key: str
    problem: str
    first_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    cause: JsBackupError | None = field(default=None, compare=False, repr=False)


def verify_backup(
    objects: Objects, manifest: Manifest, level: Level, *, progress: Progress | None = None, threads: int = _THREADS
) -> Iterator[Problem]:
    """Check one backup and give its problems, in the order of the manifest.

    Each thread holds one object (up to some 100 MB) in memory.

    Raises:
        StoreError: the store cannot be listed, so nothing can be said.
    """
    progress = progress or NullProgress()
    yield from check_manifest(manifest)
    for stream in manifest.streams:
        weights = [_weight(ref) for ref in _refs_of(stream)]
        progress.start(stream.name, sum(size for size, _ in weights), sum(messages for _, messages in weights))
        try:
            yield from _verify_stream(objects, stream, level, progress, threads)
        finally:
            progress.finish(stream.name)


def check_manifest(manifest: Manifest) -> list[Problem]:
    """Whether the numbers of a manifest agree with each other."""
    key = layout.manifest_key(manifest.id)
    return [
        Problem(ProblemKind.INCONSISTENT, stream.name, key, text)
        for stream in manifest.streams
        for text in _contradictions(stream)
    ]


def check_segment(objects: Objects, stream: str, ref: SegmentRef) -> list[Problem]:
    """Whether a segment is stored whole and holds the messages that its reference names. Raises nothing."""
    try:
        for _ in SegmentReader(objects).read(ref):
            pass
    except (IntegrityError, StoreError, UnsupportedError) as error:
        return [_problem(stream, ref, error)]
    return []


def _contradictions(stream: StreamBackup) -> Iterator[str]:
    for before, after in pairwise(stream.segments):
        if after.first_seq <= before.last_seq:
            yield f"segment {after.key} begins before the one ahead of it ends"
    for ref in stream.segments:
        if ref.messages > ref.last_seq - ref.first_seq + 1:
            yield f"segment {ref.key} has more messages than sequences"
    if not stream.opaque:
        total, captured = total_of(stream.segments), stream.captured
        said = (captured.messages, captured.bytes, captured.first_seq, captured.last_seq)
        if said != (total.messages, total.bytes, total.first_seq, total.last_seq):
            yield "the segments do not come to what was captured"
        if total.digest != stream.digest:
            yield "the segments do not come to the digest of the stream"


def _verify_stream(
    objects: Objects, stream: StreamBackup, level: Level, progress: Progress, threads: int
) -> Iterator[Problem]:
    folders = {ref.key.rpartition("/")[0] for ref in _refs_of(stream)}  # one: a manifest names no others
    sizes = {info.key: info.size for folder in folders for info in objects.store.list(f"{folder}/")}
    there: list[AnyRef] = []
    for ref in _refs_of(stream):
        size = sizes.get(ref.key)
        if size == ref.size and level is not Level.MANIFEST:
            there.append(ref)
            continue
        progress.advance(stream.name, *_weight(ref))
        if size is None:
            yield _lost(ProblemKind.MISSING, stream.name, ref, f"object {ref.key} is missing")
        elif size != ref.size:
            text = f"object {ref.key} should have {ref.size} bytes and has {size}"
            yield _lost(ProblemKind.DAMAGED, stream.name, ref, text)
    checks = [partial(_check_object, objects, stream.name, ref, level) for ref in there]
    for ref, problems in zip(there, _in_order(checks, threads), strict=True):
        progress.advance(stream.name, *_weight(ref))
        yield from problems


def _check_object(objects: Objects, stream: str, ref: AnyRef, level: Level) -> list[Problem]:
    if level is Level.DATA and isinstance(ref, SegmentRef):
        return check_segment(objects, stream, ref)
    try:
        if level is Level.DATA and isinstance(ref, OpaqueRef):
            read_piece(objects, ref)
        else:
            data = objects.fetch_stored(ref.key, ref.size, ref.sha256)
            if level is Level.DATA:
                decode_pending(objects.sealing.unseal(ref.key, data))
    except (IntegrityError, StoreError, UnsupportedError) as error:
        return [_problem(stream, ref, error)]
    return []


def _in_order(checks: Sequence[Callable[[], list[Problem]]], threads: int) -> Iterator[list[Problem]]:
    """Run the checks in threads, a few ahead of what has been asked for, and give their results in order."""
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        ahead: deque[Future[list[Problem]]] = deque()
        try:
            for check in checks:
                ahead.append(pool.submit(check))
                if len(ahead) > threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def _refs_of(stream: StreamBackup) -> list[AnyRef]:
    pending = [consumer.pending for consumer in stream.consumers if consumer.pending is not None]
    return [*stream.segments, *stream.opaque, *pending]


def _weight(ref: AnyRef) -> tuple[int, int]:
    """What an object counts for in progress: bytes and messages."""
    return (ref.bytes, ref.messages) if isinstance(ref, SegmentRef) else (ref.size, 0)


def _problem(stream: str, ref: AnyRef, error: JsBackupError) -> Problem:
    kind = ProblemKind.DAMAGED
    if isinstance(error.__cause__, ObjectNotFound):
        kind = ProblemKind.MISSING
    elif not isinstance(error, IntegrityError):
        kind = ProblemKind.UNREADABLE
    return _lost(kind, stream, ref, error.message, error)


def _lost(kind: ProblemKind, stream: str, ref: AnyRef, text: str, cause: JsBackupError | None = None) -> Problem:
    if isinstance(ref, SegmentRef):
        return Problem(kind, stream, ref.key, text, ref.first_seq, ref.last_seq, ref.messages, cause)
    return Problem(kind, stream, ref.key, text, cause=cause)
