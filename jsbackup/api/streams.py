"""A stream in a backup: its messages, its configuration, its consumers."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jsbackup.api.arguments import Moment, as_texts, moment_text, to_datetime
from jsbackup.errors import UnsupportedError, UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.model import JsonObject
from jsbackup.planning.selection.subset import segments_within
from jsbackup.repository.manifest import ArchiveFormat, ConsumerBackup, SegmentRef, StreamBackup
from jsbackup.repository.segments import SegmentReader
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_filter import SubjectFilter

if TYPE_CHECKING:
    from jsbackup.api.stored import Backup
    from jsbackup.formats.digest import MessageBatch

__all__ = ["Consumer", "Stream"]


class Stream:
    """A stream in a backup."""

    def __init__(self, backup: Backup, entry: StreamBackup) -> None:
        self.backup = backup
        self._entry = entry

    @property
    def name(self) -> str:
        return self._entry.name

    @property
    def config(self) -> JsonObject:
        """Its configuration in the form of the JetStream API; a copy."""
        return copy.deepcopy(self._entry.config)

    @property
    def created(self) -> datetime:
        """When the server created it, in UTC, to the microsecond."""
        return to_datetime(self._entry.created)

    @property
    def first_seq(self) -> int:
        """Sequence of the first stored message, 0 without messages."""
        return self._entry.captured.first_seq

    @property
    def last_seq(self) -> int:
        """Sequence of the last stored message, 0 without messages."""
        return self._entry.captured.last_seq

    @property
    def message_count(self) -> int:
        """Number of stored messages."""
        return self._entry.captured.messages

    @property
    def byte_count(self) -> int:
        """Bytes of these messages, uncompressed."""
        return self._entry.captured.bytes

    @property
    def digest(self) -> str:
        """Digest of these messages, in hex: equal messages at equal sequences have equal digests."""
        return self._entry.digest.hex

    @property
    def consumers(self) -> dict[str, Consumer]:
        """Its consumers, by their names."""
        return {one.name: _consumer(one) for one in self._entry.consumers}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is missing or uncertain, in sentences."""
        return self._entry.warnings

    def messages(
        self,
        subject: str | Sequence[str] | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> Iterator[MessageBatch]:
        """Yield its messages in rising sequence, as Arrow record batches of some MiB.

        The columns are `sequence` (int64), `timestamp_ns` (int64, nanoseconds since 1970 in UTC), `subject` (string; in
        a batch with a subject that is not UTF-8, binary), `headers` (the header block as bytes, null without one) and
        `data` (bytes).

        `subject` is a subject with wildcards, or several of them, of which one must match; messages are from `since` to
        `until`, both included. Only stored objects that may have such messages are read, one after the other: one is in
        memory at a time, with at most 32 MiB of messages (or a single larger one). Each is checked against its SHA-256
        first.

        Raises, with the first batch or a later one:
            IntegrityError: messages are missing or damaged; also if the backup was forgotten meanwhile.
            KeyUnavailable: they are encrypted, and no key that reads them was given.
            StoreError: they cannot be read.

        Raises at once:
            UsageError: an argument is wrong, or the backup has only the configuration of the stream.
            UnsupportedError: they are in an archive format that this version does not know.
        """
        entry = self._entry
        if entry.archive_format is ArchiveFormat.CONFIG:
            raise UsageError(f"backup {self.backup.id} has only the configuration of stream {self.name}, no messages")
        if entry.archive_format is ArchiveFormat.OPAQUE:
            raise UnsupportedError(f"stream {self.name} is of an archive format that is not known here")
        cut = Cut.parse(moment_text("since", since), moment_text("until", until), time.time_ns())
        reshape = Reshape(cut=cut, subjects=None if subject is None else SubjectFilter.parse(as_texts(subject)))
        batches = self._read(segments_within(entry, cut))
        return reshape.apply(batches, stream=self.name) if reshape else batches

    def _read(self, segments: Sequence[SegmentRef]) -> Iterator[MessageBatch]:
        # Without the memory budget of a run: a thread that reads two streams side by side would wait for itself.
        reader = SegmentReader(self.backup.repository._opened().objects)
        for ref in segments:
            yield from reader.read(ref)

    def table(
        self,
        subject: str | Sequence[str] | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> Any:
        """Return the same messages as one Arrow table (`pyarrow.Table`), all in memory. Raises the same errors as
        `messages`.
        """
        import pyarrow as pa

        batches = list(self.messages(subject, since=since, until=until))
        return pa.Table.from_batches(batches, schema=None if batches else BATCH_SCHEMA)

    def __repr__(self) -> str:
        return f"<jsbackup stream {self.name} of backup {self.backup.id}>"


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer in a backup. Sequences are those of the stream.

    `delivered_seq` is the last one delivered, `ack_floor_seq` the one up to which all are acknowledged; None if only
    the configuration is known. `exact`: its state is known to the last message; if not, `reason` says why.
    """

    name: str
    config: JsonObject
    delivered_seq: int | None
    ack_floor_seq: int | None
    exact: bool
    reason: str


def _consumer(entry: ConsumerBackup) -> Consumer:
    state = entry.state
    return Consumer(
        entry.name,
        copy.deepcopy(entry.config),
        None if state is None else state.delivered.stream,
        None if state is None else state.ack_floor.stream,
        entry.fidelity == "exact",
        entry.reason,
    )
