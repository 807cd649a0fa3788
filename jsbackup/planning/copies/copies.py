"""Streams with sources and mirrors in a plan: where each will continue to copy, and what has to be adjusted for that.

Pure. `transforms/copy_positions.py` explains how servers decide it; the facts about a copy (`CopyFacts`) are read from
a backup by `copy_positions.py`, or come from a server that is cloned. Three questions decide, for each source:

1. *Is the origin the one that it copied from?* An origin restored with it is, whatever its creation time will be: then
    the identity is removed from the marks, unless it stays the same. So is one at the target that was never recreated,
    or that was restored. Any other is a different stream: 2.15 copies all of it, and older servers
    are made to.
2. *Does the origin have what the copy has?* If the copy is ahead, marks are limited to the origin's end: the copy keeps
    what it has, and messages published from then on are copied once. A mirror has the sequences of its origin, so it is
    cut there.
3. *Has the copy deleted messages since they were copied?* They would be copied again. With an archive v1, 2.15 can be
    given the source's position; otherwise that needs `--resume-sources`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jsbackup.model import JsonObject
from jsbackup.planning.archive_choice import release_of
from jsbackup.planning.configs.features import IDENTITIES_SINCE
from jsbackup.planning.copies.copy_facts import CopyFacts, SourceFacts, sources_of
from jsbackup.planning.model import Action, RestoreOptions, SendAs, Start, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.times import parse_time
from jsbackup.transforms.copied_from import Mend
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, is_external, source_key, stream_identity
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = [
    "PlannedOrigin",
    "against_mirror",
    "cut_of_copy",
    "ends_of_mirrors",
    "fit_copies",
    "is_same_life",
    "origins_at",
    "planned_origin",
    "with_cut_warning",
]


# --- origins ---
#
# Origins of mirrors and sources as they will be at the target, and whether they are those that copies copied from.

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


# --- mirror ends ---
#
# Mirrors that are ahead of their origins: where they are cut, and what is said about that.
#
# A mirror has the sequences of its origin. One that ends after it would not continue copying, so it is cut there; one
# that cannot be cut is refused.


def ends_of_mirrors(entries: Sequence[StreamBackup], manifest: Manifest, target: Target) -> dict[str, int]:
    """Return mirrors that are ahead of their origins, with the origins' ends."""
    ends: dict[str, int] = {}
    by_name = {entry.name: entry for entry in entries}
    # A mirror of a mirror ends where that ends. Circles of mirrors are refused elsewhere.
    for _ in range(len(by_name)):
        last_sequences = {
            entry.name: max(end, 1)  # it is refused rather than emptied, if its origin has never had a message
            for entry in entries
            if (end := _end_of_origin(entry, by_name, manifest, target, ends=ends)) is not None
            and end < state_to_restore(entry).last_seq
        }
        if last_sequences == ends:
            break
        ends = last_sequences
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
    stored = {stream.name: stream for stream in manifest.streams}
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
    # A clone notes the ends of all copies, also where nothing follows them.
    ahead = name in cuts and cuts[name] < state_to_restore(stored[name]).last_seq
    if ahead and action.config.get("mirror") and action.reshape.cut.until is not None:
        return _about_cut(action, stored[name], cuts[name])
    return action


def _about_cut(action: Action, entry: StreamBackup, end: int) -> Action:
    """Return the action with a warning about what a cut leaves out of a mirror that is ahead."""
    left_out = entry.captured.messages - action.entry.captured.messages
    after = "it has no message after that"
    if left_out or not action.counted:
        count = f"{'' if action.counted else 'at least '}{left_out:,} message{'' if left_out == 1 else 's'}"
        after = f"{count if left_out else 'messages'} after that {'is' if left_out == 1 else 'are'} not restored"
    mirror = action.config.get("mirror")
    origin = mirror.get("name") if isinstance(mirror, dict) else "its origin"
    last = state_to_restore(entry).last_seq
    reason = f"ends at sequence {last:,}, and {origin} at {end:,}: {after}"
    warning = Finding(entry.name, Rule.MIRROR_CUT, reason, "To keep them, restore it with --set mirror=null.")
    return replace(action, warnings=(*action.warnings, warning))


_BY_SUBJECT_SINCE = (2, 12)


def fit_copies(
    actions: Sequence[Action],
    manifest: Manifest,
    target: Target,
    options: RestoreOptions,
    *,
    facts: CopyFacts,
    cuts: Mapping[str, int],
) -> tuple[list[Action], list[Finding]]:
    """Return the actions, with marks, start sequences and warnings of copies; and refusals.

    `cuts` are the mirrors that were cut, and where.
    """
    stored = {entry.name: entry for entry in manifest.streams}
    at_target = origins_at(target, manifest)
    marked = (release_of(manifest.source) or IDENTITIES_SINCE) >= IDENTITIES_SINCE

    def fit(action: Action, origins: Mapping[str, PlannedOrigin]) -> Action:
        name = action.entry.name
        copies = action.wire in (SendAs.V1, SendAs.V2) and sources_of(action.config)
        if copies and "sources" not in options.of_stream(name).fields:
            growing = name in facts.growing
            action = _Copy(action, target, options, facts.sources.get(name), marked=marked, growing=growing).fit(
                origins
            )
        return action

    altered = {action.name for action in actions if action.alters}
    while True:
        origins = at_target | {
            action.name: planned_origin(action, target, action.name in altered) for action in actions
        }
        fitted = [fit(action, origins) for action in actions]
        # An adjusted copy is a different stream for its own copies.
        altered_names = {action.name for action in fitted if action.alters}
        if altered_names <= altered:
            break
        altered |= altered_names
    refusals = [refusal for action in fitted for refusal in against_mirror(action, origins)]
    return [with_cut_warning(action, stored, cuts) for action in fitted], refusals


class _Copy:
    """One stream with sources."""

    def __init__(
        self,
        action: Action,
        target: Target,
        options: RestoreOptions,
        facts: Mapping[SourceKey, SourceFacts] | None,
        *,
        marked: bool,
        growing: bool,
    ) -> None:
        self.growing = growing
        self.action = action
        self.target = target
        self.options = options
        self.facts = facts
        self.marked = marked
        self.newer = target.version[:2] >= IDENTITIES_SINCE
        self.mends: dict[SourceKey, Mend] = {}
        self.starts: list[Start] = []
        self.found: list[Finding] = []
        self.renewed: list[str] = []  # origins with a new creation time
        self.awaited: list[str] = []  # origins that are missing, and will have a new creation time

    def fit(self, origins: Mapping[str, PlannedOrigin]) -> Action:
        before, after = sources_of(self.action.entry.config), sources_of(self.action.config)
        config = [self._source(old, new, origins) for old, new in zip(before, after, strict=True)]
        action = self.action
        for origins_renewed, is_there in ((self.renewed, ""), (self.awaited, " once it is restored")):
            if origins_renewed:
                names = ", ".join(dict.fromkeys(origins_renewed))
                when = is_there if self.newer else f"{is_there} when the server is 2.15"
                reason = (
                    f"its headers lose the creation time of {names}; otherwise everything would be copied again{when}"
                )
                self._say(Rule.ORIGIN_RENEWED, reason)
        if config != after:
            action = replace(action, config={**action.config, "sources": config})
        return replace(
            action,
            reshape=action.reshape.of_copy(action.entry.config, self.mends),
            warnings=(*action.warnings, *self.found),
            starts=tuple(self.starts),
        )

    def _say(self, rule: Rule, reason: str, hint: str = "") -> None:
        self.found.append(Finding(self.action.entry.name, rule, reason, hint))

    def _source(self, old: JsonObject, new: JsonObject, origins: Mapping[str, PlannedOrigin]) -> JsonObject:
        """Return one source's new configuration; note its mark, its start and its findings."""
        key = source_key(old)
        facts = None if self.facts is None else self.facts.get(key)
        left = None if facts is None else facts.left
        if is_external(old):
            self.starts.append(Start(source_key(new), left.sequence if left else None))
            return new
        origin = origins.get(str(new["name"]))
        if origin is None:
            # A stream that appears under that name later was restored, or it would not be waited for.
            mend, reached = Mend(renewed=self._has_identity(facts)), left.sequence if left else None
        elif origin.same or (left is not None and left.identity and left.identity == origin.identity):
            origin = replace(origin, same=True)
            mend, reached = self._of_same(origin, facts)
        else:
            mend, reached = self._of_another(origin, facts)
        told = False
        if facts is not None and (origin is None or origin.same):
            new, mend, reached, told = self._resumed(new, origin, facts, mend, reached=reached)
            if left is not None and not told and self._hides_marks(new):
                new, reached, told = self._hidden(new, left, mend, reached)
        self.mends[key] = mend
        identity = "" if mend.renewed or left is None else left.identity
        self.starts.append(Start(source_key(new), reached, identity, told))
        if mend.renewed:
            (self.awaited if origin is None else self.renewed).append(str(new["name"]))
        return new

    def _has_identity(self, facts: SourceFacts | None) -> bool:
        """Return whether its marks may have an identity."""
        return self.marked if facts is None else bool(facts.left and facts.left.identity)

    def _of_same(self, origin: PlannedOrigin, facts: SourceFacts | None) -> tuple[Mend, int | None]:
        renewed = self._has_identity(facts) and not (
            facts is not None and facts.left is not None and facts.left.identity == origin.identity
        )
        if facts is None:
            return Mend(renewed, most=None if self.growing else origin.last_seq), None
        at = facts.left.sequence if facts.left else 0
        if at <= origin.last_seq:
            return Mend(renewed), at
        self._say(
            Rule.COPY_AHEAD,
            f"has copied {origin.name} up to sequence {at:,}, and that will end at {origin.last_seq:,}: "
            f"it keeps what it has and continues copying after {origin.last_seq:,}",
        )
        return Mend(renewed, most=origin.last_seq), origin.last_seq

    def _of_another(self, origin: PlannedOrigin, facts: SourceFacts | None) -> tuple[Mend, int | None]:
        """Handle a stream of that name at the target that is not the one it copied from."""
        self._say(
            Rule.ORIGIN_ANOTHER,
            f"{origin.name} at the target is not the stream that it copied from: all its messages are copied, "
            f"{format_count(origin.messages, 'message')} at most",
            f"Restore {origin.name} as well to avoid that.",
        )
        return Mend(renewed=self._has_identity(facts), most=0), 0

    def _resumed(
        self, new: JsonObject, origin: PlannedOrigin | None, facts: SourceFacts, mend: Mend, *, reached: int | None
    ) -> tuple[JsonObject, Mend, int | None, bool]:
        """Handle messages that would be copied again."""
        end = origin.last_seq if origin is not None else None
        goal = facts.reached if end is None else min(facts.reached, end)
        again = self._copied_again(new, facts, end)
        # Without a mark it would continue by its last time, which is not exact, or from the beginning if that is
        # missing too.
        unmarked = facts.exact and facts.left is None and goal > 0
        if unmarked and self.newer and self.action.wire is SendAs.V1:
            return new, mend, goal, True
        if again and facts.exact and goal > (reached or 0):
            if self.newer and self.action.wire is SendAs.V1:
                return new, mend, goal, True
            if self.options.resume_sources:
                return self._set_start(new, facts.left, mend, goal)
        if again:
            name = new["name"]
            count = f"{again:,}" if facts.exact and facts.most is None else f"up to {again:,}"
            reason = f"messages of {name} that were deleted from it are copied again ({count})"
            hint = "With --resume-sources it resumes where it was; that stays in its configuration."
            if self.options.resume_sources:
                hint = f"How far it had copied {name} is not known: set opt_start_seq by hand."
            self._say(Rule.COPIED_AGAIN, reason, hint)
        elif self.options.resume_sources and unmarked:
            return self._set_start(new, None, mend, goal)
        return new, mend, reached, False

    def _set_start(
        self, new: JsonObject, left: CopyPosition | None, mend: Mend, goal: int
    ) -> tuple[JsonObject, Mend, int, bool]:
        if left is not None:
            mend = replace(mend, raised=(left.sequence, goal))
        reason = (
            f"resumes after sequence {goal:,} of {new['name']}, where it was: opt_start_seq of that source is "
            f"{goal + 1} in its configuration from now on"
        )
        self._say(Rule.RESUMED, reason)
        rest = {key: value for key, value in new.items() if key != "opt_start_time"}
        return {**rest, "opt_start_seq": goal + 1}, mend, goal, False

    def _hides_marks(self, source: JsonObject) -> bool:
        """Return whether servers look for the source's marks under subjects that the stream's own transform has
        changed.

        Measured: 2.12.8 copies everything again whenever it starts such a stream, 2.10.26 and 2.15.2 do not.
        """
        filtered = bool(source.get("filter_subject") or source.get("subject_transforms"))
        by_subject = self.target.version[:2] >= _BY_SUBJECT_SINCE and self.action.wire is SendAs.V1
        return filtered and by_subject and bool(self.action.config.get("subject_transform"))

    def _hidden(
        self, new: JsonObject, left: CopyPosition, mend: Mend, reached: int | None
    ) -> tuple[JsonObject, int | None, bool]:
        if self.newer:
            return new, reached, True
        goal = mend.sequence(left.sequence)
        if self.options.resume_sources:
            new, _, goal, _ = self._set_start(new, None, mend, goal)
            return new, goal, False
        reason = (
            f"because of its subject_transform the server cannot see how far it has copied {new['name']}, and copies "
            f"everything again, up to sequence {goal:,}, as at every start"
        )
        hint = "With --resume-sources it resumes where it was; that stays in its configuration."
        self._say(Rule.COPIED_AGAIN, reason, hint)
        return new, 0, False

    def _copied_again(self, source: JsonObject, facts: SourceFacts, end: int | None) -> int:
        """Return the most messages of the origin that would be copied again."""
        if facts.left is None and not _number(source.get("opt_start_seq")):
            state = state_to_restore(self.action.entry)
            by_time = bool(source.get("opt_start_time")) or state.first_seq > 1
            # An emptied stream only gets its last time from an archive v1.
            if by_time and (state.messages or (self.action.wire is SendAs.V1 and state.last_ns)):
                return 0
        if facts.most is not None:
            return facts.most
        return sum(1 for sequence in facts.again if end is None or sequence <= end)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
