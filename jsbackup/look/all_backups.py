"""The same streams in many backups of a repository: which backup has which segments, and which messages.

Backups share segments, so each segment is searched once, however many backups name it. A message is the same in several
backups if stream, incarnation, sequence and content are. It is gone with the next backup of the same origin that has
the stream without it, or that should have the stream and does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from jsbackup.errors import IntegrityError, StoreError, UnsupportedError, UsageError
from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.look.message import LookedUp, messages_in
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.repository.background import in_order
from jsbackup.repository.manifest import ArchiveFormat, Manifest, Result, SegmentRef, StreamBackup
from jsbackup.repository.origin import origin_of
from jsbackup.repository.repository import Repository

__all__ = ["FoundMessage", "Series", "Sighting", "UnreadBackup", "read_series", "search_series"]

_THREADS = 6
# Of a payload that is only shown in part.
_PREVIEW_BYTES = 1024
_WITHOUT_MESSAGES = (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE)


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
    """A backup that could not be read, and why."""

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
    repository: Repository, counts: Callable[[Manifest], bool], chooses: Callable[[str], bool]
) -> tuple[list[Series], list[UnreadBackup]]:
    """Read all manifests, and return the chosen streams of the backups that count, and the backups that cannot be read.

    Raises:
        KeyUnavailable: nothing can be read without a key that was not given.
        StoreError: the backups cannot be listed.
    """
    found: dict[tuple[str, str], Series] = {}
    unread: list[UnreadBackup] = []
    tasks = [partial(_read, repository, backup) for backup in repository.backups()]
    for one in in_order(tasks, _THREADS):
        if isinstance(one, UnreadBackup):
            unread.append(one)
        elif one is not None and counts(one):
            _add(found, one, chooses)
    return list(found.values()), unread


def _read(repository: Repository, backup: str) -> Manifest | UnreadBackup | None:
    try:
        return repository.manifest(backup)
    except UsageError:  # forgotten meanwhile
        return None
    except (IntegrityError, StoreError, UnsupportedError) as error:
        return UnreadBackup(backup, error)


def _add(found: dict[tuple[str, str], Series], manifest: Manifest, chooses: Callable[[str], bool]) -> None:
    extra = manifest.source.extra
    made = next((kind for kind in ("imported", "transformed") if kind in extra), None)
    origin = made or str(origin_of(manifest.source))
    entries = {stream.name: stream for stream in manifest.streams if chooses(stream.name)}
    for name, entry in entries.items():
        series = found.setdefault((origin, name), Series(origin, name))
        series.sightings.append(Sighting(manifest.id, manifest.created, entry))
    for (other, name), series in found.items():
        if other == origin and name not in entries and _should_have(manifest, name):
            series.sightings.append(Sighting(manifest.id, manifest.created, None))


def _should_have(manifest: Manifest, stream: str) -> bool:
    asked = manifest.selection
    if asked is None or asked.config_only or manifest.result is not Result.COMPLETE:
        return False
    return asked.selects(stream) and all(one.name != stream for one in manifest.skipped)


def search_series(
    repository: Repository, all_series: Sequence[Series], wanted: MessageFilter, *, most: int
) -> tuple[list[FoundMessage], bool]:
    """Return the newest `most` messages that are wanted, each once, in the order of streams and times; and whether
    there may be more. Raises as `matching`.
    """
    refs: dict[str, SegmentRef] = {}
    held = [[_keys(sighting, wanted, refs) for sighting in series.sightings] for series in all_series]
    found: dict[str, list[LookedUp]] = {}
    newest = _Newest(most)
    newest_first = sorted(refs.values(), key=lambda ref: ref.max_ns, reverse=True)
    more = False
    with closing(in_parallel(partial(_search, repository, wanted, most), newest_first)) as results:
        for ref in newest_first:
            if more := newest.are_after(ref.max_ns):
                break
            if messages := next(results):
                found[ref.key] = messages
                newest.add(messages)
    merged = [one for series, keys in zip(all_series, held, strict=True) for one in _merged(series, keys, found)]
    kept = sorted(merged, key=lambda one: (one.timestamp_ns, one.sequence))[-most:]
    more = more or len(merged) > most
    return sorted(kept, key=lambda one: (one.origin, one.stream, one.timestamp_ns, one.sequence)), more


class _Newest:
    """The times of the newest `most` messages so far. A message that is in several segments counts once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: list[int] = []
        self._seen: set[tuple[int, int, bytes]] = set()

    def add(self, messages: Sequence[LookedUp]) -> None:
        for one in messages:
            name = (one.sequence, one.timestamp_ns, one.data[:32])
            if name not in self._seen:
                self._seen.add(name)
                heappush(self._times, one.timestamp_ns)
                if len(self._times) > self._most:
                    heappop(self._times)

    def are_after(self, time_ns: int) -> bool:
        """Return whether there are enough, and all of them are later than this."""
        return len(self._times) == self._most and self._times[0] > time_ns


def _keys(sighting: Sighting, wanted: MessageFilter, refs: dict[str, SegmentRef]) -> list[str] | None:
    """Return the keys of the segments that may have wanted messages; None if it is not known which messages it has."""
    entry = sighting.entry
    if entry is None:
        return []
    if entry.archive_format in _WITHOUT_MESSAGES:
        return None
    return [refs.setdefault(ref.key, ref).key for ref in refs_within(entry.segments, wanted)]


def _search(repository: Repository, wanted: MessageFilter, most: int, ref: SegmentRef) -> list[LookedUp]:
    """Return the last `most` wanted messages of a segment; of large payloads only the digest and the start."""
    found: list[LookedUp] = []
    for batch in heads(repository.objects, ref, wanted, BATCH_SCHEMA.names):
        found += map(_shortened, messages_in(batch.slice(max(batch.num_rows - most - 1, 0))))
        del found[: -most - 1]
    return found


def _shortened(message: LookedUp) -> LookedUp:
    # The digest and the size go before the start of the payload, so that equal payloads stay equal.
    data = message.data
    return message._replace(data=hashlib.sha256(data).digest() + len(data).to_bytes(8) + data[:_PREVIEW_BYTES])


def _merged(
    series: Series, held: Sequence[list[str] | None], found: dict[str, list[LookedUp]]
) -> Iterator[FoundMessage]:
    """Yield each message of a series with the backups that have it."""
    known: dict[tuple[str, LookedUp], list[str]] = {}
    gone: dict[tuple[str, LookedUp], str] = {}
    for sighting, keys in zip(series.sightings, held, strict=True):
        if keys is None:
            continue
        incarnation = sighting.entry.incarnation if sighting.entry is not None else ""
        here = {(incarnation, message) for key in keys for message in found.get(key, ())}
        for one in here:
            known.setdefault(one, []).append(sighting.backup)
            gone.pop(one, None)
        for one in known.keys() - here:
            gone.setdefault(one, sighting.backup)
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
            gone=gone.get((incarnation, message), ""),
        )
