"""The values that some keys of a bucket had at a moment, read together; and what differs between two moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jsbackup.look.buckets.bucket import KeyValueBucket, key_subjects
from jsbackup.look.buckets.key_states import KeyState
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import matching
from jsbackup.names import is_subject
from jsbackup.repository.objects import Objects
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = ["KeyDifference", "ValueStart", "key_differences", "value_starts"]

_START_BYTES = 256


@dataclass(frozen=True, slots=True)
class ValueStart:
    """The `start` of a value of `size` bytes."""

    size: int
    start: bytes


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key with its revision in A and in B, None where it had no value."""

    key: str
    a: int | None
    b: int | None


def value_starts(objects: Objects, bucket: KeyValueBucket, keys: Sequence[KeyState]) -> dict[int, ValueStart]:
    """Return the starts of the values of these revisions, by revision. Raises as `matching`."""
    wanted = {one.revision for one in keys}
    literal = [one.key for one in keys if is_subject(one.key)]
    subjects = tuple(subject for key in literal for subject in key_subjects(bucket.stream, key))
    if not subjects or any("*" in subject for subject in subjects):
        subjects = ()
    cut = Cut(AtSequence(min(wanted)), AtSequence(max(wanted))) if wanted else Cut()
    found: dict[int, ValueStart] = {}
    for batch in matching(objects, bucket.stream.segments, MessageFilter(cut, subjects)) if wanted else ():
        sequences, data = batch.column("sequence").to_pylist(), batch.column("data")
        for row, sequence in enumerate(sequences):
            if sequence in wanted:
                value = data[row].as_buffer()
                start = value.slice(0, min(value.size, _START_BYTES)).to_pybytes()
                found[sequence] = ValueStart(value.size, start)
    return found


def key_differences(a: Sequence[KeyState], b: Sequence[KeyState]) -> list[KeyDifference]:
    """Return the keys that only one side has, or that have another revision. Both sides are of the same stream."""
    old, new = ({one.key: (one.revision, one.timestamp_ns) for one in side} for side in (a, b))
    differ = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return [
        KeyDifference(key, old[key][0] if key in old else None, new[key][0] if key in new else None) for key in differ
    ]
