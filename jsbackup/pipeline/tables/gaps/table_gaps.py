"""What a table would lack, or lacks already, if backups are not exported in order, or some not at all.

An export that extends a table begins behind its end. Messages that were removed between two backups are only in those
between: where the table has not had them, they would be missing in it, and nothing later would tell. So a stream is
refused before anything of it is written, unless the caller `skips` what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jsbackup.errors import FormatError, IncompleteError, IntegrityError, JsBackupError, UnsupportedError
from jsbackup.pipeline.tables.gaps.kept_messages import KeptMessages
from jsbackup.pipeline.tables.gaps.older_backups import count_lacking
from jsbackup.pipeline.tables.table_growth import TableGrowth
from jsbackup.pipeline.tables.table_state import NewMessages
from jsbackup.readable import format_count, in_short
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.pages.segment_list import touching
from jsbackup.repository.read.between import (
    BackupsBetween,
    EarlierState,
    RemovedMessages,
    SequencesOf,
)
from jsbackup.repository.refs import SegmentRef
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.times import parse_time
from jsbackup.transforms.cut import AtSequence

__all__ = ["OtherBackups", "without_gaps"]

_MAX = (1 << 63) - 1
_MOST_NAMED = 10
_SKIP = "--skip-gaps leaves out what is missing."


@dataclass(frozen=True, slots=True)
class OtherBackups:
    """The other backups of the repository, in which messages may be that a backup lacks. `skips`: they do not stop an
    export.
    """

    repository: Repository
    skips: bool = False


def without_gaps(
    growths: Sequence[TableGrowth], manifest: Manifest, others: OtherBackups, *, store: Store, secret: bytes
) -> tuple[list[TableGrowth], dict[str, JsBackupError]]:
    """Return the growths that leave nothing out, with notes of what cannot be added, and why the others are refused.
    `store` has the tables; `secret` is the key of masks, b"" without one.

    Raises KeyUnavailable, StoreError: other backups cannot be read.
    """
    sequences = SequencesOf(others.repository)
    states = {
        one.one.entry.name: EarlierState(one.one.entry.incarnation, one.new.after, one.log.state.position.backup_ns)
        for one in growths
        if one.log is not None and one.log.state is not None and one.new.planned is not None and not _is_dense(one.new)
    }
    between = BackupsBetween(others.repository, manifest, states)
    between.read()
    kept: list[TableGrowth] = []
    refused: dict[str, JsBackupError] = {}
    for growth in growths:
        messages = KeptMessages(others.repository.objects, growth.one, secret)
        try:
            if growth.one.entry.name in states:
                note = _before(growth, between, sequences, messages, skips=others.skips)
            else:
                note = _below(growth, manifest, sequences, messages, store=store, skips=others.skips)
        except (FormatError, IncompleteError, IntegrityError, UnsupportedError) as error:
            refused[growth.name] = error
        else:
            notes = "; ".join(one for one in (growth.new.note, note) if one)
            kept.append(replace(growth, new=replace(growth.new, note=notes)))
    return kept, refused


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
        said = _counted(found)
        if skips:
            verb = "is" if found.messages == 1 else "are"
            return f"{said} {verb} left out: {'they are' if verb == 'are' else 'it is'} in {_backups(found.backups)}"
        raise IncompleteError(
            f"{said} of stream {entry.name} would be missing in its table: export {_backups(found.backups)} first"
            f"{', in this order' if len(found.backups) > 1 else ''}",
            hint=f"This was removed before this backup was made. {_SKIP}",
        )
    if found.unread and not skips:
        raise IncompleteError(
            f"messages of stream {entry.name} after sequence {growth.new.after} may be in {_backups(found.unread)}, "
            "which cannot be read, and not in this one",
            hint=f"'jsbackup verify' says what is wrong with it. {_SKIP}",
        )
    return f"{missing} in no backup" if missing and not found.unread else ""


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
