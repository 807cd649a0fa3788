"""The copy that a replace proves beside the old stream (`stream_restore.py`), found when its run was killed. Pure.

    killed while the copy is made, or proved     the old stream is there: the copy is of no use
    killed when the old stream is gone           the copy is all that the server has of it
    killed while the new one is made             likewise: the new one carries the mark of a restore
    killed before the copy is removed            the new stream is there: the copy is of no use

A command at work says so by a subject (`engine/restore/at_work.py`): its copy is not what a killed one has left.

Whoever finds that a stream is gone may make another one of that name: then the copy is needed, too. A copy is known by
its name together with its subject, which nobody else makes; it says which life of a stream it is to replace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jsbackup.config import Glob, is_chosen
from jsbackup.model import JsonObject
from jsbackup.planning.interrupted.marker import about_mark, is_marked
from jsbackup.protocol.info import StreamInfo

__all__ = [
    "ALL_COPIES",
    "AT_WORK",
    "StagedCopy",
    "about_copy",
    "about_leftover",
    "find_copies",
    "is_left_out",
    "needed_by",
    "replaced_by",
    "staged_config",
    "staging_prefix",
    "useless_copies",
]

_NAME = re.compile("(.*)-jsbackup-([0-9a-f]{8})", re.DOTALL)
_REPLACES = "replaces "  # the description; the name of a copy may have only the start of the stream's
AT_WORK = "jsbackup-at-work"  # how subjects end that say that a command is at work
ALL_COPIES = "jsbackup.staged.*"
_NEEDED_BY = "jsbackup.needed-by"  # metadata: such a subject
_AT_WORK = re.compile(rf"[^\s*>]{{1,200}}\.{AT_WORK}")  # a copy may be anybody's: no other subject is asked
_REPLACED = "jsbackup.replaced"  # metadata: when the stream that it is to replace was created


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """A copy of what is to replace `original`; `needed` if that is not there, or has not what the copy has."""

    name: str
    original: str
    messages: int
    needed: bool
    needed_by: str = ""  # the subject that says that a command is at work with it


def staging_prefix(name: str) -> str:
    """How copies made beside a stream to replace it are named; eight hex digits follow. Fits a file name."""
    return f"{name.encode()[:200].decode(errors='ignore')}-jsbackup-"


def staged_config(name: str, suffix: str, created: str | None, at_work: str) -> JsonObject:
    """What makes a stream known as the copy that is to replace stream `name`, which was created then.

    `at_work` is the subject to which the command subscribes that needs it.
    """
    return {
        "name": f"{staging_prefix(name)}{suffix}",
        "subjects": [_subject(suffix)],
        "description": f"{_REPLACES}{name}",
        "metadata": {_NEEDED_BY: at_work, **({} if created is None else {_REPLACED: created})},
    }


def needed_by(config: JsonObject) -> str:
    """The subject that says that a command is at work with this copy; "" if it names none."""
    told = (config.get("metadata") or {}).get(_NEEDED_BY)
    return told if isinstance(told, str) and _AT_WORK.fullmatch(told) else ""


def replaced_by(name: str, config: JsonObject) -> str | None:
    """The stream that stream `name` is to replace; None if it is no such copy."""
    match = _NAME.fullmatch(name)
    if match is None or config.get("subjects") != [_subject(match[2])]:
        return None
    told = config.get("description")
    if isinstance(told, str) and told.startswith(_REPLACES):
        original = told.removeprefix(_REPLACES)
        return original if name.startswith(staging_prefix(original)) else match[1]
    return match[1]


def find_copies(streams: Mapping[str, StreamInfo]) -> list[StagedCopy]:
    """Those among all streams of a server."""
    found = []
    for name, copy in streams.items():
        if (original := replaced_by(name, copy.config)) is not None:
            there = streams.get(original)
            needed = not is_marked(copy.config) and (there is None or not _stands(there, copy))
            found.append(StagedCopy(name, original, copy.state.messages, needed, needed_by(copy.config)))
    return found


def useless_copies(streams: Mapping[str, StreamInfo]) -> set[str]:
    """The names of those that nothing is lost with: whoever looks at a server passes them over."""
    return {copy.name for copy in find_copies(streams) if not copy.needed}


def is_left_out(copy: StagedCopy, names: Sequence[Glob], exclude: Sequence[Glob]) -> bool:
    """Whether a backup by these names leaves it out: it does if nothing is lost by that, and it was not asked for."""
    if any(glob.matches(copy.name) for glob in names) and not any(glob.matches(copy.original) for glob in names):
        return False
    return not copy.needed or not is_chosen(copy.original, (), exclude)


def about_copy(copy: StagedCopy) -> str:
    """What is said of a copy that is left out."""
    return (
        f"stream {copy.name} is left out: it is the copy by which a restore was to replace {copy.original}; unless one "
        f"is at work, restore {copy.original} again with --if-exists replace, or remove it with 'nats stream rm'"
    )


def about_leftover(config: JsonObject) -> tuple[str, ...]:
    """What `about_mark` says, and a warning for the backup of a copy that was to replace another stream."""
    original = replaced_by(config.get("name", ""), config)
    if original is None or is_marked(config):
        return about_mark(config)
    return (
        f"it is the copy by which an interrupted restore was to replace stream {original}; run that restore again: "
        f"it restores {original}, and removes the copy",
    )


def _stands(there: StreamInfo, copy: StreamInfo) -> bool:
    """Whether a stream is the one that the copy was to replace, or the one that it was made for."""
    if is_marked(there.config):
        return False
    if there.created in (copy.created, (copy.config.get("metadata") or {}).get(_REPLACED)):
        return True
    if not copy.state.messages:
        return True
    begins_later = there.state.messages > 0 and there.state.first_ns > copy.state.last_ns
    return there.state.last_seq >= copy.state.last_seq and not begins_later


def _subject(suffix: str) -> str:
    return f"jsbackup.staged.{suffix}"
