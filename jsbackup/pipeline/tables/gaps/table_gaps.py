"""What a table would lack, or lacks already, if backups are not exported in order, or some not at all.

An export that extends a table begins behind its end. Messages that were removed between two backups are only in those
between: where the table has not had them, they would be missing in it, and nothing later would tell. So a stream is
refused before anything of it is written, unless the caller `skips` what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jsbackup.errors import FormatError, IncompleteError, IntegrityError, JsBackupError, UnsupportedError
from jsbackup.pipeline.tables.gaps.deleted_streams import DeletedTables, without_tables
from jsbackup.pipeline.tables.gaps.kept_messages import KeptMessages
from jsbackup.pipeline.tables.gaps.older_backups import count_lacking
from jsbackup.pipeline.tables.table_growth import TableGrowth
from jsbackup.pipeline.tables.table_state import NewMessages
from jsbackup.planning.transforming import TransformOptions
from jsbackup.readable import format_count, in_short
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.pages.segment_list import touching
from jsbackup.repository.read.between import (
    BackupsBetween,
    EarlierState,
    Newcomers,
    RemovedMessages,
    SequencesOf,
)
from jsbackup.repository.read.sources import Wanted
from jsbackup.repository.refs import SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence

__all__ = ["OtherBackups", "WithoutGaps", "without_gaps"]

_MAX = (1 << 63) - 1
_MOST_NAMED = 10
_SKIP = "--skip-gaps leaves out what is missing."


@dataclass(frozen=True, slots=True)
class OtherBackups:
    """The other backups of the repository, in which messages may be that a backup lacks. `skips`: they do not stop an
    export. `wanted` is what was asked for.
    """

    repository: Repository
    skips: bool = False
    wanted: Wanted = field(default_factory=Wanted)


@dataclass(slots=True)
class WithoutGaps:
    """What `without_gaps` decided: `growths` that leave nothing out, with notes of what cannot be added; notes on
    `deleted` streams, by the names of their tables; and why others are `refused`.
    """

    growths: list[TableGrowth] = field(default_factory=list)
    deleted: dict[str, str] = field(default_factory=dict)
    refused: dict[str, JsBackupError] = field(default_factory=dict)


def without_gaps(
    growths: Sequence[TableGrowth],
    manifest: Manifest,
    others: OtherBackups,
    deleted: DeletedTables,
    *,
    options: TransformOptions,
    store: Store,
    secret: bytes,
) -> WithoutGaps:
    """Decide which tables would lack messages that other backups have. `deleted` are tables of streams that this backup
    does not have; `store` has all tables; `secret` is the key of masks, b"" without one.

    Raises:
        UsageError: no backup has a stream that was asked for.
        KeyUnavailable, StoreError: other backups cannot be read.
    """
    sequences, objects, done = SequencesOf(others.repository), others.repository.objects, WithoutGaps()
    states, since_ns = _states(growths, deleted)
    newcomers = Newcomers(since_ns, deleted.asked) if since_ns is not None and deleted.asked is not None else None
    between = BackupsBetween(others.repository, manifest, states, set(deleted.states), newcomers)
    between.read()
    for growth in growths:
        entry = growth.one.entry
        kept = KeptMessages(objects, entry.name, growth.one.reshaped.messages, secret)
        try:
            if entry.name in states:
                note = _before(growth, between, sequences, kept, skips=others.skips)
            else:
                note = _below(growth, manifest, sequences, kept, store=store, skips=others.skips)
        except (FormatError, IncompleteError, IntegrityError, UnsupportedError) as error:
            done.refused[growth.name] = error
        else:
            notes = "; ".join(one for one in (growth.new.note, note) if one)
            done.growths.append(replace(growth, new=replace(growth.new, note=notes)))
    for name in sorted(between.deleted):
        table = options.renames.over({name: {}}).name(name)
        kept = KeptMessages(objects, name, options.reshape, secret)
        try:
            note = _of_deleted(name, between, sequences, kept, skips=others.skips)
        except (FormatError, IncompleteError, IntegrityError, UnsupportedError) as error:
            done.refused[table] = error
        else:
            named = any(glob.is_literal and glob.matches(name) for glob in others.wanted.streams)
            if note or named or between.has_seen(name):
                done.deleted[table] = f"it is not in backup {manifest.id} any more{note or _nothing_new(states[name])}"
    found = {*between.deleted, *deleted.refused}
    for name, lacking in without_tables(others.repository, manifest, others.wanted, found):
        table = options.renames.over({name: {}}).name(name)
        if others.skips:
            done.deleted[table] = f"it is left out: {lacking.message}"
        else:
            done.refused[table] = lacking.with_hint(_SKIP)
    done.refused.update(deleted.refused)
    return done


def _states(growths: Sequence[TableGrowth], deleted: DeletedTables) -> tuple[dict[str, EarlierState], int | None]:
    """Return how far the tables go of which messages may be in other backups, by the names of their streams; also when
    the backup was made that was exported last, None if none was.
    """
    states, times = deleted.earlier, [state.position.backup_ns for state in deleted.states.values()]
    times += [one.log.state.position.backup_ns for one in growths if one.log is not None and one.log.state is not None]
    since_ns = max(times, default=None)
    for one in growths:
        entry, planned = one.one.entry, one.new.planned
        if one.log is None or planned is None or not entry.archive_format.has_messages:
            continue
        if one.log.state is not None:
            if _is_dense(one.new):
                continue
            states[entry.name] = EarlierState(entry.incarnation, one.new.after, one.log.state.position.backup_ns)
        elif since_ns is not None:
            # Of all backups: an export that was refused for this table may have extended the others since.
            states[entry.name] = EarlierState(entry.incarnation, 0, 0)
    return states, since_ns


def _is_dense(new: NewMessages) -> bool:
    """Whether what is new is without gaps, by the ranges of segments."""
    assert new.planned is not None
    reached = new.after
    for ref in new.planned.entry.segments:
        if not ref.dense or ref.first_seq > reached + 1:
            return False
        reached = ref.last_seq
    return reached >= new.planned.entry.last_seq


def _before(
    growth: TableGrowth, between: BackupsBetween, sequences: SequencesOf, kept: KeptMessages, *, skips: bool
) -> str:
    """Return a note about what the backup lacks just behind the end of a table, "" if there is nothing to say.

    Raises:
        IncompleteError: other backups have it, or may have it.
        IntegrityError: a segment or a list of segments cannot be read.
    """
    entry = growth.one.entry
    try:
        found = between.removed(entry, keeps=kept.may_have, sequences=sequences, kept=None if kept.all else kept.of)
        missing = "" if found.others else _missing(growth, sequences)
    except IntegrityError:
        if not skips:
            raise
        return "what earlier backups have and this one lacks could not be found out"
    if found.messages:
        if skips:
            return _left_out(found)
        raise IncompleteError(
            f"{_counted(found)} of stream {entry.name} would be missing in its table: {_export_first(found)}",
            hint=f"This was removed before this backup was made. {_SKIP}",
        )
    is_new = growth.log is None or growth.log.state is None
    if found.unread and not (is_new and _is_dense(growth.new)):
        return _unread(entry.name, growth.new.after, found, skips=skips)
    if is_new:  # messages from before are not expected
        older = between.older(entry.name)
        return f"backup {older} has an earlier stream of that name, which is not in this table" if older else ""
    return f"{missing} in no backup" if missing else ""


def _of_deleted(name: str, between: BackupsBetween, sequences: SequencesOf, kept: KeptMessages, *, skips: bool) -> str:
    """Return the end of a note about a stream that the backup has no more, "" without one. Raises as `_before`."""
    backup, after = between.manifest.id, between.states[name].last_seq
    try:
        found = between.removed(name, keeps=kept.may_have, sequences=sequences, kept=None if kept.all else kept.of)
    except IntegrityError:
        if not skips:
            raise
        return "; what earlier backups have of it could not be found out"
    if found.messages:
        if skips:
            return f"; {_left_out(found)}"
        raise IncompleteError(
            f"stream {name} is not in backup {backup} any more, and {_counted(found)} of it would be missing in its "
            f"table: {_export_first(found)}",
            hint=f"It was deleted before this backup was made. {_SKIP}",
        )
    if (other := between.another(name)) and not skips:
        raise IncompleteError(
            f"stream {name} is not in backup {backup} any more, and backup {other} has another stream of that name, "
            "which has no table",
            hint=f"Export it to another folder, or move the folder of {name} away first. {_SKIP}",
        )
    if found.unread:
        return f"; {_unread(name, after, found, skips=skips)}"
    return ""


def _nothing_new(state: EarlierState) -> str:
    return f": nothing is new, the table ends at sequence {state.last_seq}" if state.last_seq else ": nothing is new"


def _export_first(found: RemovedMessages) -> str:
    return f"export {_backups(found.backups)} first{', in this order' if len(found.backups) > 1 else ''}"


def _left_out(found: RemovedMessages) -> str:
    are, they_are = ("is", "it is") if found.messages == 1 else ("are", "they are")
    return f"{_counted(found)} {are} left out: {they_are} in {_backups(found.backups)}"


def _unread(stream: str, after: int, found: RemovedMessages, *, skips: bool) -> str:
    """Return a note about backups that cannot be read, if that is no obstacle; else raise IncompleteError."""
    if skips:
        return f"{_backups(found.unread)} cannot be read, and may have more"
    raise IncompleteError(
        f"messages of stream {stream} after sequence {after} may be in {_backups(found.unread)}, which cannot be read, "
        "and not in this one",
        hint=f"'jsbackup verify' says what is wrong with it. {_SKIP}",
    )


def _missing(growth: TableGrowth, sequences: Callable[[SegmentRef], Sequence[int]]) -> str:
    """Return the sequences between the end of a table and the first new message, and a verb; "" if there are none."""
    cut, assumed = growth.one.reshaped.messages.cut, growth.new.planned
    assert assumed is not None
    first, last = growth.new.after + 1, assumed.entry.last_seq
    for ref in touching(assumed.entry.segments, first, _MAX):
        last = ref.first_seq - 1 if ref.first_seq >= first else next(n for n in sequences(ref) if n >= first) - 1
        break
    first = max(first, cut.since.sequence if isinstance(cut.since, AtSequence) else first)
    last = min(last, cut.until.sequence if isinstance(cut.until, AtSequence) else last)
    if last < first:
        return ""
    return f"message {first} is" if first == last else f"messages {first} to {last} are"


def _below(
    growth: TableGrowth, manifest: Manifest, sequences: SequencesOf, kept: KeptMessages, *, store: Store, skips: bool
) -> str:
    """Return a note about what the backup has and a table lacks that reaches further, "" if that is nothing. `store`
    has the files of the table.

    Raises:
        IncompleteError: it lacks some, or that cannot be found out.
        IntegrityError: a segment or a list of segments cannot be read.
    """
    log, entry = growth.log, growth.one.entry
    # A later backup has nothing up to the end of the table that those before did not have.
    later = parse_time(manifest.created) >= growth.new.position.backup_ns
    if log is None or log.state is None or growth.new.planned is not None or later:
        return ""
    if not entry.archive_format.has_messages:
        return ""
    try:
        lacks = count_lacking(entry.segments, log.ranges(), store, sequences=sequences, kept=kept)
    except FormatError as error:
        if skips:
            return f"whether it has all messages of this backup cannot be found out: {error.message}"
        raise IncompleteError(
            f"whether the table of stream {entry.name} has all messages of backup {manifest.id} cannot be found out: "
            f"{error.message}",
            hint="--skip-gaps leaves the table as it is.",
        ) from error
    if not lacks:
        return ""
    words = format_count(lacks, "message")
    if skips:
        return f"it lacks {words} of this backup, which can no longer be added"
    raise IncompleteError(
        f"the table of stream {entry.name} lacks {words} of backup {manifest.id}, which can no longer be added: the "
        f"table ends at sequence {growth.new.after}, by a later backup",
        hint="Export the backups to another folder, oldest first. --skip-gaps leaves the table as it is.",
    )


def _counted(found: RemovedMessages) -> str:
    if found.first_seq == found.last_seq:
        return f"message {found.first_seq}"
    if found.messages == found.last_seq - found.first_seq + 1:
        return f"messages {found.first_seq} to {found.last_seq}"
    return f"{found.messages:,} of the messages {found.first_seq} to {found.last_seq}"


def _backups(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"backup {ids[0]}"
    if len(ids) <= _MOST_NAMED:
        return f"backups {', '.join(ids[:-1])} and {ids[-1]}"
    return f"{len(ids):,} backups: {in_short(ids, most=_MOST_NAMED)}"
