"""Manifest ⇄ canonical JSON. Errors name the path of the field. `stream_json.py` has the streams, and
`stream_pages.py` the pages that list them where they are many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from jsbackup.errors import FormatError, IntegrityError
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import DocumentFields, decode_document, encode_document
from jsbackup.repository.manifest import (
    BackupResult,
    Manifest,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
    StreamPageRef,
    UnlistedStreams,
)
from jsbackup.repository.origin import OriginFields
from jsbackup.repository.pages.captures import captured_as, captures_to_json
from jsbackup.repository.pages.named_streams import is_sorted, read_named
from jsbackup.repository.pages.segment_list import SegmentList
from jsbackup.repository.pages.stream_json import stream_from_json, stream_to_json, time_from_json
from jsbackup.repository.pages.stream_page_json import stream_pages_from_json, stream_pages_to_json
from jsbackup.repository.pages.stream_pages import StreamPages
from jsbackup.stores.base import Data

__all__ = [
    "FORMAT_VERSION",
    "decode_manifest",
    "encode_manifest",
    "later_source",
    "noted",
    "selection_from_json",
    "selection_to_json",
]

FORMAT_VERSION = 2
_UNPAGED_VERSION = 1  # of a manifest that names no page
FEATURES: frozenset[str] = frozenset()


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode as canonical JSON. Raises `FormatError` if a config or name in it cannot be JSON."""
    assert not manifest.unread, "it was read for some of its streams"
    in_pages = manifest.stream_pages or any(isinstance(stream.segments, SegmentList) for stream in manifest.streams)
    document: JsonObject = {
        **manifest.extra,
        "format": FORMAT_VERSION if in_pages else _UNPAGED_VERSION,
        "required_features": [],
        "id": manifest.id,
        "created": manifest.created,
        "tool": manifest.tool,
        "source": _source_to_json(manifest.source),
        "tags": dict(manifest.tags),
        "previous": manifest.previous,
        "result": manifest.result,
        "streams": [] if manifest.stream_pages else [stream_to_json(stream) for stream in manifest.streams],
        "skipped": [{**s.extra, "name": s.name, "reason": s.reason} for s in manifest.skipped],
    }
    if manifest.previous_sha256 is not None:
        document["previous_sha256"] = manifest.previous_sha256
    if manifest.stream_pages:
        document["paged_streams"] = {
            **stream_pages_to_json(manifest.stream_pages),
            **({"sorted": True} if is_sorted(manifest.streams) else {}),
            **captures_to_json(manifest.streams),
        }
    if manifest.selection is not None:
        document["selection"] = selection_to_json(manifest.selection)
    document |= noted({"ended": manifest.ended, "stored_bytes": manifest.stored_bytes})
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
        IntegrityError, KeyUnavailable, StoreError: as `StreamPages.read`.
    """
    fields = decode_document(data, f"manifest {key}")
    fields.version(FORMAT_VERSION, FEATURES)
    segments = None if pages is None else pages.segments
    streams = tuple(stream_from_json(stream, segments) for stream in fields.each("streams"))
    paged = fields.optional_fields("paged_streams")
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
        reader = partial(pages.read, broken=broken if in_part else None)
        ordered = paged.get("sorted") is not None and paged.boolean("sorted")
        read: Iterable[StreamBackup] = reader(stream_pages)
        unread: tuple[StreamPageRef, ...] = ()
        if names is not None and ordered:
            read, unread = read_named(stream_pages, names, reader)
        streams = tuple(captured_as(read, paged, all_listed=lambda: not (broken or unread)))
        if not streams and not unread:
            raise next(iter(broken.values()))
        if ordered and not is_sorted(streams):
            paged.wrong("sorted", "true of its streams")
        left_out = _left_out(stream_pages, broken) if broken else {}
        manifest = replace(manifest, streams=streams, unread=unread, **left_out)
        pages.note(stream_pages, manifest.id)
    names = [stream.name for stream in manifest.streams]
    if len(set(names)) != len(names):
        fields.wrong("streams", "a list of streams with different names")
    return manifest


def _left_out(pages: Sequence[StreamPageRef], broken: Mapping[StreamPageRef, IntegrityError]) -> dict[str, Any]:
    lists = [UnlistedStreams(page, broken[page]) for page in pages if page in broken]
    return {"result": BackupResult.PARTIAL, "unlisted": tuple(lists)}


# --- the backup ---


class _Sourced(OriginFields, Protocol):
    """A `Source`, or a `BackupSummary`."""

    @property
    def profile(self) -> str | None: ...


def later_source(source: _Sourced) -> JsonObject:
    """Return the fields that sources and catalog entries have only if they are known."""
    return {
        "account_name": source.account_name,
        "api_prefix": source.api_prefix,
        "login": source.login,
        "profile": source.profile,
    }


def noted(values: Mapping[str, object]) -> JsonObject:
    """Return the values without those that are None. For fields that are newer than the format."""
    return {key: value for key, value in values.items() if value is not None}


def _source_to_json(source: Source) -> JsonObject:
    return {
        **source.extra,
        "server_version": source.server_version,
        "cluster": source.cluster,
        "account": source.account,
        "domain": source.domain,
        "context": source.context,
        **noted(later_source(source)),
    }


def _source(fields: DocumentFields) -> Source:
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
        extra=fields.rest(),
    )


def selection_to_json(selection: Selection) -> JsonObject:
    return {
        **selection.extra,
        "streams": list(selection.streams),
        "exclude": list(selection.exclude),
        "consumers": selection.consumers,
        "config_only": selection.config_only,
        **({"allow_empty": True} if selection.allow_empty else {}),
    }


def selection_from_json(fields: DocumentFields) -> Selection:
    return Selection(
        streams=fields.texts("streams"),
        exclude=fields.texts("exclude"),
        consumers=fields.boolean("consumers"),
        config_only=fields.boolean("config_only"),
        allow_empty=fields.get("allow_empty") is not None and fields.boolean("allow_empty"),
        extra=fields.rest(),
    )
