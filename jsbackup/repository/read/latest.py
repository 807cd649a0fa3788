"""What `latest` means: the newest backup that is suitable for the command. Only decided here.

    dated           not in the future: some clock was wrong, and it is not known when it was made
    one source      that of the connection; else the only one there is; else the only one that the named profile has
                    backed up: it may lead to another server by now. Of servers without a name, one whose streams are
                    those that are there (`sources.py`). Imports and changed copies count only if there is nothing
                    else, and so do sources that never had a stream
    fit             complete, where there is a complete one; with messages, where there is one with messages; not
                    of a server that had lost all of its streams (`sources.py`)
    what is asked   its selection covers the streams that are asked for, as no newer backup's does

Each series of backups (`sources.py`) has candidates: its newest complete backup, or its newest partial one if there is
no complete one; if streams are named, also a newer partial one that has them completely, and an older one if the newer
ones no longer have them (or, `as_newest`, any of them).

The one whose selection covers most of the requested streams is chosen, and among equals the newest: a restore of
everything does not mean a backup of one stream that was made by hand after the nightly one. A series that has ended
counts only if no other has any of the requested streams. It has ended if its newest backup is older than the newest of
all by more than three times its own interval, and by more than a day and a half.

Newer backups that are not chosen are reported with the reason, and so are streams that only another backup has. A newer
backup that cannot be read, or whose manifest is missing, might be the right one, so it is an error. A stream that no
longer existed when the chosen backup was made is reported with the last backup that has it: it may have been deleted by
mistake. Only a few manifests are read for that: those followed by a backup with fewer streams.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING

from jsbackup.config import Glob, is_chosen, nearest
from jsbackup.errors import IntegrityError, JsBackupError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.checks.manifest_chain import how_to_repair
from jsbackup.repository.inventory import Inventory, find_missing
from jsbackup.repository.manifest import (
    BackupResult,
    BackupSummary,
    FactKind,
    Manifest,
    Selection,
    Source,
    StreamBackup,
    is_dated_ahead,
    summary_of,
)
from jsbackup.repository.manifest_json import Needed, read_needed
from jsbackup.repository.objects import Objects, folder_of
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.pages.segment_list import BrokenPage, parts_of
from jsbackup.repository.read.sources import (
    counts,
    hollow_backups,
    is_unnamed,
    read_if_possible,
    refuse_another_server,
    selection_words,
    series_of,
)
from jsbackup.times import format_time, parse_time

if TYPE_CHECKING:
    from jsbackup.repository.keep.retention import TagRule
    from jsbackup.repository.repository import Repository

__all__ = [
    "BackupSearch",
    "Choice",
    "Elsewhere",
    "Wanted",
    "choose_latest",
    "find_unselected",
    "of_one_source",
    "with_damage",
]

_log = logging.getLogger(__name__)

_PATIENCE_NS = 36 * 3600 * 10**9
_MISSED = 3
_RHYTHM = 8  # how many backups of a series are used to find its interval
_MOST_NOTES = 5
_MOST_NAMED = 5
# How many backups are read to find deleted streams, and how long before the chosen one they may have been made.
_MOST_READ = 4
_GONE_NS = 31 * 24 * 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is requested of `latest`.

    `streams` and `exclude` are those of the command (no `streams`: all); if `all_needed`, a backup must have all of
    them. If it is `as_newest`, it need not, and that some were deleted does not lead to an older one. `origin` is the
    connected source. `origins` and `tags` are from --origin and --tag, which the command has if it is `choosable`.
    `profile` is the named one; `usual` is the selection of its backups, which it means by "all". Backups that began
    after `until_ns` do not count.
    """

    streams: tuple[Glob, ...] = ()
    exclude: tuple[Glob, ...] = ()
    all_needed: bool = True
    as_newest: bool = False
    origin: Origin | None = None
    origins: tuple[Glob, ...] = ()
    tags: tuple[TagRule, ...] = ()
    choosable: bool = False
    profile: str = ""
    usual: Selection | None = None
    until_ns: int | None = None

    def asks(self, name: str) -> bool:
        """Return whether a stream of that name is requested."""
        usual = self.usual if not self.streams else None
        return is_chosen(name, self.streams, self.exclude) and (usual is None or usual.selects(name))

    def has_begun(self, backup: str) -> bool:
        return self.until_ns is None or layout.begun_by(backup, self.until_ns)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A stream that the chosen backup lacks, and the newest backup that has it."""

    stream: str
    backup: str
    created: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen backup. `elsewhere` has the requested streams that it lacks; `notes` are sentences for the user."""

    manifest: Manifest
    notes: tuple[str, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()


@dataclass(slots=True)
class BackupSearch:
    """Finds the backup that `text` means: an id, the start of one, or `latest`, which depends on what is `wanted`.

    `choice` is the result, of which `report` tells the user. A named backup that is `known` is not looked up again. A
    manifest is read `in_part` if so asked, and for the streams that are `needed`, if there are any
    (`manifest_json.py`). A search may be called from a worker thread, with the connected source, or without.
    """

    repository: Repository
    text: str
    wanted: Wanted = field(default_factory=Wanted)
    known: Choice | None = None
    in_part: bool = False
    needed: Needed = ()
    report: Callable[[BackupSearch], None] | None = None

    def __call__(self, source: Source | None = None) -> Manifest:
        """Find the backup. Raises the errors of `Repository.choose`."""
        if self.is_latest:
            wanted = replace(self.wanted, origin=None if source is None else origin_of(source))
            self.known = self.repository.choose(self.text, wanted, source, in_part=self.in_part, needed=self.needed)
        else:
            known = self.known or self.repository.choose(self.text, in_part=self.in_part, needed=self.needed)
            self.known = replace(known, notes=() if source is None else tuple(_about_named(known.manifest, source)))
        if self.report is not None:
            self.report(self)
        return self.known.manifest

    def early(self) -> BackupSearch:
        """Return itself, to be called with the source. A backup named by its id is looked up now, with the same
        errors.
        """
        if not self.is_latest:
            self()
        return self

    @property
    def is_latest(self) -> bool:
        return self.text == layout.LATEST

    @property
    def choice(self) -> Choice:
        """The backup that was found, and what was found out about others."""
        assert self.known is not None
        return self.known


def choose_latest(
    repository: Repository,
    wanted: Wanted,
    connected: Source | None = None,
    *,
    in_part: bool = False,
    needed: Needed = (),
) -> Choice:
    """Return the backup that `latest` means for a command that is `connected` to this source. Its manifest is read
    `in_part` if so asked, and for the `needed` streams (`manifest_json.py`): all that are `wanted`, if there are any.

    Raises:
        UsageError: there is none, or several sources are possible; the message names them.
        FormatError, UnsupportedError, KeyUnavailable: a newer backup cannot be read.
        IntegrityError: the manifest of a newer one is missing.
        StoreError: the store does not answer.
    """
    read: Callable[[str], Manifest] = partial(repository.manifest, in_part=True) if in_part else repository.manifest
    if needed and not is_unnamed(connected):  # servers without a name are told apart by all of their streams
        read = partial(read_needed, repository, needed=needed, in_part=in_part)
    inventory = _inventory(repository, wanted)
    now_ns = time.time_ns()
    backups = [backup for backup in inventory.summaries if counts(backup, wanted.tags, wanted.origins)]
    if not backups:
        if inventory.unreadable:
            raise inventory.unreadable[-1].error
        raise _none_counts(inventory.summaries, wanted)
    ahead = [backup for backup in backups if is_dated_ahead(backup.created, now_ns)]
    backups = [backup for backup in backups if backup not in ahead] or ahead
    pool, origin = of_one_source(backups, wanted)
    candidates = _Candidates(series_of(_fit(pool)), read, wanted)
    chosen = candidates.choose()
    for unreadable in inventory.unreadable:
        if unreadable.id > chosen.id:
            raise unreadable.error.with_more_hint(_by_id(chosen.id))
    _refuse_removed(repository, inventory, chosen.id)
    if not wanted.tags:
        refuse_another_server(repository, chosen.manifest, connected)
    elsewhere = candidates.elsewhere(chosen)
    notes = [
        *_about_source(origin, wanted),
        *_about_ahead(ahead, chosen.id),
        *_about_newer(candidates, chosen, backups, pool),
        *_about_gone(repository, chosen, wanted, named={lacking.stream for lacking in elsewhere}),
    ]
    return Choice(chosen.manifest, tuple(notes), tuple(elsewhere))


def _inventory(repository: Repository, wanted: Wanted) -> Inventory:
    """Return the backups that had begun at the moment that is wanted. Raises UsageError if there is none."""
    listed = repository.backups()
    if listed and not wanted.has_begun(listed[0]):
        raise UsageError(
            f"no backup was made at {format_time(wanted.until_ns or 0)} or before",
            hint=f"The first one is {listed[0]}.",
        )
    inventory = repository.inventory()
    if not listed:
        _refuse_removed(repository, inventory)
        raise UsageError("the repository has no backup yet", hint="Make one with `jsbackup backup`.")
    return replace(
        inventory,
        entries=tuple(entry for entry in inventory.entries if wanted.has_begun(entry.id)),
        unreadable=tuple(backup for backup in inventory.unreadable if wanted.has_begun(backup.id)),
        gaps=tuple(gap for gap in inventory.gaps if wanted.has_begun(gap.backup)),
    )


def _none_counts(summaries: Sequence[BackupSummary], wanted: Wanted) -> UsageError:
    """Return the error for when no backup has the wanted tags and sources."""
    sources = " or ".join(repr(glob.pattern) for glob in wanted.origins)
    asked = [*([f"of source {sources}"] if sources else []), *(f"tagged {str(tag)!r}" for tag in wanted.tags)]
    origins = sorted({shlex.quote(str(origin_of(backup))) for backup in summaries if backup.is_of_a_server})
    known = f"There are backups of {_some(origins)}. " if origins and sources else ""
    return UsageError(f"no backup is {' and '.join(asked)}", hint=f"{known}'jsbackup list' shows all.")


def _refuse_removed(repository: Repository, inventory: Inventory, chosen: str = "") -> None:
    """Raise IntegrityError if the manifest of a newer backup was removed (`manifest_chain.py`)."""
    newer = {gap.backup for gap in inventory.gaps if gap.backup > chosen}
    if not newer:
        return
    # Checked again: a backup that is committed or forgotten at this moment seems to be missing.
    listed = repository.backups()
    missing = [gap for gap in find_missing(repository.documents) if gap.backup in newer and gap.backup not in listed]
    if missing:
        gap = missing[-1]
        raise IntegrityError(
            f"the manifest of backup {gap.backup}, which is newer, is missing: {gap.problem}",
            hint=how_to_repair(gap.backup) + (f" {_by_id(chosen)}" if chosen else ""),
        )


def _by_id(backup: str) -> str:
    return f"The newest that can be read and is meant is {backup}: name it by its id."


def with_damage(objects: Objects, choice: Choice, wanted: Wanted) -> Choice:
    """Return the choice with a note if wanted streams of the backup are known to be damaged. It stays the choice: an
    older one has other messages, and of these streams a restore is refused.

    Pages are only read of streams in whose folder something is damaged. Raises KeyUnavailable and StoreError.
    """
    backup = choice.manifest
    damaged = [entry.name for entry in backup.streams if wanted.asks(entry.name) and _is_damaged(objects, entry)]
    if not damaged:
        return choice
    text = f"{backup.id} is known to be damaged, in {_some(damaged)}: 'jsbackup show {backup.id}' says more"
    return replace(choice, notes=(text, *choice.notes))


def _is_damaged(objects: Objects, stream: StreamBackup) -> bool:
    parts = [*parts_of(stream.segments), *stream.opaque, *(c.pending for c in stream.consumers if c.pending)]
    if not any(objects.damaged_in(folder) for folder in {folder_of(part) for part in parts}):
        return False
    return any(isinstance(ref, BrokenPage) or objects.is_damaged(ref) for ref in stream.walk())


def find_unselected(repository: Repository, manifest: Manifest) -> list[Elsewhere]:
    """Return the streams of the same source that this backup's selection leaves out, and another backup has.

    An import's source is not known, so everything that backups of servers have is left out.
    Raises IntegrityError, KeyUnavailable and StoreError.
    """
    named = summary_of(manifest)
    others = [other for other in repository.inventory().summaries if other.is_of_a_server and other.id != named.id]
    if named.is_of_a_server:
        others = [other for other in others if origin_of(other) == origin_of(named)]
    fit = [other for other in others if not other.selection.config_only]
    chosen = _Candidate(named, manifest)
    elsewhere = _Candidates(series_of(fit), repository.manifest, Wanted()).elsewhere(chosen)
    return [stream for stream in elsewhere if not named.is_of_a_server or not chosen.selects(stream.stream)]


# --- which backups are suitable ---


def of_one_source(backups: Sequence[BackupSummary], wanted: Wanted) -> tuple[list[BackupSummary], Origin | None]:
    """Return the backups of the chosen source, oldest first, and the source; None for imports.

    Raises UsageError if several sources are possible.
    """
    sources: dict[Origin, list[BackupSummary]] = {}
    for backup in backups:
        if backup.is_of_a_server:
            sources.setdefault(origin_of(backup), []).append(backup)
    if not sources:
        return [backup for backup in backups if backup.transformed is None] or list(backups), None
    if wanted.origin in sources:
        return sources[wanted.origin], wanted.origin
    lively = {origin: made for origin, made in sources.items() if any(backup.streams for backup in made)} or sources
    if len(lively) > 1 and wanted.profile:
        by_profile = {o: made for o, made in lively.items() if any(backup.profile == wanted.profile for backup in made)}
        lively = by_profile if len(by_profile) == 1 else lively
    if len(lively) > 1:
        raise _ambiguous({origin: made[-1].id for origin, made in lively.items()}, wanted)
    [(origin, made)] = lively.items()
    return made, origin


def _ambiguous(newest: Mapping[Origin, str], wanted: Wanted) -> UsageError:
    """Return the error for when several sources are possible; `newest` has the newest backup of each."""
    options = {o: f", by --origin {shlex.quote(str(o))}" if wanted.choosable else "" for o in newest}
    sources = [f"{o.words} (newest {newest[o]}{options[o]})" for o in sorted(newest, key=newest.__getitem__)]
    connected = "" if wanted.origin is None else f", and none is of {wanted.origin.words}, the connected server"
    return UsageError(
        f"'latest' is ambiguous: backups of {len(newest)} sources are in this repository{connected}: "
        + _some(sources[::-1], most=10, separator="; "),
        hint="Choose one with --origin or --tag, or name a backup by its id."
        if wanted.choosable
        else "Name a backup by its id: 'jsbackup list' shows which is of which source.",
    )


def _fit(pool: Sequence[BackupSummary]) -> Sequence[BackupSummary]:
    """Return the backups with messages; if there are none, all that are usable."""
    hollow = hollow_backups(pool)
    sound = [backup for backup in pool if backup.id not in hollow] or pool
    # A partial backup without any stream lacks everything.
    something = [backup for backup in sound if backup.streams or backup.result is BackupResult.COMPLETE] or sound
    return [backup for backup in something if not backup.selection.config_only] or something


# --- which of them is chosen ---


def _complete(series: Sequence[BackupSummary]) -> list[BackupSummary]:
    return [backup for backup in series if backup.result is BackupResult.COMPLETE]


def _top(series: Sequence[BackupSummary]) -> BackupSummary:
    return (_complete(series) or series)[-1]


def _has_ended(series: Sequence[BackupSummary], newest_ns: int) -> bool:
    """Return whether newer backups of a series are overdue, if the newest of all was made at `newest_ns`."""
    made = [parse_time(backup.created) for backup in (_complete(series) or series)[-_RHYTHM:]]
    between = max((later - earlier for earlier, later in pairwise(made)), default=0)
    return newest_ns - made[-1] > max(_PATIENCE_NS, _MISSED * between)


@dataclass(frozen=True)
class _Candidate:
    """A backup that can be chosen, and the usable backups of its series, oldest first."""

    summary: BackupSummary
    manifest: Manifest
    series: Sequence[BackupSummary] = ()

    @property
    def id(self) -> str:
        return self.summary.id

    @cached_property
    def lacking(self) -> Mapping[str, str]:
        """The streams that it does not have, or perhaps not completely, each with the reason."""
        if self.manifest.result is BackupResult.COMPLETE:
            return {}
        doubts = {
            stream.name: [*(fact.text for fact in stream.facts if fact.kind is not FactKind.EMPTIED), *stream.warnings]
            for stream in self.manifest.streams
        }
        lacking = {name: texts[0] for name, texts in doubts.items() if texts}
        return lacking | {stream.name: stream.reason for stream in self.manifest.skipped}

    @cached_property
    def whole(self) -> frozenset[str]:
        """The streams that it has completely."""
        return frozenset(stream.name for stream in self.manifest.streams) - self.lacking.keys()

    def selects(self, name: str) -> bool:
        return self.summary.selection.selects(name)

    def has(self, glob: Glob) -> bool:
        return any(glob.matches(stream.name) for stream in self.manifest.streams)


@dataclass(frozen=True)
class _Candidates:
    """The backups that can be chosen, out of series that have at least one. Manifests are read once; a backup that
    cannot be read is no candidate, and is in `errors`.
    """

    series: Sequence[Sequence[BackupSummary]]
    read: Callable[[str], Manifest]
    wanted: Wanted
    errors: dict[str, JsBackupError] = field(default_factory=dict)
    _known: dict[str, _Candidate | None] = field(default_factory=dict)

    def choose(self) -> _Candidate:
        """Return the chosen backup.

        Raises:
            UsageError: none, or no single one, has the named streams.
            JsBackupError: no backup can be read, or a newer one of the same series cannot. The error is that of the
                newest.
        """
        candidates = [candidate for series in self.series for candidate in self._of(series)]
        if not candidates and self.errors:
            raise self.errors[max(self.errors)]
        if not candidates:  # forgotten since they were listed
            raise UsageError("no backup can be read", hint="See 'jsbackup list'.")
        newest_ns = max(parse_time(_top(series).created) for series in self.series)
        ranks = {candidate.id: self._rank(candidate) for candidate in candidates}
        useful = [
            candidate
            for candidate in candidates
            if any(ranks[candidate.id][:3]) and not _has_ended(candidate.series, newest_ns)
        ]
        best = max(useful or candidates, key=lambda candidate: ranks[candidate.id])
        newest = max((backup.id for backup in best.series if backup.id in self.errors), default="")
        if newest > best.id:
            raise self.errors[newest].with_more_hint(_by_id(best.id))
        needed = self.wanted.all_needed and not self.wanted.as_newest
        if needed and not all(map(best.has, self.wanted.streams)):
            raise self._missing(best, candidates)
        return best

    def elsewhere(self, chosen: _Candidate) -> list[Elsewhere]:
        """Return the requested streams that are only in other backups. Streams that were deleted meanwhile do not
        count.
        """
        elsewhere = []
        for name in sorted(self._asked - chosen.whole):
            holders = [candidate for candidate in self._newest if name in candidate.whole]
            holder = max(holders, key=lambda candidate: candidate.id, default=None)
            if holder is None or not (name in chosen.lacking or holder.id > chosen.id or not chosen.selects(name)):
                continue
            elsewhere.append(Elsewhere(name, holder.id, holder.summary.created))
        return elsewhere

    def candidate(self, backup: BackupSummary, series: Sequence[BackupSummary] = ()) -> _Candidate | None:
        if backup.id not in self._known:
            self._known[backup.id] = None
            try:
                self._known[backup.id] = _Candidate(backup, self.read(backup.id), series)
            except UsageError:  # forgotten since it was listed
                pass
            except JsBackupError as error:
                self.errors[backup.id] = error.with_message(f"backup {backup.id}: {error.message}")
                _log.warning("%s", self.errors[backup.id].message)
        return self._known[backup.id]

    @cached_property
    def _newest(self) -> list[_Candidate]:
        """The newest complete backup of each series, and a newer partial one."""
        return [candidate for series in self.series for candidate in self._newest_of(series)]

    def _newest_of(self, series: Sequence[BackupSummary]) -> list[_Candidate]:
        newest = {backup.id: backup for backup in (_top(series), series[-1])}
        candidates = (self.candidate(backup, series) for backup in newest.values())
        return [candidate for candidate in candidates if candidate is not None]

    @cached_property
    def _asked(self) -> frozenset[str]:
        """The names of the requested streams, as far as the newest backups know them."""
        names = {name for candidate in self._newest for name in (*candidate.whole, *candidate.lacking)}
        return frozenset(filter(self.wanted.asks, names))

    def _of(self, series: Sequence[BackupSummary]) -> list[_Candidate]:
        """Return the backups of a series that can be chosen."""
        globs, newest = self.wanted.streams, self._newest_of(series)
        if not globs:
            return [candidate for candidate in newest if candidate.summary is _top(series)]
        missing = [glob for glob in globs if not any(candidate.has(glob) for candidate in newest)]
        if self.wanted.as_newest and len(missing) < len(globs):
            return newest
        return newest + [older for glob in missing if (older := self._last_with(series, glob)) is not None]

    def _last_with(self, series: Sequence[BackupSummary], glob: Glob) -> _Candidate | None:
        """Return the newest complete backup with such a stream, if the newest ones of the series no longer have it.

        Searches backwards in growing steps, then between the last two: a stream that existed only in between is not
        found.
        """
        backups = _complete(series)[::-1]
        if not backups or (glob.is_literal and not backups[0].selection.selects(glob.pattern)):
            return None

        def has(age: int) -> bool:
            candidate = self.candidate(backups[age], series)
            return candidate is not None and candidate.has(glob)

        low, high, last = 0, 1, len(backups) - 1
        while high < last and not has(high):
            low, high = high, 2 * high + 1
        high = min(high, last)
        if not has(high):
            return None
        while high - low > 1:
            middle = (low + high + 1) // 2
            low, high = (low, middle) if has(middle) else (middle, high)
        return self.candidate(backups[high], series)

    def _rank(self, candidate: _Candidate) -> tuple[int, int, int, bool, str]:
        """Return how well a backup fits the request; the largest is chosen: how many of the command's names and
        patterns it has, at least in part; how many it has completely; how many of the known requested streams its
        selection covers; whether it has consumers; its id.
        """
        globs = self.wanted.streams
        return (
            sum(map(candidate.has, globs)),
            sum(any(map(glob.matches, candidate.whole)) for glob in globs),
            sum(map(candidate.selects, self._asked)),
            candidate.summary.selection.consumers,
            candidate.id,
        )

    def _missing(self, best: _Candidate, candidates: Sequence[_Candidate]) -> UsageError:
        """Return the error for when no single backup has all named streams, saying which has what."""
        streams = self.wanted.streams
        having = {glob.pattern: [candidate.id for candidate in candidates if candidate.has(glob)] for glob in streams}
        nowhere = next((pattern for pattern, backups in having.items() if not backups), None)
        if nowhere is not None:
            names = {name for candidate in self._newest for name in candidate.whole}
            return UsageError(
                f"backup {best.id}, the latest, has no stream {nowhere}, nor has any other backup that 'latest' can "
                "mean",
                hint=nearest(nowhere, sorted(names))
                or "See 'jsbackup list' and 'jsbackup show' for the streams there are.",
            )
        places = "; ".join(f"{pattern} is in {max(backups)}" for pattern, backups in having.items())
        return UsageError(
            f"no single backup has all of these streams: {places}",
            hint="Name each backup by its id, with the streams that are to be taken from it.",
        )


# --- what is reported about other backups ---


def _about_named(manifest: Manifest, connected: Source) -> Iterator[str]:
    """Yield a sentence if a backup given by its id surely comes from elsewhere. An import's source is not known."""
    origin, ours = origin_of(manifest.source), origin_of(connected)
    another_account = bool(origin.account and ours.account) and origin.account != ours.account
    another_place = (origin.cluster, origin.domain, origin.api_prefix) != (ours.cluster, ours.domain, ours.api_prefix)
    if not summary_of(manifest).imported and (another_account or another_place):
        yield f"backup {manifest.id} comes from {origin.words}; the connected server is {ours.words}"


def _about_source(origin: Origin | None, wanted: Wanted) -> Iterator[str]:
    if origin is not None and wanted.origin is not None and wanted.origin != origin:
        yield f"it comes from {origin.words}; the connected server is {wanted.origin.words}"


def _about_ahead(ahead: Sequence[BackupSummary], chosen: str) -> Iterator[str]:
    for backup in ahead[-_MOST_NOTES:]:
        text = "is dated in the future: a clock was wrong"
        yield f"{backup.id} {text}" if backup.id == chosen else f"{backup.id} is not used: it {text}; name it by its id"


def _about_gone(repository: Repository, chosen: _Candidate, wanted: Wanted, *, named: Collection[str]) -> Iterator[str]:
    """Report requested streams that are not in the backup, with the last complete one of its series that has them."""
    if wanted.streams and all(glob.is_literal for glob in wanted.streams):
        return
    last = chosen.summary
    earlier = [backup for backup in _complete(chosen.series) if backup.id < last.id]
    since = parse_time(last.created) - _GONE_NS
    before = [
        backup.id
        for backup, later in pairwise([*earlier, last])
        if later is last or (backup.streams > later.streams and parse_time(backup.created) >= since)
    ]
    known = {*named, *chosen.whole, *chosen.lacking}
    for backup in before[: -_MOST_READ - 1 : -1]:
        manifest = read_if_possible(repository, backup)
        names = [] if manifest is None else sorted(stream.name for stream in manifest.streams)
        absent = [name for name in names if name not in known and wanted.asks(name)]
        if manifest is None or not absent:
            continue
        known.update(absent)
        streams, them = (
            (f"streams {_some(absent)} are", "them") if len(absent) > 1 else (f"stream {absent[0]} is", "it")
        )
        made = f"{backup}, made {manifest.created[:19]}Z"
        yield f"{streams} not in {last.id}; the newest backup that has {them} is {made}"


def _about_newer(
    candidates: _Candidates, chosen: _Candidate, backups: Sequence[BackupSummary], pool: Sequence[BackupSummary]
) -> list[str]:
    """Report the newest backup of each series that is newer than the chosen one, and why it was not chosen."""
    ids = {backup.id for backup in pool}
    imports = [backup for backup in backups if backup.imported is not None and backup.transformed is None]
    others = [*pool, *(backup for backup in imports if backup.id not in ids)]
    newest = [series[-1] for series in series_of(backup for backup in others if backup.id > chosen.id)]
    newest.sort(key=lambda backup: backup.id, reverse=True)
    notes = [f"{backup.id} is newer but not used: {_why_not(candidates, backup, chosen)}" for backup in newest]
    more = len(notes) - _MOST_NOTES
    return notes[:_MOST_NOTES] + ([f"and {more} more that are newer"] if more > 0 else [])


def _why_not(candidates: _Candidates, newest: BackupSummary, chosen: _Candidate) -> str:
    wanted, words = candidates.wanted, selection_words(newest.selection)
    if newest.imported not in (None, chosen.summary.imported):
        return f"it was imported ({newest.imported})"
    if newest.selection.config_only:
        return "it has configurations only"
    if not newest.streams and chosen.summary.streams:
        return "it has no stream although earlier ones have: check the server that it was made of"
    candidate = candidates.candidate(newest)
    if newest.result is not BackupResult.COMPLETE:
        lacking = candidate.lacking if candidate is not None else {}
        names = sorted(name for name in lacking if wanted.streams and wanted.asks(name)) or sorted(lacking)
        reason = f": {lacking[names[0]]}" if len(names) == 1 else ""
        return "it is partial" + (f", in {_some(names)}{reason}" if names else "")
    if newest.id not in {backup.id for backup in chosen.series}:
        return f"it is of {' '.join(words)}"
    missed = [glob.pattern for glob in wanted.streams if candidate is None or not candidate.has(glob)]
    return f"it has no stream {_some(missed)}"


def _some(names: Sequence[str], *, most: int = _MOST_NAMED, separator: str = ", ") -> str:
    return separator.join(names[:most]) + (f"{separator}…" if len(names) > most else "")
