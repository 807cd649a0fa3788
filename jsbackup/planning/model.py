"""The parts of a restore plan: the options, the state of the target, and the action for each stream.

Values only: `plan.py` decides, `limits.py` and `forecast.py` find the consequences.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from jsbackup.config import Glob
from jsbackup.errors import PlanRefused, TargetConflict
from jsbackup.exit_codes import first_of
from jsbackup.model import ArchivedConsumer, Fidelity, JsonObject
from jsbackup.planning.configs.features import Version
from jsbackup.planning.interrupted import StagedCopy
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
    "Expiring",
    "IfExists",
    "LeftOut",
    "Outlived",
    "PlannedConsumer",
    "RestoreOptions",
    "RestorePlan",
    "SendAs",
    "Start",
    "Target",
]


class IfExists(StrEnum):
    """What to do about a stream that already exists at the target."""

    FAIL = "fail"
    SKIP = "skip"
    REPLACE = "replace"


class SendAs(StrEnum):
    """How a stream is sent to the target."""

    AUTO = "auto"
    V1 = "v1"
    V2 = "v2"
    API = "api"  # config only: created by the API, without messages
    OPAQUE = "opaque"  # the raw snapshot


class Consumers(StrEnum):
    """What to restore of consumers."""

    ALL = "all"
    CONFIG = "config"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """The options of the user. `streams` and `exclude` are names or globs; no `streams` means all."""

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    if_exists: IfExists = IfExists.FAIL
    wire: SendAs = SendAs.AUTO  # as decided before by a clone; not said by users
    consumers: Consumers = Consumers.ALL
    replicas: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # `[GLOB:]FIELD` of the configuration; None: left out
    unitless: frozenset[str] = frozenset()  # durations among them that were typed without a unit
    renames: RenameOptions = field(default_factory=RenameOptions)
    reshape: Reshape = field(default_factory=Reshape)  # without names and marks, which depend on the streams
    replace_with_part: bool = False  # whether a selection may replace a stream that has more
    adapt: bool = False  # leave out settings that the target does not know, if no message needs them
    allow_nothing: bool = False  # whether a pattern, a filter or a mask may match nothing, and a stream keep no message
    resume_sources: bool = False  # set start sequences for sources that would copy deleted messages again

    def of_stream(self, name: str) -> RestoreOptions:
        """Return the options for one stream, with `fields` without globs. What a glob says goes before what is said of
        all, and of several globs the last one.
        """
        if not any(":" in key for key in self.fields):
            return self
        keys = sorted(self.fields, key=lambda key: ":" in key)
        own = {key.rpartition(":")[2]: key for key in keys if ":" not in key or self._glob(key).matches(name)}
        fields = {name: self.fields[key] for name, key in own.items()}
        return replace(self, fields=fields, unitless=frozenset(n for n, key in own.items() if key in self.unitless))

    def missed_fields(self, names: Collection[str]) -> list[str]:
        """Return the keys of `fields` whose glob matches none of the streams."""
        return [key for key in self.fields if ":" in key and not any(map(self._glob(key).matches, names))]

    @staticmethod
    def _glob(key: str) -> Glob:
        return Glob(key.rpartition(":")[0])


@dataclass(frozen=True, slots=True)
class Target:
    """The state of the target. `clustered` and `account` are None if unknown.

    `known_servers` are those of the cluster that it reported, 0 for none; there may be more. `now_ns` is the time, 0 if
    not needed; `max_payload_bytes` is the limit of a message, `round_trip_seconds` the time of a request, 0 if unknown.
    """

    version: Version
    clustered: bool | None
    streams: Mapping[str, StreamInfo]
    leftovers: frozenset[str] = frozenset()  # incomplete streams of an interrupted restore
    silent: frozenset[str] = frozenset()  # streams without a leader or offline, about which nothing is known
    unborn: frozenset[str] = frozenset()  # names occupied by a restore that is still running, or failed
    account: AccountInfo | None = None
    cluster: str = ""  # its name, "" for none
    known_servers: int = 0
    now_ns: int = 0
    max_payload_bytes: int = 0
    round_trip_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One field that differs between the backup and the target."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class PlannedConsumer:
    """A consumer as it will be restored. `consumer.state` is None if it starts from its beginning."""

    consumer: ArchivedConsumer
    fidelity: Fidelity
    note: str = ""
    pending: ObjectRef | None = None  # the object with pending messages, if there are too many for the manifest
    above_floor: int | None = None  # if only its ack floor is known: deliveries above it, as far as known


@dataclass(frozen=True, slots=True)
class Start:
    """Where a source continues at the target: after `sequence` of its origin, 0 for the beginning, None if unknown.

    `key` is that of its marks there. It has everything up to `sequence`: earlier messages would be copied twice.
    `identity` is the origin's expected identity ("" for any); `told` says whether the position is passed to the server
    with the archive.
    """

    key: SourceKey
    sequence: int | None
    identity: str = ""
    told: bool = False


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Messages at the target that a partial replacement leaves out; a lower bound if not `exact`.

    `of` is the number of all its messages. `subjects` are those without any selected message, `of_subjects` all, None
    if unknown. `by` names the options.
    """

    messages: int
    of: int
    exact: bool
    subjects: int | None = None
    of_subjects: int | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Expiring:
    """How many of the `of` messages of a stream expire as soon as they are restored: at least `least`, at most
    `most`.
    """

    least: int = 0
    most: int = 0
    of: int = 0

    @property
    def count(self) -> str:
        return f"{self.most:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"


@dataclass(frozen=True, slots=True)
class Outlived:
    """How many of the first messages that were `looked` at expire at once: `by_ttl` because of their own time to live
    (`Nats-TTL`), `expired` for that or their age. `due` are schedules that fire at once. Without any that was looked at
    nothing is known.
    """

    by_ttl: int = 0
    expired: int = 0
    looked: int = 0
    due: int = 0

    def __add__(self, other: Outlived) -> Outlived:
        return Outlived(
            self.by_ttl + other.by_ttl,
            self.expired + other.expired,
            self.looked + other.looked,
            self.due + other.due,
        )


@dataclass(frozen=True, slots=True)
class Action:
    """One stream to restore. `entry` is its backup, or the kept part of it (`subset.py`)."""

    entry: StreamBackup
    name: str  # at the target
    wire: SendAs
    config: JsonObject
    replaces: bool
    wire_reason: str = ""
    leftover: bool = False  # the existing stream is a leftover of an interrupted restore
    forced: bool = False  # remove a leftover whatever it has
    changes: tuple[ConfigChange, ...] = ()
    consumers: tuple[PlannedConsumer, ...] = ()
    warnings: tuple[Finding, ...] = ()
    reshape: Reshape = field(default_factory=Reshape)  # of its messages
    counted: bool = True  # whether numbers, sequences and times of `entry` are exact, else bounds
    first_dropped: tuple[int, int] | None = None  # sequence and time of the first message after a cut's end
    times: tuple[int, int] | None = None  # of the first and the last message, if messages were read
    seconds: float = 0.0  # the estimate of `forecast.py`
    starts: tuple[Start, ...] = ()  # where its sources continue, if known
    may_miss: bool = False  # whether a mask may match nothing in it
    filters_may_miss: bool = True  # whether a filter may match nothing in it
    had: int = 0  # messages of the backup, before any is left out
    may_be_empty: bool = True  # whether a selection may keep none of its messages
    left_out: LeftOut | None = None  # of the stream that it replaces, because of the selection
    expiring: Expiring = field(default_factory=Expiring)  # because they are older than its `max_age`
    outlived: Outlived = field(default_factory=Outlived)  # if it replaces a stream that has messages, or has schedules
    copies: tuple[StagedCopy, ...] = ()  # copies left by interrupted replacements

    @property
    def alters(self) -> bool:
        """Whether its messages differ: a backup must not take them for those that were stored before.

        Renames change headers with names of other streams, which matters if the stream keeps its own name.
        """
        return self.reshape.alters or bool(self.reshape.renames and self.name == self.entry.name)


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Actions in stages: those of a stage may run in parallel; origins come before their mirrors."""

    backup: str
    stages: tuple[tuple[Action, ...], ...]
    refusals: tuple[Finding, ...] = ()
    skipped: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()  # about the whole plan

    @property
    def actions(self) -> list[Action]:
        return [action for stage in self.stages for action in stage]

    @property
    def missing(self) -> list[Finding]:
        """Requested streams that should be in the backup and are not, or that another backup has."""
        return [
            warning for warning in self.warnings if warning.rule in (Rule.INCOMPLETE_BACKUP, Rule.IN_ANOTHER_BACKUP)
        ]

    @property
    def code(self) -> int:
        """The exit code of its refusals, 0 without any. A restore fails with the same code."""
        codes = (refusal.code for refusal in self.refusals)
        return first_of(codes, PlanRefused.exit_code, TargetConflict.exit_code)
