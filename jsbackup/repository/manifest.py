"""A manifest: what one backup holds. Writing it commits the backup; it is never overwritten.

The types here are the document, field by field; `manifest.schema.json` beside this module is the same as a JSON Schema.
In JSON, times are RFC 3339 in UTC; sizes are bytes; sequences are integers of up to 64 bits (more than JavaScript's
numbers hold). `extra` (and `state_extra`, for the state inside) holds fields of a later version, which survive a
rewrite by this one.

A stream's segments are a sequence: a tuple, or, if they are many, a list whose pages are read when they are needed
(`pages/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jsbackup.config import Glob, is_chosen
from jsbackup.errors import IntegrityError
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import ConsumerState, Fidelity, JsonObject, StreamState
from jsbackup.readable import format_count
from jsbackup.repository import layout
from jsbackup.repository.objects import AnyRef, Extra, ObjectRef, OpaqueRef, PageRef, SegmentRef, StreamPageRef
from jsbackup.repository.pages.segment_list import BrokenPage, SegmentList, Totals, total_of
from jsbackup.times import parse_time

__all__ = [
    "AnyRef",
    "ArchiveFormat",
    "BackupResult",
    "BackupSummary",
    "Captured",
    "ConsumerBackup",
    "CopiedFrom",
    "Fact",
    "FactKind",
    "Losses",
    "LostSpan",
    "Manifest",
    "ObjectRef",
    "OpaqueRef",
    "PageRef",
    "ReadAs",
    "Reading",
    "SegmentRef",
    "Selection",
    "SkippedStream",
    "Source",
    "StreamBackup",
    "StreamPageRef",
    "Totals",
    "UnlistedStreams",
    "is_dated_ahead",
    "objects_named",
    "summary_of",
    "total_of",
]


class BackupResult(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"  # something is missing; `skipped` and warnings say what


class ArchiveFormat(StrEnum):
    """How a stream was read."""

    V1 = "v1"
    V2 = "v2"
    MESSAGES = "messages"  # message by message: the new ones, or all if the server cannot take a snapshot
    CONFIG = "config"  # no messages were asked for
    OPAQUE = "opaque"  # a format that this tool does not know, kept verbatim

    @property
    def has_messages(self) -> bool:
        """Whether the messages are stored, and can be read."""
        return self not in (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE)


class ReadAs(StrEnum):
    """How much of a stream was read."""

    SNAPSHOT = "snapshot"  # all of it, from the server's archive
    MESSAGES = "messages"  # all of it, message by message
    INCREMENT = "increment"  # the changes since an earlier backup, whose segments hold the rest


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stream was read, and why in that way."""

    how: ReadAs
    why: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerBackup:
    """A consumer. `state` is None if only the config is known; `reason` says what is not exact ("" if nothing).

    If only its ack floor is known, `above_floor` is the number of deliveries above it, None if unknown.

    A large pending set is in the object `pending`, and `state` has none (`repository/write/stream_objects.py` puts them
    together).
    """

    name: str
    config: JsonObject
    created: str | None
    fidelity: Fidelity
    state: ConsumerState | None = None
    reason: str = ""
    pending: ObjectRef | None = None
    above_floor: int | None = None
    state_extra: Extra = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Captured:
    """What was captured, and when (RFC 3339). Sequences are 0 if there is no message."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int
    begun: str
    ended: str
    extra: Extra = field(default_factory=dict)

    @classmethod
    def of(cls, totals: Totals, begun: str, ended: str) -> Captured:
        """Return what was captured between two times (RFC 3339)."""
        return cls(totals.messages, totals.bytes, totals.first_seq, totals.last_seq, begun, ended)


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """The `sequence` of an origin up to which the stream had copied messages when its capture began.

    It may have deleted some of them since. The source is named as in marks (`transforms/copy_positions.py`).
    """

    origin: str
    filter: str
    destination: str
    sequence: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.origin, self.filter, self.destination


@dataclass(frozen=True, slots=True)
class LostSpan:
    """Messages that the stream had and that could not be read, with sequences from `first_seq` to `last_seq`.

    They are `messages` in number, None if unknown. If it is not `certain`, there are at most as many: some or all may
    have been deleted before. `last_seq` is None if nothing tells where they ended. `cause` says why they are lost.
    `subjects` are those that they seem to have had.
    """

    first_seq: int
    last_seq: int | None
    messages: int | None
    certain: bool
    cause: str
    subjects: tuple[str, ...] = ()
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost of a stream. `subjects` has the number of lost messages by subject, as far as that is known."""

    spans: tuple[LostSpan, ...] = ()
    subjects: Mapping[str, int] = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.spans)


class FactKind(StrEnum):
    """What a backup found out about a stream. Later decisions depend on the kind, never on the sentence."""

    EMPTIED = "emptied"  # all its messages were deleted, as may be meant
    LOST_SINCE = "lost-since"  # the server has lost messages since the backup before
    GONE = "gone"
    PURGED = "purged"  # as emptied, where nothing is left of any other stream either
    RECREATED = "recreated"  # it is another stream than the one that had the messages
    NOT_CONTINUED = "not-continued"  # it is new, and nothing is left of what the backup has


_SENTENCES = {
    FactKind.EMPTIED: "it has no messages any more, and had {held}",
    FactKind.LOST_SINCE: "the server has lost some of it since the last backup: {detail}",
    FactKind.GONE: "{had}, and the server no longer has this stream",
    FactKind.PURGED: "{had}, and has none now",
    FactKind.RECREATED: "{had}, and is another stream now, {detail}",
    FactKind.NOT_CONTINUED: "nothing is left of what backup {backup} has, and this stream alone is not a replacement",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact, and the `backup`, "" if not known, made at `made` (RFC 3339), in which the stream had that many
    `messages`. `detail` are words about the present state.
    """

    kind: FactKind
    backup: str = ""
    made: str = ""
    messages: int = 0
    detail: str = ""
    extra: Extra = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The sentence for people."""
        held = f"{self.messages:,} in backup {self.backup}, made {self.made[:19]}Z"
        words = f"it had {format_count(self.messages, 'message')} in" if self.messages else "it is in"
        text = _SENTENCES[self.kind].format(
            held=held, had=f"{words} backup {self.backup}", detail=self.detail, backup=self.backup
        )
        return f"{text} ({held})" if self.kind is FactKind.LOST_SINCE and self.backup else text


@dataclass(frozen=True, slots=True)
class StreamBackup:
    """One stream. `state` is as the server reported it when the capture began; `captured` is what is stored.

    `created` is RFC 3339 as the server wrote it. `digest` is the stream digest over all segments. Counts may differ
    from the reported state, because messages arrive and expire meanwhile. An opaque stream has pieces instead of
    segments. No decision depends on a sentence in `warnings`. `read` is None if no server was read. `copied` has the
    sources whose position the server reported. `lost` is what could not be read of a stream that was salvaged. `life`
    is "", or when the backup began which found that the stream gives sequences again: after a restore in place, or if a
    server has lost its end. With it, name, incarnation and sequence identify a message.
    """

    name: str
    incarnation: str
    config: JsonObject
    created: str
    state: StreamState
    captured: Captured
    archive_format: ArchiveFormat
    digest: StreamDigest = field(default_factory=StreamDigest)
    segments: Sequence[SegmentRef] = ()
    consumers: tuple[ConsumerBackup, ...] = ()
    opaque: tuple[OpaqueRef, ...] = ()
    warnings: tuple[str, ...] = ()
    read: Reading | None = None
    copied: tuple[CopiedFrom, ...] = ()
    lost: Losses = field(default_factory=Losses)
    life: str = ""
    facts: tuple[Fact, ...] = ()
    state_extra: Extra = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)

    def captured_again(
        self, begun: str, ended: str, archive_format: ArchiveFormat, read: Reading | None
    ) -> StreamBackup:
        """Return the same, captured between two other times."""
        captured = replace(self.captured, begun=begun, ended=ended)
        return replace(self, captured=captured, archive_format=archive_format, read=read)

    @property
    def refs(self) -> Iterator[AnyRef]:
        """All stored objects that it needs. Raises IntegrityError, KeyUnavailable or StoreError for a page of them."""
        yield from self.pages
        yield from self.segments
        yield from self.opaque
        yield from (consumer.pending for consumer in self.consumers if consumer.pending is not None)

    def walk(self) -> Iterator[AnyRef | BrokenPage]:
        """Yield its stored objects, and after a page that cannot be read what is wrong with it."""
        yield from self.segments.walk() if isinstance(self.segments, SegmentList) else self.segments
        yield from self.opaque
        yield from (consumer.pending for consumer in self.consumers if consumer.pending is not None)

    @property
    def pages(self) -> Iterator[PageRef]:
        """The pages that list its segments, each before those that it lists. Raises what `refs` raises."""
        return self.segments.pages() if isinstance(self.segments, SegmentList) else iter(())

    @property
    def unknown_format(self) -> str:
        """A sentence about a stream that is stored undecoded; "" if its format is known."""
        opaque = self.archive_format is ArchiveFormat.OPAQUE
        return f"stream {self.name} is of an archive format that is not known here" if opaque else ""

    @property
    def last_seq(self) -> int:
        """The last sequence that the stream had given, also if that message was deleted."""
        return max(self.captured.last_seq, self.state.last_seq)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All that people should know of it: its facts in words, and its warnings."""
        return (*(fact.text for fact in self.facts), *self.warnings)

    def fact(self, kind: FactKind) -> Fact | None:
        return next((fact for fact in self.facts if fact.kind is kind), None)


@dataclass(frozen=True, slots=True)
class SkippedStream:
    name: str
    reason: str
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnlistedStreams:
    """Streams of a backup that are not known, because the `page` that lists them cannot be read."""

    page: StreamPageRef
    error: IntegrityError = field(compare=False)

    @property
    def first(self) -> str:
        return self.page.first

    @property
    def count(self) -> int:
        return self.page.streams

    @property
    def reason(self) -> str:
        return self.error.message

    @property
    def words(self) -> str:
        return f"stream {self.first}" + (f" and {self.count - 1} others" if self.count > 1 else "")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a backup comes from. Empty or None if the server did not say; never a URL or credentials.

    `account`, `account_name`, `api_prefix` and `login` are as in `origin.py`; `profile` is the one that the command ran
    with. `imported` says of which kind the files were that were imported (`from`); `transformed` by which `options` the
    backup was made from another one (`backup`), whose source this is otherwise.
    """

    server_version: str = ""
    cluster: str = ""
    account: str = ""
    domain: str | None = None
    context: str | None = None
    extra: Extra = field(default_factory=dict)
    account_name: str | None = None
    api_prefix: str | None = None
    login: str | None = None
    profile: str | None = None
    imported: JsonObject | None = None
    transformed: JsonObject | None = None

    @property
    def is_of_a_server(self) -> bool:
        """Whether the backup was made from a server's streams, not from files or another backup."""
        return self.imported is None and self.transformed is None

    def incarnation(self, name: str, created: str) -> str:
        """Return what identifies a stream of this source that was created then (`layout.incarnation`)."""
        return layout.incarnation(self.cluster, self.account, name, created)


@dataclass(frozen=True, slots=True)
class Selection:
    """What was requested: names and globs of streams (none: all), and which parts of them.

    Backups with equal selections succeed each other (`retention.py`). `allow_empty`: a backup without the streams of
    earlier ones is complete.
    """

    streams: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    consumers: bool = True
    config_only: bool = False
    extra: Extra = field(default_factory=dict)
    allow_empty: bool = False

    def selects(self, name: str) -> bool:
        """Return whether a stream of that name would be in such a backup."""
        return is_chosen(name, [Glob(text) for text in self.streams], [Glob(text) for text in self.exclude])


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `tool` is name and version of the writer; `previous` is the backup before it in the repository.
    `previous_sha256` is the SHA-256 of its stored manifest (`manifest_chain.py`); None if that could not be read.

    `selection` is None for an import, which takes everything. `ended` is RFC 3339, `stored_bytes` the bytes that it
    added to the repository in segments and pieces of snapshots; None if not recorded. `stream_pages` are the pages that
    list the streams, if a stored manifest has any; `unlisted` are the streams of those that could not be read, if it
    was read without them. `unread` are those that were not asked for, if it was read only for some streams: such a
    manifest is not written.
    """

    id: str
    created: str
    tool: str
    source: Source
    result: BackupResult
    streams: tuple[StreamBackup, ...] = ()
    skipped: tuple[SkippedStream, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    previous: str | None = None
    previous_sha256: str | None = None
    selection: Selection | None = None
    ended: str | None = None
    stored_bytes: int | None = None
    extra: Extra = field(default_factory=dict)
    stream_pages: tuple[StreamPageRef, ...] = ()
    unlisted: tuple[UnlistedStreams, ...] = ()
    unread: tuple[StreamPageRef, ...] = ()

    @property
    def refs(self) -> Iterator[AnyRef]:
        """All stored objects that it needs; one that several streams name comes several times."""
        yield from self.stream_pages
        for stream in self.streams:
            yield from stream.refs


def objects_named(manifest: Manifest) -> Iterator[str]:
    """Yield the keys of all objects that a backup needs besides its manifest."""
    return (ref.key for ref in manifest.refs)


# --- summary ---
#
# The summary of a backup, without its streams: for `list`, retention and catalogs.

# A backup from later than this after now was made with a wrong clock, or our clock is wrong.
_CLOCK_SLACK_NS = 300 * 10**9


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One backup. `created` is RFC 3339, `bytes` is that of the messages.

    `cluster`, `account` and `domain` are as in `Source`; an import has none of them. `imported` is the kind of folder
    that was imported; `transformed` has the options by which the backup was made from another one. If nothing was
    selected, `selection` names all streams, and whether there are only configurations. The fields after `selection` are
    as in a manifest, and None if not recorded.
    """

    id: str
    created: str
    result: BackupResult
    streams: int
    messages: int
    bytes: int
    tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    account: str = ""
    domain: str | None = None
    imported: str | None = None
    transformed: str | None = None
    selection: Selection = field(default_factory=Selection)
    account_name: str | None = None
    api_prefix: str | None = None
    login: str | None = None
    profile: str | None = None
    ended: str | None = None
    stored_bytes: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took to make."""
        return None if self.ended is None else (parse_time(self.ended) - parse_time(self.created)) / 1e9

    @property
    def is_of_a_server(self) -> bool:
        """Whether it was made from a server's streams, not from files or another backup."""
        return self.imported is None and self.transformed is None


def is_dated_ahead(created: str, now_ns: int) -> bool:
    """Return whether a backup of this time (RFC 3339) is dated in the future."""
    return parse_time(created) > now_ns + _CLOCK_SLACK_NS


def summary_of(manifest: Manifest) -> BackupSummary:
    names = {stream.name for stream in manifest.streams} | {skipped.name for skipped in manifest.skipped}
    pages = manifest.stream_pages  # whose streams may not have been read
    imported, transformed = manifest.source.imported, manifest.source.transformed
    without_messages = all(stream.archive_format is ArchiveFormat.CONFIG for stream in manifest.streams)
    return BackupSummary(
        id=manifest.id,
        created=manifest.created,
        result=manifest.result,
        streams=sum(page.streams for page in pages) or len(manifest.streams),
        messages=sum(page.messages for page in pages or (stream.captured for stream in manifest.streams)),
        bytes=sum(page.bytes for page in pages or (stream.captured for stream in manifest.streams)),
        tags=dict(manifest.tags),
        cluster=manifest.source.cluster,
        account=manifest.source.account,
        domain=manifest.source.domain,
        imported=None if imported is None else imported["from"],
        transformed=None if transformed is None else " ".join(transformed["options"]),
        selection=manifest.selection
        or Selection(tuple(sorted(names)), config_only=bool(manifest.streams) and without_messages),
        account_name=manifest.source.account_name,
        api_prefix=manifest.source.api_prefix,
        login=manifest.source.login,
        profile=manifest.source.profile,
        ended=manifest.ended,
        stored_bytes=manifest.stored_bytes,
    )
