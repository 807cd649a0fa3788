"""What is to be put back, the plan for it, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from jsbackup.errors import IncompleteError, JsBackupError, PlanRefused, TargetConflict, UsageError
from jsbackup.look.buckets.object_bucket import ObjectEntry
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.transforms.cut import Cut, Edge
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.subjects import check_pattern

__all__ = [
    "Blocked",
    "Fate",
    "MessageResult",
    "PlannedMessage",
    "PutBackOptions",
    "PutBackPlan",
    "PutBackReport",
    "Wrote",
]


@dataclass(frozen=True, slots=True)
class PutBackOptions:
    """What to put back, and where.

    Either messages (`filters`, `sequences` as ranges with both ends, `cut`: all must hold; of these `newest` keeps only
    some), or `keys` of a bucket, which may be patterns, as of the moment `at`; or the file `object_name` of an object
    store.
    """

    stream: str
    to: str | None = None
    filters: Filters = field(default_factory=Filters)
    sequences: tuple[tuple[int, int], ...] = ()
    cut: Cut = field(default_factory=Cut)
    newest: NewestRule | None = None
    keys: tuple[str, ...] = ()
    at: Edge | None = None
    object_name: str | None = None
    overwrite: bool = False
    partial: bool = False

    def check(self) -> None:
        """Raise UsageError if that is nothing, or contradicts itself."""
        by_message = bool(self.filters or self.sequences or self.cut or self.newest)
        kinds = [by_message, bool(self.keys), self.object_name is not None]
        if sum(kinds) > 1:
            raise UsageError(
                "messages, keys and an object file cannot be put back at once",
                hint="Give --key for a bucket, --object for an object store, or the conditions of messages.",
            )
        if not any(kinds):
            raise UsageError(
                "no messages, keys or file were chosen",
                hint="Choose with --subject, --sequence, --since, --until, --header, --payload-match, --key or "
                "--object; --subject '>' is all.",
            )
        if self.at is not None and not self.keys:
            raise UsageError("--at applies to keys only", hint="Choose keys with --key, or messages with --until.")
        if self.newest is not None and self.sequences:
            raise UsageError("--sequence names messages, and --last-per-subject chooses some", hint="Leave one out.")
        for one in self.keys:
            check_pattern("--key", one)


class Fate(StrEnum):
    """What happens to a chosen message."""

    WRITE = "write"
    THERE = "there"  # nothing has to be written
    LEFT_OUT = "left out"  # it cannot be put back, and that blocks nothing
    DUPLICATE = "duplicate"  # the server will know its message id
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """A chosen message. `subject` is that at the target; `name` is the key, or the file of an object store, "" of
    others.

    `expected` is the sequence of the last message with the subject that the plan has seen, 0 if there is none; None if
    that does not matter. `overwrites`: the present value is replaced. `conflict`: it is refused because of what is at
    the target. `origin` is what it says to come from, as `MessageOrigin.message`.
    """

    sequence: int
    timestamp_ns: int
    subject: str
    size: int
    fate: Fate
    reason: str = ""
    name: str = ""
    expected: int | None = None
    overwrites: bool = False
    conflict: bool = False
    origin: tuple[str, int, int] = ("", 0, 0)


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why the target takes nothing of it at all. `conflict` as of a `PlannedMessage`."""

    reason: str
    hint: str = ""
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class PutBackPlan:
    """What a run would write, in this order. `blocked` is about the target, and nothing is planned then. `incomplete`:
    it is not known of all keys what they were at the moment. `counts`: if the target limits the messages of a subject,
    how many it has of each.
    """

    manifest: Manifest
    entry: StreamBackup
    target: StreamInfo
    options: PutBackOptions
    messages: tuple[PlannedMessage, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    notes: tuple[str, ...] = ()
    file: ObjectEntry | None = None
    incomplete: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def writes(self) -> list[PlannedMessage]:
        return [one for one in self.messages if one.fate is Fate.WRITE]

    @property
    def refused(self) -> list[PlannedMessage]:
        return [one for one in self.messages if one.fate is Fate.REFUSED]

    def refusal(self) -> JsBackupError | None:
        """Return why nothing may be written: TargetConflict or PlanRefused; None if something may."""
        kind: type[JsBackupError]
        for one in self.blocked:
            kind = TargetConflict if one.conflict else PlanRefused
            return kind(f"nothing was written: {one.reason}", hint=one.hint or None)
        refused = self.refused
        if not refused or (self.options.partial and len(refused) < len(self.messages)):
            return None
        first = refused[0]
        kind = TargetConflict if any(one.conflict for one in refused) else PlanRefused
        which = first.name or f"message {first.sequence}"
        more = f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else ""
        hints = ["Replace what is newer with --overwrite."] if first.conflict and not self.options.overwrite else []
        hints += ["Write the others with --partial."] if len(refused) < len(self.messages) else []
        return kind(f"nothing was written: {which}: {first.reason}{more}", hint=" ".join(hints) or None)


@dataclass(frozen=True, slots=True)
class Wrote:
    """A message that was written, as `as_sequence`; or, if `duplicate`, not: the server knows its message id as that of
    `as_sequence`.
    """

    message: PlannedMessage
    as_sequence: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class MessageResult:
    """What became of a chosen message: `action` is a `Fate`, or `written`, `duplicate` or `conflict`."""

    message: PlannedMessage
    action: str
    reason: str
    as_sequence: int | None = None


@dataclass(frozen=True, slots=True)
class PutBackReport:
    """A plan, what was written of it, and what was refused meanwhile, because something else was written there.

    `replaced` counts written messages that were not there any more when they were read back. `twice` has the sequences
    of messages that are the same: another command has put them back too. `dropped`: limits have removed messages
    meanwhile. `notes` are about the writing; those of the plan are not among them.
    """

    plan: PutBackPlan
    written: tuple[Wrote, ...] = ()
    duplicates: tuple[Wrote, ...] = ()
    conflicts: tuple[PlannedMessage, ...] = ()
    replaced: int = 0
    twice: tuple[tuple[int, ...], ...] = ()
    dropped: bool = False
    notes: tuple[str, ...] = ()

    @property
    def known_ids(self) -> int:
        """How many messages are not stored because the server knows their message ids, or will."""
        return len(self.duplicates) + sum(one.fate is Fate.DUPLICATE for one in self.plan.messages)

    @property
    def code(self) -> int:
        """The exit code: 0 if everything chosen is at the target, once, and nothing was lost for it unasked."""
        if self.conflicts and not self.written and not self.duplicates:
            return TargetConflict.exit_code
        lacking = self.conflicts or self.known_ids or self.plan.refused or self.plan.incomplete
        return IncompleteError.exit_code if lacking or self.twice or self.dropped else 0

    def results(self) -> Iterator[MessageResult]:
        """Yield what became of each chosen message, in order."""
        done: dict[int, MessageResult] = {}
        for one in self.written:
            done[one.message.sequence] = MessageResult(one.message, "written", one.message.reason, one.as_sequence)
        for one in self.duplicates:
            reason = f"the server has stored its message id before, as message {one.as_sequence}"
            done[one.message.sequence] = MessageResult(one.message, "duplicate", reason, one.as_sequence)
        for planned in self.conflicts:
            done[planned.sequence] = MessageResult(planned, "conflict", "another client wrote it in the meantime")
        for planned in self.plan.messages:
            yield done.get(planned.sequence) or MessageResult(planned, str(planned.fate), planned.reason)
