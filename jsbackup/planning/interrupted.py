"""What interrupted restores leave on a server, and how to recognize it: the mark, incomplete streams, staged copies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jsbackup.config import Glob, is_chosen
from jsbackup.formats.batch import columns_from_batch
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol.info import MARKER, StreamInfo
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import parts_of
from jsbackup.repository.read.segments import SegmentReader, state_to_restore

if TYPE_CHECKING:
    from jsbackup.planning.model import Target

__all__ = [
    "ALL_COPIES",
    "AT_WORK",
    "MARKER",
    "StagedCopy",
    "about_copy",
    "about_leftover",
    "about_mark",
    "find_copies",
    "grown_leftovers",
    "has_message_at",
    "is_left_out",
    "is_marked",
    "needed_by",
    "replaced_by",
    "staged_config",
    "staging_prefix",
    "useless_copies",
    "with_marker",
]


# --- marker ---
#
# The mark of a stream that is being restored: a metadata key, by which the next restore recognizes a leftover.
# Pure.


def with_marker(config: JsonObject, backup: str) -> JsonObject:
    """Return the configuration of a stream that is being restored from `backup`."""
    return {**config, "metadata": {**(config.get("metadata") or {}), MARKER: backup}}


def is_marked(config: JsonObject) -> bool:
    """Return whether the stream is not complete yet, or was not when its restore was interrupted."""
    return MARKER in (config.get("metadata") or {})


def about_mark(config: JsonObject) -> tuple[str, ...]:
    """Return a warning for the backup of a stream with the mark."""
    if not is_marked(config):
        return ()
    backup = config["metadata"][MARKER]
    return (
        f"it may be incomplete: a restore of backup {backup} into it was interrupted "
        f"(its metadata key {MARKER} says so); restore it again, or remove the key if it is whole",
    )


# --- staged ---
#
# The copy that a replacement proves beside the old stream (`stream_restore.py`), found after its run was killed. Pure.
#
#     killed while the copy is made, or proved     the old stream is there: the copy is of no use
#     killed when the old stream is gone           the copy is all that the server has of it
#     killed while the new one is made             likewise: the new one carries the mark of a restore
#     killed before the copy is removed            the new stream is there: the copy is of no use
#
# A running command listens on a subject (`engine/restore/remove_unfinished.py`): its copy is not a leftover. Someone
# may have created another stream with the name of the deleted one: then the copy is needed, too. A copy is recognized
# by its name together with its unique subject; it records when the stream that it replaces was created.

_NAME = re.compile("(.*)-jsbackup-([0-9a-f]{8})", re.DOTALL)
_REPLACES = "replaces "  # the description; the name of a copy may have only the start of the stream's
AT_WORK = "jsbackup-at-work"  # the last token of subjects that mark a command as running
ALL_COPIES = "jsbackup.staged.*"
_NEEDED_BY = "jsbackup.needed-by"  # metadata: that subject
_AT_WORK = re.compile(rf"[^\s*>]{{1,200}}\.{AT_WORK}")  # a copy may be anybody's: no other subject is requested
_REPLACED = "jsbackup.replaced"  # metadata: when the replaced stream was created


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """A copy made to replace `original`; `needed` if that is missing, or lacks messages of the copy."""

    name: str
    original: str
    messages: int
    needed: bool
    needed_by: str = ""  # the subject that marks a command as running


def staging_prefix(name: str) -> str:
    """Return the prefix of the names of copies of a stream; eight hex digits follow. Fits a file name."""
    return f"{name.encode()[:200].decode(errors='ignore')}-jsbackup-"


def staged_config(name: str, suffix: str, created: str | None, at_work: str) -> JsonObject:
    """Return the configuration that marks a stream as the copy for replacing stream `name`, which was created at
    `created`.

    `at_work` is the subject to which its command subscribes.
    """
    return {
        "name": f"{staging_prefix(name)}{suffix}",
        "subjects": [_subject(suffix)],
        "description": f"{_REPLACES}{name}",
        "metadata": {_NEEDED_BY: at_work, **({} if created is None else {_REPLACED: created})},
    }


def needed_by(config: JsonObject) -> str:
    """Return the subject that marks the command of this copy as running; "" if it has none."""
    text = (config.get("metadata") or {}).get(_NEEDED_BY)
    return text if isinstance(text, str) and _AT_WORK.fullmatch(text) else ""


def replaced_by(name: str, config: JsonObject) -> str | None:
    """Return the stream that stream `name` is to replace; None if it is not such a copy."""
    match = _NAME.fullmatch(name)
    if match is None or config.get("subjects") != [_subject(match[2])]:
        return None
    text = config.get("description")
    if isinstance(text, str) and text.startswith(_REPLACES):
        original = text.removeprefix(_REPLACES)
        return original if name.startswith(staging_prefix(original)) else match[1]
    return match[1]


def find_copies(streams: Mapping[str, StreamInfo]) -> list[StagedCopy]:
    """Return the copies among all streams of a server."""
    copies = []
    for name, copy in streams.items():
        if (original := replaced_by(name, copy.config)) is not None:
            live = streams.get(original)
            needed = not is_marked(copy.config) and (live is None or not _stands(live, copy))
            copies.append(StagedCopy(name, original, copy.state.messages, needed, needed_by(copy.config)))
    return copies


def useless_copies(streams: Mapping[str, StreamInfo]) -> set[str]:
    """Return the names of copies that are not needed, which commands ignore."""
    return {copy.name for copy in find_copies(streams) if not copy.needed}


def is_left_out(copy: StagedCopy, names: Sequence[Glob], exclude: Sequence[Glob]) -> bool:
    """Return whether a backup of these names omits the copy: if it is not needed, and was not requested."""
    if any(glob.matches(copy.name) for glob in names) and not any(glob.matches(copy.original) for glob in names):
        return False
    return not copy.needed or not is_chosen(copy.original, (), exclude)


def about_copy(copy: StagedCopy) -> str:
    """Return the note about a copy that is left out."""
    return (
        f"stream {copy.name} is left out: it is the copy that a restore made to replace {copy.original}; unless one "
        f"is running, restore {copy.original} again with --if-exists replace, or remove it with 'nats stream rm'"
    )


def about_leftover(config: JsonObject) -> tuple[str, ...]:
    """Return the warning of `about_mark`, or one for the backup of a copy that was to replace another stream."""
    original = replaced_by(config.get("name", ""), config)
    if original is None or is_marked(config):
        return about_mark(config)
    return (
        f"it is the copy that an interrupted restore made to replace stream {original}; run that restore again: "
        f"it restores {original}, and removes the copy",
    )


def _stands(live: StreamInfo, copy: StreamInfo) -> bool:
    """Return whether a stream is the one that the copy was to replace, or the one that was restored from it."""
    if is_marked(live.config):
        return False
    if live.created in (copy.created, (copy.config.get("metadata") or {}).get(_REPLACED)):
        return True
    if not copy.state.messages:
        return True
    begins_later = live.state.messages > 0 and live.state.first_ns > copy.state.last_ns
    return live.state.last_seq >= copy.state.last_seq and not begins_later


def _subject(suffix: str) -> str:
    return f"jsbackup.staged.{suffix}"


# --- leftovers ---
#
# Distinguish leftovers of an interrupted restore from streams that were written to since.
#
# A stream that is being restored listens to its subjects, so publishers are acknowledged before it is complete. After
# an interruption it is then more than a leftover, although it has the mark. It may only be removed automatically if it
# has nothing that its backup lacks. Streams append, so that is the case if its last message is in the backup, with the
# same time to the nanosecond. The plan compares the known numbers; before a leftover is removed, that message is looked
# up in the source of the restore.


def grown_leftovers(entries: Mapping[str, StreamBackup], target: Target) -> frozenset[str]:
    """Return the leftovers at the target that have something their backup lacks. `entries` are by their name there."""
    return frozenset(
        name
        for name, entry in entries.items()
        if name in target.leftovers and name in target.streams and _has_grown(target.streams[name], entry)
    )


def _has_grown(live: StreamInfo, entry: StreamBackup) -> bool:
    if live.state.consumers > len(entry.consumers):
        return True
    ends = [entry.state.last_ns, *(part.max_ns for part in parts_of(entry.segments))]
    beyond = live.state.last_seq > max(entry.state.last_seq, entry.captured.last_seq)
    return live.state.messages > 0 and (beyond or live.state.last_ns > max(ends))


def has_message_at(objects: Objects, entry: StreamBackup, state: StreamState, *, renumbered: bool = False) -> bool:
    """Return whether the last message of a stream in `state` is in the backup. Reads a segment, or a few if the stream
    was `renumbered`.

    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    if not state.messages or state.last_ns == entry.state.last_ns:
        return True
    if entry.archive_format is ArchiveFormat.OPAQUE:  # its messages cannot be read
        return state.last_ns < entry.state.last_ns and state.last_seq <= state_to_restore(entry).last_seq
    reader = SegmentReader(objects)
    for ref in reversed(entry.segments):
        if (renumbered or ref.first_seq <= state.last_seq) and ref.min_ns <= state.last_ns <= ref.max_ns:
            for batch in reader.read(ref):
                times: memoryview[int] = memoryview(columns_from_batch(batch).timestamps).cast("B").cast("q")
                if state.last_ns in times:
                    return True
    return False
