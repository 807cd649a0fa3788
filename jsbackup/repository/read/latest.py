"""What `latest` means: the newest backup that is suitable for the command. Only decided here.

    dated           not in the future: some clock was wrong, and it is not known when it was made
    one source      that of the connection, else the only one there is (`sources.py`); of servers without a name, one
                    whose streams are those that are there (`sources.py`)
    fit             complete, where there is a complete one; with messages, where there is one with messages; not
                    made of another backup; not of a server that had lost all of its streams (`retention.py`)
    what is asked   its words cover the streams that are asked for, as no newer backup's do

Newer backups that are not chosen are reported with the reason, and so are streams that only another backup has. A newer
backup that cannot be read might be the right one, so it is an error.

A stream that no longer existed when the chosen backup was made is reported with the last backup that has it: it may
have been deleted by mistake. Only a few manifests are read for that: those followed by a backup with fewer streams.

Usually the newest backup has everything, is from the connected source, and is complete. Then it is the one, and backups
of other sources are not considered.

Find the newest backup of one source that has the requested streams.

Backups with the same selection form a *series* (a `line` in the code), as in retention. Each series offers its newest
complete backup, or its newest partial one if there is no complete one; if streams are named, also a newer partial one
that has them completely, and an older one if the newer ones no longer have them (or, `as_newest`, any of them).

The one whose selection covers most of the requested streams is chosen, and among equals the newest: a restore of
everything does not mean a backup of one stream that was made by hand after the nightly one. A series that has ended
counts only if no other has any of the requested streams. It has ended if its newest backup is older than the newest of
all by more than three times its own interval, and by more than a day and a half. Streams that the chosen backup lacks,
and another one has, are reported with that backup.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Protocol

from jsbackup.config import Glob, is_chosen
from jsbackup.errors import IntegrityError, JsBackupError, UsageError
from jsbackup.repository.checks.manifest_chain import how_to_repair
from jsbackup.repository.document import Documents
from jsbackup.repository.inventory import Inventory, find_missing
from jsbackup.repository.manifest import (
    BackupResult,
    BackupSummary,
    FactKind,
    Manifest,
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
    Grouping,
    Wanted,
    counts,
    group_of,
    hollow_backups,
    is_unnamed,
    of_one_source,
    refuse_another_server,
)
from jsbackup.times import parse_time

__all__ = ["Choice", "Elsewhere", "Wanted", "about_named", "choose_latest", "find_unselected", "with_damage"]

_log = logging.getLogger(__name__)

_PATIENCE_NS = 36 * 3600 * 10**9
_MISSED = 3
_RHYTHM = 8  # how many backups of a series are used to find its interval

ReadManifest = Callable[[str], Manifest]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A stream that the chosen backup lacks, and the newest backup that has it."""

    stream: str
    backup: str
    created: str


@dataclass(frozen=True)
class Offer:
    """A backup that can be chosen. `whole` are the streams that it has completely, `lacking` all others: those that it
    does not have, and `doubtful` ones, which it has, each with its first warning.
    """

    summary: BackupSummary
    manifest: Manifest

    @property
    def id(self) -> str:
        return self.summary.id

    @cached_property
    def lacking(self) -> frozenset[str]:
        if self.manifest.result is BackupResult.COMPLETE:
            return frozenset()
        return frozenset([*(one.name for one in self.manifest.skipped), *self.doubtful])

    @cached_property
    def doubtful(self) -> Mapping[str, str]:
        if self.manifest.result is BackupResult.COMPLETE:
            return {}
        found = ((one.name, self._doubts(one)) for one in reversed(self.manifest.streams))
        return {name: doubts[0] for name, doubts in found if doubts}

    @staticmethod
    def _doubts(stream: StreamBackup) -> list[str]:
        facts = [fact.text for fact in stream.facts if fact.kind is not FactKind.EMPTIED]
        return [*facts, *stream.warnings]

    @cached_property
    def whole(self) -> frozenset[str]:
        return frozenset(stream.name for stream in self.manifest.streams) - self.lacking

    def selects(self, name: str) -> bool:
        return self.summary.selection.selects(name)

    def has(self, glob: Glob) -> bool:
        return any(glob.matches(stream.name) for stream in self.manifest.streams)


def is_asked(wanted: Wanted, name: str) -> bool:
    """Return whether a stream of that name is requested."""
    usual = wanted.usual if not wanted.streams else None
    return is_chosen(name, wanted.streams, wanted.exclude) and (usual is None or usual.selects(name))


@dataclass(frozen=True)
class OfferedSeries:
    """Usable backups that succeed each other, oldest first; at least one."""

    backups: Sequence[BackupSummary]

    @cached_property
    def complete(self) -> Sequence[BackupSummary]:
        return [one for one in self.backups if one.result is BackupResult.COMPLETE]

    @property
    def top(self) -> BackupSummary:
        return (self.complete or self.backups)[-1]

    @property
    def newer_partial(self) -> BackupSummary | None:
        newest = self.backups[-1]
        return newest if newest.id > self.top.id else None

    def has_ended(self, newest_ns: int) -> bool:
        """Return whether newer backups of it are overdue, if the newest of all was made at `newest_ns`."""
        made = [parse_time(one.created) for one in (self.complete or self.backups)[-_RHYTHM:]]
        between = max((later - earlier for earlier, later in pairwise(made)), default=0)
        return newest_ns - made[-1] > max(_PATIENCE_NS, _MISSED * between)


@dataclass(frozen=True)
class Offers:
    """The backups that `lines` offer. Manifests are read once; unreadable ones are not offered."""

    lines: Sequence[OfferedSeries]
    read: ReadManifest
    wanted: Wanted
    _read: dict[str, Offer | None] = field(default_factory=dict)
    _unreadable: dict[str, JsBackupError] = field(default_factory=dict)

    def choose(self) -> Offer:
        """Return the chosen backup.

        Raises:
            UsageError: none, or no single one, has the named streams.
            JsBackupError: no backup can be read, or a newer one of the same series cannot. The error is that of the
                newest.
        """
        newest_ns = max(parse_time(line.top.created) for line in self.lines)
        ranked = sorted(
            ((self._rank(offer), offer, line) for line in self.lines for offer in self._of(line)),
            key=lambda item: item[0],
        )
        if not ranked:
            if self._unreadable:
                raise self._error_of(max(self._unreadable))
            raise UsageError("no backup can be read", hint="See 'jsbackup list'.")  # forgotten since they were listed
        going_on = [item for item in ranked if item[0].is_useful and not item[2].has_ended(newest_ns)]
        _, best, line = (going_on or ranked)[-1]
        newest = max((one.id for one in line.backups if one.id in self._unreadable), default="")
        if newest > best.id:
            text = f"The newest that can be read and is meant is {best.id}: name it by its id."
            raise self._error_of(newest).with_more_hint(text)
        if self.wanted.all_needed and not all(best.has(glob) for glob in self.wanted.streams):
            raise self._missing(best)
        return best

    def elsewhere(self, chosen: Offer) -> list[Elsewhere]:
        """Return the requested streams that are only in other backups. Streams that were deleted meanwhile do not
        count.
        """
        found = []
        for name in sorted(self._asked - chosen.whole - chosen.lacking):
            holder = max((one for one in self._tops if name in one.whole), key=lambda one: one.id, default=None)
            if holder is not None and (holder.id > chosen.id or not chosen.selects(name)):
                found.append(Elsewhere(name, holder.id, holder.summary.created))
        for name in sorted(self._asked & chosen.lacking):
            holder = max((one for one in self._tops if name in one.whole), key=lambda one: one.id, default=None)
            if holder is not None:
                found.append(Elsewhere(name, holder.id, holder.summary.created))
        return found

    # --- the candidates ---

    @cached_property
    def _tops(self) -> list[Offer]:
        """The newest backup of each series, and a newer partial one."""
        wanted = (one for line in self.lines for one in (line.top, line.newer_partial))
        return [offer for one in wanted if one is not None and (offer := self.offer(one)) is not None]

    @cached_property
    def _asked(self) -> frozenset[str]:
        """The names of the requested streams, as far as the newest backups know them."""
        names = {name for offer in self._tops for name in offer.whole | offer.lacking}
        return frozenset(name for name in names if is_asked(self.wanted, name))

    def offer(self, summary: BackupSummary) -> Offer | None:
        if summary.id not in self._read:
            try:
                self._read[summary.id] = Offer(summary, self.read(summary.id))
            except UsageError:  # forgotten since it was listed
                self._read[summary.id] = None
            except JsBackupError as error:
                _log.warning("backup %s: %s", summary.id, error.message)
                self._unreadable[summary.id] = error
                self._read[summary.id] = None
        return self._read[summary.id]

    def _error_of(self, backup: str) -> JsBackupError:
        error = self._unreadable[backup]
        return error.with_message(f"backup {backup}: {error.message}")

    def _of(self, line: OfferedSeries) -> Iterator[Offer]:
        globs = self.wanted.streams
        newest = [line.top]
        if line.newer_partial is not None and globs:
            newest.append(line.newer_partial)
        offers = [offer for one in newest if (offer := self.offer(one)) is not None]
        yield from offers
        if self.wanted.as_newest and any(offer.has(glob) for offer in offers for glob in globs):
            return
        for glob in globs:
            if not any(offer.has(glob) for offer in offers):
                older = self._newest_with(line, glob)
                if older is not None:
                    yield older

    def _newest_with(self, line: OfferedSeries, glob: Glob) -> Offer | None:
        """Return the newest backup with such a stream, if the newest ones of the series no longer have it.

        Searches backwards in growing steps, then between the last two: a stream that existed only in between is not
        found.
        """
        backups = line.complete
        if glob.is_literal and backups and not backups[-1].selection.selects(glob.pattern):
            return None
        low, step = len(backups) - 1, 1
        while low > 0:
            high, low = low, max(0, low - step)
            step *= 2
            if self._at(backups, low, glob) is not None:
                break
        else:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._at(backups, middle, glob) is not None else (low, middle)
        return self._at(backups, low, glob)

    def _at(self, backups: Sequence[BackupSummary], index: int, glob: Glob) -> Offer | None:
        offer = self.offer(backups[index])
        return offer if offer is not None and offer.has(glob) else None

    # --- which one is chosen ---

    def _rank(self, offer: Offer) -> _Rank:
        globs = self.wanted.streams
        return _Rank(
            named=sum(offer.has(glob) for glob in globs),
            whole=sum(any(map(glob.matches, offer.whole)) for glob in globs),
            covered=sum(offer.selects(name) for name in self._asked),
            consumers=offer.summary.selection.consumers,
            id=offer.id,
        )

    def _missing(self, best: Offer) -> UsageError:
        """Return the error for when no single backup has all named streams, saying which has what."""
        where: Mapping[str, Offer | None] = {
            glob.pattern: max(
                (offer for line in self.lines for offer in self._of(line) if offer.has(glob)),
                key=lambda one: one.id,
                default=None,
            )
            for glob in self.wanted.streams
        }
        if nowhere := [pattern for pattern, offer in where.items() if offer is None]:
            return UsageError(
                f"backup {best.id}, the latest, has no stream {nowhere[0]}, nor has any other backup that 'latest' can "
                "mean",
                hint=self._near(nowhere[0]) or "See 'jsbackup list' and 'jsbackup show' for the streams there are.",
            )
        where_each = "; ".join(f"{pattern} is in {offer.id}" for pattern, offer in where.items() if offer is not None)
        return UsageError(
            f"no single backup has all of these streams: {where_each}",
            hint="Name each backup by its id, with the streams that are to be taken from it.",
        )

    def _near(self, pattern: str) -> str | None:
        from jsbackup.config import nearest

        return nearest(pattern, sorted({name for offer in self._tops for name in offer.whole}))


@dataclass(frozen=True, order=True)
class _Rank:
    """How well an offer fits the request; the largest is chosen.

    `named`: how many of the command's names and patterns it has, at least in part; `whole`: how many it has completely;
    `covered`: how many of the known requested streams its selection covers.
    """

    named: int
    whole: int
    covered: int
    consumers: bool
    id: str

    @property
    def is_useful(self) -> bool:
        return bool(self.named or self.covered)


_MOST_NOTES = 5
_MOST_NAMED = 5
# How many backups are read to find deleted streams, and how long before the chosen one they may have been made.
_MOST_READ = 4
_GONE_NS = 31 * 24 * 3600 * 10**9


class _Reader(Protocol):
    """A repository."""

    @property
    def documents(self) -> Documents: ...
    def backups(self) -> list[str]: ...
    def inventory(self) -> Inventory: ...
    def manifest(self, backup: str, *, in_part: bool = ..., names: Collection[str] | None = ...) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen backup. `elsewhere` has the requested streams that it lacks; `notes` are sentences for the user."""

    manifest: Manifest
    notes: tuple[str, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()


def choose_latest(
    repository: _Reader,
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
    choice = _choose(repository, wanted, read)
    if not wanted.tags:
        refuse_another_server(repository, choice.manifest, connected)
    return choice


def _choose(repository: _Reader, wanted: Wanted, read: Callable[[str], Manifest]) -> Choice:
    ids = repository.backups()
    if not ids:
        _refuse_removed(repository, repository.inventory())
        raise UsageError("the repository has no backup yet", hint="Make one with `jsbackup backup`.")
    now_ns = time.time_ns()
    newest = _read(read, ids[-1])
    if newest is not None and _is_plainly_meant(newest, wanted) and not is_dated_ahead(newest.created, now_ns):
        return Choice(newest, tuple(_about_others(repository, newest, wanted)))
    inventory = repository.inventory()
    backups = [one for one in inventory.summaries if counts(one, wanted.tags, wanted.origins)]
    if not backups:
        if inventory.unreadable:
            raise inventory.unreadable[-1].error
        raise _none_counts(inventory.summaries, wanted)
    ahead = [one for one in backups if is_dated_ahead(one.created, now_ns)]
    backups = [one for one in backups if one not in ahead] or ahead
    pool, origin = of_one_source(backups, wanted)
    fit = _fit(pool, hollow_backups(pool))
    offers = Offers(_lines(fit), read, wanted)
    chosen = offers.choose()
    for unreadable in inventory.unreadable:
        if unreadable.id > chosen.id:
            text = f"The newest readable backup that matches is {chosen.id}: name it by its id."
            raise unreadable.error.with_more_hint(text)
    _refuse_removed(repository, inventory, chosen.id)
    elsewhere = offers.elsewhere(chosen)
    named = {one.stream for one in elsewhere}
    notes = [
        *_about_source(origin, wanted),
        *_about_ahead(ahead, chosen.id),
        *_about_newer(offers, chosen, backups, pool, fit=fit),
        *_about_gone(repository, chosen.manifest, fit, wanted, named=named),
    ]
    return Choice(chosen.manifest, tuple(notes), tuple(elsewhere))


def _none_counts(summaries: Sequence[BackupSummary], wanted: Wanted) -> UsageError:
    """Return the error for when no backup has the wanted tags and sources."""
    sources = " or ".join(repr(glob.pattern) for glob in wanted.origins)
    asked = [*([f"of source {sources}"] if sources else []), *(f"tagged {str(tag)!r}" for tag in wanted.tags)]
    there = sorted({shlex.quote(str(origin_of(one))) for one in summaries if one.is_of_a_server})
    known = f"There are backups of {', '.join(there[:_MOST_NAMED])}. " if there and sources else ""
    return UsageError(f"no backup is {' and '.join(asked)}", hint=f"{known}'jsbackup list' shows all.")


def with_damage(objects: Objects, choice: Choice, wanted: Wanted) -> Choice:
    """Return the choice with a note if wanted streams of the backup are known to be damaged. It stays the choice: an
    older one has other messages, and of these streams a restore is refused.

    Pages are only read of streams in whose folder something is damaged. Raises KeyUnavailable and StoreError.
    """
    backup = choice.manifest
    damaged = [one.name for one in backup.streams if is_asked(wanted, one.name) and _is_damaged(objects, one)]
    if not damaged:
        return choice
    text = f"{backup.id} is known to be damaged, in {_some(damaged)}: 'jsbackup show {backup.id}' says more"
    return replace(choice, notes=(text, *choice.notes))


def _is_damaged(objects: Objects, stream: StreamBackup) -> bool:
    parts = [*parts_of(stream.segments), *stream.opaque, *(c.pending for c in stream.consumers if c.pending)]
    if not any(objects.damaged_in(folder) for folder in {folder_of(part) for part in parts}):
        return False
    return any(isinstance(ref, BrokenPage) or objects.is_damaged(ref) for ref in stream.walk())


def find_unselected(repository: _Reader, manifest: Manifest) -> list[Elsewhere]:
    """Return the streams of the same source that this backup's selection leaves out, and another backup has.

    An import's source is not known, so everything that backups of servers have is left out. Raises as `choose_latest`.
    """
    backup = summary_of(manifest)
    backups = [one for one in repository.inventory().summaries if one.is_of_a_server]
    origin = origin_of(backup)
    pool = [one for one in backups if origin_of(one) == origin] if backup.is_of_a_server else backups
    fit = [one for one in pool if one.id != backup.id and not one.selection.config_only]
    offers = Offers(_lines(fit), repository.manifest, Wanted())
    of_it = Offer(backup, manifest)
    return [one for one in offers.elsewhere(of_it) if not backup.is_of_a_server or not of_it.selects(one.stream)]


def _read(read: Callable[[str], Manifest], backup: str) -> Manifest | None:
    try:
        return read(backup)
    except JsBackupError:  # considered with all others
        return None


def _is_plainly_meant(manifest: Manifest, wanted: Wanted) -> bool:
    """Return whether this must be the one: it is of the connected source, complete, and of all streams."""
    backup, asked = summary_of(manifest), manifest.selection
    if wanted.origin is None or wanted.origins or wanted.tags or asked is None or not backup.is_of_a_server:
        return False
    everything = not asked.streams and not asked.exclude and asked.consumers and not asked.config_only
    if not everything or backup.result is not BackupResult.COMPLETE or not backup.streams:
        return False
    names = [stream.name for stream in manifest.streams]
    return origin_of(backup) == wanted.origin and all(any(map(glob.matches, names)) for glob in wanted.streams)


def _lines(backups: Sequence[BackupSummary]) -> list[OfferedSeries]:
    groups: dict[tuple[str, ...], list[BackupSummary]] = {}
    for one in backups:
        groups.setdefault(group_of(one, Grouping.SELECTION), []).append(one)
    return [OfferedSeries(group) for group in groups.values()]


def _fit(pool: Sequence[BackupSummary], hollow: Collection[str]) -> list[BackupSummary]:
    """Return the backups with messages; if there are none, all that are usable."""
    sound = [one for one in pool if one.id not in hollow] or list(pool)
    # A partial backup without any stream lacks everything.
    something = [one for one in sound if one.streams or one.result is BackupResult.COMPLETE] or sound
    return [one for one in something if not one.selection.config_only] or something


# --- what is reported about other backups ---


def about_named(manifest: Manifest, connected: Source) -> list[str]:
    """Return a sentence if a backup given by its id surely comes from elsewhere. An import's source is not known."""
    origin, ours = origin_of(manifest.source), origin_of(connected)
    another_account = bool(origin.account and ours.account) and origin.account != ours.account
    places = [(one.cluster, one.domain, one.api_prefix) for one in (origin, ours)]
    if not summary_of(manifest).imported and (another_account or places[0] != places[1]):
        return [f"backup {manifest.id} comes from {origin.words}; the connected server is {ours.words}"]
    return []


def _about_source(origin: Origin | None, wanted: Wanted) -> Iterator[str]:
    if origin is not None and wanted.origin not in (None, origin):
        assert wanted.origin is not None
        yield f"it comes from {origin.words}; the connected server is {wanted.origin.words}"


def _about_ahead(ahead: Sequence[BackupSummary], chosen: str) -> Iterator[str]:
    for one in ahead[-_MOST_NOTES:]:
        text = "is dated in the future: a clock was wrong"
        yield f"{one.id} {text}" if one.id == chosen else f"{one.id} is not used: it {text}; to use it, give its id"


def _about_others(repository: _Reader, chosen: Manifest, wanted: Wanted) -> list[str]:
    try:
        inventory = repository.inventory()
    except JsBackupError as error:
        _log.warning("earlier backups cannot be read: %s", error.message)
        return []
    _refuse_removed(repository, inventory, chosen.id)
    try:
        return list(_about_gone(repository, chosen, inventory.summaries, wanted, named=()))
    except JsBackupError as error:
        _log.warning("earlier backups cannot be read: %s", error.message)
        return []


def _refuse_removed(repository: _Reader, inventory: Inventory, chosen: str = "") -> None:
    """Raise IntegrityError if the manifest of a newer backup was removed (`manifest_chain.py`)."""
    newer = {gap.backup for gap in inventory.gaps if gap.backup > chosen}
    if not newer:
        return
    # Checked again: a backup that is committed or forgotten at this moment seems to be missing.
    there = repository.backups()
    missing = [gap for gap in find_missing(repository.documents) if gap.backup in newer and gap.backup not in there]
    if missing:
        gap = missing[-1]
        use = f" To use {chosen}, the newest that is there, give its id." if chosen else ""
        raise IntegrityError(
            f"the manifest of backup {gap.backup}, which is newer, is missing: {gap.problem}",
            hint=how_to_repair(gap.backup) + use,
        )


def _about_gone(
    repository: _Reader, chosen: Manifest, backups: Sequence[BackupSummary], wanted: Wanted, *, named: Collection[str]
) -> Iterator[str]:
    """Report requested streams that are not in the backup, with the last complete backup of its group that has them."""
    if wanted.streams and all(glob.is_literal for glob in wanted.streams):
        return
    last = summary_of(chosen)
    kind = group_of(last, Grouping.SELECTION)
    line = [one for one in backups if one.id < last.id and one.result is BackupResult.COMPLETE]
    line = [one for one in line if group_of(one, Grouping.SELECTION) == kind]
    since = parse_time(last.created) - _GONE_NS
    before = [
        one.id
        for one, later in pairwise([*line, last])
        if later is last or (one.streams > later.streams and parse_time(one.created) >= since)
    ]
    known = {*named, *(one.name for one in chosen.streams), *(one.name for one in chosen.skipped)}
    for backup in before[: -_MOST_READ - 1 : -1]:
        earlier = _read(repository.manifest, backup)
        names = [] if earlier is None else [one.name for one in earlier.streams]
        gone = sorted(name for name in names if name not in known and is_asked(wanted, name))
        if earlier is None or not gone:
            continue
        known.update(gone)
        shown = _some(gone)
        what = f"stream {shown} is not in {last.id}; the newest backup that has it is"
        if len(gone) > 1:
            what = f"streams {shown} are not in {last.id}; the newest backup that has them is"
        yield f"{what} {earlier.id}, made {earlier.created[:19]}Z"


def _about_newer(
    offers: Offers,
    chosen: Offer,
    backups: Sequence[BackupSummary],
    pool: Sequence[BackupSummary],
    *,
    fit: Sequence[BackupSummary],
) -> list[str]:
    """Report the newest backup of each series that is newer than the chosen one, and why it was not chosen."""
    known, meant = {one.id for one in pool}, {one.id for one in fit}
    others = [one for one in backups if one.imported is not None and one.transformed is None and one.id not in known]
    found = []
    for line in _lines([*pool, *others]):
        newest = line.backups[-1]
        if newest.id > chosen.id:
            why = _why_not(offers, newest, chosen, is_meant=newest.id in meant)
            found.append((newest.id, f"{newest.id} is newer but not used: {why}"))
    ordered = [text for _, text in sorted(found, reverse=True)]
    more = len(ordered) - _MOST_NOTES
    return ordered[:_MOST_NOTES] + ([f"and {more} more that are newer"] if more > 0 else [])


def _why_not(offers: Offers, newest: BackupSummary, chosen: Offer, *, is_meant: bool) -> str:
    if newest.imported is not None and chosen.summary.imported is None:
        return "it was imported"
    if newest.selection.config_only:
        return "it has configurations only"
    if not newest.streams and chosen.summary.streams:
        return "it has no stream although earlier ones have: check the server that it was made of"
    if newest.result is not BackupResult.COMPLETE and is_meant:
        return _why_partial(offers, newest)
    if group_of(newest, Grouping.SELECTION) == group_of(chosen.summary, Grouping.SELECTION):
        offer, named = offers.offer(newest), offers.wanted.streams
        missed = [glob.pattern for glob in named if offer is not None and not offer.has(glob)]
        return f"it has no stream {_some(missed)}" if missed else "it lacks some of the named streams"
    if newest.imported is not None:
        return f"it was imported from another source ({newest.imported})"
    asked = newest.selection
    words = f"streams {' '.join(asked.streams)}" if asked.streams else "all streams"
    words += f" except {' '.join(asked.exclude)}" if asked.exclude else ""
    return f"it is of {words}{'' if asked.consumers else ', without consumers'}"


def _why_partial(offers: Offers, newest: BackupSummary) -> str:
    """Say what a partial backup does not have, and what it has only in part: of named streams, if it is one of them."""
    offer = offers.offer(newest)
    if offer is None:
        return "it is partial"
    lacking = {one.name: one.reason for one in offer.manifest.skipped}
    named = {name for name in offer.lacking if offers.wanted.streams and is_asked(offers.wanted, name)}
    missing = sorted(name for name in lacking if not named or name in named)
    doubtful = sorted(name for name in offer.doubtful if not named or name in named)
    said = "it is partial"
    if missing:
        said += f", and lacks {_some(missing)}" + (f": {lacking[missing[0]]}" if len(missing) == 1 else "")
    elif doubtful:
        more = len(doubtful) - 1
        said += f": stream {doubtful[0]}: {offer.doubtful[doubtful[0]]}" + (f" (and {more} more)" if more else "")
    return said


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
