"""What a table knows about itself, so that an export can extend it: of which stream it is, how its messages were
changed, and how far it goes. Pure.

A sequence is exported once, and each export begins behind the last sequence that the stream had given by the one
before. So the table has all messages of the backups that were exported, if that was in order (`gaps/`); what is deleted
later stays in it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jsbackup.errors import FormatError, JsBackupError, TargetConflict, UnsupportedError, UsageError
from jsbackup.model import JsonObject
from jsbackup.pipeline.messages.columns import COLUMNS
from jsbackup.pipeline.payloads.parsing import encoding_of
from jsbackup.planning.transforming import PlannedStream, TransformOptions
from jsbackup.repository.manifest import Manifest, total_of
from jsbackup.repository.pages.segment_list import split_at, touching
from jsbackup.repository.summary import summary_of
from jsbackup.strict_json import write_json
from jsbackup.times import parse_time
from jsbackup.transforms.cut import Extent
from jsbackup.transforms.obfuscate.names import keyed_hash

__all__ = [
    "NewMessages",
    "TablePosition",
    "TableSource",
    "TableState",
    "new_messages",
    "other_payloads",
    "refuse_unsteady",
    "set_back",
    "source_of",
]

# Versions that know no partitions, or no payloads as columns, or only those of JSON, would add files without.
_FORMAT, _PARTITIONED, _WITH_PAYLOADS, _WITH_BINARY_PAYLOADS = 1, 2, 3, 4
_MARK_BYTES = 4  # as of `MaskKey`: they distinguish keys, and reveal next to nothing
_MAX = (1 << 63) - 1
_MOST_SHOWN = 500  # of a schema, in an error
_POSITION = ("last_seq", "message", "message_ns", "newest_ns", "backup_ns")


@dataclass(frozen=True, slots=True)
class TableSource:
    """What has to be the same in all exports into a table. `words` are the options for messages; `digest` is that of
    all that decides how messages look, keys included. `partition` is what partitions are of, "" without any; `payloads`
    what payloads are that are columns, as `PayloadParser.text` has it, "" if they are none.
    """

    incarnation: str
    words: tuple[str, ...]
    digest: str
    columns: tuple[str, ...] = COLUMNS
    partition: str = ""
    payloads: str = ""

    def to_json(self) -> JsonObject:
        return {
            "format": self._format,
            "incarnation": self.incarnation,
            "options": list(self.words),
            "digest": self.digest,
            "columns": list(self.columns),
            **({"partition": self.partition} if self.partition else {}),
            **({"payloads": self.payloads} if self.payloads else {}),
        }

    @property
    def _format(self) -> int:
        if self.payloads:
            return _WITH_PAYLOADS if encoding_of(self.payloads) == "json" else _WITH_BINARY_PAYLOADS
        return _PARTITIONED if self.partition else _FORMAT

    @classmethod
    def from_json(cls, value: Mapping[str, Any], what: str) -> TableSource:
        """Decode the result of `to_json`; `what` begins errors.

        Raises:
            FormatError: it is damaged.
            UnsupportedError: a newer version has written it.
        """
        number = value.get("format")
        if type(number) is int and number > _WITH_BINARY_PAYLOADS:
            raise UnsupportedError(f"{what} was written by a newer jsbackup", hint="Use that version.")
        texts: tuple[str, ...] = ("incarnation", "digest")
        lists = ("options", "columns")
        texts += ("partition",) if number == _PARTITIONED or "partition" in value else ()
        parsed = number in (_WITH_PAYLOADS, _WITH_BINARY_PAYLOADS)
        texts += ("payloads",) if parsed else ()
        sound = parsed or number in (_FORMAT, _PARTITIONED)
        sound = sound and all(isinstance(value.get(name), str) for name in texts)
        for name in lists if sound else ():
            found = value.get(name)
            sound = sound and isinstance(found, list) and all(isinstance(one, str) for one in found)
        if not sound:
            raise FormatError(f"{what} is damaged")
        return cls(
            value["incarnation"],
            tuple(value["options"]),
            value["digest"],
            tuple(value["columns"]),
            "" if number == _FORMAT else value.get("partition", ""),
            value["payloads"] if parsed else "",
        )


@dataclass(frozen=True, slots=True)
class TablePosition:
    """How far a table goes: `last_seq` is the last sequence that the stream had given. `message` and `message_ns` are
    sequence and time of the last message that was looked at, 0 if there was none; `newest_ns` is the latest time of all
    of them. `backup_ns` is the backup's time.
    """

    last_seq: int = 0
    message: int = 0
    message_ns: int = 0
    newest_ns: int = 0
    backup_ns: int = 0

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _POSITION}

    @classmethod
    def from_json(cls, value: Mapping[str, object], what: str) -> TablePosition:
        """Decode the result of `to_json`; `what` begins errors. Raises FormatError."""
        found = [value.get(name) for name in _POSITION]
        numbers = [number for number in found if type(number) is int]
        if len(numbers) != len(found) or not 0 <= numbers[1] <= numbers[0]:
            raise FormatError(f"{what} is damaged")
        return cls(*numbers)

    def followed_by(self, came: Extent, last_seq: int, newest_ns: int, backup_ns: int) -> TablePosition:
        """Return the position after messages that came were added, none later than `newest_ns`, of a backup up to
        `last_seq`.
        """
        message, message_ns = (came.last_seq, came.last_ns) if came.messages else (self.message, self.message_ns)
        newest_ns = max(newest_ns, self.newest_ns) if self.message else newest_ns
        return TablePosition(
            max(last_seq, self.last_seq), message, message_ns, newest_ns, max(backup_ns, self.backup_ns)
        )


@dataclass(frozen=True, slots=True)
class TableState:
    source: TableSource
    position: TablePosition


@dataclass(frozen=True, slots=True)
class NewMessages:
    """What of a stream is to be added. `planned` has only segments that may have some of it; None if nothing is new,
    and `note` says why. The table ends at the sequence `after`, its last message is at `position.message`.
    """

    planned: PlannedStream | None
    after: int = 0
    position: TablePosition = TablePosition()
    note: str = ""


def refuse_unsteady(options: TransformOptions) -> None:
    """Raise UsageError for options whose result for old messages changes with new ones."""
    reshape = options.reshape
    unsteady = [] if reshape.newest is None else [str(reshape.newest)]
    unsteady += ["--renumber"] if reshape.renumber else []
    if unsteady:
        raise UsageError(
            f"{unsteady[0].split()[0]} and --append exclude each other: what is exported would change later",
            hint="Leave one of them out.",
        )


def source_of(
    one: PlannedStream, manifest: Manifest, options: TransformOptions, *, mask_secret: bytes, partition: str
) -> TableSource:
    """Return what the table of a stream is made of, without payloads as columns. `mask_secret` is the key of masks, b""
    without one; `partition` is what partitions are of, "" without any.
    """
    reshape, obfuscation = options.reshape, options.reshape.obfuscation
    edges = [f"--{name} {edge}" for name, edge in (("since", reshape.cut.since), ("until", reshape.cut.until)) if edge]
    words = [word for word in options.words if word not in ("--since", "--until") and "--consumers" not in word] + edges
    key, incarnation = b"jsbackup export", one.entry.incarnation
    if obfuscation is not None:  # names must not be found by trying
        key, incarnation = obfuscation.names.secret, keyed_hash(obfuscation.names.secret, incarnation.encode())
    mark = hmac.digest(mask_secret, b"jsbackup export", hashlib.sha256)[:_MARK_BYTES].hex() if mask_secret else ""
    whole = {"words": words, "mask_key": mark, "transformed": summary_of(manifest).transformed}
    digest = hmac.digest(key, write_json(whole, "options", sort_keys=True), hashlib.sha256).hex()
    shown = tuple(words) if obfuscation is None else ("--obfuscate",)
    return TableSource(incarnation, shown, digest, partition=partition)


def new_messages(one: PlannedStream, manifest: Manifest, source: TableSource, state: TableState | None) -> NewMessages:
    """Decide what of a stream is added to its table, which has this state; None if there is no table.

    Raises:
        UsageError: the table was made with other options.
        UnsupportedError: it has other columns.
        TargetConflict: it is of another stream, or the stream was set back since.
    """
    if not one.entry.archive_format.has_messages:
        return NewMessages(None, note="the backup has no messages of it")
    if state is None:
        return NewMessages(one)
    if error := _against_source(one.reshaped.name, state.source, source):
        raise error
    had, has = state.position, one.entry.last_seq
    older = parse_time(manifest.created) <= had.backup_ns
    if has < had.last_seq and not older:
        raise TargetConflict(
            f"stream {one.entry.name} was set back since its table was extended: it had given sequence {had.last_seq} "
            f"then, and {has} now",
            hint="A server was restored to an older state, it seems. Export to another folder.",
        )
    if has <= had.last_seq:
        note = f"nothing is new: the table ends at sequence {had.last_seq}"
        note = f"{note}, from a later backup" if has < had.last_seq else note
        return NewMessages(None, had.last_seq, had, note)
    segments = tuple(touching(one.entry.segments, min(had.message or _MAX, had.last_seq + 1), _MAX))
    # Sequences that were given again have later times. They are the last ones up to `last_seq`, if any are left.
    before = split_at(one.entry.segments, segments[0].first_seq if segments else had.last_seq + 1)[0]
    if had.message and before and before[-1].max_ns > had.newest_ns:
        raise set_back(one.entry.name, one.reshaped.name, before[-1].last_seq)
    total = total_of(segments)
    captured = replace(one.entry.captured, messages=total.messages, bytes=total.bytes)
    planned = replace(one, entry=replace(one.entry, segments=segments, captured=captured))
    return NewMessages(planned, had.last_seq, had)


def set_back(stream: str, table: str, message: int) -> TargetConflict:
    """Return the error for a stream that has another message than was exported, or one that is younger."""
    return TargetConflict(
        f"message {message} of stream {stream} is another one than the table of {table} has: the stream was set back "
        "since",
        hint="A server was restored to an older state, it seems. Export to another folder.",
    )


def _against_source(name: str, had: TableSource, has: TableSource) -> JsBackupError | None:
    if had.incarnation != has.incarnation:
        return TargetConflict(
            f"the table of stream {name} is of another stream of that name: it was deleted and created again since, or "
            "is that of another account, and its sequences say something else",
            hint=f"Export to another folder, or move the folder of {name} away first.",
        )
    if had.columns != has.columns:
        return UnsupportedError(
            f"the table of stream {name} was made by another version of jsbackup, with other columns",
            hint="Export to another folder.",
        )
    if had.partition != has.partition:
        made = f"has partitions by {had.partition}" if had.partition else "has no partitions"
        option = f"with --partition-by {had.partition}" if had.partition else "without --partition-by"
        return UsageError(
            f"the table of stream {name} {made}", hint=f"Append to it {option}, or export to another folder."
        )
    if had.payloads != has.payloads:
        return other_payloads(name, had.payloads)
    if had.digest != has.digest:
        made = f"with {' '.join(had.words)}" if had.words else "without options that change messages"
        if had.words == has.words:
            made += " and with another key, or of backups that were transformed in another way"
        return UsageError(
            f"the table of stream {name} was made {made}",
            hint="Append to it with the same options (a --since that counts from now is another one each time), or "
            "export to another folder.",
        )
    return None


def other_payloads(name: str, had: str) -> UsageError:
    """Return the error for a table whose payloads are others than those of the export: `had`, or no columns."""
    if not had:
        return UsageError(
            f"the table of stream {name} has no payloads as columns",
            hint="Append to it without --payload-json and the like, or export to another folder.",
        )
    encoding = encoding_of(had)
    append = "infer, which takes that schema" if encoding == "json" else "and a schema that has these columns"
    return UsageError(
        f"the table of stream {name} has the payloads {had[:_MOST_SHOWN]}",
        hint=f"Append to it with --payload-{encoding} {append}, or export to another folder.",
    )
