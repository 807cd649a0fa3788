"""What a plan of a restore is made of: the options, the picture of the target, and what is to be done with each stream.

Values only: `plan.py` decides, `limits.py` and `forecast.py` say what comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from jsbackup.config import Glob
from jsbackup.errors import PlanRefused, TargetConflict
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject
from jsbackup.planning.configs.features import Version
from jsbackup.planning.copies.copy_facts import NOTHING_KNOWN, CopyFacts
from jsbackup.planning.interrupted.staged import StagedCopy
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import AccountInfo, StreamInfo
from jsbackup.repository.manifest import ObjectRef, StreamBackup
from jsbackup.transforms.copy_positions import SourceKey
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape

__all__ = [
    "Action",
    "ConfigChange",
    "Consumers",
    "IfExists",
    "LeftOut",
    "PlannedConsumer",
    "RestoreOptions",
    "RestorePlan",
    "SendAs",
    "Start",
    "Target",
]


class IfExists(StrEnum):
    """What to do about a stream that the target has already."""

    FAIL = "fail"
    SKIP = "skip"
    REPLACE = "replace"


class SendAs(StrEnum):
    """How a stream goes to the target."""

    AUTO = "auto"
    V1 = "v1"
    V2 = "v2"
    API = "api"  # config only: created by the API, without messages
    OPAQUE = "opaque"  # the snapshot as it came


class Consumers(StrEnum):
    """What to restore of consumers."""

    ALL = "all"
    CONFIG = "config"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What the user asked for. `streams` and `exclude` are names or globs; no `streams` means all."""

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    if_exists: IfExists = IfExists.FAIL
    wire: SendAs = SendAs.AUTO
    consumers: Consumers = Consumers.ALL
    replicas: int | None = None
    storage: str | None = None
    placement_cluster: str | None = None
    placement_tags: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the configuration, as asked for; None: left out
    renames: RenameOptions = field(default_factory=RenameOptions)
    reshape: Reshape = field(default_factory=Reshape)  # without names and marks, which depend on the streams
    replace_with_part: bool = False  # whether what is selected may replace a stream that has more
    adapt: bool = False  # settings that the target does not know are left out where no message needs them
    mask_may_miss: bool = False  # whether a mask may mask nothing
    pattern_may_miss: bool = False  # whether what excludes, maps or keeps subjects may match nothing
    allow_empty: bool = False  # whether a selection may keep nothing of a stream that has messages
    resume_sources: bool = False  # start sequences for sources that would copy again what is gone


@dataclass(frozen=True, slots=True)
class Target:
    """The target as it was when looked at. `clustered` is None where that cannot be known, so with `account`.

    `known_servers` are those of the cluster that it told of, 0 where it told nothing; there may be more. `now_ns` is
    the time, 0 where nobody asked for it; `max_payload_bytes` what a message may have, `round_trip_seconds` what a
    request takes, 0 where that is not known.
    """

    version: Version
    clustered: bool | None
    streams: Mapping[str, StreamInfo]
    leftovers: frozenset[str] = frozenset()  # streams of an interrupted restore, never proved
    silent: frozenset[str] = frozenset()  # streams of which nothing is known: they have no leader, or are offline
    unborn: frozenset[str] = frozenset()  # names that a restore has taken which runs still, or failed
    account: AccountInfo | None = None
    cluster: str = ""  # its name, "" for none
    known_servers: int = 0
    now_ns: int = 0
    max_payload_bytes: int = 0
    round_trip_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One field that the target gets otherwise than the backup has it."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class PlannedConsumer:
    """A consumer as it is to be restored. `consumer.state` is None where it starts anew."""

    consumer: ArchivedConsumer
    fidelity: Fidelity
    note: str = ""
    pending: ObjectRef | None = None  # where the pending messages are, if there are too many for the manifest
    above_floor: int | None = None  # of one known by its ack floor: deliveries above it, as far as that is known


@dataclass(frozen=True, slots=True)
class Start:
    """Where a source goes on at the target: behind `sequence` of its origin, 0 where it begins, None if not known.

    `key` is that of its marks there. Up to there it has everything: what comes again is copied twice. `identity` is
    what it takes the origin for ("" for any); `told` says whether the server is told beside the archive.
    """

    key: SourceKey
    sequence: int | None
    identity: str = ""
    told: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Messages at the target that a part leaves out of the stream that it replaces; at least so many if not `exact`.

    `of` all that it has. `subjects` are those without any message that is selected, `of_subjects` all, None if not
    known. `by` names the options.
    """

    messages: int
    of: int
    exact: bool
    subjects: int | None = None
    of_subjects: int | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One stream to restore. `entry` is its backup, or what is kept of it (`subset.py`)."""

    entry: StreamBackup
    name: str  # at the target
    wire: SendAs
    config: JsonObject
    replaces: bool
    wire_reason: str = ""
    leftover: bool = False  # what is there is left over from an interrupted restore
    forced: bool = False  # a leftover goes whatever it has
    changes: tuple[ConfigChange, ...] = ()
    consumers: tuple[PlannedConsumer, ...] = ()
    warnings: tuple[Finding, ...] = ()
    reshape: Reshape = field(default_factory=Reshape)  # of its messages
    counted: bool = True  # whether numbers, sequences and times of `entry` are those of messages, else bounds
    first_dropped: tuple[int, int] | None = None  # sequence and time of the first message behind a cut's end
    times: tuple[int, int] | None = None  # of the first and the last message, where messages were looked at
    seconds: float = 0.0  # that it takes, as `forecast.py` estimates
    starts: tuple[Start, ...] = ()  # where its sources go on, as far as that is known
    may_miss: bool = False  # whether a mask may mask nothing of it
    may_be_empty: bool = True  # whether it may go without messages although there are some
    left_out: LeftOut | None = None  # of the stream that it replaces, by what was selected
    copies: tuple[StagedCopy, ...] = ()  # what interrupted replaces left beside it

    @property
    def alters(self) -> bool:
        """Whether it begins another life: a backup must not take its messages for those that were stored before.

        Renames change headers that name other streams, which matters where the stream keeps its own name.
        """
        return self.reshape.alters or bool(self.reshape.renames and self.name == self.entry.name)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Actions in stages: those of a stage may run side by side, origins come before their mirrors."""

    backup: str
    stages: tuple[tuple[Action, ...], ...]
    refusals: tuple[Finding, ...] = ()
    skipped: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()  # about all of it
    copies: CopyFacts = NOTHING_KNOWN  # what was known of streams that copy from others

    @property
    def actions(self) -> list[Action]:
        return [action for stage in self.stages for action in stage]

    @property
    def missing(self) -> list[Finding]:
        """Streams that are asked for and not in the backup, although they should be, or another one has them."""
        return [one for one in self.warnings if one.rule in (Rule.INCOMPLETE_BACKUP, Rule.IN_ANOTHER_BACKUP)]

    @property
    def code(self) -> int:
        """The exit code of what stands against it, 0 for nothing. A restore fails with the same."""
        codes = [refusal.code for refusal in self.refusals]
        return next(
            (code for code in (PlanRefused.exit_code, TargetConflict.exit_code) if code in codes), sum(codes[:1])
        )
