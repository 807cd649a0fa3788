"""Find the newest backup of one source that has the requested streams.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from jsbackup.config import Glob, is_chosen
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository.manifest import Manifest, Result
from jsbackup.repository.read.sources import Wanted
from jsbackup.repository.summary import BackupSummary
from jsbackup.times import parse_time

__all__ = ["Elsewhere", "Offer", "OfferedSeries", "Offers", "is_asked"]

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
        if self.manifest.result is Result.COMPLETE:
            return frozenset()
        return frozenset([*(one.name for one in self.manifest.skipped), *self.doubtful])

    @cached_property
    def doubtful(self) -> Mapping[str, str]:
        if self.manifest.result is Result.COMPLETE:
            return {}
        warnings = ((one.name, text) for one in self.manifest.streams for text in one.warnings if text != one.emptied)
        return dict(reversed(list(warnings)))

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
        return [one for one in self.backups if one.result is Result.COMPLETE]

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
