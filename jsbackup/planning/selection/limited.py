"""What limits remove of stored streams: counted in their messages, where bounds in the manifest do not decide.

Only those segments are read that have messages on both sides of a `max_age`; of subjects, all; of times to live of
single messages, the first ones up to a limit.

Stored messages that a stream removes as soon as they are restored because of their own time to live (`Nats-TTL`), or
publishes because their schedule is due.

That is in their headers, so all segments have to be fetched; only these columns are decoded. The first ones are looked
at, up to a limit: what is known of the others is nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from jsbackup.errors import IntegrityError, KeyUnavailable
from jsbackup.model import JsonObject
from jsbackup.planning.configs.overrides import trims
from jsbackup.planning.model import Action, Outlived, RestoreOptions, RestorePlan, Target
from jsbackup.planning.rules import Finding
from jsbackup.planning.selection.count_subset import survey_cut
from jsbackup.planning.selection.newest_pass import with_newest
from jsbackup.planning.selection.subset import KeptStream, segments_within
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.segments import read_columns
from jsbackup.transforms.batches import TIMESTAMP
from jsbackup.transforms.cut import AtTime, Cut
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.removal import Cause, removal_of

__all__ = ["MOST_BYTES", "SUBJECT_LIMIT", "LimitedStreams", "Lived", "find_outlived", "lowered_subject_limit"]

# Stored bytes and messages of a stream that are looked at: some seconds from S3, and some of one core.
MOST_BYTES = 512 << 20
_MOST_MESSAGES = 4_000_000

_THREADS = 3  # they wait for the store, or compute SHA-256
# What stands for a deletion: no content is lost with it.
_MARKERS = (b"\r\nNats-Marker-Reason:", b"\r\nKV-Operation: DEL\r\n", b"\r\nKV-Operation: PURGE\r\n")


def find_outlived(
    objects: Objects, entry: StreamBackup, cut: Cut, config: JsonObject, *, now_ns: int, most_bytes: int = MOST_BYTES
) -> Outlived:
    """Return how many of the messages within a cut are gone at once from a stream with this configuration. Markers of
    deleted keys are not counted.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    look = partial(_look_at, objects, cut=cut, config=config, now_ns=now_ns)
    tasks = (partial(look, ref) for ref in _first(entry, cut, most_bytes))
    with closing(in_order(tasks, _THREADS)) as outlived:
        return sum(outlived, Outlived())


def _first(entry: StreamBackup, cut: Cut, most_bytes: int) -> Iterator[SegmentRef]:
    size = messages = 0
    for ref in segments_within(entry, cut):
        if size and (size + ref.size > most_bytes or messages + ref.messages > _MOST_MESSAGES):
            return
        size, messages = size + ref.size, messages + ref.messages
        yield ref


def _look_at(objects: Objects, ref: SegmentRef, *, cut: Cut, config: JsonObject, now_ns: int) -> Outlived:
    by_ttl = expired = looked = due = 0
    ageless = {**config, "max_age": 0}

    def is_gone(stored_ns: int, block: bytes, rules: JsonObject) -> Cause | None:
        removal = removal_of(stored_ns, block, rules)
        return removal[1] if removal is not None and removal[0] <= now_ns else None

    for batch in read_columns(objects, ref, ["headers"]):
        kept: pa.RecordBatch = batch.filter(cut.rows(batch)) if cut else batch
        looked += kept.num_rows
        headers = kept.column("headers")
        if headers.null_count == len(headers) and not config.get("max_age"):
            continue
        for stored_ns, block in zip(kept.column(TIMESTAMP).to_pylist(), headers.to_pylist(), strict=True):
            cause = is_gone(stored_ns, block or b"", config)
            if cause is Cause.FIRED:
                due += 1
            elif cause is not None and not (block and any(marker in block for marker in _MARKERS)):
                expired += 1
                by_ttl += is_gone(stored_ns, block or b"", ageless) is not None
    return Outlived(by_ttl, expired, looked, due)


SUBJECT_LIMIT = "max_msgs_per_subject"
_BY_HEADERS = ("max_age", "allow_msg_ttl", "allow_msg_schedules")

Lived = tuple[str, str, str, Cut, tuple[object, ...]]
"""Name, incarnation and digest of a stream, its cut, and the settings by which it removes messages."""


def lowered_subject_limit(action: Action, options: RestoreOptions) -> int:
    """Return the `max_msgs_per_subject` that the user asked for, if the stream had a larger one, or none; else 0."""
    before, most = action.entry.config.get(SUBJECT_LIMIT) or 0, action.config.get(SUBJECT_LIMIT) or 0
    asked = SUBJECT_LIMIT in options.of_stream(action.entry.name).fields
    return most if asked and most > 0 and not 0 < before <= most else 0


@dataclass(frozen=True, slots=True)
class LimitedStreams:
    """The streams of a plan. The methods read the store: call them in a worker thread. They raise StoreError; lost
    objects and missing keys are reported when objects are checked.
    """

    objects: Objects
    target: Target
    options: RestoreOptions

    def expired(self, plan: RestorePlan, entries: Mapping[str, StreamBackup]) -> dict[str, KeptStream]:
        """Return the streams, by name, with the exact number of messages that expire, where that decides whether they
        may replace others.
        """
        found: dict[str, KeptStream] = {}
        for action in plan.actions:
            if self._is_open(action):
                entry = entries[action.entry.name]
                oldest = Cut(since=AtTime(self.target.now_ns - action.config["max_age"]))
                try:
                    left = survey_cut(self.objects, replace(entry, consumers=()), oldest).entry.captured.messages
                except (IntegrityError, KeyUnavailable):
                    continue
                count = entry.captured.messages
                found[entry.name] = KeptStream(entry, had=count, expired=count - left)
        return found

    def outlived(
        self, plan: RestorePlan, entries: Mapping[str, StreamBackup], known: dict[Lived, Outlived]
    ) -> dict[str, Outlived]:
        """Return what the headers of single messages remove, by stream, where that may decide whether it may replace
        another, and where it has schedules. `known` has what was found before.
        """
        found: dict[str, Outlived] = {}
        for action in plan.actions:
            if self._may_outlive(action):
                entry, cut = entries[action.entry.name], action.reshape.cut
                rules = tuple(action.config.get(name) for name in _BY_HEADERS)
                key = (entry.name, entry.incarnation, entry.digest.hex, cut, rules)
                try:
                    if key not in known:
                        now_ns = self.target.now_ns
                        known[key] = find_outlived(self.objects, entry, cut, action.config, now_ns=now_ns)
                except (IntegrityError, KeyUnavailable):
                    continue
                found[entry.name] = known[key]
        return found

    def _may_outlive(self, action: Action) -> bool:
        there, gone, asked = self.target.streams.get(action.name), action.expiring, action.reshape
        if not self.target.now_ns or not action.entry.segments:
            return False
        if asked.drops_by_filters or asked.masks_drop or asked.renumber:
            return False
        if action.config.get("allow_msg_schedules"):
            return True
        if there is None or not action.replaces or not action.config.get("allow_msg_ttl"):
            return False
        if self.options.replace_with_part:
            return False
        held = there.state.messages
        return held > 0 and not (gone.least and gone.of - gone.least < held)

    def _is_open(self, action: Action) -> bool:
        there, gone = self.target.streams.get(action.name), action.expiring
        if there is None or not action.replaces or action.reshape.drops or action.reshape.renumber:
            return False
        if action.config.get("allow_msg_ttl"):  # the headers decide
            return False
        return gone.least < gone.most and gone.of - gone.most < there.state.messages and not action.entry.opaque

    def against_subject_limits(self, plan: RestorePlan, entries: Mapping[str, StreamBackup]) -> Iterator[Finding]:
        """Yield refusals of a lower `max_msgs_per_subject` than subjects have messages."""
        for action in plan.actions:
            most, asked, held = lowered_subject_limit(action, self.options), action.reshape, action.entry.captured
            if not most or not held.messages or not action.counted or action.entry.opaque:
                continue
            if asked.newest is not None and (asked.newest.compact or asked.newest.count <= most):
                continue
            look = replace(asked.keeping, newest=NewestRule(most), chosen=None)
            try:
                chosen = with_newest(self.objects, entries[action.entry.name], look).chosen
            except (IntegrityError, KeyUnavailable):
                continue
            if chosen is not None and len(chosen) < held.messages:
                yield trims(action.entry.name, SUBJECT_LIMIT, len(chosen), held.messages)
