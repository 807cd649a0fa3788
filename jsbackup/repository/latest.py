"""What `latest` means: the newest backup that is fit for what it is asked for. The one place that decides it.

    one source      that of the connection, else the only one there is (`sources.py`)
    fit             complete, where there is a complete one; with messages, where there is one with messages; not
                    made of another backup; not of a server that had lost all of its streams (`worth.py`)
    what is asked   its words cover the streams that are asked for, as no newer backup's do (`offers.py`)

What is newer and not meant is named with the reason, and so is what the chosen backup lacks and another one has.
A backup that is newer and cannot be read might be the one that is meant: that is an error.

Usually the newest backup is one of everything, of the source that is connected to, and complete. Then it is all that is
read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.manifest import Manifest, Result
from jsbackup.repository.offers import Elsewhere, Line, Offer, Offers
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.retention import Grouping, group_of, hollow_backups
from jsbackup.repository.sources import Wanted, counts, of_one_source
from jsbackup.repository.summary import BackupSummary, summary_of

__all__ = ["Choice", "Elsewhere", "Wanted", "choose_latest", "find_unselected"]

_MOST_NOTES = 5
_MOST_NAMED = 5


class _Reader(Protocol):
    """A repository."""

    def backups(self) -> list[str]: ...
    def inventory(self) -> Inventory: ...
    def manifest(self, backup: str) -> Manifest: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The backup that is meant. `elsewhere` is what it lacks of what was asked for; `notes` are sentences."""

    manifest: Manifest
    notes: tuple[str, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()


def choose_latest(repository: _Reader, wanted: Wanted) -> Choice:
    """The backup that `latest` means.

    Raises:
        UsageError: there is none, or it might be one of several sources; the message names them.
        FormatError, UnsupportedError, KeyUnavailable: a newer backup cannot be read.
        StoreError: the store does not answer.
    """
    ids = repository.backups()
    if not ids:
        raise UsageError("there is no backup in the repository yet", hint="Make one with `jsbackup backup`.")
    if (newest := _read(repository, ids[-1])) is not None and _is_plainly_meant(newest, wanted):
        return Choice(newest)
    inventory = repository.inventory()
    backups = [one for one in inventory.summaries if counts(one, wanted.tags, wanted.origins)]
    if not backups:
        if inventory.unreadable:
            raise inventory.unreadable[-1].error
        raise UsageError("no backup has this tag and is of this source", hint="'jsbackup list' shows which there are.")
    pool, origin = of_one_source(backups, wanted)
    fit = _fit(pool, hollow_backups(pool))
    offers = Offers(_lines(fit), repository.manifest, wanted)
    chosen = offers.choose()
    for unreadable in inventory.unreadable:
        if unreadable.id > chosen.id:
            raise _unreadable(unreadable.error, chosen.id)
    elsewhere = offers.elsewhere(chosen)
    notes = [*_about_source(origin, wanted), *_about_newer(offers, chosen, backups, pool, fit)]
    return Choice(chosen.manifest, tuple(notes), tuple(elsewhere))


def find_unselected(repository: _Reader, manifest: Manifest) -> list[Elsewhere]:
    """Streams of the same source that this backup leaves out by its words, and another one has.

    An import leaves out everything that backups of servers have: it tells nothing of them. Raises as `choose_latest`.
    """
    backup = summary_of(manifest)
    backups = [one for one in repository.inventory().summaries if one.is_of_a_server]
    origin = origin_of(backup)
    pool = [one for one in backups if origin_of(one) == origin] if backup.is_of_a_server else backups
    fit = [one for one in pool if one.id != backup.id and not one.selection.config_only]
    offers = Offers(_lines(fit), repository.manifest, Wanted())
    of_it = Offer(backup, manifest)
    return [one for one in offers.elsewhere(of_it) if not backup.is_of_a_server or not of_it.selects(one.stream)]


def _read(repository: _Reader, backup: str) -> Manifest | None:
    try:
        return repository.manifest(backup)
    except JsBackupError:  # looked at with all others
        return None


def _is_plainly_meant(manifest: Manifest, wanted: Wanted) -> bool:
    """Whether no other backup can be meant: it is of the connected source, complete, and of all streams."""
    backup, asked = summary_of(manifest), manifest.selection
    if wanted.origin is None or wanted.origins or wanted.tags or asked is None or not backup.is_of_a_server:
        return False
    everything = not asked.streams and not asked.exclude and asked.consumers and not asked.config_only
    if not everything or backup.result is not Result.COMPLETE or not backup.streams:
        return False
    names = [stream.name for stream in manifest.streams]
    return origin_of(backup) == wanted.origin and all(any(map(glob.matches, names)) for glob in wanted.streams)


def _lines(backups: Sequence[BackupSummary]) -> list[Line]:
    groups: dict[tuple[str, ...], list[BackupSummary]] = {}
    for one in backups:
        groups.setdefault(group_of(one, Grouping.SELECTION), []).append(one)
    return [Line(group) for group in groups.values()]


def _fit(pool: Sequence[BackupSummary], hollow: Collection[str]) -> list[BackupSummary]:
    """Those with messages; if there are none, those that are left."""
    sound = [one for one in pool if one.id not in hollow] or list(pool)
    # One that is partial and has nothing lacks everything.
    something = [one for one in sound if one.streams or one.result is Result.COMPLETE] or sound
    return [one for one in something if not one.selection.config_only] or something


def _unreadable(error: JsBackupError, chosen: str) -> JsBackupError:
    told = f"The newest that can be read and is meant is {chosen}: name it by its id."
    error.hint = f"{error.hint} {told}" if error.hint else told
    return error


# --- what is said of others ---


def _about_source(origin: Origin | None, wanted: Wanted) -> Iterator[str]:
    if origin is not None and wanted.origin not in (None, origin):
        assert wanted.origin is not None
        yield f"it comes from {origin.words}; connected to is {wanted.origin.words}"


def _about_newer(
    offers: Offers,
    chosen: Offer,
    backups: Sequence[BackupSummary],
    pool: Sequence[BackupSummary],
    fit: Sequence[BackupSummary],
) -> list[str]:
    """What is newer than the chosen backup, of each line the newest, and why it is not meant."""
    known, meant = {one.id for one in pool}, {one.id for one in fit}
    others = [one for one in backups if one.imported is not None and one.transformed is None and one.id not in known]
    found = []
    for line in _lines([*pool, *others]):
        newest = line.backups[-1]
        if newest.id > chosen.id:
            why = _why_not(offers, newest, chosen, is_meant=newest.id in meant)
            found.append((newest.id, f"{newest.id} is newer, and not meant: {why}"))
    ordered = [text for _, text in sorted(found, reverse=True)]
    more = len(ordered) - _MOST_NOTES
    return ordered[:_MOST_NOTES] + ([f"and {more} more that are newer"] if more > 0 else [])


def _why_not(offers: Offers, newest: BackupSummary, chosen: Offer, *, is_meant: bool) -> str:
    if newest.imported is not None:
        return "it was imported"
    if newest.selection.config_only:
        return "it has configurations only"
    if not newest.streams and chosen.summary.streams:
        return "it has no stream, and earlier ones have: look at the server that it was made of"
    if newest.result is not Result.COMPLETE and is_meant:
        offer = offers.offer(newest)
        lacking = sorted(offer.lacking) if offer is not None else []
        shown = ", ".join(lacking[:_MOST_NAMED]) + (", …" if len(lacking) > _MOST_NAMED else "")
        return f"it is partial, and lacks {shown or 'something'}"
    if group_of(newest, Grouping.SELECTION) == group_of(chosen.summary, Grouping.SELECTION):
        return "it has not all of the streams that are named"
    asked = newest.selection
    words = f"streams {' '.join(asked.streams)}" if asked.streams else "all streams"
    words += f" but {' '.join(asked.exclude)}" if asked.exclude else ""
    return f"it is of {words}{'' if asked.consumers else ', without consumers'}"
