"""Streams of a backup that are exported changed: cut, filtered, renamed, masked, as a restore would send them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from jsbackup.exchange.exporting import ChangedStream
from jsbackup.planning.selection.count_subset import reshaped_messages, survey
from jsbackup.planning.selection.subset import KeptStream
from jsbackup.planning.transforming import (
    PlannedStream,
    TransformOptions,
    about_transformed,
    refuse_results,
    transformed_entry,
)
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.times import format_time

__all__ = ["change_streams"]


def change_streams(
    objects: Objects, backup: str, planned: Sequence[PlannedStream], options: TransformOptions, *, secret: bytes
) -> list[StreamBackup | ChangedStream]:
    """Return the streams to export, unchanged ones as they are stored. All messages of the others are read.

    Raises:
        PlanRefused: a message cannot be masked, a mask or a filter has found nothing, or nothing is left of a stream.
        UsageError: there is no secret to hash with.
        IntegrityError, KeyUnavailable, StoreError: messages cannot be read.
    """
    results = [(one, _kept(objects, one, secret)) for one in planned]
    refuse_results(backup, options, results, "exported")
    return [_changed(objects, one, kept, options, secret=secret) for one, kept in results]


def _kept(objects: Objects, one: PlannedStream, secret: bytes) -> KeptStream:
    if not one.entry.archive_format.has_messages or not one.works:
        return KeptStream(one.entry, had=one.entry.captured.messages)
    return survey(objects, one.entry, one.reshaped.messages, secret)


def _changed(
    objects: Objects, one: PlannedStream, kept: KeptStream, options: TransformOptions, *, secret: bytes
) -> StreamBackup | ChangedStream:
    if one.entry.archive_format is ArchiveFormat.OPAQUE or not (one.works or one.renamed):
        return one.entry
    notes = [finding.reason for finding in about_transformed(one, kept, options)]
    before = {consumer.name: consumer.reason for consumer in one.entry.consumers}
    notes += [f"consumer {c.name}: {c.reason}" for c in kept.entry.consumers if c.reason != before[c.name]]
    reshape = one.reshaped.with_chosen(kept)
    created = format_time(time.time_ns()) if reshape.alters else one.entry.created
    batches = partial(reshaped_messages, objects, kept.entry, reshape, secret)
    return ChangedStream(transformed_entry(one, kept), batches, created, tuple(notes))
