"""All transforms of a restore as one value, used by restores, clones and Spark jobs.

Each message is kept or not (`cut`, then `filters`, then `newest`), then masked, and then its subject, its headers that
name subjects and streams, and an object's metadata are mapped (`maps`, then those of renamed buckets). Filters and
masks therefore see the subjects in the backup. Times stay, and so do sequences unless `renumber` counts from 1.
`obfuscation` comes after all that: it hides what the other changes have made.

What `newest` keeps is only known after a pass over all messages (`filters/newest.py`): `chosen` has the result.

`of_stream` returns the value for one stream: its sources have marks in headers that depend on its config. The secret
for hashes is never part of it.

Memory: one input batch and one output batch.

Mask a batch of messages: the kernel masks (`formats/_shaping_py.py`); this module decides which rules are for which
messages, and what becomes of those that cannot be read.

Payloads that servers and clients read stay valid:

- **Counters** (messages with `Nats-Incr`): the payload is the value to go on from (nats-server `server/stream.go`). A
  mask of whole payloads leaves it as it is, and a path that would change it is refused.
- **Metadata of objects** (`object_meta.py`): a mask of whole payloads leaves it as it is, except for the digest of a
  content that becomes zeros.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.errors import PlanRefused
from jsbackup.formats import kernels
from jsbackup.formats.batch import Columns, columns_from_batch
from jsbackup.formats.mask_rules import MaskAction, MaskedRows
from jsbackup.model import JsonObject
from jsbackup.transforms.batches import (
    DATA,
    HEADERS,
    SEQUENCE,
    SUBJECT,
    TIMESTAMP,
    MessageBatch,
    Subjects,
    array_of,
    int32_array,
    keep_rows,
    mentions,
    rebatch,
    with_column,
)
from jsbackup.transforms.copied_from import (
    ANY_MARK,
    MARK_HEADERS,
    Mend,
    SourceMark,
    follow_headers,
    mend_marks,
    source_marks,
)
from jsbackup.transforms.copy_positions import SourceKey
from jsbackup.transforms.cut import Cut, Extent
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.key_marker import marker_rows
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.filters.rising import RisingSequences
from jsbackup.transforms.follow import (
    held_by,
    map_consumer_config,
    map_stream_config,
    subjects_of,
)
from jsbackup.transforms.mask import MaskCount, Masks, Unmaskable
from jsbackup.transforms.rename import Renames, StreamKind, bucket_of
from jsbackup.transforms.renumber import numbered, without_first_seq
from jsbackup.transforms.subject_map import UNTOUCHED, SubjectMaps
from jsbackup.transforms.subjects import matcher

if TYPE_CHECKING:
    from jsbackup.transforms.obfuscate.messages import Obfuscation

__all__ = ["Reshape", "ReshapeTally", "mask_batch"]

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
    from jsbackup.transforms.object_meta import META_SUBJECTS  # not imported for restores without masks

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
        is_counter = pc.fill_null(pc.match_substring(column, _COUNTER), False)
        return is_counter if is_counter.true_count else None

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
        for number, masked_count in enumerate(masked.counts):
            for into, more in (
                (count.seen, masked_count.seen),
                (count.values, masked_count.values),
                (count.hit, masked_count.hit),
            ):
                if more or (into is count.values and masked_count.read):
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
    from jsbackup.transforms.object_meta import chunks_of, with_zeros

    zeroing = [matcher(mask.subjects) for mask in masks.masks if mask.rule.action is MaskAction.ZERO]
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
    indices: list[int] = pc.indices_nonzero(rows).to_pylist()
    return indices


@dataclass(slots=True)
class ReshapeTally:
    """What has been processed: all messages that came in, those within the cut, and those that went out.

    Sequences are those before any new numbers. `first_dropped` is sequence and time of the first message after the last
    one within the cut so far. `matched` counts the messages that met conditions of `filters` (`Filters.rows`).
    `markers` counts messages of a bucket that say that a key is gone, and are left out because of their content.
    `numbered` are the messages that have new numbers, from 1.
    """

    came: Extent = field(default_factory=Extent)
    cut: Extent = field(default_factory=Extent)
    kept: Extent = field(default_factory=Extent)
    first_dropped: tuple[int, int] | None = None
    masked: MaskCount = field(default_factory=MaskCount)
    matched: Counter[str] = field(default_factory=Counter)
    markers: int = 0
    numbered: RisingSequences = field(default_factory=RisingSequences)

    def _cut(self, before: MessageBatch, rows: pa.BooleanArray, after: MessageBatch) -> None:
        self.came = self.came.plus(before)
        self.cut = self.cut.plus(after)
        if after.num_rows:
            self.first_dropped = None
        if after.num_rows == before.num_rows or self.first_dropped is not None:
            return
        last = pc.index(before.column(SEQUENCE), self.cut.last_seq).as_py() if after.num_rows else -1
        if last + 1 < before.num_rows:
            self.first_dropped = (before.column(SEQUENCE)[last + 1].as_py(), before.column(TIMESTAMP)[last + 1].as_py())


@dataclass(frozen=True, slots=True)
class Reshape:
    """The changes to a stream's messages and its config. The default changes nothing."""

    cut: Cut = field(default_factory=Cut)
    filters: Filters = field(default_factory=Filters)
    maps: SubjectMaps = UNTOUCHED
    renames: Renames = field(default_factory=Renames)
    masks: Masks = field(default_factory=Masks)
    marks: tuple[SourceMark, ...] = ()
    unwanted: tuple[str, ...] = ()  # names of headers; a message with one of these is refused
    newest: NewestRule | None = None
    renumber: bool = False
    chosen: RisingSequences | None = None  # what `newest` keeps, once it is known
    obfuscation: Obfuscation | None = None  # has a secret

    def __bool__(self) -> bool:
        """Return whether anything is to be changed."""
        changes = self.masks or self._moves or self.marks or self.unwanted or self.renumber or self.obfuscation
        return bool(self.drops or changes)

    @property
    def drops(self) -> bool:
        """Whether messages can be dropped."""
        return bool(self.cut or self.drops_by_filters or self.masks_drop)

    @property
    def drops_by_filters(self) -> bool:
        """Whether messages can be dropped by anything but a cut and masks."""
        return bool(self.filters or self.newest)

    @property
    def masks_drop(self) -> bool:
        """Whether messages that cannot be masked are dropped."""
        return bool(self.masks and self.masks.unmaskable is Unmaskable.DROP)

    @property
    def keeping(self) -> Reshape:
        """What decides which messages are kept, apart from masks."""
        return Reshape(self.cut, self.filters, newest=self.newest, chosen=self.chosen)

    @property
    def alters(self) -> bool:
        """Whether a kept message may change. Renames are not considered here: their effect depends on the streams'
        names.
        """
        return bool(self.maps or self.masks or self.marks or self.renumber or self.obfuscation)

    @property
    def _moves(self) -> bool:
        return bool(self.maps or self.renames)

    def of_stream(self, config: JsonObject, restored: Collection[str]) -> Reshape:
        """Return the value for the stream with that config; `restored` names all streams that this is applied to.

        Raises PlanRefused and FormatError as `stream_config` does.
        """
        own = self if self.obfuscation is None else replace(self, obfuscation=self.obfuscation.of_stream(config))
        if not self._moves:
            return own
        return replace(own, marks=source_marks(config, self._clear_config(config, restored), list(restored)))

    def of_copy(self, config: JsonObject, mends: Mapping[SourceKey, Mend]) -> Reshape:
        """Return the value for a stream with sources, whose marks are corrected; `config` is its present one.

        Raises FormatError as `stream_config` does.
        """
        return replace(self, marks=mend_marks(config, self.marks, mends)) if any(mends.values()) else self

    def stream_config(self, config: JsonObject, restored: Collection[str]) -> JsonObject:
        """Return the changed config of a stream.

        Raises:
            PlanRefused: it cannot be adapted to the maps.
            FormatError: a field that names streams or subjects is damaged.
        """
        config = self._clear_config(config, restored)
        return config if self.obfuscation is None else self.obfuscation.stream_config(config)

    def _clear_config(self, config: JsonObject, restored: Collection[str]) -> JsonObject:
        for maps in (self.maps, self.renames.subjects):
            if maps:
                config = map_stream_config(config, maps, restored)
        config = self.renames.config(config) if self.renames else config
        return without_first_seq(config) if self.renumber else config

    def stream_name(self, old: str) -> str:
        """Return the new name of a stream."""
        name = self.renames.name(old)
        return name if self.obfuscation is None else self.obfuscation.names.stream(name)

    def consumer_name(self, old: str) -> str:
        """Return the new name of a consumer."""
        return old if self.obfuscation is None else self.obfuscation.names.token(old)

    def consumer_config(self, config: JsonObject, stream: JsonObject, restored: Collection[str]) -> JsonObject:
        """Return the config of a consumer of the stream whose config (before this) is `stream`.

        Raises the same errors as `stream_config`.
        """
        if self.maps:
            config = map_consumer_config(config, self.maps.guarding(held_by(stream)), subjects_of(stream))
            stream = map_stream_config(stream, self.maps, restored)
        if self.renames.subjects:
            config = map_consumer_config(config, self.renames.subjects, subjects_of(stream))
        return config if self.obfuscation is None else self.obfuscation.consumer_config(config)

    def move(self, subject: str) -> str:
        """Return the new subject of messages with this one, before it is obfuscated."""
        return self.renames.subjects.map(self.maps.map(subject))

    def apply(
        self, batches: Iterable[MessageBatch], *, stream: str, secret: bytes = b"", tally: ReshapeTally | None = None
    ) -> Iterator[MessageBatch]:
        """Yield the changed messages of the stream (named as in the backup). `tally` is updated, and counts on: the
        stream may come in parts.

        Raises:
            PlanRefused: a message cannot be masked, has an unwanted header, or two counters would become one.
            UsageError: values are to be hashed, and there is no secret.
            FormatError: not batches of messages.
        """
        assert self.newest is None or self.chosen is not None, "the newest messages were not looked for"
        self.masks.check_secret(secret)
        tally = ReshapeTally() if tally is None else tally
        return rebatch(self._each(batches, stream, secret, tally))

    def _each(
        self, batches: Iterable[MessageBatch], stream: str, secret: bytes, tally: ReshapeTally
    ) -> Iterator[MessageBatch]:
        for batch in batches:
            rows = self.cut.rows(batch)
            within = keep_rows(batch, rows)
            tally._cut(batch, rows, within)
            if not within.num_rows:
                continue
            within = self._kept(within, stream, tally)
            self._refuse_unwanted(within, stream)
            if self.masks:
                within = mask_batch(self.masks, within, stream, secret, count=tally.masked)
            if self._moves or self.marks:
                within = self._moved(within, Subjects(within))
            if self.obfuscation is not None:
                within = self.obfuscation.apply(within)
            tally.kept = tally.kept.plus(within)
            yield numbered(within, tally.numbered) if self.renumber else within

    def _kept(self, batch: MessageBatch, stream: str, tally: ReshapeTally) -> MessageBatch:
        masks = [
            self.filters.rows(batch, tally.matched) if self.filters else None,
            None if self.chosen is None else self.chosen.rows(batch.column(SEQUENCE)),
        ]
        if self.filters.by_content and masks[0] is not None and bucket_of(stream)[0] is StreamKind.KEY_VALUE:
            by_subject = self.filters.by_subject.rows(batch)
            dropped = pc.invert(masks[0]) if by_subject is None else pc.and_not(by_subject, masks[0])
            tally.markers += marker_rows(batch.column(HEADERS).filter(dropped)).true_count
        masks_left = [mask for mask in masks if mask is not None]
        return keep_rows(batch, reduce(pc.and_, masks_left)) if masks_left else batch

    def _refuse_unwanted(self, batch: MessageBatch, stream: str) -> None:
        column = batch.column(HEADERS)
        if column.null_count == batch.num_rows:
            return
        for name in self.unwanted:
            at = pc.index(pc.match_substring(column, f"\r\n{name}:".encode()), True).as_py()
            if at >= 0:
                raise PlanRefused(
                    f"message {batch.column(SEQUENCE)[at].as_py()} of stream {stream} has the header {name}, which "
                    "the target does not know",
                    hint="Restore into a newer server, leave such messages out (--subject, --since, --until), or leave "
                    "the setting out anyway with --set FIELD=null.",
                )

    def _moved(self, batch: MessageBatch, subjects: Subjects) -> MessageBatch:
        batch = self._with_moved_headers(batch)
        if any(bucket_of(old)[0] is StreamKind.OBJECT for old, _ in self.renames.names):
            from jsbackup.transforms.object_meta import META_SUBJECTS, rename_in_meta

            meta = matcher(META_SUBJECTS)
            rows = subjects.rows(lambda text: meta.fullmatch(self.maps.map(text)) is not None).to_pylist()
            if any(rows):
                payloads = batch.column(DATA).to_pylist()
                rename = self.renames.object_bucket
                changed = [rename_in_meta(p, rename) if row else p for p, row in zip(payloads, rows, strict=True)]
                batch = with_column(batch, DATA, changed)
        moved = subjects.mapped([self.maps.stage, self.renames.subjects.stage])
        return batch if moved is None else with_column(batch, SUBJECT, moved)

    def _with_moved_headers(self, batch: MessageBatch) -> MessageBatch:
        column = batch.column(HEADERS)
        if not mentions(column, ANY_MARK):
            return batch
        marked = reduce(pc.or_, [pc.match_substring(column, mark) for mark in MARK_HEADERS]).to_pylist()
        if not any(marked):
            return batch
        blocks = [
            follow_headers(block, self.marks, self.renames.name, self.move) if mark else block
            for block, mark in zip(column.to_pylist(), marked, strict=True)
        ]
        return with_column(batch, HEADERS, blocks)
