"""Manifest ⇄ canonical JSON. Errors name the path of the field. `stream_json.py` has the streams, and
`stream_pages.py` the pages that list them where they are many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import Protocol, TypeAlias

from jsbackup.errors import FormatError, IntegrityError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import DocumentFields, decode_document, encode_document
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Manifest,
    ReadAs,
    Reading,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
    UnlistedStreams,
)
from jsbackup.repository.objects import StreamPageRef
from jsbackup.repository.pages.stream_json import (
    reading_from_json,
    reading_to_json,
    stream_from_json,
    stream_to_json,
    time_from_json,
)
from jsbackup.repository.pages.stream_pages import StreamPages, stream_pages_from_json, stream_pages_to_json
from jsbackup.stores.base import Data
from jsbackup.times import parse_time

__all__ = [
    "FORMAT_VERSION",
    "Needed",
    "captured_as",
    "captures_to_json",
    "decode_manifest",
    "encode_manifest",
    "is_sorted",
    "read_named",
    "read_needed",
    "selection_from_json",
    "selection_to_json",
]


# --- captures ---
#
# How and when the streams of pages were captured: what of them differs with each backup, so that manifests have it.
#
# The streams in which nothing had changed are named by no list, and share one window of time: from the first of their
# captures to the last.


@dataclass(frozen=True, slots=True)
class _Capture:
    """How and when a stream was captured."""

    archive_format: ArchiveFormat
    read: Reading | None
    begun: str
    ended: str

    @classmethod
    def of(cls, stream: StreamBackup) -> _Capture:
        return cls(stream.archive_format, stream.read, stream.captured.begun, stream.captured.ended)

    def to_json(self) -> JsonObject:
        return {
            "archive_format": self.archive_format,
            "read": reading_to_json(self.read),
            "begun": self.begun,
            "ended": self.ended,
        }

    @classmethod
    def from_json(cls, fields: DocumentFields) -> _Capture:
        return cls(
            fields.choice("archive_format", ArchiveFormat),
            reading_from_json(fields.optional("read")),
            time_from_json(fields, "begun"),
            time_from_json(fields, "ended"),
        )


def captured_as(
    streams: Iterable[StreamBackup], fields: DocumentFields, *, all_listed: Callable[[], bool] = lambda: True
) -> Iterator[StreamBackup]:
    """Yield streams of pages as the manifest with these fields captured them. Raises FormatError.

    `all_listed` returns, when all were read, whether no page was left out.
    """
    captures = {capture.text("stream"): _Capture.from_json(capture) for capture in fields.each("captures")}
    others = fields.optional("unchanged")
    unchanged = None if others is None else _Capture.from_json(others)
    names: set[str] = set()
    for stream in streams:
        if stream.name in names:  # at once: a hostile list may go on for ever
            fields.wrong("pages", "a list of streams with different names")
        names.add(stream.name)
        capture = captures.pop(stream.name, unchanged)
        if capture is None:
            fields.wrong("captures", f"with one of stream {stream.name}")
        yield stream.captured_again(capture.begun, capture.ended, capture.archive_format, capture.read)
    if captures and all_listed():
        fields.wrong("captures", "without streams that no page lists")


def captures_to_json(streams: Sequence[StreamBackup]) -> JsonObject:
    """Return how and when each stream was captured, for `captured_as`."""
    kinds = [_kind(stream) for stream in streams]
    counted = Counter(kind for kind in kinds if kind is not None)
    common = max(counted, key=lambda kind: (counted[kind], kind), default=None)
    alike = [stream for stream, kind in zip(streams, kinds, strict=True) if kind is not None and kind == common]
    named = [
        {"stream": stream.name, **_Capture.of(stream).to_json()}
        for stream, kind in zip(streams, kinds, strict=True)
        if kind is None or kind != common
    ]
    return {"captures": named, "unchanged": _window(alike).to_json() if alike else None}


def _kind(stream: StreamBackup) -> tuple[str, str, str] | None:
    """Return what streams have in common whose capture is stored once; None for one of which messages were read."""
    read = stream.read
    if read is None:
        return stream.archive_format, "", ""
    if read.how is not ReadAs.INCREMENT or read.extra:
        return None
    return stream.archive_format, read.how, read.why


def _window(streams: Sequence[StreamBackup]) -> _Capture:
    """Return the capture that has the first begin and the last end. Many have the same, so few times are parsed."""
    return replace(
        _Capture.of(streams[0]),
        begun=min({stream.captured.begun for stream in streams}, key=parse_time),
        ended=max({stream.captured.ended for stream in streams}, key=parse_time),
    )


# --- named streams ---
#
# The streams of some names in a long list of streams that is in the order of names: only their pages are read.
#
# A stream that copies from others is read with them, because it depends on them how it is restored.


def is_sorted(streams: Sequence[StreamBackup]) -> bool:
    return all(stream.name < other.name for stream, other in pairwise(streams))


def read_named(
    pages: Sequence[StreamPageRef],
    names: Collection[str],
    read: Callable[[Sequence[StreamPageRef]], Iterable[StreamBackup]],
) -> tuple[Sequence[StreamBackup], tuple[StreamPageRef, ...]]:
    """Return the streams of the pages that can have these names, or those of their origins; and the other pages.

    The streams are in the order of names if those of each page are. `read` returns the streams of some pages; its
    errors are raised.
    """
    firsts = [page.first for page in pages]
    by_name: dict[str, StreamBackup] = {}
    seen: set[int] = set()
    wanted, due = set(names), set(names)
    while due:
        # A name is in the last page that does not begin after it.
        new = {at for at in (bisect_right(firsts, name) - 1 for name in due) if at >= 0} - seen
        seen |= new
        listed = list(read([pages[at] for at in sorted(new)])) if new else []
        if not is_sorted(listed):
            return listed, tuple(page for at, page in enumerate(pages) if at not in seen)
        by_name.update((stream.name, stream) for stream in listed)
        origins = {origin for name in due if name in by_name for origin in _origins_of(by_name[name].config)}
        due = origins - wanted
        wanted |= due
    streams = [by_name[name] for name in sorted(by_name)]
    return streams, tuple(page for at, page in enumerate(pages) if at not in seen)


def _origins_of(config: JsonObject) -> Iterator[str]:
    """Yield the names of the streams that one with this configuration copies from. Some may be of another account."""
    sources = config.get("sources")
    for origin in (config.get("mirror"), *(sources if isinstance(sources, list) else ())):
        if isinstance(origin, dict) and isinstance(name := origin.get("name"), str):
            yield name


FORMAT_VERSION = 1
FEATURES: frozenset[str] = frozenset()


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode as canonical JSON. Raises `FormatError` if a config or name in it cannot be JSON."""
    assert not manifest.unread, "it was read for some of its streams"
    document: JsonObject = {
        **manifest.extra,
        "format": FORMAT_VERSION,
        "required_features": [],
        "id": manifest.id,
        "created": manifest.created,
        "tool": manifest.tool,
        "source": _source_to_json(manifest.source),
        "tags": dict(manifest.tags),
        "previous": manifest.previous,
        "previous_sha256": manifest.previous_sha256,
        "ended": manifest.ended,
        "stored_bytes": manifest.stored_bytes,
        "selection": None if manifest.selection is None else selection_to_json(manifest.selection),
        "result": manifest.result,
        "streams": [] if manifest.stream_pages else [stream_to_json(stream) for stream in manifest.streams],
        "skipped": [{**s.extra, "name": s.name, "reason": s.reason} for s in manifest.skipped],
    }
    if manifest.stream_pages:
        document["paged_streams"] = {
            **stream_pages_to_json(manifest.stream_pages),
            "sorted": is_sorted(manifest.streams),
            **captures_to_json(manifest.streams),
        }
    return encode_document(document, f"manifest {manifest.id}")


def decode_manifest(
    data: Data,
    key: str,
    pages: StreamPages | None = None,
    *,
    in_part: bool = False,
    names: Collection[str] | None = None,
) -> Manifest:
    """The manifest stored under `key`. Its pages are read from `pages`: those of streams now, those of segments when
    they are needed. Without it a manifest whose streams are in pages has none, and lists of segments cannot be read.

    If `in_part`, damaged pages of streams are left out, unless all are: such a backup is partial, and `unlisted` names
    them. If there are `names`, only the pages are read that can have streams of these names, and those they copy from;
    `unread` are the others.

    Raises:
        FormatError: damaged, hostile, or that of another backup.
        UnsupportedError: it has a later format.
        IntegrityError, KeyUnavailable, StoreError: as `StreamPages.read_all`.
    """
    fields = decode_document(data, f"manifest {key}")
    fields.version(FORMAT_VERSION, FEATURES)
    segments = None if pages is None else pages.segments
    streams = tuple(stream_from_json(stream, segments) for stream in fields.each("streams"))
    paged = fields.optional("paged_streams")
    stream_pages = () if paged is None else stream_pages_from_json(paged)
    manifest = Manifest(
        id=fields.text("id"),
        created=time_from_json(fields, "created"),
        tool=fields.text("tool"),
        source=_source(fields.fields("source")),
        tags={name: fields.fields("tags").text(name) for name in fields.object("tags")},
        previous=fields.optional_text("previous"),
        previous_sha256=None if fields.get("previous_sha256") is None else fields.hex256("previous_sha256"),
        result=fields.choice("result", BackupResult),
        streams=streams,
        skipped=tuple(SkippedStream(s.text("name"), s.text("reason"), s.rest()) for s in fields.each("skipped")),
        selection=None if fields.get("selection") is None else selection_from_json(fields.fields("selection")),
        ended=None if fields.get("ended") is None else time_from_json(fields, "ended"),
        stored_bytes=None if fields.get("stored_bytes") is None else fields.number("stored_bytes"),
        extra=fields.rest(),
        stream_pages=stream_pages,
    )
    if layout.backup_id_of(key) != manifest.id:
        raise FormatError(f"manifest {key} is that of another backup: {manifest.id[:80]!r}")
    if manifest.previous is not None and not layout.is_backup_id(manifest.previous):
        fields.wrong("previous", "a backup id")
    if paged is not None:
        if streams or not stream_pages:
            fields.wrong("paged_streams", "the list of all streams")
        if pages is None:
            return manifest
        broken: dict[StreamPageRef, IntegrityError] = {}
        reader = partial(pages.read_all, broken=broken if in_part else None)
        ordered = paged.boolean("sorted")
        read: Iterable[StreamBackup] = reader(stream_pages)
        unread: tuple[StreamPageRef, ...] = ()
        if names is not None and ordered:
            read, unread = read_named(stream_pages, names, reader)
        streams = tuple(captured_as(read, paged, all_listed=lambda: not (broken or unread)))
        if not streams and not unread:
            raise next(iter(broken.values()))
        if ordered and not is_sorted(streams):
            paged.wrong("sorted", "true of its streams")
        unlisted = tuple(UnlistedStreams(page, broken[page]) for page in stream_pages if page in broken)
        result = BackupResult.PARTIAL if broken else manifest.result
        manifest = replace(manifest, streams=streams, unread=unread, unlisted=unlisted, result=result)
        pages.note(stream_pages, manifest.id)
    names = [stream.name for stream in manifest.streams]
    if len(set(names)) != len(names):
        fields.wrong("streams", "a list of streams with different names")
    return manifest


# --- the backup ---


def _source_to_json(source: Source) -> JsonObject:
    return {
        **source.extra,
        "server_version": source.server_version,
        "cluster": source.cluster,
        "account": source.account,
        "domain": source.domain,
        "context": source.context,
        "account_name": source.account_name,
        "api_prefix": source.api_prefix,
        "login": source.login,
        "profile": source.profile,
        "imported": source.imported,
        "transformed": source.transformed,
    }


def _source(fields: DocumentFields) -> Source:
    imported, transformed = fields.optional("imported"), fields.optional("transformed")
    if imported is not None:
        imported.text("from")
    if transformed is not None:
        transformed.texts("options")
    return Source(
        server_version=fields.text("server_version"),
        cluster=fields.text("cluster"),
        account=fields.text("account"),
        domain=fields.optional_text("domain"),
        context=fields.optional_text("context"),
        account_name=fields.optional_text("account_name"),
        api_prefix=fields.optional_text("api_prefix"),
        login=fields.optional_text("login"),
        profile=fields.optional_text("profile"),
        imported=None if imported is None else imported.value,
        transformed=None if transformed is None else transformed.value,
        extra=fields.rest(),
    )


def selection_to_json(selection: Selection) -> JsonObject:
    return {
        **selection.extra,
        "streams": list(selection.streams),
        "exclude": list(selection.exclude),
        "consumers": selection.consumers,
        "config_only": selection.config_only,
        "allow_empty": selection.allow_empty,
    }


def selection_from_json(fields: DocumentFields) -> Selection:
    return Selection(
        streams=fields.texts("streams"),
        exclude=fields.texts("exclude"),
        consumers=fields.boolean("consumers"),
        config_only=fields.boolean("config_only"),
        allow_empty=fields.boolean("allow_empty"),
        extra=fields.rest(),
    )


# --- needed ---
#
# Read a manifest for the streams that a command needs: of a long list of streams only the pages that have them.

Needed: TypeAlias = Sequence[Collection[str]]
"""Streams, each by the names that it may have. None of them: all streams are needed."""


class _Reader(Protocol):
    """A repository."""

    def manifest(self, backup: str, *, in_part: bool = ..., names: Collection[str] | None = ...) -> Manifest: ...


def read_needed(repository: _Reader, backup: str, needed: Needed, *, in_part: bool) -> Manifest:
    """Return the manifest of a backup with the needed streams, those they copy from, and perhaps others.

    If one of them is not there, all streams are read: who reports that names others that may be meant. Raises as
    `Repository.manifest`.
    """
    if not needed:
        return repository.manifest(backup, in_part=in_part)
    manifest = repository.manifest(backup, in_part=in_part, names=frozenset(chain.from_iterable(needed)))
    present = {stream.name for stream in manifest.streams}
    if manifest.unread and any(present.isdisjoint(names) for names in needed):
        return repository.manifest(backup, in_part=in_part)
    return manifest
