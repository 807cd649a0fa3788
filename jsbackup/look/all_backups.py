"""The same streams in many backups of a repository: which backup has which segments, and which messages.

Backups share segments, so each segment is searched once, however many backups name it. Those with messages that no
earlier backup has are searched first; of the others, only those that may have what was found (`moment.py`).

A message is the same in several
backups if stream, incarnation, sequence and content are. It is gone with the next backup of the same origin that has
the stream without it, or that should have the stream and does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from operator import attrgetter
from threading import Lock

from jsbackup.errors import IntegrityError, StoreError, UnsupportedError, UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.look.message import LookedUp, MessageFilter, messages_in
from jsbackup.look.moment import Reach, folder_of, with_sequences
from jsbackup.look.stream import heads, in_parallel, refs_within
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import ArchiveFormat, BackupResult, Captured, Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.origin import origin_of
from jsbackup.repository.repository import Repository

__all__ = [
    "PREVIEW_BYTES",
    "ChangeKind",
    "FoundMessage",
    "Series",
    "Sighting",
    "StreamChange",
    "UnreadBackup",
    "changes_of",
    "read_series",
    "search_series",
]

_THREADS = 16
# Of a payload that is only shown in part.
PREVIEW_BYTES = 1024
# Backups that were not read from a server.
_MADE = ("imported", "transformed")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A stream in a backup; `entry` is None if it was not there although the backup should have it."""

    backup: str
    created: str
    entry: StreamBackup | None


@dataclass(slots=True)
class Series:
    """The backups of one stream of one origin, oldest first."""

    origin: str
    stream: str
    sightings: list[Sighting] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class UnreadBackup:
    """A backup that could not be read, or of which some streams could not be listed, and why."""

    backup: str
    error: IntegrityError | StoreError | UnsupportedError


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message, and the `backups` that have it, oldest first; `gone` is the first one without it, "" if there is none.

    `start` is the beginning of the payload, or all of it; `digest` is SHA-256 of the payload.
    """

    origin: str
    stream: str
    incarnation: str
    sequence: int
    timestamp_ns: int
    subject: str
    headers: bytes | None
    size: int
    start: bytes
    digest: str
    backups: tuple[str, ...] = ()
    gone: str = ""


def read_series(
    repository: Repository,
    counts: Callable[[Manifest], bool],
    chooses: Callable[[str], bool],
    names: Collection[str] | None = None,
) -> tuple[list[Series], list[UnreadBackup]]:
    """Read all manifests, and return the chosen streams of the backups that count, and the backups that cannot be read,
    or listed whole. With `names`, no streams of other names are chosen.

    Raises:
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the backups cannot be listed.
    """
    all_series: dict[tuple[str, str], Series] = {}
    unread: list[UnreadBackup] = []
    tasks = [partial(_read, repository, backup, names) for backup in repository.backups()]
    for manifest in in_order(tasks, _THREADS):
        if isinstance(manifest, UnreadBackup):
            unread.append(manifest)
        elif manifest is not None and counts(manifest):
            _add(all_series, manifest, chooses)
            errors = (IntegrityError(f"{lost.words}: {lost.reason}") for lost in manifest.unlisted)
            unread += [UnreadBackup(manifest.id, error) for error in errors]
    return list(all_series.values()), unread


def _read(repository: Repository, backup: str, names: Collection[str] | None) -> Manifest | UnreadBackup | None:
    try:
        return repository.manifest(backup, in_part=True, names=names)
    except UsageError:  # forgotten meanwhile
        return None
    except (IntegrityError, StoreError, UnsupportedError) as error:
        return UnreadBackup(backup, error)


def _add(all_series: dict[tuple[str, str], Series], manifest: Manifest, chooses: Callable[[str], bool]) -> None:
    source = manifest.source
    made = next((kind for kind in _MADE if getattr(source, kind) is not None), None)
    origin = made or str(origin_of(source))
    entries = {stream.name: stream for stream in manifest.streams if chooses(stream.name)}
    for name, entry in entries.items():
        series = all_series.setdefault((origin, name), Series(origin, name))
        series.sightings.append(Sighting(manifest.id, manifest.created, entry))
    for (other, name), series in all_series.items():
        if other == origin and name not in entries and _should_have(manifest, name):
            series.sightings.append(Sighting(manifest.id, manifest.created, None))


def _should_have(manifest: Manifest, stream: str) -> bool:
    asked = manifest.selection
    if asked is None or asked.config_only or manifest.result is not BackupResult.COMPLETE:
        return False
    return asked.selects(stream) and all(skipped.name != stream for skipped in manifest.skipped)


def search_series(
    repository: Repository,
    all_series: Sequence[Series],
    wanted: MessageFilter,
    *,
    most: int,
    start_bytes: int = PREVIEW_BYTES,
    damaged: list[UnreadBackup] | None = None,
) -> tuple[list[FoundMessage], bool]:
    """Return the newest `most` messages that are wanted, each once, in the order of streams and times, with the first
    `start_bytes` of their payloads; and whether there may be more.

    With a list `damaged`, each damaged segment is added to it, as its newest backup, and nothing is said of what the
    backups with it have of the stream. Raises IntegrityError, KeyUnavailable and StoreError.
    """
    refs: dict[str, SegmentRef] = {}
    new: set[str] = set()
    held = [_held(series, wanted, refs, new) for series in all_series]
    by_segment: dict[str, list[LookedUp]] = {}
    newest = _Newest(most)
    newest_first = sorted(map(refs.__getitem__, new), key=lambda ref: ref.max_ns, reverse=True)
    more = False
    broken: dict[str, IntegrityError] = {}
    read = partial(_search, repository.objects, wanted, most=most, start_bytes=start_bytes, turn=Lock())

    def search(ref: SegmentRef) -> list[LookedUp]:
        try:
            return read(ref)
        except IntegrityError as error:
            if damaged is None:
                raise
            broken[ref.key] = error
            return []

    with closing(in_parallel(search, newest_first)) as results:
        for ref in newest_first:
            if more := newest.are_after(ref.max_ns):
                break
            if messages := next(results):
                by_segment[ref.key] = messages
                newest.add(messages)
    again = with_sequences((ref for key, ref in refs.items() if key not in new), newest.sequences(by_segment))
    for ref, messages in zip(again, in_parallel(search, again), strict=True):
        by_segment[ref.key] = messages
    if damaged is not None:
        damaged += _without_broken(all_series, held, broken)
    by_series = zip(all_series, held, strict=True)
    merged = list(chain.from_iterable(_merged(series, keys, by_segment) for series, keys in by_series))
    kept = sorted(merged, key=attrgetter("timestamp_ns", "sequence"))[-most:]
    more = more or len(merged) > most
    return sorted(kept, key=attrgetter("origin", "stream", "timestamp_ns", "sequence")), more


def _without_broken(
    all_series: Sequence[Series], held: Sequence[list[list[str] | None]], broken: Mapping[str, IntegrityError]
) -> Iterable[UnreadBackup]:
    """Forget what backups hold of a stream of which they have a broken segment. Return the newest one of each."""
    newest: dict[str, UnreadBackup] = {}
    for series, lists in zip(all_series, held, strict=True):
        for number, keys in enumerate(lists):
            hit = next((key for key in keys or () if key in broken), None)
            if hit is not None:
                newest[hit] = UnreadBackup(series.sightings[number].backup, broken[hit])
                lists[number] = None
    return newest.values()


class _Newest:
    """The times of the newest `most` messages so far. A message that is in several segments counts once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: list[int] = []
        self._seen: set[tuple[int, int, bytes]] = set()

    def add(self, messages: Sequence[LookedUp]) -> None:
        for message in messages:
            name = (message.sequence, message.timestamp_ns, message.data[:32])
            if name not in self._seen:
                self._seen.add(name)
                heappush(self._times, message.timestamp_ns)
                if len(self._times) > self._most:
                    heappop(self._times)

    def sequences(self, by_segment: Mapping[str, Sequence[LookedUp]]) -> dict[str, list[int]]:
        """Return the sequences of those of the found messages that may be among the newest, by folder, rising."""
        least_ns = self._times[0] if len(self._times) == self._most else 0
        kept: dict[str, set[int]] = {}
        for key, messages in by_segment.items():
            kept.setdefault(folder_of(key), set()).update(m.sequence for m in messages if m.timestamp_ns >= least_ns)
        return {folder: sorted(sequences) for folder, sequences in kept.items()}

    def are_after(self, time_ns: int) -> bool:
        """Return whether there are enough, and all of them are later than this."""
        return len(self._times) == self._most and self._times[0] > time_ns


def _held(series: Series, wanted: MessageFilter, refs: dict[str, SegmentRef], new: set[str]) -> list[list[str] | None]:
    """Return for each sighting the keys of the segments that may have wanted messages, None if it is not known which
    messages it has. Add the segments to `refs`, and to `new` the keys of those that earlier backups do not have.
    """
    held: list[list[str] | None] = []
    reach = Reach()
    for sighting in series.sightings:
        entry = sighting.entry
        if entry is None:
            held.append([])
        elif not entry.archive_format.has_messages:
            held.append(None)
        else:
            within = [refs.setdefault(ref.key, ref) for ref in refs_within(entry.segments, wanted)]
            new |= {ref.key for ref in within if not reach.covers(entry, ref)}
            held.append([ref.key for ref in within])
            reach = Reach.of(entry) if series.origin not in _MADE else Reach()
    return held


def _search(
    objects: Objects, wanted: MessageFilter, ref: SegmentRef, *, most: int, start_bytes: int, turn: Lock
) -> list[LookedUp]:
    """Return the last `most` wanted messages of a segment; of large payloads only the digest and the start."""
    shortened = partial(_shortened, start_bytes=start_bytes)
    messages: list[LookedUp] = []
    for batch in heads(objects, ref, wanted, BATCH_SCHEMA.names, turn=turn):
        messages += map(shortened, messages_in(batch.slice(max(batch.num_rows - most - 1, 0))))
        del messages[: -most - 1]
    return messages


def _shortened(message: LookedUp, start_bytes: int) -> LookedUp:
    # The digest and the size go before the start of the payload, so that equal payloads stay equal.
    data = message.data
    return message._replace(data=hashlib.sha256(data).digest() + len(data).to_bytes(8) + data[:start_bytes])


def _merged(
    series: Series, held: Sequence[list[str] | None], by_segment: dict[str, list[LookedUp]]
) -> Iterator[FoundMessage]:
    """Yield each message of a series with the backups that have it."""
    known: dict[tuple[str, LookedUp], list[str]] = {}
    reasons: dict[tuple[str, LookedUp], str] = {}
    for sighting, keys in zip(series.sightings, held, strict=True):
        if keys is None:
            continue
        incarnation = sighting.entry.incarnation if sighting.entry is not None else ""
        here = {(incarnation, message) for key in keys for message in by_segment.get(key, ())}
        for content in here:
            known.setdefault(content, []).append(sighting.backup)
            reasons.pop(content, None)
        for content in known.keys() - here:
            reasons.setdefault(content, sighting.backup)
    for (incarnation, message), backups in known.items():
        digest, size, start = message.data[:32], message.data[32:40], message.data[40:]
        yield FoundMessage(
            origin=series.origin,
            stream=series.stream,
            incarnation=incarnation,
            sequence=message.sequence,
            timestamp_ns=message.timestamp_ns,
            subject=message.subject,
            headers=message.headers,
            size=int.from_bytes(size),
            start=start,
            digest=digest.hex(),
            backups=tuple(backups),
            gone=reasons.get((incarnation, message), ""),
        )


class ChangeKind(StrEnum):
    CAME = "came"
    CHANGED = "changed"  # its messages
    CONFIG = "config"  # only its configuration
    REPLACED = "replaced"  # another stream has its name
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StreamChange:
    """The first backup that has a stream in a new state, and what it has. Zeros if the stream is gone."""

    origin: str
    stream: str
    backup: str
    created: str
    change: ChangeKind
    messages: int
    bytes: int
    first_seq: int
    last_seq: int


def changes_of(series: Series) -> Iterator[StreamChange]:
    """Yield the changes from backup to backup, oldest first. Reads nothing."""
    entries = [sighting.entry for sighting in series.sightings]
    for before, entry, sighting in zip([None, *entries], entries, series.sightings, strict=False):
        kind = _kind(before, entry)
        if kind is not None:
            state = Captured(0, 0, 0, 0, "", "") if entry is None else entry.captured
            numbers = (state.messages, state.bytes, state.first_seq, state.last_seq)
            yield StreamChange(series.origin, series.stream, sighting.backup, sighting.created, kind, *numbers)


def _kind(before: StreamBackup | None, entry: StreamBackup | None) -> ChangeKind | None:
    if entry is None or before is None:
        return None if entry is before else ChangeKind.GONE if entry is None else ChangeKind.CAME
    if entry.incarnation != before.incarnation:
        return ChangeKind.REPLACED
    # A backup of configurations alone says nothing about messages.
    known = ArchiveFormat.CONFIG not in (entry.archive_format, before.archive_format)
    if known and (entry.digest, entry.opaque) != (before.digest, before.opaque):
        return ChangeKind.CHANGED
    return ChangeKind.CONFIG if entry.config != before.config else None
