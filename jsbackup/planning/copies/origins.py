"""Origins of mirrors and sources as they will be at the target, and whether they are those that copies copied from."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.planning.model import Action, SendAs, Target
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.times import parse_time
from jsbackup.transforms.copy_positions import stream_identity

__all__ = ["PlannedOrigin", "is_same_life", "origins_at", "planned_origin"]

_NO_TIME = "0001-01-01T"  # in imports without a creation time


@dataclass(frozen=True, slots=True)
class PlannedOrigin:
    """An origin as it will be at the target. `identity` is "" if unknown; `same`: its copies have copied from it."""

    name: str
    last_seq: int
    messages: int
    identity: str
    same: bool


def origins_at(target: Target, manifest: Manifest) -> dict[str, PlannedOrigin]:
    """Return the streams of the target as they are now, by name."""
    stored = {entry.name: entry for entry in manifest.streams}
    return {
        name: PlannedOrigin(
            name,
            info.state.last_seq,
            info.state.messages,
            stream_identity(info.created),
            same=is_same_life(stored.get(name), info, manifest),
        )
        for name, info in target.streams.items()
    }


def planned_origin(action: Action, target: Target, altered: bool) -> PlannedOrigin:
    """Return a stream as the action will make it. `altered`: its messages or marks change."""
    state = state_to_restore(action.entry)
    timed = not altered and not action.entry.created.startswith(_NO_TIME)
    keeps = timed and action.wire is SendAs.V1 and target.clustered is False
    identity = stream_identity(action.entry.created) if keeps else ""
    return PlannedOrigin(action.name, state.last_seq, state.messages, identity, same=True)


def is_same_life(entry: StreamBackup | None, live: StreamInfo, manifest: Manifest) -> bool:
    """Return whether a stream at the target has the messages that copies in the backup have copied.

    It does if it was never recreated, or was restored: then it has messages older than itself, or the first or last
    message of the backup. An origin that the backup lacks must have existed by then.
    """
    state, now = live.state if entry is None else entry.state, live.state
    if 0 < now.first_ns < live.created_ns:
        return True
    if entry is None:
        return live.created_ns <= parse_time(manifest.created)
    if entry.created == live.created:
        return True
    first = (state.first_seq, state.first_ns) == (now.first_seq, now.first_ns)
    last = (state.last_seq, state.last_ns) == (now.last_seq, now.last_ns)
    return (first or last) and bool(state.messages and now.messages)
