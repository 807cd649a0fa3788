"""A bucket at a moment, by the two backups around it: the last one from before, and the first one that knows it.

A later backup has lost more of what was there at the moment, and an earlier one knows less of what came until then. So
no other backup can say more. They are of one origin and one incarnation: what another stream of that name had counts
for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from jsbackup import compute as pc
from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError, StoreError, UnsupportedError, UsageError
from jsbackup.look.buckets.bucket import KeyList, KeyRevision, KeyValueBucket, key_list, key_subjects
from jsbackup.look.buckets.key_states import Continued, KeyRecord, KeyState, KeyVerdict, Unknown, state_since
from jsbackup.look.message import MessageFilter
from jsbackup.look.moment import is_known, known_until
from jsbackup.look.stream import ListedMessage, heads, listed_in, matching, refs_within
from jsbackup.names import is_subject
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.objects import Objects
from jsbackup.repository.origin import origin_of
from jsbackup.repository.repository import Repository
from jsbackup.transforms.cut import AtSequence, AtTime, Cut, Edge
from jsbackup.transforms.filters.key_marker import KeyOperation

__all__ = [
    "BucketSeries",
    "FoundList",
    "FoundValue",
    "KeyDifference",
    "find_series",
    "key_differences",
    "value_starts",
]


_THREADS = 6


@dataclass(frozen=True, slots=True)
class FoundValue:
    """A value, and the bucket that has it. `witness` is the backup which shows that nothing was written to the key from
    then until the moment, "" if it is the same one.
    """

    bucket: KeyValueBucket
    revision: KeyRevision
    witness: str = ""


@dataclass(frozen=True, slots=True)
class FoundList:
    """Keys, and the backups by which they are known, oldest first."""

    keys: KeyList
    backups: tuple[str, ...]


@dataclass(frozen=True)
class BucketSeries:
    """A bucket at the moment `at`: `after` is the first backup that knows it, `before` the last one from before, None
    if there is none. All methods raise IntegrityError, KeyUnavailable and StoreError.
    """

    at: Edge
    before: KeyValueBucket | None
    after: KeyValueBucket

    def value(self, key: str) -> FoundValue:
        """Return the key's value. Raises JsBackupError if it had none, IncompleteError if the backups cannot say."""
        try:
            return FoundValue(self.after, self.after.value(key, self.at))
        except IncompleteError as error:
            problem = error
        base = None if self.before is None else self.before.states(key).get(key)
        verdict = self._verdict(self.after.records(key, self.at).get(key, KeyRecord()), base)
        if self.before is None or verdict is Unknown.UNKNOWN:
            raise problem
        if verdict is None or verdict.operation is not KeyOperation.PUT:
            raise JsBackupError(
                f"key {key} of bucket {self.after.name} had no value at {self.at}: it had none in backup "
                f"{self.before.manifest.id}, and backup {self.after.manifest.id} has all that was written from then on"
            )
        return FoundValue(self.before, self.before.value(key), self.after.manifest.id)

    def keys(self, pattern: str) -> FoundList:
        """Return the keys that match."""
        alone = self.after.keys(self.at, pattern)
        if alone.certain or self.before is None:
            return FoundList(alone, (self.after.manifest.id,))
        records, states = self.after.records(pattern, self.at), self.before.states(pattern)
        verdicts = {
            key: self._verdict(records.get(key, KeyRecord()), states.get(key)) for key in records.keys() | states.keys()
        }
        whole = self._earlier is not None or is_subject(pattern)
        return FoundList(key_list(verdicts, whole=whole), (self.before.manifest.id, self.after.manifest.id))

    def _verdict(self, record: KeyRecord, base: KeyState | None) -> KeyVerdict:
        return state_since(record, self.after.removals, self._last_gap, base=base, earlier=self._earlier)

    @cached_property
    def _last_gap(self) -> int:
        return self.after.last_gap(self.at)

    @cached_property
    def _earlier(self) -> Continued | None:
        """What the state in `before` is good for; None if the later backup lacks messages that came in between."""
        if self.before is None or self.after.removals.copied or self.before.stream.remarks:
            return None
        end = self.before.stream.last_seq
        if self._last_gap > end or self._diverged(self.before, end):
            return None
        stream, at = self.after.stream, self.at
        moment_ns = at.time_ns if isinstance(at, AtTime) else known_until(self.after.manifest, stream)
        return Continued(moment_ns, stream.captured.first_seq)

    def _diverged(self, before: KeyValueBucket, end: int) -> bool:
        """Return whether the stream was put back to an older state in between (restored, or a server lost its newest
        messages): it has given sequences again that it had in the earlier backup.
        """
        later = AtTime(known_until(before.manifest, before.stream) + 1)
        again = MessageFilter(Cut(since=later, until=AtSequence(end)))
        stream, objects = self.after.stream, self.after.objects
        return stream.last_seq < end or any(
            True for ref in refs_within(stream.segments, again) for _ in heads(objects, ref, again, again.columns)
        )


def find_series(repository: Repository, bucket: KeyValueBucket, at: Edge) -> BucketSeries:
    """Return the backups of this bucket around the moment, which the given one knows. Backups that cannot be read are
    left out.

    Raises:
        KeyUnavailable: a manifest cannot be read without a key that was not given.
        StoreError: the backups cannot be listed.
    """
    before: KeyValueBucket | None = None
    after = bucket
    if bucket.manifest.source.is_of_a_server:
        tasks = [partial(_bucket_in, repository, bucket, backup) for backup in repository.backups()]
        known = [series for series in in_order(tasks, _THREADS) if series is not None]
        knowing = [bucket for bucket in known if is_known(bucket.manifest, bucket.stream, at)]
        after = knowing[0] if knowing else bucket
        earlier = [bucket for bucket in known if bucket.manifest.id < after.manifest.id and bucket not in knowing]
        before = earlier[-1] if earlier else None
    return BucketSeries(at, before, after)


def _bucket_in(repository: Repository, like: KeyValueBucket, backup: str) -> KeyValueBucket | None:
    """Return the same bucket in another backup, None if it is not there."""
    try:
        manifest: Manifest = repository.manifest(backup, in_part=True, names=[like.stream.name])
    except (UsageError, IntegrityError, StoreError, UnsupportedError):  # forgotten meanwhile, or damaged
        return None
    entry = next((entry for entry in manifest.streams if entry.name == like.stream.name), None)
    if (
        entry is None
        or entry.incarnation != like.stream.incarnation
        or not entry.archive_format.has_messages
        or not manifest.source.is_of_a_server
        or origin_of(manifest.source) != origin_of(like.manifest.source)
    ):
        return None
    return KeyValueBucket(repository.objects, replace(manifest, streams=(entry,)), entry)


# --- key values ---
#
# The values that some keys of a bucket had at a moment, read together; and what differs between two moments.


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key with its revision in A and in B, None where it had no value."""

    key: str
    a: int | None
    b: int | None


def value_starts(objects: Objects, bucket: KeyValueBucket, keys: Sequence[KeyState]) -> dict[int, ListedMessage]:
    """Return the starts of the values of these revisions, by revision.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    if not keys:
        return {}
    wanted = {state.revision for state in keys}
    literal = [state.key for state in keys if is_subject(state.key)]
    subjects = tuple(subject for key in literal for subject in key_subjects(bucket.stream, key))
    if any("*" in subject for subject in subjects):
        subjects = ()
    cut = Cut(AtSequence(min(wanted)), AtSequence(max(wanted)))
    batches = matching(objects, bucket.stream.segments, MessageFilter(cut, subjects))
    rows = (
        batch.filter(pc.is_in(batch.column("sequence"), value_set=pc.int64_array(sorted(wanted)))) for batch in batches
    )
    return {message.sequence: message for batch in rows for message in listed_in(batch)}


def key_differences(a: Sequence[KeyState], b: Sequence[KeyState]) -> list[KeyDifference]:
    """Return the keys that only one side has, or that have another revision. Both sides are of the same stream."""
    old, new = ({state.key: (state.revision, state.timestamp_ns) for state in side} for side in (a, b))
    differ = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [
        KeyDifference(key, old[key][0] if key in old else None, new[key][0] if key in new else None) for key in differ
    ]
