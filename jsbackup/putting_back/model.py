"""What is to be put back, the plan for it, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from jsbackup.config.connection import Connection
from jsbackup.errors import IncompleteError, JsBackupError, PlanRefused, TargetConflict, UsageError
from jsbackup.look.buckets.object_bucket import ObjectEntry
from jsbackup.model import JsonObject
from jsbackup.progress import NullProgress, Progress
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.times import datetime_of
from jsbackup.transforms.cut import Cut, Edge
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.subjects import check_pattern

__all__ = ["Fate", "PutBackMessage", "PutBackOptions", "PutBackPlan", "PutBackReport", "PutBackRun"]


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

    def __post_init__(self) -> None:
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
        for key in self.keys:
            check_pattern("--key", key)


class Fate(StrEnum):
    """What happens to a chosen message."""

    WRITE = "write"
    THERE = "there"  # nothing has to be written
    LEFT_OUT = "left out"  # it cannot be put back, and that blocks nothing
    DUPLICATE = "duplicate"  # the server knows its message id, or will
    REFUSED = "refused"
    WRITTEN = "written"
    CONFLICT = "conflict"  # another client wrote it in the meantime


@dataclass(frozen=True, slots=True)
class PutBackMessage:
    """A chosen message. `subject` is that at the target; `name` is the key, or the file of an object store, "" of
    others.

    `action` is `written` (as `as_sequence`), `there` (it had been already), `left out`, `refused`, `duplicate` (the
    server knows its message id, as that of `as_sequence`, or will), `conflict` (something else was written meanwhile),
    or `write` (in a plan); `reason` says why.

    `expected` is the sequence of the last message with the subject that the plan has seen, 0 if there is none; None if
    that does not matter. `overwrites`: the present value is replaced. `conflict`: it is refused because of what is at
    the target. `origin` is what it says to come from, as `MessageOrigin.message`, and `content` names subject, headers
    and payload. `deletes`: it deletes a key of a bucket.
    """

    sequence: int
    timestamp_ns: int
    subject: str
    size: int
    action: Fate
    reason: str = ""
    name: str = ""
    as_sequence: int | None = None
    expected: int | None = None
    overwrites: bool = False
    conflict: bool = False
    origin: tuple[str, int, int] = field(default=("", 0, 0), repr=False)
    content: bytes = field(default=b"", repr=False)
    message_id: bytes = field(default=b"", repr=False)
    deletes: bool = field(default=False, repr=False)

    @property
    def time(self) -> datetime:
        """When it was stored, to the microsecond."""
        return datetime_of(self.timestamp_ns)


@dataclass(frozen=True, slots=True)
class PutBackPlan:
    """What a run would write, in this order. `blocked` says why the target takes nothing at all (PlanRefused or
    TargetConflict); nothing is planned then. `unknown`: what the backup cannot say of keys at the moment, in sentences.
    `counts`: if the target limits the messages of a subject, how many it has of each.

    Of a file of an object store: `file`, the `description` that is stored with it, and `replaces`, the file at the
    target whose description it takes the place of.
    """

    manifest: Manifest
    entry: StreamBackup
    target: StreamInfo
    options: PutBackOptions
    messages: tuple[PutBackMessage, ...] = ()
    blocked: tuple[JsBackupError, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    file: ObjectEntry | None = None
    description: JsonObject = field(default_factory=dict)
    replaces: ObjectEntry | None = None

    @property
    def writes(self) -> list[PutBackMessage]:
        return [message for message in self.messages if message.action is Fate.WRITE]

    def refusal(self) -> JsBackupError | None:
        """Return why nothing may be written: TargetConflict or PlanRefused; None if something may."""
        for error in self.blocked:
            return error.with_message(f"nothing was written: {error.message}")
        refused = [message for message in self.messages if message.action is Fate.REFUSED]
        if not refused or (self.options.partial and len(refused) < len(self.messages)):
            return None
        first = refused[0]
        kind = TargetConflict if any(message.conflict for message in refused) else PlanRefused
        which = first.name or f"message {first.sequence}"
        more = f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else ""
        hints = ["Replace what is newer with --overwrite."] if first.conflict and not self.options.overwrite else []
        hints += ["Write the others with --partial."] if len(refused) < len(self.messages) else []
        return kind(f"nothing was written: {which}: {first.reason}{more}", hint=" ".join(hints) or None)


@dataclass(frozen=True, slots=True)
class PutBackReport:
    """A plan, and what became of each chosen message, in order.

    `replaced` counts written messages that were not there any more when they were read back. `twice` has the sequences
    of messages that are the same: another command has put them back too. `dropped`: limits have removed messages
    meanwhile. `notes` are about the writing; those of the plan are not among them.
    """

    plan: PutBackPlan
    messages: tuple[PutBackMessage, ...]
    replaced: int = 0
    twice: tuple[tuple[int, ...], ...] = ()
    dropped: bool = False
    notes: tuple[str, ...] = ()

    def of(self, *actions: Fate) -> list[PutBackMessage]:
        return [message for message in self.messages if message.action in actions]

    @property
    def written(self) -> list[PutBackMessage]:
        return self.of(Fate.WRITTEN)

    @property
    def code(self) -> int:
        """The exit code: 0 if everything chosen is at the target, once, and nothing was lost for it unasked."""
        if self.of(Fate.CONFLICT) and all(message.as_sequence is None for message in self.messages):
            return TargetConflict.exit_code
        lacking = self.of(Fate.CONFLICT, Fate.DUPLICATE, Fate.REFUSED) or self.plan.unknown
        return IncompleteError.exit_code if lacking or self.twice or self.dropped else 0


@dataclass(slots=True)
class PutBackRun:
    """A run of `put-back`. `done` has what became of messages so far, by their sequences, also if it fails.

    `around`: if the backup does not know any more what keys were at the moment, another one around it may be taken.
    """

    connection: Connection
    options: PutBackOptions
    dry_run: bool = False
    around: bool = False
    watcher: Progress = field(default_factory=NullProgress)
    done: dict[int, PutBackMessage] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def record(self, message: PutBackMessage, action: Fate, **known: Any) -> None:
        """Say what became of a message; `known` are fields of it."""
        self.done[message.sequence] = replace(message, action=action, **known)

    @property
    def written(self) -> int:
        """How many messages were written."""
        return sum(1 for message in self.done.values() if message.action is Fate.WRITTEN)

    def report(self, plan: PutBackPlan, replaced: int = 0) -> PutBackReport:
        messages = tuple(self.done.get(message.sequence, message) for message in plan.messages)
        return PutBackReport(plan, messages, replaced, notes=tuple(self.notes))
