"""Mask a batch of messages: the kernel masks (`formats/_shaping_py.py`); this module decides which rules are for which
messages, and what becomes of those that cannot be read.

Payloads that servers and clients read stay valid:

- **Counters** (messages with `Nats-Incr`): the payload is the value to go on from (nats-server `server/stream.go`). A
  mask of whole payloads leaves it as it is, and a path that would change it is refused.
- **Metadata of objects** (`object_meta.py`): a mask of whole payloads leaves it as it is, except for the digest of a
  content that becomes zeros.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import PlanRefused
from jsbackup.formats import kernels
from jsbackup.formats.batch import Columns, columns_from_batch
from jsbackup.formats.mask_rules import MaskAction, MaskedRows
from jsbackup.transforms.batches import (
    DATA,
    HEADERS,
    SEQUENCE,
    MessageBatch,
    Subjects,
    array_of,
    int32_array,
    keep_rows,
    mentions,
    with_column,
)
from jsbackup.transforms.mask import MaskCount, Masks, Unmaskable
from jsbackup.transforms.object_meta import META_SUBJECTS, chunks_of, with_zeros
from jsbackup.transforms.subjects import matcher

__all__ = ["mask_batch"]

_COUNTER = b"\r\nNats-Incr:"
_COUNTERS = re.compile(_COUNTER)
_ONE_BY_ONE = 2  # the kernel's fault of a message whose masks are to be applied one after the other


def mask_batch(masks: Masks, batch: MessageBatch, stream: str, secret: bytes, *, count: MaskCount) -> MessageBatch:
    """Return the masked batch; its subjects are those in the backup. `stream` names the stream in a refusal.

    Raises:
        PlanRefused: a message cannot be read, and the default says to refuse it; or a counter's value would change.
        UsageError: there is no secret to hash with.
    """
    masks.check_secret(secret)
    if not batch.num_rows:
        return batch
    subjects = Subjects(batch)
    rows, sets = subjects.sets([mask.subjects for mask in masks.masks])
    chosen = _Chosen(int32_array(rows), list(sets))
    count.unmasked += chosen.without_masks()
    whole = any(mask.of_payload for mask in masks.masks)
    if not any(sets) and not whole:
        return batch
    masking = _Masking(masks, batch, stream, secret=secret, count=count)
    counters = masking.counters()
    descriptions = subjects.matches([META_SUBJECTS]) if whole else None
    for special in (counters, descriptions):
        if whole and special is not None:
            count.spared += chosen.spare(special, masks, batch.column(DATA))
    masked = masking.mask(chosen)
    if counters is not None:
        masking.check_counters(masked, counters)
    if descriptions is not None:
        masked = _with_zeroed_objects(masked, masks, subjects, descriptions)
    return masking.without_unread(masked)


@dataclass(slots=True)
class _Chosen:
    """The number of each row's set of masks, and these sets."""

    rows: pa.Int32Array
    sets: list[tuple[int, ...]]

    def without_masks(self) -> int:
        """Return the number of messages that no mask is for."""
        empty = [number for number, some in enumerate(self.sets) if not some]
        return int(pc.sum(pc.equal(self.rows, empty[0])).as_py()) if empty else 0

    def spare(self, special: pa.BooleanArray, masks: Masks, payloads: pa.Array) -> int:
        """Take masks of whole payloads away from special messages; return the number of those that keep one so."""
        others = []
        for some in list(self.sets):
            left = tuple(number for number in some if not masks.masks[number].of_payload)
            if left not in self.sets:
                self.sets.append(left)
            others.append(self.sets.index(left))
        changed = pa.array(others, pa.int32()).take(self.rows)
        spared = pc.and_(special, pc.not_equal(changed, self.rows))
        self.rows = pc.if_else(spared, changed, self.rows)
        return int(pc.sum(pc.and_(spared, pc.greater(pc.binary_length(payloads), 0))).as_py())


class _Masking:
    """One batch, and what is done with it."""

    def __init__(self, masks: Masks, batch: MessageBatch, stream: str, *, secret: bytes, count: MaskCount) -> None:
        self._masks = masks
        self._batch = batch
        self._stream = stream
        self._masker = kernels.Masker([mask.rule for mask in masks.masks], secret)
        self._count = count
        self._faults = b""

    def counters(self) -> pa.BooleanArray | None:
        """Return which messages are counters; None if none is."""
        column = self._batch.column(HEADERS)
        if not mentions(column, _COUNTERS):
            return None
        found = pc.fill_null(pc.match_substring(column, _COUNTER), False)
        return found if found.true_count else None

    def mask(self, chosen: _Chosen) -> MessageBatch:
        """Return the masked batch with all its rows; those that cannot be read as they were."""
        apart = self._masks.unmaskable is Unmaskable.KEEP
        columns = columns_from_batch(self._batch)
        masked = self._masker.mask(columns, chosen.sets, chosen.rows.buffers()[1], apart)
        self._faults = masked.faults
        self._add(masked)
        batch = _with_masked(self._batch, columns, masked)
        for row in _bad_rows(masked.faults):
            some = chosen.sets[chosen.rows[row].as_py()]
            if self._masks.unmaskable is Unmaskable.REFUSE:
                self._refuse(row, some)
            if apart and masked.faults[row] == _ONE_BY_ONE:
                batch = self._one_by_one(batch, row, some)
        self._count.kept += masked.faults.count(1) if apart else 0
        return batch

    def without_unread(self, batch: MessageBatch) -> MessageBatch:
        """Return the batch without messages that could not be read, if they are to be dropped."""
        if self._masks.unmaskable is not Unmaskable.DROP or not any(self._faults):
            return batch
        faults = pa.Array.from_buffers(pa.uint8(), len(self._faults), [None, pa.py_buffer(self._faults)])
        rows = pc.equal(faults, 0)
        self._count.dropped += rows.false_count
        return keep_rows(batch, rows)

    def check_counters(self, masked: MessageBatch, counters: pa.BooleanArray) -> None:
        """Raise PlanRefused if the value of a counter was changed."""
        before, after = self._batch.column(DATA).filter(counters), masked.column(DATA).filter(counters)
        changed = pc.index(pc.not_equal(before, after), True).as_py()
        if changed >= 0:
            sequence = self._batch.column(SEQUENCE).filter(counters)[changed]
            raise PlanRefused(
                f"message {sequence} of stream {self._stream} is a counter, and a mask would change its value",
                hint="Choose subjects for --mask that are not those of counters.",
            )

    def _refuse(self, row: int, some: Sequence[int]) -> None:
        headers, data = (self._batch.column(column)[row].as_py() for column in (HEADERS, DATA))
        reason = self._masker.reason(some, headers, data)
        raise PlanRefused(
            f"message {self._batch.column(SEQUENCE)[row]} of stream {self._stream} cannot be masked: {reason}",
            hint="Narrow the subjects of --mask, or choose with --unmaskable what becomes of such messages.",
        )

    def _one_by_one(self, batch: MessageBatch, row: int, some: Sequence[int]) -> MessageBatch:
        """Apply masks to a message that all of them together make too large. Those that fail leave it as it is."""
        message, failed = batch.slice(row, 1), False
        for number in some:
            columns = columns_from_batch(message)
            masked = self._masker.mask(columns, [(number,)], bytes(4), True)
            failed = failed or any(masked.faults)
            if masked.faults[0] == _ONE_BY_ONE:
                self._count.seen[number] = self._count.seen.get(number, 0) + 1
            self._add(masked)
            message = _with_masked(message, columns, masked)
        self._count.kept += failed
        parts = [batch.slice(0, row), message, batch.slice(row + 1)]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    def _add(self, masked: MaskedRows) -> None:
        count = self._count
        for number, found in enumerate(masked.counts):
            for into, more in ((count.seen, found.seen), (count.values, found.values), (count.hit, found.hit)):
                if more or (into is count.values and found.read):
                    into[number] = into.get(number, 0) + more


def _with_masked(batch: MessageBatch, columns: Columns, masked: MaskedRows) -> MessageBatch:
    if masked.headers is not None:
        batch = with_column(batch, HEADERS, array_of(pa.binary(), masked.headers, columns.header_validity))
    if masked.data is not None:
        batch = with_column(batch, DATA, array_of(pa.binary(), masked.data))
    return batch


def _with_zeroed_objects(
    batch: MessageBatch, masks: Masks, subjects: Subjects, descriptions: pa.BooleanArray
) -> MessageBatch:
    """Return the batch with the digests of objects whose chunks become zeros."""
    zeroing = [matcher(mask.subjects) for mask in masks.masks if mask.action is MaskAction.ZERO]
    rows = _indices(descriptions) if zeroing else []
    if not rows:
        return batch
    before, texts = batch.column(DATA), list(subjects)

    def zeroed(row: int) -> bytes:
        def are_zeros(nuid: str) -> bool:
            return any(pattern.fullmatch(chunks_of(texts[row], nuid)) for pattern in zeroing)

        payload: bytes = before[row].as_py()
        return with_zeros(payload, are_zeros)

    changed = pa.array([zeroed(row) for row in rows], pa.binary())
    return with_column(batch, DATA, pc.replace_with_mask(before, descriptions, changed))


def _bad_rows(faults: bytes) -> Iterator[int]:
    """Yield the rows with a fault; quick where there is none."""
    sound = len(faults) - len(faults.lstrip(b"\0"))
    return (row for row in range(sound, len(faults)) if faults[row])


def _indices(rows: pa.BooleanArray) -> list[int]:
    found: list[int] = pc.indices_nonzero(rows).to_pylist()
    return found
