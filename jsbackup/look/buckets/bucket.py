"""A key-value bucket in a backup, as it was at a moment: its keys, their values, and their revisions.

The last message of a key up to the moment is its state: a value, or a marker that it was deleted or purged
(`key_states.py`). Where messages that are gone may have been later, the backup cannot say what the key was, and this is
said (`key_states.py`): no value is silently missing, and none is older than it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from jsbackup.config import nearest
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.look.buckets.key_states import (
    KeyRecord,
    KeyState,
    KeyVerdict,
    Removals,
    Unknown,
    key_of,
    read_records,
    state_then,
)
from jsbackup.look.message import LookedUp, MessageFilter
from jsbackup.look.moment import SequenceGaps, check_known
from jsbackup.look.stream import StoredBucket, messages_of
from jsbackup.names import BUCKET_STREAM, is_subject
from jsbackup.readable import in_short
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.shell import quoted_command
from jsbackup.times import datetime_of, format_time
from jsbackup.transforms.cut import Cut, Edge
from jsbackup.transforms.filters.key_marker import KeyOperation, has_expired, operation_of
from jsbackup.transforms.subjects import check_pattern

__all__ = [
    "KeyList",
    "KeyRevision",
    "KeyValueBucket",
    "check_bucket_key",
    "elsewhere_hint",
    "key_list",
    "key_subjects",
]

_PREFIX = "$KV."
# Messages of a bucket whose keys are looked through for one that is meant.
_MOST_SEARCHED = 100_000
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class KeyRevision:
    """A revision of a key; `value` is empty unless it was put. `expired`: it is a purge that says that the key has
    expired.
    """

    key: str
    revision: int
    timestamp_ns: int
    operation: KeyOperation
    value: bytes
    expired: bool = False

    @property
    def time(self) -> datetime:
        """When it was stored, to the microsecond."""
        return datetime_of(self.timestamp_ns)

    @property
    def words(self) -> str:
        """What happened to the key, for people."""
        return "expired" if self.expired else self.operation.value


@dataclass(frozen=True, slots=True)
class KeyList:
    """The `keys` that had a value at a moment, sorted. Of the `unknown` ones it cannot be said whether they had one, or
    which. `whole`: there were no others; keys of which nothing is left may have been there too if it is false.
    """

    keys: tuple[KeyState, ...]
    unknown: tuple[str, ...] = ()
    whole: bool = True

    @property
    def certain(self) -> bool:
        return self.whole and not self.unknown


def key_subjects(stream: StreamBackup, key: str) -> tuple[str, ...]:
    """Return the subjects that a key, or a pattern of keys, has in a bucket. A mirror has those of its origin."""
    config = stream.config
    subjects = config.get("subjects") or ()
    mirror = config.get("mirror")
    origin = mirror.get("name") if isinstance(mirror, dict) else None
    buckets = [subject.removeprefix(_PREFIX).removesuffix(".>") for subject in subjects if _is_of_a_bucket(subject)]
    if isinstance(origin, str) and origin.startswith(BUCKET_STREAM):
        buckets.append(origin.removeprefix(BUCKET_STREAM))
    if not buckets or config.get("sources"):
        buckets = ["*"]
    return tuple(f"{_PREFIX}{bucket}.{key}" for bucket in buckets)


def _is_of_a_bucket(subject: object) -> bool:
    return isinstance(subject, str) and subject.startswith(_PREFIX) and subject.endswith(".>")


class KeyValueBucket(StoredBucket):
    """A bucket in a backup. `at` is a moment or a revision: the state then; None: when the backup was made.

    All methods raise UsageError for an `at` that the backup does not know, and IntegrityError, KeyUnavailable and
    StoreError.
    """

    prefix = BUCKET_STREAM

    def __init__(self, objects: Objects, manifest: Manifest, stream: StreamBackup) -> None:
        super().__init__(objects, manifest, stream)
        self.removals = Removals.of(manifest, stream)
        self._gaps = SequenceGaps(objects, stream)

    def keys(self, at: Edge | None = None, pattern: str = ">") -> KeyList:
        """Return the keys that had a value. Needs memory for all keys that match."""
        wanted = self._wanted(check_pattern("KEY", pattern), at)
        last_gap = 0 if at is None else self.last_gap(at)
        if at is None or not last_gap:
            return key_list(self._states(wanted))
        records = self.records(pattern, at)
        if is_subject(pattern):
            records.setdefault(pattern, KeyRecord())
        verdicts = {key: state_then(record, self.removals, last_gap) for key, record in records.items()}
        return key_list(verdicts, whole=is_subject(pattern))

    def states(self, pattern: str = ">") -> dict[str, KeyState]:
        """Return the newest revision of each key when the backup was made, also of those that are deleted."""
        return self._states(self._wanted(pattern, None))

    def records(self, pattern: str, at: Edge) -> dict[str, KeyRecord]:
        """Return what there is of each key that matches, before and after a moment."""
        wanted = MessageFilter(subjects=key_subjects(self.stream, pattern))
        return read_records(self.objects, self.stream, wanted, Cut(until=at))

    def last_gap(self, at: Edge) -> int:
        """Return the last missing sequence of up to the moment, 0 if none is missing."""
        return self._gaps.last_gap(self._gaps.last_possible(at))

    def revisions(self, key: str, at: Edge | None = None) -> Iterator[KeyRevision]:
        """Yield the revisions of a key, oldest first."""
        for message in messages_of(self.objects, self.stream, self._wanted(check_bucket_key(key), at)):
            yield _revision(message)

    def newest_revisions(self, key: str, most: int) -> list[KeyRevision]:
        """Return the last revisions of a key, the newest first, at most `most`."""
        wanted = self._wanted(check_bucket_key(key), None)
        return list(islice(self._newest_first(wanted), most))

    def value(self, key: str, at: Edge | None = None) -> KeyRevision:
        """Return the revision that was the key's value.

        Raises:
            JsBackupError: it had none: it did not exist, or was deleted.
            IncompleteError: the backup cannot say.
        """
        wanted = self._wanted(check_bucket_key(key), at)
        revisions = self._newest_first(wanted)
        last = next(revisions, None)
        if last is None:
            raise self._absent(key, at)
        last_gap = 0 if at is None or self.removals.oldest_first else self.last_gap(at)
        older = list(islice(revisions, max(self.removals.history - 1, 0))) if last.revision < last_gap else []
        if state_then(KeyRecord(_state(last), 1 + len(older)), self.removals, last_gap) is Unknown.UNKNOWN:
            raise IncompleteError(
                f"backup {self.manifest.id} cannot say what key {key} of bucket {self.name} was{_at(at)}: the last one "
                f"there is revision {last.revision} of {format_time(last.timestamp_ns)}, and a later one may have "
                "expired (Nats-TTL) or been deleted",
                hint=f"If none has, add '--at {last.revision}'. {elsewhere_hint(self, key)}",
            )
        if last.operation is KeyOperation.PUT:
            return last
        before = next((each for each in chain(older, revisions) if each.operation is KeyOperation.PUT), None)
        raise JsBackupError(
            f"key {key} of bucket {self.name} had no value{_at(at)} in backup {self.manifest.id}: "
            + (
                f"it has expired, as revision {last.revision} of {format_time(last.timestamp_ns)} says"
                if last.expired
                else f"revision {last.revision} of {format_time(last.timestamp_ns)} is a {last.operation}"
            ),
            hint=f"Its value before was revision {before.revision}: add '--at {before.revision}'."
            if before
            else elsewhere_hint(self, key),
        )

    def incomplete(self, listed: KeyList, at: Edge | None, result: object = None) -> IncompleteError:
        """Return the error that a list of keys is not certain; `result` is what is known."""
        names = in_short(listed.unknown, most=_MOST_NAMED)
        about = f"what these keys were: {names}" if names else "whether there were other keys"
        return IncompleteError(
            f"backup {self.manifest.id} cannot say of bucket {self.name}{_at(at)} {about}",
            hint="Revisions are gone since. An earlier backup may have them.",
            result=result,
        )

    def _states(self, wanted: MessageFilter) -> dict[str, KeyState]:
        records = read_records(self.objects, self.stream, wanted, Cut())
        return {key: record.last for key, record in records.items() if record.last is not None}

    def _newest_first(self, wanted: MessageFilter) -> Iterator[KeyRevision]:
        return map(_revision, messages_of(self.objects, self.stream, wanted, newest_first=True))

    def _wanted(self, key: str, at: Edge | None) -> MessageFilter:
        check_known(self.manifest, self.stream, at)
        return MessageFilter(Cut(until=at), key_subjects(self.stream, key))

    def _absent(self, key: str, at: Edge | None) -> JsBackupError:
        if at is not None and self.last_gap(at):
            return IncompleteError(
                f"backup {self.manifest.id} cannot say what key {key} of bucket {self.name} was{_at(at)}: it has no "
                "revision from then, and older ones may be gone",
                hint=self._near(key) or elsewhere_hint(self, key),
            )
        return JsBackupError(
            f"bucket {self.name} has no revision of key {key}{_at(at)} in backup {self.manifest.id}",
            hint=self._near(key) or elsewhere_hint(self, key),
        )

    def _near(self, key: str) -> str | None:
        """Return a suggestion, in a bucket that is quickly searched."""
        if self.stream.captured.messages > _MOST_SEARCHED:
            return None
        keys = self.states()
        return None if key in keys else nearest(key, sorted(keys))


def elsewhere_hint(bucket: KeyValueBucket, key: str) -> str:
    """Return the hint for a key of which the backup has no value, and nothing else is known."""
    return (
        f"Other backups may have more: see {quoted_command('history', bucket.stream.name, options=[('--key', key)])}."
    )


def key_list(verdicts: Mapping[str, KeyVerdict], *, whole: bool = True) -> KeyList:
    """Return the list of keys of these states."""
    states = [state for state in verdicts.values() if isinstance(state, KeyState)]
    return KeyList(
        tuple(sorted((state for state in states if state.operation is KeyOperation.PUT), key=lambda state: state.key)),
        tuple(sorted(key for key, state in verdicts.items() if state is Unknown.UNKNOWN)),
        whole,
    )


def check_bucket_key(key: str) -> str:
    """Return `key` if it can be one. Raises UsageError otherwise."""
    if not is_subject(key):
        raise UsageError(f"not a key: {key[:80]!r}", hint="Keys are tokens joined by dots, without wildcards.")
    return key


def _revision(message: LookedUp) -> KeyRevision:
    operation = operation_of(message.headers)
    value = message.data if operation is KeyOperation.PUT else b""
    expired = has_expired(message.headers)
    return KeyRevision(key_of(message.subject), message.sequence, message.timestamp_ns, operation, value, expired)


def _state(revision: KeyRevision) -> KeyState:
    return KeyState(revision.key, revision.revision, revision.timestamp_ns, revision.operation)


def _at(at: Edge | None) -> str:
    return "" if at is None else f" at {at}"
