"""Mirrors that are ahead of their origins: where they are cut, and what is said about that.

A mirror has the sequences of its origin. One that ends after it would not continue copying, so it is cut there; one
that cannot be cut is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jsbackup.planning.copies.origins import PlannedOrigin, is_same_life
from jsbackup.planning.model import Action, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.copy_positions import is_external
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = ["against_mirror", "cut_of_copy", "ends_of_mirrors", "with_cut_warning"]


def ends_of_mirrors(entries: Sequence[StreamBackup], manifest: Manifest, target: Target) -> dict[str, int]:
    """Return mirrors that are ahead of their origins, with the origins' ends."""
    ends: dict[str, int] = {}
    by_name = {entry.name: entry for entry in entries}
    # A mirror of a mirror ends where that ends. Circles of mirrors are refused elsewhere.
    for _ in range(len(by_name)):
        found = {
            entry.name: max(end, 1)  # it is refused rather than emptied, if its origin has never had a message
            for entry in entries
            if (end := _end_of_origin(entry, by_name, manifest, target, ends=ends)) is not None
            and end < state_to_restore(entry).last_seq
        }
        if found == ends:
            break
        ends = found
    return ends


def _end_of_origin(
    entry: StreamBackup,
    by_name: Mapping[str, StreamBackup],
    manifest: Manifest,
    target: Target,
    *,
    ends: Mapping[str, int],
) -> int | None:
    mirror = entry.config.get("mirror")
    if not isinstance(mirror, dict) or is_external(mirror) or not isinstance(origin := mirror.get("name"), str):
        return None
    if origin in by_name:
        end = state_to_restore(by_name[origin]).last_seq
        return min(end, ends.get(origin, end))
    live = target.streams.get(origin)
    stored = {one.name: one for one in manifest.streams}
    if live is None or not is_same_life(stored.get(origin), live, manifest):
        return None
    return live.state.last_seq


def cut_of_copy(cut: Cut, end: int | None) -> Cut:
    """Return the cut of a stream that ends at `end` at the latest, at 0 before its first message. A cut by time stays:
    it is checked afterwards.
    """
    if end is None or (cut.until is not None and not isinstance(cut.until, AtSequence)):
        return cut
    return replace(cut, until=AtSequence(end if cut.until is None else min(end, cut.until.sequence)))


def against_mirror(action: Action, origins: Mapping[str, PlannedOrigin]) -> Iterator[Finding]:
    """Refuse a mirror that would be ahead of its origin and could not be cut."""
    mirror = action.config.get("mirror")
    origin = None if not isinstance(mirror, dict) or is_external(mirror) else origins.get(str(mirror.get("name")))
    end = state_to_restore(action.entry).last_seq
    if isinstance(until := action.reshape.cut.until, AtSequence):
        end = min(end, until.sequence)
    if origin is None or end <= origin.last_seq or action.wire is SendAs.API:
        return
    yield Finding(
        action.entry.name,
        Rule.MIRROR_AHEAD,
        f"ends at sequence {end:,}, but its origin {origin.name} at {origin.last_seq:,}",
        f"Restore {origin.name} as well, or restore this one with --set mirror=null.",
    )


def with_cut_warning(action: Action, stored: Mapping[str, StreamBackup], cuts: Mapping[str, int]) -> Action:
    """Return the action with a warning about what was cut, if it is a mirror that was cut."""
    name = action.entry.name
    if name in cuts and action.config.get("mirror") and action.reshape.cut.until is not None:
        return _about_cut(action, stored[name], cuts[name])
    return action


def _about_cut(action: Action, entry: StreamBackup, end: int) -> Action:
    """Return the action with a warning about what a cut leaves out of a mirror that is ahead."""
    gone = entry.captured.messages - action.entry.captured.messages
    after = "it has no message after that"
    if gone or not action.counted:
        count = f"{'' if action.counted else 'at least '}{gone:,} message{'' if gone == 1 else 's'}"
        after = f"{count if gone else 'messages'} after that {'is' if gone == 1 else 'are'} not restored"
    mirror = action.config.get("mirror")
    origin = mirror.get("name") if isinstance(mirror, dict) else "its origin"
    last = state_to_restore(entry).last_seq
    reason = f"ends at sequence {last:,}, and {origin} at {end:,}: {after}"
    warning = Finding(entry.name, Rule.MIRROR_CUT, reason, "To keep them, restore it with --set mirror=null.")
    return replace(action, warnings=(*action.warnings, warning))
