"""The rules of plans, by name: those that refuse a restore, and those that warn.

Scripts and runbooks rely on the name and exit code of a rule: their meaning never changes. A finding is the result of a
rule: for which stream, why, and what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from jsbackup.errors import KeyUnavailable, NatsError, PlanRefused, TargetConflict
from jsbackup.exit_codes import DAMAGE

__all__ = ["Finding", "Rule"]

_REFUSED, _CONFLICT = PlanRefused.exit_code, TargetConflict.exit_code


class Rule(StrEnum):
    """One rule. `code` is the exit code of a refusal, 0 for a warning; `lasting`: also reported after the restore."""

    code: int
    lasting: bool

    def __new__(cls, name: str, code: int = 0, lasting: bool = False) -> Self:
        rule = str.__new__(cls, name)
        rule._value_ = name
        rule.code = code
        rule.lasting = lasting
        return rule

    # The target.
    EXISTS = "exists", _CONFLICT
    NAME_TAKEN = "name-taken", _CONFLICT
    SILENT = "silent", _CONFLICT
    ITSELF = "itself", _CONFLICT
    SAME_STREAM = "same-stream", _CONFLICT
    SUBJECT_OVERLAP = "subject-overlap", _CONFLICT
    SUBJECT_OVERLAP_IN_PLAN = "subject-overlap-in-plan", _CONFLICT
    # Limits of the target's account.
    NO_TIER = "no-tier", _CONFLICT
    MAX_BYTES_REQUIRED = "max-bytes-required", _CONFLICT
    MAX_STREAM_BYTES = "max-stream-bytes", _CONFLICT
    MAX_STREAMS = "max-streams", _CONFLICT
    MAX_CONSUMERS = "max-consumers", _CONFLICT
    MAX_ACK_PENDING = "max-ack-pending", _CONFLICT
    MAX_STORAGE = "max-storage", _CONFLICT
    MAX_MEMORY = "max-memory", _CONFLICT
    RESERVED_STORAGE = "reserved-storage", _CONFLICT
    RESERVED_MEMORY = "reserved-memory", _CONFLICT
    REQUEST_TOO_LARGE = "request-too-large", _CONFLICT
    # Features of the target's servers.
    STREAM_FEATURE = "stream-feature", _REFUSED
    CONSUMER_FEATURE = "consumer-feature", _REFUSED
    SINGLE_SERVER = "single-server", _REFUSED
    MEMORY_STREAM = "memory-stream", _REFUSED
    # Requested by --set.
    LIMIT_TRIMS = "limit-trims", _REFUSED
    SUBJECTS_AIMLESS = "subjects-aimless", _REFUSED
    SERVER_REFUSES = "server-refuses", _REFUSED
    FIRST_SEQ_EMPTIES = "first-seq-empties", _REFUSED
    # Requested by renaming, mapping, cutting and masking.
    RENAME = "rename", _REFUSED
    RENAME_COLLISION = "rename-collision", _REFUSED
    MAP_STREAM = "map-stream", _REFUSED
    MAP_CONSUMER = "map-consumer", _REFUSED
    MAP_MERGES = "map-merges", _REFUSED
    MAP_BUCKET = "map-bucket", _REFUSED
    MAP_AIMLESS = "map-aimless", _REFUSED
    SUBJECT_AIMLESS = "subject-aimless", _REFUSED
    FILTER_MISSED = "filter-missed", _REFUSED
    COMPACTS_NO_BUCKET = "compacts-no-bucket", _REFUSED
    NEWEST_OF_OBJECTS = "newest-of-objects", _REFUSED
    RENUMBERS_MIRROR = "renumbers-mirror", _REFUSED
    RENUMBERS_ORIGIN = "renumbers-origin", _REFUSED
    UNTIL_AFTER_BACKUP = "until-after-backup", _REFUSED
    UNTIL_BEFORE_FIRST = "until-before-first", _REFUSED
    OPAQUE_RESHAPED = "opaque-reshaped", _REFUSED
    MASK_AIMLESS = "mask-aimless", _REFUSED
    MASK_MISSED = "mask-missed", _REFUSED
    MASK_UNREADABLE = "mask-unreadable", _REFUSED
    MASK_STATE = "mask-state", _REFUSED
    OBFUSCATE_MQTT = "obfuscate-mqtt", _REFUSED
    KEEPS_NOTHING = "keeps-nothing", _REFUSED
    # The backup.
    CONFIG_ONLY_REPLACES = "config-only-replaces", _REFUSED
    OPAQUE_REPLACES = "opaque-replaces", _REFUSED
    OPAQUE_CONSUMERS = "opaque-consumers", _REFUSED
    OPAQUE_NEWER = "opaque-newer", _REFUSED
    PART_REPLACES = "part-replaces", _REFUSED
    OBJECT_LOST = "object-lost", DAMAGE
    KEY_MISSING = "key-missing", KeyUnavailable.exit_code
    # Mirrors and sources.
    CYCLE = "cycle", _REFUSED
    ORIGIN_MESSAGE_SIZE = "origin-message-size", _REFUSED
    MIRROR_AHEAD = "mirror-ahead", _REFUSED
    # Permissions.
    NOT_ALLOWED = "not-allowed", NatsError.exit_code

    # Warnings.
    SKIPPED = "skipped"
    LEFTOVER_KEPT = "leftover-kept"
    INCOMPLETE_BACKUP = "incomplete-backup"
    IN_ANOTHER_BACKUP = "in-another-backup"
    WITHOUT_MESSAGES = "without-messages", 0, True
    EMPTIED = "emptied", 0, True
    SALVAGED = "salvaged", 0, True
    SERVER_LOSS = "server-loss", 0, True
    MAX_AGE = "max-age", 0, True
    EXPIRES = "expires", 0, True
    MESSAGE_TTL = "message-ttl"
    SCHEDULES_FIRE = "schedules-fire", 0, True
    LARGE_MESSAGES = "large-messages"
    DELETED_TAIL = "deleted-tail", 0, True
    FIRST_SEQ = "first-seq", 0, True
    COPIES_ON = "copies-on", 0, True
    ORIGIN_ABSENT = "origin-absent", 0, True
    ORIGIN_ELSEWHERE = "origin-elsewhere"
    COPIED_BY = "copied-by", 0, True
    ORIGIN_RENEWED = "origin-renewed", 0, True
    ORIGIN_ANOTHER = "origin-another", 0, True
    COPY_AHEAD = "copy-ahead", 0, True
    MIRROR_CUT = "mirror-cut", 0, True
    COPIED_AGAIN = "copied-again", 0, True
    RESUMED = "resumed", 0, True
    ADAPTED = "adapted", 0, True
    FEW_SERVERS = "few-servers"
    PLACEMENT_CLUSTER = "placement-cluster"
    PLACEMENT_SINGLE = "placement-single"
    ACK_FLOOR = "ack-floor"
    NOBODY_INTERESTED = "nobody-interested"
    DESTROYS_ANOTHER = "destroys-another"
    DESTROYS_CONSUMERS = "destroys-consumers"
    DESTROYS_LEFT_OUT = "destroys-left-out", 0, True
    NOTHING_KEPT = "nothing-kept", 0, True
    OVERWRITTEN_SINCE = "overwritten-since", 0, True
    OBJECTS_IN_PART = "objects-in-part", 0, True
    KEYS_RETURN = "keys-return", 0, True
    RENUMBERED = "renumbered", 0, True
    SUBJECTS_MERGE = "subjects-merge", 0, True
    PROMOTED = "promoted", 0, True
    COPIES_UNMAPPED = "copies-unmapped", 0, True
    DELIVERS_TWICE = "delivers-twice"
    MASKED = "masked", 0, True
    MASKED_NOTHING = "masked-nothing", 0, True
    UNMASKED = "unmasked", 0, True
    UNMASKABLE = "unmaskable", 0, True
    MASK_SPARED = "mask-spared", 0, True
    OBFUSCATED = "obfuscated", 0, True
    OBFUSCATED_GROWS = "obfuscated-grows", 0, True
    SAMPLED = "sampled"
    STAGED_BEFORE = "staged-before"
    STAGED_COPY = "staged-copy"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a rule. `stream` is "" for all of them; `hint` is a sentence, or ""."""

    stream: str
    rule: Rule
    reason: str
    hint: str = ""

    @property
    def code(self) -> int:
        return self.rule.code

    @property
    def sentence(self) -> str:
        """The reason, after the stream that it is about."""
        return f"stream {self.stream}: {self.reason}" if self.stream else self.reason
