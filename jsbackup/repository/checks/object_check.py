"""Check one object of a backup, and say what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from jsbackup.errors import IntegrityError, JsBackupError, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.repository.objects import Objects
from jsbackup.repository.refs import AnyRef, OpaqueRef, PageRef, SegmentRef
from jsbackup.repository.segments import SegmentReader
from jsbackup.repository.write.pending_acks import decode_pending
from jsbackup.repository.write.raw_snapshot import read_piece

__all__ = ["Level", "ObjectFlaw", "Problem", "ProblemKind", "check_object", "flaw_of", "problem_with", "weight_of"]


class Level(StrEnum):
    MANIFEST = "manifest"
    OBJECTS = "objects"
    DATA = "data"


class ProblemKind(StrEnum):
    MISSING = "missing"
    UNREADABLE = "unreadable"  # a fault of the store, perhaps a temporary one
    DAMAGED = "damaged"
    INCONSISTENT = "inconsistent"  # the manifest contradicts itself


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. Messages from `first_seq` to `last_seq` (0 if none) are lost, `messages` in number.

    `key` is that of the object, or of the manifest if it contradicts itself. `cause` is the exception, if there was
    one.
    """

    kind: ProblemKind
    stream: str
    key: str
    problem: str
    first_seq: int = 0
    last_seq: int = 0
    messages: int = 0
    cause: JsBackupError | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ObjectFlaw:
    """What is wrong with an object, in all backups that name it. `level` is the least deep one that finds it."""

    kind: ProblemKind
    text: str
    cause: JsBackupError | None = None
    level: Level = Level.OBJECTS


def check_object(objects: Objects, ref: AnyRef, level: Level) -> ObjectFlaw | None:
    """Return what is wrong with an object, or None. Raises only `KeyUnavailable`."""
    try:
        if level is not Level.DATA or isinstance(ref, PageRef):
            objects.fetch_sealed(ref)
        elif isinstance(ref, SegmentRef):
            for _ in SegmentReader(objects).prove(ref):
                pass
        elif isinstance(ref, OpaqueRef):
            read_piece(objects, ref)
        else:
            decode_pending(objects.fetch(ref))
    except (IntegrityError, StoreError, UnsupportedError) as error:
        deep = level is Level.DATA and not isinstance(error, StoreError)
        as_stored = deep and check_object(objects, ref, Level.OBJECTS) is None
        return replace(flaw_of(error), level=Level.DATA if as_stored else Level.OBJECTS)
    return None


def flaw_of(error: IntegrityError | StoreError | UnsupportedError) -> ObjectFlaw:
    """Return the flaw of an object that cannot be read because of `error`."""
    if isinstance(error, IntegrityError):
        missing = isinstance(error.__cause__, ObjectNotFound)
        return ObjectFlaw(ProblemKind.MISSING if missing else ProblemKind.DAMAGED, error.message)
    _forget_frames(error)
    return ObjectFlaw(ProblemKind.UNREADABLE, error.message, error)


def _forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks: an error that is kept would keep the data that was read when it was raised."""
    while error is not None:
        error.with_traceback(None)
        error = error.__cause__ or error.__context__


def weight_of(ref: AnyRef) -> tuple[int, int]:
    """Return the bytes and messages that an object counts for in progress."""
    return (ref.bytes, ref.messages) if isinstance(ref, SegmentRef) else (ref.size, 0)


def problem_with(stream: str, ref: AnyRef, flaw: ObjectFlaw) -> Problem:
    """Return the problem that a stream has because an object of it has a flaw."""
    if isinstance(ref, SegmentRef | PageRef):
        lost = (ref.first_seq, ref.last_seq, ref.messages)
        return Problem(flaw.kind, stream, ref.key, flaw.text, *lost, cause=flaw.cause)
    return Problem(flaw.kind, stream, ref.key, flaw.text, cause=flaw.cause)
