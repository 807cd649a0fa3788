"""A stream of a backup ⇄ JSON: an entry of a manifest, or of a page of streams. Errors name the path of the field.

Keys of objects are checked here, so that a forged document cannot name other objects to read or delete: each must be
one that `layout.py` would have made, in the folder of its stream. In an encrypted repository the folder is an HMAC that
only writers can compute: it must have that form, and be the same for all objects of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn

from jsbackup.errors import FormatError
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, Fidelity, JsonObject, PendingAck
from jsbackup.repository import layout
from jsbackup.repository.document import INT64_MAX, UINT64_MAX, DocumentFields
from jsbackup.repository.manifest import (
    ArchiveFormat,
    Captured,
    ConsumerBackup,
    CopiedFrom,
    Fact,
    FactKind,
    Losses,
    LostSpan,
    ObjectRef,
    OpaqueRef,
    PageRef,
    ReadAs,
    Reading,
    SegmentRef,
    StreamBackup,
)
from jsbackup.repository.pages.segment_list import SegmentList, parts_of
from jsbackup.repository.pages.segment_pages import SegmentPages, list_from_json, list_to_json
from jsbackup.server_state import pair_from_json, pair_to_json, stream_state_from_json, stream_state_to_json
from jsbackup.times import parse_time

__all__ = [
    "facts_to_json",
    "losses_to_json",
    "reading_from_json",
    "reading_to_json",
    "stream_from_json",
    "stream_to_json",
    "time_from_json",
]


def time_from_json(fields: DocumentFields, key: str) -> str:
    """Return a time as its text, after checking it."""
    text = fields.text(key)
    parse_time(text, f"{fields.where}: {key}")
    return text


def _name(fields: DocumentFields) -> str:
    """Return a stream's or consumer's name. It will be part of subjects, so it must be valid."""
    name = fields.text("name")
    if not asset_name_is_sound(name):
        fields.wrong("name", "a name that NATS allows")
    return name


def stream_to_json(stream: StreamBackup) -> JsonObject:
    captured = stream.captured
    return {
        **stream.extra,
        "name": stream.name,
        "incarnation": stream.incarnation,
        "config": stream.config,
        "created": stream.created,
        "state": {**stream.state_extra, **stream_state_to_json(stream.state)},
        "captured": {
            **captured.extra,
            "messages": captured.messages,
            "bytes": captured.bytes,
            "first_seq": captured.first_seq,
            "last_seq": captured.last_seq,
            "begun": captured.begun,
            "ended": captured.ended,
        },
        "archive_format": stream.archive_format,
        "digest": stream.digest.hex,
        "segments": list_to_json(parts_of(stream.segments)),
        "consumers": [_consumer_to_json(consumer) for consumer in stream.consumers],
        "opaque": [{**_object_to_json(ref), "bytes": ref.bytes} for ref in stream.opaque],
        "warnings": list(stream.warnings),
        "read": reading_to_json(stream.read),
        **({"copied": [_copied_to_json(copied) for copied in stream.copied]} if stream.copied else {}),
        **({"lost": losses_to_json(stream.lost)} if stream.lost != Losses() else {}),
        **({"life": stream.life} if stream.life else {}),
        **({"facts": facts_to_json(stream.facts)} if stream.facts else {}),
    }


def _segments(fields: DocumentFields, folder: str, pages: SegmentPages | None) -> Sequence[SegmentRef]:
    home, parts = list_from_json(fields.fields("segments"))
    if parts and not _is_home(home, folder):
        fields.wrong("segments", "the list of segments of this stream")
    segments = tuple(part for part in parts if isinstance(part, SegmentRef))
    if len(segments) == len(parts):
        return segments
    return SegmentList(parts, _no_pages) if pages is None else pages.list_of(parts)


def _no_pages(page: PageRef) -> NoReturn:
    raise AssertionError(f"page {page.key} is not read here")


def _copied_to_json(copied: CopiedFrom) -> JsonObject:
    return {
        "origin": copied.origin,
        "filter": copied.filter,
        "destination": copied.destination,
        "sequence": copied.sequence,
    }


def _copied(fields: DocumentFields) -> CopiedFrom:
    return CopiedFrom(
        fields.text("origin"), fields.text("filter"), fields.text("destination"), fields.number("sequence")
    )


def losses_to_json(losses: Losses) -> JsonObject:
    """Return what is lost of a stream, also for `show --json`."""
    return {
        **losses.extra,
        "spans": [
            {
                **span.extra,
                "first_seq": span.first_seq,
                "last_seq": span.last_seq,
                "messages": span.messages,
                "certain": span.certain,
                "cause": span.cause,
                "subjects": list(span.subjects),
            }
            for span in losses.spans
        ],
        "subjects": dict(losses.subjects),
    }


def facts_to_json(facts: Sequence[Fact]) -> list[JsonObject]:
    """Return the facts of a stream, also for `show --json`."""
    return [
        {
            **fact.extra,
            "kind": fact.kind,
            "backup": fact.backup,
            "made": fact.made,
            "messages": fact.messages,
            "detail": fact.detail,
        }
        for fact in facts
    ]


def _fact(fields: DocumentFields) -> Fact:
    return Fact(
        fields.choice("kind", FactKind),
        fields.text("backup"),
        fields.text("made"),
        fields.number("messages"),
        fields.text("detail"),
        fields.rest(),
    )


def _losses(fields: DocumentFields | None) -> Losses:
    if fields is None:
        return Losses()
    subjects = fields.fields("subjects")
    return Losses(
        spans=tuple(_lost_span(span) for span in fields.each("spans")),
        subjects={subject: subjects.number(subject) for subject in fields.object("subjects")},
        extra=fields.rest(),
    )


def _lost_span(fields: DocumentFields) -> LostSpan:
    return LostSpan(
        first_seq=fields.number("first_seq"),
        last_seq=None if fields.get("last_seq") is None else fields.number("last_seq"),
        messages=None if fields.get("messages") is None else fields.number("messages"),
        certain=fields.boolean("certain"),
        cause=fields.text("cause"),
        subjects=fields.texts("subjects"),
        extra=fields.rest(),
    )


def stream_from_json(fields: DocumentFields, pages: SegmentPages | None) -> StreamBackup:
    name, incarnation, state = _name(fields), fields.text("incarnation"), fields.fields("state")
    try:
        folder = layout.stream_folder(name, incarnation)
    except FormatError as error:
        raise FormatError(f"{fields.where}: {error.message}") from error
    stream = StreamBackup(
        name=name,
        incarnation=incarnation,
        config=fields.object("config"),
        created=time_from_json(fields, "created"),
        state=stream_state_from_json(state),
        captured=_captured(fields.fields("captured")),
        archive_format=fields.choice("archive_format", ArchiveFormat),
        digest=StreamDigest.from_hex(fields.hex256("digest")),
        segments=_segments(fields, folder, pages),
        consumers=tuple(_consumer(consumer, folder) for consumer in fields.each("consumers")),
        opaque=tuple(_opaque(ref, folder) for ref in fields.each("opaque")),
        warnings=fields.texts("warnings"),
        read=reading_from_json(fields.optional("read")),
        copied=tuple(_copied(copied) for copied in fields.each("copied")) if fields.get("copied") is not None else (),
        lost=_losses(fields.optional("lost")),
        life=time_from_json(fields, "life") if fields.get("life") is not None else "",
        facts=tuple(map(_fact, fields.each("facts"))) if fields.get("facts") is not None else (),
        state_extra=state.rest(),
        extra=fields.rest(),
    )
    pending = (consumer.pending for consumer in stream.consumers if consumer.pending is not None)
    refs = (*parts_of(stream.segments), *stream.opaque, *pending)
    if len({layout.folder_of(ref.key) for ref in refs}) > 1:
        fields.wrong("segments", "with all other objects of the stream in one folder")
    return stream


def _is_home(home: str, folder: str) -> bool:
    """Return whether an object in `home` can belong to the stream whose folder in a plain repository is `folder`."""
    return home == folder or layout.is_hidden_folder(home)


def reading_to_json(reading: Reading | None) -> JsonObject | None:
    return None if reading is None else {**reading.extra, "how": reading.how, "why": reading.why}


def reading_from_json(fields: DocumentFields | None) -> Reading | None:
    return None if fields is None else Reading(fields.choice("how", ReadAs), fields.text("why"), fields.rest())


def _captured(fields: DocumentFields) -> Captured:
    return Captured(
        messages=fields.number("messages"),
        bytes=fields.number("bytes"),
        first_seq=fields.number("first_seq"),
        last_seq=fields.number("last_seq"),
        begun=time_from_json(fields, "begun"),
        ended=time_from_json(fields, "ended"),
        extra=fields.rest(),
    )


# --- objects ---


def _object_to_json(ref: ObjectRef | OpaqueRef) -> JsonObject:
    return {**ref.extra, "key": ref.key, "size": ref.size, "sha256": ref.sha256}


def _opaque(fields: DocumentFields, folder: str) -> OpaqueRef:
    return OpaqueRef(
        key=_key(fields, folder, layout.ObjectKind.OPAQUE),
        size=fields.number("size", 1),
        sha256=fields.hex256("sha256"),
        bytes=fields.number("bytes", 1),
        extra=fields.rest(),
    )


def _key(fields: DocumentFields, folder: str, kind: layout.ObjectKind) -> str:
    key = fields.text("key")
    if layout.kind_of(key) is not kind or not _is_home(layout.folder_of(key), folder):
        fields.wrong("key", f"in this stream's folder and of the kind: {kind.value}")
    return key


# --- consumers ---


def _consumer_to_json(consumer: ConsumerBackup) -> JsonObject:
    return {
        **consumer.extra,
        "name": consumer.name,
        "config": consumer.config,
        "created": consumer.created,
        "fidelity": consumer.fidelity,
        "reason": consumer.reason,
        "state": None if consumer.state is None else {**consumer.state_extra, **_state_to_json(consumer.state)},
        "pending": None if consumer.pending is None else _object_to_json(consumer.pending),
        **({} if consumer.above_floor is None else {"above_floor": consumer.above_floor}),
    }


def _consumer(fields: DocumentFields, folder: str) -> ConsumerBackup:
    pending = fields.optional("pending")
    state = fields.optional("state")
    if pending is not None and state is None:
        fields.wrong("state", "there although a pending set is")
    return ConsumerBackup(
        name=_name(fields),
        config=fields.object("config"),
        created=None if fields.get("created") is None else time_from_json(fields, "created"),
        fidelity=fields.choice("fidelity", Fidelity),
        reason=fields.text("reason"),
        state=None if state is None else _state(state),
        pending=None if pending is None else _pending(pending, folder),
        above_floor=None if fields.get("above_floor") is None else fields.number("above_floor", 0, UINT64_MAX),
        state_extra={} if state is None else state.rest(),
        extra=fields.rest(),
    )


def _pending(fields: DocumentFields, folder: str) -> ObjectRef:
    key = _key(fields, folder, layout.ObjectKind.PENDING)
    return ObjectRef(key, fields.number("size", 1), fields.hex256("sha256"), fields.rest())


def _state_to_json(state: ConsumerState) -> JsonObject:
    """Rows of `pending` are stream sequence, consumer sequence, time in ns; of `redelivered`, sequence and count."""
    return {
        "delivered": pair_to_json(state.delivered),
        "ack_floor": pair_to_json(state.ack_floor),
        "pending": [[seq, ack.consumer, ack.timestamp_ns] for seq, ack in sorted(state.pending.items())],
        "redelivered": [[seq, count] for seq, count in sorted(state.redelivered.items())],
    }


def _state(fields: DocumentFields) -> ConsumerState:
    pending = fields.rows("pending", 3, low=-INT64_MAX - 1, high=UINT64_MAX)
    redelivered = fields.rows("redelivered", 2)
    if any(seq < 0 or consumer < 0 or time > INT64_MAX for seq, consumer, time in pending):
        fields.wrong("pending", "a list of sequence, consumer sequence and time")
    for key, rows in (("pending", pending), ("redelivered", redelivered)):
        if any(low[0] >= high[0] for low, high in pairwise(rows)):
            fields.wrong(key, "in rising order of sequences")
    return ConsumerState(
        delivered=pair_from_json(fields.fields("delivered")),
        ack_floor=pair_from_json(fields.fields("ack_floor")),
        pending={seq: PendingAck(consumer, time) for seq, consumer, time in pending},
        redelivered={row[0]: row[1] for row in redelivered},
    )
